//! Shared receive queues: one stock of receive requests for many queue pairs.
//!
//! Touches the provider's SRQ.

use crate::{CompletionQueue, Error, ObjectId, ProtectionDomain, Sge, SrqNumber};
use roxe_provider as provider;
use roxe_transport::wr::RecvRequest;
use std::sync::Arc;

/// A queue of receive requests that several queue pairs take from. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    srq: Arc<provider::Srq>,
    id: ObjectId,
}

impl SharedReceiveQueue {
    pub(crate) fn create(pd: &ProtectionDomain, max_wr: u32, max_sge: u32) -> Result<Self, Error> {
        let id = ObjectId::next();
        let srq = pd.provider().create_srq(provider::SrqInit { max_wr, max_sge, limit: 0, user: id.0 })?;
        Ok(Self { srq, id })
    }

    pub(crate) fn create_in(
        xrcd: &Arc<provider::Xrcd>,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Self, Error> {
        let id = ObjectId::next();
        let init = provider::SrqInit { max_wr, max_sge, limit: 0, user: id.0 };
        Ok(Self { srq: xrcd.create_srq(pd.provider(), cq.provider(), init)?, id })
    }

    /// By which number messages name it, if it belongs to an [`XrcDomain`](crate::XrcDomain).
    pub fn number(&self) -> Option<SrqNumber> {
        self.srq.number().map(SrqNumber)
    }

    /// Adds a receive request: a message lands in `sges`, in order, and the completion carries `wr_id`.
    ///
    /// # Errors
    /// [`Error::PostShared`] when the queue is full or the list too long.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        self.srq.post_recv(&RecvRequest { wr_id, sges }).map_err(|source| Error::PostShared { source })
    }

    /// Who this is, for asynchronous events.
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Raises one asynchronous event when fewer than `limit` requests are left; 0 takes the wish back.
    ///
    /// # Errors
    /// [`Error::Provider`] if `limit` is more than the queue holds.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.srq.modify(None, Some(limit))?)
    }

    pub(crate) const fn provider(&self) -> &Arc<provider::Srq> {
        &self.srq
    }
}
