//! Lets tshark check the packets that roxe captured.

use crate::tshark;
use std::fs;
use std::io;
use std::path::Path;

/// Result of tshark on one capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that tshark reports as malformed or with a warning.
    pub bad: u64,
    /// tshark's messages about the first of them.
    pub examples: String,
}

/// Checks that this host can check captures.
///
/// # Errors
/// The reason why not.
pub fn available() -> Result<(), String> {
    if tshark::installed() { Ok(()) } else { Err("tshark is not installed (tests/run installs it)".to_owned()) }
}

/// Lets tshark check `file`. Removes the file unless tshark reports a bad packet.
pub fn judge(file: &Path) -> io::Result<Verdict> {
    let (packets, bad) = tshark::count(file).map_err(io::Error::other)?;
    if bad == 0 {
        fs::remove_file(file)?;
        return Ok(Verdict { packets, bad, examples: String::new() });
    }
    let examples = tshark::complaints(file).map_err(io::Error::other)?;
    Ok(Verdict { packets, bad, examples: examples[..examples.len().min(5)].join("\n") })
}
