//! Lets tshark judge the packets that roxe wrote down.

use crate::pair::installed;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// What tshark said of one capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that it calls malformed, or to which it has an objection of severity "error".
    pub bad: u64,
    /// The first of them in its words.
    pub examples: String,
}

/// The display filter of a packet that must not be there.
const BAD: &str = "_ws.malformed || _ws.expert.severity == error";

/// Whether tshark is installed; else the reason to skip.
pub fn available() -> Result<(), String> {
    if installed("tshark") { Ok(()) } else { Err("tshark is not installed (tests/run installs it)".to_owned()) }
}

/// Reads `file` with tshark.
pub fn judge(file: &Path) -> io::Result<Verdict> {
    let count = format!("io,stat,0,frame,{BAD}");
    let table = tshark(file, &["-q", "-z", &count])?;
    let (packets, bad) = frames(&table)
        .ok_or_else(|| io::Error::other(format!("cannot read what tshark counted in {}:\n{table}", file.display())))?;
    let examples = if bad == 0 { String::new() } else { tshark(file, &["-Y", BAD, "-c", "200000"])? };
    Ok(Verdict { packets, bad, examples: examples.lines().take(5).collect::<Vec<_>>().join("\n") })
}

fn tshark(file: &Path, args: &[&str]) -> io::Result<String> {
    let mut command = Command::new("tshark");
    // -n: no names to look up. A payload of random bytes is not one of the protocols that guess by content.
    command.args(["-n", "-r"]).arg(file).args(args).stdin(Stdio::null());
    let output = command.output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("tshark on {}: {why}", file.display())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The two frame counts of the one line of `io,stat` that has numbers: `| 0.0 <> 1.5 | 12 | 3400 | 0 | 0 |`.
fn frames(table: &str) -> Option<(u64, u64)> {
    let line = table.lines().find(|line| line.contains("<>"))?;
    let columns: Vec<&str> = line.split('|').map(str::trim).collect();
    Some((columns.get(2)?.parse().ok()?, columns.get(4)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_counts() {
        let table = "| Interval         | Frames |  Bytes | Frames | Bytes |\n\
                     |  0.0 <>  28.2123 |   2279 | 512345 |      1 |    66 |\n";
        assert_eq!(frames(table), Some((2279, 1)));
        assert_eq!(frames("nothing"), None);
    }
}
