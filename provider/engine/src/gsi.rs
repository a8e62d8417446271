//! Queue pair 1: messages of other connection managers on their way in, to the process that has to
//! act on them.
//!
//! Runs under the engine's receive lock, so a message only goes into the agent's inbox
//! ([`crate::engine::Services`]). A request is for the process that listens for its service,
//! everything else for the one whose slot is in the id that it names. What is for nobody stays
//! here: our machine answers as one that knows neither the service nor the id, so the peer need not
//! wait. A request waits a moment for its listener (`MAX_LISTENER_WAIT`): stock programs (perftest)
//! agree over one connection to make the next, and the one that shall listen may not have had a
//! processor since. What we say to processes of this host is routed here too, where rings are
//! allowed and nobody watches: it never sees a socket. A message for whoever has a connection with
//! its sender (a REJ for timeout that names no id of ours) goes where the request went
//! (`requests`); if that came to another process, or long ago, only this one
//! hears of it, and the other's retries end in time.

use crate::engine::Engine;
use crate::forward_queue::ForwardOutcome;
use crate::poller::Watch;
use crate::requests::Request;
use crate::run::{Run, header_of};
use crate::rx_state::RxState;
use crate::scheduler::Due;
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

/// What stands for queue pair 1 where queue pairs of this process are counted.
pub const GSI_ORDINAL: u32 = u32::MAX;
/// How long a request waits for somebody to listen before it is refused.
const MAX_LISTENER_WAIT: Duration = Duration::from_millis(150);
/// How soon it is looked after first; from then on when it has waited twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// Requests that wait; more are refused at once.
const MAX_WAITING: usize = 64;

/// Who a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// This process.
    Ours,
    /// Another, which has it now in this mailbox.
    Sent(Mailbox),
    /// A listener that there is not.
    Nobody,
}

impl Engine {
    /// Gives packets that came to the address itself to the processes they are for.
    pub(crate) fn route_mads(&self, state: &mut RxState, run: Run<'_>, now: Instant) {
        for (index, bytes) in run.packets() {
            let alone = Run { bytes, index, ..run };
            match self.forward_mad(state, alone) {
                Way::Sent(_) => {}
                Way::Nobody if state.unclaimed.len() < MAX_WAITING => self.let_wait(state, alone, now),
                Way::Ours | Way::Nobody => self.take_mads(state, alone, now),
            }
        }
    }

    /// Whether messages along `route` go from process to process, past the socket of the address.
    /// What comes there the system gives to any of the processes that share it; one that ends or
    /// stands still takes it along, and four seconds pass until it is repeated. A server whose
    /// twelve children leave one after the other met that in one of four runs.
    pub fn keeps_mads(&self, route: Route) -> bool {
        let is_here = |gid| self.link(gid).is_some();
        self.rings.is_on && is_here(route.local) && is_here(route.remote)
    }

    /// Routes a message of ours as if it had come to our own socket. Whether it did: not while
    /// others wait for room in a mailbox, which takes ten, as the socket takes more. `None`:
    /// another thread has the receive side for longer than `limit`.
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

    fn let_wait(&self, state: &mut RxState, run: Run<'_>, now: Instant) {
        let Run { meta, bytes, index } = run;
        let (meta, next) = (RxMeta { first_index: index, ..*meta }, now.after(FIRST_LOOK));
        state.unclaimed.push_back(Request { meta, bytes: bytes.into(), since: now, next });
        self.scheduler.wait_for(next, Due::Requests);
    }

    /// Looks whether somebody listens now for the requests that wait. Those that have waited long
    /// enough go to our machine, which refuses them.
    pub(crate) fn look_for_listeners(&self, now: Instant) {
        // Whoever receives now would be held up.
        let Some(mut rx) = self.rx.try_lock() else {
            return self.scheduler.wait_for(now.after(FIRST_LOOK), Due::Requests);
        };
        let state = &mut rx.state;
        for mut request in std::mem::take(&mut state.unclaimed) {
            if request.next > now {
                state.unclaimed.push_back(request);
                continue;
            }
            let waited = now.since(request.since);
            match self.forward_mad(state, request.run()) {
                Way::Sent(_) => {}
                Way::Nobody if waited < MAX_LISTENER_WAIT => {
                    request.next = now.after(waited.max(FIRST_LOOK));
                    self.scheduler.wait_for(request.next, Due::Requests);
                    state.unclaimed.push_back(request);
                }
                Way::Ours | Way::Nobody => self.take_mads(state, request.run(), now),
            }
        }
    }

    /// Takes packets for queue pair 1 in, through the interceptor if there is one.
    pub(crate) fn take_mads(&self, state: &mut RxState, run: Run<'_>, now: Instant) {
        self.count_received(run);
        match self.interceptor() {
            None => self.admit_mads(state, run),
            Some(interceptor) => self.hand_in_intercepted(interceptor, state, None, run, now),
        }
    }

