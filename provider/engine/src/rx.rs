//! Packets on their way in: from the sockets to the queue pairs, and what follows from a batch of them.
//!
//! Everything here runs under the engine's receive lock, which is tried and never waited for on a data path, so holding
//! it across the sends that a batch causes stops nobody.

mod intercepted;
mod joined;

pub use joined::Joined;

use crate::ack_wait::Waiting;
use crate::counters::Counter;
use crate::engine::DRAIN_ROUNDS;
use crate::engine::Engine;
use crate::flow_control::{Key, Owed};
use crate::forward_queue::{Fate, ForwardQueue};
use crate::frames::FrameSide;
use crate::groups::Group;
use crate::gsi::Unclaimed;
use crate::interceptor::Interceptor;
use crate::queue_pair::{QueuePair, VisitOutcome};
use crate::table::Lookup;
use crate::tx::peek_qpn;
use intercepted::sealed;
use roxe_base::cancel::uncancelled;
use roxe_memory::crc::Folding;
use roxe_net::Control;
use roxe_net::forward::Frame;
use roxe_net::link::RxMeta;
use roxe_net::rx_retention::STREAM;
use roxe_net::service::{Mailbox, ServiceSocket};
use roxe_net::shm::{Broken, Inbound, Record};
use roxe_net::slot::{Slot, SlotSocket};
use roxe_net::source_ports::SourcePorts;
use roxe_net::steer::{self, Steering};
use roxe_net::udp::UdpLink;
use roxe_transport::time::Instant;
use roxe_wire::icrc::Sealer;
use roxe_wire::{Gid, NetHeader, Qpn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Receives of one visit to one socket: enough to acknowledge several superpackets at once, few enough to answer soon.
const BUDGET: usize = 8;
/// Runs of one visit to one ring.
const RING_BUDGET: usize = 32;
/// Visits for which a ring counts as young.
pub(crate) const YOUNG: u32 = 256;
/// Sockets without traffic are looked at on every n-th visit.
const COLD: u32 = 16;
/// While packets come by rings, or before timers run, all sockets are looked at this often: a look costs three system calls, as
/// much as a message takes from one process to another and back.
const BESIDE_RINGS: Duration = Duration::from_micros(20);
/// After a frame, mailboxes are looked at on this many visits in a row.
const MAIL_VISITS: u32 = 64;
/// Visits that find packets before timers run all the same: what was there when these became due has been taken by then.
const MAX_OVERDUE: u32 = 256;
/// How soon the background thread tries again to deliver what a full mailbox refused.
const RETRY: Duration = Duration::from_millis(1);
/// Bytes of a packet that are copied out of a ring before they are looked at: the longest headers, and a payload that is no
/// longer than an ATOMIC WRITE's.
const HEAD: usize = 96;
/// Shorter packets are copied whole.
const LONG: usize = 1024;
/// Largest datagram: 64 KB of packets, or the same behind a frame header.
const BUFFER: usize = (64 << 10) + 4096;

/// By which way packets came into this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The socket of an address.
    Address,
    /// A process that got them instead of us.
    Mailbox,
    /// A socket of the multicast group with this index.
    Group(usize),
    /// A ring through shared memory.
    Ring,
}

/// A queue pair that a batch of packets touched.
#[derive(Debug)]
struct Touched {
    qp: Arc<dyn QueuePair>,
    report: VisitOutcome,
}

/// The receive side of an engine.
#[derive(Debug)]
pub(crate) struct Rx {
    buf: Vec<u8>,
    sources: Sources,
    state: RxState,
}

/// Where packets come from: copies of the engine's lists, renewed when those change.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    links: Vec<Arc<UdpLink>>,
    links_version: u32,
    pub(crate) rings: Vec<Arc<Inbound>>,
    pub(crate) rings_version: u32,
    /// Visits for which the sockets are emptied before the rings: a young ring shall not overtake them.
    pub(crate) young_visits: u32,
}

