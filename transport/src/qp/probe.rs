//! A look inside, for judges and for those who explain failures: where both roles of a queue pair
//! stand, and what it knows of the last failure. Changes nothing.

use super::attr::QpState;
use super::queue_pair::Qp;
use super::refusal::Refusal;
use super::shared::Service;
use roxe_wire::Psn;

/// Where the roles of a queue pair stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The state of the queue pair.
    pub state: QpState,
    /// Oldest PSN that is not acknowledged.
    pub una: Psn,
    /// PSN of the next packet to send; behind `sent` while a retry repeats packets.
    pub next: Psn,
    /// PSN after the newest one ever sent.
    pub sent: Psn,
    /// PSN of the request that is expected next.
    pub expected: Psn,
    /// Bytes held at [`crate::cx::FlowControl`] (RC).
    pub held: u32,
    /// Send work requests that are not complete.
    pub sends: u32,
    /// The send queue waits because the peer had no receive.
    pub not_ready: bool,
}

impl Qp {
    /// Where both roles stand.
    pub fn probe(&self) -> Probe {
        let (sq, expected) = (&self.requester, self.responder.progress.e_psn);
        Probe {
            state: self.state(),
            una: sq.una_psn,
            next: sq.cursor.psn,
            sent: sq.sent_psn,
            expected,
            held: sq.in_flight.held(),
            sends: sq.sq.tail_index().wrapping_sub(sq.sq.head_index()),
            not_ready: sq.retry.is_waiting(),
        }
    }

    /// The length of the request that failed last, if none of its packets was acknowledged but some
    /// before it were.
    pub fn unanswered(&self) -> Option<u32> {
        self.requester.unanswered
    }

    /// What was wrong with the last request of the peer that was refused, for a person. `None` also
    /// for what a method of the host has refused, which knows more about it.
    pub fn last_refusal(&self) -> Option<String> {
        let (refusal, attr) = (self.responder.refused?, self.attr());
        let sentence = refusal.sentence()?;
        Some(match refusal {
            Refusal::NotAllowed => {
                let flags = if attr.access.is_empty() { "0".to_owned() } else { attr.access.names(" and ") };
                format!("{sentence} (they are {flags})")
            }
            Refusal::TooManyReads => format!("{sentence} (it is {})", attr.max_dest_rd_atomic),
            Refusal::Length => format!("{sentence} (path_mtu is {} bytes)", attr.path_mtu.bytes()),
            Refusal::ReceiveTooShort if self.service() == Service::Ud => {
                format!("{sentence}, of which the first 40 bytes are for the GRH")
            }
            _ => sentence.to_owned(),
        })
    }
}
