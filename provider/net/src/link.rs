//! Runs of equal-sized packets, as all links move them: where a run came from, and what became of
//! one that was sent.
//!
//! There is no trait over the links, because they have no operation in common:
//! [`crate::udp::UdpLink`] copies a run into and out of buffers of the caller, a ring
//! ([`crate::shm`]) shows the packets where they are and lends room to build them in, and
//! [`crate::frames`] moves batches of frames that have no address besides their own headers. They
//! share these types.
//!
//! Touches nothing.

use roxe_wire::{Gid, ROCE_PORT};

/// Largest UDP payload of one send or receive, bytes: what an IPv4 packet can carry (65,535 − 20 −
/// 8).
pub const MAX_BYTES: usize = 65_507;
/// Most packets of one send. Kernels before 6.9 refuse more.
pub const MAX_SEGMENTS: usize = 64;
/// TTL of packets whose address vector does not say (0) or would not leave the host (1), as
/// hardware does.
pub const HOP_LIMIT: u8 = 64;

/// The hop limit that a packet has on the wire, where its address vector says `asked`.
// clause: IP-TTL
pub const fn hop_limit(asked: u8) -> u8 {
    if asked > 1 { asked } else { HOP_LIMIT }
}

/// Where a run of packets came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes per packet; only the last one may be shorter. At least 1.
    pub segment: usize,
    /// Index of the first packet in what the sender handed to its kernel at once.
    pub first_index: u16,
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class, with ECN.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// Whether the ICRCs are filled in. Through shared memory packets need none.
    pub sealed: bool,
    /// Whether they came through shared memory, where nobody waits for credits.
    pub by_ring: bool,
}

impl RxMeta {
    /// That of a packet of `len` bytes which says nothing but where it comes from and goes to.
    #[inline]
    pub fn alone(len: usize, src: Gid, dst: Gid) -> Self {
        Self {
            len,
            segment: len.max(1),
            first_index: 0,
            src,
            dst,
            src_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            sealed: true,
            by_ring: false,
        }
    }

    /// How many packets there are.
    pub fn packets(&self) -> u64 {
        self.packets_in(self.len)
    }

    /// How many packets `len` of these bytes are.
    pub fn packets_in(&self, len: usize) -> u64 {
        // Nearly always one, for which a division would take longer than all the rest.
        if (1..=self.segment).contains(&len) { 1 } else { len.div_ceil(self.segment) as u64 }
    }
}

/// Why a run was not sent.
#[derive(Debug)]
pub enum SendError {
    /// The link did not take several packets at once. They go one by one:
    /// [`UdpLink::max_segments`](crate::udp::UdpLink::max_segments) says so for a while.
    NoSegments,
    /// The send buffer is full.
    Full,
    /// The send buffer and the queue behind it ([`crate::tx_queue`]) are full: the packets are
    /// dropped.
    QueueFull,
    /// The packets are dropped, as if the network had lost them.
    Lost,
}

/// What became of a run that was not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The system has it.
    Sent,
    /// The run waits for room in the send buffer, and is counted when it leaves.
    Queued,
}
