//! What a queue pair knows of why something failed, for a person. Changes nothing.

use super::queue_pair::Qp;

impl Qp {
    /// The length of the request that failed last, if none of its packets was acknowledged but some
    /// before it were.
    pub fn unanswered(&self) -> Option<u32> {
        self.requester.unanswered
    }

    /// What was wrong with the last request of the peer that was refused, for a person.
    pub fn last_refusal(&self) -> Option<&'static str> {
        self.responder.last_refusal()
    }
}
