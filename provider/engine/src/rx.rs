//! Receiving packets: from the sockets to the queue pairs, and the responses to a batch.
//!
//! All of this runs under the engine's receive lock. The data path only tries that lock and never
//! waits for it, so it may be held across the sends that a batch causes.

mod from_rings;
mod intercepted;
mod to_processes;

use crate::engine::Engine;
use crate::flow_control::Key;
use crate::interceptor::Interceptor;
use crate::progress::DRAIN_ROUNDS;
use crate::queue_pair::{QueuePair, VisitOutcome};
use crate::run::Run;
use crate::rx_state::{Rx, RxState, Sources, Touched};
use crate::table::Lookup;
use crate::tx::peek_qpn;
use roxe_net::forward::Frame;
use roxe_net::link::RxMeta;
use roxe_net::slot::recv_frame;
use roxe_net::steer;
use roxe_net::udp::UdpLink;
use roxe_observe::counters::Counter;
use roxe_observe::reasons::{self, Reason};
use roxe_transport::time::Instant;
use roxe_transport::wr::WcStatus;
use roxe_wire::Qpn;
use std::sync::Arc;

/// Receives per visit to one socket: enough to acknowledge several superpackets at once, few enough
/// to respond soon.
const BUDGET: usize = 8;
/// A datagram of at least this many bytes is part of a stream, so the next receive will succeed.
const STREAM: usize = 16 << 10;
/// Polls after the creation of a ring that read the sockets before the rings.
pub(crate) const NEW_RING_POLLS: u32 = 256;
/// Visits that read the mailboxes after one had a frame.
const MAIL_VISITS: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RxPath {
    /// Unicast socket of a local address.
    Address,
    /// Forwarded by another process of this host.
    Mailbox,
    /// Socket of the multicast group with this index.
    Group(usize),
    /// Ring in shared memory.
    Ring,
}

impl Engine {
    /// Receives packets up to a budget and sends the responses. `all` also polls sockets without
    /// recent traffic. Returns true if packets were received.
    pub(crate) fn receive(&self, rx: &mut Rx, all: bool, now: Instant) -> bool {
        let Rx { buf, sources, state } = rx;
        self.refresh_links(sources, state);
        let by_rings = self.rings.is_on && self.receive_by_rings(sources, buf, state, now);
        let polls_sockets = all || state.reads_sockets() || self.flows.wants_credits() || self.interceptor().is_some();
        let by_sockets = polls_sockets && self.receive_by_sockets(sources, buf, state, all, now);
        self.finish_batch(state, now);
        self.send_delayed_ack(state, now, now);
        self.serve_processes(state, now);
        state.busy = by_rings || by_sockets;
        state.busy
    }

    fn receive_by_sockets(
        &self,
        sources: &Sources,
        buf: &mut [u8],
        state: &mut RxState,
        all: bool,
        now: Instant,
    ) -> bool {
        if all {
            state.poll_sockets(&sources.links);
        }
        let mut found = false;
        // Forwarded packets are older than those in the sockets.
        if all || state.mail_visits > 0 || self.flows.wants_credits() {
            found |= self.drain_mailboxes(buf, state, all, now);
        }
        if all || !state.prefers_rings {
            for link in &sources.links {
                if state.reads(link, all) && self.drain_link(link, RxPath::Address, buf, state, now) {
                    found = true;
                    state.prefers_rings = false;
                }
            }
        }
        if !state.groups.is_empty() {
            found |= self.drain_groups(buf, state, all, now);
        }
        if state.frames.is_some() {
            found |= self.drain_frames(state, now);
        }
        state.note_socket_poll(all, found);
        if let Some(interceptor) = self.interceptor() {
            found |= self.release_held(interceptor, state, now, now);
        }
        found
    }

    fn refresh_links(&self, sources: &mut Sources, state: &mut RxState) {
        let version = self.links.version();
        if version != sources.links_version {
            sources.links.clone_from(&self.links.udp.read());
            sources.links_version = version;
            state.locals = sources.links.iter().map(|link| link.gid()).collect();
            let local_port = sources.links.first().map_or(0, |link| link.local_port());
            state.source_ports.set_host(&self.links.host_addresses.read(), local_port);
        }
    }

    /// Receives from one link. Returns after a lone small packet: the program waits for it.
    #[inline]
    fn drain_link(&self, link: &Arc<UdpLink>, path: RxPath, buf: &mut [u8], state: &mut RxState, now: Instant) -> bool {
        for count in 0..BUDGET {
            let meta = match link.recv_with(buf, &mut state.control) {
                Ok(Some(meta)) => meta,
                Ok(None) => return count > 0,
                // An asynchronous network error of an earlier send; reading it has cleared it.
                Err(_) => {
                    self.counters().receive_errors.add(1);
                    return count > 0;
                }
            };
            let bytes = buf.get(..meta.len).unwrap_or_default();
            if !state.source_ports.admit(&meta, now) {
                self.drop_foreign(state, link, &meta, bytes, now);
                continue;
            }
            // Steering probes every address, also unused ones: those must not become hot.
            if bytes.first() != Some(&steer::PROBE) {
                link.set_hot();
            }
            self.dispatch(state, &meta, bytes, path, now);
            if meta.len < STREAM && !state.busy {
                return true;
            }
        }
        true
    }

