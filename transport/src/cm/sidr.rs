//! Lookups of datagram services (SIDR): one question, one answer, nothing that stays.
//!
//! ```text
//!   client:  resolve ─ SIDR_REQ ─► asked ─ SIDR_REP ─► LookupReply   (repeated, then Unreachable)
//!   server:  SIDR_REQ ─► LookupRequest, asked ─ answer ─ SIDR_REP ─►   (asked again: a new one)
//! ```

use super::connection::{ReqRetry, Timer, wait};
use super::listen::Listeners;
use super::messages;
use super::terms::{CmError, Ece, EventKind, Ignored, ListenId, Origin, Outbox, Resolution, Resolve, Route};
use crate::time::Instant;
use roxe_wire::cm::{CommId, Mad, Message, SidrRep, SidrReq, SidrStatus, TransactionId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Question {
    route: Route,
    timer: Timer,
    /// With a peer where nobody listens.
    req_retry: ReqRetry,
    /// The SIDR_REQ, for when it has to be sent again.
    mad: Mad,
}

#[derive(Debug)]
struct Asked {
    route: Route,
    tid: TransactionId,
    request: Box<SidrReq>,
    listener: ListenId,
}

/// All lookups, of clients and of servers.
#[derive(Debug, Default)]
pub(super) struct Sidr {
    questions: BTreeMap<CommId, Question>,
    due: BTreeSet<(Instant, CommId)>,
    asked: BTreeMap<CommId, Asked>,
    /// By the client's address and its name of the lookup.
    by_client: BTreeMap<([u8; 16], CommId), CommId>,
}

impl Sidr {
    pub(super) fn contains(&self, id: CommId) -> bool {
        self.questions.contains_key(&id) || self.asked.contains_key(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.questions.len() + self.asked.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (CommId, Route)> {
        let questions = self.questions.iter().map(|(id, question)| (*id, question.route));
        questions.chain(self.asked.iter().map(|(id, asked)| (*id, asked.route)))
    }

    /// Whether nothing is left of any lookup.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.due.is_empty() && self.by_client.is_empty()
    }

    /// A client asks.
    // clause: CM-SIDR
    pub(super) fn resolve(
        &mut self,
        now: Instant,
        id: CommId,
        tid: TransactionId,
        resolve: &Resolve,
        out: &mut Outbox,
    ) {
        let mad = Mad { tid, modifier: 0, message: messages::sidr_req(id, resolve).into() };
        let mut timer = Timer::new(wait(resolve.response_timeout), resolve.max_cm_retries);
        timer.start(now);
        out.send_mad(resolve.route, mad.clone());
        self.due.extend(timer.due.map(|due| (due, id)));
        let req_retry = ReqRetry::new(resolve.retry_for);
        self.questions.insert(id, Question { route: resolve.route, timer, req_retry, mad });
    }

    /// A service answers, or there is none.
    pub(super) fn on_reply(
        &mut self,
        now: Instant,
        route: Route,
        reply: &SidrRep,
        options: u32,
        out: &mut Outbox,
    ) -> Result<(), Ignored> {
        let id = reply.request_id;
        let question = self.questions.get(&id).ok_or(Ignored::UnknownId)?;
        if question.route != route {
            return Err(Ignored::Address);
        }
        if reply.status == SidrStatus::Unsupported && self.will_ask_again(now, id)? {
            return Ok(());
        }
        self.forget(id);
        let ece = Ece { vendor_id: reply.vendor_id, options };
        out.tell(id, EventKind::LookupReply(Box::new(reply.clone()), ece));
        Ok(())
    }

    /// Nobody is there: whether to ask again, after a pause; an error if that is said once more in
    /// the pause.
    // clause: CM-REQ-AGAIN
    fn will_ask_again(&mut self, now: Instant, id: CommId) -> Result<bool, Ignored> {
        let question = self.questions.get_mut(&id).ok_or(Ignored::UnknownId)?;
        if question.req_retry.is_pausing {
            return Err(Ignored::Duplicate);
        }
        let Some(next) = question.req_retry.pause(now) else { return Ok(false) };
        let before = question.timer.due.replace(next);
        before.map(|due| self.due.remove(&(due, id)));
        self.due.insert((next, id));
        Ok(true)
    }

    /// Whether this lookup of this client waits for an answer already.
    pub(super) fn is_asked(&self, route: Route, request: CommId) -> bool {
        self.by_client.contains_key(&(route.remote.0, request))
    }

    /// A client asks one of our services.
    pub(super) fn on_request(
        &mut self,
        id: CommId,
        tid: TransactionId,
        origin: Origin,
        request: &SidrReq,
        out: &mut Outbox,
    ) {
        let Origin { listener, route } = origin;
        self.by_client.insert((route.remote.0, request.request_id), id);
        let request = Box::new(request.clone());
        out.tell(id, EventKind::LookupRequest(origin, request.clone()));
        self.asked.insert(id, Asked { route, tid, request, listener });
    }

    /// The service's answer.
    pub(super) fn answer(
        &mut self,
        id: CommId,
        resolution: &Resolution,
        listeners: &mut Listeners,
        out: &mut Outbox,
    ) -> Result<(), CmError> {
        let asked = self.asked.remove(&id).ok_or(CmError::UnknownId)?;
        self.by_client.remove(&(asked.route.remote.0, asked.request.request_id));
        listeners.leave(asked.listener);
        let message = Message::SidrRep(messages::sidr_rep(&asked.request, resolution));
        out.send_mad(asked.route, Mad { tid: asked.tid, modifier: resolution.ece.options, message });
        Ok(())
    }

    /// Our program is not interested any more; a client is told so. False if there is no such
    /// lookup.
    pub(super) fn destroy(&mut self, id: CommId, listeners: &mut Listeners, out: &mut Outbox) -> bool {
        self.forget(id) || self.answer(id, &Resolution::refused(SidrStatus::Reject), listeners, out).is_ok()
    }

    fn forget(&mut self, id: CommId) -> bool {
        let Some(question) = self.questions.remove(&id) else { return false };
        question.timer.due.map(|due| self.due.remove(&(due, id)));
        true
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Asks again what was not answered in time, or when a pause is over; or gives up.
    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, id));
            let Some(question) = self.questions.get_mut(&id) else { continue };
            let was_pausing = std::mem::take(&mut question.req_retry.is_pausing);
            if was_pausing {
                question.timer.start(now);
            }
            if was_pausing || question.timer.again(now) {
                out.send_mad(question.route, question.mad.clone());
                self.due.extend(question.timer.due.map(|due| (due, id)));
            } else {
                self.questions.remove(&id);
                out.tell(id, EventKind::Unreachable);
            }
        }
    }
}
