//! What the devices counted, told when the process ends: to the files of [`crate::live`], and with `ROXE_STATS=on` to people
//! who run a program that knows no counters.
//!
//! They get one line per device on standard error, as names and values, of all counters that are not zero. Packets may still
//! come while the process ends: both are told the same. What a process that is killed, or leaves by `_exit`, has counted is
//! left in a file ([`crate::stats_file`]).

use crate::config::config;
use crate::device::known_devices;
use crate::exit::{Stage, at_exit};
use crate::fork;
use std::io::Write;

/// From now on the counters are told when the process ends.
pub(crate) fn report_at_exit() {
    at_exit(Stage::Report, report);
}

fn report() {
    let prints = config().is_ok_and(|config| config.stats);
    fork::engines().iter().for_each(|engine| engine.count_socket_drops());
    for device in known_devices() {
        let counters = device.counters();
        let last = device.live().map_or_else(|| counters.clone(), |live| live.close(counters));
        if prints {
            let _ = std::io::stderr().write_all(line(device.name(), "", &last.list()).as_bytes());
        }
    }
}

/// What is printed of one device: `roxe0 (process 17): sent_packets=3 sent_bytes=96`; `how` the process ended, unless that is
/// empty, stands behind its number.
pub(crate) fn line(device: &str, how: &str, counters: &[(&str, u64)]) -> String {
    let used = counters.iter().filter(|(_, value)| *value != 0);
    let values: String = used.map(|(name, value)| format!(" {name}={value}")).collect();
    let comma = if how.is_empty() { "" } else { ", " };
    let values = if values.is_empty() { " no traffic" } else { &values };
    format!("{device} (process {}{comma}{how}):{values}\n", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_counted_is_printed() {
        let id = std::process::id();
        let text = line("roxe0", "", &[("sent_packets", 3), ("malformed", 0), ("np_cnp_sent", 1)]);
        assert_eq!(text, format!("roxe0 (process {id}): sent_packets=3 np_cnp_sent=1\n"));
        assert_eq!(line("roxe1", "", &[("malformed", 0)]), format!("roxe1 (process {id}): no traffic\n"));
    }
}
