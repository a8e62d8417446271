//! Regions that are not memory of the program: what a descriptor stands for, and nothing at all.
//!
//! Touches the provider's registration.

use crate::mr::bounds;
use crate::{Access, Error, ProtectionDomain, RemoteAddr};
use roxe_provider as provider;
use roxe_transport::wr::Sge;
use roxe_wire::{LKey, RKey};
use std::ops::RangeBounds;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// A registered part of a dma-buf, or of a file that can be mapped.
///
/// Peers and own requests reach its bytes without the program having them in its memory, so registering it needs no promise.
/// The part stays registered as long as the value lives; the descriptor may be closed.
#[derive(Debug)]
pub struct DmaBufRegion {
    mr: Arc<provider::Mr>,
    len: usize,
}

impl DmaBufRegion {
    pub(crate) fn register(
        pd: &ProtectionDomain,
        fd: impl AsFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let part = provider::DmaBuf { fd: fd.as_fd().as_raw_fd(), offset, length: len as u64 };
        Ok(Self { mr: pd.provider().reg_dmabuf_mr(part, offset, access)?, len })
    }

    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)] // An empty part cannot be registered.
    pub const fn len(&self) -> usize {
        self.len
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
        RemoteAddr { addr: self.mr.base(), rkey: self.mr.rkey() }
    }

    /// A part of the region as an element of a work request.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if it does not lie inside, or is longer than 2^32 - 1 bytes.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        let (offset, len) = bounds(range, self.len)?;
        let length = u32::try_from(len).map_err(|_| Error::OutOfRange { offset, len, region: self.len })?;
        Ok(Sge { addr: self.mr.base() + offset as u64, length, lkey: self.mr.lkey() })
    }
}

/// Bytes that do not matter: they read as zeros, and what is written to them is forgotten. Peers cannot reach them.
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
/// assert_eq!(cq.wait(Duration::from_secs(5))?.ok()?.byte_len(), 8);
/// assert_eq!(body.to_vec(..4)?, b"body");
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Debug)]
pub struct NullRegion(Arc<provider::Mr>);

impl NullRegion {
    pub(crate) fn alloc(pd: &ProtectionDomain) -> Result<Self, Error> {
        Ok(Self(pd.provider().alloc_null_mr()?))
    }

    /// `len` such bytes as an element of a work request.
    pub fn slice(&self, len: u32) -> Sge {
        Sge { addr: 0, length: len, lkey: self.0.lkey() }
    }
}
