//! Passes the version nodes of the shared object to the linker.
//!
//! The linker creates the nodes from `exports.map`. `src/exports.rs` repeats the node of each
//! symbol, because the compiler passes an anonymous version script of its own, which would hide the
//! symbols otherwise.

use std::io::{Error, ErrorKind};
use std::path::PathBuf;

/// The private node of `exports.map`.
const PRIVATE_NODE: &str = "IBVERBS_PRIVATE_65";
/// Names of the private node in earlier releases of rdma-core: 34 to 56, 57 and 58, 59 to 63, 64.
/// Provider libraries of these releases import a subset of the current symbols.
const EARLIER_PRIVATE_NODES: [&str; 4] =
    ["IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_57", "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64"];

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=exports.map");
    let map = std::fs::read_to_string("exports.map")?;
    let node = map.split_once(PRIVATE_NODE).and_then(|(_, rest)| rest.split_once("\n\n"));
    let (node, _) = node.ok_or_else(|| Error::new(ErrorKind::InvalidData, "exports.map has no private node"))?;
    let earlier = EARLIER_PRIVATE_NODES.map(|name| format!("\n{name}{node}\n")).concat();
    let copy = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("exports.map");
    std::fs::write(&copy, map + &earlier)?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", copy.display());
    // A program may unload the library while a thread of the library runs (UCX does at exit), so
    // the library stays mapped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}