/// What changes while packets are handed out.
#[derive(Debug, Default)]
pub(crate) struct RxState {
    /// For whoever receives.
    control: Control,
    /// The addresses of the links.
    locals: Vec<Gid>,
    /// Who of this host may send to them.
    source_ports: SourcePorts,
    /// The last packets came by a ring, and more of them is to be expected there.
    prefers_rings: bool,
    /// A queue pair for which so much waits that rings are left alone.
    crowded: Option<Arc<dyn QueuePair>>,
    /// When all sockets were looked at last.
    looked_at: Instant,
    /// Slots of this process with their mailboxes.
    pub(crate) slots: Vec<SlotSocket>,
    pub(crate) steering: Vec<Steering>,
    /// Multicast groups that queue pairs of this process are attached to.
    pub(crate) groups: Vec<Group>,
    /// The raw link, while there are flows.
    pub(crate) frames: Option<FrameSide>,
    /// Services that programs of this process offer, with their mailboxes.
    pub(crate) services: Vec<ServiceSocket>,
    /// Requests for services that nobody offers yet.
    pub(crate) unclaimed: Unclaimed,
    /// For other processes.
    pub(crate) forward_queue: ForwardQueue,
    /// Visits for which the mailboxes are looked at every time.
    mail_visits: u32,
    touched: Vec<Touched>,
    pub(crate) waiting: Option<Waiting>,
    pub(crate) ident: IdentGuess,
    visits: u32,
    /// Visits since a timer was due that has not run yet.
    overdue: u32,
    /// Whether the last visit found something.
    busy: bool,
    /// Who is here.
    pub(crate) visitor: Visitor,
}

/// Who looks for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Visitor {
    /// A thread of the program.
    #[default]
    Program,
    /// The background thread, which has just woken up: it looks everywhere.
    Woken,
    /// The same, while it keeps looking.
    Spinning,
}

/// Some packets to one queue pair out of one receive.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Where they come from; `len` and `first_index` are those of the whole receive.
    pub meta: &'a RxMeta,
    /// Their bytes.
    pub bytes: &'a [u8],
    /// Index of the first of them in the sender's run.
    pub index: u16,
}

impl<'a> Run<'a> {
    /// How many packets there are.
    pub fn count(&self) -> u64 {
        self.meta.packets_in(self.bytes.len())
    }

    /// The packets with their indices.
    pub fn packets(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        // A receive has no more than 2^16 bytes.
        let indexed = self.bytes.chunks(self.meta.segment).enumerate();
        indexed.map(move |(at, packet)| (self.index.saturating_add(at as u16), packet))
    }
}

/// Which IPv4 identification the next packet probably has. Senders like us number the packets of a run from
/// 0; others count on from packet to packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentGuess {
    /// The last identification of a sender that counts.
    counting: Option<u16>,
    /// Between the addresses of the newest run.
    sums: Sealer,
}

impl IdentGuess {
    /// A run comes that is between the addresses of `net`.
    #[inline]
    pub fn begin_run(&mut self, net: &NetHeader) {
        self.sums.retarget(net);
    }

    /// Whether the ICRC of `packet`, which is in the run that began last, is right for some identification.
    #[inline]
    pub fn verify(&mut self, packet: &[u8], index: u16) -> bool {
        let likely = self.counting.map_or(index, |last| last.wrapping_add(1));
        // clause: IP-IDENT
        let Some(ident) = self.sums.solve_ident::<Folding>(packet, likely) else { return false };
        self.counting = (ident != index).then_some(ident);
        true
    }
}

/// What a queue pair's receive function needs of the engine's receive state.
#[derive(Debug)]
pub struct RxTools<'a> {
    /// Guesses identifications.
    pub ident: &'a mut IdentGuess,
    /// The addresses of the device. A sender that has one is on this host and keeps a window for datagrams.
    pub locals: &'a [Gid],
    /// Whether the packets shall find no receive (a fault).
    pub starved: bool,
    /// They come by a socket, and no fault makes gaps.
    pub may_overtake: bool,
}

impl RxTools<'_> {
    /// Whether packets from `src` that are behind a gap have probably overtaken what is missing: by a socket nothing is lost on
    /// this host, but some may take the way over another process.
    pub fn may_overtake(&self, src: Gid) -> bool {
        self.may_overtake && self.locals.contains(&src)
    }

    /// Whether who sent from `src` to `dst` waits for credits.
    pub fn owes_credit(&self, src: Gid, dst: Gid) -> bool {
        self.locals.contains(&src) && !dst.is_multicast()
    }
}

