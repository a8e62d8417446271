//! Many queue pairs on many nodes, the network between them, and a clock that advances to the next
//! event.
//!
//! [`World`] drives the QPs as an engine does. It checks the promises of [`crate::judge`] after
//! every call, and a broken one stops the run. The two ends of connection `n` have the numbers `2n`
//! and `2n + 1`.

use crate::host::SimHost;
use crate::judge::{Broken, Watch, ensure};
use crate::links::{Topology, node_at};
use crate::rng::{Choices, Rng};
use crate::setup::{Endpoints, Peer, Place, Setup};
use crate::timeline::Deadlines;
use crate::wire::{Batch, InTransit, Wire, net_header};
use core::time::Duration;
use roxe_transport::cx::{FlowControl, PacketNote, TxState};
use roxe_transport::fault::Verdict;
use roxe_transport::qp::{AttrMask, DropReason, EarlyPackets, PostError, Qp, QpAttr, QpEvents, QpState};
use roxe_transport::time::Instant;
use roxe_transport::wr::RecvRequest;
use roxe_wire::{Header, NetHeader, Packet, icrc};
use std::collections::BTreeMap;

/// Packets in flight per QP at which a run fails, because a QP never stops sending.
const FLIGHT_LIMIT: usize = 25_000;
/// Start of the clock; not zero, so that "never" and "at the start" differ.
pub const START: Instant = Instant(1_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoggedPacket {
    pub at: Instant,
    pub connection: usize,
    pub from: Peer,
    pub note: PacketNote,
    pub header: Header,
    /// Payload length in bytes.
    pub len: usize,
    pub verdict: Verdict,
}

pub struct World<C = Rng> {
    pub ends: Vec<End>,
    pub wire: Wire,
    pub choices: C,
    /// Packets sent by ends with [`Setup::log`].
    pub log: Vec<LoggedPacket>,
    /// Number of packets delivered to each end.
    pub delivered: Vec<u64>,
    /// Number of timer expirations that each end handled.
    pub timeouts: Vec<u64>,
    /// Changes packets between the network and the QPs.
    pub tamper: Option<Tamper>,
    /// True if no packet is forged and no QP restarts, so that each end's view of the other can be
    /// checked.
    pub honest: bool,
    now: Instant,
    batch: Batch,
    deadlines: Deadlines,
    /// Numbers of the ends by node and QPN.
    by_place: BTreeMap<(usize, u32), usize>,
    /// Flow control windows by source and destination node.
    windows: BTreeMap<(usize, usize), Window>,
    removed_nodes: Vec<usize>,
    /// Ends that changed and have not sent since.
    ready: Vec<usize>,
    /// Ends that changed since the last [`World::take_changed`].
    changed: Vec<usize>,
}

/// Flow control window between two nodes, shared by all QPs.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Bytes reserved by all QPs.
    reserved: u32,
    /// Bytes by which the QPs together may exceed the limit.
    slack: u32,
}

/// Simulates a faulty card, to test the checks. The function gets the number of the receiving end
/// and the bytes of an intact packet. It may change the bytes before the QP handles them.
pub type Tamper = Box<dyn FnMut(usize, &mut [u8])>;

