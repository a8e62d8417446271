//! [`Session`]: what a verb, a message or a timer works with, under the lock of the connection
//! manager.
//!
//! Who has a connection, or listens, is known by [`CmHandler`]. Touches the machine and the engine.

use super::mad_sender::MadSender;
use roxe_engine::engine::Engine;
use roxe_net::probe::Probe;
use roxe_transport::cm::{Cm, Cx, Ece, Event, EventKind, ListenId, Origin, Refusal, Resolution, Route};
use roxe_transport::time::Instant;
use roxe_wire::cm::{CommId, Mad, Message, PrivateData, Req, SidrReq, SidrStatus};
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

/// Connections that are ended at a time when the process ends: the machine holds a few thousand
/// messages.
const MAX_AT_ONCE: usize = 64;

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
/// [`Agent::run`](super::agent::Agent::run).
pub(crate) struct Session<'a> {
    /// The machine.
    pub(crate) cm: &'a mut Cm,
    /// Whose.
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
            self.note_peer(&event.kind);
            self.tell(event);
        }
    }

    /// Tells who has the connection or listens what happened; it may call the machine's verbs.
    fn tell(&mut self, event: Event) {
        let comm = event.id;
        match event.kind {
            EventKind::ConnectRequest(origin, req, ece) => self.offer(Request::Connection(&req, ece), comm, origin),
            EventKind::LookupRequest(origin, req) => self.offer(Request::Lookup(&req), comm, origin),
            kind => {
                if let Some(id) = self.ids.get(&comm).map(Arc::clone) {
                    id.on_event(self, comm, kind);
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
        if inbox.messages.iter().any(|(_, mad)| ends_connection(&mad.message)) {
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
}

/// Whether a program may hear of the end of its connection by this message.
const fn ends_connection(message: &Message) -> bool {
    matches!(message, Message::Dreq(_) | Message::Drep(_) | Message::Rej(_))
}
