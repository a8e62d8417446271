//! How two QPs are made and connected.
//!
//! A test changes the fields it is about and leaves the rest.

use crate::host::{MAX_TAGS, SRQ_MAX_SGE, SimHost};
use crate::links::address;
use crate::rng::Choices;
use core::num::NonZeroU64;
use core::time::Duration;
use roxe_transport::Qp;
use roxe_transport::cx::FlowControl;
use roxe_transport::qp::{AttrMask, QpAttr, QpCaps, QpConfig, QpState, Service, transition};
use roxe_transport::tags::TagList;
use roxe_transport::wr::{Access, Av};
use roxe_wire::{PathMtu, Psn, Qkey, Qpn};

/// Number of the first QP.
pub const QPN_A: Qpn = Qpn::new(0x1a);
/// Number of the second QP.
pub const QPN_B: Qpn = Qpn::new(0x2b);
/// Q_Key of both when they are UD.
pub const QKEY: Qkey = Qkey(0x1111_2222);

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The first.
    A,
    /// The second.
    B,
}

impl Peer {
    /// The opposite end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// 0 or 1.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Which end of its connection end number `end` of a world is: even ones are A.
    pub const fn of_end(end: usize) -> Self {
        if end.is_multiple_of(2) { Self::A } else { Self::B }
    }
}

/// Where a queue pair lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Number of its node.
    pub node: usize,
    /// Its number there.
    pub qpn: Qpn,
}

/// A connection as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// This end.
    pub here: Place,
    /// The other end.
    pub there: Place,
    /// First PSN that this end sends.
    pub sq_psn: Psn,
    /// First PSN that the other end sends.
    pub rq_psn: Psn,
}

impl Endpoints {
    /// From which node to which.
    pub(crate) const fn way(&self) -> (usize, usize) {
        (self.here.node, self.there.node)
    }

    /// The way to the other end.
    pub fn av(&self) -> Av {
        let (sgid, dgid) = (address(self.here.node), address(self.there.node));
        Av { sgid, dgid, hop_limit: 64, ..Av::default() }
    }
}

/// What a pair is made of. Both sides are alike but for numbers and addresses.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Service of both; with `XrcIni`, A sends and B is its target.
    pub service: Service,
    /// Payload bytes of a full packet.
    pub path_mtu: PathMtu,
    /// Queue depths and limits.
    pub caps: QpCaps,
    /// Every send reports success.
    pub sq_sig_all: bool,
    /// Receives come from the hosts' shared receive queues.
    pub srq: bool,
    /// B has a shared receive queue, which matches tags; its program cannot send anything.
    pub tag_matching: bool,
    /// First PSN that `[A, B]` send.
    pub psn: [u32; 2],
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// Retries after a loss.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK; 7 is for ever.
    pub rnr_retry: u8,
    /// Code of the wait in RNR NAKs.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// What the peer may do.
    pub access: Access,
    /// Packets that one `poll_transmit` may emit.
    pub batch: usize,
    /// How often a full batch keeps the link busy for a while, per thousand batches: what arrives
    /// meanwhile finds answers half sent.
    pub stall: u32,
    /// Its link joins packets, as a ring does.
    pub joins: bool,
    /// Packets of one size that its link sends at once, for which it goes beyond `flow_limit`; 0:
    /// none.
    pub run: u32,
    /// One-way travel time.
    pub latency: Duration,
    /// Bytes that may be under way in one direction; `None`: no bound.
    pub flow_limit: Option<u32>,
    /// Rate control up to this many bit/s and packets that may be marked; `None`: neither.
    pub line_rate: Option<NonZeroU64>,
    /// Packets that come too early wait ([`roxe_transport::qp::EarlyPackets`]). Nothing may be lost
    /// on the way then, and judges expect that every message arrives, also on services without
    /// acknowledgements.
    pub early_wait: bool,
    /// Keep a record of every packet.
    pub log: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            service: Service::Rc,
            path_mtu: PathMtu::Mtu256,
            caps: QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 },
            sq_sig_all: false,
            srq: false,
            tag_matching: false,
            psn: [100, 900],
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            batch: 64,
            stall: 0,
            joins: false,
            run: 0,
            latency: Duration::from_micros(5),
            flow_limit: None,
            line_rate: None,
            early_wait: false,
            log: true,
        }
    }
}

impl Setup {
    /// Bytes that the rest of a run occupies at most.
    pub(crate) fn in_run(&self) -> u32 {
        self.run.saturating_sub(1) * SimHost::charge(self.path_mtu.bytes())
    }

    /// A setup for this service, else as default.
    pub fn of(service: Service) -> Self {
        Self { service, ..Self::default() }
    }

    /// A QP of this setup in RESET, and its surroundings.
    pub fn make(&self, who: Peer) -> (Qp, SimHost) {
        self.side(who).make_with(qpn(who))
    }

    /// The setup of one end: the two of an extended reliable connection differ.
    #[must_use]
    pub fn side(&self, who: Peer) -> Self {
        match (self.service, who) {
            (Service::XrcIni, Peer::B) => Self { service: Service::XrcTgt, srq: true, ..*self },
            (_, Peer::A) => Self { tag_matching: false, ..*self },
            (_, Peer::B) if self.tag_matching => {
                let caps = QpCaps { max_send_wr: 0, max_send_sge: 0, max_inline_data: 0, ..self.caps };
                Self { srq: true, caps, ..*self }
            }
            _ => *self,
        }
    }