    #[cold]
    fn drop_foreign(&self, state: &mut RxState, link: &Arc<UdpLink>, meta: &RxMeta, bytes: &[u8], now: Instant) {
        let run = Run { meta, bytes, index: meta.first_index };
        self.count_dropped(run, &self.counters().foreign_source_port);
        state.source_ports.attach_filter(link, now);
    }

    /// Receives from all sockets and mailboxes until they are empty or [`DRAIN_ROUNDS`] are over.
    fn empty_sockets(&self, links: &[Arc<UdpLink>], buf: &mut [u8], state: &mut RxState, now: Instant) {
        let mut rounds = 0..DRAIN_ROUNDS;
        while rounds.next().is_some()
            && links.iter().fold(false, |found, link| self.drain_link(link, RxPath::Address, buf, state, now) | found)
        {
        }
        self.drain_mailboxes(buf, state, false, now);
    }

    fn drain_groups(&self, buf: &mut [u8], state: &mut RxState, all: bool, now: Instant) -> bool {
        let mut found = false;
        for at in 0..state.groups.len() {
            let mut next = 0;
            while let Some(link) = state.groups.get(at).and_then(|group| group.links.get(next)).map(Arc::clone) {
                next += 1;
                if state.reads(&link, all) {
                    found |= self.drain_link(&link, RxPath::Group(at), buf, state, now);
                }
            }
        }
        found
    }

    /// Reads frames from other processes; with `only_readable`, only from mailboxes that the last
    /// poll reported as readable. Returns true if it read one.
    #[inline]
    fn drain_mailboxes(&self, buf: &mut [u8], state: &mut RxState, only_readable: bool, now: Instant) -> bool {
        let mut found = false;
        self.flows.set_wants_credits(false);
        state.mail_visits = state.mail_visits.saturating_sub(1);
        for at in 0..state.slots.len() + state.services.len() {
            for _ in 0..BUDGET {
                let mailbox = state.mailbox(at).filter(|fd| !only_readable || state.readiness.has(*fd));
                let Some(Ok(Some((len, fds)))) = mailbox.map(|fd| recv_frame(fd, buf, &mut state.control)) else {
                    break;
                };
                found = true;
                let frame = Frame::parse(buf.get(..len).unwrap_or_default());
                if let Some((Frame::Ring { size }, _)) = frame
                    && at < state.slots.len()
                {
                    self.accept_ring(size, fds);
                    continue;
                }
                state.mail_visits = MAIL_VISITS;
                match frame {
                    Some((Frame::Packets(meta), body)) => self.dispatch(state, &meta, body, RxPath::Mailbox, now),
                    Some((Frame::Credit { dst, slot, bytes }, _)) => self.flows.credit(Key { dst, slot }, bytes, now),
                    // Probe answers go to the mailbox of their builder, ring offers to that of a
                    // slot.
                    _ => self.counters().malformed.add(1),
                }
            }
        }
        found
    }

    /// Splits a received datagram into runs to one queue pair each and routes them.
    #[inline]
    fn dispatch(&self, state: &mut RxState, meta: &RxMeta, bytes: &[u8], path: RxPath, now: Instant) {
        if bytes.len() <= meta.segment {
            self.route(state, peek_qpn(bytes), Run { meta, bytes, index: meta.first_index }, path, now);
        } else {
            self.dispatch_runs(state, meta, bytes, path, now);
        }
    }

    fn dispatch_runs(&self, state: &mut RxState, meta: &RxMeta, bytes: &[u8], path: RxPath, now: Instant) {
        let (mut rest, mut index) = (bytes, meta.first_index);
        while !rest.is_empty() {
            let qpn = peek_qpn(rest);
            let (mut end, mut next) = (meta.segment, index.saturating_add(1));
            while rest.get(end..).is_some_and(|rest| !rest.is_empty() && peek_qpn(rest) == qpn) {
                (end, next) = (end + meta.segment, next.saturating_add(1));
            }
            let (run, behind) = rest.split_at(end.min(rest.len()));
            self.route(state, qpn, Run { meta, bytes: run, index }, path, now);
            (rest, index) = (behind, next);
        }
    }

