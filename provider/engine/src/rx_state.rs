//! The receive side of an engine, guarded by its lock: packet sources, and state that changes while
//! packets are routed.

use crate::forward_queue::ForwardQueue;
use crate::frames::FrameSide;
use crate::queue_pair::{QueuePair, VisitOutcome};
use crate::run::{IdentGuess, Run, RxTools};
use crate::table::Recent;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_net::Control;
use roxe_net::Readiness;
use roxe_net::link::RxMeta;
use roxe_net::service::{Mailbox, ServiceSocket};
use roxe_net::shm::Inbound;
use roxe_net::slot::SlotSocket;
use roxe_net::source_ports::SourcePorts;
use roxe_net::steer::Steering;
use roxe_net::udp::UdpLink;
use roxe_transport::cm::Route;
use roxe_transport::time::Instant;
use roxe_wire::Gid;
use roxe_wire::cm::CommId;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// Number of visits between two polls of sockets without traffic.
pub(crate) const COLD_VISITS: u32 = 16;
/// Interval of polling all sockets while packets arrive through rings or a timer is due. Each poll
/// is a system call, so it is not made on every visit.
pub(crate) const SOCKET_POLL_INTERVAL: Duration = Duration::from_micros(20);
/// Maximum extra interval; the interval doubles after each poll that finds no packet.
pub(crate) const MAX_EXTRA_INTERVAL: Duration = Duration::from_micros(80);
/// Maximum number of visits for which received packets defer due timers: after these visits, all
/// packets that had arrived when the timers became due have been received.
pub(crate) const MAX_OVERDUE: u32 = 256;
/// Maximum size of a datagram in bytes: 64 KB of packets, or as much after a frame header.
pub(crate) const BUFFER_LEN: usize = (64 << 10) + 4096;

/// A queue pair that received packets of the current batch.
#[derive(Debug)]
pub(crate) struct Touched {
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) outcome: VisitOutcome,
}

/// A queue pair with a delayed acknowledgement.
#[derive(Debug)]
pub(crate) struct PendingAck {
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) until: Instant,
}

#[derive(Debug)]
pub(crate) struct Rx {
    pub(crate) buf: Vec<u8>,
    pub(crate) sources: Sources,
    pub(crate) state: RxState,
}

/// Packet sources: copies of the engine's lists, refreshed when their versions change.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) links: Vec<Arc<UdpLink>>,
    pub(crate) links_version: u32,
    pub(crate) rings: Vec<Arc<Inbound>>,
    pub(crate) rings_version: u32,
    /// Remaining polls that empty the sockets before the rings, so that packets in a new ring do
    /// not overtake those sent earlier through the socket.
    pub(crate) new_ring_polls: u32,
}

#[derive(Debug, Default)]
pub(crate) struct RxState {
    pub(crate) control: Control,
    /// Sockets found readable by the last poll of all.
    pub(crate) readiness: Readiness,
    pub(crate) locals: Vec<Gid>,
    /// Source ports from which packets of this host are accepted.
    pub(crate) source_ports: SourcePorts,
    /// True after packets arrived through a ring: polls then skip the sockets most of the time.
    pub(crate) prefers_rings: bool,
    /// A queue pair with so many packets waiting for posted receives that rings are left unread.
    pub(crate) crowded: Option<Arc<dyn QueuePair>>,
    pub(crate) polled_at: Instant,
    /// Added to [`SOCKET_POLL_INTERVAL`] until the next poll of all sockets.
    pub(crate) extra_interval: Duration,
    pub(crate) slots: Vec<SlotSocket>,
    pub(crate) steering: Vec<Steering>,
    pub(crate) groups: Vec<Group>,
    /// Raw link; present while flow rules exist.
    pub(crate) frames: Option<FrameSide>,
    /// CM service IDs of this process with their mailboxes.
    pub(crate) services: Vec<ServiceSocket>,
    pub(crate) forwarded_requests: ForwardedRequests,
    pub(crate) unclaimed: VecDeque<Request>,
    pub(crate) forward_queue: ForwardQueue,
    /// Remaining visits that read the mailboxes every time.
    pub(crate) mail_visits: u32,
    pub(crate) touched: Vec<Touched>,
    /// Cached result of the last lookup by QPN.
    pub(crate) recent: Recent,
    pub(crate) pending_ack: Option<PendingAck>,
    /// True while the last packets in a ring are delivered.
    pub(crate) serves_at_once: bool,
    pub(crate) ident: IdentGuess,
    pub(crate) visits: u32,
    /// Visits since a timer became due and was deferred.
    pub(crate) overdue: u32,
    pub(crate) busy: bool,
    pub(crate) source: PollSource,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PollSource {
    #[default]
    Program,
    /// The background thread right after it woke; it polls all sources.
    Woken,
    Spinning,
}

impl Default for Rx {
    fn default() -> Self {
        Self { buf: vec![0; BUFFER_LEN], sources: Sources::default(), state: RxState::default() }
    }
}

impl Rx {
    /// Drops all sockets and everything that refers to them.
    pub(crate) fn clear(&mut self) {
        (self.sources, self.state) = Default::default();
    }
}

impl RxState {
    pub(crate) fn steering_of(&mut self, gid: Gid) -> Option<&mut Steering> {
        self.steering.iter_mut().find(|steering| steering.gid() == gid)
    }

