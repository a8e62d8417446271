//! Regions without memory of the process behind them: the card's own memory (for data that many
//! peers fetch or count in and the program seldom looks at), DMA-bufs, and the null region.
//!
//! Touches the provider's buffers and their registration.

use crate::mr::{bounds, region_keys, slice};
use crate::{Access, Context, Error, ProtectionDomain};
use roxe_transport::wr::Sge;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use roxe_provider as provider;

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

    /// Returns true if it has no bytes.
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

impl ProtectionDomain {
    /// Makes a region for the parts of lists that do not matter.
    ///
    /// # Errors
    /// [`Error::Resources`] if the card has no room.
    pub fn alloc_null_mr(&self) -> Result<NullRegion, Error> {
        Ok(NullRegion(self.pd.alloc_null_mr()?))
    }
}

/// Bytes that do not matter: they read as zeros, and what is written to them is forgotten. Peers
/// cannot reach them.
///
/// ```
/// # use roxe::{Access, Context, WorkRequest};
/// # use std::time::Duration;
/// # let context = Context::open_first()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.create_cq(16)?;
/// # let (alice, bob) = (pd.create_qp(&cq, &cq).build()?, pd.create_qp(&cq, &cq).build()?);
/// # alice.connect(&bob.endpoint())?;
/// # bob.connect(&alice.endpoint())?;
/// let (ignored, body) = (pd.alloc_null_mr()?, pd.alloc_mr(64, Access::LOCAL_WRITE)?);
///
/// // Bob wants messages without their first 4 bytes.
/// bob.post_recv(1, &[ignored.slice(4), body.slice(..)?])?;
/// alice.post_send(&WorkRequest::send_inline(b"HEADbody"))?;
/// assert_eq!(cq.wait(Duration::from_secs(5))?.check()?.byte_len(), 8);
/// assert_eq!(body.to_vec(..4)?, b"body");
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Debug)]
pub struct NullRegion(Arc<provider::Mr>);

impl NullRegion {
    /// `len` such bytes as an element of a work request.
    pub fn slice(&self, len: u32) -> Sge {
        Sge { addr: 0, length: len, lkey: self.0.lkey() }
    }
}