impl<C: Choices> World<C> {
    pub fn new(topology: Topology, choices: C) -> Self {
        Self {
            ends: Vec::new(),
            wire: Wire::new(topology),
            choices,
            log: Vec::new(),
            delivered: Vec::new(),
            timeouts: Vec::new(),
            tamper: None,
            honest: false,
            now: START,
            batch: Batch::default(),
            deadlines: Deadlines::default(),
            by_place: BTreeMap::new(),
            windows: BTreeMap::new(),
            removed_nodes: Vec::new(),
            ready: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// Adds a connection of two QPs in RESET. Returns the number of the first; the second is the
    /// next.
    pub fn add(&mut self, setup: &Setup, places: [Place; 2]) -> usize {
        let first = self.ends.len();
        for side in [Peer::A, Peer::B] {
            let endpoints = setup.endpoints_of(side, places);
            let setup = &setup.side(side);
            let (qp, mut host) = setup.make_with(endpoints.here.qpn);
            host.clock = self.now;
            let taken_by = self.by_place.insert((endpoints.here.node, endpoints.here.qpn.get()), self.ends.len());
            assert_eq!(taken_by, None, "{:?} is taken", endpoints.here);
            let slack = SimHost::lone_packet_cost(setup.path_mtu.bytes()) + setup.in_run();
            self.windows.entry(endpoints.nodes()).or_default().slack += slack;
            self.ends.push(End::new((qp, host), *setup, endpoints, self.now));
            self.wire.add_end();
            self.delivered.push(0);
            self.timeouts.push(0);
        }
        self.deadlines.resize(self.ends.len());
        first
    }

    /// Adds a connection of two QPs in RTS.
    pub fn connect(&mut self, setup: &Setup, places: [Place; 2]) -> usize {
        let first = self.add(setup, places);
        for end in &mut self.ends[first..] {
            end.setup.bring_up(&end.endpoints, &mut end.qp, &mut end.host, QpState::Rts);
        }
        first
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    pub fn elapsed(&self) -> Duration {
        self.now.since(START)
    }

    /// Returns the end with this number; the next step serves it.
    pub fn end_mut(&mut self, id: usize) -> &mut End {
        self.mark_ready(id);
        &mut self.ends[id]
    }

    /// Moves the QP of an end to `state`, if the QP permits it.
    pub fn set_state(&mut self, id: usize, state: QpState) -> Result<(), Broken> {
        self.begin_call(id);
        let end = &mut self.ends[id];
        let attr = QpAttr { state, ..*end.qp.attr() };
        // A refusal is legal; the state table has its own tests.
        let _ = end.qp.modify(&mut end.host, &attr, AttrMask::STATE);
        self.end_call(id)
    }

    /// Removes a node: its QPs are never called again.
    pub fn remove_node(&mut self, node: usize) {
        self.removed_nodes.push(node);
        for id in 0..self.ends.len() {
            if self.ends[id].endpoints.here.node == node {
                self.deadlines.set(id, None);
            }
        }
    }

    /// Returns true if the node of this end was removed.
    pub fn is_removed(&self, id: usize) -> bool {
        !self.removed_nodes.is_empty() && self.removed_nodes.contains(&self.ends[id].endpoints.here.node)
    }

    /// Transmits the packets of the ready ends, then advances the clock to the next arrival or
    /// deadline and handles it. Returns false if there is none and no end got room to send more.
    pub fn step(&mut self) -> Result<bool, Broken> {
        self.transmit_ready()?;
        let Some(at) = self.next_wake() else { return Ok(self.refill_windows()) };
        self.now = at.max(self.now);
        self.handle_due()?;
        Ok(true)
    }

    /// Advances the clock by `duration`, and handles all arrivals and deadlines until then.
    pub fn step_for(&mut self, duration: Duration) -> Result<(), Broken> {
        let until = self.now.after(duration);
        self.transmit_ready()?;
        while self.next_wake().is_some_and(|at| at <= until) {
            self.step()?;
        }
        self.now = until;
        self.handle_due()
    }

    /// Moves the ends that changed since the last call into `changed`, in order.
    pub fn take_changed(&mut self, changed: &mut Vec<usize>) {
        changed.clear();
        core::mem::swap(changed, &mut self.changed);
        changed.sort_unstable();
        changed.iter().for_each(|&id| self.ends[id].is_in_changed = false);
    }

    /// Handles the arrivals and deadlines that are due, then transmits.
    fn handle_due(&mut self) -> Result<(), Broken> {
        while let Some(flight) = self.wire.arrived(self.now) {
            self.deliver(flight)?;
        }
        while let Some((at, id)) = self.deadlines.first()
            && at <= self.now
        {
            self.wake(id)?;
        }
        self.transmit_ready()
    }

    /// Empties the windows of UC and UD ends that were refused room, because they never release
    /// reservations. Call it when no packet is in flight. Returns true if an end got room.
    fn refill_windows(&mut self) -> bool {
        let mut refilled = false;
        for id in 0..self.ends.len() {
            let flow = &mut self.ends[id].host.flow;
            if flow.refused && !flow.releases {
                *flow = crate::host::Flow { limit: flow.limit, ..Default::default() };
                self.mark_ready(id);
                refilled = true;
            }
        }
        refilled
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| at).into_iter().chain(self.wire.next_event()).min()
    }

    fn mark_ready(&mut self, id: usize) {
        if !core::mem::replace(&mut self.ends[id].is_in_ready, true) {
            self.ready.push(id);
        }
    }

    /// Marks every end as ready, and advances the clock to the latest one that a test set in a
    /// host.
    pub(crate) fn mark_all_ready(&mut self) {
        for id in 0..self.ends.len() {
            self.now = self.now.max(self.ends[id].host.clock);
            self.mark_ready(id);
        }
    }

    pub(crate) fn sync_clocks(&mut self) {
        for end in &mut self.ends {
            end.host.clock = self.now;
        }
    }

    /// Prepares the host before a call on an end.
    fn begin_call(&mut self, id: usize) {
        let end = &mut self.ends[id];
        end.host.clock = self.now;
        if end.host.flow.releases && end.host.flow.limit.is_some() {
            let reserved = self.windows.get(&end.endpoints.nodes()).map_or(0, |window| window.reserved);
            end.host.flow.others = reserved - end.watch.counted;
        }
    }

    /// Collects events and checks promises after a call on an end.
    fn end_call(&mut self, id: usize) -> Result<(), Broken> {
        let end = &mut self.ends[id];
        end.events |= end.qp.poll_event();
        self.count_window(id)?;
        self.mark_ready(id);
        self.check(id)
    }

    /// Updates and checks the sum of reservations between two nodes. Each QP may exceed the limit
    /// by one packet when it has nothing in flight, and by the remaining packets of a run.
    fn count_window(&mut self, id: usize) -> Result<(), Broken> {
        let end = &mut self.ends[id];
        let flow = &end.host.flow;
        let (Some(limit), true) = (flow.limit, flow.releases) else { return Ok(()) };
        let window = self.windows.entry(end.endpoints.nodes()).or_default();
        window.reserved = window.reserved - end.watch.counted + flow.reserved;
        end.watch.counted = flow.reserved;
        let Window { reserved, slack } = *window;
        let at = self.now;
        ensure!(reserved <= limit + slack, Credit, Some(id), at, "{reserved} bytes reserved, {limit} allowed");
        Ok(())
    }

    fn check(&mut self, id: usize) -> Result<(), Broken> {
        let other = self.honest.then(|| self.ends[id ^ 1].qp.probe());
        let end = &mut self.ends[id];
        end.watch.check(&end.qp, &end.host, other, self.now).map_err(|broken| Broken { end: Some(id), ..broken })
    }

    /// Handles a deadline of an end: its timer, or the time when its link becomes free.
    fn wake(&mut self, id: usize) -> Result<(), Broken> {
        let is_due = |end: &End, now| end.qp.poll_timeout().is_some_and(|at| at <= now);
        if is_due(&self.ends[id], self.now) {
            self.begin_call(id);
            let end = &mut self.ends[id];
            if end.link == LinkState::Shared {
                end.qp.on_link_moved(self.now);
            }
            end.qp.handle_timeout(&mut end.host);
            self.timeouts[id] += 1;
            self.end_call(id)?;
        }
        self.transmit(id)?;
        let end = &self.ends[id];
        ensure!(!is_due(end, self.now), Timers, Some(id), self.now, "still due: {:?}", end.qp.poll_timeout());
        Ok(())
    }

    fn deliver(&mut self, flight: InTransit) -> Result<(), Broken> {
        let is_intact = icrc::verify(&flight.net, &flight.bytes);
        let id = if is_intact { self.receiver(&flight.net, &flight.bytes) } else { None };
        let Some(id) = id.filter(|&id| !self.is_removed(id)) else {
            self.wire.tally.bad_icrc += u64::from(!is_intact);
            self.wire.pool.put(flight.bytes);
            return Ok(());
        };
        let qpn = self.ends[id].endpoints.here.qpn;
        let Some((mut flight, verdict)) = self.wire.receive(self.now, id, qpn, flight) else { return Ok(()) };
        if let Some(tamper) = &mut self.tamper {
            tamper(id, &mut flight.bytes);
        }
        let packet = Packet::parse(&flight.bytes).expect("parse the packet that a QP emitted");
        let result = self.deliver_to_qp(id, &flight.net, &packet, verdict.rnr);
        self.wire.pool.put(flight.bytes);
        result
    }

    /// Returns the end that has the destination address and QPN of a packet.
    fn receiver(&self, net: &NetHeader, bytes: &[u8]) -> Option<usize> {
        let packet = Packet::parse(bytes).expect("parse the packet that a QP emitted");
        self.by_place.get(&(node_at(net.dst)?, packet.header.bth.dest_qpn.get())).copied()
    }

    /// Delivers a packet to an end, regardless of its destination.
    pub(crate) fn deliver_to_qp(
        &mut self,
        id: usize,
        net: &NetHeader,
        packet: &Packet<'_>,
        without_receive: bool,
    ) -> Result<(), Broken> {
        self.delivered[id] += 1;
        self.begin_call(id);
        let end = &mut self.ends[id];
        if without_receive || !end.keep_early(net, packet) {
            end.handle_packet(net, packet, without_receive);
        }
        self.end_call(id)
    }

    pub(crate) fn transmit_ready(&mut self) -> Result<(), Broken> {
        // Transmitting marks no other end as ready, so the list does not grow during the loop.
        for index in 0..self.ready.len() {
            let id = self.ready[index];
            self.transmit(id)?;
            self.ends[id].is_in_ready = false;
            if !core::mem::replace(&mut self.ends[id].is_in_changed, true) {
                self.changed.push(id);
            }
        }
        self.ready.clear();
        Ok(())
    }

    /// Sends everything that an end can send now, until a full batch keeps its link busy (see
    /// [`Setup::stall`]).
    pub(crate) fn transmit(&mut self, id: usize) -> Result<(), Broken> {
        if self.is_removed(id) {
            return Ok(());
        }
        if !self.ends[id].early.is_empty() {
            self.begin_call(id);
            self.ends[id].deliver_early();
            self.end_call(id)?;
        }
        while self.ends[id].busy_until <= self.now {
            if self.transmit_batch(id)? == TxState::Drained {
                break;
            }
            if self.ends[id].link != LinkState::Open {
                self.ends[id].qp.on_link_full(self.now);
                break;
            }
            let setup = &self.ends[id].setup;
            if setup.stall > 0 && self.choices.chance_per_mille(setup.stall) {
                self.ends[id].busy_until = self.now.after(setup.latency * self.choices.between(1, 30) / 10);
            }
        }
        let end = &self.ends[id];
        let link_free_at = (end.busy_until > self.now && end.qp.has_work()).then_some(end.busy_until);
        self.deadlines.set(id, end.deadline().into_iter().chain(link_free_at).min());
        Ok(())
    }

    fn transmit_batch(&mut self, id: usize) -> Result<TxState, Broken> {
        self.begin_call(id);
        let end = &mut self.ends[id];
        let before = (end.host.sends.len(), end.host.recvs.len());
        let had_work = end.qp.has_work();
        let is_open = end.link == LinkState::Open;
        let room = if is_open { end.setup.batch } else { 0 };
        let mut tx = self.batch.open(&mut self.wire.pool, room, end.setup.joins, end.setup.run);
        let state = end.qp.poll_transmit(&mut end.host, &mut tx);
        drop(tx);
        let did_nothing = self.batch.is_empty() && before == (end.host.sends.len(), end.host.recvs.len());
        let at = self.now;
        let detail = "has_work was false, yet poll_transmit sent a packet or completed a request";
        ensure!(did_nothing || had_work, Silence, Some(id), at, "{detail}");
        let is_full = state == TxState::BatchFull;
        ensure!(!is_full || !is_open || !self.batch.is_empty(), Progress, Some(id), at, "an empty batch is full");
        self.end_call(id)?;
        self.dispatch(id)?;
        Ok(state)
    }

    fn dispatch(&mut self, id: usize) -> Result<(), Broken> {
        let mut batch = core::mem::take(&mut self.batch);
        for (net, note, bytes) in batch.drain() {
            let end = &mut self.ends[id];
            let packet = Packet::parse(&bytes).expect("parse the packet that a QP emitted");
            let checked = end.watch.on_emitted(&end.qp, &packet.header, self.now);
            checked.map_err(|broken| Broken { end: Some(id), ..broken })?;
            let (header, len) = (packet.header, packet.payload.len());
            let (log, qpn) = (end.setup.log, end.endpoints.here.qpn);
            let verdict = self.wire.send(self.now, id, qpn, net, bytes);
            if log {
                let (at, connection, from) = (self.now, id / 2, Peer::of_end(id));
                self.log.push(LoggedPacket { at, connection, from, note, header, len, verdict });
            }
        }
        self.batch = batch;
        let in_flight = self.wire.in_flight();
        ensure!(in_flight < FLIGHT_LIMIT * self.ends.len(), Progress, Some(id), self.now, "never stops sending");
        Ok(())
    }

    /// Checks the end of a run, when no packet is in flight and no deadline is left: all QPs are
    /// quiescent, no packet waits, and no reservation leaked.
    pub fn check_settled(&self) -> Result<(), Broken> {
        for (id, end) in self.ends.iter().enumerate().filter(|(id, _)| !self.is_removed(*id)) {
            let (id, at) = (Some(id), self.now);
            ensure!(end.qp.poll_timeout().is_none(), Timers, id, at, "a timer is left");
            ensure!(end.qp.is_quiescent(), Progress, id, at, "not quiescent");
            ensure!(end.early.is_empty(), Progress, id, at, "{} packets wait", end.early.len());
            let leaked = if end.setup.service.is_reliable() { end.host.flow.reserved } else { 0 };
            ensure!(leaked == 0, Credit, id, at, "{leaked} bytes leaked");
        }
        Ok(())
    }

    /// Returns the network header of packets from an end to its peer.
    pub fn net_of(&self, id: usize) -> NetHeader {
        net_header(&self.ends[id].endpoints.av())
    }
}

/// One of the two QPs of a connection, with its host.
pub struct End {
    pub qp: Qp,
    pub host: SimHost,
    pub setup: Setup,
    pub endpoints: Endpoints,
    pub events: QpEvents,
    /// Last drop reason, and number of dropped packets.
    pub dropped: (Option<DropReason>, u32),
    /// Packets that overtook others and wait for them.
    pub early: EarlyPackets<()>,
    pub link: LinkState,
    pub(crate) watch: Watch,
    /// Time until which a full batch keeps the link busy.
    pub(crate) busy_until: Instant,
    /// True if the end is in `ready`.
    pub(crate) is_in_ready: bool,
    /// True if the end is in `changed`.
    pub(crate) is_in_changed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    #[default]
    Open,
    /// Full, like a ring that its reader does not empty.
    Full,
    /// Full, but makes progress with packets of other QPs.
    Shared,
}

impl End {
    pub(crate) fn new((qp, host): (Qp, SimHost), setup: Setup, endpoints: Endpoints, now: Instant) -> Self {
        Self {
            qp,
            host,
            setup,
            endpoints,
            events: QpEvents::empty(),
            dropped: (None, 0),
            early: EarlyPackets::default(),
            link: LinkState::Open,
            watch: Watch::default(),
            busy_until: now,
            is_in_ready: false,
            is_in_changed: false,
        }
    }

    /// Posts a receive to the QP's own queue or its SRQ.
    pub fn post_recv(&mut self, req: &RecvRequest<'_>) -> Result<(), PostError> {
        if self.setup.srq {
            self.host.srq.post(req);
            return Ok(());
        }
        self.qp.post_recv(req)
    }

    pub(crate) fn handle_packet(&mut self, net: &NetHeader, packet: &Packet<'_>, without_receive: bool) {
        let Self { qp, host, dropped, .. } = self;
        let result = match without_receive {
            true => qp.handle_packet_without_receive(host, net, packet),
            false => qp.handle_packet(host, net, packet),
        };
        note_drop(dropped, result);
    }

    /// Keeps the packet if it is early; returns true if so. Every packet of the simulated network
    /// may have overtaken others.
    pub(crate) fn keep_early(&mut self, net: &NetHeader, packet: &Packet<'_>) -> bool {
        self.setup.early_wait && self.early.keep(&mut self.qp, &mut self.host, (net, packet), (), || true)
    }

    /// Delivers the packets that are no longer early.
    pub(crate) fn deliver_early(&mut self) {
        let Self { qp, host, early, dropped, .. } = self;
        early.deliver(qp, host, |_, _, result| note_drop(dropped, result));
    }

    /// Returns the next deadline of the queue pair or of an early packet.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.qp.poll_timeout().into_iter().chain(self.early.deadline()).min()
    }
}

fn note_drop(dropped: &mut (Option<DropReason>, u32), result: Result<(), DropReason>) {
    if let Err(reason) = result {
        *dropped = (Some(reason), dropped.1 + 1);
    }
}
