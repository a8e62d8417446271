//! Devices and contexts: what a program finds, opens and asks about.
//!
//! A [`Device`] is one network interface seen as an RDMA card; a [`Context`] is one opening of it and owns the memory
//! table and the asynchronous events. Touches the interfaces of the system and the engine.

use crate::cq::{Cq, CqInit};
use crate::dm::{Budget, Dm};
use crate::event::{AsyncEvent, AsyncEventKind, CompChannel, EventQueue};
use crate::pd::{AhAttr, Pd};
use crate::runtime::Runtime;
use crate::stats;
use crate::wq::{RwqTable, Wq};
use crate::xrcd::{Xrcd, XrcdInit};
use roxe_base::config::{config, parse_netdevs};
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::uses::{ObjectId, Quotas};
use roxe_engine::adapter::{Adapter, PortObserver};
use roxe_engine::engine::Engine;
use roxe_engine::port::{GidEntry, Netdev, PortAttr, PortChange};
use roxe_memory::table::MemoryTable;
use roxe_transport::wr::Av;
use roxe_wire::{Gid, Pkey};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// What earlier calls of [`devices`] gave out, with their engines and counters.
static KNOWN: Mutex<rank::Devices, Vec<Arc<Device>>> = Mutex::new(Vec::new());

/// The devices of this process: loopback as `roxe0`, or the interfaces that `ROXE_NETDEV` names as `roxe0`, `roxe1`, ...
///
/// Asking again gives the same devices. ENODEV if an interface does not exist,
/// EINVAL if one is named twice or a `ROXE_*` variable is not understood.
pub fn devices() -> Result<Vec<Arc<Device>>, Error> {
    let config = config()?;
    if config.stats || config.counters.is_some() {
        stats::report_at_exit();
    }
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

/// What [`devices`] would find in a process whose `ROXE_NETDEV` is `netdevs` (`None`: that of this one). Nobody keeps
/// these devices, and they are not to be opened.
pub fn preview(netdevs: Option<&str>) -> Result<Vec<Device>, Error> {
    let names = netdevs.map_or_else(|| config().map(|config| config.netdevs.clone()), parse_netdevs)?;
    Ok((0..).zip(choose(&Netdev::all(), &names)?).map(|(index, netdev)| Device::new(index, &netdev)).collect())
}

/// The devices that were given out, for the end of the process: nothing while another thread is about to change them.
pub(crate) fn known_devices() -> Vec<Arc<Device>> {
    KNOWN.try_lock().map(|known| known.clone()).unwrap_or_default()
}

/// The lock of the list, for the fork handlers.
pub(crate) fn lock() -> &'static dyn Lockable {
    &KNOWN
}

/// In the child of a fork: what was counted so far the parent tells.
pub(crate) fn abandon() {
    for device in known_devices() {
        device.adapter.begin_anew();
    }
}