    /// Returns true if this visit polls all sockets. These polls are limited in rate even while a
    /// timer `is_due`: with many queue pairs, one nearly always is.
    pub(crate) fn polls_all_sockets(&mut self, is_due: bool, now: Instant) -> bool {
        self.visits = self.visits.wrapping_add(1);
        let next = self.polled_at.after(SOCKET_POLL_INTERVAL);
        let is_time = if is_due {
            next <= now
        } else if self.prefers_rings {
            next.after(self.extra_interval) <= now
        } else {
            self.visits.is_multiple_of(COLD_VISITS)
        };
        if is_time {
            self.polled_at = now;
        }
        is_time
    }

    /// Polls all sockets with one system call.
    pub(crate) fn poll_sockets(&mut self, links: &[Arc<UdpLink>]) {
        let mailboxes = self.slots.iter().map(SlotSocket::fd).chain(self.services.iter().map(ServiceSocket::fd));
        let groups = self.groups.iter().flat_map(|group| &group.links);
        self.readiness.poll(mailboxes.chain(links.iter().chain(groups).map(|link| link.fd())));
    }

    /// Returns the descriptor of mailbox `at`: slots first, then services.
    #[inline]
    pub(crate) fn mailbox(&self, at: usize) -> Option<RawFd> {
        match at.checked_sub(self.slots.len()) {
            None => self.slots.get(at).map(SlotSocket::fd),
            Some(at) => self.services.get(at).map(ServiceSocket::fd),
        }
    }

    /// Returns true if a visit that does not poll all sockets reads some of them.
    #[inline]
    pub(crate) fn reads_sockets(&self) -> bool {
        !self.prefers_rings || self.mail_visits > 0 || !self.groups.is_empty() || self.frames.is_some()
    }

    /// Returns true if a visit reads the socket of `link`: if it was found readable by a poll of
    /// `all`, else if it recently had traffic.
    pub(crate) fn reads(&self, link: &UdpLink, all: bool) -> bool {
        if all { self.readiness.has(link.fd()) } else { link.is_hot() }
    }

    /// Adapts the interval of polling all sockets: shortest after a poll that `found` packets.
    #[inline]
    pub(crate) fn note_socket_poll(&mut self, all: bool, found: bool) {
        if found {
            self.extra_interval = Duration::ZERO;
        } else if all {
            self.extra_interval = (2 * self.extra_interval + SOCKET_POLL_INTERVAL).min(MAX_EXTRA_INTERVAL);
        }
    }

    /// Returns true if packets wait to be forwarded or source port filters wait to be renewed.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        !self.forward_queue.is_empty() || self.source_ports.due().is_some()
    }

    /// Returns true if timers that were due before this visit may run. They wait while this visit
    /// may have left packets unread, since these may be the responses the timers wait for.
    pub(crate) fn runs_overdue_timers(&mut self, may_find_more: bool) -> bool {
        self.overdue += 1;
        let ends = !may_find_more || self.overdue >= MAX_OVERDUE;
        if ends {
            self.overdue = 0;
        }
        ends
    }

    /// Returns true if rings are left unread, because a queue pair is crowded: the backpressure
    /// then reaches the writer. Meanwhile every visit polls the other sources.
    pub(crate) fn leaves_rings(&mut self) -> bool {
        self.crowded.take_if(|qp| !qp.is_crowded());
        self.prefers_rings &= self.crowded.is_none();
        self.crowded.is_some()
    }