/// The header of packet `index` of a receive.
pub fn header_of(meta: &RxMeta, index: u16) -> NetHeader {
    NetHeader {
        src: meta.src,
        dst: meta.dst,
        src_port: meta.src_port,
        traffic_class: meta.traffic_class,
        hop_limit: meta.hop_limit,
        flow_label: 0,
        ident: index,
    }
}

impl Default for Rx {
    fn default() -> Self {
        Self { buf: vec![0; BUFFER], sources: Sources::default(), state: RxState::default() }
    }
}

impl Rx {
    pub(crate) fn state(&mut self) -> &mut RxState {
        &mut self.state
    }

    pub(crate) fn sources(&mut self) -> &mut Sources {
        &mut self.sources
    }

    /// Forgets sockets and whatever refers to them.
    pub(crate) fn clear(&mut self) {
        (self.sources, self.state) = Default::default();
    }
}

impl Engine {
    /// Takes what has arrived, up to a budget, and does all that follows from it. `all`: also look at sockets that had no
    /// traffic yet. Whether anything was there.
    pub(crate) fn receive(&self, rx: &mut Rx, all: bool, now: Instant) -> bool {
        let Rx { buf, sources, state } = rx;
        self.refresh_links(sources, state);
        let mut found = false;
        if self.rings().is_on() {
            found |= self.receive_by_rings(sources, buf, state, now);
        }
        // What others have sent on is older than what comes by itself now.
        if all || state.mail_visits > 0 || self.flows.is_starved() {
            found |= self.drain_mailboxes(buf, state, now);
        }
        let skips_sockets = state.prefers_rings && !all;
        for link in sources.links.iter().filter(|link| all || link.is_hot() && !skips_sockets) {
            if self.drain_link(link, Way::Address, buf, state, now) {
                found = true;
                state.prefers_rings = false;
            }
        }
        if !state.groups.is_empty() {
            found |= self.drain_groups(buf, state, all, now);
        }
        if state.frames.is_some() {
            found |= self.drain_frames(state, now);
        }
        if let Some(interceptor) = self.interceptor() {
            found |= self.release_held(interceptor, state, now, now);
        }
        self.finish_batch(state, now);
        self.end_waiting(state, now, now);
        self.retry_later(state, now);
        state.busy = found;
        found
    }

    /// Nobody keeps looking from now on, unless who has the receive side does: nothing that was read or sent stays in a socket.
    pub(crate) fn clear_kept(&self) {
        if let Some(rx) = self.rx.try_lock() {
            rx.sources.links.iter().for_each(|link| link.clear_kept());
        }
    }

    fn refresh_links(&self, sources: &mut Sources, state: &mut RxState) {
        let version = self.links_version.load(Ordering::Acquire);
        if version != sources.links_version {
            sources.links.clone_from(&self.links.read());
            sources.links_version = version;
            state.locals = sources.links.iter().map(|link| link.gid()).collect();
            state.source_ports.set_host(&self.host_addresses.read());
        }
    }

    /// Receives from one link. After a lone small packet it comes back at once: the program waits for it.
    #[inline]
    fn drain_link(&self, link: &Arc<UdpLink>, way: Way, buf: &mut [u8], state: &mut RxState, now: Instant) -> bool {
        for count in 0..BUDGET {
            let meta = match link.recv_with(buf, &mut state.control) {
                Ok(Some(meta)) => meta,
                Ok(None) => return count > 0,
                // An error the network reported for something sent earlier; reading it has cleared it.
                Err(_) => {
                    self.counters().receive_errors.add(1);
                    return count > 0;
                }
            };
            let bytes = buf.get(..meta.len).unwrap_or_default();
            if !state.source_ports.admit(&meta, now) {
                self.keep_out(state, link, &meta, bytes, now);
                continue;
            }
            // Steering tries every address, also those that nobody uses: looking there cost 0.4 us of each message.
            if bytes.first() != Some(&steer::PROBE) {
                link.set_hot();
            }
            self.dispatch(state, &meta, bytes, way, now);
            if meta.len < STREAM && !state.busy {
                return true;
            }
        }
        true
    }

