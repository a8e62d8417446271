//! Sets up the network between the two programs of a line: loopback, or two network namespaces with
//! a veth pair or a bridge between them, like containers.

use crate::line::Network;
use roxe_tests::measure::pin;
use roxe_tests::veth::{self, Bridge, Veth};
use std::io;

/// Name of the veth pair's interface in both namespaces.
const NETDEV: &str = "veth0";
const HERE: [&str; 2] = ["10.78.0.1", "fd78::1"];
const LOOPBACK: &str = "127.0.0.1";
const THERE: [&str; 2] = ["10.78.0.2", "fd78::2"];
/// Name of the bridge's interface in both namespaces.
const BRIDGED: &str = "bridged0";
const BRIDGED_HERE: &str = "10.78.1.1";
const BRIDGED_THERE: &str = "10.78.1.2";

/// The second namespace, for clients, and that of the bridge. This process and all servers are in
/// the first namespace.
pub(crate) struct Namespaces {
    ends: [veth::Interface; 2],
    veth: Veth,
    bridged_ends: [veth::Interface; 2],
    bridge: Bridge,
}

impl Namespaces {
    /// Creates the namespaces. The caller has moved to a namespace of its own.
    pub(crate) fn build() -> io::Result<Self> {
        let end = |mac, [v4, v6]: [&str; 2]| veth::Interface {
            name: NETDEV,
            mac,
            addresses: vec![format!("{v4}/24"), format!("{v6}/64")],
        };
        let ends = [end("02:00:00:00:78:01", HERE), end("02:00:00:00:78:02", THERE)];
        let veth = Veth::build(&ends[0], &ends[1])?;
        let bridged = |mac, v4| veth::Interface { name: BRIDGED, mac, addresses: vec![format!("{v4}/24")] };
        let bridged_ends = [bridged("02:00:00:00:78:03", BRIDGED_HERE), bridged("02:00:00:00:78:04", BRIDGED_THERE)];
        let bridge = Bridge::build(&veth, [&bridged_ends[0], &bridged_ends[1]])?;
        Ok(Self { ends, veth, bridged_ends, bridge })
    }
}

/// Addresses and command prefixes for one line.
pub(crate) struct Site {
    /// The server's address.
    pub(crate) host: &'static str,
    /// The server's IPv4 address, for programs that exchange parameters over TCP.
    pub(crate) meet: &'static str,
    /// Index of the server's address in the GID table.
    pub(crate) gid: u32,
    /// The client's address, of the same IP version as the server's.
    pub(crate) far: &'static str,
    /// Network interface, if it is not the default.
    pub(crate) netdev: Option<&'static str>,
    /// Command prefix of the client.
    client: Vec<String>,
}

impl Site {
    /// Sets up the network for a line.
    pub(crate) fn ready(namespaces: Option<&Namespaces>, network: Network) -> io::Result<Self> {
        match (network, namespaces) {
            (Network::Loopback, _) => {
                Ok(Self { host: LOOPBACK, meet: LOOPBACK, gid: 0, far: LOOPBACK, netdev: None, client: Vec::new() })
            }
            (Network::Veth { .. } | Network::Bridge { .. }, None) => Err(io::Error::other("there are no namespaces")),
            (Network::Bridge { mtu }, Some(Namespaces { veth, bridged_ends: [here, there], bridge, .. })) => {
                bridge.set_mtu(veth, [here, there], mtu)?;
                let (host, far) = (BRIDGED_HERE, BRIDGED_THERE);
                Ok(Self { host, meet: host, gid: 0, far, netdev: Some(BRIDGED), client: veth.prefix() })
            }
            (Network::Veth { mtu, v6 }, Some(Namespaces { ends: [here, there], veth, .. })) => {
                veth.set_mtu(here, there, mtu)?;
                // The GID table has IPv4 addresses first, and the link-local IPv6 address last.
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

    /// Returns UCX's name of the IP version.
    pub(crate) fn family(&self) -> &'static str {
        if self.host.contains(':') { "inet6" } else { "inet" }
    }

    /// Returns a prefix for programs that read their interfaces from `/sys`, which shows those of
    /// the namespace that mounted it.
    pub(crate) fn sysfs(&self) -> Vec<String> {
        let mount = ["unshare", "--mount", "--", "sh", "-c", "mount -t sysfs sysfs /sys && exec \"$@\"", "sh"];
        if self.netdev.is_some() { mount.map(str::to_owned).into() } else { Vec::new() }
    }

    /// Returns the prefix of a [`FarPeer`](crate::peer::FarPeer), which runs in the clients'
    /// namespace on the servers' processor.
    pub(crate) fn peer_prefix(&self) -> Vec<String> {
        [self.client.clone(), pin::prefix(pin::End::Server)].concat()
    }

    /// Returns the prefix of this end's program.
    pub(crate) fn prefix(&self, end: pin::End) -> Vec<String> {
        let lead = if matches!(end, pin::End::Client) { self.client.clone() } else { Vec::new() };
        [lead, pin::prefix(end)].concat()
    }
}
