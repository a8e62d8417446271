//! Shared receive queues, and their numbers in XRC domains.

use crate::{ArgumentError, Error, ObjectId, ProtectionDomain, RefusedRequest, Sge};
use roxe_provider as provider;
use roxe_transport::wr::RecvRequest;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

impl ProtectionDomain {
    /// Creates a shared receive queue for `max_wr` requests of at most `max_sge` list elements.
    ///
    /// # Errors
    /// [`Error::Resources`] beyond the device's number of queues, [`Error::Argument`] if `max_wr`
    /// or `max_sge` exceeds its limit, or `max_wr` is zero.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue, Error> {
        let id = ObjectId::next();
        let srq = self.pd.create_srq(provider::SrqInit { max_wr, max_sge, limit: 0, user_context: id.0 })?;
        Ok(SharedReceiveQueue { srq, id })
    }
}

/// A queue of receive requests for several queue pairs. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(crate) srq: Arc<provider::Srq>,
    pub(crate) id: ObjectId,
}

impl SharedReceiveQueue {
    /// Returns the number of the queue, which messages carry; `None` unless it belongs to an
    /// [`XrcDomain`](crate::XrcDomain).
    pub fn number(&self) -> Option<SrqNumber> {
        self.srq.number().map(SrqNumber)
    }

    /// Posts a receive request for one message. The device writes the message to `sges`, in order,
    /// and the completion carries `wr_id`.
    ///
    /// # Errors
    /// [`Error::Resources`] if the queue is full, [`Error::Argument`] if the list is too long.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        let refused = |source| RefusedRequest { qp: None, operation: "a receive request", index: 0, source };
        Ok(self.srq.post_recv(&RecvRequest { wr_id, sges }).map_err(refused)?)
    }

    /// Returns the identity of the queue in asynchronous events.
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Requests one asynchronous event when fewer than `limit` requests are queued; 0 cancels it.
    ///
    /// # Errors
    /// [`Error::Argument`] if `limit` exceeds the capacity of the queue.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.srq.modify(None, Some(limit))?)
    }
}

/// Number of a shared receive queue in its XRC domain, 24 bits. Its text is `0x` and hexadecimal
/// digits.
///
/// ```
/// # use roxe::SrqNumber;
/// assert_eq!(SrqNumber(18).to_string().parse::<SrqNumber>()?, SrqNumber(18));
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqNumber(pub u32);

impl fmt::Display for SrqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl FromStr for SrqNumber {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = crate::endpoint::number_24(crate::endpoint::strip_padding(text)).map(Self);
        let malformed = || ArgumentError::Parse { text: text.into(), expected: "number of an SRQ, 24 bits" };
        Ok(number.ok_or_else(malformed)?)
    }
}
