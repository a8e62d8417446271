//! The network link: an unprivileged UDP socket on port 4791.
//!
//! The socket is bound to one address of the device and never connected, with `IP_PMTUDISC_PROBE`:
//! only then does IPv4 leave with DF and identification 0 (packet `i` of a segmented send with
//! identification `i`), which the ICRC needs. It shares the port with other processes of the user
//! by `SO_REUSEPORT`, never `SO_REUSEADDR`, which has no uid check. Sending never blocks: runs that
//! find the send buffer full are queued ([`TxQueue`]).

#[cfg(test)]
mod tests;

use crate::bpf::DROP;
use crate::cmsg::{self, Control};
use crate::link::{HOP_LIMIT, MAX_SEGMENTS, Run, RxMeta, SendError, Taken, TxQueue};
use crate::port_owners::LocalPort;
use crate::sys::{self, Name, SendRoom};
use libc::c_int;
use roxe_base::lock::{Mutex, rank};
use roxe_wire::{Gid, NetHeader, Qpn, ROCE_PORT};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, Socket, Type};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// Requested receive and send buffer in bytes; `net.core.[rw]mem_max` limits it.
const BUFFER_SIZE: usize = 4 << 20;
/// Single-packet sends after the first refusal, as many as the refused run could have.
const FIRST_PAUSE: u32 = MAX_SEGMENTS as u32;
/// The longest pause in sends: about a second of small packets.
const LONGEST_PAUSE: u32 = 1 << 16;
/// Maximum number of remembered destinations; the oldest is dropped.
const MAX_REFUSED: usize = 16;

/// States: no send is segmented, all are, or all but those to some destinations.
const SEGMENTS_OFF: u8 = 0;
const SEGMENTS_ON: u8 = 1;
const SEGMENTS_IN_PART: u8 = 2;

/// Socket that packets to addresses of this host leave from, at the local port of this user.
#[derive(Debug)]
pub struct LocalSender {
    socket: Socket,
    port: Arc<LocalPort>,
    /// The file of the port; `None` in a process with an engine, which has a name.
    _held: Option<File>,
}

/// The link of one local address of a device.
#[derive(Debug)]
pub struct UdpLink {
    socket: Socket,
    /// `None` for a multicast group, which is never a source.
    local_port: Option<Arc<LocalPort>>,
    /// Opened by the first packet: most processes of one host use rings only.
    local: OnceLock<LocalSender>,
    gid: Gid,
    is_v4: bool,
    /// Interface index, the zone of link-local IPv6 addresses.
    scope: u32,
    segments: Segments,
    /// True once traffic was seen, so that every poll reads this socket.
    hot: AtomicBool,
    rcvbuf: usize,
    drops: Drops,
    queue: Arc<TxQueue>,
}

impl UdpLink {
    /// Opens the address `gid` of the interface `ifindex`. Fails with `EADDRINUSE` if another user,
    /// or a program that does not share the port, has it.
    pub fn open(gid: Gid, ifindex: u32, gso: bool, gro: bool) -> io::Result<Self> {
        let link = Self::bind(gid, ifindex, gso, gro)?;
        Ok(Self { local_port: Some(LocalPort::get()?), ..link })
    }

