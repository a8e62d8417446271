//! Gives the shared object its version nodes.
//!
//! The linker makes the nodes from `exports.map`; which symbol belongs to which node is said again in `src/exports.rs`,
//! because the compiler passes the linker an anonymous version script of its own that would otherwise win.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".into());
    println!("cargo::rerun-if-changed=exports.map");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={dir}/exports.map");
}
