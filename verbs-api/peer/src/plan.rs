//! The operations that `roxe demo`, `roxe check-peer` and the tests run, and their bytes.
//!
//! A [`Cell`] is one kind of message: service, operation, size, path MTU. Both ends derive the
//! bytes, the operands of atomics and the opcodes of completions from the cell and a seed.

use std::fmt;

/// Path MTUs in bytes.
pub const MTUS: [u32; 3] = [256, 1024, 4096];
/// Bytes of an atomic.
pub const ATOMIC_LEN: u32 = 8;
/// The byte that fills receive buffers. [`message`] never returns it.
pub const UNTOUCHED: u8 = 0xa5;

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Service {
    /// Every service.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// Returns the name of the service in verbs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// Returns the service of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.name() == name)
    }

    /// Returns the operations of this service.
    pub const fn ops(self) -> &'static [Op] {
        use Op::*;
        match self {
            Self::Rc => &Op::ALL,
            Self::Uc => &[Send, SendImm, Write, WriteImm],
            Self::Ud => &[Send, SendImm],
        }
    }
}

/// An operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// ATOMIC COMPARE AND SWAP.
    CmpSwap,
    /// ATOMIC FETCH AND ADD.
    FetchAdd,
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 7] =
        [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read, Self::CmpSwap, Self::FetchAdd];

    /// Returns a short name, as in the table of `roxe demo`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send-imm",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::CmpSwap => "compare-swap",
            Self::FetchAdd => "fetch-add",
        }
    }

    /// Returns the operation of this short name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Returns the names of the opcode in a work request and in the requester's completion.
    pub const fn opcodes(self) -> (&'static str, &'static str) {
        match self {
            Self::Send => ("SEND", "SEND"),
            Self::SendImm => ("SEND_WITH_IMM", "SEND"),
            Self::Write => ("RDMA_WRITE", "RDMA_WRITE"),
            Self::WriteImm => ("RDMA_WRITE_WITH_IMM", "RDMA_WRITE"),
            Self::Read => ("RDMA_READ", "RDMA_READ"),
            Self::FetchAdd => ("ATOMIC_FETCH_AND_ADD", "FETCH_ADD"),
            Self::CmpSwap => ("ATOMIC_CMP_AND_SWP", "COMP_SWAP"),
        }
    }

    /// Returns true if the operation changes eight bytes of the responder and returns the old ones.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }

    /// Returns true if the responder sends data to the requester.
    pub const fn is_fetch(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CmpSwap)
    }

    /// Returns true if the operation is a WRITE, with or without immediate data.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm)
    }

    /// Returns true if a message consumes a receive request of the responder.
    pub const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Returns true if a message carries immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Transport service.
    pub service: Service,
    /// Operation of each message.
    pub op: Op,
    /// Bytes of a message.
    pub size: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
}

impl Cell {
    /// Returns the number of packets of a message.
    pub const fn packets(&self) -> u32 {
        if self.size == 0 { 1 } else { self.size.div_ceil(self.mtu) }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, op, size, mtu } = self;
        write!(f, "{} {op} size={size} mtu={mtu}", service.name())
    }
}

/// Returns the message sizes for one path MTU: sizes around that of a packet, and two large ones.
pub const fn sizes(mtu: u32) -> [u32; 7] {
    [0, 1, mtu - 1, mtu, mtu + 1, 64 << 10, 1 << 20]
}

/// Returns the cells of one service and path MTU. They include datagrams longer than the port's
/// MTU, which must not arrive.
pub fn cells(service: Service, mtu: u32) -> impl Iterator<Item = Cell> {
    service.ops().iter().flat_map(move |&op| {
        let sizes = if op.is_atomic() { vec![ATOMIC_LEN] } else { sizes(mtu).to_vec() };
        sizes.into_iter().map(move |size| Cell { service, op, size, mtu })
    })
}

/// Returns the finalizer of splitmix64: every bit of the result depends on every bit of `value`.
pub const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Returns `len` bytes that depend on `seed` and on their position, so that a check detects bytes
/// of another message or another position. No byte is [`UNTOUCHED`], so that a check detects
/// missing bytes too.
pub fn message(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64)
        .flat_map(|at| mix(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ mix(at)).to_le_bytes());
    words.take(len).map(|byte| if byte == UNTOUCHED { !UNTOUCHED } else { byte }).collect()
}

/// The operands of an atomic, and the resulting word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The number to compare with, or to add.
    pub compare_add: u64,
    /// The number to swap in.
    pub swap: u64,
    /// The word after the atomic.
    pub result: u64,
}

/// Returns atomic number `index` on a word with the value `word`. Every second COMPARE AND SWAP
/// compares with another value, so that the word must stay unchanged.
pub const fn atomic(op: Op, index: u32, word: u64) -> Atomic {
    let other = mix(word);
    match op {
        Op::CmpSwap if index.is_multiple_of(2) => Atomic { compare_add: word, swap: other, result: other },
        Op::CmpSwap => Atomic { compare_add: !word, swap: other, result: word },
        _ => Atomic { compare_add: other, swap: 0, result: word.wrapping_add(other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_and_operations_roundtrip() {
        assert!(Op::ALL.into_iter().all(|op| Op::named(op.name()) == Some(op)));
        assert!(Service::ALL.into_iter().all(|service| Service::named(service.name()) == Some(service)));
        assert_eq!((Op::named("teleport"), Service::named("RD")), (None, None));
    }

    #[test]
    fn messages_differ_by_seed_and_lack_the_untouched_byte() {
        assert_ne!(message(1, 64), message(2, 64));
        assert_eq!(message(1, 64)[..13], message(1, 13));
        assert!(message(1, 0).is_empty() && !message(1, 1 << 16).contains(&UNTOUCHED));
    }

    #[test]
    fn every_second_compare_and_swap_changes_nothing() {
        assert_eq!([0, 1, 2, 3].map(|index| atomic(Op::CmpSwap, index, 7).result == 7), [false, true, false, true]);
        assert_ne!(atomic(Op::FetchAdd, 1, 7).result, 7);
    }
}
