//! [`Session`]: access to the state machine under the connection manager's lock; [`MadSender`]:
//! messages through queue pair 1.
//!
//! The kernel ends the connections of a dead process. Here the card dies with its process, so the
//! other processes check their peers: on this host the slot in the peer's communication ID
//! identifies a process, and its mailbox shows if the process lives. On other hosts a connection
//! ends when its queue pair or program sends an error or a disconnect. A request is retransmitted
//! for more than a minute, but a host without an open card answers at once with ICMP, which a probe
//! ([`roxe_net::probe`]) receives.

use roxe_engine::engine::Engine;
use roxe_engine::gsi::GSI_ORDINAL;
use roxe_engine::shutdown;
use roxe_engine::tx::Batch;
use roxe_net::link::HOP_LIMIT;
use roxe_net::probe::Probe;
use roxe_net::slot::Slot;
use roxe_net::udp::UdpLink;
use roxe_transport::cm::{Cm, Cx, Ece, EventKind, ListenId, Origin, Outgoing, Peer, Refusal, Resolution, Route, State};
use roxe_transport::cx::{PacketNote, TxReason};
use roxe_transport::time::Instant;
use roxe_transport::wr::Av;
use roxe_wire::cm::{CommId, MAD_LEN, Mad, Message, PrivateData, Req, SidrReq, SidrStatus, gsi_header};
use roxe_wire::{Gid, Header, Psn, Qpn};
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of connections ended per batch when the process ends; the state machine holds a
/// few thousand messages.
const MAX_ENDED_PER_BATCH: usize = 64;
/// Period of checks of peers and of probes: a dead process is detected within it.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Number of successive refusals by the network before a request is given up, so that a card opened
/// meanwhile still gets the request.
const MIN_REFUSALS: u32 = 2;

#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Connection(&'a Req, Ece),
    /// Request for the queue pair of a datagram service.
    Lookup(&'a SidrReq),
}

/// Owner of a connection, lookup or listener (`ib_cm_handler` of the kernel). Called under the lock
/// of the connection manager.
pub(crate) trait CmHandler: Debug + Send + Sync {
    fn on_event(&self, session: &mut Session<'_>, comm: CommId, kind: EventKind);

    /// Handles a request to its listener; returns false if the listener refuses it.
    fn on_request(&self, session: &mut Session<'_>, request: Request<'_>, comm: CommId, origin: Origin) -> bool;
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) messages: VecDeque<(Route, Mad)>,
    /// Deadline for which the engine's timer has called.
    pub(super) call: Option<Instant>,
}

/// An unanswered request to another host.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) id: CommId,
    pub(super) route: Route,
    pub(super) probe: Option<Probe>,
    /// Successive answers that no card is open there.
    pub(super) refusals: u32,
}

/// Access to the state machine for verbs and handlers, under the agent's lock. They must not wait,
/// and must not call [`Agent::run`](super::Agent::run).
pub(crate) struct Session<'a> {
    pub(crate) cm: &'a mut Cm,
    pub(crate) engine: &'a Engine,
    pub(crate) ids: &'a mut HashMap<CommId, Arc<dyn CmHandler>>,
    pub(crate) listeners: &'a mut HashMap<ListenId, Arc<dyn CmHandler>>,
    pub(crate) cx: Cx<'a>,
    /// Time of the next check of peers and unanswered requests.
    pub(super) check_at: &'a mut Option<Instant>,
    pub(super) unanswered: &'a mut Vec<Unanswered>,
    /// Status of a request that times out now.
    pub(crate) timeout_errno: i32,
    pub(super) mad_sender: &'a mut MadSender,
}

