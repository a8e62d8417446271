//! Gives the shared object its version nodes.
//!
//! The linker makes the nodes from `exports.map`. `src/exports.rs` repeats the node of each symbol,
//! because the compiler's own anonymous version script would win otherwise.

use std::io::{Error, ErrorKind};
use std::path::PathBuf;

/// The private node of `exports.map`, and its names in earlier releases of rdma-core: 34 to 56, 57
/// and 58, 59 to 63, 64. Their provider libraries import a subset of the last one's symbols.
const PRIVATE_NODE: &str = "IBVERBS_PRIVATE_65";
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
    // A program may unload the library while its thread runs (UCX does at exit): keep it mapped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}
