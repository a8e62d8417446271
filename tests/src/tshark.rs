//! Asks Debian's tshark what it thinks of a capture: an implementation of these headers that none of us wrote.
//!
//! Touches processes; checksums of IP and UDP, which tshark leaves alone of its own accord, are judged too.

use crate::pair;
use std::path::Path;
use std::process::Command;

/// Severity "warning" of an expert information; "error" is above it, comments are below.
const WARNING: &str = "0x600000";

/// Whether it is there.
pub fn installed() -> bool {
    pair::installed("tshark")
}

/// What tshark has against frames of `file`, a line for each frame; empty if it has nothing.
///
/// # Errors
/// What tshark says if it cannot be run or cannot read the file.
pub fn complaints(file: &Path) -> Result<Vec<String>, String> {
    let filter = format!("_ws.malformed || _ws.expert.severity >= {WARNING}");
    let names = ["frame.number", "_ws.expert.message", "_ws.col.Info"];
    Ok(run(file, &["-Y", &filter], &names)?.into_iter().map(|line| line.join("  ")).collect())
}

/// The values of the fields `names` in every frame, empty where a frame has no such field.
///
/// # Errors
/// What tshark says if it cannot be run, cannot read the file or does not know a name.
pub fn fields(file: &Path, names: &[&str]) -> Result<Vec<Vec<String>>, String> {
    run(file, &["-E", "occurrence=f"], names)
}

fn run(file: &Path, options: &[&str], names: &[&str]) -> Result<Vec<Vec<String>>, String> {
    let output = Command::new("tshark")
        .args(["-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields"])
        .args(options)
        .args(names.iter().flat_map(|name| ["-e", name]))
        .arg("-r")
        .arg(file)
        .output()
        .map_err(|e| format!("cannot run tshark: {e}"))?;
    if !output.status.success() {
        return Err(format!("tshark {}: {}", file.display(), String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}
