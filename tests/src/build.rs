//! Builds the product once for the tests that start programs.
//!
//! Tests use the profile `quick`: the release profile without link-time optimisation, which would
//! double the build time. Benchmarks use the release profile. `ROXE_TEST_PROFILE` selects another
//! one.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Packages of the product.
const PRODUCT: [&str; 6] = ["-p", "roxe-cli", "-p", "roxe-capi", "-p", "roxe-preload"];

/// Files of the product in [`shared_dir`].
const FILES: [&str; 3] = ["libroxe.so", "librspreload.so", "roxe"];

/// Returns the path of the program `roxe` in [`shared_dir`], with `libroxe.so` next to it. Builds
/// both on first use.
///
/// `ROXE_BIN` selects an existing program instead: an installed copy, or a build with other
/// options.
pub fn roxe() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| std::env::var_os("ROXE_BIN").map_or_else(build, PathBuf::from)).clone()
}

/// Returns true if a build of the program exists, which may be older than the sources.
pub fn is_built() -> bool {
    std::env::var_os("ROXE_BIN").is_some() || built("roxe").exists()
}

/// Returns Cargo's target folder, which also holds test results and files that tests keep between
/// runs.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Returns the folder of the programs that tests run, one per target folder and profile. It is in
/// /var/tmp, so that other users, the guest, and environments without /tmp or the home folder can
/// read it. Its path has no spaces.
pub fn shared_dir() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let (mut hasher, uid) = (DefaultHasher::new(), own_uid()?);
        let target = target_dir();
        fs::create_dir_all(&target)?;
        (target.canonicalize()?, profile()).hash(&mut hasher);
        let folder = PathBuf::from(format!("/var/tmp/roxe-tests-{uid}-{:016x}", hasher.finish()));
        match DirBuilder::new().mode(0o755).create(&folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let meta = fs::symlink_metadata(&folder)?;
        let is_own = meta.is_dir() && meta.uid() == uid && meta.mode() & 0o022 == 0;
        if is_own { Ok(folder) } else { Err(io::Error::other(format!("{} is not of this user", folder.display()))) }
    };
    FOLDER.get_or_init(|| make().unwrap_or_else(|e| panic!("no folder for programs in /var/tmp: {e}"))).clone()
}

/// Returns a symbolic link to the sources in [`shared_dir`]. Its path has no spaces, so that it can
/// be part of command lines that are split at spaces.
pub fn sources() -> PathBuf {
    let link = shared_dir().join("sources");
    // Replace the link atomically: another checkout may use the same target folder.
    let fresh = link.with_extension(format!("{}.new", std::process::id()));
    let made = workspace().canonicalize().and_then(|sources| symlink(sources, &fresh));
    made.and_then(|()| fs::rename(&fresh, &link)).unwrap_or_else(|e| panic!("{}: {e}", link.display()));
    link
}

fn own_uid() -> io::Result<u32> {
    fs::metadata("/proc/self").map(|meta| meta.uid())
}

/// Copies `from` to `to` unless the contents are equal. Replaces the file by a rename, because its
/// old version may be running.
fn stage(from: &Path, to: &Path) -> io::Result<()> {
    if fs::read(to).is_ok_and(|staged| fs::read(from).is_ok_and(|built| staged == built)) {
        return Ok(());
    }
    let fresh = to.with_extension(format!("{}.new", std::process::id()));
    // Copy in another process: if this process had the file open for writing, a child forked at
    // that moment would inherit the descriptor, and Linux does not run a file that is open for
    // writing.
    let status = Command::new("cp").arg(from).arg(&fresh).status()?;
    if !status.success() {
        return Err(io::Error::other(format!("cannot copy {}", from.display())));
    }
    fs::rename(&fresh, to)
}

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the Cargo profile of the product's build.
pub fn profile() -> String {
    let default = if cfg!(debug_assertions) { "quick" } else { "release" };
    std::env::var("ROXE_TEST_PROFILE").unwrap_or_else(|_| default.to_owned())
}

fn built(file: &str) -> PathBuf {
    target_dir().join(profile()).join(file)
}

/// Returns the path of the example program that runs the hot paths. Builds it on first use.
pub fn hot_paths() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        // Build it with the product: built alone, it would enable other features of its
        // dependencies and rebuild them.
        cargo_build(&[&PRODUCT[..], &["-p", "roxe", "--example", "hot_paths"]].concat());
        built("examples/hot_paths")
    })
    .clone()
}

fn build() -> PathBuf {
    cargo_build(&PRODUCT);
    let to = shared_dir();
    for file in FILES {
        stage(&built(file), &to.join(file)).unwrap_or_else(|e| panic!("{}: {e}", to.join(file).display()));
    }
    to.join("roxe")
}

fn cargo_build(what: &[&str]) {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", &profile()])
        .args(what)
        .current_dir(workspace())
        .status()
        .unwrap_or_else(|e| panic!("cannot start cargo to build the product: {e}"));
    assert!(status.success(), "the product does not build: cargo build --profile {}", profile());
}