impl Session<'_> {
    /// Sends pending messages. The session does it around handlers; a handler calls it before an
    /// event after which the program may exit.
    pub(crate) fn send(&mut self) {
        self.mad_sender.send_all(self.cm, self.engine);
    }

    /// Ends these connections and lookups when the process ends.
    pub(super) fn end_all(&mut self, from: &[(CommId, Route)]) {
        for some in from.chunks(MAX_ENDED_PER_BATCH) {
            for (id, _) in some {
                self.cm.shut_down(&mut self.cx, *id);
            }
            self.send();
        }
    }

    pub(super) fn settle(&mut self) {
        loop {
            self.send();
            let Some(event) = self.cm.poll_event() else { return };
            let (comm, kind) = (event.id, event.kind);
            // There may be a peer to check from now on.
            if self.check_at.is_none() && matches!(kind, EventKind::Established | EventKind::ConnectReply(..)) {
                *self.check_at = Some(self.cx.now.after(CHECK_PERIOD));
            }
            // Handlers may call verbs of the state machine.
            match kind {
                EventKind::ConnectRequest(origin, req, ece) => self.offer(Request::Connection(&req, ece), comm, origin),
                EventKind::LookupRequest(origin, req) => self.offer(Request::Lookup(&req), comm, origin),
                kind => {
                    if let Some(id) = self.ids.get(&comm).map(Arc::clone) {
                        id.on_event(self, comm, kind);
                    }
                }
            }
        }
    }

    /// Offers a request to its listener, and rejects it if the listener refuses, as the kernel
    /// does.
    // clause: CM-BACKLOG
    fn offer(&mut self, request: Request<'_>, comm: CommId, origin: Origin) {
        let listener = self.listeners.get(&origin.listener).map(Arc::clone);
        if listener.is_some_and(|listener| listener.on_request(self, request, comm, origin)) {
            return;
        }
        // Cannot fail: the request is new.
        let _ = match request {
            Request::Connection(..) => self.cm.reject(comm, &Refusal::new(PrivateData::EMPTY)),
            Request::Lookup(_) => self.cm.answer(comm, &Resolution::refused(SidrStatus::Reject)),
        };
    }

    /// Processes an inbox. Messages and data arrive by different channels without a common order.
    /// Before a message that ends a connection, all data that has arrived is received, so that the
    /// program has the completions before the end.
    // clause: CM-END-LAST
    pub(super) fn process(&mut self, inbox: Inbox) {
        let ends_connection =
            |(_, mad): &(Route, Mad)| matches!(mad.message, Message::Dreq(_) | Message::Drep(_) | Message::Rej(_));
        if inbox.messages.iter().any(ends_connection) {
            self.engine.receive_all_arrived();
        }
        for (route, mad) in inbox.messages {
            if let Err(why) = self.cm.handle_message(&mut self.cx, route, &mad) {
                self.engine.counters().count_ignored(why);
            }
            self.settle();
        }
        if inbox.call.is_some() {
            self.cm.handle_timeout(self.cx.now);
            self.check_peers();
            self.settle();
        }
    }

    /// Watches the request `id`, sent along `route`, if it leaves this host.
    pub(crate) fn watch_answer(&mut self, id: CommId, route: Route) {
        let is_remote = self.engine.link(route.remote).is_none() && !route.remote.is_multicast();
        if is_remote {
            self.unanswered.push(Unanswered { id, route, probe: None, refusals: 0 });
            let at = self.cx.now.after(CHECK_PERIOD);
            *self.check_at = Some(self.check_at.map_or(at, |before| before.min(at)));
        }
    }

    // clause: CM-PEER-GONE
    pub(super) fn check_peers(&mut self) {
        if self.check_at.is_none_or(|at| at > self.cx.now) {
            return;
        }
        let (mut known, mut is_watching, mut lost) = (Vec::new(), false, Vec::new());
        for peer in self.cm.peers() {
            match liveness_of(self.engine, &peer, &mut known) {
                Liveness::Unwatched => {}
                Liveness::Alive => is_watching = true,
                Liveness::Dead => lost.push(peer.id),
            }
        }
        let is_watching = self.check_unanswered() || is_watching;
        *self.check_at = is_watching.then(|| self.cx.now.after(CHECK_PERIOD));
        if !lost.is_empty() {
            // Data of a dead process is delivered before the end, as with a DREQ.
            self.engine.receive_all_arrived();
            self.engine.scheduler.note_death(self.cx.now);
        }
        for id in lost {
            // Cannot fail: the peer was in the list above.
            let _ = self.cm.lose_peer(&mut self.cx, id);
        }
    }

    /// Reads the probes and gives up requests to hosts without a card. Returns true if other
    /// requests are left.
    // clause: CM-RETRIES
    pub(super) fn check_unanswered(&mut self) -> bool {
        let cm = &self.cm;
        self.unanswered.retain(|request| cm.state(request.id) == Some(State::ReqSent));
        let mut lost = Vec::new();
        let is_refusal = |errno: &i32| matches!(*errno, libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH);
        for request in self.unanswered.iter_mut() {
            let answer = match request.probe.as_ref().map(Probe::icmp_error) {
                // The answer may still arrive.
                Some(None) => continue,
                Some(answer) => answer,
                None => None,
            };
            let refusal = answer.and_then(|e| e.raw_os_error()).filter(is_refusal);
            request.refusals = if refusal.is_some() { request.refusals + 1 } else { 0 };
            if let Some(errno) = refusal.filter(|_| request.refusals >= MIN_REFUSALS) {
                lost.push((request.id, errno));
                continue;
            }
            // Without a probe the request waits for its timeout.
            request.probe = self.engine.probe(request.route).ok();
        }
        for (id, errno) in lost {
            self.timeout_errno = errno;
            // Cannot fail: see `retain` above.
            let _ = self.cm.give_up(id);
            self.settle();
        }
        self.timeout_errno = libc::ETIMEDOUT;
        !self.unanswered.is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Liveness {
    /// The peer is in this process, or on another host.
    Unwatched,
    Alive,
    Dead,
}

/// Returns the state of a peer's process; `known` caches it.
fn liveness_of(engine: &Engine, peer: &Peer, known: &mut Vec<(Gid, Slot, Liveness)>) -> Liveness {
    let (address, slot) = (peer.route.remote, Slot::new(peer.theirs.prefix()));
    if let Some((_, _, liveness)) = known.iter().find(|(gid, of, _)| (*gid, *of) == (address, slot)) {
        return *liveness;
    }
    let is_own = engine.slot().is_ok_and(|own| own == slot);
    let liveness = if is_own || !slot.can_be_owned() || engine.link(address).is_none() {
        Liveness::Unwatched
    } else if engine.is_owned(slot) {
        Liveness::Alive
    } else {
        Liveness::Dead
    };
    known.push((address, slot, liveness));
    liveness
}

#[derive(Debug)]
pub(super) struct MadSender {
    psn: Psn,
    link: Option<Arc<UdpLink>>,
    /// True if the lock of the receive side was not free in time.
    lock_timed_out: bool,
}

impl MadSender {
    pub(super) fn new(psn: Psn) -> Self {
        Self { psn, link: None, lock_timed_out: false }
    }

    fn send_all(&mut self, cm: &mut Cm, engine: &Engine) {
        let Some(first) = cm.poll_transmit() else { return };
        let mut batch = Batch::take();
        self.add(&mut batch, &first, engine);
        while let Some(next) = cm.poll_transmit() {
            self.add(&mut batch, &next, engine);
        }
        batch.flush(engine, GSI_ORDINAL, &mut self.link);
        batch.put_back();
    }

    /// Adds a message to `batch`, which is flushed if full. A message within this host leaves at
    /// once.
    fn add(&mut self, batch: &mut Batch, outgoing: &Outgoing, engine: &Engine) {
        let Outgoing { route, mad } = outgoing;
        let av = Av { sgid: route.local, dgid: route.remote, hop_limit: HOP_LIMIT, ..Av::default() };
        let (header, mad) = (gsi_header(self.psn), mad.to_bytes());
        self.psn = self.psn.add(1);
        if !self.deliver_within_host(*route, &header, &mad, engine) && !write_packet(batch, &av, &header, &mad) {
            batch.flush(engine, GSI_ORDINAL, &mut self.link);
            write_packet(batch, &av, &header, &mad);
        }
        engine.counters().sent_mads.add(1);
    }

    /// Delivers a message within this host without the socket, and returns true, if that is
    /// possible now. In a signal handler that ends the process, this thread itself may hold the
    /// receive side, so only the first message waits for its lock.
    fn deliver_within_host(&mut self, route: Route, header: &Header, mad: &[u8; MAD_LEN], engine: &Engine) -> bool {
        if !engine.keeps_mads(route) {
            return false;
        }
        let limit = if self.lock_timed_out { Duration::ZERO } else { shutdown::LOCK_LIMIT };
        let sent = engine.route_own_mad(route, header, mad, limit);
        self.lock_timed_out = sent.is_none();
        sent == Some(true)
    }
}

/// Writes one packet into `batch`; returns false if it is full.
fn write_packet(batch: &mut Batch, av: &Av, header: &Header, mad: &[u8; MAD_LEN]) -> bool {
    let note = PacketNote::without_wr(Qpn::GSI, TxReason::Management);
    let Some(slot) = batch.room(av, Qpn::GSI, header.padded_len(MAD_LEN), &note) else { return false };
    if let Some(payload) = header.emit(MAD_LEN, slot) {
        payload.copy_from_slice(mad);
    }
    true
}