/// The interfaces with these names, in the order of the names.
fn choose(all: &[Netdev], names: &[String]) -> Result<Vec<Netdev>, Error> {
    let find = |(at, name): (usize, &String)| {
        if names[..at].contains(name) {
            return Err(Error::invalid(format!("ROXE_NETDEV names {name} twice; name each interface once")));
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

/// One RDMA device: a network interface and its addresses.
#[derive(Debug)]
pub struct Device {
    adapter: Arc<Adapter>,
    dm_budget: Arc<Budget>,
    quotas: Quotas,
}

impl Device {
    fn new(index: u32, netdev: &Netdev) -> Self {
        let adapter = Arc::new(Adapter::new(index, netdev));
        Self { adapter, dm_budget: Arc::default(), quotas: Quotas::default() }
    }

    /// The interface as a card.
    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// `roxe0`, `roxe1`, ...
    pub fn name(&self) -> &str {
        self.adapter.name()
    }

    /// Position in the list of devices, from 0.
    pub fn index(&self) -> u32 {
        self.adapter.index()
    }

    /// Name of the network interface.
    pub fn netdev(&self) -> &str {
        self.adapter.netdev()
    }

    /// Index of the network interface.
    pub fn ifindex(&self) -> u32 {
        self.adapter.ifindex()
    }

    /// Node GUID, host order; never 0.
    pub fn node_guid(&self) -> u64 {
        self.adapter.node_guid()
    }

    /// Opens the device as its interface is now. From here on port and GID table follow the interface, and every change
    /// is an event of the context.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>, Error> {
        let context = Arc::new(Context::open(Arc::clone(self))?);
        context.runtime.watch();
        self.adapter.observe(&context);
        Ok(context)
    }

    /// Attributes of its port.
    pub fn port_attr(&self) -> PortAttr {
        self.adapter.port_attr()
    }

    /// The used entries of its GID table, in order.
    pub fn gid_entries(&self) -> Vec<GidEntry> {
        let entry = |(index, gid)| GidEntry { index, port: 1, gid, ndev_ifindex: self.ifindex() };
        self.adapter.gids().used().map(entry).collect()
    }

    /// What it is and takes.
    pub fn attr(&self) -> DeviceAttr {
        DeviceAttr::of(self)
    }

    pub(crate) fn dm_budget(&self) -> &Arc<Budget> {
        &self.dm_budget
    }

    /// How many objects of each kind there may be.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }
}

/// What the device is and takes, with the names of `struct ibv_device_attr`. Fields that are always 0 are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Version of this software.
    pub fw_ver: &'static str,
    /// Host order.
    pub node_guid: u64,
    /// Host order.
    pub sys_image_guid: u64,
    /// Bytes.
    pub max_mr_size: u64,
    /// Page sizes that registration takes: all from 4096.
    pub page_size_cap: u64,
    /// Not a registered OUI: locally administered.
    pub vendor_id: u32,
    /// `ROXE_VENDOR_PART_ID`, or 1.
    pub vendor_part_id: u32,
    /// Revision.
    pub hw_ver: u32,
    /// Queue pairs of one process.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// `enum ibv_device_cap_flags`.
    pub device_cap_flags: u32,
    /// The same, and those of `enum ib_uverbs_device_cap_flags` beyond 32 bits.
    pub device_cap_flags_ex: u64,
    /// Elements of a list.
    pub max_sge: u32,
    /// Elements of the list of a READ.
    pub max_sge_rd: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// READs and atomics a QP answers at a time.
    pub max_qp_rd_atom: u32,
    /// The same over all QPs.
    pub max_res_rd_atom: u32,
    /// READs and atomics a QP has under way.
    pub max_qp_init_rd_atom: u32,
    /// 2: `IBV_ATOMIC_GLOB`, atomics agree with the CPU's own.
    pub atomic_cap: u32,
    /// Multicast groups of one process.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one.
    pub max_mcast_qp_attach: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of one.
    pub max_srq_wr: u32,
    /// Elements of a list in one.
    pub max_srq_sge: u32,
    /// P_Keys of a port.
    pub max_pkeys: u16,
    /// Time from a packet to its ACK, 4.096 µs · 2^code.
    pub local_ca_ack_delay: u8,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// Bytes of inline data a QP may have.
    pub max_inline_data: u32,
    /// Bytes of device memory of one process.
    pub max_dm_size: u64,
}

/// CURR_QP_STATE_MOD, SYS_IMAGE_GUID, RC_RNR_NAK_GEN, SRQ_RESIZE, XRC, BAD_PKEY_CNTR, BAD_QKEY_CNTR, AUTO_PATH_MIG,
/// MEM_WINDOW, MEM_WINDOW_TYPE_2B, MEM_MGT_EXTENSIONS (to programs: invalidation, local and by the peer); and of raw packets
/// RAW_MULTI, RAW_IP_CSUM, MANAGED_FLOW_STEERING, which need CAP_NET_RAW: who lacks it is told when it is used.
const CAP_FLAGS: u32 = 1 << 20
    | 1 << 7
    | 1 << 11
    | 1 << 12
    | 1 << 13
    | 1 << 1
    | 1 << 2
    | 1 << 4
    | 1 << 17
    | 1 << 24
    | 1 << 21
    | 1 << 3
    | 1 << 26
    | 1 << 29;

/// FLUSH_GLOBAL, ATOMIC_WRITE. There is no persistent memory, so no FLUSH_PERSISTENT.
const CAP_FLAGS_EX: u64 = 1 << 38 | 1 << 40;

impl DeviceAttr {
    fn of(device: &Device) -> Self {
        Self {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: device.node_guid(),
            sys_image_guid: device.node_guid(),
            max_mr_size: limits::MAX_MR_SIZE,
            page_size_cap: !0xfff,
            vendor_id: 0x02_7278,
            vendor_part_id: config().map_or(1, |config| config.vendor_part_id),
            hw_ver: 1,
            max_qp: limits::MAX_QP,
            max_qp_wr: limits::MAX_QP_WR,
            device_cap_flags: CAP_FLAGS,
            device_cap_flags_ex: CAP_FLAGS_EX | CAP_FLAGS as u64,
            max_sge: limits::MAX_SGE,
            max_sge_rd: limits::MAX_SGE,
            max_cq: limits::MAX_CQ,
            max_cqe: limits::MAX_CQE,
            max_mr: limits::MAX_MR,
            max_mw: limits::MAX_MW,
            max_pd: limits::MAX_PD,
            max_qp_rd_atom: limits::MAX_QP_RD_ATOM.into(),
            max_res_rd_atom: u32::from(limits::MAX_QP_RD_ATOM) * limits::MAX_QP,
            max_qp_init_rd_atom: limits::MAX_QP_RD_ATOM.into(),
            atomic_cap: 2,
            max_mcast_grp: limits::MAX_MCAST_GRP,
            max_mcast_qp_attach: limits::MAX_MCAST_QP_ATTACH,
            max_ah: limits::MAX_AH,
            max_srq: limits::MAX_SRQ,
            max_srq_wr: limits::MAX_SRQ_WR,
            max_srq_sge: limits::MAX_SRQ_SGE,
            max_pkeys: 1,
            // 2^15 · 4.096 µs = 134 ms: a sleeping process on a loaded host.
            local_ca_ack_delay: 15,
            phys_port_cnt: limits::PORTS,
            num_comp_vectors: limits::NUM_COMP_VECTORS,
            max_inline_data: limits::MAX_INLINE_DATA,
            max_dm_size: limits::MAX_DM_SIZE,
        }
    }
}

/// An asynchronous event and the object it belongs to, so that it can be forgotten with it.
#[derive(Clone, Copy, Debug)]
struct Raised {
    event: AsyncEvent,
    source: ObjectId,
}

/// One opening of a device.
#[derive(Debug)]
pub struct Context {
    device: Arc<Device>,
    runtime: Runtime,
    memory: Arc<MemoryTable>,
    events: EventQueue<Raised>,
    /// Only there to be a descriptor with an identity: programs duplicate it and import the device by the copy.
    command: File,
}

impl Context {
    /// Ends the use of the device. If nothing else in this process uses it, nothing of it runs any more when this returns.
    /// To be called with no lock held that anything of the device may need; dropping the last reference closes as well, but
    /// does not wait.
    pub fn close(self: Arc<Self>) {
        let runtime = self.runtime.clone();
        drop(self);
        runtime.release();
    }

    fn open(device: Arc<Device>) -> Result<Self, Error> {
        Ok(Self {
            runtime: Runtime::get(&device)?,
            memory: Arc::new(MemoryTable::new()),
            events: EventQueue::new()?,
            command: command()?,
            device,
        })
    }

    /// The device that was opened.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Opens an XRC domain. See [`XrcdInit`] for who shares it; errors as there.
    pub fn open_xrcd(self: &Arc<Self>, init: XrcdInit<'_>) -> Result<Arc<Xrcd>, Error> {
        Xrcd::open(self, init)
    }

    /// A table that spreads frames over `wqs`: 1, 2, 4 ... `max_rwq_indirection_table_size` of them, of this context; else
    /// EINVAL.
    pub fn create_rwq_table(self: &Arc<Self>, wqs: &[Arc<Wq>]) -> Result<Arc<RwqTable>, Error> {
        RwqTable::create(self, wqs)
    }

    /// What the device is and takes.
    pub fn attr(&self) -> DeviceAttr {
        self.device.attr()
    }

    /// Attributes of port 1; EINVAL for any other.
    pub fn port_attr(&self, port: u8) -> Result<PortAttr, Error> {
        check_port(port)?;
        Ok(self.device.port_attr())
    }

    /// The GID at `index`: all zero in a hole, EINVAL outside the table.
    pub fn gid(&self, port: u8, index: usize) -> Result<Gid, Error> {
        check_port(port)?;
        self.device.adapter.gids().get(index).ok_or_else(|| no_such_index("GID", index))
    }

    /// The used entries of the GID table, in order.
    pub fn gid_entries(&self) -> Vec<GidEntry> {
        self.device.gid_entries()
    }

    /// The P_Key at `index`; there is one.
    pub fn pkey(&self, port: u8, index: usize) -> Result<Pkey, Error> {
        check_port(port)?;
        // clause: PKEY-TABLE
        if index == 0 { Ok(Pkey::DEFAULT) } else { Err(no_such_index("P_Key", index)) }
    }

    /// Readable while asynchronous events are pending; may be polled and made non-blocking.
    pub fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The same descriptor, borrowed.
    pub fn async_as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// A descriptor that stays open as long as the context and is never readable.
    pub fn cmd_fd(&self) -> RawFd {
        self.command.as_raw_fd()
    }

    /// Device and inode number (`man fstat`) of the descriptor and its duplicates; no other descriptor has them.
    pub fn cmd_identity(&self) -> Result<(u64, u64), Error> {
        let found = self.command.metadata().map_err(|e| Error::os("cannot ask about the command descriptor", &e))?;
        Ok((found.dev(), found.ino()))
    }

    /// Waits for the next asynchronous event; EAGAIN if `async_fd` is non-blocking and none is pending.
    pub fn next_async_event(&self) -> Result<AsyncEvent, Error> {
        Ok(self.events.next()?.event)
    }

    /// The same for a caller that has slept itself, by reading a unit from `async_fd`. `None`: there is no event any more, go on
    /// waiting.
    pub fn take_async_event(&self) -> Option<AsyncEvent> {
        Some(self.events.take_next()?.event)
    }

    /// As [`Context::next_async_event`], but never waits, whatever the mode of `async_fd`.
    pub fn try_next_async_event(&self) -> Option<AsyncEvent> {
        Some(self.events.try_next()?.event)
    }

    /// A new protection domain; ENOMEM: there are `max_pd`.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Error> {
        Pd::create(Arc::clone(self))
    }

    /// A buffer of `length` bytes in the memory of the device, zeroed, aligned to `2^log_align` bytes.
    ///
    /// EINVAL: no bytes, more than `max_dm_size`, or an alignment beyond a page. ENOMEM: not that much is left.
    pub fn alloc_dm(self: &Arc<Self>, length: u64, log_align: u32) -> Result<Arc<Dm>, Error> {
        Dm::alloc(self, length, log_align)
    }

    /// A new completion channel.
    pub fn create_comp_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, Error> {
        CompChannel::create(Arc::clone(self))
    }

    /// A new completion queue; EINVAL for a size of 0 or beyond `max_cqe`, or a vector that does not exist. ENOMEM: there are
    /// `max_cq`.
    pub fn create_cq(self: &Arc<Self>, init: CqInit) -> Result<Arc<Cq>, Error> {
        Cq::create(Arc::clone(self), init)
    }

    /// The address vector that `attr` describes. EINVAL without GRH, with an unused `sgid_index`, a zero destination,
    /// or one of the other address family.
    pub fn resolve_av(&self, attr: &AhAttr) -> Result<Av, Error> {
        check_port(attr.port)?;
        let sgid = self.device.adapter.gids().get(attr.sgid_index.into()).unwrap_or_default();
        attr.resolve(sgid)
    }

    /// Everything counted so far on this device in this process, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.runtime.count_socket_drops();
        self.device.adapter.counters().list()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.runtime
    }

    pub(crate) fn memory(&self) -> &Arc<MemoryTable> {
        &self.memory
    }

    /// Queues an asynchronous event of the object `source`, whose token is `user`.
    pub(crate) fn raise(&self, kind: AsyncEventKind, user: u64, source: ObjectId) {
        self.events.push(Raised { event: AsyncEvent { kind, user }, source });
    }

    /// Forgets the pending events of an object that is destroyed.
    pub(crate) fn forget_events(&self, source: ObjectId) {
        self.events.forget(|raised| raised.source == source);
    }
}

