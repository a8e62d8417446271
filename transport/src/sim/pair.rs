//! Two queue pairs, the network between them, and a clock that jumps to the next thing that happens.
//!
//! May touch: the public face of `qp` and the rest of `sim`. Drives the QPs as an engine would and checks, at every
//! call, what any engine relies on: a QP without work emits nothing, a deadline that was handled is not due again, and
//! what is emitted parses.

use super::host::SimHost;
use super::rng::{Choices, Rng};
use super::setup::{Setup, av, qpn};
use super::wire::{Batch, Flight, Peer, Verdict, Wire, forge, net_header};
use crate::Qp;
use crate::cx::TxState;
use crate::qp::attr::QpState;
use crate::qp::shared::{QpEvents, Service};
use crate::qp::{DropReason, PostError};
use crate::time::Instant;
use crate::wr::{Cqe, RecvRequest, SendRequest};
use core::time::Duration;
use roxe_wire::{Header, NetHeader, Packet, icrc};

/// Steps that a run may take before it is called a livelock.
const STEP_LIMIT: u32 = 2_000_000;
/// Packets in flight after which a QP is taken to send without end, before memory runs out.
const FLIGHT_LIMIT: usize = 50_000;
/// When every clock starts; not zero, so that "never" and "at the start" differ.
const START: Instant = Instant(1_000_000_000);

/// One QP and its surroundings.
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// What it reaches.
    pub host: SimHost,
    /// Events taken from it so far.
    pub events: QpEvents,
    /// Why it dropped packets, last reason, and how often.
    pub dropped: (Option<DropReason>, u32),
}

/// A packet as it was handed to the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logged {
    /// When.
    pub at: Instant,
    /// By whom.
    pub from: Peer,
    /// Its headers.
    pub header: Header,
    /// Payload bytes without pad.
    pub len: usize,
    /// What became of it.
    pub verdict: Verdict,
}

/// Two QPs and the network between them.
pub struct Pair<C = Rng> {
    /// The QPs, `[A, B]`.
    pub ends: [End; 2],
    /// The network.
    pub wire: Wire,
    /// Source of random faults and of anything else a scenario decides.
    pub choices: C,
    /// How it was made.
    pub setup: Setup,
    /// Every packet sent, if `setup.log`.
    pub log: Vec<Logged>,
    /// Packets that arrived, by receiver.
    pub delivered: [u64; 2],
    /// Timeouts handled, by end.
    pub timeouts: [u64; 2],
    batch: Batch,
    /// Until when each end's link is busy with a full batch.
    busy_until: [Instant; 2],
}

impl Pair {
    /// Two connected QPs in RTS over a network without faults.
    pub fn new(setup: Setup) -> Self {
        Self::with_choices(setup, Rng::new(1))
    }
}

impl<C: Choices> Pair<C> {
    /// Two connected QPs in RTS whose network asks `choices`.
    pub fn with_choices(setup: Setup, choices: C) -> Self {
        let mut pair = Self::idle(setup, choices);
        for who in [Peer::A, Peer::B] {
            pair.bring_to(who, QpState::Rts);
        }
        pair
    }

    /// Two QPs in RESET.
    pub fn idle(setup: Setup, choices: C) -> Self {
        let end = |who| {
            let (qp, mut host) = setup.make(who);
            host.clock = START;
            End { qp, host, events: QpEvents::empty(), dropped: (None, 0) }
        };
        let wire = Wire::new(setup.latency, 256);
        let ends = [end(Peer::A), end(Peer::B)];
        let batch = Batch::new(setup.batch);
        Self {
            ends,
            wire,
            choices,
            setup,
            log: Vec::new(),
            delivered: [0; 2],
            timeouts: [0; 2],
            batch,
            busy_until: [START; 2],
        }
    }

    /// Moves the QP of `who` up the ladder to `state`.
    pub fn bring_to(&mut self, who: Peer, state: QpState) {
        let end = &mut self.ends[who.index()];
        self.setup.bring_to(who, &mut end.qp, &mut end.host, state);
    }

    /// The end of `who`.
    pub fn end(&mut self, who: Peer) -> &mut End {
        &mut self.ends[who.index()]
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.ends[0].host.clock
    }

    /// Time since the pair was made.
    pub fn elapsed(&self) -> Duration {
        self.now().since(START)
    }

