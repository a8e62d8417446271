//! Protection domains and address handles. The methods of a domain that create other objects are in
//! those objects' files.

use crate::{AhAttr, Context, Error, Gid};
use roxe_provider as provider;
use roxe_transport::wr::Av;
use std::sync::Arc;

impl Context {
    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`Error::Resources`] beyond the limit of the device.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, Error> {
        Ok(ProtectionDomain { pd: self.0.alloc_pd()?, context: self.clone() })
    }
}

/// A protection domain. A queue pair accesses only memory of its own domain. Clones are the same
/// domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(crate) pd: Arc<provider::Pd>,
    context: Context,
}

impl ProtectionDomain {
    /// Returns the context of the domain.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Creates the address of a UD peer. `sgid_index` is the entry of the local GID table to send
    /// from.
    ///
    /// # Errors
    /// [`Error::Argument`] if the entry is empty, `dgid` is zero, or the two addresses are of
    /// different families.
    pub fn create_ah(&self, dgid: Gid, sgid_index: u8) -> Result<AddressHandle, Error> {
        let av = self.context.resolve(dgid, sgid_index)?;
        Ok(AddressHandle { av })
    }

    /// Creates the address of a UD peer from all its attributes, for example those of
    /// [`CmEvent::ud_param`](crate::cm::CmEvent::ud_param).
    ///
    /// # Errors
    /// [`Error::Argument`] if the attributes have no GRH or another port than 1; errors of
    /// [`create_ah`](Self::create_ah).
    pub fn create_ah_from(&self, attr: &AhAttr) -> Result<AddressHandle, Error> {
        Ok(AddressHandle { av: self.context.0.resolve_av(attr)? })
    }

    pub(crate) fn wrap(pd: &Arc<provider::Pd>) -> Self {
        Self { pd: Arc::clone(pd), context: Context(Arc::clone(pd.context())) }
    }
}

/// The address of a UD peer or multicast group.
#[derive(Clone, Copy, Debug)]
pub struct AddressHandle {
    pub(crate) av: Av,
}

impl AddressHandle {
    /// Returns the GID of the peer or group.
    pub const fn dgid(&self) -> Gid {
        self.av.dgid
    }
}