    /// Checks packets for queue pair 1 and leaves their messages in the agent's inbox.
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
            match check(&packet) {
                Ok(()) => self.admit_mad(run.meta, packet.payload),
                Err(reason) => self.counters().count_drop(reason),
            }
        }
    }

    fn admit_mad(&self, meta: &RxMeta, payload: &[u8]) {
        self.counters().received_mads.add(1);
        match Mad::parse(payload) {
            Ok(mad) => self.services.leave_message(self, Route { local: meta.dst, remote: meta.src }, mad),
            // Other classes have no agent here, and nobody waits for their answers on RoCE.
            Err(why) => self.counters().count_bad_mad(why),
        }
    }

    /// Sends a message to the process that it is for, if that is another one.
    fn forward_mad(&self, state: &mut RxState, run: Run<'_>) -> Way {
        let Ok(packet) = Packet::parse(run.bytes) else { return Way::Ours };
        let Ok(mad) = Mad::parse(packet.payload) else { return Way::Ours };
        let route = Route { local: run.meta.dst, remote: run.meta.src };
        let to = match addressee(&mad.message) {
            Addressee::Id(id) => {
                let slot = Slot::new(id.prefix());
                let is_ours = !slot.can_be_owned() || state.slots.iter().any(|socket| socket.slot() == slot);
                (!is_ours).then_some(Mailbox::Slot(slot))
            }
            Addressee::Service(service) => {
                let way = self.forward_request(state, service, run);
                if let (Message::Req(req), Way::Sent(to)) = (&mad.message, way) {
                    state.forwarded_requests.remember(route, req.local_comm_id, to);
                }
                return way;
            }
            Addressee::Anyone => match &mad.message {
                Message::Rej(rej) => state.forwarded_requests.find(route, rej.local_comm_id),
                _ => None,
            },
        };
        to.and_then(|to| self.send_on(state, to, run)).unwrap_or(Way::Ours)
    }

    /// Sends a request to who listens, the listener at exactly this address first.
    fn forward_request(&self, state: &mut RxState, service: ServiceId, run: Run<'_>) -> Way {
        for scope in Scope::candidates(run.meta.dst) {
            let place = Place { service, scope };
            if state.services.iter().any(|socket| socket.place() == place) {
                return Way::Ours;
            }
            if let Some(sent) = self.send_on(state, Mailbox::Service(place), run) {
                return sent;
            }
        }
        Way::Nobody
    }

    /// Sends a packet to a mailbox; nothing if nobody has that.
    fn send_on(&self, state: &mut RxState, to: Mailbox, run: Run<'_>) -> Option<Way> {
        let first = state.slots.first()?;
        let len = run.bytes.len();
        let frame = Frame::Packets(RxMeta { len, segment: len.max(1), first_index: run.index, ..*run.meta });
        let fate = state.forward_queue.send(first, to, &frame, run.bytes);
        match fate {
            ForwardOutcome::Forwarded => self.counters().forwarded.add(1),
            ForwardOutcome::Lost => self.count_dropped(run, &self.counters().forward_errors),
            ForwardOutcome::Unowned => {}
        }
        (fate != ForwardOutcome::Unowned).then_some(Way::Sent(to))
    }

    /// From now on requests for `place` that reach other processes come here. EADDRINUSE: another
    /// process listens.
    pub fn open_service(&self, place: Place) -> Result<(), Error> {
        let claim = |e| Error::os(format!("cannot listen for {}", place.service), &e);
        let socket = ServiceSocket::open(self.ifindex(), place).map_err(claim)?;
        self.scheduler.poller()?.watch(socket.fd(), Watch::All).map_err(claim)?;
        self.rx.lock().state.services.push(socket);
        Ok(())
    }

    /// They do not any more.
    pub fn close_service(&self, place: Place) {
        self.rx.lock().state.services.retain(|socket| socket.place() != place);
    }
}

/// A whole packet with a message for queue pair 1.
pub(crate) fn packet_of(header: &Header, mad: &[u8; MAD_LEN], net: &NetHeader) -> Vec<u8> {
    let len = header.padded_len(MAD_LEN);
    let mut packet = vec![0; len + icrc::LEN];
    let room = packet.get_mut(..len).and_then(|room| header.emit(MAD_LEN, room));
    room.into_iter().for_each(|room| room.copy_from_slice(mad));
    icrc::seal(net, &mut packet);
    packet
}

/// Whether a packet carries a message between two queue pairs 1.
// clause: CM-GSI, PKEY-MATCH
fn check(packet: &Packet<'_>) -> Result<(), DropReason> {
    let Kind::Ud { deth, imm: None } = &packet.header.kind else { return Err(DropReason::WrongService) };
    if !Pkey::DEFAULT.matches(packet.header.bth.pkey) {
        return Err(DropReason::Pkey);
    }
    if deth.qkey == Qkey::GSI { Ok(()) } else { Err(DropReason::Qkey) }
}
