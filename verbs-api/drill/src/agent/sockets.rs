//! The UDP sockets of the near side and of the stranger, a second address without connections.

use crate::mad;
use roxe_net::link::RxMeta;
use roxe_net::udp::BareLink;
use roxe_wire::{Gid, NetHeader, ROCE_PORT};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Number of near side queue pair numbers for one case. The next case uses other numbers, which
/// distinguishes late packets of the previous case.
pub(super) const QPNS_PER_CASE: u32 = 32;
/// First queue pair number of the near side.
pub(super) const FIRST_QPN: u32 = 0x10_0000;
/// Range of queue pair numbers after which they repeat.
pub(super) const QPN_RANGE: u32 = 0x80_0000;
const MAX_DATAGRAM: usize = 9000;
/// Time limit for one of two sockets before the other is read.
const TURN_TIME: Duration = Duration::from_micros(500);

/// Maximum timeout of a read. The kernel rounds a timeout up by an amount that grows with it: 300
/// ms by up to 32 ms, which would count as lateness of the judge.
const MAX_READ_TIMEOUT: Duration = Duration::from_millis(50);

/// The sockets of an address.
struct AddressSockets {
    receiver: UdpSocket,
    link: BareLink,
    /// TOS that is set on the sending socket.
    tos: u8,
    /// Hop limit that is set on the sending socket; `None` before the first packet.
    ttl: Option<u8>,
}

impl AddressSockets {
    fn open(address: Gid, card: Gid) -> io::Result<Self> {
        let link = BareLink::open(address, card)?;
        Ok(Self { receiver: link.receiver.try_clone()?.into(), link, tos: 0, ttl: None })
    }
}

/// All sockets by address.
#[derive(Default)]
pub(super) struct Sockets {
    all: BTreeMap<[u8; 16], AddressSockets>,
    /// Addresses of near side and stranger in the current case.
    pair: [Gid; 2],
    /// True if packets to the stranger are received, too.
    receives_stranger: bool,
    /// A packet to the stranger, held back until older packets to the near side are read.
    held_back: Option<Received>,
}

/// IP header, packet, and time of arrival in the kernel.
type Received = (NetHeader, Vec<u8>, Instant);

impl Sockets {
    /// Opens sockets for the near side, and for the stranger if it has an address. Returns the
    /// addresses that could be opened, and their source port.
    pub(super) fn bind(&mut self, [near, stranger]: [Gid; 2], card: Gid) -> io::Result<([Gid; 2], u16)> {
        let opened = AddressSockets::open(near, card)?;
        let port = opened.link.source_port();
        self.all.insert(near.0, opened);
        if stranger.is_zero() {
            return Ok(([near, stranger], port));
        }
        match AddressSockets::open(stranger, card) {
            Ok(opened) => self.all.insert(stranger.0, opened),
            Err(_) => return Ok(([near, Gid::default()], port)),
        };
        Ok(([near, stranger], port))
    }

    /// Begins a case between these addresses and the card, and drops packets of earlier cases.
    pub(super) fn begin(&mut self, pair: [Gid; 2]) -> io::Result<()> {
        (self.pair, self.receives_stranger, self.held_back) = (pair, false, None);
        for gid in pair.into_iter().filter(|gid| !gid.is_zero()) {
            let socket = self.socket(gid)?;
            let mut buffer = [0; MAX_DATAGRAM];
            // Non-blocking, because the shortest timeout is a tick of the kernel, up to 10 ms.
            socket.set_nonblocking(true)?;
            while !timed_out(&socket.recv_from(&mut buffer))? {}
            socket.set_nonblocking(false)?;
        }
        Ok(())
    }

    /// Receives packets to the stranger, too, until the end of the case.
    pub(super) const fn receive_stranger(&mut self) {
        self.receives_stranger = true;
    }

    fn socket(&self, gid: Gid) -> io::Result<&UdpSocket> {
        self.all.get(&gid.0).map(|near| &near.receiver).ok_or_else(no_socket)
    }

