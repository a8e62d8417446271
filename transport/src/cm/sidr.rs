//! Lookups of datagram services (SIDR): one request, one answer, no lasting state.
//!
//! ```text
//!   client:  resolve ─ SIDR_REQ ─► waits ─ SIDR_REP ─► LookupReply   (retried, then Unreachable)
//!   server:  SIDR_REQ ─► LookupRequest ─ answer ─ SIDR_REP ─►   (a retried SIDR_REQ is a new one)
//! ```

use super::connection::{ReqRetry, Timer, wait};
use super::listen::Listeners;
use super::messages;
use super::terms::{CmError, Ece, EventKind, Ignored, ListenId, Origin, Outbox, Resolution, Resolve, Route};
use crate::time::Instant;
use roxe_wire::cm::{CommId, Mad, Message, SidrRep, SidrReq, SidrStatus, TransactionId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct ClientLookup {
    route: Route,
    timer: Timer,
    /// Retries while the peer has no listener.
    req_retry: ReqRetry,
    mad: Mad,
}

#[derive(Debug)]
struct ServerLookup {
    route: Route,
    tid: TransactionId,
    request: Box<SidrReq>,
    listener: ListenId,
}

#[derive(Debug, Default)]
pub(super) struct Sidr {
    client: BTreeMap<CommId, ClientLookup>,
    due: BTreeSet<(Instant, CommId)>,
    server: BTreeMap<CommId, ServerLookup>,
    /// Keys of `server` by the client's address and its id of the lookup.
    by_client: BTreeMap<([u8; 16], CommId), CommId>,
}

impl Sidr {
    pub(super) fn contains(&self, id: CommId) -> bool {
        self.client.contains_key(&id) || self.server.contains_key(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.client.len() + self.server.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (CommId, Route)> {
        let client = self.client.iter().map(|(id, lookup)| (*id, lookup.route));
        client.chain(self.server.iter().map(|(id, lookup)| (*id, lookup.route)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.due.is_empty() && self.by_client.is_empty()
    }

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
        self.client.insert(id, ClientLookup { route: resolve.route, timer, req_retry, mad });
    }

    pub(super) fn on_reply(
        &mut self,
        now: Instant,
        route: Route,
        reply: &SidrRep,
        options: u32,
        out: &mut Outbox,
    ) -> Result<(), Ignored> {
        let id = reply.request_id;
        let lookup = self.client.get(&id).ok_or(Ignored::UnknownId)?;
        if lookup.route != route {
            return Err(Ignored::Address);
        }
        if reply.status == SidrStatus::Unsupported && self.schedule_retry(now, id)? {
            return Ok(());
        }
        self.forget(id);
        let ece = Ece { vendor_id: reply.vendor_id, options };
        out.emit(id, EventKind::LookupReply(Box::new(reply.clone()), ece));
        Ok(())
    }

    /// Schedules a retry while the peer has no listener. Returns false if the time for retries is
    /// over, and an error if a retry is scheduled already.
    // clause: CM-REQ-AGAIN
    fn schedule_retry(&mut self, now: Instant, id: CommId) -> Result<bool, Ignored> {
        let lookup = self.client.get_mut(&id).ok_or(Ignored::UnknownId)?;
        if lookup.req_retry.is_pausing {
            return Err(Ignored::Duplicate);
        }
        let Some(next) = lookup.req_retry.pause(now) else { return Ok(false) };
        let before = lookup.timer.due.replace(next);
        before.map(|due| self.due.remove(&(due, id)));
        self.due.insert((next, id));
        Ok(true)
    }

    /// Returns true if this lookup of this client is pending.
    pub(super) fn is_pending(&self, route: Route, request: CommId) -> bool {
        self.by_client.contains_key(&(route.remote.0, request))
    }

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
        out.emit(id, EventKind::LookupRequest(origin, request.clone()));
        self.server.insert(id, ServerLookup { route, tid, request, listener });
    }

    pub(super) fn answer(
        &mut self,
        id: CommId,
        resolution: &Resolution,
        listeners: &mut Listeners,
        out: &mut Outbox,
    ) -> Result<(), CmError> {
        let lookup = self.server.remove(&id).ok_or(CmError::UnknownId)?;
        self.by_client.remove(&(lookup.route.remote.0, lookup.request.request_id));
        listeners.leave(lookup.listener);
        let message = Message::SidrRep(messages::sidr_rep(&lookup.request, resolution));
        out.send_mad(lookup.route, Mad { tid: lookup.tid, modifier: resolution.ece.options, message });
        Ok(())
    }

    /// Releases a lookup; a client gets a rejection. Returns false if there is no such lookup.
    pub(super) fn destroy(&mut self, id: CommId, listeners: &mut Listeners, out: &mut Outbox) -> bool {
        self.forget(id) || self.answer(id, &Resolution::refused(SidrStatus::Reject), listeners, out).is_ok()
    }

    fn forget(&mut self, id: CommId) -> bool {
        let Some(lookup) = self.client.remove(&id) else { return false };
        lookup.timer.due.map(|due| self.due.remove(&(due, id)));
        true
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Retransmits or gives up lookups whose timer is due.
    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, id));
            let Some(lookup) = self.client.get_mut(&id) else { continue };
            let was_pausing = std::mem::take(&mut lookup.req_retry.is_pausing);
            if was_pausing {
                lookup.timer.start(now);
            }
            if was_pausing || lookup.timer.restart(now) {
                out.send_mad(lookup.route, lookup.mad.clone());
                self.due.extend(lookup.timer.due.map(|due| (due, id)));
            } else {
                self.client.remove(&id);
                out.emit(id, EventKind::Unreachable);
            }
        }
    }
}
