//! Completion queues and channels: a program learns here that its requests are done.

use crate::{Context, Error, FailedCompletion, ObjectId, PeerError, WcOpcode, WcStatus};
use roxe_provider as provider;
use roxe_transport::wr::{Cqe, WcExtra};
use roxe_wire::{Qpn, RKey};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Polls in vain before [`CompletionQueue::wait`] looks at the clock again.
const POLLS_PER_LOOK: u32 = 64;

impl Context {
    /// Makes a completion channel.
    ///
    /// # Errors
    /// [`Error::Resources`] if the process has no descriptor left.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, Error> {
        Ok(CompletionChannel(self.0.create_comp_channel()?))
    }

    /// Makes a completion queue for at least `cqe` completions. A queue that overflows is lost,
    /// with everything that reports to it, so make it as large as all requests that can be
    /// outstanding.
    ///
    /// # Errors
    /// [`Error::Argument`] if `cqe` is zero or above the limit.
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue, Error> {
        CompletionQueue::create(self, cqe, None)
    }

    /// Makes a completion queue that can raise events on `channel`.
    ///
    /// # Errors
    /// As [`create_cq`](Self::create_cq).
    pub fn create_cq_with_channel(&self, cqe: u32, channel: &CompletionChannel) -> Result<CompletionQueue, Error> {
        CompletionQueue::create(self, cqe, Some(channel))
    }
}

/// A queue of completions. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) cq: Arc<provider::Cq>,
    id: ObjectId,
}

impl CompletionQueue {
    fn create(context: &Context, cqe: u32, channel: Option<&CompletionChannel>) -> Result<Self, Error> {
        let id = ObjectId::next();
        let channel = channel.map(|channel| Arc::clone(&channel.0));
        let init = provider::CqInit { cqe, channel, user: id.0, ..provider::CqInit::default() };
        let cq = context.0.create_cq(init)?;
        Ok(Self { cq, id })
    }

    /// Takes as many completions as there are and `out` holds, oldest first; an empty slice means
    /// that there are none now. Polling an empty queue is what drives the card: packets are
    /// received on this thread.
    ///
    /// # Errors
    /// [`Error::Argument`] when the queue overran; it is of no use then.
    pub fn poll<'o>(&self, out: &'o mut [WorkCompletion]) -> Result<&'o [WorkCompletion], Error> {
        let mut taken = 0;
        self.cq.poll(out.len(), |cqe| {
            if let Some(slot) = out.get_mut(taken) {
                *slot = WorkCompletion(*cqe);
                taken += 1;
            }
        })?;
        Ok(out.get(..taken).unwrap_or_default())
    }

    /// The next completion; polls until there is one, and lets other threads run when that takes
    /// long. For programs that have nothing else to do meanwhile.
    ///
    /// # Errors
    /// [`Error::Peer`] when none came in time, and as [`poll`](Self::poll). A completion that
    /// reports a failure is not an error here: see [`WorkCompletion::check`].
    pub fn wait(&self, timeout: Duration) -> Result<WorkCompletion, Error> {
        let deadline = Instant::now().checked_add(timeout);
        let mut one = [WorkCompletion::default()];
        for polls in 0u32.. {
            if let [completion] = self.poll(&mut one)? {
                return Ok(*completion);
            }
            let look = polls % POLLS_PER_LOOK == POLLS_PER_LOOK - 1;
            if look && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
        }
        Err(PeerError::Timeout(timeout).into())
    }

    /// Requests one event on the channel for the next completion; with `solicited_only`, for the
    /// next one that is solicited or failed. Poll once more after this call before waiting:
    /// completions that are already queued raise no event.
    pub fn req_notify(&self, solicited_only: bool) {
        self.cq.req_notify(solicited_only);
    }

    /// Lets one event stand for `count` completions, or for those that come within `period` of the
    /// first, at most 65 ms. A count of 1 or a period of 0 lets every event stand for one again.
    pub fn moderate(&self, count: u16, period: Duration) {
        let period = u16::try_from(period.as_micros()).unwrap_or(u16::MAX);
        self.cq.moderate(provider::Moderation { count, period });
    }

    /// Changes the capacity; queued completions stay.
    ///
    /// # Errors
    /// [`Error::Argument`] if more are queued than would fit, or `cqe` is zero or above the limit.
    pub fn resize(&self, cqe: u32) -> Result<(), Error> {
        Ok(self.cq.resize(cqe)?)
    }

    /// Its identity, for [`CompletionChannel::get_event`].
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    pub(crate) fn wrap(cq: &Arc<provider::Cq>) -> Self {
        Self { cq: Arc::clone(cq), id: ObjectId(cq.user()) }
    }
}

