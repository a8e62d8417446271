//! How packets travel: links move datagrams and know no queue pairs.
//!
//! Lives here: the [`Link`] trait, the real link over a UDP socket ([`udp`]), with what it leaves in the queue of its socket
//! ([`shelf`]) or in those of others (`keepers`), what waits for room in its send buffer ([`tx_queue`]), the one through shared memory ([`shm`]), the folder
//! where processes find each other ([`runtime_dir`]) and the sockets with names in it (`named`), the ownership of QPN ranges
//! among processes ([`slot`]), and of services ([`service`]), the names of multicast groups ([`group`]), the kernel program that hands a packet to its owner ([`steer`]), the
//! frames that processes of one host send each other when it did not ([`forward`]), what the system tells about its
//! interfaces ([`news`]) and whose the port is ([`udp_table`]), which
//! other ports of this host are ours ([`source_ports`]), the program that lets the kernel drop what comes from others
//! (`source_filter`; its instructions: `bpf`), what it drops at a socket ([`drops`]), and the raw link, which moves whole Ethernet frames ([`frames`]). Nothing in this folder locks
//! anything of the rest of the crate.

mod bpf;
mod cmsg;
pub(crate) mod drops;
pub(crate) mod forward;
pub(crate) mod frames;
pub(crate) mod group;
mod keepers;
mod named;
pub(crate) mod news;
pub(crate) mod rcvbuf_cost;
pub(crate) mod runtime_dir;
mod segments;
pub(crate) mod service;
pub(crate) mod shelf;
pub(crate) mod shm;
pub(crate) mod slot;
mod source_filter;
pub(crate) mod source_ports;
pub(crate) mod steer;
#[allow(unsafe_code)]
mod sys;
pub(crate) mod tx_queue;
pub(crate) mod udp;
pub(crate) mod udp_table;

pub(crate) use cmsg::Control;
pub(crate) use named::{NamedSocket, Probe};
pub(crate) use sys::{SendRoom, effective_uid, is_privileged_start, wake};

use roxe_wire::{Gid, NetHeader};
use std::io;
use std::os::fd::RawFd;

/// UDP port of RoCEv2, host order (IANA).
pub(crate) const ROCE_PORT: u16 = 4791;
/// Largest UDP payload of one send or receive, bytes: what an IPv4 packet can carry (65,535 − 20 − 8).
pub(crate) const MAX_BYTES: usize = 65_507;
/// Most packets of one send. Kernels before 6.9 refuse more.
pub(crate) const MAX_SEGMENTS: usize = 64;
/// TTL of packets whose address vector does not say (0) or would not leave the host (1), as hardware does.
pub(crate) const HOP_LIMIT: u8 = 64;

/// The hop limit that a packet has on the wire, where its address vector says `asked`.
// clause: IP-TTL
pub(crate) const fn hop_limit(asked: u8) -> u8 {
    if asked > 1 { asked } else { HOP_LIMIT }
}

/// Where a run of packets came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RxMeta {
    /// Bytes in the buffer.
    pub(crate) len: usize,
    /// Bytes per packet; only the last one may be shorter. At least 1.
    pub(crate) segment: usize,
    /// Index of the first packet in what the sender handed to its kernel at once.
    pub(crate) first_index: u16,
    /// Source address.
    pub(crate) src: Gid,
    /// Destination address.
    pub(crate) dst: Gid,
    /// UDP source port.
    pub(crate) src_port: u16,
    /// IPv4 TOS or IPv6 traffic class, with ECN.
    pub(crate) traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub(crate) hop_limit: u8,
    /// Whether the ICRCs are filled in. Through shared memory packets need none.
    pub(crate) sealed: bool,
    /// Whether they came through shared memory, where nobody waits for credits.
    pub(crate) by_ring: bool,
}

impl RxMeta {
    /// How many packets there are.
    pub(crate) fn packets(&self) -> u64 {
        self.packets_in(self.len)
    }

    /// How many packets `len` of these bytes are.
    pub(crate) fn packets_in(&self, len: usize) -> u64 {
        // Nearly always one, for which a division would take longer than all the rest.
        if (1..=self.segment).contains(&len) { 1 } else { len.div_ceil(self.segment) as u64 }
    }
}

/// Where a run of packets goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxMeta {
    /// Destination address, of the same family as the link.
    pub(crate) dst: Gid,
    /// UDP source port, one of the link's.
    pub(crate) src_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub(crate) hop_limit: u8,
}

impl TxMeta {
    /// Where packets go whose ICRC is that of these headers.
    pub(crate) fn of(net: &NetHeader) -> Self {
        let NetHeader { dst, src_port, traffic_class, hop_limit, .. } = *net;
        Self { dst, src_port, traffic_class, hop_limit }
    }
}

/// Why a run was not sent.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The link did not take several packets at once. They go one by one: [`Link::max_segments`] says so for a while.
    NoSegments,
    /// The send buffer of this socket is full.
    Full(RawFd),
    /// So is what may wait for it ([`tx_queue`]): the packets are gone.
    QueueFull,
    /// The packets are gone, as if the network had lost them.
    Lost,
}

/// What became of a run that was not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The system has it.
    Sent,
    /// It waits for room, and is counted when it leaves.
    Queued,
}

/// Moves runs of equal-sized packets from and to one local address.
pub(crate) trait Link {
    /// Receives one run without waiting; `None`: nothing there. `buf` has at least 65,536 bytes. What is in `control` means
    /// nothing before and after: most looks are in vain, and a new one for each is one to clear.
    fn recv_with(&self, buf: &mut [u8], control: &mut Control) -> io::Result<Option<RxMeta>>;

    /// The same.
    #[cfg(test)]
    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<RxMeta>> {
        self.recv_with(buf, &mut Control::new())
    }

    /// Sends `bytes` as packets of `segment` bytes each, the last one may be shorter. At most [`MAX_BYTES`] and
    /// [`Link::max_segments`] packets. Never waits.
    fn send(&self, to: &TxMeta, bytes: &[u8], segment: usize) -> Result<Taken, SendError>;

    /// Most packets of the next send to `dst`. Asked once for each.
    fn max_segments(&self, dst: Gid) -> usize;
}
