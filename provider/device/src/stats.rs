//! What the devices counted, told when the process ends: to the files of
//! [`roxe_engine::counter_files`], and with `ROXE_STATS=on` to people who run a program that knows
//! no counters.
//!
//! They get one line per device on standard error, as names and values, of all counters that are
//! not zero. Packets may still come while the process ends: both are told the same. What a process
//! that is killed, or leaves by `_exit`, has counted is left in a file
//! ([`roxe_engine::stats_file`]).

use crate::device::Device;
use crate::runtime;
use roxe_base::config::config;
use roxe_engine::stats_file::line;
use std::io::Write;
use std::sync::Arc;

/// Tells what `devices` have counted.
pub(crate) fn report(devices: &[Arc<Device>]) {
    let prints = config().is_ok_and(|config| config.stats);
    runtime::all().iter().for_each(|engine| engine.count_socket_drops());
    for device in devices {
        let counters = device.adapter().counters();
        let last = device.adapter().files().map_or_else(|| counters.clone(), |files| files.close(counters));
        if prints {
            let _ = std::io::stderr().write_all(line(device.name(), "", &last.list()).as_bytes());
        }
    }
}