    /// What came by `link` is of another user of this host.
    #[cold]
    fn keep_out(&self, state: &mut RxState, link: &Arc<UdpLink>, meta: &RxMeta, bytes: &[u8], now: Instant) {
        let run = Run { meta, bytes, index: meta.first_index };
        self.count_dropped(run, &self.counters().foreign_source_port);
        // Files are looked at, where a thread may be cancelled.
        uncancelled(|| state.source_ports.keep_out(link, now));
    }

    /// Receives from the rings. What was sent by the socket before a ring was there comes first.
    fn receive_by_rings(&self, sources: &mut Sources, buf: &mut [u8], state: &mut RxState, now: Instant) -> bool {
        self.refresh_rings(sources);
        self.look_for_room();
        if state.rests() {
            return false;
        }
        let has_packets = sources.rings.iter().any(|ring| !ring.reader.is_empty());
        if has_packets && sources.young_visits > 0 {
            sources.young_visits -= 1;
            self.empty_sockets(&sources.links, buf, state, now);
        }
        if has_packets {
            for ring in &sources.rings {
                self.drain_ring(ring, buf, state, now);
            }
            state.prefers_rings = true;
            // A broken one is let go of now: its writer shall hear of it.
            self.refresh_rings(sources);
        }
        has_packets
    }

    /// Receives from the sockets of all addresses and from the mailboxes until nothing is there, or a sender never stops.
    fn empty_sockets(&self, links: &[Arc<UdpLink>], buf: &mut [u8], state: &mut RxState, now: Instant) {
        let mut rounds = 0..DRAIN_ROUNDS;
        while rounds.next().is_some()
            && links.iter().fold(false, |found, link| self.drain_link(link, Way::Address, buf, state, now) | found)
        {
        }
        self.drain_mailboxes(buf, state, now);
    }

    /// Receives from one ring.
    #[inline]
    fn drain_ring(&self, ring: &Arc<Inbound>, buf: &mut [u8], state: &mut RxState, now: Instant) {
        for _ in 0..RING_BUDGET {
            if state.crowded.is_some() {
                break;
            }
            match ring.reader.next(|record| self.take_from_ring(record, buf, state, now)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(Broken) => {
                    self.counters().malformed.add(1);
                    return self.forget_inbound(std::slice::from_ref(ring));
                }
            }
        }
        if ring.reader.must_tell() {
            ring.doorbell.ring();
        }
    }

    /// Takes one run out of a ring. It is copied into `buf` first, because its writer may change it after it was checked; but
    /// of long packets the payload is only copied to where it belongs.
    #[inline]
    fn take_from_ring(&self, record: Record<'_>, buf: &mut [u8], state: &mut RxState, now: Instant) {
        let Record { meta, bytes, joined } = record;
        if joined > 1 {
            return self.take_joined(record, buf, state, now);
        }
        self.counters().received_by_ring.add_alone(meta.packets());
        if meta.segment >= LONG && self.take_long(&record, buf, state, now) {
            return;
        }
        if let Some(copy) = buf.get_mut(..meta.len)
            && bytes.copy_to(copy).is_ok()
        {
            self.show_from_ring(&meta, copy, state, now);
        }
    }

    /// Takes a run of long packets to one queue pair that need not be copied whole. False: nothing was done.
    fn take_long(&self, record: &Record<'_>, buf: &mut [u8], state: &mut RxState, now: Instant) -> bool {
        let Record { meta, bytes, .. } = record;
        let Some(copies) = buf.get_mut(..meta.len).filter(|_| !meta.sealed && self.interceptor().is_none()) else {
            return false;
        };
        let mut to = None;
        for (index, copy) in copies.chunks_mut(meta.segment).enumerate() {
            let head = copy.len().min(HEAD);
            let from = bytes.get(index * meta.segment..index * meta.segment + head);
            let is_copied = from.zip(copy.get_mut(..head)).is_some_and(|(from, head)| from.copy_to(head).is_ok());
            let qpn = peek_qpn(copy);
            if !is_copied || *to.get_or_insert(qpn) != qpn {
                return false;
            }
        }
        let Some(Lookup::Found(qp)) = to.flatten().map(|qpn| self.table.find(qpn)) else { return false };
        if !qp.takes_shared_payload() {
            return false;
        }
        self.counters().count_received(meta.packets(), meta.len);
        let report = qp.receive_shared(meta, (copies, HEAD), *bytes, now);
        state.touch(qp, report);
        true
    }

