//! The program of `tests/clients/misuse`: twins of wrong and right programs, requests that fail.

use crate::{build, cc};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Returns the path of the program, compiled with the lines that reports name.
///
/// # Errors
/// The compiler's messages, or why the program cannot be put there.
pub fn program() -> Result<String, String> {
    static PROGRAM: OnceLock<Result<String, String>> = OnceLock::new();
    PROGRAM.get_or_init(compile).clone()
}

fn compile() -> Result<String, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/misuse");
    let files = fs::read_dir(&source).map_err(|e| format!("{}: {e}", source.display()))?;
    let files = files.filter_map(|entry| Some(entry.ok()?.path()));
    let sources: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "c")).collect();
    let folder = build::shared_dir().join("clients");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    // Another process may run the one that is there: it is replaced, not written to.
    let (program, new) = (folder.join("misuse"), folder.join(format!("misuse.{}", std::process::id())));
    cc::compile("gcc", &["-g"], &sources, &["ibverbs", "rdmacm"], &new)?;
    fs::rename(&new, &program).map_err(|e| format!("{}: {e}", program.display()))?;
    Ok(program.display().to_string())
}