    fn bind(gid: Gid, ifindex: u32, gso: bool, gro: bool) -> io::Result<Self> {
        let address = socket_addr(gid, ifindex);
        let socket = bare_socket(address, ifindex, BUFFER_SIZE)?;
        if gro {
            // Kernels before 5.0 deliver packets one by one instead.
            let _ = sys::set_option(socket.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_GRO, 1);
        }
        socket.bind(&SockAddr::from(address))?;
        // Kernels before 4.18 have no segmented sends and fail here.
        let can_segment = || sys::set_option(socket.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let segments = Segments::new(gso && can_segment());
        Ok(Self {
            rcvbuf: socket.recv_buffer_size()?,
            drops: Drops::default(),
            socket,
            local_port: None,
            local: OnceLock::new(),
            gid,
            is_v4: address.is_ipv4(),
            scope: ifindex,
            segments,
            hot: AtomicBool::new(false),
            queue: Arc::default(),
        })
    }

    /// Joins the multicast address `group` on the interface `ifindex` (IGMP, MLD) until the link is
    /// dropped. The kernel gives every such socket of the host a copy of a packet. Receives only.
    // clause: UD-MULTICAST
    pub fn join(group: Gid, ifindex: u32, gro: bool) -> io::Result<Self> {
        let link = Self::bind(group, ifindex, false, gro)?;
        match group.to_ip() {
            IpAddr::V4(ip) => link.socket.join_multicast_v4_n(&ip, &InterfaceIndexOrAddress::Index(ifindex))?,
            IpAddr::V6(ip) => link.socket.join_multicast_v6(&ip, ifindex)?,
        }
        Ok(link)
    }

    /// Requests a receive buffer of `bytes`, which the kernel may limit.
    pub fn with_rcvbuf(self, bytes: usize) -> io::Result<Self> {
        self.socket.set_recv_buffer_size(bytes)?;
        Ok(Self { rcvbuf: self.socket.recv_buffer_size()?, ..self })
    }

    /// Lets `room` watch the send buffer.
    pub fn with_send_room(self, room: &Arc<SendRoom>) -> Self {
        Self { queue: Arc::new(TxQueue::new(room)), ..self }
    }

    /// Runs that wait for room in the send buffer.
    pub fn queue(&self) -> &Arc<TxQueue> {
        &self.queue
    }

    /// Sends queued runs as far as there is room and reports each result. Returns the waiting queue
    /// pairs once the queue is empty.
    pub fn send_queued(&self, report: impl FnMut(&Run, usize, Result<(), SendError>)) -> Vec<Qpn> {
        self.queue.drain(|run| self.sender_of(run), |run, bytes| self.send_now(run, bytes), report)
    }

    /// Returns the local address, or the group's.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Returns the source port of packets to addresses of this host; for a group the RoCE port.
    #[inline]
    pub fn local_port(&self) -> u16 {
        self.local_port.as_ref().map_or(ROCE_PORT, |port| port.number())
    }

    /// Sends `bytes` as one datagram from the local port to the processes that share this address.
    pub(super) fn send_to_own_address(&self, bytes: &[u8]) -> io::Result<()> {
        let port = self.local_port.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        port.send(self.gid, bytes)
    }

    #[inline]
    fn sender_of(&self, run: &Run) -> RawFd {
        let is_local = run.to.is_some_and(|to| to.src_port != ROCE_PORT);
        let local = if is_local { self.local.get().or_else(|| self.open_local()) } else { None };
        local.map_or(&self.socket, LocalSender::socket).as_raw_fd()
    }

    /// Opens the socket for packets to addresses of this host. If that fails, they leave from the
    /// RoCE port and are dropped by the receiver.
    #[cold]
    fn open_local(&self) -> Option<&LocalSender> {
        let port = Arc::clone(self.local_port.as_ref()?);
        let opened = LocalSender::at(self.gid, self.scope, port, None).ok()?;
        let _ = self.local.set(opened);
        self.local.get()
    }

    /// Returns the receive buffer in bytes, as `SO_RCVBUF` reports it (doubled for the kernel's
    /// overhead).
    pub fn rcvbuf(&self) -> usize {
        self.rcvbuf
    }

    /// Returns true if no send can be segmented.
    pub fn lacks_segments(&self) -> bool {
        self.segments.state.load(Relaxed) == SEGMENTS_OFF
    }

    /// Returns the descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Datagrams dropped by the kernel since the last call.
    pub fn take_drops(&self) -> TakenDrops {
        self.drops.take(self.fd())
    }

    pub(super) fn is_filtered(&self) -> bool {
        self.drops.are_filtered.load(Relaxed)
    }

    /// Datagrams dropped by the kernel so far, modulo 2^32.
    pub(super) fn all_drops(&self) -> u32 {
        self.drops.update(self.fd())
    }

    /// Attaches the classic BPF `program`, which drops datagrams before they take room in the
    /// receive buffer. The caller holds the receive lock, and calls [`UdpLink::end_filter`] after
    /// an error.
    pub(super) fn filter(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        self.drops.update(self.fd());
        self.drops.are_filtered.store(true, Relaxed);
        sys::attach_filter(self.fd(), libc::SO_ATTACH_FILTER, program)
    }

    pub(super) fn end_filter(&self) {
        let _ = sys::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
        self.drops.update(self.fd());
        self.drops.are_filtered.store(false, Relaxed);
    }

    /// Makes the kernel deliver packets of this address to the other processes that share it;
    /// packets already received can still be read. Closing the socket without this would lose
    /// packets that arrive between the last read and the close.
    pub fn stop_receiving(&self) {
        /// No interface has this index. Binding to it makes the kernel rehash the socket, which
        /// takes it out of the port's group.
        const NO_INTERFACE: c_int = c_int::MAX;
        // Kernels before 5.7 refuse this without privileges.
        let _ = sys::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, NO_INTERFACE);
    }

