//! The link through the network: an unprivileged UDP socket on port 4791.
//!
//! The socket is bound to one address of the device and never connected, with `IP_PMTUDISC_PROBE`:
//! only then does IPv4 leave with DF and identification 0 (packet `i` of a segmented send with
//! identification `i`), which the ICRC needs. It shares the port with other processes of the user
//! by `SO_REUSEPORT`, never `SO_REUSEADDR`, which has no uid check. Sending never waits: what finds
//! the send buffer of a slow interface full is queued ([`crate::tx_queue`]).

mod socket;
#[cfg(test)]
mod tests;

use crate::bpf::DROP;
use crate::cmsg::{self, Control};
use crate::drops::{Drops, TakenDrops};
use crate::link::{HOP_LIMIT, RxMeta, SendError, Taken};
use crate::local_port::LocalPort;
use crate::segments::Segments;
use crate::sys;
use crate::sys::SendRoom;
use crate::tx_queue::{Run, TxQueue};
use libc::c_int;
use roxe_wire::{Gid, NetHeader, Qpn, ROCE_PORT};
use socket::{BUFFER, can_segment, name_of};
pub(crate) use socket::{bare_socket, socket_addr};
use socket2::{InterfaceIndexOrAddress, SockAddr, Socket};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// Where packets to addresses of this host leave from: a socket at the local port of this user.
#[derive(Debug)]
pub struct LocalSender {
    socket: Socket,
    port: Arc<LocalPort>,
}

impl LocalSender {
    /// From the address `gid` of the interface `ifindex`.
    ///
    /// # Errors
    /// Those of [`LocalPort::get`]; `EADDRNOTAVAIL`: the address is not of this host.
    pub fn open(gid: Gid, ifindex: u32) -> io::Result<Self> {
        Self::at(gid, ifindex, LocalPort::get()?)
    }

    fn at(gid: Gid, ifindex: u32, port: Arc<LocalPort>) -> io::Result<Self> {
        let mut address = socket_addr(gid, ifindex);
        address.set_port(port.number());
        let socket = bare_socket(address, ifindex, BUFFER)?;
        sys::attach_filter(socket.as_raw_fd(), libc::SO_ATTACH_FILTER, &mut [DROP])?;
        socket.bind(&SockAddr::from(address))?;
        Ok(Self { socket, port })
    }

    /// The socket, which receives nothing.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The port that it sends from.
    pub fn port(&self) -> u16 {
        self.port.number()
    }
}

/// One local address of a device.
#[derive(Debug)]
pub struct UdpLink {
    socket: Socket,
    /// `None` for a group, from which nothing is sent.
    local_port: Option<Arc<LocalPort>>,
    /// Opened when the first packet leaves by it: most processes of one host use rings only.
    local: OnceLock<LocalSender>,
    gid: Gid,
    is_v4: bool,
    /// Interface index, the zone of link-local IPv6 addresses.
    scope: u32,
    /// Whether the kernel cuts a send into packets for us.
    segments: Segments,
    /// Whether traffic was seen here, so that pollers look here every time.
    hot: AtomicBool,
    rcvbuf: usize,
    drops: Drops,
    /// What waits for room in the send buffer.
    queue: Arc<TxQueue>,
}

/// The sockets of an endpoint that makes whole packets itself, at an address of this host. IPv4
/// packets leave with DF and identification 0.
#[derive(Debug)]
pub struct BareLink {
    /// Receives at the RoCE port.
    pub receiver: Socket,
    /// `None`: the peer is on another host.
    local: Option<LocalSender>,
}