    /// Hands on a run from a ring that lies where it can be sealed for a interceptor.
    #[inline(always)]
    fn show_from_ring(&self, meta: &RxMeta, bytes: &mut [u8], state: &mut RxState, now: Instant) {
        if self.interceptor().is_some() {
            let meta = sealed(meta, bytes);
            return self.dispatch(state, &meta, bytes, Way::Ring, now);
        }
        self.dispatch(state, meta, bytes, Way::Ring, now);
    }

    /// Receives from the sockets of all groups.
    fn drain_groups(&self, buf: &mut [u8], state: &mut RxState, all: bool, now: Instant) -> bool {
        let mut found = false;
        for at in 0..state.groups.len() {
            let mut next = 0;
            while let Some(link) = state.groups.get(at).and_then(|group| group.links.get(next)).map(Arc::clone) {
                next += 1;
                if all || link.is_hot() {
                    found |= self.drain_link(&link, Way::Group(at), buf, state, now);
                }
            }
        }
        found
    }

    /// Reads the frames that other processes sent us.
    #[inline]
    fn drain_mailboxes(&self, buf: &mut [u8], state: &mut RxState, now: Instant) -> bool {
        let mut found = false;
        self.flows.set_starved(false);
        state.mail_visits = state.mail_visits.saturating_sub(1);
        for at in 0..state.slots.len() {
            for _ in 0..BUDGET {
                let Some(Ok(Some((len, fds)))) =
                    state.slots.get(at).map(|socket| socket.recv_with(buf, &mut state.control))
                else {
                    break;
                };
                found = true;
                match Frame::parse(buf.get(..len).unwrap_or_default()) {
                    Some((Frame::Ring { size }, _)) => self.accept_ring(size, fds),
                    frame => self.take_frame(frame, state, now),
                }
            }
        }
        for at in 0..state.services.len() {
            for _ in 0..BUDGET {
                let Some(Ok(Some(len))) =
                    state.services.get(at).map(|socket| socket.recv_with(buf, &mut state.control))
                else {
                    break;
                };
                found = true;
                self.take_frame(Frame::parse(buf.get(..len).unwrap_or_default()), state, now);
            }
        }
        found
    }

    fn take_frame(&self, frame: Option<(Frame, &[u8])>, state: &mut RxState, now: Instant) {
        state.mail_visits = MAIL_VISITS;
        match frame {
            Some((Frame::Packets(meta), body)) => self.dispatch(state, &meta, body, Way::Mailbox, now),
            Some((Frame::Credit { dst, slot, bytes }, _)) => self.flows.credit(Key { dst, slot }, bytes, now),
            Some((Frame::XrcRequest(request), body)) => self.services.serve_xrc_request(self, &request, body, now),
            Some((Frame::Result(id, outcome), body)) => self.take_result(state, (id, outcome, body), now),
            // Answers to probes go to the builder's own mailbox, rings to that of a slot.
            Some((Frame::ProbeSeen { .. } | Frame::Ring { .. }, _)) | None => self.counters().malformed.add(1),
        }
    }

    /// Splits a receive into runs to one queue pair each and hands them out.
    fn dispatch(&self, state: &mut RxState, meta: &RxMeta, bytes: &[u8], way: Way, now: Instant) {
        let (mut rest, mut index) = (bytes, meta.first_index);
        while !rest.is_empty() {
            let qpn = peek_qpn(rest);
            let (mut end, mut next) = (meta.segment, index.saturating_add(1));
            while rest.get(end..).is_some_and(|rest| !rest.is_empty() && peek_qpn(rest) == qpn) {
                (end, next) = (end + meta.segment, next.saturating_add(1));
            }
            let (run, behind) = rest.split_at(end.min(rest.len()));
            self.hand_out(state, qpn, Run { meta, bytes: run, index }, way, now);
            (rest, index) = (behind, next);
        }
    }

