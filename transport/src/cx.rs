//! The traits that a driver implements for the state machines: memory, completions, shared
//! receives, flow control, packets to send; and the buffers of payload and packets, which may be
//! shared with another process.
//!
//! The provider implements these traits over real memory and sockets, tests over a `Vec<u8>`. A
//! [`Host`] is passed to every call and never stored; it acts for one QP (its protection domain,
//! its CQs, its SRQ).

use crate::time::Instant;
use crate::wr::{Access, Av, Bind, Cqe, Sge};
use core::sync::atomic::{AtomicU8, Ordering};
use roxe_wire::{Form, Header, Qpn, RKey, Request};

/// Reason why an access to memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemError {
    /// The key does not exist, is stale, or was deregistered or invalidated.
    BadKey,
    /// The key belongs to another protection domain (or, for a window, to another QP).
    WrongDomain,
    /// The region does not grant this right.
    Access,
    /// The range exceeds the region, the address overflows, or the list is shorter than the data.
    Range,
    /// The memory of the key is no longer mapped.
    Fault,
}

/// An atomic operation on an 8-byte aligned word, in the byte order of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Store `swap` if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add with wrap-around.
    FetchAdd {
        /// Number to add.
        add: u64,
    },
}

impl AtomicOp {
    /// Returns the new value of a word that held `old`.
    pub const fn applied(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if compare == old => swap,
            Self::CompareSwap { .. } => old,
            Self::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}

/// Registered memory, as accessible to one QP.
pub trait Memory {
    /// Copies `out.len()` bytes, starting `offset` bytes into the list `sges`, out of local memory.
    fn gather(&mut self, sges: &[Sge], offset: u32, out: TxRoom<'_>) -> Result<(), MemError>;

    /// Copies `data` into local memory, starting `offset` bytes into the list `sges` (needs
    /// `LOCAL_WRITE`), in increasing address order. `side` is the queue of the list: a shared
    /// receive queue has a protection domain of its own.
    fn scatter(&mut self, side: Side, sges: &[Sge], offset: u32, data: RxPayload<'_>) -> Result<(), MemError>;

    /// Checks that a peer may do `access` on `len` bytes at `va` under `rkey`.
    fn check_remote(&mut self, rkey: RKey, va: u64, len: u64, access: Access) -> Result<(), MemError>;

    /// Records for diagnostics that a packet was refused because of its payload length `len`.
    fn note_wrong_length(&mut self, request: &Request, len: usize) {
        let _ = (request, len);
    }

    /// Records for diagnostics that a READ, an atomic, an ATOMIC WRITE or a FLUSH was refused
    /// because too many of them are outstanding.
    fn note_too_many_reads(&mut self) {}

    /// Records for diagnostics that a request was refused because the queue pair does not grant
    /// this right.
    fn note_missing_right(&mut self, right: Access) {
        let _ = right;
    }

    /// Copies out of memory for a peer. Checks `REMOTE_READ` and the range again: the key may have
    /// been invalidated since the request.
    fn read_remote(&mut self, rkey: RKey, va: u64, out: TxRoom<'_>) -> Result<(), MemError>;

    /// Copies into memory for a peer in increasing address order. Checks `REMOTE_WRITE` and the
    /// range.
    fn write_remote(&mut self, rkey: RKey, va: u64, data: RxPayload<'_>) -> Result<(), MemError>;

    /// Executes an atomic operation for a peer and returns the old value. Checks `REMOTE_ATOMIC`
    /// and the range; `va` is aligned.
    fn atomic_remote(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemError>;

    /// Stores 8 bytes for a peer atomically. Checks `REMOTE_WRITE` and the range; `va` is aligned.
    fn store_remote(&mut self, rkey: RKey, va: u64, data: [u8; 8]) -> Result<(), MemError>;

    /// Makes earlier writes of this peer visible to every observer of the memory before it returns.
    /// `range` is address and length; `None` is the whole region. The key must grant `access`, even
    /// on zero bytes.
    fn flush_remote(&mut self, rkey: RKey, range: Option<(u64, u64)>, access: Access) -> Result<(), MemError>;

    /// Invalidates `rkey` on behalf of a peer's SEND with Invalidate.
    fn invalidate_remote(&mut self, rkey: RKey) -> Result<(), MemError>;

    /// Invalidates `rkey` on behalf of this QP.
    fn invalidate_local(&mut self, rkey: RKey) -> Result<(), MemError>;

    /// Binds a memory window; on error the window is unchanged.
    fn bind(&mut self, bind: &Bind) -> Result<(), MemError>;
}

/// One of the QP's two work queues with its completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Send work requests and their completions.
    Send,
    /// Receive work requests and their completions.
    Recv,
}

/// Error of a full completion queue: the queue is unusable from now on, and the QP must enter the
/// error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// Reason why the QP must enter the error state after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The completion queue is full, or the QP failed and is unusable.
    Fatal,
    /// A fault rule let the completion fail.
    Failed,
}

impl From<Overrun> for Ending {
    fn from(Overrun: Overrun) -> Self {
        Self::Fatal
    }
}

/// The completion queues of the QP.
pub trait Completions {
    /// Appends `cqe` to the queue of `side`.
    fn complete(&mut self, side: Side, cqe: Cqe) -> Result<(), Ending>;
}

/// Destination of a message in a tag-matching queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagFit {
    /// A posted tag, which is consumed.
    Matched,
    /// An ordinary receive, because no posted tag matches; the message counts as unexpected.
    Unexpected {
        /// True if the program should synchronise: too many unexpected messages are unconfirmed.
        asks_sync: bool,
    },
    /// An ordinary receive: the message has no tag.
    Untagged,
}

/// The shared receive queue of a QP that has one.
pub trait SharedReceives {
    /// Takes the next work request: returns its `wr_id` and writes its list to `sges`, which is
    /// cleared first and has the capacity. The request belongs to the QP until it completes.
    fn take_shared(&mut self, sges: &mut Vec<Sge>) -> Option<u64>;

    /// Takes the receive for a message with `tag`, or without a tag, like
    /// [`SharedReceives::take_shared`]. Atomic with respect to posting and taking tags. The default
    /// implementation has no tags.
    fn take_tagged(&mut self, tag: Option<u64>, sges: &mut Vec<Sge>) -> Option<(u64, TagFit)> {
        let (_, _) = (tag, sges);
        None
    }

    /// Stops counting an unexpected message that was aborted before its completion (tag matching).
    fn forget_unexpected(&mut self) {}

    /// Selects the SRQ `srqn` of the XRC domain of the QP for receives, their completions and the
    /// domain of remote keys. Returns false if there is none; the QP then has no receive,
    /// completion or memory.
    fn select_srq(&mut self, srqn: u32) -> bool {
        let _ = srqn;
        false
    }
}

/// Limits the bytes in flight towards the receiving socket of the peer.
///
/// A socket drops silently when its buffer is full, so the bytes that all QPs have in flight to one
/// socket are bounded by this trait. When `reserve` refuses, the QP stops, and the host calls
/// `poll_transmit` again once there is room.
pub trait FlowControl {
    /// Returns the cost in bytes of a packet of a longer message, with `payload` bytes of payload:
    /// about its size in the receive buffer. Constant for equal arguments.
    fn packet_cost(payload: u32) -> u32;

    /// Returns the cost in bytes of a packet that is a whole message, and mostly arrives alone.
    fn lone_packet_cost(payload: u32) -> u32;

    /// Reserves `bytes` at the receiver `(av.dgid, qpn)` for one packet; returns false if the host
    /// refuses. `own` is the number of bytes that this QP has reserved and not released; a host
    /// that refuses with `own` = 0 must serve the QP soon, so that it does not starve. UC and UD
    /// never release: their `own` is the sum of this `poll_transmit`.
    fn reserve(&mut self, av: &Av, qpn: Qpn, bytes: u32, own: u32) -> bool;

    /// Reserves `bytes` for a packet that would leave in the same send as the one before it
    /// ([`TxBatch::fits_same_send`]; RC only). Returns false if the host refuses. A host may exceed
    /// its window by the remaining packets of a run, which costs less than a new send. After a
    /// refusal the QP calls [`FlowControl::reserve`].
    fn reserve_in_run(&mut self, av: &Av, qpn: Qpn, bytes: u32) -> bool {
        let _ = (av, qpn, bytes);
        false
    }

    /// Reserves `bytes` in advance for further packets to the same receiver (RC only). Returns
    /// false if the host refuses, because other QPs may need the room.
    fn reserve_ahead(&mut self, av: &Av, qpn: Qpn, bytes: u32) -> bool;

    /// Releases `bytes` reserved at `(av.dgid, qpn)`: they arrived or were given up (RC only).
    fn release(&mut self, av: &Av, qpn: Qpn, bytes: u32);

    /// Returns the bytes towards `(av.dgid, qpn)` after which an RC QP requests an acknowledgement.
    /// They are a part of the window, so that room is released before it runs out, but not a small
    /// part, because acknowledgements cost time.
    fn ack_interval(&mut self, av: &Av, qpn: Qpn) -> u32;
}

/// The environment of a QP during a call.
pub trait Host: Memory + Completions + SharedReceives + FlowControl {
    /// Returns the current time; constant within a batch.
    fn now(&self) -> Instant;
}

/// Reason why a packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxReason {
    /// First transmission of a request packet.
    First,
    /// Retransmission of a request packet.
    Retransmission,
    /// A response to a READ, ATOMIC WRITE or FLUSH.
    ReadResponse,
    /// A response to an atomic.
    AtomicResponse,
    /// A retransmitted response to a duplicate request.
    Replay,
    /// A positive acknowledgement.
    Ack,
    /// A negative acknowledgement.
    Nak,
    /// A congestion notification.
    Cnp,
    /// A message of the connection manager.
    Management,
}

impl TxReason {
    /// Returns the name in captures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Retransmission => "retransmission",
            Self::ReadResponse => "read response",
            Self::AtomicResponse => "atomic response",
            Self::Replay => "replay",
            Self::Ack => "ack",
            Self::Nak => "nak",
            Self::Cnp => "cnp",
            Self::Management => "management",
        }
    }
}

