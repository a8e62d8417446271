//! Completion queues and channels: they report the completion of work requests.

use crate::{Context, Error, FailedCompletion, ObjectId, PeerError, WcOpcode, WcStatus};
use roxe_provider as provider;
use roxe_transport::wr::{Cqe, WcExtra};
use roxe_wire::{Qpn, RKey};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Polls between two readings of the clock in [`CompletionQueue::wait`].
const POLLS_PER_CLOCK: u32 = 64;

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`Error::Resources`] if the process has no free descriptor.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, Error> {
        Ok(CompletionChannel(self.0.create_comp_channel()?))
    }

    /// Creates a completion queue for at least `cqe` completions. An overflow makes the queue and
    /// its queue pairs unusable, so `cqe` should be the maximum number of outstanding requests.
    ///
    /// # Errors
    /// [`Error::Argument`] if `cqe` is zero or exceeds the limit; [`Error::Resources`] if the
    /// device has its maximum number of queues.
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue, Error> {
        CompletionQueue::create(self, cqe, None)
    }

    /// Creates a completion queue that can raise events on `channel`.
    ///
    /// # Errors
    /// Errors of [`create_cq`](Self::create_cq).
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
        let init = provider::CqInit { cqe, channel, user_context: id.0, ..provider::CqInit::default() };
        let cq = context.0.create_cq(init)?;
        Ok(Self { cq, id })
    }

    /// Moves completions to `out`, oldest first, until `out` is full or the queue is empty; returns
    /// them. If the queue is empty, this thread receives and processes packets.
    ///
    /// A queue that has overflowed still returns the completions in it, but gets no more: the
    /// asynchronous event [`CqErr`](crate::AsyncEventKind::CqErr) reports the overflow.
    ///
    /// # Errors
    /// None at present.
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

    /// Polls until there is a completion, and returns it. A long wait yields the processor to other
    /// threads.
    ///
    /// # Errors
    /// [`Error::Peer`] after `timeout`; errors of [`poll`](Self::poll). A completion with a failed
    /// status is not an error of this method: see [`WorkCompletion::check`].
    pub fn wait(&self, timeout: Duration) -> Result<WorkCompletion, Error> {
        let deadline = Instant::now().checked_add(timeout);
        let mut one = [WorkCompletion::default()];
        for polls in 0u32.. {
            if let [completion] = self.poll(&mut one)? {
                return Ok(*completion);
            }
            let reads_clock = polls % POLLS_PER_CLOCK == POLLS_PER_CLOCK - 1;
            if reads_clock && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
        }
        Err(PeerError::Timeout(timeout).into())
    }

    /// Requests one event on the channel for the next completion; with `solicited_only`, for the
    /// next one that is solicited or failed. Completions that are already queued raise no event, so
    /// poll once more between this call and the wait.
    pub fn req_notify(&self, solicited_only: bool) {
        self.cq.req_notify(solicited_only);
    }

    /// Raises one event per `count` completions, or `period` (at most 65 ms) after the first
    /// completion without an event. A count of 1 or a period of 0 restores one event per
    /// completion.
    pub fn moderate(&self, count: u16, period: Duration) {
        let period = u16::try_from(period.as_micros()).unwrap_or(u16::MAX);
        self.cq.moderate(provider::Moderation { count, period });
    }

    /// Changes the capacity to at least `cqe` completions; queued completions stay.
    ///
    /// # Errors
    /// [`Error::Argument`] if more than `cqe` completions are queued, or `cqe` is zero or exceeds
    /// the limit.
    pub fn resize(&self, cqe: u32) -> Result<(), Error> {
        Ok(self.cq.resize(cqe)?)
    }

    /// Returns the identity of the queue, as [`CompletionChannel::get_event`] does.
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    pub(crate) fn wrap(cq: &Arc<provider::Cq>) -> Self {
        Self { cq: Arc::clone(cq), id: ObjectId(cq.user_context()) }
    }
}

/// A channel on which completion queues raise events. A program waits on it, or polls its
/// descriptor with `poll` or `epoll`.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<provider::CompChannel>);

impl CompletionChannel {
    /// Waits for an event; returns the identity of the queue that raised it.
    ///
    /// # Errors
    /// [`Error::NotYet`] if a signal interrupts the wait or, with the descriptor in non-blocking
    /// mode, if there is no event ([`Error::is_would_block`]).
    pub fn get_event(&self) -> Result<ObjectId, Error> {
        Ok(ObjectId(self.0.get_event()?))
    }

    /// Removes the oldest event, and returns the identity of its queue; `None` without an event.
    /// Never waits. An event loop calls it until it returns `None`, and then waits until the
    /// descriptor is readable. The crate `roxe-tokio` does so for tokio.
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
    /// Returns the `wr_id` of the request.
    pub const fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns `Success`, or the reason of the failure.
    pub const fn status(&self) -> WcStatus {
        self.0.status
    }

    /// Returns the completion itself if its status is success.
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

    /// Returns the operation that completed.
    pub const fn opcode(&self) -> WcOpcode {
        self.0.opcode
    }

    /// Returns the number of bytes that were received, read or returned by an atomic. On UD it
    /// includes the 40 bytes of the GRH before the data.
    pub const fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Returns the immediate data of the message: the number that the sender passed to
    /// [`WorkRequest::imm`](crate::WorkRequest::imm). `None` if the message has none.
    pub const fn imm_data(&self) -> Option<u32> {
        match self.0.extra {
            WcExtra::Imm(imm) => Some(u32::from_be_bytes(imm.0)),
            _ => None,
        }
    }

    /// Returns the local key that the sender invalidated; `None` if it invalidated none.
    pub const fn invalidated_rkey(&self) -> Option<RKey> {
        match self.0.extra {
            WcExtra::Invalidated(rkey) => Some(rkey),
            _ => None,
        }
    }

    /// Returns the number of the local queue pair.
    pub const fn qp_num(&self) -> Qpn {
        self.0.qpn
    }

    /// Returns the number of the sender's queue pair, on UD.
    pub const fn src_qp(&self) -> Qpn {
        self.0.src_qpn
    }

    /// Returns true if the first 40 bytes of the buffer are the GRH, as in every UD message.
    pub const fn has_grh(&self) -> bool {
        self.0.grh
    }

    /// Returns the detail of a failure: a number that docs/reference/completions.md lists; 0 if
    /// there is none.
    pub const fn vendor_err(&self) -> u32 {
        self.0.vendor_err.0
    }
}
