//! Measures an upper bound of RDMA WRITE over UDP on this machine: correct headers, ICRCs and
//! acknowledgements, and nothing else.
//!
//! One process writes messages of one size into the memory of another, with a window of
//! unacknowledged bytes. A message is a FIRST packet alone and then runs of packets of equal size,
//! each run one segmented send from a staging buffer. The other process receives runs, checks every
//! packet and copies it to its destination. There are no queues, keys and retries: a lost or wrong
//! packet ends the measurement with an error.

use crate::network::Site;
use crate::peer::{FarPeer, say};
use crate::raw::{gigabytes_per_second, would_block};
use crate::sys;
use crate::work::Sample;
use roxe_wire::{
    Aeth, Bth, Gid, Header, Kind, Msn, NetHeader, Packet, Psn, Qpn, RKey, Request, Response, Reth, Syndrome, icrc,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Largest number of bytes in flight.
const WINDOW: usize = 1 << 20;
/// Number of small messages per call, as in roxe.
const BATCH: usize = 32;
/// Largest number of small messages in flight, as in perftest.
const MESSAGES: usize = 128;
/// Number of runs between two acknowledgements within a message.
const RUNS_PER_ACK: usize = 4;
/// Longest payload of a UDP datagram, and thus of a run, in bytes.
const MAX_RUN: usize = 65_507;
/// Longest packet with headers and ICRC, in bytes.
const MAX_PACKET: usize = Bth::LEN + Reth::LEN + 4096 + icrc::LEN;
/// Time within which an acknowledgement must arrive.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Number of both queue pairs.
const QPN: Qpn = Qpn::new(17);
/// Source port for the ICRC. Both sides use it instead of the sockets' ports.
const PORT: u16 = roxe_wire::ROCE_PORT;

/// Measures gigabytes per second of messages of `size` bytes.
pub(crate) fn stream(site: &Site, size: usize, mtu: usize, time: Duration) -> io::Result<f64> {
    let peer = FarPeer::start(site, &["write-sink", &size.to_string()])?;
    let mut writer = Writer::new(&peer, mtu)?;
    let (source, start) = (vec![0x5a; size], Instant::now());
    let mut bytes = 0;
    while start.elapsed() < time {
        writer.write(&source)?;
        bytes += size;
    }
    writer.await_acks(0)?;
    Ok(gigabytes_per_second(bytes, start.elapsed()))
}

/// Measures million messages of `size` bytes per second, with [`BATCH`] per call.
pub(crate) fn messages(site: &Site, size: usize, time: Duration) -> io::Result<f64> {
    let peer = FarPeer::start(site, &["write-sink", &size.to_string()])?;
    let mut writer = Writer::new(&peer, size)?;
    let (source, start) = (vec![0x5a; size * BATCH], Instant::now());
    let mut calls = 0;
    while start.elapsed() < time {
        writer.write_each(&source)?;
        calls += 1;
    }
    writer.await_acks(0)?;
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    Ok((calls * BATCH) as f64 / start.elapsed().as_secs_f64() / 1e6)
}

/// Measures half the time from posting a message of 8 bytes to its acknowledgement, in
/// microseconds.
pub(crate) fn latency(site: &Site, time: Duration) -> io::Result<Sample> {
    let peer = FarPeer::start(site, &["write-sink", "8"])?;
    let mut writer = Writer::new(&peer, 4096)?;
    crate::raw::half_round_trip(time, || {
        writer.write(&[0x5a; 8])?;
        writer.await_acks(0)
    })
}

/// Requester of RDMA WRITE over a UDP socket.
struct Writer {
    socket: UdpSocket,
    stage: Vec<u8>,
    mtu: usize,
    psn: Psn,
    /// First unacknowledged packet.
    open: Psn,
}

impl Writer {
    fn new(peer: &FarPeer, mtu: usize) -> io::Result<Self> {
        Ok(Self { socket: peer.socket()?, stage: vec![0; 1 << 16], mtu, psn: Psn::new(0), open: Psn::new(0) })
    }

    /// Sends one message.
    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        let reth = Reth { va: 0, rkey: RKey(7), dma_len: u32::try_from(message.len()).map_err(io::Error::other)? };
        if message.len() <= self.mtu {
            return self.send_run_within(message, |_| Request::WriteOnly(reth, None), 0);
        }
        let (first, rest) = message.split_at(self.mtu);
        self.send_run_within(first, |_| Request::WriteFirst(reth), 0)?;
        let segment = Bth::LEN + self.mtu + icrc::LEN;
        let run = MAX_RUN / segment * self.mtu;
        let last = rest.len().div_ceil(run) - 1;
        for (index, run) in rest.chunks(run).enumerate() {
            let packets = run.len().div_ceil(self.mtu);
            let kind = |packet| match index == last && packet + 1 == packets {
                true => Request::WriteLast(None),
                false => Request::WriteMiddle,
            };
            self.send_run_within(run, kind, segment)?;
        }
        Ok(())
    }

    /// Sends messages of a path MTU each.
    fn write_each(&mut self, messages: &[u8]) -> io::Result<()> {
        let reth = Reth { va: 0, rkey: RKey(7), dma_len: u32::try_from(self.mtu).map_err(io::Error::other)? };
        self.await_acks(MESSAGES - BATCH)?;
        self.send_run(messages, |_| Request::WriteOnly(reth, None), only_len(self.mtu))
    }

    /// Sends packets once there is room for them in the window.
    fn send_run_within(&mut self, payload: &[u8], kind: impl Fn(usize) -> Request, segment: usize) -> io::Result<()> {
        self.await_acks(WINDOW.saturating_sub(payload.len()) / self.mtu)?;
        self.send_run(payload, kind, segment)
    }

    /// Sends packets that hold `payload`, in segments of this size; 0 for a single packet.
    fn send_run(&mut self, payload: &[u8], kind: impl Fn(usize) -> Request, segment: usize) -> io::Result<()> {
        let (mut end, packets) = (0, payload.len().div_ceil(self.mtu));
        for (index, part) in payload.chunks(self.mtu).enumerate() {
            let request = kind(index);
            let mut bth = Bth::new(QPN, self.psn);
            let is_end = matches!(request, Request::WriteLast(_) | Request::WriteOnly(..));
            bth.ack_req = is_end && index + 1 == packets;
            end += seal(Header { bth, kind: Kind::RcRequest(request) }, part, index, &mut self.stage[end..])?;
            self.psn = self.psn.next();
        }
        sys::set_segment(&self.socket, segment)?;
        self.socket.send(&self.stage[..end]).map(drop)
    }

    /// Receives acknowledgements until at most this number of packets is in flight.
    fn await_acks(&mut self, packets: usize) -> io::Result<()> {
        let mut idle_since = None;
        let packets = i32::try_from(packets).unwrap_or(i32::MAX);
        while self.psn.distance(self.open) > packets {
            let mut buf = [0; 64];
            match would_block(self.socket.recv(&mut buf))? {
                Some(len) => self.open = acknowledged(&buf[..len])?.next(),
                None if idle_since.get_or_insert_with(Instant::now).elapsed() > TIME_LIMIT => {
                    return Err(io::Error::other("no acknowledgement: a packet was lost"));
                }
                None => std::hint::spin_loop(),
            }
        }
        Ok(())
    }
}

