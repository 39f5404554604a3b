//! Sizes and offsets: the header's, this crate's and those of the compiler that built the library are the same.
use hicache_sys::{Api, LAYOUT};
use std::collections::HashMap;
use std::ffi::{c_char, CStr};

#[cfg(feature = "link")]
fn api() -> Api {
    Api::linked()
}

#[cfg(not(feature = "link"))]
fn api() -> Api {
    hicache_sys::load(None).unwrap_or_else(|error| panic!("these tests need the library (make lib): {error}"))
}

#[test]
fn layout() {
    let api = api();
    let mut theirs = HashMap::new();
    unsafe {
        let count = (api.hicache_abi_layout)(0, std::ptr::null_mut(), std::ptr::null_mut());
        for index in 0..count {
            let (mut name, mut value) = (std::ptr::null::<c_char>(), 0u64);
            (api.hicache_abi_layout)(index, &mut name, &mut value);
            theirs.insert(CStr::from_ptr(name).to_str().unwrap().to_string(), value as usize);
        }
    }
    for &(name, header, here) in LAYOUT {
        assert_eq!(here, header, "{name}: here, by the header");
        assert_eq!(theirs.get(name), Some(&here), "{name}: in the library, here");
    }
    assert_eq!(theirs.len(), LAYOUT.len());
}

#[test]
fn version() {
    let version = unsafe { (api().hicache_abi_version)() };
    assert_eq!(version >> 16, hicache_sys::HICACHE_ABI_MAJOR);
    assert!(version & 0xffff >= hicache_sys::HICACHE_ABI_MINOR);
}

#[cfg(feature = "dlopen")]
#[test]
fn refuses() {
    let missing = std::path::Path::new("/nowhere/libhicache.so");
    let error = hicache_sys::load(Some(missing)).err().expect("a missing file loads").to_string();
    assert!(error.contains("option: /nowhere/libhicache.so: "), "{error}");
    // A library that is not ours: the C library of this very process.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc"));
    let error = hicache_sys::load(Some(libc.expect("no C library in the maps").as_ref())).err().expect("libc loads").to_string();
    assert!(error.contains("not a hicache library"), "{error}");
}
