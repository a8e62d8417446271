//! Two `Cm`s with random programs over a network that loses, duplicates, delays and reorders
//! messages: in virtual time, from seeds.

use super::*;
use roxe_sim::Choices;
use roxe_wire::cm::{AprStatus, SidrStatus};
use std::collections::BTreeMap;

/// Parameters of the network and the programs.
#[derive(Clone, Copy, Debug)]
struct Climate {
    /// Per mille.
    loss: u32,
    /// Per mille.
    repeats: u32,
    /// Maximum delay of a message, ms.
    delay: u32,
    /// Maximum delay of a program, ms.
    thought: u32,
    /// Rate of rejections and released connections, per mille.
    whims: u32,
    /// Rate of lookups instead of connections, per mille.
    lookups: u32,
}

/// Next action of a program on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Todo {
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
enum Happens {
    Arrives(usize, Route, Box<Mad>),
    Program(usize, CommId, Todo),
}

/// End of a connection for its program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// A lookup.
    Answered,
    Refused,
    Destroyed,
    Told(EventKind),
}

/// A program's view of a connection.
#[derive(Debug, Default)]
struct Story {
    is_active: bool,
    /// The peer's id, once known.
    partner: Option<CommId>,
    established: bool,
    terms: Option<QpTerms>,
    ends: Vec<End>,
    /// Proposed paths that are pending, and those the peer accepted.
    proposed: u32,
    loaded: u32,
    /// Accepted paths of the peer.
    taken: u32,
}

struct World {
    climate: Climate,
    rng: Rng,
    now: Instant,
    ends: [Cm; 2],
    stories: [BTreeMap<CommId, Story>; 2],
    agenda: BTreeMap<(Instant, u64), Happens>,
    planned: u64,
    qpns: u32,
}

/// Address of an end.
fn home(end: usize) -> Gid {
    address(end as u8 + 1)
}

impl World {
    fn new(climate: Climate, seed: u64) -> Self {
        let machine = |guid| {
            let mut cm = Cm::new(Settings::new(guid));
            cm.listen(Listen::new(SERVICE, Takes::Both, 4)).unwrap();
            cm
        };
        Self {
            climate,
            rng: Rng::new(seed),
            now: Instant(0),
            ends: [machine(OUR_GUID), machine(PEER_GUID)],
            stories: Default::default(),
            agenda: BTreeMap::new(),
            planned: 0,
            qpns: 16,
        }
    }

    fn plan(&mut self, within: u32, happens: Happens) {
        let delay = Duration::from_millis(u64::from(self.rng.below(within) + 1));
        self.planned += 1;
        self.agenda.insert((self.now.after(delay), self.planned), happens);
    }

    fn think(&mut self, end: usize, id: CommId, todo: Todo) {
        self.plan(self.climate.thought, Happens::Program(end, id, todo));
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
            while let Some(first) = self.agenda.first_entry().filter(|first| first.key().0 <= next) {
                match first.remove() {
                    Happens::Arrives(end, route, mad) => {
                        let _ = self.call(end, |cm, cx| cm.handle_message(cx, route, &mad));
                    }
                    Happens::Program(end, id, todo) => self.act(end, id, todo),
                }
                self.fetch();
            }
            self.fetch();
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let agenda = self.agenda.first_key_value().map(|((time, _), _)| *time);
        let timers = self.ends.iter().map(Cm::poll_timeout);
        timers.chain([agenda]).flatten().min()
    }

    fn fetch(&mut self) {
        for end in [0, 1] {
            while let Some(out) = self.ends[end].poll_transmit() {
                self.carry(out);
            }
            while let Some(event) = self.ends[end].poll_event() {
                self.learn(end, event);
            }
        }
    }

    fn carry(&mut self, Outgoing { route, mad }: Outgoing) {
        let to = usize::from(route.remote == home(1));
        assert_eq!((route.local, route.remote), (home(1 - to), home(to)));
        // Messages travel as bytes.
        let mad = Box::new(Mad::parse(&mad.to_bytes()).unwrap());
        let back = Route { local: route.remote, remote: route.local };
        let copies = 1 + u32::from(self.rng.chance(self.climate.repeats));
        for _ in 0..copies {
            if !self.rng.chance(self.climate.loss) {
                self.plan(self.climate.delay, Happens::Arrives(to, back, mad.clone()));
            }
        }
    }

