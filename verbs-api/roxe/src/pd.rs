//! Protection domains: what belongs together and may use each other. The methods of a domain that
//! make other objects are in the files of those objects.
//!
//! Touches the provider's PD and address handles.

use crate::{AhAttr, Context, Error, Gid};
use roxe_provider as provider;
use roxe_transport::wr::Av;
use std::sync::Arc;

impl Context {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`Error::Resources`] if the device has no room for one more.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, Error> {
        Ok(ProtectionDomain { pd: self.0.alloc_pd()?, context: self.clone() })
    }
}

/// A protection domain. A queue pair reaches only memory of its own domain. Clones are the same
/// domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(crate) pd: Arc<provider::Pd>,
    context: Context,
}

impl ProtectionDomain {
    /// The device it was made on.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Makes the address of a UD peer, reached from entry `sgid_index` of the own GID table.
    ///
    /// # Errors
    /// [`Error::Argument`] if the entry is empty or the two addresses are of different families.
    pub fn create_ah(&self, dgid: Gid, sgid_index: u8) -> Result<AddressHandle, Error> {
        let av = self.context.resolve(dgid, sgid_index)?;
        Ok(AddressHandle { av })
    }

    /// Makes the address that `attr` describes in full, for example as
    /// [`CmEvent::ud_param`](crate::cm::CmEvent::ud_param) tells it.
    ///
    /// # Errors
    /// As [`create_ah`](Self::create_ah).
    pub fn create_ah_of(&self, attr: &AhAttr) -> Result<AddressHandle, Error> {
        Ok(AddressHandle { av: self.context.0.resolve_av(attr)? })
    }

    pub(crate) fn wrap(pd: &Arc<provider::Pd>) -> Self {
        Self { pd: Arc::clone(pd), context: Context(Arc::clone(pd.context())) }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct AddressHandle {
    pub(crate) av: Av,
}

impl AddressHandle {
    /// The address.
    pub const fn dgid(&self) -> Gid {
        self.av.dgid
    }
}
