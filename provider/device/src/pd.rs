//! Protection domains.

use crate::context::Context;
use crate::inventory::{Listing, ObjectProperties};
use roxe_base::error::Error;
use roxe_base::uses::{ObjectId, Use, UseCount};
use roxe_check::{Event, Object, Tracked, emit};
use roxe_memory::region::PdId;
use std::sync::Arc;

/// A protection domain: objects of different domains cannot reach each other's memory.
#[derive(Debug)]
pub struct Pd {
    context: Arc<Context>,
    id: PdId,
    uses: UseCount,
    /// Use of the domain that this one extends.
    _base: Option<Use>,
    _quota: Use,
    /// Inventory entry; `None` in a domain that extends another.
    _listing: Option<Listing>,
    tracked: Tracked,
}

impl Context {
    /// Creates a protection domain. Fails with ENOMEM if the device has `max_pd` already.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Error> {
        let (uses, _quota) = (UseCount::default(), self.device().quotas().pds.take()?);
        let (id, tracked) = (PdId::next(), tracked(self));
        let _listing = Some(self.inventory().enter_as(id.number(), ObjectProperties::Pd { users: uses.clone() }));
        Ok(Arc::new(Pd { context: Arc::clone(self), id, uses, _base: None, _quota, _listing, tracked }))
    }
}

impl Pd {
    /// Creates a parent domain (`man ibv_alloc_parent_domain`): a handle for the same access to
    /// memory that counts its own objects. This domain is in use as long as the new one lives.
    /// Fails with ENOMEM beyond `max_pd` domains.
    pub fn extend(&self) -> Result<Arc<Self>, Error> {
        let _quota = self.context.device().quotas().pds.take()?;
        let (context, uses, tracked) = (Arc::clone(&self.context), UseCount::default(), tracked(&self.context));
        let _base = Some(self.hold());
        Ok(Arc::new(Self { context, id: self.id, uses, _base, _quota, _listing: None, tracked }))
    }

    /// Returns the context of the domain.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Checks that the domain may be deallocated. Fails with EBUSY while it has regions, windows,
    /// queues or address handles.
    pub fn dealloc(&self) -> Result<(), Error> {
        let unused =
            self.uses.check_unused("protection domain", "memory regions and windows, queues and address handles");
        unused.inspect_err(|error| emit(|| Event::DestroyRefused(self.object(), error)))
    }

    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    pub(crate) fn object(&self) -> ObjectId {
        self.tracked.id()
    }

    /// Counts an object of the domain until the returned value is dropped.
    pub fn hold(&self) -> Use {
        self.uses.hold()
    }
}

fn tracked(context: &Context) -> Tracked {
    Tracked::new(ObjectId::next(), || Object::Pd { context: context.id() })
}
