//! The smallest world: two queue pairs A and B, for tests of single packets. A broken promise
//! panics.

use crate::judge::Broken;
use crate::links::Topology;
use crate::rng::{Choices, Rng};
use crate::setup::{Peer, Setup, random_setup};
pub use crate::world::LoggedPacket;
use crate::world::{End, START, World};
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use roxe_transport::fault::{Action, Hold, Part, Rate, Rule, Rules};
use roxe_transport::qp::{PostError, QpState, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::{Cqe, RecvRequest, SendRequest};
use roxe_wire::{Header, NetHeader, Packet, icrc};

/// Maximum number of steps before a run counts as a livelock.
const STEP_LIMIT: u32 = 2_000_000;

pub struct Pair<C = Rng> {
    pub setup: Setup,
    world: World<C>,
}

impl<C> Deref for Pair<C> {
    type Target = World<C>;

    fn deref(&self) -> &World<C> {
        &self.world
    }
}

impl<C> DerefMut for Pair<C> {
    fn deref_mut(&mut self) -> &mut World<C> {
        &mut self.world
    }
}

impl Pair {
    /// Creates two connected QPs in RTS over a network without faults.
    pub fn new(setup: Setup) -> Self {
        Self::with_choices(setup, Rng::new(1))
    }
}

impl<C: Choices> Pair<C> {
    /// Creates two connected QPs in RTS with random decisions by `choices`.
    pub fn with_choices(setup: Setup, choices: C) -> Self {
        let mut pair = Self::idle(setup, choices);
        for side in [Peer::A, Peer::B] {
            pair.bring_to(side, QpState::Rts);
        }
        pair
    }

    pub fn idle(setup: Setup, choices: C) -> Self {
        let mut world = World::new(Topology::direct(setup.latency), choices);
        world.add(&setup, setup.places());
        Self { setup, world }
    }

    pub fn into_world(self) -> World<C> {
        self.world
    }

    /// Moves the QP of `side` towards RTS, up to `state`.
    pub fn bring_to(&mut self, side: Peer, state: QpState) {
        let setup = self.setup;
        let end = self.end(side);
        setup.bring_to(side, &mut end.qp, &mut end.host, state);
    }

    pub fn end(&mut self, side: Peer) -> &mut End {
        &mut self.world.ends[side.index()]
    }

    pub fn now(&self) -> Instant {
        self.ends.iter().map(|end| end.host.clock).fold(self.world.now(), Instant::max)
    }

    pub fn elapsed(&self) -> Duration {
        self.now().since(START)
    }

    /// Posts a send on `side`; the next step sends it.
    pub fn post_send(&mut self, side: Peer, req: &SendRequest<'_>) -> Result<(), PostError> {
        self.end(side).qp.post_send(req)
    }

    /// Posts a receive on `side`, or on its shared receive queue.
    pub fn post_recv(&mut self, side: Peer, req: &RecvRequest<'_>) -> Result<(), PostError> {
        self.end(side).post_recv(req)
    }

    /// Takes the oldest completion of a send of `side`.
    pub fn send_done(&mut self, side: Peer) -> Option<Cqe> {
        self.end(side).host.sends.pop_front()
    }

    /// Takes the oldest completion of a receive of `side`.
    pub fn recv_done(&mut self, side: Peer) -> Option<Cqe> {
        self.end(side).host.recvs.pop_front()
    }

    /// Runs until nothing is due: no packet in flight, no timer set, nothing to send.
    pub fn run(&mut self) {
        for _ in 0..STEP_LIMIT {
            if !self.step() {
                return;
            }
        }
        panic!("livelock after {:?} of virtual time: {:?}", self.elapsed(), self.wire.tally);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.act(|world| world.step_for(time));
    }

    /// Transmits the packets of the ready ends, then advances the clock to the next arrival or
    /// deadline and handles it. Returns false if there is none and no end got room to send more.
    pub fn step(&mut self) -> bool {
        self.act(World::step)
    }

    /// Sends everything that both QPs can send now.
    pub fn transmit_all(&mut self) {
        self.act(World::transmit_ready);
    }

    /// Sends everything that `side` can send now, until a full batch keeps its link busy (see
    /// [`Setup::stall`]).
    pub fn transmit(&mut self, side: Peer) {
        self.act(|world| world.transmit(side.index()));
    }

    /// Calls `action` after the test may have called any method of its ends.
    fn act<T>(&mut self, action: impl FnOnce(&mut World<C>) -> Result<T, Broken>) -> T {
        self.world.mark_all_ready();
        let result = action(&mut self.world).unwrap_or_else(|broken| panic!("{broken}"));
        self.world.sync_clocks();
        result
    }

    /// Delivers a packet to `to` as if its peer had sent it, bypassing the network.
    pub fn inject(&mut self, to: Peer, header: &Header, payload: &[u8]) {
        let net = self.net_of(to.other().index());
        self.inject_from(to, &net, header, payload);
    }

    /// Delivers a packet with this network header to `to`.
    pub fn inject_from(&mut self, to: Peer, net: &NetHeader, header: &Header, payload: &[u8]) {
        let len = header.padded_len(payload.len());
        let mut bytes = vec![0; len + icrc::LEN];
        let room = header.emit(payload.len(), &mut bytes[..len]).expect("the payload fits the header");
        room.copy_from_slice(payload);
        assert!(self.inject_bytes(to, net, &bytes), "a forged packet parses");
    }

    /// Delivers a UDP payload, without checking its ICRC, to `to`. Returns false if it is not a
    /// packet.
    pub fn inject_bytes(&mut self, to: Peer, net: &NetHeader, bytes: &[u8]) -> bool {
        let Ok(packet) = Packet::parse(bytes) else { return false };
        let id = to.index();
        if packet.header.bth.dest_qpn == self.ends[id].endpoints.here.qpn {
            self.act(|world| world.deliver_to_qp(id, net, &packet, false));
        }
        true
    }

    /// Checks that nothing is unfinished after [`Pair::run`].
    pub fn assert_settled(&self) {
        self.check_settled().unwrap_or_else(|broken| panic!("{broken}"));
    }
}

/// Creates a pair with a random setup and random faults up to `worst` per thousand of each kind.
///
/// A `hardy` pair has maximum retries, and faults pause before they are spent, so that everything
/// can succeed. Other pairs have random retry counts.
pub fn random_pair<C: Choices>(service: Service, worst: u32, hardy: bool, mut choices: C) -> Pair<C> {
    let mut setup = random_setup(service, &mut choices);
    if !hardy {
        (setup.retry_cnt, setup.rnr_retry) = (choices.below(8) as u8, choices.below(8) as u8);
    }
    let rules = random_faults(worst, setup.latency, &mut choices);
    let mut pair = Pair::with_choices(setup, choices);
    pair.wire.set_faults(&rules, 0);
    pair.wire.pause_faults_after = hardy.then_some(3);
    pair
}

/// Returns transmit faults of every kind with random rates up to `worst` per thousand.
pub fn random_faults(worst: u32, latency: Duration, choices: &mut impl Choices) -> Rules {
    let hold_between = |from: u32, to: u32| Hold { min: latency * from / 10, max: latency * to / 10 };
    let actions = [
        Action::Drop,
        Action::Duplicate { copies: 1, after: hold_between(1, 40) },
        Action::Delay(hold_between(1, 40)),
        Action::Corrupt(Part::Payload),
        Action::Corrupt(Part::Header),
    ];
    let mut rule = |action| {
        let per_mille = choices.below(worst + 1);
        let mut rule = Rule::new(action);
        rule.rate = Rate::from_micro_percent(per_mille * 100_000);
        rule.dir = Some(roxe_transport::fault::Direction::Tx);
        rule
    };
    let list = actions.map(&mut rule).into();
    Rules::new(Some(choices.below(u32::MAX).into()), list)
}
