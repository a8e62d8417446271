//! [`Session`]: what a verb, a message or a timer works with, under the lock of the connection
//! manager.
//!
//! Who has a connection, or listens, is known by [`CmHandler`]. Messages leave by queue pair 1, as
//! packets ([`MadSender`]).
//!
//! # Peers that are gone
//!
//! The kernel would end the connections of a dead process of this host: it holds what that had, and
//! sends a DREQ for each. Here the card dies with its process, so those who are left look whether
//! the others are still there: at an address of our own the slot in the peer's name of a connection
//! says which process that is, and its mailbox whether it lives. Nobody can look into other hosts;
//! there a connection ends by what its queue pair or its program sends.
//!
//! A request is repeated for more than a minute before it is given up, but a host on which nobody
//! has opened a card says so at once (ICMP), if it is asked in a way in which a process hears of it
//! ([`roxe_net::probe`]). A card that is opened within the seconds until the second such answer
//! still gets the request.
//!
//! Touches the machine, the links of the engine, the mailboxes of other processes of this host, and
//! the sockets of the probes.

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

/// Connections that are ended at a time when the process ends: the machine holds a few thousand
/// messages.
const MAX_AT_ONCE: usize = 64;
/// Between two checks of the peers: the longest time for which the end of a process stays unknown.
/// One check takes some microseconds for each process. Also between a request to another host and
/// the first question, and between questions.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// So many questions in a row have the same answer before it is believed.
const ENOUGH: u32 = 2;

/// A request of a peer.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    /// For a connection.
    Connection(&'a Req, Ece),
    /// For the queue pair of a datagram service.
    Lookup(&'a SidrReq),
}

/// Who has a connection or lookup, or listens (`ib_cm_handler` of the kernel). Called under the
/// lock of the connection manager.
pub(crate) trait CmHandler: Debug + Send + Sync {
    /// Something happened to its connection or lookup `comm`.
    fn on_event(&self, session: &mut Session<'_>, comm: CommId, kind: EventKind);

    /// A peer asks for what it listens for. False: nobody takes the request.
    fn on_request(&self, session: &mut Session<'_>, request: Request<'_>, comm: CommId, origin: Origin) -> bool;
}

/// What came while nobody looked.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) messages: VecDeque<(Route, Mad)>,
    /// The engine's timers have called for this time.
    pub(super) call: Option<Instant>,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) id: CommId,
    pub(super) route: Route,
    /// What the network was asked last.
    pub(super) probe: Option<Probe>,
    /// Times in a row that it said that nobody is there.
    pub(super) refusals: u32,
}

/// What a verb or a handler works with, under the agent's lock. It must not wait, and must not call
/// [`Agent::run`](super::Agent::run).
pub(crate) struct Session<'a> {
    pub(crate) cm: &'a mut Cm,
    pub(crate) engine: &'a Engine,
    /// Who hears of a connection or lookup.
    pub(crate) ids: &'a mut HashMap<CommId, Arc<dyn CmHandler>>,
    /// Who hears of requests.
    pub(crate) listeners: &'a mut HashMap<ListenId, Arc<dyn CmHandler>>,
    /// What the verbs of the machine take from outside.
    pub(crate) cx: Cx<'a>,
    /// When to check the peers, and the requests that nobody answers.
    pub(super) check_at: &'a mut Option<Instant>,
    /// Requests to other hosts.
    pub(super) unanswered: &'a mut Vec<Unanswered>,
    /// What a request that is given up has failed by.
    pub(crate) errno_of_silence: i32,
    pub(super) mad_sender: &'a mut MadSender,
}