    /// Posts a send on `who`; nothing moves before the next step.
    pub fn post_send(&mut self, who: Peer, req: &SendRequest<'_>) -> Result<(), PostError> {
        self.end(who).qp.post_send(req)
    }

    /// Posts a receive on `who`, or on its shared receive queue.
    pub fn post_recv(&mut self, who: Peer, req: &RecvRequest<'_>) -> Result<(), PostError> {
        let shared = self.setup.srq;
        let end = self.end(who);
        if shared {
            end.host.srq.post(req);
            return Ok(());
        }
        end.qp.post_recv(req)
    }

    /// Takes the oldest completion of a send of `who`.
    pub fn send_done(&mut self, who: Peer) -> Option<Cqe> {
        self.end(who).host.sends.pop_front()
    }

    /// Takes the oldest completion of a receive of `who`.
    pub fn recv_done(&mut self, who: Peer) -> Option<Cqe> {
        self.end(who).host.recvs.pop_front()
    }

    /// Runs until nothing is due: no packet in flight, no timer set, nothing to send.
    ///
    /// # Panics
    /// If that takes more than two million steps.
    pub fn run(&mut self) {
        for _ in 0..STEP_LIMIT {
            if !self.step() {
                return;
            }
        }
        panic!("livelock after {:?} of virtual time: {:?}", self.elapsed(), self.wire.tally);
    }

