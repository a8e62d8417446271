//! Device memory: buffers of the card's own, for data that many peers fetch or count in and the
//! program seldom looks at.
//!
//! Touches the provider's buffers and their registration.

use crate::mr::{bounds, region_keys, slice};
use crate::{Access, Context, Error, ProtectionDomain};
use roxe_provider as provider;
use roxe_transport::wr::Sge;
use std::ops::RangeBounds;
use std::sync::Arc;

impl Context {
    /// Allocates `len` zeroed bytes in the memory of the card, of which there is `max_dm_size`.
    ///
    /// # Errors
    /// [`Error::Argument`] if `len` is zero or there is not as much left.
    pub fn alloc_dm(&self, len: usize) -> Result<DeviceMemory, Error> {
        Ok(DeviceMemory { dm: self.0.alloc_dm(len as u64, 0)?, len })
    }
}

/// A buffer in the memory of the card, zeroed at first. Clones are the same buffer; it lives as
/// long as one of them or a region in it.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    dm: Arc<provider::Dm>,
    len: usize,
}

impl DeviceMemory {
    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)] // An empty buffer cannot be allocated.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Copies `data` into the buffer, starting at byte `offset`; both offset and length are
    /// multiples of 4.
    ///
    /// # Errors
    /// [`Error::Argument`] if it does not fit, or offset or length is no multiple of 4.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        Ok(self.dm.write(offset as u64, data)?)
    }

    /// Copies bytes out of the buffer, starting at byte `offset`, until `out` is full; both are
    /// multiples of 4.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        Ok(self.dm.read(offset as u64, out)?)
    }
}

impl ProtectionDomain {
    /// Registers a part of a buffer of the card; rights as for [`alloc_mr`](Self::alloc_mr).
    ///
    /// # Errors
    /// [`Error::Argument`] if the buffer does not have this part or is of another context, or the
    /// card refuses the rights.
    pub fn register_dm(
        &self,
        dm: &DeviceMemory,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<DeviceMemoryRegion, Error> {
        let (offset, len) = bounds(range, dm.len)?;
        let mr = self.pd.reg_dm_mr(&dm.dm, offset as u64, len as u64, access | Access::ZERO_BASED)?;
        Ok(DeviceMemoryRegion { mr, len })
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
    /// Its size in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of the region as an element of a work request.
    ///
    /// # Errors
    /// [`Error::Argument`] if it does not lie inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        slice(&self.mr, self.len, range, u32::MAX)
    }
}

region_keys!(DeviceMemoryRegion);
