//! Datagrams: SOCK_DGRAM over UD queue pairs.
//!
//! A socket has a UDP socket, and a queue pair ([`UdQp`]) for each local address that it uses. It
//! sends the first datagram to a peer over UDP, together with its queue pair number; the peer
//! answers with its own number. Later datagrams go from queue pair to queue pair. One inbox has the
//! datagrams that the queue pairs receive and those that the background thread reads from the UDP
//! socket.

mod ud_qp;

use crate::addr::{to_fabric, to_program, unspecified};
use crate::config::Config;
use crate::errno::os;
use crate::proto::datagram;
use crate::proto::datagram::{MAX_DATAGRAM, MAX_HEADER, UdpHeader};
use crate::service::ServiceDue;
use crate::stream::{RecvCursor, RecvMode, SendCursor};
use crate::wait::{Source, Waker, Watchers};
use crate::{RDMA_INLINE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA, errno, lock, service, sys, wait};
use roxe::{AddressHandle, Qpn};
use roxe_provider::lock::{Mutex, MutexGuard};
use socket2::{Domain, Socket, Type};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};
use ud_qp::{Depth, MAX_DEPTH, Received, UdQp};

/// Largest number of known peers. When it is reached, the socket forgets all peers, and sends its
/// next datagram to each over UDP again.
const MAX_PEERS: usize = 4096;
/// Largest number of UDP packets that one call of `serve` reads.
const UDP_BATCH: usize = 64;
/// Time that `close` waits for posted sends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Datagram {
    /// Non-blocking. The number of its descriptor identifies the socket.
    udp: UdpSocket,
    domain: i32,
    inner: Mutex<lock::Datagram, DatagramState>,
}

#[derive(Debug)]
struct DatagramState {
    settings: Config,
    /// One queue pair for each local address that the socket has used.
    ud_qps: Vec<UdQp>,
    peers: HashMap<SocketAddr, Peer>,
    /// The peer that `connect` has set.
    connected: Option<SocketAddr>,
    /// Datagrams that the program has not received.
    inbox: VecDeque<InboxEntry>,
    /// True if the program has shut down receiving.
    shut_read: bool,
    /// True if the program has shut down sending.
    shut_write: bool,
    /// True if the program has closed the socket.
    closed: bool,
    watchers: Watchers,
}

/// A known address: the socket has sent to it, or received from it.
#[derive(Debug)]
struct Peer {
    /// Index in `ud_qps` of the queue pair that reaches the peer.
    ud_qp: usize,
    /// Address and queue pair of the peer; `None` while unknown.
    qp: Option<(AddressHandle, Qpn)>,
}

#[derive(Debug)]
enum InboxEntry {
    /// In the receive buffer of a queue pair.
    OverQp { ud_qp: usize, received: Received },
    /// Received over UDP.
    OverUdp { from: SocketAddr, bytes: Vec<u8> },
}

impl InboxEntry {
    const fn sender(&self) -> SocketAddr {
        match self {
            Self::OverQp { received, .. } => received.from,
            Self::OverUdp { from, .. } => *from,
        }
    }
}

impl Datagram {
    pub(crate) fn new(domain: i32) -> io::Result<Self> {
        let socket = Socket::new(Domain::from(domain), Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        let inner = DatagramState {
            settings: *Config::get(),
            ud_qps: Vec::new(),
            peers: HashMap::new(),
            connected: None,
            inbox: VecDeque::new(),
            shut_read: false,
            shut_write: false,
            closed: false,
            watchers: Watchers::default(),
        };
        Ok(Self { udp: socket.into(), domain, inner: Mutex::new(inner) })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        socket2::SockRef::from(&self.udp).bind(&to_program(addr, self.domain).into())
    }

    pub(crate) fn connect(&self, addr: SocketAddr) -> io::Result<()> {
        self.udp.connect(to_program(addr, self.domain))?;
        let mut inner = self.inner.lock();
        self.qp_towards(&mut inner, addr)?;
        inner.connected = Some(addr);
        Ok(())
    }

    pub(crate) fn shut_down(&self, read: bool, write: bool) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if inner.connected.is_none() {
            return Err(os(libc::ENOTCONN));
        }
        inner.shut_read |= read;
        inner.shut_write |= write;
        inner.watchers.wake();
        Ok(())
    }

