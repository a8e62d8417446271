//! `roxe devices`: what programs will find.

use crate::table::Table;
use roxe::{Device, GidEntry};
use std::error::Error;
use std::io::{Write, stdout};

/// Prints one line per device and one more per further address.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let devices = roxe::devices()?;
    if devices.is_empty() {
        return Err("there is no network interface to use. Bring the loopback interface up with \
                    `ip link set lo up`, or name another one: ROXE_NETDEV=eth0"
            .into());
    }
    let mut table = Table::new(["DEVICE", "NETDEV", "STATE", "MTU", "GID", "ADDRESS"]);
    for device in devices.iter() {
        describe(device, &mut table)?;
    }
    write!(stdout(), "{table}")?;
    Ok(())
}

fn describe(device: &Device, table: &mut Table) -> Result<(), Box<dyn Error>> {
    let context = device.open()?;
    let port = context.port_attr()?;
    let state = if port.state == PORT_ACTIVE { "active" } else { "down" };
    let mut gids = context.gid_entries().into_iter();
    let facts = [device.name(), device.netdev(), state, &port.active_mtu.bytes().to_string()].map(str::to_owned);
    table.row(facts.into_iter().chain(gids.next().map_or_else(|| ["-".into(), String::new()], address)));
    for gid in gids {
        table.row([const { String::new() }; 4].into_iter().chain(address(gid)));
    }
    Ok(())
}

/// `IBV_PORT_ACTIVE`.
const PORT_ACTIVE: u32 = 4;

fn address(entry: GidEntry) -> [String; 2] {
    [entry.index.to_string(), entry.gid.to_ip().to_string()]
}
