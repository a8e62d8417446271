//! The port: a network interface, its GID table and its attributes.

use pnet_datalink::NetworkInterface;
use roxe_base::config::{GidLayout, config};
use roxe_base::error::Error;
use roxe_base::limits::MAX_MSG_SIZE;
use roxe_net::port_owners::Claim;
use roxe_wire::{Gid, PathMtu};
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;

/// Entries of the GID table; few, because programs walk all of it.
pub const GID_TABLE_LEN: usize = 16;
/// Maximum number of addresses in the table: one entry stays empty, as programs expect of a card.
const MAX_ADDRESSES: usize = GID_TABLE_LEN - 1;

/// Attributes of a port (`struct ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// `enum ibv_port_state`: 4 active, 1 down.
    pub state: u32,
    /// Largest path MTU of any port.
    pub max_mtu: PathMtu,
    /// Largest path MTU of the network interface.
    pub active_mtu: PathMtu,
    /// Entries of the GID table, including holes.
    pub gid_tbl_len: u32,
    /// `enum ibv_port_cap_flags`.
    pub port_cap_flags: u32,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
    /// Packets dropped for their P_Key.
    pub bad_pkey_cntr: u32,
    /// Packets dropped for their Q_Key.
    pub qkey_viol_cntr: u32,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Link width code: 1 = 1X, 2 = 4X.
    pub active_width: u8,
    /// Link speed code per lane.
    pub active_speed: u8,
    /// Physical state: 5 link up, 3 disabled.
    pub phys_state: u8,
    /// Link layer: 2 Ethernet.
    pub link_layer: u8,
    /// 1: every packet has a GRH.
    pub flags: u8,
    /// Virtual lanes code: 1 = VL0 only.
    pub max_vl_num: u8,
}

/// `IBV_PORT_DOWN` and `IBV_PORT_ACTIVE`.
const DOWN: u32 = 1;
const ACTIVE: u32 = 4;
/// Physical states: disabled, and link up.
const DISABLED: u8 = 3;
const LINK_UP: u8 = 5;

/// Assumed line rate of an interface that reports none, in bit/s.
const UNKNOWN_LINE: NonZeroU64 = NonZeroU64::new(10_000_000_000).unwrap();

/// A used entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Position in the table.
    pub index: u8,
    /// Port number.
    pub port: u8,
    /// The GID.
    pub gid: Gid,
    /// Index of the network interface with the address.
    pub ndev_ifindex: u32,
    /// True for an entry shown as RoCE v1, where a card has such entries. Packets from it are RoCE
    /// v2 all the same.
    pub is_v1: bool,
}

/// The current state of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netdev {
    /// Name, such as `eth0`.
    pub name: String,
    /// Interface index (`if_nametoindex`).
    pub ifindex: u32,
    /// MAC address; all zero on loopback.
    pub mac: [u8; 6],
    /// MTU in bytes of an IP packet.
    pub mtu: u32,
    /// True if switched on, with a carrier.
    pub up: bool,
    /// IPv4 first, then IPv6, each in the system's order.
    pub addresses: Vec<Gid>,
}

impl Netdev {
    /// Returns all interfaces of this network namespace.
    pub fn all() -> Vec<Self> {
        pnet_datalink::interfaces().iter().map(Self::describe).collect()
    }

    /// Returns the interface with this index; `Ok(None)` if it was removed. Fails with EAGAIN if
    /// the system lists no interface, not even loopback.
    pub fn find(ifindex: u32) -> Result<Option<Self>, Error> {
        let all = pnet_datalink::interfaces();
        if all.is_empty() {
            return Err(Error::new(libc::EAGAIN, "the kernel did not list the network interfaces"));
        }
        Ok(all.iter().find(|interface| interface.index == ifindex).map(Self::describe))
    }

    fn describe(interface: &NetworkInterface) -> Self {
        let (v4, v6): (Vec<_>, Vec<_>) = interface.ips.iter().map(|net| net.ip()).partition(IpAddr::is_ipv4);
        Self {
            name: interface.name.clone(),
            ifindex: interface.index,
            mac: interface.mac.map_or([0; 6], |mac| mac.octets()),
            mtu: mtu_of(&interface.name).unwrap_or(1500),
            // LOWER_UP is updated before RUNNING, which is more widely available.
            up: interface.is_up() && (interface.is_lower_up() || interface.is_running()),
            addresses: v4.into_iter().chain(v6).map(Gid::from).collect(),
        }
    }