    /// Closes the socket. First waits until posted sends are complete, at most one second.
    pub(crate) fn close(&self) {
        let has_sent_all = |inner: &DatagramState| inner.ud_qps.iter().all(UdQp::has_sent_all);
        // Datagrams that are still posted after the wait may get lost.
        let _ = wait::until(self, Instant::now().checked_add(CLOSE_TIMEOUT), || has_sent_all(&self.lock_updated()));
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.watchers.wake();
        drop(inner);
        service::wake();
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.udp.local_addr().ok().and_then(|addr| to_fabric(addr, self.domain).ok())
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.lock().connected.ok_or_else(|| os(libc::ENOTCONN))
    }

    /// Returns the descriptor that the background thread polls; `None` if the socket is closed.
    pub(crate) fn service_due(&self) -> Option<ServiceDue> {
        (!self.inner.lock().closed).then(|| (Some(self.fd()), None))
    }

    /// Reads datagrams and answers that arrived over UDP.
    pub(crate) fn serve(&self) {
        let mut packet = [0; MAX_DATAGRAM + MAX_HEADER];
        for _ in 0..UDP_BATCH {
            match self.udp.recv_from(&mut packet) {
                Ok((len, from)) => self.handle_packet(&packet[..len], from),
                // Any other error reports an ICMP message about an earlier datagram.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {}
            }
        }
    }

    /// Handles a UDP packet: answers a datagram, records the peer's queue pair, and enqueues the
    /// datagram.
    // clause: RSOCK-UDP-ANSWER
    fn handle_packet(&self, packet: &[u8], from: SocketAddr) {
        let Ok(from) = to_fabric(from, self.domain) else { return };
        let Some((header, data)) = UdpHeader::decode(packet, from) else { return };
        let mut inner = self.inner.lock();
        let Ok(ud_qp) = self.qp_towards(&mut inner, from) else { return };
        if header.data {
            // If the answer is lost, the peer announces itself with its next datagram.
            let _ = self.send_over_udp(&inner.ud_qps[ud_qp], from, false, &mut SendCursor::new(&[]));
        }
        let qpn = Qpn::new(header.qpn);
        let is_known = inner.peers.get(&from).and_then(|peer| peer.qp).is_some_and(|(_, known)| known == qpn);
        if !is_known
            && let Ok(handle) = inner.ud_qps[ud_qp].address_handle(from.ip())
            && let Some(peer) = inner.peers.get_mut(&from)
        {
            peer.qp = Some((handle, qpn));
        }
        if header.data && inner.accepts_from(from) {
            inner.inbox.push_back(InboxEntry::OverUdp { from, bytes: data.to_vec() });
            inner.watchers.wake();
        }
    }

    /// Sends the number of `ud_qp` over UDP, followed by `data`. The header says whether there is a
    /// datagram, which may be empty.
    fn send_over_udp(
        &self,
        ud_qp: &UdQp,
        to: SocketAddr,
        with_data: bool,
        data: &mut SendCursor<'_>,
    ) -> io::Result<()> {
        let header = UdpHeader { data: with_data, qpn: ud_qp.qpn(), addr: ud_qp.ip() }.encode();
        let mut packet = [0; MAX_DATAGRAM + MAX_HEADER];
        let (head, body) = packet.split_at_mut(header.as_slice().len());
        head.copy_from_slice(header.as_slice());
        let len = head.len() + data.copy_to(body);
        self.udp.send_to(&packet[..len], to_program(to, self.domain)).map(drop)
    }

    pub(crate) fn send(&self, data: &mut SendCursor<'_>, to: Option<SocketAddr>, wait: bool) -> io::Result<usize> {
        loop {
            match self.send_now(data, to) {
                Err(e) if wait && e.kind() == io::ErrorKind::WouldBlock => self.wait_to_send()?,
                result => return result,
            }
        }
    }

    fn wait_to_send(&self) -> io::Result<()> {
        let mut fds = [libc::pollfd { fd: self.fd(), events: libc::POLLOUT, revents: 0 }];
        sys::poll(&mut fds, -1)?;
        wait::until(self, None, || self.ready(libc::POLLOUT) != 0)
    }

