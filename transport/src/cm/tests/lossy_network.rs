//! Two `Cm`s with random programs over a network that loses, duplicates, delays and reorders
//! messages: in virtual time, from seeds.

use super::*;
use roxe_sim::Choices;
use roxe_wire::cm::{AprStatus, SidrStatus};
use std::collections::BTreeMap;

/// Parameters of the network and the programs.
#[derive(Clone, Copy, Debug)]
struct Conditions {
    /// Rate of lost messages, per mille.
    loss: u32,
    /// Rate of duplicated messages, per mille.
    duplicates: u32,
    /// Maximum delay of a message, ms.
    delay: u32,
    /// Maximum delay of a program, ms.
    program_delay: u32,
    /// Rate of rejections and released connections, per mille.
    refusals: u32,
    /// Rate of lookups instead of connections, per mille.
    lookups: u32,
}

/// Next action of a program on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramAction {
    Connect,
    Resolve,
    Answer,
    AnswerLookup,
    Confirm,
    Disconnect,
    Destroy,
    Propose,
    AnswerProposal,
}

#[derive(Debug)]
enum Occurrence {
    Arrival(usize, Route, Box<Mad>),
    Program(usize, CommId, ProgramAction),
}

/// End of a connection for its program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// A lookup was answered.
    Answered,
    Refused,
    Destroyed,
    Event(EventKind),
}

/// A program's view of a connection.
#[derive(Debug, Default)]
struct History {
    is_active: bool,
    /// The peer's id, once known.
    peer_id: Option<CommId>,
    established: bool,
    terms: Option<QpTerms>,
    ends: Vec<End>,
    /// Number of proposed paths that are pending.
    proposed: u32,
    /// Number of proposed paths that the peer accepted.
    loaded: u32,
    /// Number of accepted paths of the peer.
    taken: u32,
}

struct Simulation {
    conditions: Conditions,
    rng: Rng,
    now: Instant,
    ends: [Cm; 2],
    histories: [BTreeMap<CommId, History>; 2],
    schedule: BTreeMap<(Instant, u64), Occurrence>,
    scheduled: u64,
    qpns: u32,
}

/// Returns the address of an end.
fn address_of(end: usize) -> Gid {
    address(end as u8 + 1)
}

impl Simulation {
    fn new(conditions: Conditions, seed: u64) -> Self {
        let machine = |guid| {
            let mut cm = Cm::new(Settings::new(guid));
            cm.listen(Listen::new(SERVICE, Accepts::Both, 4)).unwrap();
            cm
        };
        Self {
            conditions,
            rng: Rng::new(seed),
            now: Instant(0),
            ends: [machine(OUR_GUID), machine(PEER_GUID)],
            histories: Default::default(),
            schedule: BTreeMap::new(),
            scheduled: 0,
            qpns: 16,
        }
    }

    fn schedule_within(&mut self, within: u32, occurrence: Occurrence) {
        let delay = Duration::from_millis(u64::from(self.rng.below(within) + 1));
        self.scheduled += 1;
        self.schedule.insert((self.now.after(delay), self.scheduled), occurrence);
    }

    fn schedule_action(&mut self, end: usize, id: CommId, action: ProgramAction) {
        self.schedule_within(self.conditions.program_delay, Occurrence::Program(end, id, action));
    }

