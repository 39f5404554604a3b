//! Says where to link from. Nothing is compiled here: `cargo check` needs no C++ compiler and no library.
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-env-changed=HICACHE_LIB_DIR");
    if std::env::var_os("CARGO_FEATURE_LINK").is_none() {
        return;
    }
    if let Ok(dir) = std::env::var("HICACHE_LIB_DIR") {
        println!("cargo:rustc-link-search=native={dir}");
        return;
    }
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../build");
    if build.join("libhicache.so").exists() {
        println!("cargo:rustc-link-search=native={}", build.display());
    }
}
