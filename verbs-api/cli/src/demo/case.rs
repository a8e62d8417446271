//! The cases of the demo, which both processes derive alike. The operations and their bytes are
//! those of `roxe_peer::plan`; this module has the sizes, the steps and the places of messages in
//! memory.
//!
//! The client sends steps as text over the pipe to the server.

use roxe_peer::plan::{Op, Service};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Number of messages, each of another length, that are checked before a case is measured.
pub(super) const CHECKED: usize = 8;
/// Bytes of the largest message.
pub(super) const MAX_SIZE: usize = 1 << 20;
/// Maximum number of outstanding messages, each of which has its own slot.
pub(super) const MAX_WINDOW: usize = 16;
/// Bytes of the GRH before a received datagram.
pub(super) const GRH_LEN: usize = 40;
/// Bytes of a memory region that holds every slot of every case.
pub(super) const REGION_LEN: usize = MAX_WINDOW * stride(MAX_SIZE);

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) service: Service,
    pub(super) op: Op,
    /// Bytes of a message.
    pub(super) size: usize,
}

impl Case {
    /// Returns every operation of the three services, with sizes below, at and far above one
    /// packet. `mtu` limits a datagram.
    pub(super) fn all(mtu: usize) -> Vec<Self> {
        let ops = Service::ALL.into_iter().flat_map(|service| service.ops().iter().map(move |op| (service, *op)));
        let cases = ops.flat_map(|(service, op)| {
            let sizes = match service {
                _ if op.is_atomic() => vec![8],
                Service::Rc => vec![64, 4096, 65536, MAX_SIZE],
                Service::Uc => vec![64, 4096, 65536],
                Service::Ud => vec![64, mtu],
            };
            sizes.into_iter().map(move |size| Self { service, op, size })
        });
        cases.collect()
    }

    /// Returns the number of outstanding messages while the rate is measured. UC and UD have no
    /// flow control, so their window must fit into the socket buffer of the peer.
    pub(super) fn window(&self) -> usize {
        let bytes = if self.service == Service::Rc { 4 << 20 } else { 128 << 10 };
        (bytes / self.size.max(1)).clamp(1, MAX_WINDOW)
    }

    /// Returns the number of messages that one credit message acknowledges.
    pub(super) fn credit(&self) -> usize {
        (self.window() / 2).max(1)
    }

    /// Returns true if the sender needs credit from the peer. Only RC completions without a receive
    /// tell the sender that the message arrived.
    pub(super) fn needs_credit(&self) -> bool {
        self.op.takes_receive() || (self.service != Service::Rc && !self.op.is_fetch())
    }

    /// Returns the length of checked message `index`: the full size first, then shorter lengths,
    /// and 0 last.
    pub(super) fn length(&self, index: usize) -> usize {
        match index {
            _ if self.op.is_atomic() => 8,
            i if i + 1 == CHECKED => 0,
            i => self.size.saturating_sub(7 * i),
        }
    }

    /// Returns the range of slot `index`.
    pub(super) fn slot(&self, index: usize) -> Range<usize> {
        index * stride(self.size)..(index + 1) * stride(self.size)
    }

    /// Returns the range of the data in slot `index`. Only atomics are always aligned.
    pub(super) fn data(&self, index: usize, length: usize) -> Range<usize> {
        let start = self.slot(index).start + GRH_LEN + if self.op.is_atomic() { 0 } else { index };
        start..start + length
    }
}

/// Returns the bytes from one slot to the next: GRH, data, and a guard that must stay unchanged.
const fn stride(size: usize) -> usize {
    (size + GRH_LEN + MAX_WINDOW).next_multiple_of(64) + 64
}

/// The next step of both sides in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// One message; its completions and the memory around it are checked.
    Check { index: usize },
    /// Round trips, which measure the latency.
    Echo { rounds: usize },
    /// A window of outstanding messages, which measures the bandwidth.
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
        write!(f, "{} {op} {size} {step} {number} {}", service.name(), self.seed)
    }
}

impl FromStr for Task {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let [service, op, size, step, number, seed] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
            let service = Service::named(service)?;
            let op = Op::named(op)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fit_and_do_not_overlap() {
        for case in Case::all(4096) {
            for index in 0..CHECKED.max(case.window()) {
                let (slot, data) = (case.slot(index), case.data(index, case.size));
                assert!(slot.start + GRH_LEN <= data.start && data.end < slot.end, "{case:?} {index}");
                assert!(slot.end <= REGION_LEN, "{case:?} {index}");
                assert!(!case.op.is_atomic() || data.start % 8 == 0, "{case:?} {index}");
            }
        }
    }

    #[test]
    fn task_text_roundtrips() {
        for case in Case::all(1024) {
            for step in [Step::Check { index: 3 }, Step::Echo { rounds: 10 }, Step::Stream { count: 99 }] {
                let task = Task { case, step, seed: u64::MAX };
                assert_eq!(task.to_string().parse(), Ok(task));
            }
        }
        assert!("RC send 64 check 1".parse::<Task>().is_err());
        assert!("XX send 64 check 1 1".parse::<Task>().is_err());
    }
}