    /// Returns true if every poll should read this socket.
    pub fn is_hot(&self) -> bool {
        self.hot.load(Relaxed)
    }

    /// Notes traffic at this address.
    pub fn set_hot(&self) {
        if !self.is_hot() {
            self.hot.store(true, Relaxed);
        }
    }

    /// Attaches the classic BPF `program` that selects the socket of the port's group for each
    /// packet.
    pub(crate) fn attach_steering(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        sys::attach_filter(self.fd(), libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }

    /// Passes a run to the kernel, which accepts all of it or nothing.
    fn send_now(&self, run: &Run, bytes: &[u8]) -> Result<(), SendError> {
        let Run { to: Some(to), segment } = run else { return Err(SendError::Lost) };
        let segment = (*segment < bytes.len()).then(|| u16::try_from(*segment).unwrap_or(u16::MAX));
        let name = name_of(to.dst, self.scope);
        let mut control = Control::new();
        self.add_control(to, segment, &mut control);
        loop {
            let Err(cause) = sys::send(self.sender_of(run), &name, [bytes, &[]], &control, libc::MSG_DONTWAIT) else {
                if segment.is_some() {
                    self.segments.note_accepted(to.dst);
                }
                return Ok(());
            };
            match cause.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => return Err(SendError::Full),
                // Errors of kernels and drivers without segmentation or checksum offload.
                Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP) if segment.is_some() => {
                    self.segments.note_refused(to.dst);
                    return Err(SendError::NoSegments);
                }
                _ => return Err(SendError::Lost),
            }
        }
    }

    fn add_control(&self, to: &NetHeader, segment: Option<u16>, control: &mut Control) {
        let (level, tos, ttl) = if self.is_v4 {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        };
        if let Some(segment) = segment {
            control.push(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        // clause: IP-TOS
        if to.traffic_class != 0 {
            control.push(level, tos, &c_int::from(to.traffic_class).to_ne_bytes());
        }
        // clause: IP-TTL, UD-MULTICAST
        if (to.hop_limit > 1 || to.hop_limit == 1 && to.dst.is_multicast()) && to.hop_limit != HOP_LIMIT {
            control.push(level, ttl, &c_int::from(to.hop_limit).to_ne_bytes());
        }
    }

    /// Returns the metadata of `len` received bytes with the control messages `control`.
    fn meta_of(&self, len: usize, src: Gid, src_port: u16, control: &Control) -> RxMeta {
        meta_of(RxMeta { src_port, ..RxMeta::alone(len, src, self.gid) }, control)
    }
}

/// Adds the header fields in `control` to the metadata of received bytes.
#[inline]
fn meta_of(mut meta: RxMeta, control: &Control) -> RxMeta {
    for (level, kind, data) in control.iter() {
        let value = cmsg::int(data);
        match (level, kind) {
            (libc::IPPROTO_UDP, libc::UDP_GRO) => meta.segment = usize::try_from(value).unwrap_or(0).max(1),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                meta.traffic_class = value.to_le_bytes()[0];
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                meta.hop_limit = value.to_le_bytes()[0];
            }
            _ => {}
        }
    }
    meta
}

#[cfg(any(test, feature = "testing"))]
impl UdpLink {
    /// Disables UDP checksums, so that the kernel refuses to segment.
    pub fn forbid_segments(&self) {
        sys::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    }
}

/// The data path.
impl UdpLink {
    /// Receives one run without blocking; `None` if there is none. `buf` has at least 65,536 bytes.
    /// The contents of `control` are irrelevant: it is a parameter so that empty polls need not
    /// clear a new buffer.
    #[inline]
    pub fn recv_with(&self, buf: &mut [u8], control: &mut Control) -> io::Result<Option<RxMeta>> {
        let received = sys::recv(self.fd(), buf, control)?;
        Ok(received.map(|(len, src, src_port)| self.meta_of(len, src, src_port, control)))
    }