impl Session<'_> {
    /// Sends what the machine has to send. Happens by itself before every call of a handler and at
    /// the end; a handler does it before it tells the program something after which that may end.
    pub(crate) fn send(&mut self) {
        self.mad_sender.send_all(self.cm, self.engine);
    }

    /// The process ends, and with it these connections and lookups.
    pub(super) fn end_all(&mut self, from: &[(CommId, Route)]) {
        for some in from.chunks(MAX_AT_ONCE) {
            for (id, _) in some {
                self.cm.shut_down(&mut self.cx, *id);
            }
            self.send();
        }
    }

    /// Lets everything leave that came of a verb or an input, until there is no more.
    pub(super) fn settle(&mut self) {
        loop {
            self.send();
            let Some(event) = self.cm.poll_event() else { return };
            let (comm, kind) = (event.id, event.kind);
            // From now on there may be a peer to check.
            if self.check_at.is_none() && matches!(kind, EventKind::Established | EventKind::ConnectReply(..)) {
                *self.check_at = Some(self.cx.now.after(CHECK_PERIOD));
            }
            // Who has the connection, or listens, may call the machine's verbs.
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

    /// Offers a request of a peer to who listens; what nobody takes is refused, as the kernel does.
    // clause: CM-BACKLOG
    fn offer(&mut self, request: Request<'_>, comm: CommId, origin: Origin) {
        let listener = self.listeners.get(&origin.listener).map(Arc::clone);
        if listener.is_some_and(|listener| listener.on_request(self, request, comm, origin)) {
            return;
        }
        // It is new, so the machine knows it.
        let _ = match request {
            Request::Connection(..) => self.cm.reject(comm, &Refusal::new(PrivateData::EMPTY)),
            Request::Lookup(_) => self.cm.answer(comm, &Resolution::refused(SidrStatus::Reject)),
        };
    }

    /// Works off an inbox. Management messages and data come by different ways (a mailbox and a
    /// ring, say), and none of these knows what has come by the others: before a message that ends
    /// a connection counts, all that arrived before it is received, so a program that hears of the
    /// end has the completions of what its peer sent or acknowledged.
    // clause: CM-END-LAST
    pub(super) fn take_in(&mut self, inbox: Inbox) {
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

    /// The request `id` has just left along `route`.
    pub(crate) fn watch_answer(&mut self, id: CommId, route: Route) {
        let is_far = self.engine.link(route.remote).is_none() && !route.remote.is_multicast();
        if is_far {
            self.unanswered.push(Unanswered { id, route, probe: None, refusals: 0 });
            let at = self.cx.now.after(CHECK_PERIOD);
            *self.check_at = Some(self.check_at.map_or(at, |before| before.min(at)));
        }
    }

    /// Checks the peers if it is time to, and ends the connections to those that are gone. Stops
    /// when there is none left to check.
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
            // What the dead have sent is told before their end, as with a DREQ.
            self.engine.receive_all_arrived();
            self.engine.scheduler.note_death(self.cx.now);
        }
        for id in lost {
            // It was there a moment ago.
            let _ = self.cm.lose_peer(&mut self.cx, id);
        }
    }

    /// Looks what the network has said, and gives up those requests that reach nobody. Whether
    /// there are others.
    // clause: CM-RETRIES
    pub(super) fn check_unanswered(&mut self) -> bool {
        let cm = &self.cm;
        self.unanswered.retain(|request| cm.state(request.id) == Some(State::ReqSent));
        let mut lost = Vec::new();
        let says_nobody = |errno: &i32| matches!(*errno, libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH);
        for request in self.unanswered.iter_mut() {
            let answer = match request.probe.as_ref().map(Probe::answer) {
                // It may still come.
                Some(None) => continue,
                Some(answer) => answer,
                None => None,
            };
            let said = answer.and_then(|e| e.raw_os_error()).filter(says_nobody);
            request.refusals = if said.is_some() { request.refusals + 1 } else { 0 };
            if let Some(errno) = said.filter(|_| request.refusals >= ENOUGH) {
                lost.push((request.id, errno));
                continue;
            }
            // Who cannot ask waits as long as ever.
            request.probe = self.engine.probe(request.route).ok();
        }
        for (id, errno) in lost {
            self.errno_of_silence = errno;
            // It was there a moment ago.
            let _ = self.cm.give_up(id);
            self.settle();
        }
        self.errno_of_silence = libc::ETIMEDOUT;
        !self.unanswered.is_empty()
    }
}