    /// Delivers an event to a program.
    fn learn(&mut self, end: usize, Event { id, kind }: Event) {
        let story = self.stories[end].entry(id).or_default();
        match &kind {
            EventKind::ConnectRequest(_, req, _) => {
                story.partner = Some(req.local_comm_id);
                self.think(end, id, Todo::Answer);
            }
            EventKind::ConnectReply(rep, _) => {
                story.partner = Some(rep.local_comm_id);
                self.think(end, id, Todo::Confirm);
            }
            EventKind::Established => self.on_established(end, id),
            EventKind::Disconnected(ending) => {
                story.ends.push(End::Told(kind.clone()));
                if *ending == Ending::Asked {
                    self.think(end, id, Todo::Disconnect);
                }
            }
            EventKind::Rejected(_) | EventKind::Unreachable | EventKind::Stale => story.ends.push(End::Told(kind)),
            EventKind::TimeWaitExit => assert_eq!(story.ends.len(), 1, "{story:?}"),
            EventKind::AlternateRequest(_) => self.think(end, id, Todo::AnswerProposal),
            EventKind::AlternateReply(apr) => {
                story.proposed -= 1;
                story.loaded += u32::from(apr.status == AprStatus::Success);
            }
            EventKind::AlternateUnanswered => story.proposed -= 1,
            EventKind::LookupRequest(..) => self.think(end, id, Todo::AnswerLookup),
            EventKind::LookupReply(..) => story.ends.push(End::Answered),
        }
    }

    fn on_established(&mut self, end: usize, id: CommId) {
        let terms = self.ends[end].qp_terms(id);
        let story = self.stories[end].entry(id).or_default();
        (story.established, story.terms) = (true, terms);
        self.ends[end].take_alternates(id, self.rng.chance(700)).unwrap();
        if self.rng.chance(self.climate.whims) {
            self.think(end, id, Todo::Propose);
        }
        // Usually one program ends it long before the other.
        let todo = if self.rng.chance(self.climate.whims) { Todo::Destroy } else { Todo::Disconnect };
        let factor = self.rng.pick(&[1, 1, 20]);
        self.plan(self.climate.thought * factor, Happens::Program(end, id, todo));
    }

    /// Executes an action of a program, unless it has become impossible.
    fn act(&mut self, end: usize, id: CommId, todo: Todo) {
        let unwilling = self.rng.chance(self.climate.whims);
        match todo {
            Todo::Connect if self.rng.chance(self.climate.lookups) => self.act(end, id, Todo::Resolve),
            Todo::Connect => self.connect(end),
            Todo::Resolve => self.resolve(end),
            Todo::AnswerLookup => self.answer(end, id),
            Todo::Answer if unwilling => self.refuse(end, id),
            Todo::Confirm if unwilling => self.refuse(end, id),
            Todo::Answer => self.accept(end, id),
            Todo::Confirm if self.ends[end].confirm(id, &PrivateData::EMPTY).is_ok() => self.on_established(end, id),
            Todo::Confirm => {}
            Todo::Disconnect => {
                let _ = self.call(end, |cm, cx| cm.disconnect(cx, id));
            }
            Todo::Destroy => self.destroy(end, id),
            Todo::Propose => self.propose(end, id),
            Todo::AnswerProposal => self.answer_proposal(end, id, unwilling),
        }
    }

    fn propose(&mut self, end: usize, id: CommId) {
        let route = Route { local: address(11 + end as u8), remote: address(12 - end as u8) };
        if self.call(end, |cm, cx| cm.load_alternate(cx, id, &Alternate::new(route))).is_ok() {
            self.stories[end].entry(id).or_default().proposed += 1;
            self.think(end, id, Todo::Propose);
        }
    }

    fn answer_proposal(&mut self, end: usize, id: CommId, unwilling: bool) {
        let status = if unwilling { AprStatus::Reject } else { AprStatus::Success };
        if self.ends[end].answer_alternate(id, &AlternateAnswer::new(status)).is_ok() && !unwilling {
            self.stories[end].entry(id).or_default().taken += 1;
        }
    }

    fn connect(&mut self, end: usize) {
        self.qpns += 1;
        let (qpn, psn) = (Qpn::new(self.qpns), Psn::new(self.rng.below(1 << 24)));
        let connect = Connect {
            responder_resources: self.rng.below(17) as u8,
            initiator_depth: self.rng.below(17) as u8,
            ..Connect::new(Route { local: home(end), remote: home(1 - end) }, SERVICE, qpn, psn)
        };
        let id = self.call(end, |cm, cx| cm.connect(cx, &connect)).unwrap();
        self.stories[end].insert(id, Story { is_active: true, ..Story::default() });
        if self.rng.chance(self.climate.whims / 2) {
            self.think(end, id, Todo::Destroy);
        }
    }