    /// Gives a run to its queue pair, to the members of its group, or to the process that owns it.
    fn hand_out(&self, state: &mut RxState, qpn: Option<Qpn>, run: Run<'_>, way: Way, now: Instant) {
        let Some(qpn) = qpn else { return self.count_dropped(run, &self.counters().malformed) };
        if let Way::Group(at) = way {
            return self.hand_to_group(state, at, qpn, run, now);
        }
        if run.bytes.first() == Some(&steer::PROBE) {
            return self.answer_probes(state, run);
        }
        match self.table.find(qpn) {
            Lookup::Found(qp) => {
                self.count_received(run);
                self.hand_over(state, qp, run, now);
            }
            Lookup::NotOurs if qpn == Qpn::GSI && way == Way::Address => self.route_mads(state, run, now),
            Lookup::NotOurs if qpn == Qpn::GSI => self.take_mads(state, run, now),
            Lookup::NotOurs if way == Way::Address => self.forward(state, qpn, run, now),
            Lookup::Unknown | Lookup::NotOurs => {
                self.count_dropped(run, &self.counters().unknown_qp);
                self.interceptor().into_iter().for_each(|interceptor| interceptor.record_unknown(qpn, run));
            }
        }
    }

    /// Answers probes, which count as nothing; what only begins like one is malformed.
    #[cold]
    fn answer_probes(&self, state: &RxState, run: Run<'_>) {
        for (index, bytes) in run.packets() {
            if !steer::answer(bytes, run.meta, &state.slots) {
                self.count_dropped(Run { bytes, index, ..run }, &self.counters().malformed);
            }
        }
    }

    /// Counts a run whose way ends in this process.
    #[inline]
    pub(crate) fn count_received(&self, run: Run<'_>) {
        self.counters().count_received(run.count(), run.bytes.len());
    }

    /// The same of one that reaches no queue pair; `why` is one of the counters.
    pub(crate) fn count_dropped(&self, run: Run<'_>, why: &Counter) {
        self.count_received(run);
        why.add(run.count());
    }

    /// Gives a run to a queue pair, through the interceptor if there is one.
    #[inline]
    pub(crate) fn hand_over(&self, state: &mut RxState, qp: Arc<dyn QueuePair>, run: Run<'_>, now: Instant) {
        match self.interceptor() {
            None => self.hand_in(state, qp, run, now),
            Some(interceptor) => self.hand_in_intercepted(interceptor, state, Some(&qp), run, now),
        }
    }

    /// Gives a run to its queue pair.
    #[inline]
    fn hand_in(&self, state: &mut RxState, qp: Arc<dyn QueuePair>, run: Run<'_>, now: Instant) {
        let mut tools = state.tools();
        tools.may_overtake = !run.meta.by_ring && !self.interceptor().is_some_and(Interceptor::spoils);
        let report = qp.receive(run, &mut tools, now);
        if report.contains(VisitOutcome::IS_CROWDED) && run.meta.by_ring {
            state.crowded = Some(Arc::clone(&qp));
        }
        state.touch(qp, report);
    }

    /// Sends a packet for another process run to the process that owns `qpn`.
    fn forward(&self, state: &mut RxState, qpn: Qpn, run: Run<'_>, now: Instant) {
        let to = Slot::of(qpn);
        let frame = Frame::Packets(RxMeta { first_index: run.index, ..*run.meta });
        let fate = match state.slots.first() {
            Some(first) if to.can_be_owned() => state.forward_queue.send(first, Mailbox::Slot(to), &frame, run.bytes),
            _ => Fate::Unowned,
        };
        match fate {
            Fate::Forwarded => {
                self.counters().forwarded.add(run.count());
                self.note_forwarded(state, run.meta.dst, now);
            }
            Fate::Unowned => self.count_dropped(run, &self.counters().unknown_qp),
            Fate::Lost => self.count_dropped(run, &self.counters().forward_errors),
        }
    }

    /// Sends what other processes had no room for earlier. While anything is left, the background thread comes back soon.
    pub(crate) fn retry_later(&self, state: &mut RxState, now: Instant) {
        self.send_xrc_messages(state, now);
        self.offer_rings(state, now);
        if state.source_ports.due().is_some_and(|due| due <= now) {
            uncancelled(|| state.source_ports.renew_filters(now));
        }
        let Some(first) = state.slots.first() else { return };
        if !state.forward_queue.is_empty() {
            let lost = state.forward_queue.retry(first);
            self.counters().forward_errors.add(lost);
        }
        while let Some(owed) = self.flows.next_due() {
            if !self.send_credit(&state.slots, owed, now) {
                self.flows.put_back(owed);
                break;
            }
        }
        let waits = !state.forward_queue.is_empty() || self.flows.is_blocked();
        self.set_retry(waits.then(|| now.after(RETRY)).into_iter().chain(state.source_ports.due()).min());
    }

