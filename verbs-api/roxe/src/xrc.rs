//! XRC domains and their shared receive queues. Each message carries the number of the peer's
//! shared receive queue that it is for, so one connection between two processes is enough.

use crate::{CompletionQueue, Context, Error, ObjectId, ProtectionDomain, SharedReceiveQueue};
use roxe_provider as provider;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

impl Context {
    /// Creates an XRC domain.
    ///
    /// # Errors
    /// [`Error::Resources`] if the device has its maximum number of protection domains or
    /// completion queues: an XRC domain uses one of each.
    pub fn open_xrc_domain(&self) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, None)
    }

    /// Opens the XRC domain identified by `file`; creates it if there is none. The same file on the
    /// same device identifies the same domain within this process, and another domain in another
    /// process. The file may be closed afterwards.
    ///
    /// # Errors
    /// [`Error::Argument`] if the file cannot be inspected, for example because the process has no
    /// free descriptor; errors of [`open_xrc_domain`](Self::open_xrc_domain).
    pub fn open_shared_xrc_domain(&self, file: &impl AsFd) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, Some(file.as_fd()))
    }
}

/// An XRC domain: numbered shared receive queues, and the receiving ends of connections. A message
/// takes its receive request from the queue whose number it carries. Clones are the same domain.
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

    /// Creates a shared receive queue of the domain, for `max_wr` requests of at most `max_sge`
    /// list elements. Its buffers belong to `pd`. Its receives complete in `cq`, for messages of
    /// any connection.
    ///
    /// # Errors
    /// - [`Error::Argument`] if `max_wr` or `max_sge` exceeds its limit, `max_wr` is zero, or `pd`
    ///   or `cq` is of another context.
    /// - [`Error::Resources`] beyond 4096 queues of the domain or the device's number of queues, or
    ///   if the process has no free descriptor or cannot start a thread.
    /// - [`Error::Environment`] if the device cannot be started for another reason of this host.
    pub fn create_srq(
        &self,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue, Error> {
        let id = ObjectId::next();
        let init = provider::SrqInit { max_wr, max_sge, limit: 0, user_context: id.0 };
        Ok(SharedReceiveQueue { srq: self.xrcd.create_srq(&pd.pd, &cq.cq, init)?, id })
    }
}