    fn resolve(&mut self, end: usize) {
        let resolve = Resolve::new(Route { local: home(end), remote: home(1 - end) }, SERVICE);
        let id = self.call(end, |cm, cx| cm.resolve(cx, &resolve)).unwrap();
        self.stories[end].insert(id, Story::default());
    }

    fn answer(&mut self, end: usize, id: CommId) {
        self.ends[end].answer(id, &Resolution::refused(SidrStatus::NoQp)).unwrap();
        self.stories[end].entry(id).or_default().ends.push(End::Answered);
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
            self.stories[end].entry(id).or_default().ends.push(End::Refused);
        }
    }

    fn destroy(&mut self, end: usize, id: CommId) {
        let is_destroyed = self.call(end, |cm, cx| cm.destroy(cx, id)).is_ok();
        let story = self.stories[end].entry(id).or_default();
        if is_destroyed && story.ends.is_empty() {
            story.ends.push(End::Destroyed);
        }
    }

    /// Checks the final state.
    fn judge(&self) {
        for end in [0, 1] {
            assert!(self.ends[end].is_empty(), "a connection is left");
            for (id, story) in &self.stories[end] {
                assert_eq!(story.ends.len(), 1, "{id} of {end} must end once: {story:?}");
                let partner = story.partner.and_then(|partner| self.stories[1 - end].get(&partner));
                if let Some(partner) = partner.filter(|partner| partner.partner == Some(*id)) {
                    Self::judge_pair(story, partner);
                }
            }
        }
    }

    fn judge_pair(one: &Story, other: &Story) {
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
        self.stories[0].values().filter(|story| story.established).count()
    }

    /// Returns the number of alternate paths loaded by both ends.
    fn loaded(&self) -> u32 {
        self.stories.iter().flat_map(BTreeMap::values).map(|story| story.loaded).sum()
    }
}

/// Runs `connections` connections, half of them from either end.
fn live(climate: Climate, seed: u64, connections: u32) -> World {
    let mut world = World::new(climate, seed);
    for n in 0..connections {
        world.plan(20_000, Happens::Program(n as usize % 2, CommId::NONE, Todo::Connect));
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run();
        world.judge();
    }));
    assert!(outcome.is_ok(), "seed {seed} in {climate:?}");
    world
}

// clause: CM-RETRIES, CM-TIMEWAIT
#[test]
fn good_network_connects_as_programs_want() {
    // Equal delays prevent overtaking.
    let climate = Climate { loss: 0, repeats: 0, delay: 1, thought: 50, whims: 0, lookups: 0 };
    for seed in 0..200 {
        let world = live(climate, seed, 6);
        for story in world.stories.iter().flat_map(BTreeMap::values) {
            assert!(story.established, "seed {seed}: {story:?}");
            let disconnected =
                matches!(story.ends[..], [End::Told(EventKind::Disconnected(Ending::Asked | Ending::Agreed))]);
            assert!(disconnected, "seed {seed}: {story:?}");
        }
        assert_eq!(world.stories.iter().map(BTreeMap::len).sum::<usize>(), 12);
    }
}

// clause: CM-RETRIES, CM-SIDR, CM-REQ-DUPLICATE, CM-REP-DUPLICATE
// clause: CM-DREQ-UNKNOWN, CM-UNKNOWN, CM-LAP
#[test]
fn lossy_network_ends_every_connection_once() {
    let (mut successes, mut loaded) = (0, 0);
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let climate = Climate {
            loss: rng.below(400),
            repeats: rng.below(300),
            delay: rng.pick(&[5, 500, 6000]),
            thought: rng.pick(&[10, 3000, 40_000]),
            whims: rng.pick(&[0, 100, 300]),
            lookups: 200,
        };
        let world = live(climate, seed, 8);
        successes += world.successes();
        loaded += world.loaded();
    }
    assert!(loaded > 100, "{loaded} alternate paths: nothing was tried");
    assert!(successes > 3000, "{successes} of 12000: nothing was tried");
}

// clause: CM-RETRIES, CM-DESTROY
#[test]
fn dead_network_ends_everything_in_bounded_time() {
    for (seed, loss) in (0..200).map(|seed| (seed, 900 + seed as u32 / 2)) {
        live(Climate { loss, repeats: 0, delay: 5, thought: 1000, whims: 100, lookups: 200 }, seed, 6);
    }
}
