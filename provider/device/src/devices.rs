//! The list of devices, opening a device, and the report of counters at the end of the process.

use crate::context::Context;
use crate::device::Device;
use crate::fork;
use crate::rule_events;
use crate::runtime::{self, KNOWN, known_devices};
use crate::weakest;
use roxe_base::config::{Stats, config};
use roxe_base::error::Error;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::standard_error;
use roxe_net::runtime_dir;
use roxe_observe::port::Netdev;
use roxe_observe::stats_file::{legend_of, line};
use std::sync::Arc;

/// Returns the devices of this process: the interfaces in `ROXE_NETDEV` (by default the loopback
/// interface) as `roxe0`, `roxe1`, ... Later calls return the same devices. Fails with ENODEV if an
/// interface does not exist. Fails with EINVAL if one is listed twice, or a `ROXE_*` variable
/// cannot be parsed.
pub fn devices() -> Result<Vec<Arc<Device>>, Error> {
    let config = config()?;
    roxe_check::start()?;
    weakest::start(config)?;
    if config.stats != Stats::Off || config.counters.is_some() {
        at_exit(Stage::Report, report);
    }
    runtime_dir::note_listing();
    let netdevs = choose(&Netdev::all(), &config.netdevs)?;
    let mut known = KNOWN.lock();
    let found = (0..).zip(netdevs).map(|(index, netdev)| {
        match known.iter().find(|device| device.index() == index && device.ifindex() == netdev.ifindex) {
            Some(device) => Arc::clone(device),
            None => Arc::new(Device::new(index, &netdev)),
        }
    });
    *known = found.collect();
    Ok(known.clone())
}

/// Returns the devices that [`devices`] would return, for display only: they must not be opened.
pub fn preview() -> Result<Vec<Device>, Error> {
    Ok((0..)
        .zip(choose(&Netdev::all(), &config()?.netdevs)?)
        .map(|(index, netdev)| Device::new(index, &netdev))
        .collect())
}

impl Device {
    /// Opens the device. From now on port and GID table follow the interface, and changes raise
    /// events of the context.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>, Error> {
        let runtime = fork::runtime_of(self)?;
        let context = Context::new(Arc::clone(self), runtime.into_engine())?;
        context.engine().watch();
        self.adapter().observe(&context);
        rule_events::at_open(context.engine());
        Ok(context)
    }
}

/// Reports the counters at the end of the process: to the files of [`roxe_observe::counter_files`],
/// and with `ROXE_STATS` on standard error, one line per device with the counters that are not
/// zero; `ROXE_STATS=words` adds a description of each. Files and standard error get the same
/// values, although packets may still arrive. A process that is killed or calls `_exit` leaves a
/// file ([`roxe_observe::stats_file`]).
fn report() {
    let stats = config().map_or(Stats::Off, |config| config.stats);
    runtime::all().iter().for_each(|runtime| runtime.engine().count_socket_drops());
    for device in known_devices() {
        let counters = device.adapter().counters();
        let last = device.adapter().files().map_or_else(|| counters.clone(), |files| files.close(&counters));
        if stats == Stats::Off {
            continue;
        }
        let mut text = line(device.name(), "", &last.list());
        if stats == Stats::Words {
            text += &legend_of(&text);
        }
        standard_error::write(&text);
    }
}

/// Returns the interfaces with these names, in the order of the names.
fn choose(all: &[Netdev], names: &[String]) -> Result<Vec<Netdev>, Error> {
    let find = |(at, name): (usize, &String)| {
        if names[..at].contains(name) {
            return Err(Error::invalid(format!("ROXE_NETDEV lists {name} twice; list each interface once")));
        }
        all.iter().find(|dev| dev.name == *name).cloned().ok_or_else(|| no_such_netdev(all, name))
    };
    names.iter().enumerate().map(find).collect()
}

fn no_such_netdev(all: &[Netdev], name: &str) -> Error {
    let known: Vec<_> = all.iter().map(|dev| dev.name.as_str()).collect();
    let known = known.join(", ");
    Error::new(libc::ENODEV, format!("there is no network interface {name}; set ROXE_NETDEV to some of: {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(name: &str) -> Netdev {
        let (mac, addresses) = ([0; 6], vec![]);
        Netdev { name: name.into(), ifindex: 1, mac, mtu: 1500, up: true, addresses }
    }

    fn chosen(names: &[&str]) -> Result<Vec<String>, Error> {
        let all = ["eth0", "lo", "eth1"].map(netdev);
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        Ok(choose(&all, &names)?.into_iter().map(|dev| dev.name).collect())
    }

    #[test]
    fn interfaces_keep_order_of_names() {
        assert_eq!(chosen(&["eth1", "lo"]).unwrap(), ["eth1", "lo"]);
    }

    #[test]
    fn unknown_interface_is_explained() {
        let error = chosen(&["lo", "eth7"]).unwrap_err();
        assert_eq!(error.errno(), libc::ENODEV);
        let text = "there is no network interface eth7; set ROXE_NETDEV to some of: eth0, lo, eth1";
        assert_eq!(error.to_string(), text);
        assert_eq!(chosen(&["lo", "lo"]).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn devices_are_same_on_second_call() {
        let (first, second) = (devices().unwrap(), devices().unwrap());
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        assert_eq!((first[0].name(), first[0].netdev(), first[0].ifindex()), ("roxe0", "lo", 1));
    }
}