/// Origin of a packet, for captures and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketNote {
    /// The QP that sends it.
    pub qpn: Qpn,
    /// The work request of the packet; `None` for a response, a CNP or a management datagram.
    pub wr_id: Option<u64>,
    /// Reason for sending the packet.
    pub reason: TxReason,
}

impl PacketNote {
    /// Returns the origin of a packet of `qpn` that belongs to no work request.
    pub const fn without_wr(qpn: Qpn, reason: TxReason) -> Self {
        Self { qpn, wr_id: None, reason }
    }
}

/// A batch of packets, in the order of transmission.
pub trait TxBatch {
    /// Returns room for one packet to the queue pair `to` at `av`: `len` bytes from the BTH to the
    /// pad. The batch appends the ICRC when it is closed. `None` if the batch is full: send it and
    /// call again.
    fn slot(&mut self, av: &Av, to: Qpn, len: usize, note: &PacketNote) -> Option<TxRoom<'_>>;

    /// Returns room for a raw packet QP's frame of `len` bytes, which is sent unchanged. `None` if
    /// the batch is full or supports packets only.
    fn frame(&mut self, len: usize, note: &PacketNote) -> Option<&mut [u8]> {
        let (_, _) = (len, note);
        None
    }

    /// Returns true if packets may share the header of the last slot, so that [`TxBatch::extend`]
    /// is useful.
    fn joins(&self) -> bool {
        false
    }

