//! XRC: domains, and what is made in them. One connection per process instead of one per queue:
//! each message names the shared receive queue of the peer that it is for.
//!
//! Touches the provider's XRC domain.

use crate::{CompletionQueue, Context, Error, ObjectId, ProtectionDomain, SharedReceiveQueue};
use roxe_provider as provider;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

impl Context {
    /// Makes an XRC domain of its own.
    ///
    /// # Errors
    /// [`Error::Resources`] if the device has no room for one more.
    pub fn open_xrc_domain(&self) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, None)
    }

    /// Opens the XRC domain that `file` names, and makes it if there is none: all of this process
    /// that open the same file on the same device share it. In another process the file names
    /// another domain. It may be closed afterwards.
    ///
    /// # Errors
    /// [`Error::Environment`] if the file cannot be looked at.
    pub fn open_shared_xrc_domain(&self, file: &impl AsFd) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, Some(file.as_fd()))
    }
}

/// An XRC domain: shared receive queues with numbers, and the receiving ends of connections, which
/// take receives from the queue that a message names. Clones are the same domain.
///
/// A sender needs one queue pair of [`Service::XrcIni`](crate::Service::XrcIni) per peer, however
/// many queues the peer has:
///
/// ```
/// use roxe::{Access, Context, Service, WorkRequest};
/// use std::time::Duration;
///
/// let context = Context::open_first()?;
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(16)?;
///
/// // The receiving side: a domain with two queues, and one end of a connection.
/// let domain = context.open_xrc_domain()?;
/// let (small, large) = (domain.create_srq(&pd, &cq, 8, 1)?, domain.create_srq(&pd, &cq, 8, 1)?);
/// let target = domain.create_target().build()?;
///
/// // The sending side.
/// let sends = context.create_cq(16)?;
/// let sender = pd.create_qp(&sends, &sends).service(Service::XrcIni).build()?;
/// sender.connect(&target.endpoint())?;
/// target.connect(&sender.endpoint())?;
///
/// let inbox = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
/// small.post_recv(1, &[inbox.slice(..64)?])?;
/// large.post_recv(2, &[inbox.slice(64..)?])?;
/// let number = large.number().expect("a queue of a domain has a number");
/// sender.post_send(&WorkRequest::send_inline(b"to the second").to_srq(number))?;
///
/// let completion = *cq.wait(Duration::from_secs(5))?.check()?;
/// assert_eq!(completion.wr_id(), 2);
/// assert_eq!(inbox.to_vec(64..77)?, b"to the second");
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct XrcDomain {
    pub(crate) xrcd: Arc<provider::Xrcd>,
    pub(crate) context: Context,
}

impl XrcDomain {
    fn open(context: &Context, file: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        let init = provider::XrcdInit { file, create: true, exclusive: false };
        Ok(Self { xrcd: context.0.open_xrcd(init)?, context: context.clone() })
    }

    /// Makes a shared receive queue of the domain, for `max_wr` requests of at most `max_sge`
    /// parts. Its buffers are looked up in `pd`; its receives complete in `cq`, whichever
    /// connection brought them.
    ///
    /// # Errors
    /// [`Error::Argument`] if the numbers are above the limits of the card, or `pd` or `cq` is of
    /// another context.
    pub fn create_srq(
        &self,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue, Error> {
        let id = ObjectId::next();
        let init = provider::SrqInit { max_wr, max_sge, limit: 0, user: id.0 };
        Ok(SharedReceiveQueue { srq: self.xrcd.create_srq(&pd.pd, &cq.cq, init)?, id })
    }
}