    /// Does as [`UdpLink::recv_with`] with a new buffer for control messages.
    #[cfg(any(test, feature = "testing"))]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<Option<RxMeta>> {
        self.recv_with(buf, &mut Control::new())
    }

    /// Sends `bytes` as packets of `segment` bytes each, of which the last may be shorter: at most
    /// [`MAX_BYTES`](crate::link::MAX_BYTES) and [`UdpLink::max_segments`] packets. `to` specifies
    /// the destination and the source port, which is the RoCE port or the local port. Never blocks.
    #[inline]
    pub fn send(&self, to: &NetHeader, bytes: &[u8], segment: usize) -> Result<Taken, SendError> {
        let run = Run { to: Some(*to), segment };
        self.queue.send(run, bytes, |run| self.sender_of(run), |run, bytes| self.send_now(run, bytes))
    }

    /// Returns the maximum number of packets of the next send to `dst`. To be called once per send.
    #[inline]
    pub fn max_segments(&self, dst: Gid) -> usize {
        self.segments.max_segments(dst)
    }
}

impl LocalSender {
    /// Opens the socket at the address `gid` of the interface `ifindex`.
    ///
    /// # Errors
    /// Those of [`LocalPort::get`]; `EADDRNOTAVAIL` if the address is not of this host.
    pub fn open(gid: Gid, ifindex: u32) -> io::Result<Self> {
        let (port, held) = LocalPort::get_held()?;
        Self::at(gid, ifindex, port, held)
    }

    fn at(gid: Gid, ifindex: u32, port: Arc<LocalPort>, held: Option<File>) -> io::Result<Self> {
        let mut address = socket_addr(gid, ifindex);
        address.set_port(port.number());
        let socket = bare_socket(address, ifindex, BUFFER_SIZE)?;
        sys::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut [DROP])?;
        socket.bind(&SockAddr::from(address))?;
        Ok(Self { socket, port, _held: held })
    }

    /// Returns the socket, which receives nothing.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the source port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }
}

/// Sockets of an endpoint that builds whole packets itself, at an address of this host. IPv4
/// packets leave with DF and identification 0.
#[derive(Debug)]
pub struct BareLink {
    gid: Gid,
    /// Receives at the RoCE port.
    pub receiver: Socket,
    /// `None` if the peer is on another host.
    local: Option<LocalSender>,
}

impl BareLink {
    /// Opens sockets at `gid` to send to `peer`, from the local port if that is on this host.
    ///
    /// # Errors
    /// `EADDRINUSE` if another user has the RoCE port of `gid`; `EADDRNOTAVAIL` if `gid` is not of
    /// this host.
    pub fn open(gid: Gid, peer: Gid) -> io::Result<Self> {
        let address = socket_addr(gid, 0);
        let receiver = bare_socket(address, 0, BUFFER_SIZE)?;
        receiver.bind(&SockAddr::from(address))?;
        sys::set_option(receiver.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        let peer_is_here = UdpSocket::bind((peer.to_ip(), 0)).is_ok();
        let local = if peer_is_here { Some(LocalSender::open(gid, 0)?) } else { None };
        let link = Self { gid, receiver, local };
        if !gid.is_ipv4() {
            // The kernel would draw a flow label, which receivers see in the GRH.
            sys::set_option(link.sender().as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL, 0)?;
        }
        Ok(link)
    }

    /// Receives a packet without blocking: its metadata and the kernel's receive time. `None` if
    /// there is none.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<(RxMeta, SystemTime)>> {
        let mut control = Control::new();
        let received = sys::recv(self.receiver.as_raw_fd(), buf, &mut control)?;
        let stamp =
            control.iter().find_map(|(_, kind, data)| cmsg::time(data).filter(|_| kind == libc::SCM_TIMESTAMPNS));
        Ok(received.map(|(len, src, src_port)| {
            let meta = meta_of(RxMeta { src_port, ..RxMeta::alone(len, src, self.gid) }, &control);
            (meta, stamp.unwrap_or_else(SystemTime::now))
        }))
    }

    /// Returns the socket for sending to the peer.
    pub fn sender(&self) -> &Socket {
        self.local.as_ref().map_or(&self.receiver, LocalSender::socket)
    }

    /// Returns the source port of [`BareLink::sender`].
    pub fn source_port(&self) -> u16 {
        self.local.as_ref().map_or(ROCE_PORT, LocalSender::port)
    }
}