    /// Routes a run to its queue pair, to the members of its group, or to the process that owns it.
    fn route(&self, state: &mut RxState, qpn: Option<Qpn>, run: Run<'_>, path: RxPath, now: Instant) {
        let Some(qpn) = qpn else { return self.count_dropped(run, &self.counters().malformed) };
        if let RxPath::Group(at) = path {
            return self.deliver_to_group(state, at, qpn, run, now);
        }
        if run.bytes.first() == Some(&steer::PROBE) {
            return self.answer_probes(state, run, now);
        }
        match self.table.find_recent(qpn, &mut state.recent) {
            Lookup::Found(qp) => {
                self.count_received(run);
                self.deliver(state, &qp, run, now);
                state.recent.put(qpn, qp);
            }
            lookup => self.route_elsewhere(state, lookup, qpn, run, path, now),
        }
    }

    /// Routes a run whose destination is not a queue pair of this process: `lookup` is not `Found`.
    #[inline(never)]
    fn route_elsewhere(&self, state: &mut RxState, lookup: Lookup, qpn: Qpn, run: Run<'_>, path: RxPath, now: Instant) {
        match lookup {
            Lookup::NotOurs if qpn == Qpn::GSI && path == RxPath::Address => self.route_mads(state, run, now),
            Lookup::NotOurs if qpn == Qpn::GSI => self.take_mads(state, run, now),
            Lookup::NotOurs if path == RxPath::Address => self.forward(state, qpn, run, now),
            _ => {
                self.count_dropped(run, &self.counters().unknown_qp);
                self.note_unknown(qpn);
                if let Some(interceptor) = self.interceptor() {
                    interceptor.record_unknown(qpn, run);
                }
            }
        }
    }

    /// Records for the peer why its packets are dropped.
    #[cold]
    #[inline(never)]
    fn note_unknown(&self, qpn: Qpn) {
        reasons::record_drop(self.ifindex(), qpn, || {
            let text = format!("process {} has no queue pair {:#08x} (any more)", std::process::id(), qpn.get());
            let advice = "exchange the numbers once both queue pairs exist, and destroy them when both ends are done";
            Some(Reason { status: WcStatus::RetryExcErr, expects: None, text, advice: advice.to_owned() })
        });
    }

    /// Answers steering probes, which are not counted; other packets of that opcode are malformed.
    #[cold]
    fn answer_probes(&self, state: &mut RxState, run: Run<'_>, now: Instant) {
        for (index, bytes) in run.packets() {
            match steer::answer(bytes, run.meta, state.source_ports.local_port(), &state.slots) {
                None => self.count_dropped(Run { bytes, index, ..run }, &self.counters().malformed),
                Some(false) => {}
                Some(true) => {
                    if let Some(steering) = state.steering_of(run.meta.dst) {
                        steering.note_probed(now);
                    }
                }
            }
        }
    }

    /// Counts a run that is consumed by this process.
    #[inline]
    pub(crate) fn count_received(&self, run: Run<'_>) {
        self.counters().count_received(run.count(), run.bytes.len());
    }

    /// Counts a run that reaches no queue pair, also by `why`.
    pub(crate) fn count_dropped(&self, run: Run<'_>, why: &Counter) {
        self.count_received(run);
        why.add(run.count());
    }

    /// Delivers a run to a queue pair, through the interceptor if there is one.
    #[inline]
    pub(crate) fn deliver(&self, state: &mut RxState, qp: &Arc<dyn QueuePair>, run: Run<'_>, now: Instant) {
        match self.interceptor() {
            None => self.deliver_to_qp(state, qp, run, now),
            Some(interceptor) => self.deliver_intercepted(interceptor, state, Some(qp), run, now),
        }
    }

    // Inlined: its only frequent caller is `route`, and the arguments would pass through memory.
    #[inline(always)]
    fn deliver_to_qp(&self, state: &mut RxState, qp: &Arc<dyn QueuePair>, run: Run<'_>, now: Instant) {
        let mut tools = state.tools();
        tools.may_overtake = !run.meta.by_ring && !self.interceptor().is_some_and(Interceptor::injects_faults);
        let outcome = qp.receive(run, &mut tools, now);
        if let Some(until) = tools.delayed_until {
            self.note_delayed(&mut state.pending_ack, qp, until, now);
        }
        if outcome.contains(VisitOutcome::IS_CROWDED) && run.meta.by_ring {
            state.crowded = Some(Arc::clone(qp));
        }
        state.touch(qp, outcome);
    }

    /// Sends the responses of the queue pairs that received packets, then raises their completion
    /// events: a response must have left before a program that exits on a completion.
    fn finish_batch(&self, state: &mut RxState, now: Instant) {
        for Touched { qp, outcome } in &state.touched {
            if outcome.contains(VisitOutcome::HAS_WORK) {
                self.serve_or_delay_ack(&mut state.pending_ack, qp, *outcome, now);
            } else {
                qp.announce(*outcome);
            }
        }
        state.touched.clear();
    }
}