/// Returns the PSN of an acknowledgement.
fn acknowledged(datagram: &[u8]) -> io::Result<Psn> {
    let packet = Packet::parse(datagram).map_err(io::Error::other)?;
    match packet.header.kind {
        Kind::RcResponse(Response::Ack(_)) if icrc::verify(&net(0), datagram) => Ok(packet.header.bth.psn),
        other => Err(io::Error::other(format!("not an acknowledgement: {other:?}"))),
    }
}

/// Writes a packet to the beginning of `out`, and returns its length.
fn seal(header: Header, payload: &[u8], index: usize, out: &mut [u8]) -> io::Result<usize> {
    let covered = header.padded_len(payload.len());
    let (packet, _) = out.split_at_mut(covered + icrc::LEN);
    let area = header.emit(payload.len(), &mut packet[..covered]);
    area.ok_or_else(|| io::Error::other("no such packet"))?.copy_from_slice(payload);
    icrc::seal(&net(index), packet);
    Ok(packet.len())
}

/// Returns the network header of packet `index` of a send.
fn net(index: usize) -> NetHeader {
    let here = Gid::from(IpAddr::from(Ipv4Addr::LOCALHOST));
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 packets")]
    NetHeader { src: here, dst: here, src_port: PORT, hop_limit: 64, ident: index as u16, ..NetHeader::default() }
}