    /// Runs for `time`, then leaves the clock there.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now().after(time);
        self.transmit_all();
        while self.next_wake().is_some_and(|at| at <= end) {
            self.step();
        }
        self.set_clock(end);
        self.work();
    }

    /// Sends what can be sent, jumps to the next arrival or deadline and handles it. False when there is none.
    pub fn step(&mut self) -> bool {
        self.transmit_all();
        let Some(at) = self.next_wake() else { return self.pace() };
        self.set_clock(at.max(self.now()));
        self.work();
        true
    }

    /// Handles everything due now.
    fn work(&mut self) {
        let now = self.now();
        while let Some(flight) = self.wire.arrived(now) {
            self.deliver(flight);
        }
        for who in [Peer::A, Peer::B] {
            self.handle_timeout(who);
        }
        self.transmit_all();
    }

    /// Datagrams give no reservation back: the host hands out new room when everything sent has arrived.
    fn pace(&mut self) -> bool {
        let mut freed = false;
        for end in &mut self.ends {
            let flow = &mut end.host.flow;
            if flow.refused && !flow.returns {
                *flow = super::host::Flow { limit: flow.limit, ..Default::default() };
                freed = true;
            }
        }
        freed
    }

    fn next_wake(&self) -> Option<Instant> {
        let timers = self.ends.iter().filter_map(|end| end.qp.poll_timeout());
        timers.chain(self.wire.next_arrival()).chain(self.next_idle_link()).min()
    }

    /// When a busy link with more to send becomes free.
    fn next_idle_link(&self) -> Option<Instant> {
        let now = self.now();
        let links = self.ends.iter().zip(self.busy_until);
        links.filter(|(end, until)| *until > now && end.qp.has_work()).map(|(_, until)| until).min()
    }

    fn set_clock(&mut self, at: Instant) {
        for end in &mut self.ends {
            end.host.clock = at;
        }
    }

    fn handle_timeout(&mut self, who: Peer) {
        let now = self.now();
        let end = self.end(who);
        if end.qp.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        end.qp.handle_timeout(&mut end.host);
        end.events |= end.qp.poll_event();
        self.timeouts[who.index()] += 1;
        self.transmit(who);
        let next = self.end(who).qp.poll_timeout();
        assert!(next.is_none_or(|at| at > now), "{who:?}: deadline {next:?} still due at {now:?}");
    }

    fn deliver(&mut self, flight: Flight) {
        let Flight { to, net, bytes, .. } = flight;
        self.delivered[to.index()] += 1;
        if icrc::verify(&net, &bytes) {
            let packet = Packet::parse(&bytes).expect("a QP emitted a packet that does not parse");
            self.receive(to, &net, &packet);
        } else {
            self.wire.tally.bad_icrc += 1;
        }
        self.wire.recycle(bytes);
    }

    fn receive(&mut self, to: Peer, net: &NetHeader, packet: &Packet<'_>) {
        if packet.header.bth.dest_qpn != qpn(to) {
            return;
        }
        let end = self.end(to);
        if let Err(reason) = end.qp.handle_packet(&mut end.host, net, packet) {
            end.dropped = (Some(reason), end.dropped.1 + 1);
        }
        end.events |= end.qp.poll_event();
    }

    /// Hands a packet to `to` as if its peer had sent it, past the network; it arrives now.
    ///
    /// # Panics
    /// When there is no such packet: the payload does not go with the header.
    pub fn inject(&mut self, to: Peer, header: &Header, payload: &[u8]) {
        self.inject_from(to, &net_header(&av(to.other())), header, payload);
    }

    /// Hands a packet with this network header to `to`; it arrives now.
    ///
    /// # Panics
    /// As [`Pair::inject`].
    pub fn inject_from(&mut self, to: Peer, net: &NetHeader, header: &Header, payload: &[u8]) {
        let bytes = forge(header, payload).expect("the payload goes with the header");
        assert!(self.inject_bytes(to, net, &bytes), "a forged packet parses");
    }

    /// Hands the payload of a UDP datagram, whose ICRC is not looked at, to `to`. Returns whether it is a packet at all.
    pub fn inject_bytes(&mut self, to: Peer, net: &NetHeader, bytes: &[u8]) -> bool {
        let Ok(packet) = Packet::parse(bytes) else { return false };
        self.receive(to, net, &packet);
        true
    }

    /// Sends everything both QPs want to send now.
    pub fn transmit_all(&mut self) {
        for who in [Peer::A, Peer::B] {
            self.transmit(who);
        }
    }

    /// Sends everything `who` wants to send now, until a full batch keeps its link busy (see [`Setup::stall`]).
    pub fn transmit(&mut self, who: Peer) {
        while self.busy_until[who.index()] <= self.now() {
            let end = &mut self.ends[who.index()];
            let before = (end.host.sends.len(), end.host.recvs.len());
            let idle = !end.qp.has_work();
            let state = {
                let mut tx = self.batch.open(&mut self.wire, self.setup.batch);
                end.qp.poll_transmit(&mut end.host, &mut tx)
            };
            end.events |= end.qp.poll_event();
            let quiet = self.batch.is_empty() && before == (end.host.sends.len(), end.host.recvs.len());
            assert!(quiet || !idle, "{who:?}: has_work was false, yet poll_transmit did something");
            assert!(state == TxState::Drained || !self.batch.is_empty(), "{who:?}: an empty batch is full");
            self.dispatch(who);
            if state == TxState::Drained {
                return;
            }
            if self.setup.stall > 0 && self.choices.chance(self.setup.stall) {
                self.busy_until[who.index()] = self.now().after(self.setup.latency * self.choices.between(1, 30) / 10);
            }
        }
    }

    fn dispatch(&mut self, who: Peer) {
        let now = self.now();
        let mut batch = core::mem::take(&mut self.batch);
        for (net, bytes) in batch.drain() {
            let logged = self.setup.log.then(|| describe(&bytes));
            let verdict = self.wire.send(now, who, net, bytes, &mut self.choices);
            if let Some((header, len)) = logged {
                self.log.push(Logged { at: now, from: who, header, len, verdict });
            }
        }
        self.batch = batch;
        assert!(self.wire.in_flight() < FLIGHT_LIMIT, "{who:?} sends without end");
    }

    /// Checks that nothing is left half done after [`Pair::run`]: both QPs are quiescent and no reservation leaked.
    pub fn assert_settled(&self) {
        for (end, who) in self.ends.iter().zip([Peer::A, Peer::B]) {
            assert_eq!(end.qp.poll_timeout(), None, "{who:?}: a timer is left");
            assert!(end.qp.is_quiescent(), "{who:?}: not quiescent");
            let reliable = self.setup.service == Service::Rc;
            assert!(!reliable || end.host.flow.reserved == 0, "{who:?}: {} bytes leaked", end.host.flow.reserved);
        }
    }
}

fn describe(bytes: &[u8]) -> (Header, usize) {
    let packet = Packet::parse(bytes).expect("a QP emitted a packet that does not parse");
    (packet.header, packet.payload.len())
}
