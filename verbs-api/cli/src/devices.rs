//! `roxe devices` and `roxe counters`, and `--netdev` of the subcommands that open devices.

use crate::library::own_program;
use crate::output::Result;
use crate::output::Table;
use roxe::{Context, Device};
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
    /// Restarts this program with `ROXE_NETDEV` set to the interfaces, unless it is.
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
    let found = devices.iter().map(Facts::of).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        writeln!(stdout(), "{:#}", found.iter().map(Facts::json).collect::<Value>())?;
        return Ok(());
    }
    let mut table = Table::new(["DEVICE", "NETDEV", "STATE", "MTU", "GID", "ADDRESS"]);
    found.iter().for_each(|facts| facts.describe(&mut table));
    write!(stdout(), "{table}")?;
    Ok(())
}

struct Facts<'d> {
    device: &'d Device,
    state: &'static str,
    mtu: u32,
    context: Context,
}

/// `IBV_PORT_ACTIVE`.
const PORT_ACTIVE: u32 = 4;

impl<'d> Facts<'d> {
    fn of(device: &'d Device) -> Result<Self, roxe::Error> {
        let context = device.open()?;
        let port = context.port_attr()?;
        let state = if port.state == PORT_ACTIVE { "active" } else { "down" };
        Ok(Self { device, state, mtu: port.active_mtu.bytes(), context })
    }

    fn describe(&self, table: &mut Table) {
        let entries = self.context.gid_entries().into_iter();
        let mut gids = entries.map(|entry| [entry.index.to_string(), entry.gid.to_ip().to_string()]);
        let facts = [self.device.name(), self.device.netdev(), self.state, &self.mtu.to_string()].map(str::to_owned);
        table.row(facts.into_iter().chain(gids.next().unwrap_or_else(|| ["-".into(), String::new()])));
        for gid in gids {
            table.row([const { String::new() }; 4].into_iter().chain(gid));
        }
    }

    fn json(&self) -> Value {
        let entries = self.context.gid_entries().into_iter();
        let gids = entries.map(|entry| json!({"index": entry.index, "address": entry.gid.to_ip().to_string()}));
        json!({
            "device": self.device.name(),
            "netdev": self.device.netdev(),
            "state": self.state,
            "mtu": self.mtu,
            "gids": gids.collect::<Value>(),
        })
    }
}

/// `roxe counters`: prints the counters and their meanings.
pub(crate) fn counters() -> Result {
    let mut table = Table::new(["COUNTER", "COUNTS"]);
    roxe_provider::Counters::legend().into_iter().for_each(|(name, words)| table.row([name.to_owned(), words]));
    Ok(write!(stdout(), "{table}")?)
}