/// Returns the largest UDP payload in bytes from `from`, an address of this host, to `to` in one IP
/// packet.
///
/// # Errors
/// `EADDRNOTAVAIL` if `from` is not of this host; `ENETUNREACH` if there is no route to `to`.
pub fn max_payload(from: Gid, to: Gid) -> io::Result<usize> {
    const UDP_HEADER: u32 = 8;
    let header = if to.is_ipv4() { 20 } else { 40 };
    let socket = UdpSocket::bind((from.to_ip(), 0))?;
    socket.connect((to.to_ip(), ROCE_PORT))?;
    let mtu = sys::path_mtu(socket.as_raw_fd(), to.is_ipv4())?;
    Ok(mtu.saturating_sub(header + UDP_HEADER) as usize)
}

/// Availability of `UDP_SEGMENT`, by destination.
///
/// A kernel without it refuses the option when the socket is opened, for good. Single sends may be
/// refused by a driver without checksum offload, by IPsec, or by a narrow interface. That concerns
/// one destination and may change: its packets leave one by one, and segmentation is tried again
/// after a number of sends that doubles with each refusal.
#[derive(Debug)]
struct Segments {
    /// Sends read only this while nothing was refused.
    state: AtomicU8,
    refused: Mutex<rank::Segments, Vec<SegmentationRefusal>>,
}

/// A destination to which segmentation was refused.
#[derive(Debug)]
struct SegmentationRefusal {
    dst: Gid,
    /// Number of single-packet sends before segmentation is tried again.
    left: u32,
    /// Initial value of `left` after the last refusal.
    pause: u32,
}

impl Segments {
    fn new(is_on: bool) -> Self {
        Self { state: AtomicU8::new(if is_on { SEGMENTS_ON } else { SEGMENTS_OFF }), refused: Mutex::default() }
    }

    /// Returns the maximum number of packets of the next send to `dst`. To be called once per send.
    #[inline]
    fn max_segments(&self, dst: Gid) -> usize {
        match self.state.load(Relaxed) {
            SEGMENTS_ON => MAX_SEGMENTS,
            SEGMENTS_IN_PART if self.may_try(dst) => MAX_SEGMENTS,
            _ => 1,
        }
    }

    #[cold]
    fn may_try(&self, dst: Gid) -> bool {
        let mut refused = self.refused.lock();
        let Some(refusal) = refused.iter_mut().find(|refusal| refusal.dst == dst) else { return true };
        let may_try = refusal.left == 0;
        refusal.left = refusal.left.saturating_sub(1);
        may_try
    }

    #[cold]
    fn note_refused(&self, dst: Gid) {
        let mut refused = self.refused.lock();
        match refused.iter_mut().find(|refusal| refusal.dst == dst) {
            Some(refusal) => {
                refusal.pause = refusal.pause.saturating_mul(2).min(LONGEST_PAUSE);
                refusal.left = refusal.pause;
            }
            None => {
                if refused.len() >= MAX_REFUSED {
                    refused.remove(0);
                }
                refused.push(SegmentationRefusal { dst, left: FIRST_PAUSE, pause: FIRST_PAUSE });
            }
        }
        // Unchanged if the kernel has no segmentation at all.
        let _ = self.state.compare_exchange(SEGMENTS_ON, SEGMENTS_IN_PART, Relaxed, Relaxed);
    }

    #[inline]
    fn note_accepted(&self, dst: Gid) {
        if self.state.load(Relaxed) == SEGMENTS_IN_PART {
            self.forget_refusals(dst);
        }
    }

    #[cold]
    fn forget_refusals(&self, dst: Gid) {
        let mut refused = self.refused.lock();
        refused.retain(|refusal| refusal.dst != dst);
        if refused.is_empty() {
            let _ = self.state.compare_exchange(SEGMENTS_IN_PART, SEGMENTS_ON, Relaxed, Relaxed);
        }
    }
}

/// Datagrams dropped by the kernel at a socket, which counts all reasons in one number.
#[derive(Debug, Default)]
struct Drops {
    /// The kernel's count at the last read, modulo 2^32.
    last_count: AtomicU32,
    /// True while a filter drops packets of other users. Changed only after a read.
    are_filtered: AtomicBool,
    lost: AtomicU64,
    filtered: AtomicU64,
}

/// Datagrams dropped by the kernel at a socket since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenDrops {
    /// Datagrams dropped without a filter, mostly because the receive buffer was full.
    pub lost: u64,
    /// Datagrams dropped while a filter was attached, also those for a full receive buffer.
    pub filtered: u64,
}

