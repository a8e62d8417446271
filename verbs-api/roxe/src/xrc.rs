//! XRC: domains, and what is made in them. One connection per process instead of one per queue: each message names the
//! shared receive queue of the peer that it is for.
//!
//! Touches the provider's XRC domain.

use crate::{CompletionQueue, Context, Error, ProtectionDomain, QueuePairBuilder, SharedReceiveQueue};
use roxe_provider as provider;
use std::fmt;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;

/// An XRC domain: shared receive queues with numbers, and the receiving ends of connections, which take receives from the
/// queue that a message names. Clones are the same domain.
///
/// A sender needs one queue pair of [`Service::XrcIni`](crate::Service::XrcIni) per peer, however many queues the peer has:
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
/// let completion = *cq.wait(Duration::from_secs(5))?.ok()?;
/// assert_eq!(completion.wr_id(), 2);
/// assert_eq!(inbox.to_vec(64..77)?, b"to the second");
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct XrcDomain {
    xrcd: Arc<provider::Xrcd>,
    context: Context,
}

impl XrcDomain {
    pub(crate) fn open(context: &Context) -> Result<Self, Error> {
        Self::open_as(context, provider::XrcdInit { file: None, create: true, exclusive: false })
    }

    pub(crate) fn open_shared(context: &Context, file: &impl AsFd) -> Result<Self, Error> {
        Self::open_as(context, provider::XrcdInit { file: Some(file.as_fd()), create: true, exclusive: false })
    }

    fn open_as(context: &Context, init: provider::XrcdInit<'_>) -> Result<Self, Error> {
        Ok(Self { xrcd: context.provider().open_xrcd(init)?, context: context.clone() })
    }

    /// Makes a shared receive queue of the domain, for `max_wr` requests of at most `max_sge` parts. Its buffers are looked
    /// up in `pd`; its receives complete in `cq`, whichever connection brought them.
    ///
    /// # Errors
    /// [`Error::Provider`] if the numbers are above the limits of the card, or `pd` or `cq` is of another context.
    pub fn create_srq(
        &self,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::create_in(&self.xrcd, pd, cq, max_wr, max_sge)
    }

    /// Starts the receiving end of a connection ([`Service::XrcTgt`](crate::Service::XrcTgt)). It has no queues of its own,
    /// so the settings of the builder that are about queues mean nothing.
    pub fn create_target(&self) -> QueuePairBuilder<'_> {
        QueuePairBuilder::target(self)
    }

    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) const fn provider(&self) -> &Arc<provider::Xrcd> {
        &self.xrcd
    }
}

/// Number of a shared receive queue in its XRC domain, 24 bits. It travels as text: `0x` and hexadecimal digits.
///
/// ```
/// # use roxe::SrqNumber;
/// assert_eq!(SrqNumber(18).to_string().parse::<SrqNumber>()?, SrqNumber(18));
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqNumber(pub u32);

impl fmt::Display for SrqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl FromStr for SrqNumber {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = crate::endpoint::number_24(text.trim()).map(Self);
        number.ok_or_else(|| Error::Parse { text: text.into(), expected: "number of an SRQ, 24 bits" })
    }
}
