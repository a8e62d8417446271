//! What the demo does, as data that both processes agree on: the cases, their steps, and where
//! bytes lie.
//!
//! Touches no device. The text forms travel over the pipe between client and server.

use roxe::Service;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Messages that are checked one by one before a case is timed; each has a length of its own.
pub(super) const CHECKED: usize = 8;
/// The largest message of any case.
pub(super) const MAX_SIZE: usize = 1 << 20;
/// The most messages under way, and so the most slots in use.
pub(super) const MAX_WINDOW: usize = 16;
/// Room in front of the data of a slot: a datagram comes with 40 bytes of network header.
pub(super) const GRH: usize = 40;
/// Bytes of a memory region that holds every slot of every case.
pub(super) const REGION: usize = MAX_WINDOW * stride(MAX_SIZE);

/// What is done with one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Op {
    const ALL: [(Self, &str); 7] = [
        (Self::Send, "send"),
        (Self::SendImm, "send-imm"),
        (Self::Write, "write"),
        (Self::WriteImm, "write-imm"),
        (Self::Read, "read"),
        (Self::CompareSwap, "compare-swap"),
        (Self::FetchAdd, "fetch-add"),
    ];

    /// Whether each message uses up a receive request of the peer and reports there.
    pub(super) const fn is_received(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Whether the message carries a number to the peer's completion.
    pub(super) const fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// Whether data comes back instead of going out; the peer's program has no part in it.
    pub(super) const fn is_fetch(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(op, _)| op == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) service: Service,
    pub(super) op: Op,
    /// Bytes of a message.
    pub(super) size: usize,
}

impl Case {
    /// Everything the three services can do, at sizes below, at and far above one packet. `mtu`
    /// limits a datagram.
    pub(super) fn all(mtu: usize) -> Vec<Self> {
        let of = |service, ops: &[Op], sizes: &[usize]| -> Vec<Self> {
            ops.iter().flat_map(|op| sizes.iter().map(|size| Self { service, op: *op, size: *size })).collect()
        };
        let outgoing = [Op::Send, Op::SendImm, Op::Write, Op::WriteImm];
        [
            of(Service::Rc, &outgoing, &[64, 4096, 65536, MAX_SIZE]),
            of(Service::Rc, &[Op::Read], &[64, 4096, 65536, MAX_SIZE]),
            of(Service::Rc, &[Op::CompareSwap, Op::FetchAdd], &[8]),
            of(Service::Uc, &outgoing, &[64, 4096, 65536]),
            of(Service::Ud, &outgoing[..2], &[64, mtu]),
        ]
        .concat()
    }

    /// Messages under way when speed is measured. Nothing slows an unreliable sender down, so it
    /// must not send more than the socket of the peer surely holds.
    pub(super) fn window(&self) -> usize {
        let bytes = if self.service == Service::Rc { 4 << 20 } else { 128 << 10 };
        (bytes / self.size.max(1)).clamp(1, MAX_WINDOW)
    }

    /// Messages that the receiver gives credit for at once.
    pub(super) fn credit(&self) -> usize {
        (self.window() / 2).max(1)
    }

    /// Where the peer must answer before the sender may go on: everywhere but where RC's own
    /// completion says that the message arrived.
    pub(super) fn needs_credit(&self) -> bool {
        self.op.is_received() || (self.service != Service::Rc && !self.op.is_fetch())
    }

    /// Bytes of checked message `index`: the full size, odd lengths below it, and at last an empty
    /// message.
    pub(super) fn length(&self, index: usize) -> usize {
        match index {
            _ if self.op.is_atomic() => 8,
            i if i + 1 == CHECKED => 0,
            i => self.size.saturating_sub(7 * i),
        }
    }

    /// The whole of slot `index`.
    pub(super) fn slot(&self, index: usize) -> Range<usize> {
        index * stride(self.size)..(index + 1) * stride(self.size)
    }

    /// The data inside slot `index`. Checked messages start at odd addresses, atomics never.
    pub(super) fn data(&self, index: usize, length: usize) -> Range<usize> {
        let start = self.slot(index).start + GRH + if self.op.is_atomic() { 0 } else { index };
        start..start + length
    }
}

/// Bytes from one slot to the next: the data, the header in front, and room to see that nothing
/// else was written.
const fn stride(size: usize) -> usize {
    (size + GRH + MAX_WINDOW).next_multiple_of(64) + 64
}

/// What both sides do next with a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// One message, looked at from all sides.
    Check { index: usize },
    /// There and back, so many times, for the latency.
    Echo { rounds: usize },
    /// So many messages as fast as they go, for the bandwidth.
    Stream { count: usize },
}

/// A step of a case, with the seed of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) case: Case,
    pub(super) step: Step,
    pub(super) seed: u64,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, number) = match self.step {
            Step::Check { index } => ("check", index),
            Step::Echo { rounds } => ("echo", rounds),
            Step::Stream { count } => ("stream", count),
        };
        let Case { service, op, size } = self.case;
        write!(f, "{} {op} {size} {step} {number} {}", service_name(service), self.seed)
    }
}

impl FromStr for Task {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let [service, op, size, step, number, seed] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
            let service = parse_service(service)?;
            let op = Op::ALL.iter().find(|(_, name)| *name == op)?.0;
            let number = number.parse().ok()?;
            let step = match step {
                "check" => Step::Check { index: number },
                "echo" => Step::Echo { rounds: number },
                "stream" => Step::Stream { count: number },
                _ => return None,
            };
            Some(Self { case: Case { service, op, size: size.parse().ok()? }, step, seed: seed.parse().ok()? })
        };
        parsed().ok_or_else(|| format!("not a task: {text:?}"))
    }
}

const SERVICES: [(Service, &str); 3] = [(Service::Rc, "RC"), (Service::Uc, "UC"), (Service::Ud, "UD")];

pub(super) fn service_name(service: Service) -> &'static str {
    SERVICES.iter().find(|(known, _)| *known == service).map_or("", |(_, name)| name)
}

pub(super) fn parse_service(name: &str) -> Option<Service> {
    SERVICES.iter().find(|(_, known)| *known == name).map(|(service, _)| *service)
}

/// `len` bytes that depend on `seed` and on their position (splitmix64), so that a byte of another
/// message or from another place is noticed.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fit_and_do_not_touch() {
        for case in Case::all(4096) {
            for index in 0..CHECKED.max(case.window()) {
                let (slot, data) = (case.slot(index), case.data(index, case.size));
                assert!(slot.start + GRH <= data.start && data.end < slot.end, "{case:?} {index}");
                assert!(slot.end <= REGION, "{case:?} {index}");
                assert!(!case.op.is_atomic() || data.start % 8 == 0, "{case:?} {index}");
            }
        }
    }

    #[test]
    fn tasks_travel_as_text() {
        for case in Case::all(1024) {
            for step in [Step::Check { index: 3 }, Step::Echo { rounds: 10 }, Step::Stream { count: 99 }] {
                let task = Task { case, step, seed: u64::MAX };
                assert_eq!(task.to_string().parse(), Ok(task));
            }
        }
        assert!("RC send 64 check 1".parse::<Task>().is_err());
        assert!("XX send 64 check 1 1".parse::<Task>().is_err());
    }

    #[test]
    fn patterns_differ_by_seed_and_are_prefixes() {
        assert_ne!(pattern(1, 64), pattern(2, 64));
        assert_eq!(pattern(1, 64)[..13], pattern(1, 13));
        assert!(pattern(1, 0).is_empty());
    }
}