/// Whether the process of a peer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Liveness {
    /// It lives in this process, or where nobody can look.
    Unwatched,
    Alive,
    Dead,
}

/// Whether the process of a peer lives; `known` is what was found before of processes.
fn liveness_of(engine: &Engine, peer: &Peer, known: &mut Vec<(Gid, Slot, Liveness)>) -> Liveness {
    let (address, slot) = (peer.route.remote, Slot::new(peer.theirs.prefix()));
    let before = known.iter().find(|(gid, of, _)| (*gid, *of) == (address, slot));
    before.map(|(_, _, liveness)| *liveness).unwrap_or_else(|| {
        let liveness = check(engine, address, slot);
        known.push((address, slot, liveness));
        liveness
    })
}

fn check(engine: &Engine, address: Gid, slot: Slot) -> Liveness {
    let is_own = engine.slot().is_ok_and(|own| own == slot);
    if is_own || !slot.can_be_owned() || engine.link(address).is_none() {
        Liveness::Unwatched
    } else if engine.is_owned(slot) {
        Liveness::Alive
    } else {
        Liveness::Dead
    }
}

/// The way out of queue pair 1.
#[derive(Debug)]
pub(super) struct MadSender {
    /// The PSN of the next message; receivers of datagrams ignore it.
    psn: Psn,
    /// The link of the last message.
    link: Option<Arc<UdpLink>>,
    /// The last time, the lock of the receive side was not free in time.
    was_kept_waiting: bool,
}

impl MadSender {
    /// One whose first message has this PSN.
    pub(super) fn new(psn: Psn) -> Self {
        Self { psn, link: None, was_kept_waiting: false }
    }

    fn send_all(&mut self, cm: &mut Cm, engine: &Engine) {
        let Some(first) = cm.poll_transmit() else { return };
        let mut batch = Batch::take();
        self.put(&mut batch, &first, engine);
        while let Some(next) = cm.poll_transmit() {
            self.put(&mut batch, &next, engine);
        }
        batch.flush(engine, GSI_ORDINAL, &mut self.link);
        batch.put_back();
    }

    /// Puts a message into `batch`; what is in there leaves if it is full. One that stays on this
    /// host leaves at once.
    fn put(&mut self, batch: &mut Batch, outgoing: &Outgoing, engine: &Engine) {
        let Outgoing { route, mad } = outgoing;
        let av = Av { sgid: route.local, dgid: route.remote, hop_limit: HOP_LIMIT, ..Av::default() };
        let (header, mad) = (gsi_header(self.psn), mad.to_bytes());
        self.psn = self.psn.add(1);
        if !self.put_to_own_host(*route, &header, &mad, engine) && !write(batch, &av, &header, &mad) {
            batch.flush(engine, GSI_ORDINAL, &mut self.link);
            write(batch, &av, &header, &mad);
        }
        engine.counters().sent_mads.add(1);
    }

    /// Sends a message that stays on this host, if it does and can be sent without the socket now.
    /// The thread that holds the receive side may be this very one, in a signal handler that ends
    /// the process: waits for it once only.
    fn put_to_own_host(&mut self, route: Route, header: &Header, mad: &[u8; MAD_LEN], engine: &Engine) -> bool {
        if !engine.keeps_mads(route) {
            return false;
        }
        let limit = if self.was_kept_waiting { Duration::ZERO } else { shutdown::LOCK_LIMIT };
        let sent = engine.route_own_mad(route, header, mad, limit);
        self.was_kept_waiting = sent.is_none();
        sent == Some(true)
    }
}

/// Writes one packet into `batch`; false if it is full.
fn write(batch: &mut Batch, av: &Av, header: &Header, mad: &[u8; MAD_LEN]) -> bool {
    let note = PacketNote::answer(Qpn::GSI, TxReason::Management);
    let Some(slot) = batch.room(av, Qpn::GSI, header.padded_len(MAD_LEN), &note) else { return false };
    if let Some(payload) = header.emit(MAD_LEN, slot) {
        payload.copy_from_slice(mad);
    }
    true
}
