//! Registered parts of a dma-buf, or of a file that can be mapped.
//!
//! Touches the provider's registration.

use crate::mr::{region_keys, slice};
use crate::{Access, Error, ProtectionDomain};
use roxe_provider as provider;
use roxe_transport::wr::Sge;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

impl ProtectionDomain {
    /// Registers `len` bytes, from byte `offset` on, of a dma-buf or of any file that can be mapped
    /// shared. Rights as for [`alloc_mr`](Self::alloc_mr), without `MW_BIND`, `ZERO_BASED` and
    /// `ON_DEMAND`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the descriptor was not opened for these rights, cannot be mapped, or
    /// ends before.
    pub fn register_dmabuf(
        &self,
        fd: impl AsFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<DmaBufRegion, Error> {
        let part = provider::DmaBuf { fd: fd.as_fd().as_raw_fd(), offset, length: len as u64 };
        Ok(DmaBufRegion { mr: self.pd.reg_dmabuf_mr(part, offset, access)?, len })
    }
}

/// A registered part of a dma-buf, or of a file that can be mapped.
///
/// Peers and own requests reach its bytes without the program having them in its memory, so
/// registering it needs no promise. The part stays registered as long as the value lives; the
/// descriptor may be closed.
#[derive(Debug)]
pub struct DmaBufRegion {
    mr: Arc<provider::Mr>,
    len: usize,
}

impl DmaBufRegion {
    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)] // An empty part cannot be registered.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// A part of the region as an element of a work request.
    ///
    /// # Errors
    /// [`Error::Argument`] if it does not lie inside, or is longer than 2^32 - 1 bytes.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        slice(&self.mr, self.len, range, u32::MAX)
    }
}

region_keys!(DmaBufRegion);