/// Runs the responder at this address: receives messages of `size` bytes until killed.
pub(crate) fn sink(size: &str, at: &str) -> io::Result<()> {
    let (socket, size) = (UdpSocket::bind((at, 0))?, size.parse().map_err(io::Error::other)?);
    sys::set_rcvbuf(&socket, 4 * WINDOW)?;
    sys::set_gro(&socket)?;
    say(socket.local_addr()?.port())?;
    socket.set_nonblocking(true)?;
    let mut memory = Memory { bytes: vec![0; size], filled: 0, expected: Psn::new(0) };
    let (mut buf, mut runs) = (vec![0; 1 << 16], 0);
    loop {
        let Some((len, from)) = would_block(socket.recv_from(&mut buf))? else {
            std::hint::spin_loop();
            continue;
        };
        let ack_requested = memory.take_run(&buf[..len])?;
        runs += 1;
        if ack_requested || runs >= RUNS_PER_ACK {
            runs = 0;
            acknowledge(&socket, from, memory.expected.sub(1))?;
        }
    }
}

fn acknowledge(socket: &UdpSocket, to: SocketAddr, psn: Psn) -> io::Result<()> {
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: Msn::new(0) };
    let mut packet = [0; 64];
    let header = Header { bth: Bth::new(QPN, psn), kind: Kind::RcResponse(Response::Ack(aeth)) };
    let len = seal(header, &[], 0, &mut packet)?;
    socket.send_to(&packet[..len], to).map(drop)
}

/// Destination of messages.
struct Memory {
    bytes: Vec<u8>,
    /// Bytes received of the message in progress.
    filled: usize,
    expected: Psn,
}

impl Memory {
    /// Processes the packets of one receive. Returns true if one of them requests an
    /// acknowledgement.
    fn take_run(&mut self, run: &[u8]) -> io::Result<bool> {
        // All packets of a run have the same length, except that the last one may be shorter. A
        // FIRST packet is alone.
        let mut ack_requested = false;
        let only = only_len(self.bytes.len());
        let segment = if run.len().is_multiple_of(only) { only } else { segment_of(run) };
        for (index, packet) in run.chunks(segment).enumerate() {
            ack_requested |= self.take(packet, index)?;
        }
        Ok(ack_requested)
    }

    fn take(&mut self, datagram: &[u8], index: usize) -> io::Result<bool> {
        let packet = Packet::parse(datagram).map_err(io::Error::other)?;
        if packet.header.bth.psn != self.expected || !icrc::verify(&net(index), datagram) {
            return Err(io::Error::other(format!("a packet was lost or damaged at {:?}", self.expected)));
        }
        self.expected = self.expected.next();
        if let Kind::RcRequest(Request::WriteFirst(_) | Request::WriteOnly(..)) = packet.header.kind {
            self.filled = 0;
        }
        let end = self.filled + packet.payload.len();
        let area = self.bytes.get_mut(self.filled..end).ok_or_else(|| io::Error::other("too long a message"))?;
        area.copy_from_slice(packet.payload);
        self.filled = end;
        Ok(packet.header.bth.ack_req)
    }
}

/// Returns the length of a packet that is a message of `size` bytes.
const fn only_len(size: usize) -> usize {
    Bth::LEN + Reth::LEN + size + icrc::LEN
}

/// Returns the length of the packets in a run: a single packet, or packets of the path MTU 1024 or
/// 4096 without a RETH.
fn segment_of(run: &[u8]) -> usize {
    let packet_len = |mtu| Bth::LEN + mtu + icrc::LEN;
    match run.len() {
        len if len <= MAX_PACKET && len % packet_len(1024) != 0 => len,
        len if len % packet_len(4096) == 0 => packet_len(4096),
        _ => packet_len(1024),
    }
}