    /// Calls a method that needs time and random numbers.
    fn call<R>(&mut self, end: usize, act: impl FnOnce(&mut Cm, &mut Cx<'_>) -> R) -> R {
        let Self { ends, now, rng, .. } = self;
        act(&mut ends[end], &mut Cx { now: *now, random: &mut || rng.next() })
    }

    /// Runs until nothing is due.
    fn run(&mut self) {
        while let Some(next) = self.next_time() {
            assert!(next < Instant(3600 * 1_000_000_000), "connections remain after an hour");
            self.now = next;
            for end in [0, 1] {
                self.ends[end].handle_timeout(next);
            }
            while let Some(first) = self.schedule.first_entry().filter(|first| first.key().0 <= next) {
                match first.remove() {
                    Occurrence::Arrival(end, route, mad) => {
                        let _ = self.call(end, |cm, cx| cm.handle_message(cx, route, &mad));
                    }
                    Occurrence::Program(end, id, action) => self.act(end, id, action),
                }
                self.fetch();
            }
            self.fetch();
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let schedule = self.schedule.first_key_value().map(|((time, _), _)| *time);
        let timers = self.ends.iter().map(Cm::poll_timeout);
        timers.chain([schedule]).flatten().min()
    }

    fn fetch(&mut self) {
        for end in [0, 1] {
            while let Some(out) = self.ends[end].poll_transmit() {
                self.carry(out);
            }
            while let Some(event) = self.ends[end].poll_event() {
                self.on_event(end, event);
            }
        }
    }

    fn carry(&mut self, Outgoing { route, mad }: Outgoing) {
        let to = usize::from(route.remote == address_of(1));
        assert_eq!((route.local, route.remote), (address_of(1 - to), address_of(to)));
        // Messages travel as bytes.
        let mad = Box::new(Mad::parse(&mad.to_bytes()).unwrap());
        let back = Route { local: route.remote, remote: route.local };
        let copies = 1 + u32::from(self.rng.chance_per_mille(self.conditions.duplicates));
        for _ in 0..copies {
            if !self.rng.chance_per_mille(self.conditions.loss) {
                self.schedule_within(self.conditions.delay, Occurrence::Arrival(to, back, mad.clone()));
            }
        }
    }

    /// Delivers an event to a program.
    fn on_event(&mut self, end: usize, Event { id, kind }: Event) {
        let history = self.histories[end].entry(id).or_default();
        match &kind {
            EventKind::ConnectRequest(_, req, _) => {
                history.peer_id = Some(req.local_comm_id);
                self.schedule_action(end, id, ProgramAction::Answer);
            }
            EventKind::ConnectReply(rep, _) => {
                history.peer_id = Some(rep.local_comm_id);
                self.schedule_action(end, id, ProgramAction::Confirm);
            }
            EventKind::Established => self.on_established(end, id),
            EventKind::Disconnected(ending) => {
                history.ends.push(End::Event(kind.clone()));
                if *ending == Ending::Requested {
                    self.schedule_action(end, id, ProgramAction::Disconnect);
                }
            }
            EventKind::Rejected(_) | EventKind::Unreachable | EventKind::Stale => history.ends.push(End::Event(kind)),
            EventKind::TimeWaitExit => assert_eq!(history.ends.len(), 1, "{history:?}"),
            EventKind::AlternateRequest(_) => self.schedule_action(end, id, ProgramAction::AnswerProposal),
            EventKind::AlternateReply(apr) => {
                history.proposed -= 1;
                history.loaded += u32::from(apr.status == AprStatus::Success);
            }
            EventKind::AlternateUnanswered => history.proposed -= 1,
            EventKind::LookupRequest(..) => self.schedule_action(end, id, ProgramAction::AnswerLookup),
            EventKind::LookupReply(..) => history.ends.push(End::Answered),
        }
    }

    fn on_established(&mut self, end: usize, id: CommId) {
        let terms = self.ends[end].qp_terms(id);
        let history = self.histories[end].entry(id).or_default();
        (history.established, history.terms) = (true, terms);
        self.ends[end].enable_alternate_events(id, self.rng.chance_per_mille(700)).unwrap();
        if self.rng.chance_per_mille(self.conditions.refusals) {
            self.schedule_action(end, id, ProgramAction::Propose);
        }
        // Usually one program ends the connection long before the other.
        let action = if self.rng.chance_per_mille(self.conditions.refusals) {
            ProgramAction::Destroy
        } else {
            ProgramAction::Disconnect
        };
        let factor = self.rng.pick(&[1, 1, 20]);
        self.schedule_within(self.conditions.program_delay * factor, Occurrence::Program(end, id, action));
    }

    /// Executes an action of a program, unless it has become impossible.
    fn act(&mut self, end: usize, id: CommId, action: ProgramAction) {
        let refuses = self.rng.chance_per_mille(self.conditions.refusals);
        match action {
            ProgramAction::Connect if self.rng.chance_per_mille(self.conditions.lookups) => {
                self.act(end, id, ProgramAction::Resolve)
            }
            ProgramAction::Connect => self.connect(end),
            ProgramAction::Resolve => self.resolve(end),
            ProgramAction::AnswerLookup => self.answer(end, id),
            ProgramAction::Answer if refuses => self.refuse(end, id),
            ProgramAction::Confirm if refuses => self.refuse(end, id),
            ProgramAction::Answer => self.accept(end, id),
            ProgramAction::Confirm if self.ends[end].confirm(id, &PrivateData::EMPTY).is_ok() => {
                self.on_established(end, id)
            }
            ProgramAction::Confirm => {}
            ProgramAction::Disconnect => {
                let _ = self.call(end, |cm, cx| cm.disconnect(cx, id));
            }
            ProgramAction::Destroy => self.destroy(end, id),
            ProgramAction::Propose => self.propose(end, id),
            ProgramAction::AnswerProposal => self.answer_proposal(end, id, refuses),
        }
    }

    fn propose(&mut self, end: usize, id: CommId) {
        let route = Route { local: address(11 + end as u8), remote: address(12 - end as u8) };
        if self.call(end, |cm, cx| cm.load_alternate(cx, id, &Alternate::new(route))).is_ok() {
            self.histories[end].entry(id).or_default().proposed += 1;
            self.schedule_action(end, id, ProgramAction::Propose);
        }
    }

    fn answer_proposal(&mut self, end: usize, id: CommId, refuses: bool) {
        let status = if refuses { AprStatus::Reject } else { AprStatus::Success };
        if self.ends[end].answer_alternate(id, &AlternateAnswer::new(status)).is_ok() && !refuses {
            self.histories[end].entry(id).or_default().taken += 1;
        }
    }

    fn connect(&mut self, end: usize) {
        self.qpns += 1;
        let (qpn, psn) = (Qpn::new(self.qpns), Psn::new(self.rng.below(1 << 24)));
        let connect = Connect {
            responder_resources: self.rng.below(17) as u8,
            initiator_depth: self.rng.below(17) as u8,
            ..Connect::new(Route { local: address_of(end), remote: address_of(1 - end) }, SERVICE, qpn, psn)
        };
        let id = self.call(end, |cm, cx| cm.connect(cx, &connect)).unwrap();
        self.histories[end].insert(id, History { is_active: true, ..History::default() });
        if self.rng.chance_per_mille(self.conditions.refusals / 2) {
            self.schedule_action(end, id, ProgramAction::Destroy);
        }
    }

    fn resolve(&mut self, end: usize) {
        let resolve = Resolve::new(Route { local: address_of(end), remote: address_of(1 - end) }, SERVICE);
        let id = self.call(end, |cm, cx| cm.resolve(cx, &resolve)).unwrap();
        self.histories[end].insert(id, History::default());
    }

    fn answer(&mut self, end: usize, id: CommId) {
        self.ends[end].answer(id, &Resolution::refused(SidrStatus::NoQp)).unwrap();
        self.histories[end].entry(id).or_default().ends.push(End::Answered);
    }

    fn accept(&mut self, end: usize, id: CommId) {
        self.qpns += 1;
        let accept = Accept {
            responder_resources: self.rng.below(17) as u8,
            initiator_depth: self.rng.below(17) as u8,
            ..Accept::new(Qpn::new(self.qpns), Psn::new(self.rng.below(1 << 24)))
        };
        let _ = self.call(end, |cm, cx| cm.accept(cx, id, &accept));
    }

    fn refuse(&mut self, end: usize, id: CommId) {
        if self.ends[end].reject(id, &Refusal::new(PrivateData::EMPTY)).is_ok() {
            self.histories[end].entry(id).or_default().ends.push(End::Refused);
        }
    }

    fn destroy(&mut self, end: usize, id: CommId) {
        let is_destroyed = self.call(end, |cm, cx| cm.destroy(cx, id)).is_ok();
        let history = self.histories[end].entry(id).or_default();
        if is_destroyed && history.ends.is_empty() {
            history.ends.push(End::Destroyed);
        }
    }

    /// Checks the final state.
    fn check(&self) {
        for end in [0, 1] {
            assert!(self.ends[end].is_empty(), "a connection is left");
            for (id, history) in &self.histories[end] {
                assert_eq!(history.ends.len(), 1, "{id} of {end} must end once: {history:?}");
                let peer = history.peer_id.and_then(|peer_id| self.histories[1 - end].get(&peer_id));
                if let Some(peer) = peer.filter(|peer| peer.peer_id == Some(*id)) {
                    Self::check_pair(history, peer);
                }
            }
        }
    }

    fn check_pair(one: &History, other: &History) {
        // The active end confirms first. Only a network that loses everything hides this from the
        // other.
        let (active, passive) = if one.is_active { (one, other) } else { (other, one) };
        assert!(active.is_active && !passive.is_active);
        assert!(active.established || !passive.established, "{active:?} {passive:?}");
        assert!(!active.established || passive.ends != [End::Refused], "{active:?} {passive:?}");
        assert!(one.proposed <= 1 && one.loaded <= other.taken, "a path is loaded at both ends: {one:?} {other:?}");
        assert!(other.proposed <= 1 && other.loaded <= one.taken, "a path is loaded at both ends: {one:?} {other:?}");
        let (Some(one), Some(other)) = (one.terms, other.terms) else { return };
        assert_eq!((one.rq_psn, one.sq_psn), (other.sq_psn, other.rq_psn));
        assert_eq!((one.route.local, one.path_mtu), (other.route.remote, other.path_mtu));
        assert_eq!((one.max_rd_atomic, one.max_dest_rd_atomic), (other.max_dest_rd_atomic, other.max_rd_atomic));
        assert_eq!((one.retry_cnt, one.hop_limit), (other.retry_cnt, other.hop_limit));
    }

    /// Returns the number of connections established at both ends.
    fn successes(&self) -> usize {
        self.histories[0].values().filter(|history| history.established).count()
    }

    /// Returns the number of alternate paths loaded by both ends.
    fn loaded(&self) -> u32 {
        self.histories.iter().flat_map(BTreeMap::values).map(|history| history.loaded).sum()
    }
}

/// Runs `connections` connections, half of them from either end.
fn simulate(conditions: Conditions, seed: u64, connections: u32) -> Simulation {
    let mut simulation = Simulation::new(conditions, seed);
    for n in 0..connections {
        simulation.schedule_within(20_000, Occurrence::Program(n as usize % 2, CommId::NONE, ProgramAction::Connect));
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        simulation.run();
        simulation.check();
    }));
    assert!(outcome.is_ok(), "seed {seed} in {conditions:?}");
    simulation
}