    #[inline]
    pub(crate) fn touch(&mut self, qp: &Arc<dyn QueuePair>, outcome: VisitOutcome) {
        match self.touched.last_mut() {
            _ if outcome.is_empty() => {}
            Some(last) if Arc::ptr_eq(&last.qp, qp) => last.outcome |= outcome,
            _ => self.touched.push(Touched { qp: Arc::clone(qp), outcome }),
        }
    }

    pub(crate) fn tools(&mut self) -> RxTools<'_> {
        let (ident, locals, serves_at_once) = (&mut self.ident, &self.locals, self.serves_at_once);
        RxTools { ident, locals, no_receives: false, may_overtake: false, serves_at_once, delayed_until: None }
    }
}

/// A multicast group with attached queue pairs.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) mgid: Gid,
    pub(crate) links: Vec<Arc<UdpLink>>,
    pub(crate) members: Vec<Arc<dyn QueuePair>>,
}

impl Group {
    pub(crate) fn position(&self, qp: &dyn QueuePair) -> Option<usize> {
        self.members.iter().position(|member| member.qpn() == qp.qpn())
    }

    pub(crate) fn add(&mut self, qp: &Arc<dyn QueuePair>) -> Result<(), Error> {
        if self.position(&**qp).is_some() {
            return Ok(());
        }
        if self.members.len() >= limits::MAX_MCAST_QP_ATTACH as usize {
            return Err(Error::new(
                libc::ENOMEM,
                format!("the group {} has its maximum number of queue pairs", self.mgid),
            ));
        }
        self.members.push(Arc::clone(qp));
        Ok(())
    }
}

/// A CM request without a listener.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) meta: RxMeta,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) since: Instant,
    /// Time of the next check for a listener.
    pub(crate) next: Instant,
}

impl Request {
    pub(crate) fn run(&self) -> Run<'_> {
        Run { meta: &self.meta, bytes: &self.bytes, index: self.meta.first_index }
    }
}

/// Maximum number of remembered requests, oldest dropped first. Senders give up within a minute.
const MAX_REQUESTS: usize = 256;

/// The last forwarded CM requests, by route and the sender's communication id. A REJ for timeout
/// carries only that id (IBA 12.6.7.2), so it follows the route of its request.
#[derive(Debug, Default)]
pub(crate) struct ForwardedRequests(VecDeque<(Route, CommId, Mailbox)>);

impl ForwardedRequests {
    /// Remembers that the request of `id` along `route` was forwarded `to`.
    pub(crate) fn remember(&mut self, route: Route, id: CommId, to: Mailbox) {
        self.0.retain(|(known, number, _)| (*known, *number) != (route, id));
        self.0.truncate(MAX_REQUESTS - 1);
        self.0.push_front((route, id, to));
    }

    pub(crate) fn find(&self, route: Route, id: CommId) -> Option<Mailbox> {
        self.0.iter().find(|(known, number, _)| (*known, *number) == (route, id)).map(|(.., to)| *to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_base::clock;

    #[test]
    fn endless_packets_defer_timers_for_bounded_visits() {
        let mut state = RxState::default();
        for _ in 0..2 {
            assert!(!state.runs_overdue_timers(true), "more datagrams may be queued");
            assert!((0..1 << 16).any(|_| state.runs_overdue_timers(true)));
        }
        assert!(state.runs_overdue_timers(false));
    }

    #[test]
    fn permanently_due_timers_poll_sockets_at_intervals() {
        let (mut state, start) = (RxState::default(), clock::now());
        let polls = (0..1000).filter(|at| state.polls_all_sockets(true, start.after(Duration::from_nanos(100) * *at)));
        assert_eq!(polls.count(), 5);
    }

    #[test]
    fn empty_sockets_are_polled_less_often_while_rings_carry() {
        let (mut state, start) = (RxState { prefers_rings: true, ..RxState::default() }, clock::now());
        let mut polls = |found: bool, micros: std::ops::Range<u32>| {
            let polls_all = |at: &u32| {
                let is_poll = state.polls_all_sockets(false, start.after(Duration::from_micros(1) * *at));
                state.note_socket_poll(is_poll, is_poll && found);
                is_poll
            };
            micros.filter(polls_all).collect::<Vec<_>>()
        };
        assert_eq!(polls(false, 0..500), [0, 40, 120, 220, 320, 420]);
        assert_eq!(polls(true, 500..601), [520, 540, 560, 580, 600]);
    }
}
