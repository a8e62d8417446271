//! `roxe devices` and `roxe counters`, and `--netdev` of the subcommands that open devices.

use crate::library::own_program;
use crate::output::{Result, Table};
use roxe_provider::config::variable;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{Write, stdout};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Arguments of `roxe devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    netdev: Netdev,
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

/// The interfaces that this process opens.
#[derive(Debug, clap::Args)]
pub(crate) struct Netdev {
    /// Network interfaces to open, separated by commas, as devices 0, 1, ... in this order
    /// [default: lo].
    #[arg(long, value_name = "NAMES")]
    netdev: Option<String>,
}

impl Netdev {
    /// Restarts this program with `ROXE_NETDEV` set to the interfaces, unless it has that value.
    pub(crate) fn apply(&self) -> Result {
        let is_set = |names: &String| variable("ROXE_NETDEV").is_some_and(|value| value == OsStr::new(names));
        let Some(names) = self.netdev.as_ref().filter(|names| !is_set(names)) else { return Ok(()) };
        let own = own_program().ok_or("cannot restart with --netdev: there is no /proc; set ROXE_NETDEV")?;
        Err(Command::new(own).args(std::env::args_os().skip(1)).env("ROXE_NETDEV", names).exec().into())
    }
}

pub(crate) fn run(args: &Args) -> Result {
    args.netdev.apply()?;
    let devices = roxe::devices()?;
    if devices.is_empty() {
        return Err("no usable network interface; `ip link set lo up`, or name one: ROXE_NETDEV=eth0".into());
    }
    let (mut list, mut table) = (Vec::new(), Table::new(["DEVICE", "NETDEV", "STATE", "MTU", "GID", "ADDRESS"]));
    for device in devices.iter() {
        let context = device.open()?;
        let port = context.port_attr()?;
        let (state, mtu) = (if port.state == PORT_ACTIVE { "active" } else { "down" }, port.active_mtu.bytes());
        let entries = context.gid_entries().into_iter();
        let gids: Vec<_> = entries.map(|entry| (entry.index, entry.gid.to_ip().to_string())).collect();
        let mut cells = [device.name(), device.netdev(), state, &mtu.to_string()].map(str::to_owned);
        if gids.is_empty() {
            table.row(cells.clone().into_iter().chain(["-".to_owned()]));
        }
        for (index, address) in &gids {
            // The rows of further GIDs do not repeat the device.
            table.row(std::mem::take(&mut cells).into_iter().chain([index.to_string(), address.clone()]));
        }
        let gids = gids.iter().map(|(index, address)| json!({"index": index, "address": address}));
        list.push(json!({
            "device": device.name(), "netdev": device.netdev(), "state": state, "mtu": mtu,
            "gids": gids.collect::<Value>(),
        }));
    }
    if args.json {
        return Ok(writeln!(stdout(), "{:#}", Value::Array(list))?);
    }
    Ok(write!(stdout(), "{table}")?)
}

/// `IBV_PORT_ACTIVE`.
const PORT_ACTIVE: u32 = 4;

/// `roxe counters`: prints the counters and their meanings.
pub(crate) fn counters() -> Result {
    let mut table = Table::new(["COUNTER", "COUNTS"]);
    roxe_provider::Counters::legend().into_iter().for_each(|(name, words)| table.row([name.to_owned(), words]));
    Ok(write!(stdout(), "{table}")?)
}
