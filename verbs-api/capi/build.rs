//! Gives the shared object its version nodes.
//!
//! The linker makes the nodes from `exports.map`; which symbol belongs to which node is said again
//! in `src/exports.rs`, because the compiler passes the linker an anonymous version script of its
//! own that would otherwise win.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=exports.map");
    // A copy in the output directory: Cargo keeps that path right when checkout or target directory
    // move.
    let copy = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("exports.map");
    std::fs::copy("exports.map", &copy)?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", copy.display());
    // A program may unload us while our thread runs (UCX unloads its transports at exit); the code
    // has to stay.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}
