//! A queue pair whose peer is the fuzz input, with its host and clock, and the properties that
//! every fuzz target checks.

use roxe_sim::host::SimHost;
use roxe_sim::setup::qpn;
use roxe_sim::{Choices, Peer, Script, Setup, XrcQueue};
use roxe_transport::Qp;
use roxe_transport::cx::{PacketNote, Side, TxBatch, TxRoom, TxState};
use roxe_transport::qp::{DropReason, PostError, QpState, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::{Av, Cqe, RecvRequest, SendRequest};
use roxe_wire::{Header, NetHeader, Packet, Qpn, icrc};
use std::num::NonZeroU64;
use std::ops::Range;

/// End of the queue pair; the input is the other end.
pub(super) const OWN_END: Peer = Peer::B;
/// Numbers of the SRQs of an XRC target, and in the packets of an initiator.
pub(super) const SRQNS: [u32; 2] = [0x21, 0x4_0022];
/// Maximum number of deadlines that may expire before a queue pair without peer is at rest.
const MAX_DEADLINES: u32 = 2000;
/// Source of all payloads, in which bytes differ from their neighbours.
pub(super) static PATTERN: [u8; 1024] = pattern();

const fn pattern() -> [u8; 1024] {
    let mut bytes = [0; 1024];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = (at * 7 + at / 256 + 1) as u8;
        at += 1;
    }
    bytes
}

/// Returns the index in [`SRQNS`] of the SRQ for request `wr_id`.
pub(super) const fn srq_index_of(wr_id: u64) -> usize {
    (wr_id % SRQNS.len() as u64) as usize
}

/// Returns a line rate for congestion control, or none.
pub(super) fn line_rate(choices: &mut Script<'_>) -> Option<NonZeroU64> {
    NonZeroU64::new(choices.pick(&[0, 0, 1_000_000_000, 100]))
}

/// A queue pair without a peer.
pub(super) struct LoneQp<'a> {
    pub(super) choices: Script<'a>,
    pub(super) setup: Setup,
    pub(super) qp: Qp,
    pub(super) host: SimHost,
    sent: Sent,
    /// `wr_id` of the next posted send and receive.
    next: [u64; 2],
    /// `wr_id` of the newest completed send and receive.
    done: [u64; 2],
    /// `wr_id` of the newest completed receive of each XRC SRQ.
    shared_done: [u64; SRQNS.len()],
}

impl<'a> LoneQp<'a> {
    /// Creates a queue pair of this setup and moves it to `state`.
    pub(super) fn new(setup: Setup, state: QpState, choices: Script<'a>) -> Self {
        let (mut qp, mut host) = setup.make_with(qpn(OWN_END));
        host.clock = Instant(1_000_000_000);
        if setup.service == Service::XrcTgt {
            host.xrc = SRQNS.map(|number| XrcQueue { number, ..XrcQueue::default() }).into();
        }
        setup.bring_up(&setup.endpoints_of(OWN_END, setup.places()), &mut qp, &mut host, state);
        let (sent, next, done, shared_done) = (Sent::default(), [1; 2], [0; 2], [0; SRQNS.len()]);
        Self { choices, setup, qp, host, sent, next, done, shared_done }
    }

    /// Posts a send with a new `wr_id`, which it returns.
    pub(super) fn post_send(&mut self, req: &SendRequest<'_>) -> Result<u64, PostError> {
        let wr_id = self.next(Side::Send);
        self.qp.post_send_to_srq(SRQNS[srq_index_of(wr_id)], &SendRequest { wr_id, ..*req })?;
        self.next[Side::Send as usize] += 1;
        Ok(wr_id)
    }

    /// Posts a receive with a new `wr_id`, which it returns, to the SRQ if there is one.
    pub(super) fn post_recv(&mut self, req: &RecvRequest<'_>) -> Result<u64, PostError> {
        let wr_id = self.next(Side::Recv);
        let req = RecvRequest { wr_id, ..*req };
        if self.setup.service == Service::XrcTgt {
            let srq = &mut self.host.xrc[srq_index_of(wr_id)].srq;
            if srq.len() >= self.setup.caps.max_recv_wr as usize {
                return Err(PostError::QueueFull);
            }
            srq.post(&req);
        } else if !self.setup.srq {
            self.qp.post_recv(&req)?;
        } else if self.host.srq.len() < self.setup.caps.max_recv_wr as usize {
            self.host.srq.post(&req);
        } else {
            return Err(PostError::QueueFull);
        }
        self.next[Side::Recv as usize] += 1;
        Ok(wr_id)
    }

    /// Returns the `wr_id` of the next posted request of `side`.
    pub(super) fn next(&self, side: Side) -> u64 {
        self.next[side as usize]
    }

