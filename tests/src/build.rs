//! Builds the release binaries once, so that a plain `cargo test` needs no step before it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Path of the release build of the program `roxe`, with `libroxe.so` beside it; builds both on first use.
///
/// `ROXE_BIN` names a ready one instead (an installed copy, or a build with other options).
pub fn roxe() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| std::env::var_os("ROXE_BIN").map_or_else(build, PathBuf::from)).clone()
}

fn build() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "-p", "roxe-cli", "-p", "roxe-capi"])
        .current_dir(&root)
        .status()
        .unwrap_or_else(|e| panic!("cannot start cargo to build the product: {e}"));
    assert!(status.success(), "the release build failed; run `cargo build --release` to see why");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release/roxe")
}
