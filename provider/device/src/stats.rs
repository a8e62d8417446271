//! What the devices counted, told when the process ends: to the files of
//! [`roxe_engine::counter_files`], and with `ROXE_STATS=on` to people who run a program that knows
//! no counters.
//!
//! They get one line per device on standard error, as names and values, of all counters that are
//! not zero, and with `ROXE_STATS=words` what each of these counts. Packets may still come while
//! the process ends: both are told the same. What a process that is killed, or leaves by `_exit`,
//! has counted is left in a file ([`roxe_engine::stats_file`]).

use crate::device::Device;
use crate::runtime;
use roxe_base::config::{Stats, config};
use roxe_engine::stats_file::{legend_of, line};
use std::io::Write;
use std::sync::Arc;

/// Tells what `devices` have counted.
pub(crate) fn report(devices: &[Arc<Device>]) {
    let prints = config().map_or(Stats::Off, |config| config.stats);
    runtime::all().iter().for_each(|engine| engine.count_socket_drops());
    for device in devices {
        let counters = device.adapter().counters();
        let last = device.adapter().files().map_or_else(|| counters.clone(), |files| files.close(&counters));
        if prints == Stats::Off {
            continue;
        }
        let mut text = line(device.name(), "", &last.list());
        if prints == Stats::Words {
            text += &legend_of(&text);
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
