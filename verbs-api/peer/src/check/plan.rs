//! Which checks there are. Touches nothing.

use std::fmt;

/// Path MTUs, in bytes.
const MTUS: [u32; 3] = [256, 1024, 4096];
/// Bytes of an atomic.
const ATOMIC: u32 = 8;

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Service {
    /// Its name in verbs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// All three.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// The operations that it has.
    #[must_use]
    pub const fn ops(self) -> &'static [Op] {
        use Op::*;
        match self {
            Self::Rc => &[Send, SendImm, Write, WriteImm, Read, FetchAdd, CmpSwap],
            Self::Uc => &[Send, SendImm, Write, WriteImm],
            Self::Ud => &[Send, SendImm],
        }
    }
}

/// An operation.
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
    /// ATOMIC FETCH AND ADD.
    FetchAdd,
    /// ATOMIC COMPARE AND SWAP, one that swaps.
    CmpSwap,
}

impl Op {
    /// The names of its opcode in a request, and in the requester's completion.
    #[must_use]
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

    /// Whether it is one of eight bytes that both sides change.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }

    /// Whether bytes come to the requester.
    pub(super) const fn is_pull(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CmpSwap)
    }

    /// Whether it takes a receive from the responder.
    #[must_use]
    pub const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Whether it carries immediate data.
    #[must_use]
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
}

/// The addresses that packets travel between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The service.
    pub service: Service,
    /// The path MTU.
    pub mtu: u32,
    /// The addresses.
    pub family: Family,
    /// The operation.
    pub op: Op,
    /// Bytes of the message.
    pub size: u32,
    /// Whether the far side is the requester.
    pub is_from_far: bool,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.family == Family::V4 { "ipv4" } else { "ipv6" };
        let way = if self.is_from_far { "far->near" } else { "near->far" };
        let (service, op) = (self.service.name(), self.op.opcodes().0);
        write!(f, "{service} {op} size={} mtu={} {family} {way}", self.size, self.mtu)
    }
}

/// The services, path MTUs and addresses; a pair of queue pairs each.
pub fn pairs() -> impl Iterator<Item = (Service, u32, Family)> {
    Service::ALL.into_iter().flat_map(|service| {
        MTUS.into_iter().flat_map(move |mtu| [Family::V4, Family::V6].map(|family| (service, mtu, family)))
    })
}

/// The checks of a pair: sizes about its MTU, and, where messages are cut into packets, long ones.
pub fn checks((service, mtu, family): (Service, u32, Family)) -> impl Iterator<Item = Check> {
    const LONG: [u32; 2] = [64 << 10, 1 << 20];
    let sizes = [0, 1, mtu - 1, mtu].into_iter().chain([mtu + 1, LONG[0], LONG[1]]);
    service.ops().iter().flat_map(move |&op| {
        let fits = move |size: &u32| match (op.is_atomic(), service) {
            (true, _) => false,
            (false, Service::Ud) => *size <= mtu,
            _ => true,
        };
        let atomic = op.is_atomic().then_some(ATOMIC);
        sizes.clone().filter(fits).chain(atomic).flat_map(move |size| {
            [false, true].map(|is_from_far| Check { service, mtu, family, op, size, is_from_far })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted by hand, for one direction and family: RC 5 operations x 7 sizes x 3 MTUs + 2 x 3,
    /// UC 4 x 7 x 3, UD 2 x 4 x 3.
    #[test]
    fn every_check_is_there_once() {
        let names: std::collections::BTreeSet<_> = pairs().flat_map(checks).map(|check| check.to_string()).collect();
        assert_eq!(names.len(), 4 * (105 + 6 + 84 + 24));
        assert_eq!(pairs().flat_map(checks).count(), names.len());
    }
}
