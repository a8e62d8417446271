//! Checks that the shared object exports every symbol of `exports.map` under its version, and that
//! this version is the default.

use roxe_tests::{build, cc};
use std::ffi::{CString, c_void};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// A symbol and the version node that it belongs to.
struct Export {
    name: String,
    node: String,
}

/// Parses the entries of the version script: between `NODE {` and `}` are names, separated by
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
    // SAFETY: a C string; the constructors of roxe's library do not affect this process.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} does not load", path.display());
    handle
}

/// The version script of the library.
const MAP: &str = include_str!("../../../verbs-api/capi/exports.map");

/// The private version node.
const PRIVATE: &str = "IBVERBS_PRIVATE_65";
/// Names of the private version node in earlier releases of rdma-core.
const EARLIER_PRIVATE: [&str; 4] =
    ["IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_57", "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64"];

#[test]
fn every_symbol_has_its_version() {
    let exports = exports(MAP);
    assert_eq!(exports.len(), 95 + 96 + 74, "public and private symbols of libibverbs, those of librdmacm");
    let library = open(&build::roxe().with_file_name("libroxe.so"));
    let versioned = |name: &str, node: &str| {
        let (name, node) = (CString::new(name).unwrap(), CString::new(node).unwrap());
        // SAFETY: a loaded library and two C strings.
        unsafe { libc::dlvsym(library, name.as_ptr(), node.as_ptr()) }
    };
    for Export { name, node } in exports {
        let found = versioned(&name, &node);
        assert!(!found.is_null(), "{name}@{node} is missing");
        let c_name = CString::new(name.as_str()).unwrap();
        // SAFETY: a loaded library and a C string.
        let default = unsafe { libc::dlsym(library, c_name.as_ptr()) };
        assert_eq!(found, default, "{name}@@{node} is not the default version");
        for earlier in EARLIER_PRIVATE.iter().filter(|_| node == PRIVATE) {
            assert!(!versioned(&name, earlier).is_null(), "{name}@{earlier} is missing");
        }
    }
}

#[test]
fn program_with_every_public_symbol_links_and_loads() {
    if let Some(why) = cc::missing() {
        eprintln!("skipped: {why}");
        return;
    }
    let names = exports(MAP).into_iter().filter(|export| export.node != PRIVATE).map(|export| export.name);
    let names: Vec<String> = names.collect();
    let declared: String = names.iter().map(|name| format!("extern char {name}[];\n")).collect();
    let listed: String = names.iter().map(|name| format!("{name}, ")).collect();
    // Storing the addresses makes the loader resolve each of them.
    let source = format!(
        "#include <stdio.h>\n{declared}static char *volatile all[] = {{ {listed} }};\n\
         int main(void) {{ unsigned found = 0; for (unsigned i = 0; i < sizeof all / sizeof *all; i++) \
         found += all[i] != NULL; printf(\"%u\\n\", found); return 0; }}\n"
    );
    let folder = std::env::temp_dir().join(format!("roxe-symbols-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, program) = (folder.join("all.c"), folder.join("all"));
    std::fs::write(&file, source).unwrap();
    // The loader searches for this soname.
    symlink(build::roxe().with_file_name("libroxe.so"), folder.join("libibverbs.so.1")).unwrap();
    let search = format!("-L{}", folder.display());
    cc::compile("gcc", &[&search], &[file], &[":libibverbs.so.1"], &program).unwrap();
    let output = Command::new(build::roxe()).args(["run", "--"]).arg(&program).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), names.len().to_string(), "{output:?}");
}
