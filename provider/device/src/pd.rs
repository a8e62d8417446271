//! Protection domains: what memory, queues and address handles have in common.
//!
//! Counts the objects of a domain; each of them is in a file of its own, with the method of a
//! domain that creates it.

use crate::context::Context;
use roxe_base::error::Error;
use roxe_base::uses::{ObjectId, Use, UseCount};
use roxe_check::{Event, Made, Tracked, tell};
use roxe_memory::region::PdId;
use std::sync::Arc;

/// A protection domain: objects of different domains cannot reach each other's memory.
#[derive(Debug)]
pub struct Pd {
    context: Arc<Context>,
    id: PdId,
    uses: UseCount,
    /// The use of the domain that this one extends.
    _base: Option<Use>,
    _quota: Use,
    tracked: Tracked,
}

impl Context {
    /// A new protection domain; ENOMEM: there are `max_pd`.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Error> {
        let (uses, _quota) = (UseCount::default(), self.device().quotas().pds.take()?);
        let tracked = tracked(self);
        Ok(Arc::new(Pd { context: Arc::clone(self), id: PdId::next(), uses, _base: None, _quota, tracked }))
    }
}

impl Pd {
    /// Another handle for the same access to memory, which counts its objects by itself; this
    /// domain is in use for as long as the new one lives (`man ibv_alloc_parent_domain`). ENOMEM:
    /// there are `max_pd`.
    pub fn extend(&self) -> Result<Arc<Self>, Error> {
        let _quota = self.context.device().quotas().pds.take()?;
        let (context, uses, tracked) = (Arc::clone(&self.context), UseCount::default(), tracked(&self.context));
        Ok(Arc::new(Self { context, id: self.id, uses, _base: Some(self.hold()), _quota, tracked }))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether the domain may be deallocated: EBUSY while it has regions, windows, queues or
    /// address handles.
    pub fn dealloc(&self) -> Result<(), Error> {
        let unused =
            self.uses.check_unused("protection domain", "memory regions and windows, queues and address handles");
        unused.inspect_err(|error| tell(|| Event::DestroyRefused(self.object(), error)))
    }

    /// By which the memory table knows it.
    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// Names it in what the checker is told.
    pub(crate) fn object(&self) -> ObjectId {
        self.tracked.id()
    }

    /// Registers one object of the domain, until the returned value is dropped.
    pub fn hold(&self) -> Use {
        self.uses.hold()
    }
}

fn tracked(context: &Context) -> Tracked {
    Tracked::new(ObjectId::next(), || Made::Pd { context: context.id() })
}
