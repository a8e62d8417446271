//! Compiles the C programs of `tests/clients`.

use crate::{build, pair};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A compiled program in a temporary folder, which is removed when this is dropped.
#[derive(Debug)]
pub struct Compiled {
    folder: PathBuf,
    /// Path of the program.
    pub program: PathBuf,
}

impl Compiled {
    /// Compiles `tests/clients/SOURCE` with `compiler` and these libraries; `tag` makes the
    /// folder's name unique in this process.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn new(compiler: &str, source: &str, libraries: &[&str], tag: &str) -> Result<Self, String> {
        Self::with_flags(compiler, &[], source, libraries, tag)
    }

    /// Compiles like [`new`](Self::new), with these compiler options.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn with_flags(
        compiler: &str,
        flags: &[&str],
        source: &str,
        libraries: &[&str],
        tag: &str,
    ) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("roxe-{tag}-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(source);
        let program = folder.join(source.file_stem().unwrap_or_default());
        let compiled = Self { folder, program };
        compile(compiler, flags, &[source], libraries, &compiled.program)?;
        Ok(compiled)
    }

    /// Returns the program's folder, in which the caller may put more files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // A leftover folder is harmless.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Compiles `sources` with these options and libraries to `program`. Warnings are errors.
///
/// # Errors
/// The compiler's messages.
pub fn compile(
    compiler: &str,
    flags: &[&str],
    sources: &[PathBuf],
    libraries: &[&str],
    program: &Path,
) -> Result<(), String> {
    let mut command = Command::new(compiler);
    command.args(flags).args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(program).args(sources);
    command.args(libraries.iter().map(|library| format!("-l{library}")));
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{compiler}: {e}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Compiles `tests/clients/SOURCE` with `compiler`, these options and libraries to a program or
/// library in the folder `clients` of [`build::shared_dir`], and returns its path.
///
/// # Errors
/// The compiler's messages, or why the file cannot be written.
pub fn compile_shared(compiler: &str, flags: &[&str], source: &str, libraries: &[&str]) -> Result<PathBuf, String> {
    let compiled = Compiled::with_flags(compiler, flags, source, libraries, "shared")?;
    let folder = build::shared_dir().join("clients");
    let program = folder.join(compiled.program.file_name().unwrap_or_default());
    // Replace an older file by a rename, because another process may run it.
    let new = folder.join(format!("{}.new", std::process::id()));
    let moved = fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(&compiled.program, &new))
        .and_then(|_| fs::rename(&new, &program));
    moved.map_err(|e| format!("{}: {e}", program.display()))?;
    Ok(program)
}

/// Returns the reason why this host cannot compile verbs programs; `None` if it can.
pub fn missing() -> Option<String> {
    let headers = ["infiniband/verbs.h", "rdma/rdma_cma.h"].map(|name| Path::new("/usr/include").join(name));
    let complete = pair::installed("gcc") && headers.iter().all(|header| header.exists());
    (!complete).then(|| "needs gcc, libibverbs-dev and librdmacm-dev (tests/run installs them)".to_owned())
}