// clause: CM-RETRIES, CM-TIMEWAIT
#[test]
fn lossless_network_establishes_every_connection() {
    // Equal delays prevent overtaking.
    let conditions = Conditions { loss: 0, duplicates: 0, delay: 1, program_delay: 50, refusals: 0, lookups: 0 };
    for seed in 0..200 {
        let simulation = simulate(conditions, seed, 6);
        for history in simulation.histories.iter().flat_map(BTreeMap::values) {
            assert!(history.established, "seed {seed}: {history:?}");
            let disconnected =
                matches!(history.ends[..], [End::Event(EventKind::Disconnected(Ending::Requested | Ending::Agreed))]);
            assert!(disconnected, "seed {seed}: {history:?}");
        }
        assert_eq!(simulation.histories.iter().map(BTreeMap::len).sum::<usize>(), 12);
    }
}

// clause: CM-RETRIES, CM-SIDR, CM-REQ-DUPLICATE, CM-REP-DUPLICATE
// clause: CM-DREQ-UNKNOWN, CM-UNKNOWN, CM-LAP
#[test]
fn lossy_network_ends_every_connection_once() {
    let (mut successes, mut loaded) = (0, 0);
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let conditions = Conditions {
            loss: rng.below(400),
            duplicates: rng.below(300),
            delay: rng.pick(&[5, 500, 6000]),
            program_delay: rng.pick(&[10, 3000, 40_000]),
            refusals: rng.pick(&[0, 100, 300]),
            lookups: 200,
        };
        let simulation = simulate(conditions, seed, 8);
        successes += simulation.successes();
        loaded += simulation.loaded();
    }
    assert!(loaded > 100, "{loaded} alternate paths: nothing was tried");
    assert!(successes > 3000, "{successes} of 12000: nothing was tried");
}

// clause: CM-RETRIES, CM-DESTROY
#[test]
fn dead_network_ends_everything_in_bounded_time() {
    for (seed, loss) in (0..200).map(|seed| (seed, 900 + seed as u32 / 2)) {
        simulate(
            Conditions { loss, duplicates: 0, delay: 5, program_delay: 1000, refusals: 100, lookups: 200 },
            seed,
            6,
        );
    }
}
