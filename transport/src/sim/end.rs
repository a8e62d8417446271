//! One queue pair of a world: its surroundings, its link, and what was seen of it.
//!
//! May touch: the public face of `qp` and the rest of `sim`. Drives the QP as an engine would.

use super::host::SimHost;
use super::setup::{Endpoints, Setup};
use super::watch::Watch;
use crate::qp::{DropReason, EarlyPackets, PostError, Qp, QpEvents};
use crate::time::Instant;
use crate::wr::RecvRequest;
use roxe_wire::{NetHeader, Packet};

/// One QP and its surroundings.
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// What it reaches.
    pub host: SimHost,
    /// How it was made.
    pub setup: Setup,
    /// The connection as it sees it.
    pub endpoints: Endpoints,
    /// Events taken from it so far.
    pub events: QpEvents,
    /// Why it dropped packets, last reason, and how often.
    pub dropped: (Option<DropReason>, u32),
    /// Packets that came too early, if its setup says that they wait.
    pub early: EarlyPackets<()>,
    /// What its link does with packets.
    pub link: LinkState,
    pub(super) watch: Watch,
    /// Until when its link is busy with a full batch.
    pub(super) busy_until: Instant,
    /// Whether it is on the list `ready`, and on the list `news`.
    pub(super) touched: bool,
    pub(super) told: bool,
}

/// What becomes of packets that an end wants to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// Packets leave.
    #[default]
    Open,
    /// Packets stay: the link is full, as a ring in memory that its reader does not empty.
    Full,
    /// Packets stay, because others use the room that there is.
    Shared,
}

impl End {
    /// One that has done nothing yet.
    pub(super) fn new((qp, host): (Qp, SimHost), setup: Setup, endpoints: Endpoints, now: Instant) -> Self {
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
            touched: false,
            told: false,
        }
    }

    /// Posts a receive to its queue, or to its shared one.
    ///
    /// # Errors
    /// As [`Qp::post_recv`].
    pub fn post_recv(&mut self, req: &RecvRequest<'_>) -> Result<(), PostError> {
        if self.setup.srq {
            self.host.srq.post(req);
            return Ok(());
        }
        self.qp.post_recv(req)
    }

    /// Hands a packet to the queue pair now.
    pub(super) fn handle(&mut self, net: &NetHeader, packet: &Packet<'_>, starved: bool) {
        let Self { qp, host, dropped, .. } = self;
        let result = match starved {
            true => qp.handle_packet_starved(host, net, packet),
            false => qp.handle_packet(host, net, packet),
        };
        note_drop(dropped, result);
    }

    /// Keeps a packet that came too early. On the simulated network every packet may have overtaken
    /// others.
    pub(super) fn keep_early(&mut self, net: &NetHeader, packet: &Packet<'_>) -> bool {
        self.setup.early_wait && self.early.keep(&mut self.qp, &mut self.host, (net, packet), (), || true)
    }

    /// Hands over the early packets whose turn has come.
    pub(super) fn hand_over_early(&mut self) {
        let Self { qp, host, early, dropped, .. } = self;
        early.hand_over(qp, host, |_, _, result| note_drop(dropped, result));
    }

    /// When its queue pair, or a packet that came too early, wants to be looked at.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.qp.poll_timeout().into_iter().chain(self.early.deadline()).min()
    }
}

fn note_drop(dropped: &mut (Option<DropReason>, u32), result: Result<(), DropReason>) {
    if let Err(reason) = result {
        *dropped = (Some(reason), dropped.1 + 1);
    }
}