    /// Returns room after the last slot's payload for one to `count` further payloads of `len`
    /// bytes each. Their packets follow in PSN order, differ from the one in the slot only in the
    /// PSN, and request no acknowledgement; the peer handles them with
    /// [`crate::Qp::handle_joined`]. `None` if the batch does not join packets or has no room.
    fn extend(&mut self, len: usize, count: u32) -> Option<TxRoom<'_>> {
        let _ = (len, count);
        None
    }

    /// Returns true if `count` more packets of `len` bytes each would leave in the same send as the
    /// last one, at little extra cost.
    fn fits_same_send(&self, len: usize, count: usize) -> bool {
        let _ = (len, count);
        false
    }

    /// Removes the last slot, or its extension: the payload could not be read.
    fn retract(&mut self);
}

/// Result of [`crate::Qp::poll_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// No packet is left to send now.
    Drained,
    /// The batch is full: send it and call again.
    BatchFull,
}

/// Received payload, or a part of it.
#[derive(Clone, Copy, Debug)]
pub enum RxPayload<'a> {
    /// Bytes that do not change while the packet is handled.
    Bytes(&'a [u8]),
    /// Bytes that another process may change at any time. They are copied exactly once, to their
    /// destination, by the host that passed them in.
    Shared {
        /// Position, in the host's own terms.
        at: usize,
        /// Length in bytes.
        len: usize,
    },
}

impl<'a> RxPayload<'a> {
    /// Returns the length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared { len, .. } => *len,
        }
    }

    /// Returns true if there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all but the first `count` bytes.
    #[inline]
    #[must_use]
    pub fn skip(self, count: usize) -> Self {
        let count = count.min(self.len());
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.get(count..).unwrap_or_default()),
            Self::Shared { at, len } => Self::Shared { at: at + count, len: len - count },
        }
    }

    /// Returns the bytes if they cannot change.
    #[inline]
    pub const fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Shared { .. } => None,
        }
    }
}

impl<'a> From<&'a [u8]> for RxPayload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

