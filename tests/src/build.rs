//! Builds the release binaries once, so that a plain `cargo test` needs no step before it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// What people install.
const PRODUCT: [&str; 6] = ["-p", "roxe-cli", "-p", "roxe-capi", "-p", "roxe-preload"];

/// Path of the release build of the program `roxe`, with `libroxe.so` beside it; builds both on
/// first use.
///
/// `ROXE_BIN` names a ready one instead (an installed copy, or a build with other options).
pub fn roxe() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| std::env::var_os("ROXE_BIN").map_or_else(build, PathBuf::from)).clone()
}

/// The folder Cargo builds into; what tests keep between runs and leave for people to read goes
/// there too.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Path of the release build of the program that walks the hot paths; builds it on first use.
pub fn hot_paths() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        // Asked for alone it would get other features of the crates below, and all of them would be
        // built anew.
        release(&[&PRODUCT[..], &["-p", "roxe", "--example", "hot_paths"]].concat());
        target_dir().join("release/examples/hot_paths")
    })
    .clone()
}

fn build() -> PathBuf {
    release(&PRODUCT);
    target_dir().join("release/roxe")
}

fn release(what: &[&str]) {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet"])
        .args(what)
        .current_dir(workspace())
        .status()
        .unwrap_or_else(|e| panic!("cannot start cargo to build the product: {e}"));
    assert!(status.success(), "the release build failed; run `cargo build --release` to see why");
}