    /// A QP with this number.
    pub fn make_with(&self, qpn: Qpn) -> (Qp, SimHost) {
        let config = QpConfig {
            qpn,
            service: self.service,
            caps: QpCaps { max_recv_wr: if self.srq { 0 } else { self.caps.max_recv_wr }, ..self.caps },
            sq_sig_all: self.sq_sig_all,
            srq_max_sge: self.srq.then_some(SRQ_MAX_SGE as u32),
            tag_matching: self.tag_matching,
            port_mtu: self.path_mtu.bytes(),
            line_rate: self.line_rate,
        };
        let mut host = SimHost::with_depth((self.caps.max_send_wr + self.caps.max_recv_wr) as usize);
        host.tags = self.tag_matching.then(|| TagList::new(MAX_TAGS, SRQ_MAX_SGE as u32));
        host.flow.limit = self.flow_limit;
        host.flow.in_run = self.in_run();
        host.flow.returns = self.service.is_reliable();
        (Qp::new(config), host)
    }

    /// Where the two QPs of a pair live.
    pub const fn places(&self) -> [Place; 2] {
        [Place { node: 0, qpn: QPN_A }, Place { node: 1, qpn: QPN_B }]
    }

    /// A connection between two places as `who` sees it.
    pub const fn endpoints_of(&self, who: Peer, places: [Place; 2]) -> Endpoints {
        let (me, you) = (who.index(), who.other().index());
        Endpoints {
            here: places[me],
            there: places[you],
            sq_psn: Psn::new(self.psn[me]),
            rq_psn: Psn::new(self.psn[you]),
        }
    }

    /// The attributes that connect `who` to its peer; `state` is left for the caller.
    pub fn attr(&self, who: Peer) -> QpAttr {
        self.attr_of(&self.endpoints_of(who, self.places()))
    }

    /// The attributes of this end of a connection; `state` is left for the caller.
    pub fn attr_of(&self, endpoints: &Endpoints) -> QpAttr {
        QpAttr {
            path_mtu: self.path_mtu,
            qkey: QKEY,
            rq_psn: endpoints.rq_psn,
            sq_psn: endpoints.sq_psn,
            dest_qpn: endpoints.there.qpn,
            access: self.access,
            av: endpoints.av(),
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port: 1,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..QpAttr::default()
        }
    }

    /// Moves `qp` up to `state`, which is on the way from RESET to RTS.
    pub fn bring_to(&self, who: Peer, qp: &mut Qp, host: &mut SimHost, state: QpState) {
        self.side(who).bring_up(&self.endpoints_of(who, self.places()), qp, host, state);
    }

    /// Moves `qp`, an end of `tie`, up to `state`, which is on the way from RESET to RTS.
    pub fn bring_up(&self, endpoints: &Endpoints, qp: &mut Qp, host: &mut SimHost, state: QpState) {
        while qp.state() != state {
            let state = match qp.state() {
                QpState::Reset => QpState::Init,
                QpState::Init => QpState::Rtr,
                _ => QpState::Rts,
            };
            let attr = QpAttr { state, ..self.attr_of(endpoints) };
            qp.modify(host, &attr, self.mask(state)).expect("a legal step of the ladder");
        }
    }

    /// The attributes that the step to `state` needs, on the way from RESET to RTS.
    ///
    /// # Panics
    /// When no step of that way leads there.
    pub fn mask(&self, state: QpState) -> AttrMask {
        let before = [QpState::Reset, QpState::Init, QpState::Rtr];
        let step = before.into_iter().find(|before| *before as u8 + 1 == state as u8);
        let attributes = step.and_then(|before| transition(self.service, before, state));
        AttrMask::STATE | attributes.expect("a step of the ladder").0
    }
}

/// The QP number of `who`.
pub const fn qpn(who: Peer) -> Qpn {
    [QPN_A, QPN_B][who.index()]
}

/// A QP number for end `end` of a large world: distinct, and not in order.
pub fn number(end: usize) -> Qpn {
    let end = u32::try_from(end).expect("few ends");
    Qpn::new(0x10 + ((end * 0x3779) & 0xf_ffff))
}

/// The way from `who` to its peer.
pub fn av(who: Peer) -> Av {
    let (sgid, dgid) = (address(who.index()), address(who.other().index()));
    Av { sgid, dgid, hop_limit: 64, ..Av::default() }
}

/// A random setup for `service`.
pub fn random_setup(service: Service, choices: &mut impl Choices) -> Setup {
    let base = Setup::of(service);
    let mut caps = base.caps;
    caps.max_send_wr = choices.between(1, 32);
    caps.max_recv_wr = choices.between(1, 32);
    let max_rd_atomic = choices.between(1, 8) as u8;
    Setup {
        path_mtu: choices.pick(&PathMtu::ALL),
        caps,
        sq_sig_all: choices.chance(300),
        access: base.access | Access::FLUSH_GLOBAL,
        srq: service == Service::Rc && choices.chance(250),
        // Near the end of the number space in half of the runs, so that wrap-around is the common
        // case.
        psn: [psn(choices), psn(choices)],
        timeout: choices.between(8, 12) as u8,
        min_rnr_timer: choices.between(1, 12) as u8,
        max_rd_atomic,
        max_dest_rd_atomic: max_rd_atomic + choices.below(3) as u8,
        batch: choices.between(1, 40) as usize,
        stall: if choices.chance(500) { choices.below(600) } else { 0 },
        flow_limit: choices.chance(300).then(|| choices.between(1, 40_000)),
        log: false,
        joins: choices.chance(500),
        run: choices.below(5),
        ..base
    }
}

fn psn(choices: &mut impl Choices) -> u32 {
    if choices.chance(500) { 0x00ff_ffff - choices.below(200) } else { choices.below(1 << 24) }
}