    /// Returns the EUI-64 of the MAC with the universal/local bit flipped, as in rxe. An interface
    /// without a MAC (loopback) gets a locally administered number, the same in every process.
    pub fn guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac;
        if self.mac == [0; 6] {
            return 0x0272_6f78_6500_0000 | u64::from(self.ifindex & 0x00ff_ffff);
        }
        // clause: GUID-EUI64
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the path MTU of the interface by the kernel's rule, at least the smallest.
    pub fn path_mtu(&self) -> PathMtu {
        PathMtu::for_netdev(self.mtu).unwrap_or(PathMtu::Mtu256)
    }

    /// Returns the attributes of a port over this interface.
    pub fn port_attr(&self) -> PortAttr {
        let (active_width, active_speed) = speed_codes(self.speed());
        PortAttr {
            state: if self.up { ACTIVE } else { DOWN },
            max_mtu: PathMtu::Mtu4096,
            active_mtu: self.path_mtu(),
            gid_tbl_len: GID_TABLE_LEN as u32,
            // CM_SUP and IP_BASED_GIDS.
            port_cap_flags: 1 << 16 | 1 << 26,
            max_msg_sz: MAX_MSG_SIZE,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            pkey_tbl_len: 1,
            active_width,
            active_speed,
            phys_state: if self.up { LINK_UP } else { DISABLED },
            // clause: PORT-ROCE
            link_layer: 2,
            flags: 1,
            max_vl_num: 1,
        }
    }

    /// Returns the line rate in bit/s. If unknown, about the rate of one queue pair: with a higher
    /// one, the first rate cuts of congestion control would have no effect.
    pub fn line_rate(&self) -> NonZeroU64 {
        const MEGA: u64 = 1_000_000;
        NonZeroU64::new(u64::from(self.speed()) * MEGA).unwrap_or(UNKNOWN_LINE)
    }

    /// Returns the link speed in Mbit/s; 0 if the interface has none (loopback, bridges) or does
    /// not report it. Asks the driver, since `/sys/class/net` omits interfaces that are down and
    /// may show another network namespace.
    fn speed(&self) -> u32 {
        link_speed(&self.name).unwrap_or_default()
    }
}

/// Returns width and speed codes of the slowest InfiniBand link with at least `mbits`; 100 Gbit/s
/// if unknown, about what copies through a socket reach.
fn speed_codes(mbits: u32) -> (u8, u8) {
    const X1: u8 = 1;
    const X4: u8 = 2;
    const SDR: u8 = 1;
    const QDR: u8 = 4;
    const EDR: u8 = 32;
    match mbits {
        1..=2_500 => (X1, SDR),
        2_501..=10_000 => (X1, QDR),
        10_001..=25_000 => (X1, EDR),
        25_001..=40_000 => (X4, QDR),
        _ => (X4, EDR),
    }
}

/// `struct ethtool_cmd` up to the upper half of the speed (<linux/ethtool.h>), and its rest.
#[repr(C)]
#[derive(Default)]
struct LinkSettings {
    command: u32,
    modes: [u32; 2],
    speed: u16,
    kinds: [u8; 6],
    packets: [u32; 2],
    speed_high: u16,
    rest: [u8; 14],
}

/// Returns the link speed of an interface in Mbit/s; 0 if unknown. Fails with EOPNOTSUPP if it has
/// none.
fn link_speed(name: &str) -> Result<u32, Error> {
    const ETHTOOL_GSET: u32 = 1;
    const UNKNOWN: u32 = u32::MAX;
    let mut settings = LinkSettings { command: ETHTOOL_GSET, ..LinkSettings::default() };
    let mut request = ifreq_for(name);
    request.ifr_ifru.ifru_data = (&raw mut settings).cast();
    // SAFETY: SIOCETHTOOL reads the name and the command, and writes a `struct ethtool_cmd` to
    // where the `ifreq` points; both structures outlive the call.
    unsafe { interface_ioctl(&mut request, libc::SIOCETHTOOL) }
        .map_err(|e| Error::os(format!("cannot read the speed of {name}"), &e))?;
    let speed = u32::from(settings.speed_high) << 16 | u32::from(settings.speed);
    Ok(if speed == UNKNOWN { 0 } else { speed })
}