/// Where completion queues announce new completions: a descriptor for `poll` and `epoll`, or a
/// blocking wait.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<provider::CompChannel>);

impl CompletionChannel {
    /// Waits for an event and says which queue it is of. If the descriptor was made non-blocking,
    /// an error for which [`Error::is_would_block`] holds means that there is none.
    ///
    /// # Errors
    /// [`Error::Environment`] when the wait fails, also when a signal interrupts it.
    pub fn get_event(&self) -> Result<ObjectId, Error> {
        Ok(ObjectId(self.0.get_event()?))
    }

    /// The queue of the oldest event, if there is one; never waits. For programs with an event
    /// loop, which call it until there is none and then wait until the descriptor is readable:
    /// the crate `roxe-tokio` is that for tokio.
    pub fn try_get_event(&self) -> Option<ObjectId> {
        self.0.try_get_event().map(ObjectId)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// For event loops that need a raw descriptor. It stays open while a clone of the channel lives.
impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd()
    }
}

/// The result of a work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCompletion(Cqe);

impl WorkCompletion {
    /// The number given to the request.
    pub const fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Success, or the reason of the failure.
    pub const fn status(&self) -> WcStatus {
        self.0.status
    }

    /// The completion itself if it reports success, or the failure in words.
    ///
    /// # Errors
    /// [`Error::Argument`] or [`Error::Peer`], both with a [`FailedCompletion`].
    pub fn check(&self) -> Result<&Self, Error> {
        let Cqe { wr_id, qpn, opcode, status, vendor_err, .. } = self.0;
        match status {
            WcStatus::Success => Ok(self),
            _ => Err(FailedCompletion { wr_id, qpn, opcode, status, vendor_err: vendor_err.0 }.into()),
        }
    }

    /// The operation of the request.
    pub const fn opcode(&self) -> WcOpcode {
        self.0.opcode
    }

    /// Bytes received, read or swapped. On UD it counts the 40 bytes in front of the data.
    pub const fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate data that came along, as the number given to
    /// [`WorkRequest::imm`](crate::WorkRequest::imm).
    pub const fn imm_data(&self) -> Option<u32> {
        match self.0.extra {
            WcExtra::Imm(imm) => Some(u32::from_be_bytes(imm.0)),
            _ => None,
        }
    }

    /// The local key that the sender invalidated.
    pub const fn invalidated_rkey(&self) -> Option<RKey> {
        match self.0.extra {
            WcExtra::Invalidated(rkey) => Some(rkey),
            _ => None,
        }
    }

    /// The local queue pair.
    pub const fn qp_num(&self) -> Qpn {
        self.0.qpn
    }

    /// The sender's queue pair, on UD.
    pub const fn src_qp(&self) -> Qpn {
        self.0.src_qpn
    }

    /// Returns true if the first 40 bytes of the buffer hold the GRH, as for every UD message.
    pub const fn has_grh(&self) -> bool {
        self.0.grh
    }

    /// Detail of a failure: a number from the list in docs/reference/use.md, 0 if there is none.
    pub const fn vendor_err(&self) -> u32 {
        self.0.vendor_err.0
    }
}
