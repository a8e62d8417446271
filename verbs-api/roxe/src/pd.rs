//! Protection domains: what belongs together and may use each other. They make everything that lives in one.
//!
//! Touches the provider's PD and address handles.

use crate::{
    Access, AhAttr, CompletionQueue, Context, DeviceMemory, DeviceMemoryRegion, DmaBufRegion, Error, Gid, MemoryRegion,
    MemoryWindow, NullRegion, QueuePairBuilder, SharedReceiveQueue, WindowKind,
};
use roxe_provider as provider;
use roxe_transport::wr::Av;
use std::ops::RangeBounds;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain. A queue pair reaches only memory of its own domain. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pd: Arc<provider::Pd>,
    context: Context,
}

impl ProtectionDomain {
    pub(crate) fn alloc(context: &Context) -> Result<Self, Error> {
        Ok(Self { pd: context.provider().alloc_pd()?, context: context.clone() })
    }

    /// The device it was made on.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Allocates `len` zeroed bytes, page aligned, and registers them. `LOCAL_WRITE` is needed to receive or READ into
    /// them; `REMOTE_WRITE` and `REMOTE_ATOMIC` need it too.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::Provider`] if the card refuses length or rights.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        MemoryRegion::alloc(self, len, access)
    }

    /// Registers memory of the program's own, for example a mapped file or a buffer of another library.
    ///
    /// # Safety
    /// `len` bytes behind `ptr` must be valid memory until the region is dropped, and everybody who looks at them
    /// meanwhile must expect that they change at any time: no `&[u8]` or `&mut [u8]` to them may be used while a queue
    /// pair of this domain or, with remote rights, a peer can reach them.
    ///
    /// # Errors
    /// [`Error::Provider`] if the memory is not there or the card refuses length or rights.
    #[allow(unsafe_code)]
    pub unsafe fn register_raw(&self, ptr: NonNull<u8>, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        // SAFETY: promised by the caller.
        unsafe { MemoryRegion::borrow(self, ptr, len, access) }
    }

    /// Registers a part of a buffer of the card; rights as for [`alloc_mr`](Self::alloc_mr).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the buffer does not have this part, [`Error::Provider`] if the card refuses the rights or
    /// the buffer is of another context.
    pub fn register_dm(
        &self,
        dm: &DeviceMemory,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<DeviceMemoryRegion, Error> {
        DeviceMemoryRegion::register(self, dm, range, access)
    }

    /// Registers `len` bytes, from byte `offset` on, of a dma-buf or of any file that can be mapped shared. Rights as for
    /// [`alloc_mr`](Self::alloc_mr), without `MW_BIND`, `ZERO_BASED` and `ON_DEMAND`.
    ///
    /// # Errors
    /// [`Error::Provider`] if the descriptor was not opened for these rights, cannot be mapped, or ends before.
    pub fn register_dmabuf(
        &self,
        fd: impl AsFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<DmaBufRegion, Error> {
        DmaBufRegion::register(self, fd, offset, len, access)
    }

    /// Makes a region for the parts of lists that do not matter.
    ///
    /// # Errors
    /// [`Error::Provider`] if the card has no room.
    pub fn alloc_null_mr(&self) -> Result<NullRegion, Error> {
        NullRegion::alloc(self)
    }

    /// Makes a memory window, which is closed.
    ///
    /// # Errors
    /// [`Error::Provider`] if the card has no room.
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<MemoryWindow, Error> {
        MemoryWindow::alloc(self, kind)
    }

    /// Starts a queue pair that reports to these completion queues (they may be the same).
    pub fn create_qp<'a>(&'a self, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(self, send_cq, recv_cq)
    }

    /// Makes a shared receive queue for `max_wr` requests of at most `max_sge` parts.
    ///
    /// # Errors
    /// [`Error::Provider`] if the card has no room or the numbers are above its limits.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::create(self, max_wr, max_sge)
    }

    /// Makes the address of a UD peer, reached from entry `sgid_index` of the own GID table.
    ///
    /// # Errors
    /// [`Error::Provider`] if the entry is empty or the two addresses are of different families.
    pub fn create_ah(&self, dgid: Gid, sgid_index: u8) -> Result<AddressHandle, Error> {
        let av = self.context.resolve(dgid, sgid_index)?;
        Ok(AddressHandle { av })
    }

    /// Makes the address that `attr` describes in full, for example as [`CmEvent::ud_param`](crate::cm::CmEvent::ud_param)
    /// tells it.
    ///
    /// # Errors
    /// As [`create_ah`](Self::create_ah).
    pub fn create_ah_of(&self, attr: &AhAttr) -> Result<AddressHandle, Error> {
        Ok(AddressHandle { av: self.context.provider().resolve_av(attr)? })
    }

    pub(crate) fn wrap(pd: &Arc<provider::Pd>) -> Self {
        Self { pd: Arc::clone(pd), context: Context::wrap(Arc::clone(pd.context())) }
    }

    pub(crate) const fn provider(&self) -> &Arc<provider::Pd> {
        &self.pd
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct AddressHandle {
    av: Av,
}

impl AddressHandle {
    pub(crate) const fn av(&self) -> Av {
        self.av
    }

    /// The address.
    pub const fn dgid(&self) -> Gid {
        self.av.dgid
    }
}
