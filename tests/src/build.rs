//! Builds the product once for the tests that start programs.
//!
//! In the profile `quick`: optimised as what is released, but not at link time, which would take
//! half of the time. Benchmarks take what is released; `ROXE_TEST_PROFILE` in the environment names
//! another profile.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Packages of the product.
const PRODUCT: [&str; 6] = ["-p", "roxe-cli", "-p", "roxe-capi", "-p", "roxe-preload"];

/// Files that tests run: the program, with the libraries next to it.
const FILES: [&str; 3] = ["libroxe.so", "librspreload.so", "roxe"];

/// Path of the program `roxe`, with `libroxe.so` next to it, in [`shared_dir`]; builds both on
/// first use.
///
/// `ROXE_BIN` selects an existing program instead (an installed copy, or a build with other
/// options).
pub fn roxe() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| std::env::var_os("ROXE_BIN").map_or_else(build, PathBuf::from)).clone()
}

/// Returns true if a build of the program exists, which may be older than the sources.
pub fn is_built() -> bool {
    std::env::var_os("ROXE_BIN").is_some() || built("roxe").exists()
}

/// Cargo's target folder, which also holds files that tests keep between runs and results for
/// people.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// A folder for the programs that tests run, one per target folder and profile. Other users, the
/// guest, and environments that hide /tmp or the folder of this user see it wherever the sources
/// lie, and its path has no blank.
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

/// The sources by a path that has no blank, for command lines that are split at blanks: a link in
/// [`shared_dir`].
pub fn sources() -> PathBuf {
    let link = shared_dir().join("sources");
    // Another checkout may build into the same folder: its link is replaced.
    let fresh = link.with_extension(format!("{}.new", std::process::id()));
    let made = workspace().canonicalize().and_then(|sources| symlink(sources, &fresh));
    made.and_then(|()| fs::rename(&fresh, &link)).unwrap_or_else(|e| panic!("{}: {e}", link.display()));
    link
}

fn own_uid() -> io::Result<u32> {
    fs::metadata("/proc/self").map(|meta| meta.uid())
}

/// Copies `from` to `to` unless it is the same. A program that runs there meanwhile stays whole.
fn stage(from: &Path, to: &Path) -> io::Result<()> {
    if fs::read(to).is_ok_and(|staged| fs::read(from).is_ok_and(|built| staged == built)) {
        return Ok(());
    }
    let fresh = to.with_extension(format!("{}.new", std::process::id()));
    // Another process copies: a child forked by this process meanwhile would hold the file open for
    // writing, and such a file cannot be run.
    let status = Command::new("cp").arg(from).arg(&fresh).status()?;
    if !status.success() {
        return Err(io::Error::other(format!("cannot copy {}", from.display())));
    }
    fs::rename(&fresh, to)
}

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The profile that the product is built in.
pub fn profile() -> String {
    let default = if cfg!(debug_assertions) { "quick" } else { "release" };
    std::env::var("ROXE_TEST_PROFILE").unwrap_or_else(|_| default.to_owned())
}

fn built(file: &str) -> PathBuf {
    target_dir().join(profile()).join(file)
}

/// Path of the program that walks the hot paths; builds it on first use.
pub fn hot_paths() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        // A build of its own would use other features of the crates below and rebuild them.
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