    fn send_now(&self, data: &mut SendCursor<'_>, to: Option<SocketAddr>) -> io::Result<usize> {
        let to = to.or_else(|| self.inner.lock().connected).ok_or_else(|| os(libc::EDESTADDRREQ))?;
        if self.inner.lock().peers.get(&to).is_none_or(|peer| peer.qp.is_none()) {
            // Reads the peer's answer, if it has arrived. This datagram then leaves through the
            // queue pair, and cannot overtake the earlier one, because the peer has answered that.
            self.serve();
        }
        let mut inner = self.lock_updated();
        if inner.shut_write {
            return Err(os(libc::EPIPE));
        }
        let at = self.qp_towards(&mut inner, to)?;
        let DatagramState { ud_qps, peers, .. } = &mut *inner;
        let ud_qp = &mut ud_qps[at];
        let source = SocketAddr::new(ud_qp.ip(), self.udp.local_addr()?.port());
        let header = datagram::encode_source(source);
        let len = data.remaining();
        if len > ud_qp.max_payload(header.as_slice().len()) {
            return Err(os(libc::EMSGSIZE));
        }
        match peers.get(&to).and_then(|peer| peer.qp) {
            Some(qp) if !ud_qp.send(qp, &header, data).map_err(errno::io_error)? => return Err(os(libc::EAGAIN)),
            Some(_) => {}
            None => self.send_over_udp(ud_qp, to, true, data)?,
        }
        Ok(len)
    }

    /// Returns the index of the queue pair that reaches `to`; records the peer.
    fn qp_towards(&self, inner: &mut DatagramState, to: SocketAddr) -> io::Result<usize> {
        if let Some(peer) = inner.peers.get(&to) {
            return Ok(peer.ud_qp);
        }
        let ip = self.source_towards(to)?;
        let ud_qp = inner.qp_on(ip)?;
        if inner.peers.len() >= MAX_PEERS {
            inner.peers.clear();
        }
        inner.peers.insert(to, Peer { ud_qp, qp: None });
        Ok(ud_qp)
    }

    /// Returns the local address to send to `to` from: the bound address, or the kernel's choice.
    fn source_towards(&self, to: SocketAddr) -> io::Result<IpAddr> {
        let own = self.local_addr().map(|own| own.ip()).filter(|ip| !ip.is_unspecified());
        if let Some(ip) = own {
            return Ok(ip);
        }
        let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let probe = UdpSocket::bind(unspecified(family))?;
        probe.connect(to)?;
        Ok(probe.local_addr()?.ip())
    }

    pub(crate) fn recv(
        &self,
        room: &mut RecvCursor<'_, '_>,
        mode: RecvMode,
    ) -> io::Result<(usize, Option<SocketAddr>)> {
        wait::retry(self, mode.wait, libc::POLLIN, || self.lock_updated().recv(room, mode.peek))
    }

    /// Processes pending completions, and returns the state.
    fn lock_updated(&self) -> MutexGuard<'_, lock::Datagram, DatagramState> {
        let mut inner = self.inner.lock();
        inner.progress();
        inner
    }
}

impl DatagramState {
    /// Returns the index of the queue pair on `ip`; creates it if there is none.
    fn qp_on(&mut self, ip: IpAddr) -> io::Result<usize> {
        if let Some(at) = self.ud_qps.iter().position(|ud_qp| ud_qp.ip() == ip) {
            return Ok(at);
        }
        self.ud_qps.push(UdQp::open(ip, Depth::new(&self.settings))?);
        // Sleeping threads do not poll the new queue pair's descriptor yet.
        self.watchers.wake();
        Ok(self.ud_qps.len() - 1)
    }

    /// Returns true if a datagram from `from` is for the program and the inbox has room.
    fn accepts_from(&self, from: SocketAddr) -> bool {
        let has_room = self.inbox.len() < usize::from(Depth::new(&self.settings).recvs);
        has_room && !self.shut_read && self.connected.is_none_or(|connected| connected == from)
    }

    fn progress(&mut self) {
        let mut ud_qps = std::mem::take(&mut self.ud_qps);
        let mut changed = false;
        for (index, ud_qp) in ud_qps.iter_mut().enumerate() {
            ud_qp.completions.take_events(!self.watchers.is_empty());
            changed |= ud_qp.take_completions(|received| {
                let accepted = self.accepts_from(received.from);
                if accepted {
                    self.inbox.push_back(InboxEntry::OverQp { ud_qp: index, received });
                }
                accepted
            });
        }
        self.ud_qps = ud_qps;
        if changed {
            self.watchers.wake();
        }
    }

