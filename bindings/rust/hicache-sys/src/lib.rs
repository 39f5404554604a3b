//! Declarations of libhicache's C ABI, generated from `include/hicache.h`, and the loader.
//!
//! With the feature `dlopen` (the default) [`load`] finds the library at run time; with `link` the program is linked with it and
//! [`Api::linked`] is the table. The header's prose holds for every function: read it there.
#![allow(non_camel_case_types, clippy::missing_transmute_annotations)]
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[rustfmt::skip] // Generated.
mod bindings;
pub use bindings::*;

#[cfg(feature = "dlopen")]
mod loader;
#[cfg(feature = "dlopen")]
pub use loader::{load, LoadError};
