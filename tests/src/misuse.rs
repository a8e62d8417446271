//! Compiles the program in `tests/clients/misuse`, which runs pairs of wrong and right uses of
//! verbs, and requests that fail.

use crate::{build, cc};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Returns the path of the program, compiled with line numbers for reports.
///
/// # Errors
/// The compiler's messages, or why the file cannot be written.
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
    // Replace an older file by a rename, because another process may run it.
    let (program, new) = (folder.join("misuse"), folder.join(format!("misuse.{}", std::process::id())));
    cc::compile("gcc", &["-g"], &sources, &["ibverbs", "rdmacm"], &new)?;
    fs::rename(&new, &program).map_err(|e| format!("{}: {e}", program.display()))?;
    Ok(program.display().to_string())
}
