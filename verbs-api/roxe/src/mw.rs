//! Memory windows: rights of peers on part of a region, granted and revoked by work requests.

use crate::mr::bounds;
use crate::{Access, Error, MemoryRegion, ProtectionDomain, WindowBinding, WorkRequest};
use roxe_transport::wr::Bind;
use roxe_wire::{LKey, RKey};
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use roxe_provider as provider;

/// The permitted users of a [`MemoryWindow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// The peer of the queue pair that opened it. That peer can close it too, with
    /// [`WorkRequest::invalidate`]. The specification calls it type 2B.
    QueuePair,
    /// The peers of every queue pair of the domain. The specification calls it type 1.
    Domain,
}

impl ProtectionDomain {
    /// Makes a memory window, which is closed.
    ///
    /// # Errors
    /// [`Error::Resources`] if the card has no room.
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<MemoryWindow, Error> {
        let mw = self.pd.alloc_mw(match kind {
            WindowKind::QueuePair => provider::MwKind::Two,
            WindowKind::Domain => provider::MwKind::One,
        })?;
        let [.., tag] = mw.rkey().0.to_be_bytes();
        Ok(MemoryWindow { mw, kind, tag: AtomicU8::new(tag) })
    }
}

/// A key that opens a part of a region to peers, for as long as they need it.
///
/// A region that is registered without remote rights, but with [`Access::MW_BIND`], is closed to
/// every peer. A window opens part of it: [`bind`](Self::bind) describes the binding,
/// posting [`WorkRequest::bind`] executes it, and [`close`](Self::close) revokes it. Unlike
/// registration, binding does not touch the pages. Each binding has a new key, so a key that a peer
/// kept is dead. Dropping the window closes it; dropping the region closes its windows.
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
/// // Alice opens bytes 100 to 200 to the peer of her queue pair. What she
/// // posts next starts when they are open.
/// let opened = window.bind(&region, 100..200, Access::REMOTE_WRITE)?;
/// alice.post_send(&WorkRequest::bind(&opened).signaled())?;
/// ours.wait(wait)?.check()?;
///
/// // Bob was told where, writes, and closes the window with his last message.
/// bob.post_send(&WorkRequest::write_inline(b"data", opened.remote().offset(8)))?;
/// alice.post_recv(1, &[])?;
/// bob.post_send(&WorkRequest::send(&[]).invalidate(opened.rkey()).signaled())?;
/// theirs.wait(wait)?.check()?;
/// let received = *ours.wait(wait)?.check()?;
/// assert_eq!(received.invalidated_rkey(), Some(opened.rkey()));
/// assert_eq!(region.to_vec(108..112)?, b"data");
///
/// bob.post_send(&WorkRequest::write_inline(b"late", opened.remote()).signaled())?;
/// assert!(theirs.wait(wait)?.check().is_err(), "it is closed");
/// # Ok::<(), roxe::Error>(())
/// ```
pub struct MemoryWindow {
    mw: Arc<provider::Mw>,
    kind: WindowKind,
    /// The last byte of the key given out last.
    tag: AtomicU8,
}

impl MemoryWindow {
    /// The permitted users.
    pub const fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Describes a binding of `range` of `region` for `access`, under a new key. It takes effect
    /// when [`WorkRequest::bind`] is posted.
    ///
    /// `access` takes remote rights, and on a window for one queue pair [`Access::ZERO_BASED`],
    /// with which the peer counts addresses from the first byte of the window. The region needs
    /// [`Access::MW_BIND`], and `LOCAL_WRITE` if peers write or do atomics. A window for the domain
    /// can be bound again while open, which revokes the old binding. One for a queue pair has to be
    /// closed first.
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
        // The address by which requests name the first byte: 0 in a region that is zero based.
        let (addr, length) = (region.mr.base() + offset as u64, len as u64);
        Ok(WindowBinding(Bind { rkey: self.next_key(), lkey: region.lkey(), access, addr, length }))
    }

    /// The request that closes what was opened last. When it completes, no access is under way.
    ///
    /// A window for a queue pair is closed by that queue pair. Closing one that is not open is an
    /// error there.
    pub fn close(&self) -> WorkRequest<'static> {
        match self.kind {
            WindowKind::QueuePair => WorkRequest::local_invalidate(self.key(self.tag.load(Ordering::Relaxed))),
            WindowKind::Domain => {
                let nothing =
                    Bind { rkey: self.next_key(), lkey: LKey::default(), access: Access::empty(), addr: 0, length: 0 };
                WorkRequest::bind(&WindowBinding(nothing))
            }
        }
    }

    fn next_key(&self) -> RKey {
        self.key(self.tag.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    /// The key that ends in `tag`; the rest of it names the window.
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
