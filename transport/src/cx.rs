//! What the state machines need from their surroundings, as traits: memory, completions, shared
//! receives, flow control, packets to send; and payload on its way in and packets on their way out,
//! where they lie in memory of our own or in memory that another process reads and writes at the
//! same time.
//!
//! The provider implements these traits over real memory and sockets, tests over a `Vec<u8>`,
//! fuzzers over a tiny array. A [`Host`] is handed to every call and never stored; it speaks for
//! one QP (its protection domain, its CQs, its SRQ).

use crate::time::Instant;
use crate::wr::{Access, Av, Bind, Cqe, Sge};
use core::sync::atomic::{AtomicU8, Ordering};
use roxe_wire::{Form, Header, Qpn, RKey, Request};

/// Why an access to memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemError {
    /// No such key, or its tag is stale, or it was deregistered or invalidated.
    BadKey,
    /// The key belongs to another protection domain (or, for a window, to another QP).
    WrongDomain,
    /// The region does not grant this right.
    Access,
    /// Outside the region, or the address overflows, or the list is shorter than the data.
    Range,
    /// The memory behind the key is no longer mapped.
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
        /// Addend.
        add: u64,
    },
}

impl AtomicOp {
    /// What a word holds afterwards that held `old`.
    pub const fn applied(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if compare == old => swap,
            Self::CompareSwap { .. } => old,
            Self::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}

/// Registered memory as one QP may use it.
pub trait Memory {
    /// Copies `out.len()` bytes, starting `offset` bytes into the list `sges`, out of local memory.
    fn gather(&mut self, sges: &[Sge], offset: u32, out: TxRoom<'_>) -> Result<(), MemError>;

    /// Copies `data` into local memory, starting `offset` bytes into the list `sges` (needs
    /// `LOCAL_WRITE`). Bytes are placed in increasing address order, the last ones stored last.
    /// `side` tells where the list was posted: receives may come from a shared queue, which has a
    /// protection domain of its own.
    fn scatter(&mut self, side: Side, sges: &[Sge], offset: u32, data: RxPayload<'_>) -> Result<(), MemError>;

    /// Whether a peer may do `access` on `len` bytes at `va` under `rkey`.
    fn check_remote(&mut self, rkey: RKey, va: u64, len: u64, access: Access) -> Result<(), MemError>;

    /// A packet with `len` bytes of payload is refused because of that length. Nothing comes of the
    /// call; it is for those who explain.
    fn wrong_length(&mut self, request: &Request, len: usize) {
        let _ = (request, len);
    }

    /// A request is refused because too many of its kind are outstanding; as
    /// [`Memory::wrong_length`].
    fn too_many(&mut self) {}

    /// A peer's operation needs this right, and the queue pair does not grant it. Nothing comes of
    /// the call; it is for those who explain.
    fn denied(&mut self, right: Access) {
        let _ = right;
    }

    /// Copies out of memory for a peer (checks `REMOTE_READ` and range again: the key may have gone
    /// meanwhile).
    fn read_remote(&mut self, rkey: RKey, va: u64, out: TxRoom<'_>) -> Result<(), MemError>;

    /// Copies into memory for a peer (checks `REMOTE_WRITE` and range); increasing address order,
    /// last bytes last.
    fn write_remote(&mut self, rkey: RKey, va: u64, data: RxPayload<'_>) -> Result<(), MemError>;

    /// One atomic for a peer (checks `REMOTE_ATOMIC` and range; `va` is aligned). Returns the old
    /// value.
    fn atomic_remote(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemError>;

    /// One store of 8 bytes for a peer, which others see whole or not at all (checks `REMOTE_WRITE`
    /// and range; `va` is aligned).
    fn store_remote(&mut self, rkey: RKey, va: u64, data: [u8; 8]) -> Result<(), MemError>;

    /// Makes what was written for this peer visible to every observer of the memory before it
    /// returns. `range` is address and length; `None` is the whole region. The key must grant
    /// `access`, also on no bytes.
    fn flush_remote(&mut self, rkey: RKey, range: Option<(u64, u64)>, access: Access) -> Result<(), MemError>;

    /// Invalidates `rkey` on behalf of a peer's SEND with Invalidate.
    fn invalidate_remote(&mut self, rkey: RKey) -> Result<(), MemError>;

    /// Invalidates `rkey` on behalf of this QP.
    fn invalidate_local(&mut self, rkey: RKey) -> Result<(), MemError>;

    /// Binds a memory window; on an error it stays as it was.
    fn bind(&mut self, bind: &Bind) -> Result<(), MemError>;
}

/// Which of the QP's two work queues, and which of its two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Send work requests and their completions.
    Send,
    /// Receive work requests and their completions.
    Recv,
}

/// The completion queue could not take an entry; it is unusable from now on and the QP must go to
/// the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// Where completions go.
pub trait Completions {
    /// Appends `cqe` to the queue of `side`.
    fn complete(&mut self, side: Side, cqe: Cqe) -> Result<(), Overrun>;
}

/// Where a message of a tag-matching queue goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagFit {
    /// Into a posted tag, which is consumed.
    Matched,
    /// Into an ordinary receive, because no posted tag wants it; it counts as unexpected.
    Unexpected {
        /// So many are not confirmed that the program should synchronise.
        asks_sync: bool,
    },
    /// Into an ordinary receive: it has no tag.
    Untagged,
}

/// The shared receive queue of a QP that has one.
pub trait SharedReceives {
    /// Takes the next work request: returns its `wr_id` and leaves its list in `sges` (which is
    /// cleared first and has the capacity). The taken request belongs to the QP until it completes.
    fn take_shared(&mut self, sges: &mut Vec<Sge>) -> Option<u64>;

    /// Tag matching: takes the receive for a message with `tag`, or without one, as
    /// [`SharedReceives::take_shared`] does, in one step: nobody posts or takes a tag in between. A
    /// host of other queues has none.
    fn take_tagged(&mut self, tag: Option<u64>, sges: &mut Vec<Sge>) -> Option<(u64, TagFit)> {
        let (_, _) = (tag, sges);
        None
    }

    /// Tag matching: a message that counted as unexpected ended before the program could hear of
    /// it.
    fn forget_unexpected(&mut self) {}

    /// XRC: from now on receives, their completions, and the domain in which keys are looked up are
    /// those of the shared queue `srqn` of the QP's XRC domain. False: there is none, and so no
    /// receive, no completion and no memory; a host of QPs without an XRC domain has none.
    fn select_srq(&mut self, srqn: u32) -> bool {
        let _ = srqn;
        false
    }
}

/// How much may be under way towards the receiving socket of the peer.
///
/// A socket drops silently when its buffer is full, so the bytes that all QPs have under way
/// towards one socket are bounded here. When `reserve` says no, the QP stops, and the host calls
/// `poll_transmit` again once there is room.
pub trait FlowControl {
    /// Bytes that a packet of a longer message counts for, with `payload` bytes of payload: about
    /// what it occupies at the receiver, behind others of its message. Fixed for all calls.
    fn charge(payload: u32) -> u32;

    /// Bytes that a packet counts for that is a whole message, and mostly arrives alone.
    fn charge_alone(payload: u32) -> u32;

    /// Asks to send a packet that occupies `bytes` at the receiver `(av.dgid, qpn)`. `own` is what
    /// this QP has reserved and not released; a host that refuses when it is 0 gives the QP its
    /// turn before long, so that none starves. UC and UD never release: there, `own` is what the QP
    /// has reserved in this call of `poll_transmit`.
    fn reserve(&mut self, av: &Av, qpn: Qpn, bytes: u32, own: u32) -> bool;

    /// Asks to send a packet that occupies `bytes` and would travel with the one before it
    /// ([`TxBatch::fits_same_send`]; RC only): a host may go beyond its window by the rest of a
    /// run, because that costs less than to begin another with it. The answer is no where it does
    /// not; nothing comes of that, and [`FlowControl::reserve`] is asked.
    fn reserve_in_run(&mut self, av: &Av, qpn: Qpn, bytes: u32) -> bool {
        let _ = (av, qpn, bytes);
        false
    }

    /// Asks for `bytes` more at once, for packets that are to follow at the same receiver (RC
    /// only). The answer is no where others might want them; nothing comes of that.
    fn reserve_ahead(&mut self, av: &Av, qpn: Qpn, bytes: u32) -> bool;

    /// `bytes` of earlier reservations towards `(av.dgid, qpn)` arrived or were given up (RC only).
    fn release(&mut self, av: &Av, qpn: Qpn, bytes: u32);

    /// After how many reserved bytes towards `(av.dgid, qpn)` an RC QP asks for an acknowledgement:
    /// a part of what may be under way, so that room comes back before it runs out, and no small
    /// one, because acknowledgements cost time.
    fn ack_interval(&mut self, av: &Av, qpn: Qpn) -> u32;
}

/// Everything a QP may reach while it works.
pub trait Host: Memory + Completions + SharedReceives + FlowControl {
    /// The time of this batch.
    fn now(&self) -> Instant;
}

/// Why a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxReason {
    /// A request, or a part of one, for the first time.
    First,
    /// A request again, because it or its answer seems lost.
    Retransmission,
    /// The answer to a READ, or the empty one to an ATOMIC WRITE or a FLUSH.
    ReadResponse,
    /// The answer to an atomic.
    AtomicResponse,
    /// The answer to a READ or atomic again, from where the peer asked.
    Replay,
    /// Requests of the peer are acknowledged.
    Ack,
    /// A request of the peer is refused.
    Nak,
    /// The peer is told that the network is congested.
    Cnp,
    /// A message of the connection manager.
    Management,
}

impl TxReason {
    /// What people read in a capture.
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

/// Where a packet comes from, for those who watch: captures and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketNote {
    /// The QP that sends it.
    pub qpn: Qpn,
    /// The work request it belongs to; `None` for what answers the peer.
    pub wr_id: Option<u64>,
    /// Why it leaves.
    pub reason: TxReason,
}

impl PacketNote {
    /// A note on an answer of `qpn` to its peer.
    pub const fn answer(qpn: Qpn, reason: TxReason) -> Self {
        Self { qpn, wr_id: None, reason }
    }
}

/// The packets of one batch, in the order they must leave.
pub trait TxBatch {
    /// Room for one packet to the queue pair `to` behind `av`: `len` bytes from the first byte of
    /// the BTH to the end of the pad. The batch adds the ICRC behind it when it is closed. `note`
    /// says where the packet comes from. `None`: the batch is full, send it and ask again.
    fn slot(&mut self, av: &Av, to: Qpn, len: usize, note: &PacketNote) -> Option<TxRoom<'_>>;

    /// Room for a frame of `len` bytes of a raw packet QP, to which nothing is added and which may
    /// be looked at again. `None`: the batch is full, or one for packets only.
    fn frame(&mut self, len: usize, note: &PacketNote) -> Option<&mut [u8]> {
        let (_, _) = (len, note);
        None
    }

    /// Whether packets may share the header of the last slot: whether there is any use in asking
    /// for room for them.
    fn joins(&self) -> bool {
        false
    }

    /// Room behind the payload in the last slot for those of up to `count` packets more, of `len`
    /// bytes each: of at least one, and as many as there is room for. They are the next packets,
    /// differ from the one in the slot by their PSNs, and ask for no acknowledgement.
    /// [`crate::Qp::handle_joined`] takes in what comes to be. `None`: there is no such thing here,
    /// or no room; the packet needs a slot of its own.
    fn extend(&mut self, len: usize, count: u32) -> Option<TxRoom<'_>> {
        let _ = (len, count);
        None
    }

    /// Whether `count` packets more, of `len` bytes each, would leave the host together with the
    /// last one, for little more than that costs alone.
    fn fits_same_send(&self, len: usize, count: usize) -> bool {
        let _ = (len, count);
        false
    }

    /// Takes the last slot back, or what it was extended by: the payload could not be read.
    fn retract(&mut self);
}

/// What [`crate::Qp::poll_transmit`] left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// Nothing more to send now.
    Drained,
    /// The batch is full: send it and call again.
    BatchFull,
}

/// Payload that has arrived, or a part of it.
#[derive(Clone, Copy, Debug)]
pub enum RxPayload<'a> {
    /// Bytes that stay as they are while the packet is handled.
    Bytes(&'a [u8]),
    /// Bytes that lie where another process may change them at any time. What they are is known to
    /// nobody before they are copied, once, to where they belong; only the host that handed them in
    /// can do that. `at` is a place that means something to it.
    Shared {
        /// Where they begin.
        at: usize,
        /// How many there are.
        len: usize,
    },
}

impl<'a> RxPayload<'a> {
    /// How many bytes there are.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared { len, .. } => *len,
        }
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All but the first `count` bytes.
    #[inline]
    #[must_use]
    pub fn skip(self, count: usize) -> Self {
        let count = count.min(self.len());
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.get(count..).unwrap_or_default()),
            Self::Shared { at, len } => Self::Shared { at: at + count, len: len - count },
        }
    }

    /// The bytes themselves, if they can be looked at.
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