impl BareLink {
    /// At `gid`, to send to `peer`: from the local port if that is an address of this host.
    ///
    /// # Errors
    /// `EADDRINUSE`: another user has the RoCE port there; `EADDRNOTAVAIL`: `gid` is not of this
    /// host.
    pub fn open(gid: Gid, peer: Gid) -> io::Result<Self> {
        let address = socket_addr(gid, 0);
        let receiver = bare_socket(address, 0, BUFFER)?;
        receiver.bind(&SockAddr::from(address))?;
        sys::set_option(receiver.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        let peer_is_here = UdpSocket::bind((peer.to_ip(), 0)).is_ok();
        let local = if peer_is_here { Some(LocalSender::open(gid, 0)?) } else { None };
        Ok(Self { receiver, local })
    }

    /// Receives a packet without waiting: its length, where it comes from, and when the kernel took
    /// it in. `None`: nothing there.
    ///
    /// # Errors
    /// As recv(2).
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<(usize, Gid, u16, SystemTime)>> {
        let mut control = Control::new();
        let received = sys::recv(self.receiver.as_raw_fd(), buf, &mut control)?;
        let stamp =
            control.iter().find_map(|(_, kind, data)| cmsg::time(data).filter(|_| kind == libc::SCM_TIMESTAMPNS));
        Ok(received.map(|(len, src, port)| (len, src, port, stamp.unwrap_or_else(SystemTime::now))))
    }

    /// The socket to send to the peer with.
    pub fn sender(&self) -> &Socket {
        self.local.as_ref().map_or(&self.receiver, LocalSender::socket)
    }

    /// The source port of what [`BareLink::sender`] sends.
    pub fn source_port(&self) -> u16 {
        self.local.as_ref().map_or(ROCE_PORT, LocalSender::port)
    }
}

/// The longest UDP payload that can leave `from`, an address of this host, for `to` in one IP
/// packet, in bytes.
///
/// # Errors
/// `EADDRNOTAVAIL`: `from` is not of this host; `ENETUNREACH`: there is no way to `to`.
pub fn max_payload(from: Gid, to: Gid) -> io::Result<usize> {
    const UDP_HEADER: u32 = 8;
    let header = if to.is_ipv4() { 20 } else { 40 };
    let socket = UdpSocket::bind((from.to_ip(), 0))?;
    socket.connect((to.to_ip(), ROCE_PORT))?;
    let mtu = sys::path_mtu(socket.as_raw_fd(), to.is_ipv4())?;
    Ok(mtu.saturating_sub(header + UDP_HEADER) as usize)
}

impl UdpLink {
    /// Opens the address `gid` of the interface `ifindex`. `EADDRINUSE`: another user, or a program
    /// that does not share the port, has it.
    pub fn open(gid: Gid, ifindex: u32, gso: bool, gro: bool) -> io::Result<Self> {
        let link = Self::bind(gid, ifindex, gso, gro)?;
        Ok(Self { local_port: Some(LocalPort::get()?), ..link })
    }

