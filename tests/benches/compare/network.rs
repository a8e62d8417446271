//! Where the two programs of a line are: beside each other, or in two network namespaces with a
//! veth pair between them, as two containers have it.

use crate::line::Network;
use roxe_tests::measure::pin;
use roxe_tests::veth::{self, Veth};
use std::io;

/// The interface, which has the same name in both namespaces.
const NETDEV: &str = "veth0";
const HERE: [&str; 2] = ["10.78.0.1", "fd78::1"];
const LOOPBACK: &str = "127.0.0.1";
const THERE: [&str; 2] = ["10.78.0.2", "fd78::2"];

/// Both namespaces. This process and all servers are in the first.
pub(crate) struct Namespaces {
    ends: [veth::End; 2],
    veth: Veth,
}

impl Namespaces {
    /// Makes the second; the caller is alone in the first.
    pub(crate) fn build() -> io::Result<Self> {
        let end = |mac, [v4, v6]: [&str; 2]| veth::End {
            name: NETDEV,
            mac,
            addresses: vec![format!("{v4}/24"), format!("{v6}/64")],
        };
        let ends = [end("02:00:00:00:78:01", HERE), end("02:00:00:00:78:02", THERE)];
        let veth = Veth::build(&ends[0], &ends[1])?;
        Ok(Self { ends, veth })
    }
}

/// Where the programs of one line run.
pub(crate) struct Site {
    /// The server's address.
    pub(crate) host: &'static str,
    /// Its IPv4 address.
    pub(crate) meet: &'static str,
    /// The index of the address in the GID table.
    pub(crate) gid: u32,
    /// The client's address, of the same family as the server's.
    pub(crate) far: &'static str,
    /// The network device, if it is not the default.
    pub(crate) netdev: Option<&'static str>,
    /// The command before the client's that leads there.
    client: Vec<String>,
}

impl Site {
    /// Readies the network for a line.
    pub(crate) fn ready(namespaces: Option<&Namespaces>, network: Network) -> io::Result<Self> {
        match (network, namespaces) {
            (Network::Loopback, _) => {
                Ok(Self { host: LOOPBACK, meet: LOOPBACK, gid: 0, far: LOOPBACK, netdev: None, client: Vec::new() })
            }
            (Network::Veth { .. }, None) => Err(io::Error::other("there are no namespaces")),
            (Network::Veth { mtu, v6 }, Some(Namespaces { ends: [here, there], veth })) => {
                veth.set_mtu(here, there, mtu)?;
                // The table has IPv4 addresses, then those of IPv6, the link-local one last.
                let gid = u32::from(v6);
                Ok(Self {
                    host: HERE[usize::from(v6)],
                    meet: HERE[0],
                    gid,
                    far: THERE[usize::from(v6)],
                    netdev: Some(NETDEV),
                    client: veth.prefix(),
                })
            }
        }
    }

    /// The address family as UCX calls it.
    pub(crate) fn family(&self) -> &'static str {
        if self.host.contains(':') { "inet6" } else { "inet" }
    }

    /// The command before a program that looks for its interfaces in `/sys`, which shows those of
    /// the namespace that mounted it.
    pub(crate) fn sysfs(&self) -> Vec<String> {
        let mount = ["unshare", "--mount", "--", "sh", "-c", "mount -t sysfs sysfs /sys && exec \"$@\"", "sh"];
        if self.netdev.is_some() { mount.map(str::to_owned).into() } else { Vec::new() }
    }

    /// The command before a peer of this process that runs where clients do, on the processor of
    /// servers.
    pub(crate) fn peer_prefix(&self) -> Vec<String> {
        [self.client.clone(), pin::prefix(pin::End::Server)].concat()
    }

    /// The command before the command of this end's program.
    pub(crate) fn prefix(&self, end: pin::End) -> Vec<String> {
        let lead = if matches!(end, pin::End::Client) { self.client.clone() } else { Vec::new() };
        [lead, pin::prefix(end)].concat()
    }
}
