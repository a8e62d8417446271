//! The finished shared object, as the dynamic loader sees it: every symbol of `exports.map` is
//! there under its version, and that version is the default one.

use roxe_tests::build;
use std::ffi::{CString, c_void};
use std::path::Path;

/// A symbol and the version node that it belongs to.
struct Export {
    name: String,
    node: String,
}

/// The entries of the version script: lines between `NODE {` and `}`, names separated by
/// semicolons.
fn exports(map: &str) -> Vec<Export> {
    let code = map.split("*/").last().unwrap();
    let mut exports = vec![];
    let mut node = "";
    for line in code.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix('{') {
            node = name.trim();
        } else if !line.starts_with('}') && line != "global:" {
            let names = line.split(';').map(str::trim).filter(|name| !name.is_empty());
            exports.extend(names.map(|name| Export { name: name.into(), node: node.into() }));
        }
    }
    exports
}

fn open(path: &Path) -> *mut c_void {
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a C string; loading our own library runs no code that could break this process.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} does not load", path.display());
    handle
}

#[test]
fn every_symbol_has_its_version() {
    let exports = exports(include_str!("../../verbs-api/capi/exports.map"));
    assert_eq!(exports.len(), 75 + 71 + 68, "public and private symbols of libibverbs, those of librdmacm");
    let library = open(&build::roxe().with_file_name("libroxe.so"));
    for Export { name, node } in exports {
        let (c_name, c_node) = (CString::new(name.as_str()).unwrap(), CString::new(node.as_str()).unwrap());
        // SAFETY: a loaded library and two C strings.
        let (versioned, default) =
            unsafe { (libc::dlvsym(library, c_name.as_ptr(), c_node.as_ptr()), libc::dlsym(library, c_name.as_ptr())) };
        assert!(!versioned.is_null(), "{name}@{node} is missing");
        assert_eq!(versioned, default, "{name}@@{node} is not the default version");
    }
}
