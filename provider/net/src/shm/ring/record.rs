//! The format of a record: its header, the places of its packets, and the sizes of both.

use crate::link::RxMeta;
use roxe_memory::guard::SharedBytes;
use roxe_wire::{Gid, icrc};

/// Bytes of data of a ring: twice the second level cache. While the ring is full, its lines have
/// left the writer's cache for the one that both share before they are read, from where they come
/// three times as fast: a bare ring with two copies moves 9 GB/s with 512 KiB, 29 with 1 MiB and 34
/// with 2 MiB.
pub const SIZE: usize = 2 << 20;
/// Bytes of data of a ring of a process that has many rings.
pub const SMALL: usize = 256 << 10;
/// Most bytes of packets in a record. The reader works on one while the writer fills the next.
pub const MAX_RUN: usize = 32 << 10;
/// Bytes of the header of a record.
pub(super) const HEADER_LEN: usize = 8;
/// Bytes of addresses: from, then to.
pub(super) const ADDRESSES: usize = 32;
/// Where the packets of a record begin at most.
const START: usize = HEADER_LEN + ADDRESSES + ALIGN;
/// What payloads are aligned to.
pub(super) const ALIGN: usize = 16;
/// Records start on a multiple of this.
pub(super) const LINE: u64 = 64;
/// Records of at most this many bytes are built beside the ring: while the reader looks for the
/// header, each locked operation between two stores to its line would wait until the line has come
/// back.
pub(super) const STAGED: usize = 256;

/// Where a run goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heading {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit, as it would leave.
    pub hop_limit: u8,
    /// Whether the ICRCs are filled in.
    pub sealed: bool,
}

/// Bytes that must be free for a record with `len` bytes of packets, at most: the header of the
/// next record is cleared.
#[inline]
pub fn record_len(len: usize) -> u64 {
    ((START + len) as u64).next_multiple_of(LINE) + LINE
}

/// Where in a record the packets begin whose first one has `segment` bytes.
#[inline]
pub(super) const fn start(goes_on: bool, segment: usize) -> usize {
    let before = if goes_on { HEADER_LEN } else { HEADER_LEN + ADDRESSES };
    before + icrc::LEN.wrapping_sub(segment).wrapping_sub(before) % ALIGN
}

/// The first word of a record. 0 stands where there is no record yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    /// Bytes of the packets, and of the first one.
    pub(super) len: usize,
    pub(super) segment: usize,
    /// Packets that share one packet header.
    pub(super) joined: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) sealed: bool,
    pub(super) goes_on: bool,
}

impl RecordHeader {
    #[inline]
    pub(super) fn to_word(self) -> u64 {
        let flags = u8::from(self.sealed) | u8::from(self.goes_on) << 1;
        let [len, segment] = [self.len as u16, self.segment as u16].map(u16::to_ne_bytes);
        u64::from_ne_bytes([
            len[0],
            len[1],
            segment[0],
            segment[1],
            self.traffic_class,
            self.hop_limit,
            flags,
            self.joined,
        ])
    }

    #[inline]
    pub(super) fn parse(word: u64) -> Option<Self> {
        let [l0, l1, s0, s1, traffic_class, hop_limit, flags, joined] = word.to_ne_bytes();
        let [len, segment] = [[l0, l1], [s0, s1]].map(|bytes| usize::from(u16::from_ne_bytes(bytes)));
        let is_run = (1..=MAX_RUN).contains(&len) && (1..=len).contains(&segment);
        let is_sane = is_run && (joined == 1 || joined > 1 && len == segment);
        is_sane.then_some(Self {
            len,
            segment,
            joined,
            traffic_class,
            hop_limit,
            sealed: flags & 1 != 0,
            goes_on: flags & 2 != 0,
        })
    }

    /// Where the packets begin in the record.
    #[inline]
    pub(super) fn start(&self) -> usize {
        start(self.goes_on, self.segment)
    }

    /// Bytes from the record to the next one.
    #[inline]
    pub(super) fn extent(&self) -> u64 {
        ((self.start() + self.len) as u64).next_multiple_of(LINE)
    }
}

const _: () = assert!(MAX_RUN <= u16::MAX as usize);

/// What the reader finds.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What there is to know of the run.
    pub meta: RxMeta,
    /// The packets: not to be looked at before they are copied.
    pub bytes: SharedBytes<'a>,
    /// How many packets the only one in it stands for: their payloads follow each other behind the
    /// packet header of the first.
    pub joined: u8,
}

/// The writer of a ring wrote what makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;
