use crate::{Api, HICACHE_ABI_MAJOR, HICACHE_ABI_MINOR};
use core::ffi::{c_char, c_int, c_void, CStr};
use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};

const FILE: &str = "libhicache.so";
const SONAME: &str = "libhicache.so.0";
const ENV: &str = "HICACHE_LIBRARY";

extern "C" {
    fn dlopen(path: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

/// Every path that was tried, with where it came from and why it was not used.
#[derive(Debug)]
pub struct LoadError {
    pub tried: Vec<(&'static str, PathBuf, String)>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hicache: no usable {FILE}")?;
        for (origin, path, reason) in &self.tried {
            write!(f, "\n  {origin}: {}: {reason}", path.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// Loads libhicache; it is never unloaded. `path` (a file, or a folder that holds libhicache.so), if given, is the only one tried; else the
/// environment's HICACHE_LIBRARY, if set; else the folder of the executable, the build folder of the repository that this crate was compiled
/// in, and the system's loader.
pub fn load(path: Option<&Path>) -> Result<Api, LoadError> {
    let mut tried = Vec::new();
    for (origin, path) in candidates(path) {
        match open(&path) {
            Ok(api) => return Ok(api),
            Err(reason) => tried.push((origin, path, reason)),
        }
    }
    Err(LoadError { tried })
}

fn candidates(option: Option<&Path>) -> Vec<(&'static str, PathBuf)> {
    if let Some(path) = option {
        return vec![("option", file_in(path))];
    }
    if let Some(path) = std::env::var_os(ENV).filter(|path| !path.is_empty()) {
        return vec![(ENV, file_in(Path::new(&path)))];
    }
    let mut out = Vec::new();
    if let Some(dir) = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf)) {
        out.push(("beside the executable", dir.join(FILE)));
    }
    out.push(("build folder", Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../build").join(FILE)));
    out.push(("system", PathBuf::from(SONAME)));
    out.push(("system", PathBuf::from(FILE)));
    out
}

/// The library inside `path` if that is a folder, else `path`; absolute, as a bare name would send the system's loader searching.
fn file_in(path: &Path) -> PathBuf {
    let path = std::env::current_dir().map_or_else(|_| path.to_path_buf(), |dir| dir.join(path));
    if path.is_dir() {
        path.join(FILE)
    } else {
        path
    }
}

fn open(path: &Path) -> Result<Api, String> {
    use std::os::unix::ffi::OsStrExt;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path has a NUL".to_string())?;
    // SAFETY: dlopen runs the library's initialisers; libhicache has none that matter, a foreign file is the caller's choice.
    let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
    if library.is_null() {
        // SAFETY: dlerror answers with a string of this thread, or null.
        let message = unsafe { dlerror() };
        if message.is_null() {
            return Err("dlopen failed".to_string());
        }
        return Err(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned());
    }
    check(library).inspect_err(|_| {
        // SAFETY: opened above, and nothing of it is kept.
        unsafe { dlclose(library) };
    })
}

fn check(library: *mut c_void) -> Result<Api, String> {
    // SAFETY: dlsym answers with an address or null; hicache_abi_version takes nothing and returns a u32 in every version of the ABI.
    let version = unsafe {
        let address = dlsym(library, c"hicache_abi_version".as_ptr());
        if address.is_null() {
            return Err("not a hicache library: it has no hicache_abi_version".to_string());
        }
        core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u32>(address)()
    };
    let (major, minor) = (version >> 16, version & 0xffff);
    if major != HICACHE_ABI_MAJOR || minor < HICACHE_ABI_MINOR {
        return Err(format!("a hicache library of ABI {major}.{minor}, this program speaks ABI {HICACHE_ABI_MAJOR}.{HICACHE_ABI_MINOR}"));
    }
    // SAFETY: the version says that the names mean what the header says.
    unsafe { Api::from_symbols(|name| dlsym(library, name.as_ptr())) }
        .map_err(|name| format!("a hicache library of ABI {major}.{minor} without {name}"))
}