/// Room for a packet to send, or for a part of it.
#[derive(Debug)]
pub enum TxRoom<'a> {
    /// Exclusive memory.
    Own(&'a mut [u8]),
    /// Memory that another process may read and change at any time: written, never read back.
    Shared(&'a [AtomicU8]),
}

impl<'a> TxRoom<'a> {
    /// Returns the size in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Own(room) => room.len(),
            Self::Shared(room) => room.len(),
        }
    }

    /// Returns true if there is no room.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first `count` bytes; `None` if there are fewer.
    #[inline]
    pub fn first(self, count: usize) -> Option<Self> {
        match self {
            Self::Own(room) => room.get_mut(..count).map(Self::Own),
            Self::Shared(room) => room.get(..count).map(Self::Shared),
        }
    }

    /// Writes `bytes`; `None` if the size differs.
    #[inline]
    pub fn put(self, bytes: &[u8]) -> Option<()> {
        if self.len() != bytes.len() {
            return None;
        }
        match self {
            Self::Own(room) => room.copy_from_slice(bytes),
            Self::Shared(room) => room.iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed)),
        }
        Some(())
    }

    /// Writes headers and pad of a packet of this `form` and returns the room for its payload;
    /// `None` if the size differs.
    // Inlined: for a known kind most of it is constant.
    #[inline(always)]
    pub fn put_header(self, header: &Header, form: &Form) -> Option<Self> {
        match self {
            Self::Own(room) => header.emit_as(form, room).map(Self::Own),
            Self::Shared(room) => header.emit_shared_as(form, room).map(Self::Shared),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{AtomicEth, Bth, Deth, Kind, Psn, Qkey, SendTail, XrcEth};

    #[test]
    fn atomic_op_swaps_on_equality_and_adds_with_wrap() {
        let swap = AtomicOp::CompareSwap { compare: 7, swap: 9 };
        assert_eq!([7, 9, 8].map(|old| swap.applied(old)), [9, 9, 8]);
        assert_eq!(AtomicOp::FetchAdd { add: 3 }.applied(u64::MAX - 1), 1);
    }

    /// Headers of several lengths with payload lengths.
    fn packets() -> [(Header, usize); 4] {
        let header = |kind| Header { bth: Bth::new(Qpn::new(0x12_3456), Psn::new(0x65_4321)), kind };
        let atomic = AtomicEth { va: u64::MAX, rkey: RKey(7), swap_or_add: 1, compare: 2 };
        let deth = Deth { qkey: Qkey(9), src_qpn: Qpn::new(3) };
        [
            (header(Kind::RcRequest(Request::SendMiddle)), 1024),
            (header(Kind::RcRequest(Request::SendOnly(SendTail::Plain))), 301),
            (header(Kind::Ud { deth, imm: None }), 0),
            (header(Kind::XrcRequest(XrcEth(5), Request::CompareSwap(atomic))), 0),
        ]
    }

    fn shared(len: usize) -> Vec<AtomicU8> {
        (0..len).map(|_| AtomicU8::new(0xa5)).collect()
    }

    fn bytes(room: &[AtomicU8]) -> Vec<u8> {
        room.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn packet_bytes_are_equal_in_both_kinds_of_room() {
        for (header, len) in packets() {
            let form = header.form(len).expect("the payload fits the header");
            let (mut own, room, payload) = (vec![0xa5; form.len()], shared(form.len()), vec![7; len]);
            for room in [TxRoom::Own(&mut own), TxRoom::Shared(&room)] {
                assert_eq!(room.put_header(&header, &form).and_then(|room| room.put(&payload)), Some(()));
            }
            assert_eq!(own, bytes(&room), "{header:?}");
        }
    }

    #[test]
    fn room_of_wrong_size_is_refused() {
        for (header, len) in packets() {
            let form = header.form(len).expect("the payload fits the header");
            for wrong in [0, 1, form.len() - 1, form.len() + 1] {
                let (mut own, room) = (vec![0; wrong], shared(wrong));
                for room in [TxRoom::Own(&mut own), TxRoom::Shared(&room)] {
                    assert!(room.put_header(&header, &form).is_none(), "{header:?} in {wrong}");
                }
            }
        }
        for len in [0, 3, 5] {
            assert_eq!(TxRoom::Shared(&shared(4)).put(&vec![1; len]), None);
            assert_eq!(TxRoom::Own(&mut [0; 4]).put(&vec![1; len]), None);
        }
    }

    #[test]
    fn first_returns_the_requested_bytes() {
        let (mut own, room) = ([1; 5], [1; 5].map(AtomicU8::new));
        for room in [TxRoom::Own(&mut own), TxRoom::Shared(&room)] {
            assert_eq!(room.first(3).and_then(|room| room.put(&[7, 8, 9])), Some(()));
        }
        assert_eq!((own, bytes(&room)), ([7, 8, 9, 1, 1], vec![7, 8, 9, 1, 1]));
        assert!(TxRoom::Own(&mut own).first(6).is_none() && TxRoom::Shared(&room).first(6).is_none());
        assert!(TxRoom::Shared(&[]).is_empty() && !TxRoom::Own(&mut own).is_empty());
    }
}