/// Room for what leaves: for a whole packet, or for a part of it.
#[derive(Debug)]
pub enum TxRoom<'a> {
    /// Memory that is nobody else's.
    Own(&'a mut [u8]),
    /// Memory that another process reads, and may change at any time: bytes are stored there and
    /// never looked at again. What is long, the host copies there from where it is.
    Shared(&'a [AtomicU8]),
}

impl<'a> TxRoom<'a> {
    /// How many bytes there is room for.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Own(room) => room.len(),
            Self::Shared(room) => room.len(),
        }
    }

    /// Whether there is no room.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Room for the first `count` bytes. `None`: there is room for fewer.
    #[inline]
    pub fn first(self, count: usize) -> Option<Self> {
        match self {
            Self::Own(room) => room.get_mut(..count).map(Self::Own),
            Self::Shared(room) => room.get(..count).map(Self::Shared),
        }
    }

    /// Writes `bytes`. `None`: there is room for more, or for fewer.
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

    /// Writes headers and pad of a packet of this `form`, and returns the room for its payload.
    /// `None`: this is not room for one.
    // Each kind of room has a function already that does it; one around both was 30 instructions of
    // each packet.
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

    #[test]
    fn an_atomic_leaves_the_swapped_word_if_it_compares_equal_or_the_sum_that_wraps() {
        let swap = AtomicOp::CompareSwap { compare: 7, swap: 9 };
        assert_eq!([7, 9, 8].map(|old| swap.applied(old)), [9, 9, 8]);
        assert_eq!(AtomicOp::FetchAdd { add: 3 }.applied(u64::MAX - 1), 1);
    }

    use roxe_wire::{AtomicEth, Bth, Deth, Kind, Psn, Qkey, Qpn, RKey, Request, SendTail, XrcEth};

    /// Headers of several lengths, each with a payload that fits.
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

    /// Room whose bytes are not zero.
    fn shared(len: usize) -> Vec<AtomicU8> {
        (0..len).map(|_| AtomicU8::new(0xa5)).collect()
    }

    fn bytes(room: &[AtomicU8]) -> Vec<u8> {
        room.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_packet_is_written_the_same_to_both_kinds_of_room() {
        for (header, len) in packets() {
            let form = header.form(len).expect("a payload that fits");
            let (mut own, room, payload) = (vec![0xa5; form.len()], shared(form.len()), vec![7; len]);
            for room in [TxRoom::Own(&mut own), TxRoom::Shared(&room)] {
                assert_eq!(room.put_header(&header, &form).and_then(|room| room.put(&payload)), Some(()));
            }
            assert_eq!(own, bytes(&room), "{header:?}");
        }
    }

    #[test]
    fn room_of_another_size_is_refused() {
        for (header, len) in packets() {
            let form = header.form(len).expect("a payload that fits");
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
    fn the_first_bytes_are_those_that_were_asked_for() {
        let (mut own, room) = ([1; 5], [1; 5].map(AtomicU8::new));
        for room in [TxRoom::Own(&mut own), TxRoom::Shared(&room)] {
            assert_eq!(room.first(3).and_then(|room| room.put(&[7, 8, 9])), Some(()));
        }
        assert_eq!((own, bytes(&room)), ([7, 8, 9, 1, 1], vec![7, 8, 9, 1, 1]));
        assert!(TxRoom::Own(&mut own).first(6).is_none() && TxRoom::Shared(&room).first(6).is_none());
        assert!(TxRoom::Shared(&[]).is_empty() && !TxRoom::Own(&mut own).is_empty());
    }
}