/// Returns an `ifreq` for the interface `name`, truncated to fit.
fn ifreq_for(name: &str) -> libc::ifreq {
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// Issues an ioctl about an interface.
///
/// # Safety
/// `request` is an argument of the kind that the ioctl `code` reads and writes, and its pointers
/// are valid during the call.
unsafe fn interface_ioctl(request: &mut libc::ifreq, code: libc::c_ulong) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None)?;
    // SAFETY: by this function's contract the kernel may access `request`, which outlives the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), code as _, &raw mut *request) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the MTU of an interface in bytes of an IP packet.
fn mtu_of(name: &str) -> Result<u32, Error> {
    let mut request = ifreq_for(name);
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU of the `ifreq`, which has no pointers.
    unsafe { interface_ioctl(&mut request, libc::SIOCGIFMTU) }
        .map_err(|e| Error::os(format!("cannot read the MTU of {name}"), &e))?;
    // SAFETY: the successful ioctl filled in `ifru_mtu`; any bit pattern is an integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}

/// A change of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The port came up: its interface is switched on and has a carrier.
    Active,
    /// The port went down.
    Error,
    /// The GID table changed.
    Gids,
    /// The interface was removed, and the device with it.
    Gone,
}

/// Mutable state of a port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Attributes that `ibv_query_port` returns.
    pub attr: PortAttr,
    /// GID table.
    pub gids: GidTable,
    claim: Claim,
    /// Line rate in bit/s.
    pub line_rate: NonZeroU64,
    /// MAC address; all zero on loopback.
    pub mac: [u8; 6],
    /// MTU in bytes of an IP packet.
    pub mtu: u32,
    is_gone: bool,
}

impl Port {
    /// Creates the port over `netdev`.
    pub fn new(netdev: &Netdev) -> Self {
        let mut gids = GidTable::new(config().map(|config| config.gid_layout).unwrap_or_default());
        let mut claim = Claim::default();
        gids.update(&claim.usable(&netdev.addresses));
        let (mac, mtu) = (netdev.mac, netdev.mtu);
        Self { attr: netdev.port_attr(), gids, claim, line_rate: netdev.line_rate(), mac, mtu, is_gone: false }
    }

    /// Notes that a socket is open at `gid`.
    pub fn note_open(&mut self, gid: Gid) {
        self.claim.release(gid);
    }

    /// Takes over the claimed address of `other`, a newer state of this port.
    pub fn adopt_claim(&mut self, other: &Self) {
        self.claim.clone_from(&other.claim);
    }

    /// Returns true if the interface was removed.
    pub const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Updates the port from the state of the interface, `None` if it was removed, and returns the
    /// changes. Removal is final: a new interface of the same name is another device.
    pub fn follow(&mut self, now: Option<&Netdev>) -> Vec<PortChange> {
        let (state, gids) = (self.attr.state, self.gids);
        match now {
            Some(netdev) => {
                let known = (self.attr.active_width, self.attr.active_speed, self.line_rate);
                (self.attr, self.line_rate) = (netdev.port_attr(), netdev.line_rate());
                if !netdev.up && netdev.speed() == 0 {
                    // A link that is down may no longer report its speed.
                    (self.attr.active_width, self.attr.active_speed, self.line_rate) = known;
                }
                (self.mac, self.mtu) = (netdev.mac, netdev.mtu);
                self.gids.update(&self.claim.usable(&netdev.addresses));
            }
            None => {
                (self.attr.state, self.attr.phys_state) = (DOWN, DISABLED);
                self.gids.update(&[]);
            }
        }
        let port = if self.attr.state == ACTIVE { PortChange::Active } else { PortChange::Error };
        let has_gone = now.is_none() && !std::mem::replace(&mut self.is_gone, true);
        let happened =
            [(self.attr.state != state, port), (self.gids != gids, PortChange::Gids), (has_gone, PortChange::Gone)];
        happened.into_iter().filter_map(|(did, kind)| did.then_some(kind)).collect()
    }
}

/// The GID table. An address keeps its index while the interface has it, because QPs and programs
/// refer to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidTable {
    /// In the layout of a Mellanox card, RoCE v1 entries are left empty here.
    entries: [Gid; GID_TABLE_LEN],
    layout: GidLayout,
}