    fn bind(gid: Gid, ifindex: u32, gso: bool, gro: bool) -> io::Result<Self> {
        let address = socket_addr(gid, ifindex);
        let socket = bare_socket(address, ifindex, BUFFER)?;
        if gro {
            // Kernels before 5.0 deliver packets one by one instead.
            let _ = sys::set_option(socket.as_raw_fd(), libc::IPPROTO_UDP, libc::UDP_GRO, 1);
        }
        socket.bind(&SockAddr::from(address))?;
        let segments = Segments::new(gso && can_segment(&socket));
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

    /// Opens the multicast address `group` on the interface `ifindex`, and lets the network know
    /// (IGMP, MLD) until this is dropped. The kernel gives every such socket of the host a copy of
    /// a packet. Nothing is sent from here.
    // clause: UD-MULTICAST
    pub fn join(group: Gid, ifindex: u32, gro: bool) -> io::Result<Self> {
        let link = Self::bind(group, ifindex, false, gro)?;
        match group.to_ip() {
            IpAddr::V4(ip) => link.socket.join_multicast_v4_n(&ip, &InterfaceIndexOrAddress::Index(ifindex))?,
            IpAddr::V6(ip) => link.socket.join_multicast_v6(&ip, ifindex)?,
        }
        Ok(link)
    }

    /// This link with a receive buffer of `bytes`, or as many as the kernel gives.
    pub fn with_rcvbuf(self, bytes: usize) -> io::Result<Self> {
        self.socket.set_recv_buffer_size(bytes)?;
        Ok(Self { rcvbuf: self.socket.recv_buffer_size()?, ..self })
    }

    /// This link, whose send buffer `room` watches.
    pub fn with_send_room(self, room: &Arc<SendRoom>) -> Self {
        Self { queue: Arc::new(TxQueue::new(room)), ..self }
    }

    /// What waits for room in the send buffer.
    pub fn queue(&self) -> &Arc<TxQueue> {
        &self.queue
    }

    /// Sends what waits, as far as there is room, and says of each run what came of it. The queue
    /// pairs that waited, once nothing is left.
    pub fn send_queued(&self, report: impl FnMut(&Run, usize, Result<(), SendError>)) -> Vec<Qpn> {
        self.queue.drain(|run| self.sender_of(run), |run, bytes| self.send_now(run, bytes), report)
    }

    /// The local address; the group's, if it was joined.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The source port of packets to addresses of this host; of a group, which sends none, the RoCE
    /// port.
    #[inline]
    pub fn local_port(&self) -> u16 {
        self.local_port.as_ref().map_or(ROCE_PORT, |port| port.number())
    }

    /// Sends `bytes` to the processes that share this address, as one datagram from the local port.
    /// Never waits.
    pub(super) fn send_to_own_address(&self, bytes: &[u8]) -> io::Result<()> {
        let port = self.local_port.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        port.send(self.gid, bytes)
    }

    /// The socket that sends from the source port of `run`.
    #[inline]
    fn sender_of(&self, run: &Run) -> RawFd {
        let is_local = run.to.is_some_and(|to| to.src_port != ROCE_PORT);
        let local = if is_local { self.local.get().or_else(|| self.open_local()) } else { None };
        local.map_or(&self.socket, LocalSender::socket).as_raw_fd()
    }

    /// Opens the socket for packets to addresses of this host. Without it they leave from the RoCE
    /// port and are lost.
    #[cold]
    fn open_local(&self) -> Option<&LocalSender> {
        let port = Arc::clone(self.local_port.as_ref()?);
        let opened = LocalSender::at(self.gid, self.scope, port).ok()?;
        let _ = self.local.set(opened);
        self.local.get()
    }

    /// Bytes the kernel lets queue up here, as `SO_RCVBUF` reports it (doubled for the kernel's own
    /// overhead).
    pub fn rcvbuf(&self) -> usize {
        self.rcvbuf
    }

    /// Whether every packet needs a send of its own, wherever it goes.
    pub fn lacks_segments(&self) -> bool {
        self.segments.are_off()
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// What the system has dropped here since the last call.
    pub fn take_drops(&self) -> TakenDrops {
        self.drops.take(self.fd())
    }

    /// Whether the system runs a program that [`UdpLink::filter`] gave it.
    pub(super) fn is_filtered(&self) -> bool {
        self.drops.are_filtered()
    }

    /// How many datagrams the system has dropped here, in 32 bits.
    pub(super) fn all_drops(&self) -> u32 {
        self.drops.look(self.fd())
    }

    /// Lets the system drop what `program` (classic BPF) does not let pass, before it takes room
    /// here. Under the lock of the receive side, as [`UdpLink::end_filter`], which is due after an
    /// error.
    pub(super) fn filter(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        self.drops.look(self.fd());
        self.drops.set_filtered(true);
        sys::attach_filter(self.fd(), libc::SO_ATTACH_FILTER, program)
    }

    /// Everything is let in again.
    pub(super) fn end_filter(&self) {
        let _ = sys::detach_filter(self.fd());
        self.drops.look(self.fd());
        self.drops.set_filtered(false);
    }

    /// From now on the kernel delivers nothing here, and the packets of this address go to the
    /// other processes that share it; what has arrived can still be received. A socket that is
    /// closed without this takes along what arrives between the last look and the end.
    pub fn stop_receiving(&self) {
        /// An index that no interface has. Binding to it takes the socket out of the group of the
        /// port: the kernel hashes it anew.
        const NO_INTERFACE: c_int = c_int::MAX;
        // Kernels before 5.7 refuse this without privileges.
        let _ = sys::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, NO_INTERFACE);
    }

    /// Whether pollers should look here every time.
    pub fn is_hot(&self) -> bool {
        self.hot.load(Ordering::Relaxed)
    }

    /// Notes that traffic uses this address.
    pub fn set_hot(&self) {
        if !self.is_hot() {
            self.hot.store(true, Ordering::Relaxed);
        }
    }

    /// Lets the kernel run `program` (classic BPF) to choose the socket of the port's group for
    /// each packet.
    pub(crate) fn attach_steering(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        sys::attach_filter(self.fd(), libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }

    /// Hands a run to the system, which takes it whole or not at all.
    fn send_now(&self, run: &Run, bytes: &[u8]) -> Result<(), SendError> {
        let Run { to: Some(to), segment } = run else { return Err(SendError::Lost) };
        let segment = (*segment < bytes.len()).then(|| u16::try_from(*segment).unwrap_or(u16::MAX));
        let name = name_of(to.dst, self.scope);
        let mut control = Control::new();
        self.describe(to, segment, &mut control);
        loop {
            let Err(cause) = sys::send(self.sender_of(run), &name, [bytes, &[]], &control, libc::MSG_DONTWAIT) else {
                if segment.is_some() {
                    self.segments.note_taken(to.dst);
                }
                return Ok(());
            };
            match cause.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => return Err(SendError::Full),
                // What kernels and drivers answer that cannot segment (no support, or no checksum
                // offload).
                Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP) if segment.is_some() => {
                    self.segments.note_refused(to.dst);
                    return Err(SendError::NoSegments);
                }
                _ => return Err(SendError::Lost),
            }
        }
    }

