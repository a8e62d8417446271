//! Memory windows: work requests grant and revoke the rights of peers on part of a region.

use crate::mr::bounds;
use crate::{Access, Error, MemoryRegion, ProtectionDomain, WindowBinding, WorkRequest};
use roxe_provider as provider;
use roxe_transport::wr::Bind;
use roxe_wire::{LKey, RKey};
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The peers that a [`MemoryWindow`] grants access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// The peer of the queue pair that opened the window. That peer can also close it, with
    /// [`WorkRequest::invalidate`]. Type 2B of the specification.
    QueuePair,
    /// The peers of all queue pairs of the domain. Type 1 of the specification.
    Domain,
}

impl ProtectionDomain {
    /// Creates a closed memory window: peers have no access through it before a binding.
    ///
    /// # Errors
    /// [`Error::Resources`] beyond the limit of the device.
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<MemoryWindow, Error> {
        let mw = self.pd.alloc_mw(match kind {
            WindowKind::QueuePair => provider::MwKind::Two,
            WindowKind::Domain => provider::MwKind::One,
        })?;
        let [.., tag] = mw.rkey().0.to_be_bytes();
        Ok(MemoryWindow { mw, kind, tag: AtomicU8::new(tag) })
    }
}

/// A memory window: an rkey that opens part of a region to peers until it is revoked.
///
/// A region registered with [`Access::MW_BIND`] but without remote rights is closed to all peers. A
/// window opens part of it: [`bind`](Self::bind) describes the binding, posting
/// [`WorkRequest::bind`] executes it, and [`close`](Self::close) revokes it. Unlike registration,
/// binding does not touch the pages. Each binding has a new key, so earlier keys are invalid.
/// Dropping the window closes it; dropping the region closes its windows.
///
/// ```
/// use roxe::{Access, Context, WindowKind, WorkRequest};
/// use std::time::Duration;
///
/// # let context = Context::open_first()?;
/// # let pd = context.alloc_pd()?;
/// # let (theirs, ours) = (context.create_cq(16)?, context.create_cq(16)?);
/// # let alice = pd.create_qp(&ours, &ours).build()?;
/// # let bob = pd.create_qp(&theirs, &theirs).build()?;
/// # alice.connect(&bob.endpoint())?;
/// # bob.connect(&alice.endpoint())?;
/// # let wait = Duration::from_secs(5);
/// let region = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let window = pd.alloc_mw(WindowKind::QueuePair)?;
///
/// // Alice opens bytes 100 to 199 to the peer of her queue pair. Requests that she
/// // posts later start after the binding is complete.
/// let opened = window.bind(&region, 100..200, Access::REMOTE_WRITE)?;
/// alice.post_send(&WorkRequest::bind(&opened).signaled())?;
/// ours.wait(wait)?.check()?;
///
/// // Bob knows the address and key of the window. He writes to it, then closes it by a SEND
/// // that invalidates its key.
/// bob.post_send(&WorkRequest::write_inline(b"data", opened.remote().offset(8)))?;
/// alice.post_recv(1, &[])?;
/// bob.post_send(&WorkRequest::send(&[]).invalidate(opened.rkey()).signaled())?;
/// theirs.wait(wait)?.check()?;
/// let received = *ours.wait(wait)?.check()?;
/// assert_eq!(received.invalidated_rkey(), Some(opened.rkey()));
/// assert_eq!(region.to_vec(108..112)?, b"data");
///
/// bob.post_send(&WorkRequest::write_inline(b"late", opened.remote()).signaled())?;
/// assert!(theirs.wait(wait)?.check().is_err(), "the window is closed");
/// # Ok::<(), roxe::Error>(())
/// ```
pub struct MemoryWindow {
    mw: Arc<provider::Mw>,
    kind: WindowKind,
    /// Last byte of the latest rkey.
    tag: AtomicU8,
}

impl MemoryWindow {
    /// Returns which peers the window grants access.
    pub const fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Describes a binding of `range` of `region` for `access`, under a new key.
    /// [`WorkRequest::bind`] executes it.
    ///
    /// `access` may contain remote rights and, for a window of one queue pair,
    /// [`Access::ZERO_BASED`]: the window's first byte then has address 0. The region needs
    /// [`Access::MW_BIND`], and `LOCAL_WRITE` if `access` has `REMOTE_WRITE` or `REMOTE_ATOMIC`. A
    /// window of a domain can be bound again while open, which revokes the old binding. A window of
    /// a queue pair must be closed first.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range is not inside the region.
    pub fn bind(
        &self,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<WindowBinding, Error> {
        let (offset, len) = bounds(range, region.len())?;
        // Requests address the first byte of a region by its base: 0 in a zero-based region.
        let (addr, length) = (region.mr.base() + offset as u64, len as u64);
        Ok(WindowBinding(Bind { rkey: self.next_key(), lkey: region.lkey(), access, addr, length }))
    }

    /// Returns the request that revokes the latest binding. When it completes, no access through
    /// the window is in progress.
    ///
    /// The request for a window of a queue pair must be posted to that queue pair, and fails if the
    /// window is not open.
    pub fn close(&self) -> WorkRequest<'static> {
        match self.kind {
            WindowKind::QueuePair => WorkRequest::local_invalidate(self.key(self.tag.load(Ordering::Relaxed))),
            WindowKind::Domain => {
                let unbind =
                    Bind { rkey: self.next_key(), lkey: LKey::default(), access: Access::empty(), addr: 0, length: 0 };
                WorkRequest::bind(&WindowBinding(unbind))
            }
        }
    }

    fn next_key(&self) -> RKey {
        self.key(self.tag.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    /// Returns the window's rkey whose last byte is `tag`.
    fn key(&self, tag: u8) -> RKey {
        RKey(self.mw.rkey().0 & !0xff | u32::from(tag))
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key(self.tag.load(Ordering::Relaxed));
        f.debug_struct("MemoryWindow").field("kind", &self.kind).field("rkey", &key).finish()
    }
}