impl GidTable {
    /// Creates an empty table.
    pub fn new(layout: GidLayout) -> Self {
        Self { layout, ..Self::default() }
    }

    /// Removes entries missing in `addresses` and puts new ones into the holes, in order.
    pub fn update(&mut self, addresses: &[Gid]) {
        let max = MAX_ADDRESSES / self.step();
        let addresses = &addresses[..addresses.len().min(max)];
        for entry in self.entries.iter_mut().filter(|entry| !addresses.contains(entry)) {
            *entry = Gid::default();
        }
        for &address in addresses {
            if self.index_of(address).is_none()
                && let Some(hole) = self.hole_for(address)
            {
                self.entries[hole] = address;
            }
        }
    }

    /// Returns the entries per address.
    const fn step(&self) -> usize {
        match self.layout {
            GidLayout::Plain => 1,
            GidLayout::Mellanox => 2,
        }
    }

    /// Returns the index for a new address. The first pair of a Mellanox card belongs to an IPv6
    /// (link-local) address, so IPv4 begins at index 2.
    fn hole_for(&self, address: Gid) -> Option<usize> {
        let step = self.step();
        let skipped = usize::from(step == 2 && address.is_ipv4());
        let mut places = (0..MAX_ADDRESSES).skip(step - 1).step_by(step).skip(skipped);
        places.find(|place| self.entries[*place].is_zero())
    }

    /// Returns the entry at `index`: zero for a hole, `None` outside the table.
    pub fn get(&self, index: usize) -> Option<Gid> {
        let place = if self.layout == GidLayout::Mellanox { index | 1 } else { index };
        self.entries.get(place).copied()
    }

    /// Returns the index of `gid`.
    pub fn index_of(&self, gid: Gid) -> Option<usize> {
        self.entries.iter().position(|&entry| entry == gid)
    }

    /// Returns the used entries with their indices, without those for RoCE v1.
    pub fn used(&self) -> impl Iterator<Item = (u8, Gid)> {
        (0u8..).zip(self.entries).filter(|(_, gid)| !gid.is_zero())
    }