    /// Adds the control messages that a send needs.
    fn describe(&self, to: &NetHeader, segment: Option<u16>, control: &mut Control) {
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

    /// What is known of `len` bytes that came from there, with `control`.
    fn meta_of(&self, len: usize, src: Gid, src_port: u16, control: &Control) -> RxMeta {
        let mut meta = RxMeta { src_port, ..RxMeta::alone(len, src, self.gid) };
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
}

#[cfg(any(test, feature = "testing"))]
impl UdpLink {
    /// Sends without checksums from now on, which the kernel cannot cut: it refuses.
    pub fn forbid_segments(&self) {
        sys::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    }
}

/// The path of packets.
impl UdpLink {
    /// Receives one run without waiting; `None`: nothing there. `buf` has at least 65,536 bytes.
    /// What is in `control` means nothing before and after: most polls find nothing, and a new
    /// buffer for each is one to clear.
    #[inline]
    pub fn recv_with(&self, buf: &mut [u8], control: &mut Control) -> io::Result<Option<RxMeta>> {
        let received = sys::recv(self.fd(), buf, control)?;
        Ok(received.map(|(len, src, src_port)| self.meta_of(len, src, src_port, control)))
    }

    /// [`UdpLink::recv_with`], with a new buffer for control messages.
    #[cfg(any(test, feature = "testing"))]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<Option<RxMeta>> {
        self.recv_with(buf, &mut Control::new())
    }

    /// Sends `bytes` as packets of `segment` bytes each, the last one may be shorter. At most
    /// [`MAX_BYTES`](crate::link::MAX_BYTES) and [`UdpLink::max_segments`] packets. They go where
    /// `to` says, from the port of this address that `to` names: the RoCE port or the local port.
    /// Never waits.
    #[inline]
    pub fn send(&self, to: &NetHeader, bytes: &[u8], segment: usize) -> Result<Taken, SendError> {
        let run = Run { to: Some(*to), segment };
        self.queue.send(run, bytes, |run| self.sender_of(run), |run, bytes| self.send_now(run, bytes))
    }

    /// Most packets of the next send to `dst`. Ask once for each send.
    #[inline]
    pub fn max_segments(&self, dst: Gid) -> usize {
        self.segments.most(dst)
    }
}