impl Drops {
    /// Reads the kernel's count and adds the difference.
    fn update(&self, fd: RawFd) -> u32 {
        let now = sys::drops(fd).unwrap_or(0);
        // Another thread may have read a newer count first.
        let is_newer = |last_count| (1..1 << 31).contains(&now.wrapping_sub(last_count)).then_some(now);
        if let Ok(last_count) = self.last_count.fetch_update(Relaxed, Relaxed, is_newer) {
            let count = if self.are_filtered.load(Relaxed) { &self.filtered } else { &self.lost };
            count.fetch_add(now.wrapping_sub(last_count).into(), Relaxed);
        }
        now
    }

    fn take(&self, fd: RawFd) -> TakenDrops {
        self.update(fd);
        let [lost, filtered] = [&self.lost, &self.filtered].map(|count| count.swap(0, Relaxed));
        TakenDrops { lost, filtered }
    }
}

/// Opens a socket to be bound to `address`, or to another port of it.
pub(crate) fn bare_socket(address: SocketAddr, ifindex: u32, rcvbuf: usize) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    // The kernel clamps both instead of refusing.
    socket.set_recv_buffer_size(rcvbuf)?;
    socket.set_send_buffer_size(BUFFER_SIZE)?;
    if address.is_ipv4() {
        set_v4_options(&socket, ifindex)?;
    } else {
        set_v6_options(&socket, ifindex)?;
    }
    Ok(socket)
}

/// Returns the socket address of `gid` at the RoCE port.
pub(crate) fn socket_addr(gid: Gid, scope: u32) -> SocketAddr {
    match gid.to_ip() {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, ROCE_PORT).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, ROCE_PORT, 0, scope_of(ip, scope)).into(),
    }
}

/// Returns the kernel's form of the address of `gid` at the RoCE port. Built for each send, without
/// the detour over [`socket_addr`].
#[inline]
fn name_of(gid: Gid, scope: u32) -> Name<'static> {
    let port = ROCE_PORT.to_be();
    if gid.is_ipv4() {
        let [.., a, b, c, d] = gid.0;
        Name::V4(libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: port,
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([a, b, c, d]) },
            sin_zero: [0; 8],
        })
    } else {
        Name::V6(libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: port,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: gid.0 },
            sin6_scope_id: scope_of(gid.0.into(), scope),
        })
    }
}

/// Returns the scope of IPv6 addresses that need one, else 0.
#[inline]
fn scope_of(ip: Ipv6Addr, scope: u32) -> u32 {
    if ip.is_unicast_link_local() || ip.is_multicast() { scope } else { 0 }
}

fn set_v4_options(socket: &Socket, ifindex: u32) -> io::Result<()> {
    let set = |name, value| sys::set_option(socket.as_raw_fd(), libc::IPPROTO_IP, name, value);
    // clause: IP-DF
    set(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
    set(libc::IP_TTL, c_int::from(HOP_LIMIT))?;
    set(libc::IP_RECVTTL, 1)?;
    sys::set_multicast_if_v4(socket.as_raw_fd(), ifindex)?;
    set(libc::IP_MULTICAST_TTL, c_int::from(HOP_LIMIT))?;
    // Receive only from groups that this socket has joined.
    set(libc::IP_MULTICAST_ALL, 0)?;
    set(libc::IP_RECVTOS, 1)
}

fn set_v6_options(socket: &Socket, ifindex: u32) -> io::Result<()> {
    let set = |name, value| sys::set_option(socket.as_raw_fd(), libc::IPPROTO_IPV6, name, value);
    socket.set_only_v6(true)?;
    set(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
    set(libc::IPV6_UNICAST_HOPS, c_int::from(HOP_LIMIT))?;
    set(libc::IPV6_RECVHOPLIMIT, 1)?;
    socket.set_multicast_if_v6(ifindex)?;
    set(libc::IPV6_MULTICAST_HOPS, c_int::from(HOP_LIMIT))?;
    // Unknown to kernels before 4.20, where groups joined by others are received, too.
    let _ = set(libc::IPV6_MULTICAST_ALL, 0);
    set(libc::IPV6_RECVTCLASS, 1)?;
    // Peers may send UDP checksum 0 over IPv6. This socket does not, because it would forbid
    // segmentation.
    // clause: UDP-CHECKSUM
    let _ = sys::set_option(socket.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1);
    Ok(())
}