    /// Returns the used entries as programs see them; true for RoCE v1.
    pub fn shown(&self) -> impl Iterator<Item = (u8, Gid, bool)> {
        let twice = self.layout == GidLayout::Mellanox;
        self.used().flat_map(move |(index, gid)| {
            let first = twice.then(|| (index - 1, gid, true));
            first.into_iter().chain([(index, gid, false)])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn v4(last: u8) -> Gid {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn netdev(mac: [u8; 6], mtu: u32) -> Netdev {
        Netdev { name: "x0".into(), ifindex: 7, mac, mtu, up: true, addresses: vec![] }
    }

    #[test]
    fn loopback_is_found_with_its_addresses() {
        let lo = Netdev::all().into_iter().find(|dev| dev.name == "lo").unwrap();
        assert_eq!(lo.addresses.first(), Some(&Ipv4Addr::LOCALHOST.into()));
        assert!(lo.mtu >= 1500);
        assert_eq!(lo.ifindex, 1);
    }

    #[test]
    fn missing_interface_has_no_mtu() {
        let long = "a-name-longer-than-any-interface-has";
        assert_eq!(mtu_of("nonexistent0").unwrap_err().errno(), libc::ENODEV);
        assert_eq!(mtu_of(long).unwrap_err().errno(), libc::ENODEV);
    }

    // clause: GUID-EUI64
    #[test]
    fn guids_are_eui_64_and_never_zero() {
        assert_eq!(netdev([0x02, 0xfc, 0, 0, 0, 1], 1500).guid(), 0x00fc_00ff_fe00_0001);
        assert_eq!(netdev([0; 6], 65536).guid(), 0x0272_6f78_6500_0007);
    }

    #[test]
    fn port_of_down_interface_is_down() {
        let down = Netdev { up: false, ..netdev([0; 6], 1500) };
        assert_eq!((down.port_attr().state, down.port_attr().phys_state), (1, 3));
        let up = netdev([0; 6], 1500).port_attr();
        assert_eq!((up.state, up.phys_state, up.active_mtu), (4, 5, PathMtu::Mtu1024));
        assert_eq!(netdev([0; 6], 68).port_attr().active_mtu, PathMtu::Mtu256);
    }

    // clause: PORT-ROCE
    #[test]
    fn port_reports_roce() {
        let port = netdev([0; 6], 1500).port_attr();
        // IBV_LINK_LAYER_ETHERNET and IBV_QPF_GRH_REQUIRED.
        assert_eq!((port.link_layer, port.flags), (2, 1));
        assert_eq!((port.pkey_tbl_len, port.max_msg_sz), (1, 1 << 31));
    }

    #[test]
    fn port_reports_changes_of_interface() {
        use PortChange::{Active, Error, Gids, Gone};
        let with =
            |up, last: &[u8]| Netdev { up, addresses: last.iter().copied().map(v4).collect(), ..netdev([0; 6], 1500) };
        let mut port = Port::new(&with(true, &[1]));
        let mut follow = |up, last: &[u8]| port.follow(Some(&with(up, last)));
        assert_eq!(follow(true, &[1]), []);
        assert_eq!(follow(false, &[1]), [Error]);
        assert_eq!(follow(false, &[1]), []);
        assert_eq!(follow(true, &[1]), [Active]);
        assert_eq!(follow(true, &[1, 2]), [Gids]);
        assert_eq!(follow(true, &[2]), [Gids]);
        assert_eq!(follow(false, &[]), [Error, Gids]);
        assert_eq!(follow(true, &[3]), [Active, Gids]);
        assert_eq!(port.follow(None), [Error, Gids, Gone]);
        assert_eq!(port.follow(None), []);
        assert_eq!((port.attr.state, port.gids.used().count()), (DOWN, 0));
    }

    #[test]
    fn missing_interface_is_not_found() {
        assert_eq!(Netdev::find(1).unwrap().map(|dev| dev.name).as_deref(), Some("lo"));
        assert_eq!(Netdev::find(u32::MAX).unwrap(), None);
    }

    #[test]
    fn addresses_keep_their_index_and_fill_holes() {
        let mut table = GidTable::default();
        table.update(&[v4(1), v4(2), v4(3)]);
        table.update(&[v4(3), v4(4), v4(1)]);
        assert_eq!(table.used().collect::<Vec<_>>(), [(0, v4(1)), (1, v4(4)), (2, v4(3))]);
        assert_eq!(table.get(3), Some(Gid::default()));
        assert_eq!(table.get(GID_TABLE_LEN), None);
    }

    #[test]
    fn mellanox_layout_has_ipv4_roce_v2_at_index_3() {
        let v6 = |last| Gid::from(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last)));
        let mut table = GidTable::new(GidLayout::Mellanox);
        table.update(&[v4(1), v4(2), v6(1), v6(2)]);
        let shown: Vec<_> = table.shown().collect();
        let pair = |index, gid| [(index, gid, true), (index + 1, gid, false)];
        assert_eq!(shown, [pair(0, v6(1)), pair(2, v4(1)), pair(4, v4(2)), pair(6, v6(2))].concat());
        assert_eq!((table.get(2), table.get(3)), (Some(v4(1)), Some(v4(1))));
        assert_eq!(table.index_of(v4(1)), Some(3));
        assert_eq!((table.get(8), table.get(GID_TABLE_LEN)), (Some(Gid::default()), None));
        table.update(&[v4(1)]);
        assert_eq!(table.shown().collect::<Vec<_>>(), pair(2, v4(1)));
        table.update(&(1..=20).map(v4).collect::<Vec<_>>());
        assert!(table.used().count() < GID_TABLE_LEN / 2 && table.get(GID_TABLE_LEN - 1).unwrap().is_zero());
    }

    #[test]
    fn one_entry_always_stays_empty() {
        let many: Vec<Gid> = (1..=40).map(|i| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, i)).into()).collect();
        let mut table = GidTable::default();
        table.update(&many);
        assert_eq!(table.used().count(), GID_TABLE_LEN - 1);
        assert!(table.get(GID_TABLE_LEN - 1).unwrap().is_zero());
    }

    #[test]
    fn speeds_map_to_slowest_sufficient_link() {
        assert_eq!(speed_codes(1_000), (1, 1));
        assert_eq!(speed_codes(10_000), (1, 4));
        assert_eq!(speed_codes(25_000), (1, 32));
        assert_eq!(speed_codes(0), (2, 32));
    }
}