    /// Sends credits that became due outside of a visit to the sockets.
    pub fn send_credits(&self, now: Instant) {
        match self.rx.try_lock() {
            Some(mut rx) => self.retry_later(&mut rx.state, now),
            // Whoever holds the lock may be past this point.
            None => self.set_retry(Some(now)),
        }
    }

    /// Returns credits to their owner; false if its mailbox is full.
    fn send_credit(&self, slots: &[SlotSocket], owed: Owed, now: Instant) -> bool {
        let Owed { to, key, bytes } = owed;
        if slots.iter().any(|socket| socket.slot() == to) {
            self.flows.credit(key, bytes, now);
            return true;
        }
        let frame = Frame::Credit { dst: key.dst, slot: key.slot, bytes };
        let sent = slots.first().map(|first| first.send(to, &frame.header(), &[]));
        // An owner that is gone needs no credits.
        !matches!(sent, Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Lets the touched queue pairs answer and go on, then wakes who waits for completions: a program that ends as soon as
    /// it is told must not take an answer with it.
    fn finish_batch(&self, state: &mut RxState, now: Instant) {
        let mut touched = std::mem::take(&mut state.touched);
        for Touched { qp, report } in touched.drain(..) {
            if report.contains(VisitOutcome::HAS_WORK) {
                self.serve_or_wait(&mut state.waiting, &qp, report, now);
            } else {
                qp.announce(report);
            }
        }
        state.touched = touched;
    }
}

impl RxState {
    /// Whether this visit looks at all sockets. While a timer `is_due` not every visit does: of 10,000 queue pairs one is due
    /// every 7 us.
    pub(crate) fn takes_turn_of_sockets(&mut self, is_due: bool, now: Instant) -> bool {
        self.visits = self.visits.wrapping_add(1);
        let is_time = if self.prefers_rings || is_due {
            now.since(self.looked_at) >= BESIDE_RINGS
        } else {
            self.visits.is_multiple_of(COLD)
        };
        if is_time {
            self.looked_at = now;
        }
        is_time
    }

    /// Whether timers may run that were due before this visit. Not if it may not have found all packets: more of them may be
    /// there, or answers to those.
    pub(crate) fn ends_overdue(&mut self, may_find_more: bool) -> bool {
        self.overdue += 1;
        let ends = !may_find_more || self.overdue >= MAX_OVERDUE;
        if ends {
            self.overdue = 0;
        }
        ends
    }

    /// Whether rings are left alone: what they bring has overtaken packets that went another way, or its receives, and is to
    /// wait where its writer notices. Packets by other ways are looked for at every visit then.
    fn rests(&mut self) -> bool {
        self.crowded.take_if(|qp| !qp.is_crowded());
        self.prefers_rings &= self.crowded.is_none();
        self.crowded.is_some()
    }

    #[inline]
    pub(crate) fn touch(&mut self, qp: Arc<dyn QueuePair>, report: VisitOutcome) {
        match self.touched.last_mut() {
            Some(last) if Arc::ptr_eq(&last.qp, &qp) => last.report |= report,
            _ if report.is_empty() => {}
            _ => self.touched.push(Touched { qp, report }),
        }
    }

    /// What a queue pair needs to take in packets.
    fn tools(&mut self) -> RxTools<'_> {
        RxTools { ident: &mut self.ident, locals: &self.locals, starved: false, may_overtake: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_base::clock;

    #[test]
    fn packets_without_end_hold_up_timers_for_a_while_only() {
        let mut state = RxState::default();
        for _ in 0..2 {
            assert!(!state.ends_overdue(true), "more of them may be there");
            assert!((0..1 << 16).any(|_| state.ends_overdue(true)));
        }
        assert!(state.ends_overdue(false));
    }

    #[test]
    fn timers_that_are_always_due_have_the_sockets_looked_at_now_and_then() {
        let (mut state, start) = (RxState::default(), clock::now());
        let looks =
            (0..1000).filter(|at| state.takes_turn_of_sockets(true, start.after(Duration::from_nanos(100) * *at)));
        assert_eq!(looks.count(), 5);
    }
}