    pub(super) fn send(&mut self, net: &NetHeader, bytes: &[u8]) -> io::Result<()> {
        let near = self.all.get_mut(&net.src.0).ok_or_else(no_socket)?;
        let options = near.link.sender();
        if near.tos != net.traffic_class {
            let tos = u32::from(net.traffic_class);
            if net.is_ipv4() {
                options.set_tos_v4(tos)?
            } else {
                options.set_tclass_v6(tos)?
            }
            near.tos = net.traffic_class;
        }
        if near.ttl != Some(net.hop_limit) {
            let ttl = u32::from(net.hop_limit);
            if net.is_ipv4() {
                options.set_ttl_v4(ttl)?
            } else {
                options.set_unicast_hops_v6(ttl)?
            }
            near.ttl = Some(net.hop_limit);
        }
        if let (IpAddr::V4(group), IpAddr::V4(from)) = (net.dst.to_ip(), net.src.to_ip())
            && group.is_multicast()
        {
            options.set_multicast_if_v4(&from)?;
        }
        near.link.sender().send_to(bytes, &SocketAddr::new(net.dst.to_ip(), ROCE_PORT).into())?;
        Ok(())
    }

    /// Returns the next packet of the case whose queue pair numbers begin with `first`.
    pub(super) fn receive(&mut self, deadline: Instant, first: u32) -> io::Result<Option<Received>> {
        let [near, stranger] = self.pair;
        if !self.receives_stranger || stranger.is_zero() {
            return self.receive_at(near, deadline, first);
        }
        loop {
            let turn = deadline.min(Instant::now() + TURN_TIME);
            if let Some(received) = self.receive_at(near, turn, first)? {
                return Ok(Some(received));
            }
            if self.held_back.is_none() {
                self.held_back = self.receive_at(stranger, Instant::now(), first)?;
            }
            if self.held_back.is_some() {
                // A card migrates from the near side to the stranger only, so packets to the near
                // side were sent before.
                let older = self.receive_at(near, Instant::now(), first)?;
                return Ok(older.or_else(|| self.held_back.take()));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Returns the next packet of this case to this address. A packet that has arrived is returned
    /// even after the deadline.
    fn receive_at(&self, gid: Gid, deadline: Instant, first: u32) -> io::Result<Option<Received>> {
        let near = self.all.get(&gid.0).ok_or_else(no_socket)?;
        loop {
            // A timeout of 0 would mean none.
            let wait =
                deadline.saturating_duration_since(Instant::now()).clamp(Duration::from_micros(1), MAX_READ_TIMEOUT);
            match read_packet(near, wait) {
                Ok(received) if is_of_this_case(&received.1, first) => return Ok(Some(received)),
                other if timed_out(&other)? && Instant::now() >= deadline => return Ok(None),
                _ => {}
            }
        }
    }
}

fn no_socket() -> io::Error {
    io::Error::other("no socket has this address")
}

/// Returns true if a read timed out. EINTR is no timeout: a stopped process gets it when it
/// continues, even without a handler (signal(7)).
fn timed_out<T>(result: &io::Result<T>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(true),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

fn read_packet(near: &AddressSockets, wait: Duration) -> io::Result<Received> {
    let mut buffer = [0; MAX_DATAGRAM];
    near.receiver.set_read_timeout(Some(wait))?;
    near.receiver.peek(&mut buffer[..1])?;
    let (meta, stamp) = near.link.receive(&mut buffer)?.ok_or(io::ErrorKind::WouldBlock)?;
    // `elapsed` fails if the clock was set back meanwhile.
    let arrived = Instant::now() - stamp.elapsed().unwrap_or_default();
    let bytes = buffer.get(..meta.len).unwrap_or_default().to_vec();
    let RxMeta { src, src_port, traffic_class, hop_limit, .. } = meta;
    let net = NetHeader { src, dst: meta.dst, src_port, traffic_class, hop_limit, ..NetHeader::default() };
    // A socket does not report the IP identification, which the ICRC determines.
    let ident = roxe_wire::icrc::solve_ident(&net, &bytes, 0).unwrap_or_default();
    Ok((NetHeader { ident, ..net }, bytes, arrived))
}

/// Returns true if a packet belongs to this case and is no probe of roxe. Messages of the
/// connection manager identify the near side by an id that is one of its queue pair numbers.
fn is_of_this_case(packet: &[u8], first: u32) -> bool {
    let Some([0, a, b, c]) = packet.get(4..8).map(|word| [0, word[1], word[2], word[3]]) else { return true };
    let dqpn = u32::from_be_bytes([0, a, b, c]);
    let is_earlier = |number: u64| number >= FIRST_QPN.into() && number < first.into();
    let named = ["remote_id", "request_id"].iter().find_map(|name| mad::get(packet, name));
    let is_probe = roxe_net::steer::is_probe(packet) || mad::is_probe(packet);
    !is_earlier(dqpn.into()) && !named.is_some_and(is_earlier) && !is_probe
}
