//! The receive side of an engine, as its lock guards it: where packets come from, and what changes
//! while they are handed out.
//!
//! Touches nothing.

use crate::forward_queue::ForwardQueue;
use crate::frames::FrameSide;
use crate::groups::Group;
use crate::queue_pair::{QueuePair, VisitOutcome};
use crate::requests::{ForwardedRequests, Request};
use crate::run::{IdentGuess, RxTools};
use crate::table::Recent;
use roxe_net::Control;
use roxe_net::Readiness;
use roxe_net::service::ServiceSocket;
use roxe_net::shm::Inbound;
use roxe_net::slot::SlotSocket;
use roxe_net::source_ports::SourcePorts;
use roxe_net::steer::Steering;
use roxe_net::udp::UdpLink;
use roxe_transport::time::Instant;
use roxe_wire::Gid;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
/// Sockets without traffic are looked at on every n-th visit.
pub(crate) const COLD: u32 = 16;
/// While packets come by rings, or before timers run, all sockets are looked at this often: a look
/// costs a system call, half of what a message takes from one process to another.
pub(crate) const BESIDE_RINGS: Duration = Duration::from_micros(20);
/// Beside rings, after each look that found nothing, the next one comes twice as late, up to this:
/// so often the looks were a third of what the average of a ping-pong was above its median.
pub(crate) const SELDOM: Duration = Duration::from_micros(80);
/// Visits that find packets before timers run all the same: what was there when these became due
/// has been taken by then.
pub(crate) const MAX_OVERDUE: u32 = 256;
/// Largest datagram: 64 KB of packets, or the same behind a frame header.
pub(crate) const BUFFER: usize = (64 << 10) + 4096;
/// A queue pair that a batch of packets touched.
#[derive(Debug)]
pub(crate) struct Touched {
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) report: VisitOutcome,
}

/// A queue pair whose acknowledgement waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) until: Instant,
}

/// The receive side of an engine.
#[derive(Debug)]
pub(crate) struct Rx {
    pub(crate) buf: Vec<u8>,
    pub(crate) sources: Sources,
    pub(crate) state: RxState,
}

/// Where packets come from: copies of the engine's lists, renewed when those change.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) links: Vec<Arc<UdpLink>>,
    pub(crate) links_version: u32,
    pub(crate) rings: Vec<Arc<Inbound>>,
    pub(crate) rings_version: u32,
    /// Visits for which the sockets are emptied before the rings: a young ring shall not overtake
    /// them.
    pub(crate) young_visits: u32,
}

/// What changes while packets are handed out.
#[derive(Debug, Default)]
pub(crate) struct RxState {
    /// For whoever receives.
    pub(crate) control: Control,
    /// What the last look at all sockets has seen.
    pub(crate) readiness: Readiness,
    /// The addresses of the links.
    pub(crate) locals: Vec<Gid>,
    /// Who of this host may send to them.
    pub(crate) source_ports: SourcePorts,
    /// The last packets came by a ring, and more of them is to be expected there.
    pub(crate) prefers_rings: bool,
    /// A queue pair for which so much waits that rings are left alone.
    pub(crate) crowded: Option<Arc<dyn QueuePair>>,
    /// When all sockets were looked at last.
    pub(crate) looked_at: Instant,
    /// What is added to [`BESIDE_RINGS`] until the next look.
    pub(crate) looks_later: Duration,
    /// Slots of this process with their mailboxes.
    pub(crate) slots: Vec<SlotSocket>,
    pub(crate) steering: Vec<Steering>,
    /// Multicast groups that queue pairs of this process are attached to.
    pub(crate) groups: Vec<Group>,
    /// The raw link, while there are flows.
    pub(crate) frames: Option<FrameSide>,
    /// Services that programs of this process offer, with their mailboxes.
    pub(crate) services: Vec<ServiceSocket>,
    /// Where requests for services of other processes went.
    pub(crate) forwarded_requests: ForwardedRequests,
    /// Requests for services that nobody offers yet, the oldest first.
    pub(crate) unclaimed: VecDeque<Request>,
    /// For other processes.
    pub(crate) forward_queue: ForwardQueue,
    /// Visits for which the mailboxes are looked at every time.
    pub(crate) mail_visits: u32,
    pub(crate) touched: Vec<Touched>,
    /// Where packets went last.
    pub(crate) recent: Recent,
    pub(crate) waiting: Option<Waiting>,
    pub(crate) ident: IdentGuess,
    pub(crate) visits: u32,
    /// Visits since a timer was due that has not run yet.
    pub(crate) overdue: u32,
    /// Whether the last visit found something.
    pub(crate) busy: bool,
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

impl Default for Rx {
    fn default() -> Self {
        Self { buf: vec![0; BUFFER], sources: Sources::default(), state: RxState::default() }
    }
}

impl Rx {
    /// Forgets sockets and whatever refers to them.
    pub(crate) fn clear(&mut self) {
        (self.sources, self.state) = Default::default();
    }
}

impl RxState {
    /// The one of the group at `gid`.
    pub(crate) fn steering_of(&mut self, gid: Gid) -> Option<&mut Steering> {
        self.steering.iter_mut().find(|steering| steering.gid() == gid)
    }

