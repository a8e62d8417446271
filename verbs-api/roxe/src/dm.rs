//! Device memory: buffers of the card's own, for data that many peers fetch or count in and the program seldom looks at.
//!
//! Touches the provider's buffers and their registration.

use crate::mr::bounds;
use crate::{Access, Context, Error, ProtectionDomain, RemoteAddr};
use roxe_provider as provider;
use roxe_transport::wr::Sge;
use roxe_wire::{LKey, RKey};
use std::ops::RangeBounds;
use std::sync::Arc;

/// A buffer in the memory of the card, zeroed at first. Clones are the same buffer; it lives as long as one of them or a
/// region in it.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    dm: Arc<provider::Dm>,
    len: usize,
}

impl DeviceMemory {
    pub(crate) fn alloc(context: &Context, len: usize) -> Result<Self, Error> {
        Ok(Self { dm: context.provider().alloc_dm(len as u64, 0)?, len })
    }

    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)] // An empty buffer cannot be allocated.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Copies `data` into the buffer, starting at byte `offset`; both offset and length are multiples of 4.
    ///
    /// # Errors
    /// [`Error::Provider`] if it does not fit, or offset or length is no multiple of 4.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        Ok(self.dm.write(offset as u64, data)?)
    }

    /// Copies bytes out of the buffer, starting at byte `offset`, until `out` is full; both are multiples of 4.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        Ok(self.dm.read(offset as u64, out)?)
    }
}

/// A registered part of a buffer of the card. Its addresses begin at 0.
///
/// The part stays registered as long as the value lives, and keeps the buffer.
#[derive(Debug)]
pub struct DeviceMemoryRegion {
    mr: Arc<provider::Mr>,
    len: usize,
}

impl DeviceMemoryRegion {
    pub(crate) fn register(
        pd: &ProtectionDomain,
        dm: &DeviceMemory,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<Self, Error> {
        let (offset, len) = bounds(range, dm.len)?;
        let mr = pd.provider().reg_dm_mr(&dm.dm, offset as u64, len as u64, access | Access::ZERO_BASED)?;
        Ok(Self { mr, len })
    }

    /// Its size in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key for own work requests.
    pub fn lkey(&self) -> LKey {
        self.mr.lkey()
    }

    /// The key for the peer's requests.
    pub fn rkey(&self) -> RKey {
        self.mr.rkey()
    }

    /// What a peer must know to reach the first byte.
    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: 0, rkey: self.mr.rkey() }
    }

    /// A part of the region as an element of a work request.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if it does not lie inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        let (offset, len) = bounds(range, self.len)?;
        let length = u32::try_from(len).map_err(|_| Error::OutOfRange { offset, len, region: self.len })?;
        Ok(Sge { addr: offset as u64, length, lkey: self.mr.lkey() })
    }
}
