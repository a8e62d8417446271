//! Queue pair 1: routing of received connection manager messages to the process they are for.
//!
//! Under the receive lock a message is only queued ([`crate::engine::Services`]). A REQ goes to the
//! process that listens for its service, other messages to the process whose slot is in the id they
//! name, messages for no process to this one, which rejects them. A REQ waits up to
//! `MAX_LISTENER_WAIT` for its listener, since programs such as perftest use one connection to
//! agree on the next. A REJ for timeout carries only its sender's id and follows the route of its
//! REQ Messages of this process to this host are routed here too, without a socket.

use crate::engine::Engine;
use crate::forward_queue::ForwardOutcome;
use crate::poller::Watch;
use crate::run::{Run, header_of};
use crate::rx_state::{Request, RxState};
use crate::scheduler::TimerOwner;
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_net::forward::Frame;
use roxe_net::link::RxMeta;
use roxe_net::service::{Mailbox, Place, Scope, ServiceSocket};
use roxe_net::slot::Slot;
use roxe_transport::cm::{Addressee, Route, addressee};
use roxe_transport::qp::DropReason;
use roxe_transport::time::Instant;
use roxe_wire::cm::{MAD_LEN, Mad, Message, ServiceId};
use roxe_wire::{Header, Kind, NetHeader, Packet, Pkey, Qkey, icrc};
use std::time::Duration;

/// Ordinal of queue pair 1 for fault rules.
pub const GSI_ORDINAL: u32 = u32::MAX;
/// Maximum wait of a request for a listener before it is rejected.
const MAX_LISTENER_WAIT: Duration = Duration::from_millis(150);
/// Interval until the first check for a listener; it doubles each time.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const MAX_WAITING: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MadRoute {
    Ours,
    /// Sent to the mailbox of another process.
    Sent(Mailbox),
    /// No process listens for the service.
    NoListener,
}

impl Engine {
    /// Routes packets received on a unicast socket to the processes they are for.
    pub(crate) fn route_mads(&self, state: &mut RxState, run: Run<'_>, now: Instant) {
        for (index, bytes) in run.packets() {
            let alone = Run { bytes, index, ..run };
            match self.forward_mad(state, alone) {
                MadRoute::Sent(_) => {}
                MadRoute::NoListener if state.unclaimed.len() < MAX_WAITING => {
                    let (meta, next) = (RxMeta { first_index: index, ..*run.meta }, now.after(FIRST_RETRY));
                    state.unclaimed.push_back(Request { meta, bytes: bytes.into(), since: now, next });
                    self.scheduler.add(next, TimerOwner::Requests);
                }
                MadRoute::Ours | MadRoute::NoListener => self.take_mads(state, alone, now),
            }
        }
    }

    /// Returns true if messages along `route` bypass the sockets, which are shared by processes:
    /// one that exits or is stopped would delay them until their retransmission.
    pub fn keeps_mads(&self, route: Route) -> bool {
        let is_here = |gid| self.link(gid).is_some();
        self.rings.is_on && is_here(route.local) && is_here(route.remote)
    }

    /// Routes a message of this process to this host. Returns false if it has to leave through a
    /// socket, because mailboxes are full; `None` if the receive lock was not acquired within
    /// `limit`.
    pub fn route_own_mad(&self, route: Route, header: &Header, mad: &[u8; MAD_LEN], limit: Duration) -> Option<bool> {
        let mut rx = self.rx.try_lock_for(limit)?;
        if !rx.state.forward_queue.is_empty() {
            return Some(false);
        }
        let meta = RxMeta::alone(header.padded_len(MAD_LEN) + icrc::LEN, route.local, route.remote);
        let packet = packet_of(header, mad, &header_of(&meta, 0));
        let now = clock::now();
        self.counters().count_sent(1, packet.len() as u64);
        self.route_mads(&mut rx.state, Run { meta: &meta, bytes: &packet, index: 0 }, now);
        self.serve_processes(&mut rx.state, now);
        Some(true)
    }

    /// Routes waiting requests again. Those that have waited long enough are rejected by this
    /// process.
    pub(crate) fn retry_unclaimed(&self, now: Instant) {
        // Does not delay a thread that receives.
        let Some(mut rx) = self.rx.try_lock() else {
            return self.scheduler.add(now.after(FIRST_RETRY), TimerOwner::Requests);
        };
        let state = &mut rx.state;
        for mut request in std::mem::take(&mut state.unclaimed) {
            if request.next > now {
                state.unclaimed.push_back(request);
                continue;
            }
            let waited = now.since(request.since);
            match self.forward_mad(state, request.run()) {
                MadRoute::Sent(_) => {}
                MadRoute::NoListener if waited < MAX_LISTENER_WAIT => {
                    request.next = now.after(waited.max(FIRST_RETRY));
                    self.scheduler.add(request.next, TimerOwner::Requests);
                    state.unclaimed.push_back(request);
                }
                MadRoute::Ours | MadRoute::NoListener => self.take_mads(state, request.run(), now),
            }
        }
    }

    /// Receives packets for queue pair 1, through the interceptor if there is one.
    pub(crate) fn take_mads(&self, state: &mut RxState, run: Run<'_>, now: Instant) {
        self.count_received(run);
        match self.interceptor() {
            None => self.admit_mads(state, run),
            Some(interceptor) => self.deliver_intercepted(interceptor, state, None, run, now),
        }
    }

