//! Posting sends: requests enter the state machine, and dropping the guard transmits.

use super::core::{Inner, QpCore};
use super::verbs::Qp;
use roxe_base::clock;
use roxe_base::instruments;
use roxe_base::lock::{MutexGuard, rank};
use roxe_check::explain::because;
use roxe_check::{Event, emit, is_checking};
use roxe_engine::queue_pair::VisitOutcome;
use roxe_memory::prefetch::prefetch;
use roxe_transport::qp::PostError;
use roxe_transport::wr::{SendFlags, SendRequest};

impl Qp {
    /// Posts `requests` in order and sends the packets that can leave now. On an error, returns the
    /// index of the refused request; those before it are posted.
    pub fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        let mut guard = self.send();
        requests.iter().enumerate().try_for_each(|(at, request)| guard.push(request).map_err(|error| (at, error)))
    }

    /// Locks the queue pair for posting. Dropping the guard sends the packets
    /// that can leave now.
    #[inline]
    pub fn send(&self) -> SendGuard<'_> {
        prefetch(&*self.core);
        self.core.engine().enter_to_send();
        SendGuard { core: &self.core, inner: Some(self.core.inner.lock()), pushed: 0 }
    }
}

/// A queue pair locked for posting.
#[derive(Debug)]
pub struct SendGuard<'a> {
    core: &'a QpCore,
    /// `None` only during drop.
    inner: Option<MutexGuard<'a, rank::Qp, Inner>>,
    pushed: u32,
}

impl SendGuard<'_> {
    /// Posts one request. Inline data is copied now, other data when it is sent.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.push_to_srq(0, request)
    }

    /// Posts like [`SendGuard::push`], to shared receive queue `srqn` of the peer (XRC only).
    pub fn push_to_srq(&mut self, srqn: u32, request: &SendRequest<'_>) -> Result<(), PostError> {
        if instruments::any() { self.push_watched(srqn, request) } else { self.queue_send(srqn, request) }
    }

    /// Posts like [`SendGuard::queue_send`], while the checker or the weakest legal card is on.
    #[cold]
    #[inline(never)]
    fn push_watched(&mut self, srqn: u32, request: &SendRequest<'_>) -> Result<(), PostError> {
        let posted = if self.card_room() == 0 { Err(PostError::QueueFull) } else { self.queue_send(srqn, request) };
        let resources = &self.core.resources;
        if let (Ok(()), Some(inner)) = (posted, &mut self.inner) {
            if is_checking() {
                inner.state.watch.watch_send(resources.lists(), request, resources.signals_all);
            }
            if let Some(weak) = &mut inner.state.weak {
                weak.on_posted(resources.signals_all || request.flags.contains(SendFlags::SIGNALED));
            }
        }
        emit(|| Event::of_posted_send(resources.id, request, &posted));
        posted
    }

    #[inline]
    fn queue_send(&mut self, srqn: u32, request: &SendRequest<'_>) -> Result<(), PostError> {
        let inner = self.inner.as_mut().filter(|inner| !inner.is_cut_off).ok_or(PostError::State)?;
        let room = inner.machine.send_room();
        // An error of the state machine takes precedence over a full queue.
        let posted = if room != 0 && inner.state.free_sends(room, &self.core.resources.send_cq) == 0 {
            Err(PostError::QueueFull)
        } else {
            inner.machine.post_send_to_srq(srqn, request)
        };
        posted.inspect_err(|error| because(|| inner.machine.why_send_refused(*error, request)))?;
        self.pushed += 1;
        Ok(())
    }

    /// Returns the number of free slots of the queue.
    pub fn room(&mut self) -> u32 {
        let card_room = self.card_room();
        let Some(inner) = self.inner.as_mut() else { return 0 };
        let room = inner.machine.send_room();
        inner.state.free_sends(room, &self.core.resources.send_cq).min(card_room)
    }

    /// Returns the free slots as the weakest legal card counts them: without unpolled completions.
    fn card_room(&mut self) -> u32 {
        let Some(state) = self.inner.as_mut().map(|inner| &mut inner.state) else { return u32::MAX };
        let Some(weak) = &mut state.weak else { return u32::MAX };
        weak.free_sends(|| {
            state.unpolled.forget(self.core.resources.send_cq.polled());
            state.unpolled.len()
        })
    }

    /// Takes back the requests posted through this guard, as if they had never been posted.
    pub fn take_back(&mut self) {
        let pushed = std::mem::take(&mut self.pushed);
        if let Some(inner) = &mut self.inner {
            inner.machine.retract_sends(pushed);
            inner.state.watch.take_back(pushed);
            inner.state.weak.iter_mut().for_each(|weak| weak.take_back(pushed));
            emit(|| Event::SendsWithdrawn { qp: self.core.resources.id, count: pushed as usize });
        }
    }
}

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        // A list does not wait for more requests.
        if self.pushed == 1 && self.core.coalesce(&mut inner) {
            return self.core.engine().leave();
        }
        let now = clock::now();
        inner.delayed_ack.on_post(now);
        self.core.end_visit(inner, VisitOutcome::default(), now);
        self.core.engine().leave_after_send(now);
    }
}