    /// Receives the next datagram; returns its length and sender, or `None` if there is none.
    /// Returns length 0 without a sender after a shutdown.
    fn recv(&mut self, room: &mut RecvCursor<'_, '_>, peek: bool) -> io::Result<Option<(usize, Option<SocketAddr>)>> {
        let Some(message) = self.inbox.front() else {
            return match self {
                Self { closed: true, .. } => Err(os(libc::EBADF)),
                Self { shut_read: true, .. } => Ok(Some((0, None))),
                _ => Ok(None),
            };
        };
        let from = message.sender();
        match message {
            InboxEntry::OverUdp { bytes, .. } => room.put(bytes),
            InboxEntry::OverQp { ud_qp, received } => {
                room.put(&self.ud_qps[*ud_qp].bytes(received).map_err(errno::io_error)?)
            }
        }
        if !peek && let Some(InboxEntry::OverQp { ud_qp, received }) = self.inbox.pop_front() {
            self.ud_qps[ud_qp].repost(received.slot);
        }
        Ok(Some((room.moved(), Some(from))))
    }
}

impl Source for Datagram {
    fn ready(&self, events: i16) -> i16 {
        let inner = self.lock_updated();
        let mut ready = 0;
        if !inner.inbox.is_empty() || inner.shut_read {
            ready |= libc::POLLIN;
        }
        if inner.ud_qps.iter().all(UdQp::can_send) || inner.shut_write {
            ready |= libc::POLLOUT;
        }
        if inner.closed {
            return libc::POLLNVAL;
        }
        ready & events
    }

    fn watch(&self, waker: &Waker, fds: &mut Vec<libc::pollfd>) {
        let mut inner = self.inner.lock();
        inner.watchers.add(waker);
        for ud_qp in &mut inner.ud_qps {
            ud_qp.completions.arm();
            fds.push(wait::pollin_entry(ud_qp.completions.fd()));
        }
    }

    fn unwatch(&self, waker: &Waker) {
        self.inner.lock().watchers.remove(waker);
    }
}

impl Datagram {
    pub(crate) fn set_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        if level != SOL_RDMA {
            sys::set_option(self.fd(), level, name, value)?;
        }
        let number = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let mut inner = self.inner.lock();
        let in_use = !inner.ud_qps.is_empty();
        let settings = &mut inner.settings;
        match (level, name, number) {
            // The queue pairs exist already, and their buffers keep their size.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF, _) if in_use => {}
            (libc::SOL_SOCKET, libc::SO_RCVBUF, Some(bytes)) => settings.sizes.recv_buffer = bytes.saturating_mul(2),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, Some(bytes)) => settings.sizes.send_buffer = bytes.saturating_mul(2),
            (SOL_RDMA, _, None) => return Err(os(libc::EINVAL)),
            (SOL_RDMA, _, _) if in_use => return Err(os(libc::EINVAL)),
            (SOL_RDMA, _, Some(value)) => set_rdma(settings, name, value)?,
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn option(&self, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
        let settings = self.inner.lock().settings;
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => settings.sizes.recv_buffer,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => settings.sizes.send_buffer,
            (SOL_RDMA, RDMA_SQSIZE) => settings.sizes.send_queue.into(),
            (SOL_RDMA, RDMA_RQSIZE) => settings.sizes.recv_queue.into(),
            (SOL_RDMA, RDMA_INLINE) => settings.inline,
            (SOL_RDMA, _) => return Err(os(libc::ENOTSUP)),
            _ => return sys::option(self.fd(), level, name, room),
        };
        Ok(value.to_ne_bytes().to_vec())
    }
}

fn set_rdma(settings: &mut Config, name: i32, value: u32) -> io::Result<()> {
    let queue = value.min(MAX_DEPTH) as u16;
    match name {
        RDMA_SQSIZE => settings.sizes.send_queue = queue,
        RDMA_RQSIZE => settings.sizes.recv_queue = queue,
        RDMA_INLINE => settings.inline = value,
        _ => return Err(os(libc::ENOTSUP)),
    }
    Ok(())
}
