//! Runs Debian's tshark, an independent implementation of RoCEv2 headers, on captures. IP and UDP
//! checksums are checked, too.

mod fields;

pub use fields::compare;

use crate::pair;
use std::path::Path;
use std::process::Command;

/// Expert information of tshark with the severity "warning"; "error" is above, "note" below.
const WARNING: &str = "0x600000";

/// Protocols that tshark detects heuristically in the payload of any message.
const PAYLOADS: [&str; 9] =
    ["smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband.eoib", "infiniband_sdp", "fcoib"];

/// Returns true if tshark is installed.
pub fn installed() -> bool {
    pair::installed("tshark")
}

/// Returns tshark's warnings and errors about frames of `file`, a line for each frame.
///
/// # Errors
/// The error of tshark if it cannot be run or cannot read the file.
pub fn complaints(file: &Path) -> Result<Vec<String>, String> {
    let names = ["frame.number", "_ws.expert.message", "_ws.col.Info"];
    Ok(field_values(file, &["-Y", &bad_frames_filter()], &names)?.into_iter().map(|line| line.join("  ")).collect())
}

/// Returns the number of frames in `file`, and of those with a warning or error of tshark.
///
/// # Errors
/// The error of tshark if it cannot be run or cannot read the file.
pub fn count(file: &Path) -> Result<(u64, u64), String> {
    let table = run_tshark(file, &["-q", "-z", &format!("io,stat,0,frame,{}", bad_frames_filter())])?;
    frames(&table).ok_or_else(|| format!("tshark {}: no counts in\n{table}", file.display()))
}

/// Returns the display filter for frames that are malformed or have a warning or error.
fn bad_frames_filter() -> String {
    format!("_ws.malformed || _ws.expert.severity >= {WARNING}")
}

/// Parses the counts of all frames and of bad frames from the line of `io,stat` with numbers:
/// `| 0.0 <> 1.5 | 12 | 3400 | 0 | 0 |`.
fn frames(table: &str) -> Option<(u64, u64)> {
    let line = table.lines().find(|line| line.contains("<>"))?;
    let columns: Vec<&str> = line.split('|').map(str::trim).collect();
    Some((columns.get(2)?.parse().ok()?, columns.get(4)?.parse().ok()?))
}

/// Returns the values of the fields `names` of every frame; a value is empty if the frame has no
/// such field.
///
/// # Errors
/// The error of tshark if it cannot be run, cannot read the file or does not know a name.
pub fn fields(file: &Path, names: &[&str]) -> Result<Vec<Vec<String>>, String> {
    field_values(file, &["-E", "occurrence=f"], names)
}

fn field_values(file: &Path, options: &[&str], names: &[&str]) -> Result<Vec<Vec<String>>, String> {
    let mut all = vec!["-T", "fields"];
    all.extend(options);
    all.extend(names.iter().flat_map(|name| ["-e", name]));
    Ok(run_tshark(file, &all)?.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

fn run_tshark(file: &Path, options: &[&str]) -> Result<String, String> {
    let output = Command::new("tshark")
        .args(["-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"])
        // Payloads are random bytes, which tshark may mistake for malformed packets of other
        // protocols.
        .args(["-o", "infiniband.identify_payload:FALSE"])
        .args(PAYLOADS.iter().flat_map(|name| ["--disable-protocol", name]))
        .args(options)
        .arg("-r")
        .arg(file)
        .output()
        .map_err(|e| format!("cannot run tshark: {e}"))?;
    if !output.status.success() {
        return Err(format!("tshark {}: {}", file.display(), String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_counts_are_parsed() {
        let table = "| Interval         | Frames |  Bytes | Frames | Bytes |\n\
                     |  0.0 <>  28.2123 |   2279 | 512345 |      1 |    66 |\n";
        assert_eq!(frames(table), Some((2279, 1)));
        assert_eq!(frames("nothing"), None);
    }
}
