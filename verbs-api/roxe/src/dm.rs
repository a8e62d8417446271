//! Regions that are not memory of the process: device memory, dma-bufs, and the null region.

use crate::mr::{bounds, region_keys, slice};
use crate::{Access, Context, Error, ProtectionDomain};
use roxe_provider as provider;
use roxe_transport::wr::Sge;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

impl Context {
    /// Allocates `len` zeroed bytes of device memory. The device has `max_dm_size` bytes
    /// ([`DeviceAttr`](crate::DeviceAttr)).
    ///
    /// # Errors
    /// [`Error::Argument`] if `len` is zero or exceeds `max_dm_size`; [`Error::Resources`] if fewer
    /// bytes are free.
    pub fn alloc_dm(&self, len: usize) -> Result<DeviceMemory, Error> {
        Ok(DeviceMemory { dm: self.0.alloc_dm(len as u64, 0)?, len })
    }
}

/// A buffer of device memory, for data that peers access more often than this program does.
///
/// Clones refer to the same buffer. The device frees the buffer when all clones and all regions in
/// it are dropped.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    dm: Arc<provider::Dm>,
    /// Length in bytes.
    len: usize,
}

impl DeviceMemory {
    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // An empty buffer cannot be allocated.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Copies `data` into the buffer, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if `data` does not fit, or offset or length is not a multiple of 4;
    /// [`Error::Resources`] if the system has no free page for the buffer.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        Ok(self.dm.write(offset as u64, data)?)
    }

    /// Fills `out` with bytes of the buffer, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the buffer, or offset or length is not a
    /// multiple of 4; [`Error::Resources`] if the system has no free page for the buffer.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        Ok(self.dm.read(offset as u64, out)?)
    }
}

impl ProtectionDomain {
    /// Registers a part of a buffer of device memory. [`alloc_mr`](Self::alloc_mr) explains the
    /// rights.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the buffer, the buffer is of another context,
    /// or the device refuses the rights; [`Error::Resources`] if it has its maximum number of
    /// regions.
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

/// A registered part of a buffer of device memory. Its addresses begin at 0. Dropping this value
/// deregisters the part.
#[derive(Debug)]
pub struct DeviceMemoryRegion {
    mr: Arc<provider::Mr>,
    /// Length in bytes.
    len: usize,
}

impl DeviceMemoryRegion {
    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the region has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a part of the region as an element of a scatter/gather list.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the region.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        slice(&self.mr, self.len, range, u32::MAX)
    }
}

region_keys!(DeviceMemoryRegion);

impl ProtectionDomain {
    /// Registers `len` bytes of a dma-buf, or of a file that can be mapped shared, starting at byte
    /// `offset`. [`alloc_mr`](Self::alloc_mr) explains the rights; `MW_BIND`, `ZERO_BASED` and
    /// `ON_DEMAND` are not allowed.
    ///
    /// # Errors
    /// [`Error::Argument`] if the descriptor cannot be mapped or has fewer bytes, `len` is zero, or
    /// the device refuses the rights; [`Error::Environment`] if the descriptor is not open for
    /// these rights; [`Error::Resources`] if memory or regions are exhausted.
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

/// A registered part of a dma-buf, or of a file that can be mapped. Dropping this value deregisters
/// the part. The program may close the descriptor earlier.
///
/// Registration is a safe function: the device maps the file, and the program gets no address of
/// the bytes.
#[derive(Debug)]
pub struct DmaBufRegion {
    mr: Arc<provider::Mr>,
    /// Length in bytes.
    len: usize,
}

impl DmaBufRegion {
    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // An empty part cannot be registered.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns a part of the region as an element of a scatter/gather list.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the region, or is longer than 2^32 - 1 bytes.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        slice(&self.mr, self.len, range, u32::MAX)
    }
}

region_keys!(DmaBufRegion);

impl ProtectionDomain {
    /// Creates a region without memory, for parts of a message that the program does not need.
    ///
    /// # Errors
    /// [`Error::Resources`] beyond the limit of the device.
    pub fn alloc_null_mr(&self) -> Result<NullRegion, Error> {
        Ok(NullRegion(self.pd.alloc_null_mr()?))
    }
}

/// A region without memory: its bytes read as zeros, and bytes written to it are discarded. Peers
/// cannot access it.
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
    /// Returns `len` bytes of the region as an element of a scatter/gather list.
    pub fn slice(&self, len: u32) -> Sge {
        Sge { addr: 0, length: len, lkey: self.0.lkey() }
    }
}