    /// Checks packets for queue pair 1 and queues their messages.
    // clause: CM-GSI, ICRC-WRONG
    pub(crate) fn admit_mads(&self, state: &mut RxState, run: Run<'_>) {
        state.ident.begin_run(&header_of(run.meta, 0));
        for (index, bytes) in run.packets() {
            if !state.ident.verify(bytes, index) {
                self.counters().icrc_errors.add(1);
                continue;
            }
            let Ok(packet) = Packet::parse(bytes) else {
                self.counters().malformed.add(1);
                continue;
            };
            if let Err(reason) = check(&packet) {
                self.counters().count_drop(reason);
                continue;
            }
            self.counters().received_mads.add(1);
            match Mad::parse(packet.payload) {
                Ok(mad) => {
                    let route = Route { local: run.meta.dst, remote: run.meta.src };
                    self.services.queue_message(self, route, mad);
                }
                // Other classes have no agent here, and on RoCE no peer waits for their answers.
                Err(error) => self.counters().count_bad_mad(error),
            }
        }
    }

    /// Forwards a message if it is for another process.
    fn forward_mad(&self, state: &mut RxState, run: Run<'_>) -> MadRoute {
        let Ok(packet) = Packet::parse(run.bytes) else { return MadRoute::Ours };
        let Ok(mad) = Mad::parse(packet.payload) else { return MadRoute::Ours };
        let route = Route { local: run.meta.dst, remote: run.meta.src };
        let to = match addressee(&mad.message) {
            Addressee::Id(id) => {
                let slot = Slot::new(id.prefix());
                let is_ours = !slot.can_be_owned() || state.slots.iter().any(|socket| socket.slot() == slot);
                (!is_ours).then_some(Mailbox::Slot(slot))
            }
            Addressee::Service(service) => {
                let routed = self.forward_request(state, service, run);
                if let (Message::Req(req), MadRoute::Sent(to)) = (&mad.message, routed) {
                    state.forwarded_requests.remember(route, req.local_comm_id, to);
                }
                return routed;
            }
            Addressee::Anyone => match &mad.message {
                Message::Rej(rej) => state.forwarded_requests.find(route, rej.local_comm_id),
                _ => None,
            },
        };
        to.and_then(|to| self.send_on(state, to, run)).unwrap_or(MadRoute::Ours)
    }

    /// Forwards a request to its listener; one at exactly this address is preferred.
    fn forward_request(&self, state: &mut RxState, service: ServiceId, run: Run<'_>) -> MadRoute {
        for scope in Scope::candidates(run.meta.dst) {
            let place = Place { service, scope };
            if state.services.iter().any(|socket| socket.place() == place) {
                return MadRoute::Ours;
            }
            if let Some(sent) = self.send_on(state, Mailbox::Service(place), run) {
                return sent;
            }
        }
        MadRoute::NoListener
    }

    /// Sends a packet to a mailbox; `None` if no process owns it.
    fn send_on(&self, state: &mut RxState, to: Mailbox, run: Run<'_>) -> Option<MadRoute> {
        let first = state.slots.first()?;
        let len = run.bytes.len();
        let frame = Frame::Packets(RxMeta { len, segment: len.max(1), first_index: run.index, ..*run.meta });
        let fate = state.forward_queue.send(first, to, &frame, run.bytes);
        match fate {
            ForwardOutcome::Forwarded => self.counters().forwarded.add(1),
            ForwardOutcome::Lost => self.count_dropped(run, &self.counters().forward_errors),
            ForwardOutcome::Unowned => {}
        }
        (fate != ForwardOutcome::Unowned).then_some(MadRoute::Sent(to))
    }

    /// Receives requests for `place` in this process from now on. Fails with EADDRINUSE if another
    /// process listens.
    pub fn open_service(&self, place: Place) -> Result<(), Error> {
        let claim = |e| Error::os(format!("cannot listen for {}", place.service), &e);
        let socket = ServiceSocket::open(self.ifindex(), place).map_err(claim)?;
        self.scheduler.poller()?.watch(socket.fd(), Watch::All).map_err(claim)?;
        self.rx.lock().state.services.push(socket);
        Ok(())
    }

    /// Ends [`Engine::open_service`].
    pub fn close_service(&self, place: Place) {
        self.rx.lock().state.services.retain(|socket| socket.place() != place);
    }
}

pub(crate) fn packet_of(header: &Header, mad: &[u8; MAD_LEN], net: &NetHeader) -> Vec<u8> {
    let len = header.padded_len(MAD_LEN);
    let mut packet = vec![0; len + icrc::LEN];
    if let Some(room) = packet.get_mut(..len).and_then(|room| header.emit(MAD_LEN, room)) {
        room.copy_from_slice(mad);
    }
    icrc::seal(net, &mut packet);
    packet
}

/// Checks that a packet is a datagram between two queue pairs 1.
// clause: CM-GSI, PKEY-MATCH
fn check(packet: &Packet<'_>) -> Result<(), DropReason> {
    let Kind::Ud { deth, imm: None } = &packet.header.kind else { return Err(DropReason::WrongService) };
    if !Pkey::DEFAULT.matches(packet.header.bth.pkey) {
        return Err(DropReason::Pkey);
    }
    if deth.qkey == Qkey::GSI { Ok(()) } else { Err(DropReason::Qkey) }
}