    /// Delivers a packet. Returns `None` if its opcode does not allow a payload of this length.
    pub(super) fn receive(
        &mut self,
        net: &NetHeader,
        header: &Header,
        payload: &[u8],
    ) -> Option<Result<(), DropReason>> {
        let legal = header.opcode().properties().payload.allows(payload.len());
        legal.then(|| self.qp.handle_packet(&mut self.host, net, &Packet { header: *header, payload }))
    }

    /// Sends the queue pair's packets, at most `room` at a time, and calls `judge` with each.
    pub(super) fn transmit(&mut self, room: usize, mut judge: impl FnMut(&PacketNote, &Packet<'_>)) {
        loop {
            let idle = !self.qp.has_work();
            self.sent.open(room);
            let state = self.qp.poll_transmit(&mut self.host, &mut self.sent);
            assert!(self.sent.packets.is_empty() || !idle, "packets were sent although has_work was false");
            for (note, range) in &self.sent.packets {
                let packet = Packet::parse(&self.sent.bytes[range.clone()]).expect("parse the sent packet");
                judge(note, &packet);
            }
            // After a full batch the input decides whether the other packets are sent later.
            if state == TxState::Drained || self.choices.chance_per_mille(300) {
                return;
            }
            assert!(!self.sent.packets.is_empty(), "an empty batch is full");
        }
    }

    /// Lets the next deadline expire. Returns false if there is none.
    pub(super) fn wait(&mut self) -> bool {
        let Some(at) = self.qp.poll_timeout() else { return false };
        self.host.clock = self.host.clock.max(at);
        self.qp.handle_timeout(&mut self.host);
        let next = self.qp.poll_timeout();
        assert!(next.is_none_or(|next| next > at), "the deadline that was handled is due again");
        true
    }

    /// Takes the oldest completion of `side`. Checks that its request was posted, completes in
    /// order, and completes once.
    pub(super) fn take(&mut self, side: Side) -> Option<Cqe> {
        if side == Side::Recv && self.setup.service == Service::XrcTgt {
            return self.take_shared();
        }
        let queue = if side == Side::Send { &mut self.host.sends } else { &mut self.host.recvs };
        let cqe = queue.pop_front()?;
        let (done, next) = (self.done[side as usize], self.next(side));
        assert!(done < cqe.wr_id && cqe.wr_id < next, "{cqe:?} after {done}, before {next}");
        self.done[side as usize] = cqe.wr_id;
        Some(cqe)
    }

    /// Takes a completion of an XRC SRQ. Checks that its receive was posted to that SRQ, and is in
    /// order.
    fn take_shared(&mut self) -> Option<Cqe> {
        let index = self.host.xrc.iter().position(|queue| !queue.done.is_empty())?;
        let cqe = self.host.xrc[index].done.pop_front()?;
        let (done, next) = (self.shared_done[index], self.next(Side::Recv));
        assert!(done < cqe.wr_id && cqe.wr_id < next, "{cqe:?} after {done}, before {next}");
        assert_eq!(srq_index_of(cqe.wr_id), index, "{cqe:?} was posted to another queue");
        self.shared_done[index] = cqe.wr_id;
        Some(cqe)
    }

    /// Ends the input, then lets deadlines expire until the queue pair sets no timer.
    pub(super) fn run_until_idle(&mut self, mut judge: impl FnMut(&PacketNote, &Packet<'_>)) {
        self.choices = Script::new(&[]);
        for _ in 0..MAX_DEADLINES {
            self.transmit(64, &mut judge);
            if !self.wait() {
                return;
            }
        }
        panic!("deadlines never end in {:?}", self.qp.state());
    }
}

/// The packets of one `poll_transmit`.
#[derive(Default)]
struct Sent {
    packets: Vec<(PacketNote, Range<usize>)>,
    bytes: Vec<u8>,
    room: usize,
}

impl Sent {
    fn open(&mut self, room: usize) {
        self.packets.clear();
        self.bytes.clear();
        self.room = room;
    }
}

impl TxBatch for Sent {
    fn slot(&mut self, _av: &Av, _to: Qpn, len: usize, note: &PacketNote) -> Option<TxRoom<'_>> {
        if self.packets.len() >= self.room {
            return None;
        }
        let start = self.bytes.len();
        // The fill is not zero, so that bytes which the queue pair does not write are detected.
        self.bytes.resize(start + len + icrc::LEN, 0xa5);
        self.packets.push((*note, start..self.bytes.len()));
        self.bytes.get_mut(start..start + len).map(TxRoom::Own)
    }

    fn retract(&mut self) {
        let (_, range) = self.packets.pop().expect("retract a taken slot");
        self.bytes.truncate(range.start);
    }
}
