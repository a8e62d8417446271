//! Payload on its way in and packets on their way out, where they lie in memory of our own or in
//! memory that another process reads and writes at the same time.
//!
//! Touches `wire`.

use core::sync::atomic::{AtomicU8, Ordering};
use roxe_wire::{Form, Header};

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