    /// Whether this visit looks at all sockets. While a timer `is_due` not every visit does: of
    /// 10,000 queue pairs one is due every 7 us.
    pub(crate) fn takes_turn_of_sockets(&mut self, is_due: bool, now: Instant) -> bool {
        self.visits = self.visits.wrapping_add(1);
        let is_time = if is_due {
            now.since(self.looked_at) >= BESIDE_RINGS
        } else if self.prefers_rings {
            now.since(self.looked_at) >= BESIDE_RINGS + self.looks_later
        } else {
            self.visits.is_multiple_of(COLD)
        };
        if is_time {
            self.looked_at = now;
        }
        is_time
    }

    /// Looks at all sockets. One call: to read where nothing is costs one for each.
    pub(crate) fn look(&mut self, links: &[Arc<UdpLink>]) {
        let mailboxes = self.slots.iter().map(SlotSocket::fd).chain(self.services.iter().map(ServiceSocket::fd));
        let groups = self.groups.iter().flat_map(|group| &group.links);
        self.readiness.look(mailboxes.chain(links.iter().chain(groups).map(|link| link.fd())));
    }

    /// The mailbox at `at`: those of slots come first, those of services behind them.
    #[inline]
    pub(crate) fn mailbox(&self, at: usize) -> Option<RawFd> {
        match at.checked_sub(self.slots.len()) {
            None => self.slots.get(at).map(SlotSocket::fd),
            Some(at) => self.services.get(at).map(ServiceSocket::fd),
        }
    }

    /// Whether a visit that does not look at all sockets reads some of them.
    #[inline]
    pub(crate) fn reads_sockets(&self) -> bool {
        !self.prefers_rings || self.mail_visits > 0 || !self.groups.is_empty() || self.frames.is_some()
    }

    /// Whether a visit reads the socket of `link`: where something was seen if it looks at `all` of
    /// them, or else where traffic is.
    pub(crate) fn reads(&self, link: &UdpLink, all: bool) -> bool {
        if all { self.readiness.has(link.fd()) } else { link.is_hot() }
    }

    /// All sockets, or some of them, were looked at, and `found` something.
    #[inline]
    pub(crate) fn note_look(&mut self, all: bool, found: bool) {
        if found {
            self.looks_later = Duration::ZERO;
        } else if all {
            self.looks_later = (2 * self.looks_later + BESIDE_RINGS).min(SELDOM);
        }
    }

    /// Whether something is left from earlier visits that other processes are to get, or filters
    /// will have to be renewed.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        !self.forward_queue.is_empty() || self.source_ports.due().is_some()
    }

    /// Whether timers may run that were due before this visit. Not if it may not have found all
    /// packets: more of them may be there, or answers to those.
    pub(crate) fn ends_overdue(&mut self, may_find_more: bool) -> bool {
        self.overdue += 1;
        let ends = !may_find_more || self.overdue >= MAX_OVERDUE;
        if ends {
            self.overdue = 0;
        }
        ends
    }

    /// Whether rings are left alone: what they bring has overtaken packets that went another way,
    /// or its receives, and is to wait where its writer notices. Packets by other ways are looked
    /// for at every visit then.
    pub(crate) fn rests(&mut self) -> bool {
        self.crowded.take_if(|qp| !qp.is_crowded());
        self.prefers_rings &= self.crowded.is_none();
        self.crowded.is_some()
    }

    #[inline]
    pub(crate) fn touch(&mut self, qp: &Arc<dyn QueuePair>, report: VisitOutcome) {
        match self.touched.last_mut() {
            _ if report.is_empty() => {}
            Some(last) if Arc::ptr_eq(&last.qp, qp) => last.report |= report,
            _ => self.touched.push(Touched { qp: Arc::clone(qp), report }),
        }
    }

    /// What a queue pair needs to take in packets.
    pub(crate) fn tools(&mut self) -> RxTools<'_> {
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

    #[test]
    fn beside_rings_empty_sockets_are_looked_at_less_and_less_often_until_one_has_something() {
        let (mut state, start) = (RxState { prefers_rings: true, ..RxState::default() }, clock::now());
        let mut looks = |found: bool, micros: std::ops::Range<u32>| {
            let is_look = |at: &u32| {
                let takes_turn = state.takes_turn_of_sockets(false, start.after(Duration::from_micros(1) * *at));
                state.note_look(takes_turn, takes_turn && found);
                takes_turn
            };
            micros.filter(is_look).collect::<Vec<_>>()
        };
        assert_eq!(looks(false, 0..500), [0, 40, 120, 220, 320, 420]);
        assert_eq!(looks(true, 500..601), [520, 540, 560, 580, 600]);
    }
}