impl PortObserver for Context {
    fn port_changed(&self, change: PortChange) {
        let kind = match change {
            PortChange::Active => AsyncEventKind::PortActive,
            PortChange::Error => AsyncEventKind::PortErr,
            PortChange::Gids => AsyncEventKind::GidChange,
            PortChange::Gone => AsyncEventKind::DeviceFatal,
        };
        self.raise(kind, PORT.into(), ObjectId::next());
    }
}

/// One end of a pipe that nobody writes to.
fn command() -> Result<File, Error> {
    let (reader, _) = io::pipe().map_err(|e| Error::os("cannot create a pipe", &e))?;
    Ok(File::from(OwnedFd::from(reader)))
}

/// The port of every device, as events name it.
const PORT: u8 = limits::PORTS;

fn check_port(port: u8) -> Result<(), Error> {
    match port {
        1..=limits::PORTS => Ok(()),
        _ => Err(Error::invalid(format!("port {port} does not exist; the device has port 1"))),
    }
}

fn no_such_index(table: &str, index: usize) -> Error {
    Error::invalid(format!("index {index} is outside the {table} table"))
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
    fn interfaces_come_in_the_order_of_their_names() {
        assert_eq!(chosen(&["eth1", "lo"]).unwrap(), ["eth1", "lo"]);
    }

    #[test]
    fn wrong_names_are_explained() {
        let error = chosen(&["lo", "eth7"]).unwrap_err();
        assert_eq!(error.errno(), libc::ENODEV);
        let text = "there is no network interface eth7; set ROXE_NETDEV to some of: eth0, lo, eth1";
        assert_eq!(error.to_string(), text);
        assert_eq!(chosen(&["lo", "lo"]).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn asking_again_gives_the_same_devices() {
        let (first, second) = (devices().unwrap(), devices().unwrap());
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        assert_eq!((first[0].name(), first[0].netdev(), first[0].ifindex()), ("roxe0", "lo", 1));
    }

    // clause: PKEY-TABLE
    #[test]
    fn a_context_answers_what_programs_ask_first() {
        let context = crate::testing::context();
        let attr = context.attr();
        assert!(attr.vendor_id != 0 && attr.vendor_id != 0x02c9 && attr.node_guid != 0);
        assert!(attr.max_cqe >= 262_144 && attr.max_srq_wr >= 4096 && attr.max_qp_wr >= 16_384);
        assert_eq!(context.port_attr(1).unwrap().state, 4);
        assert_eq!(context.port_attr(2).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(context.port_attr(0).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(context.pkey(1, 0).unwrap(), Pkey::DEFAULT);
        assert_eq!(context.pkey(1, 1).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn the_gid_table_can_be_walked_to_its_end() {
        let context = crate::testing::context();
        let gids: Vec<_> = (0..16).map(|i| context.gid(1, i).unwrap()).collect();
        assert_eq!(gids[0], std::net::Ipv4Addr::LOCALHOST.into());
        assert!(gids[15].is_zero());
        assert_eq!(context.gid(1, 16).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(context.gid_entries()[0].gid, gids[0]);
    }

    #[test]
    fn events_of_a_destroyed_object_are_forgotten() {
        let context = crate::testing::context();
        let (a, b) = (ObjectId::next(), ObjectId::next());
        context.raise(AsyncEventKind::CommEst, 1, a);
        context.raise(AsyncEventKind::SqDrained, 2, b);
        context.forget_events(a);
        let event = context.next_async_event().unwrap();
        assert_eq!(event, AsyncEvent { kind: AsyncEventKind::SqDrained, user: 2 });
    }
}
