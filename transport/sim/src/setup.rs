//! Creation and connection of two QPs. A test changes the fields it is about.

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

pub const QPN_A: Qpn = Qpn::new(0x1a);
pub const QPN_B: Qpn = Qpn::new(0x2b);
pub const QKEY: Qkey = Qkey(0x1111_2222);

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    A,
    B,
}

impl Peer {
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns A if the number `end` of an end of a world is even, else B.
    pub const fn of_end(end: usize) -> Self {
        if end.is_multiple_of(2) { Self::A } else { Self::B }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub node: usize,
    pub qpn: Qpn,
}

/// A connection from the view of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    pub here: Place,
    pub there: Place,
    pub sq_psn: Psn,
    pub rq_psn: Psn,
}

impl Endpoints {
    pub(crate) const fn nodes(&self) -> (usize, usize) {
        (self.here.node, self.there.node)
    }

    pub fn av(&self) -> Av {
        let (sgid, dgid) = (address(self.here.node), address(self.there.node));
        Av { sgid, dgid, hop_limit: 64, ..Av::default() }
    }
}

/// Parameters of a connection. Both ends are alike except for numbers and addresses.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Service of both; with `XrcIni`, A sends and B is its target.
    pub service: Service,
    pub path_mtu: PathMtu,
    pub caps: QpCaps,
    pub sq_sig_all: bool,
    /// True if receives are taken from the hosts' shared receive queues.
    pub srq: bool,
    /// True if B has a tag-matching shared receive queue; its program cannot send.
    pub tag_matching: bool,
    /// First PSN sent by `[A, B]`.
    pub psn: [u32; 2],
    pub timeout: u8,
    pub retry_cnt: u8,
    /// Retries after an RNR NAK; 7 is infinite.
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub access: Access,
    pub batch: usize,
    /// Full batches per thousand that keep the link busy for a while, so that arriving packets find
    /// responses half sent.
    pub stall: u32,
    /// True if the link joins packets, like a ring.
    pub joins: bool,
    /// Packets of one size that the link sends at once, exceeding `flow_limit`; 0: none.
    pub run: u32,
    pub latency: Duration,
    /// Maximum bytes in flight in one direction; `None`: unlimited.
    pub flow_limit: Option<u32>,
    /// Line rate of DCQCN in bit/s; `None`: off.
    pub line_rate: Option<NonZeroU64>,
    /// True if early packets wait ([`roxe_transport::qp::EarlyPackets`]). The network must then
    /// lose nothing, and every message must arrive, even without acknowledgements.
    pub early_wait: bool,
    /// True if every sent packet is logged.
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
    /// Returns the maximum bytes of the remaining packets of a run.
    pub(crate) fn in_run(&self) -> u32 {
        self.run.saturating_sub(1) * SimHost::packet_cost(self.path_mtu.bytes())
    }

    pub fn of(service: Service) -> Self {
        Self { service, ..Self::default() }
    }

    /// Creates a QP in RESET with its host.
    pub fn make(&self, side: Peer) -> (Qp, SimHost) {
        self.side(side).make_with(qpn(side))
    }

    /// Returns the setup of one end; they differ on XRC and with tag matching.
    #[must_use]
    pub fn side(&self, side: Peer) -> Self {
        match (self.service, side) {
            (Service::XrcIni, Peer::B) => Self { service: Service::XrcTgt, srq: true, ..*self },
            (_, Peer::A) => Self { tag_matching: false, ..*self },
            (_, Peer::B) if self.tag_matching => {
                let caps = QpCaps { max_send_wr: 0, max_send_sge: 0, max_inline_data: 0, ..self.caps };
                Self { srq: true, caps, ..*self }
            }
            _ => *self,
        }
    }

    /// Creates a QP with this number, and its host.
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
        host.flow.releases = self.service.is_reliable();
        (Qp::new(config), host)
    }

    pub const fn places(&self) -> [Place; 2] {
        [Place { node: 0, qpn: QPN_A }, Place { node: 1, qpn: QPN_B }]
    }

    /// Returns a connection between two places from the view of `side`.
    pub const fn endpoints_of(&self, side: Peer, places: [Place; 2]) -> Endpoints {
        let (me, you) = (side.index(), side.other().index());
        Endpoints {
            here: places[me],
            there: places[you],
            sq_psn: Psn::new(self.psn[me]),
            rq_psn: Psn::new(self.psn[you]),
        }
    }

    /// Returns the attributes that connect `side` to its peer, except `state`.
    pub fn attr(&self, side: Peer) -> QpAttr {
        self.attr_of(&self.endpoints_of(side, self.places()))
    }

    /// Returns the attributes of this end of a connection, except `state`.
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

    /// Moves `qp` from RESET towards RTS, up to `state`.
    pub fn bring_to(&self, side: Peer, qp: &mut Qp, host: &mut SimHost, state: QpState) {
        self.side(side).bring_up(&self.endpoints_of(side, self.places()), qp, host, state);
    }

    /// Moves `qp`, an end of `endpoints`, from RESET towards RTS, up to `state`.
    pub fn bring_up(&self, endpoints: &Endpoints, qp: &mut Qp, host: &mut SimHost, state: QpState) {
        while qp.state() != state {
            let state = match qp.state() {
                QpState::Reset => QpState::Init,
                QpState::Init => QpState::Rtr,
                _ => QpState::Rts,
            };
            let attr = QpAttr { state, ..self.attr_of(endpoints) };
            qp.modify(host, &attr, self.mask(state)).expect("modify the QP to its next state");
        }
    }

    /// Returns the attributes required by the transition to `state`, between RESET and RTS.
    pub fn mask(&self, state: QpState) -> AttrMask {
        let before = [QpState::Reset, QpState::Init, QpState::Rtr];
        let step = before.into_iter().find(|before| *before as u8 + 1 == state as u8);
        let attributes = step.and_then(|before| transition(self.service, before, state));
        AttrMask::STATE | attributes.expect("look up the step to the next state").0
    }
}

pub const fn qpn(side: Peer) -> Qpn {
    [QPN_A, QPN_B][side.index()]
}

/// Returns the QP number of end `end` of a large world: unique, and not in order.
pub fn number(end: usize) -> Qpn {
    let end = u32::try_from(end).expect("few ends");
    Qpn::new(0x10 + ((end * 0x3779) & 0xf_ffff))
}

/// Returns the path from `side` to its peer.
pub fn av(side: Peer) -> Av {
    let (sgid, dgid) = (address(side.index()), address(side.other().index()));
    Av { sgid, dgid, hop_limit: 64, ..Av::default() }
}

/// Returns a random setup for `service`.
pub fn random_setup(service: Service, choices: &mut impl Choices) -> Setup {
    let base = Setup::of(service);
    let mut caps = base.caps;
    caps.max_send_wr = choices.between(1, 32);
    caps.max_recv_wr = choices.between(1, 32);
    let max_rd_atomic = choices.between(1, 8) as u8;
    Setup {
        path_mtu: choices.pick(&PathMtu::ALL),
        caps,
        sq_sig_all: choices.chance_per_mille(300),
        access: base.access | Access::FLUSH_GLOBAL,
        srq: service == Service::Rc && choices.chance_per_mille(250),
        // Half of the runs start near the end of the PSN space, so that wrap-around is common.
        psn: [psn(choices), psn(choices)],
        timeout: choices.between(8, 12) as u8,
        min_rnr_timer: choices.between(1, 12) as u8,
        max_rd_atomic,
        max_dest_rd_atomic: max_rd_atomic + choices.below(3) as u8,
        batch: choices.between(1, 40) as usize,
        stall: if choices.chance_per_mille(500) { choices.below(600) } else { 0 },
        flow_limit: choices.chance_per_mille(300).then(|| choices.between(1, 40_000)),
        log: false,
        joins: choices.chance_per_mille(500),
        run: choices.below(5),
        ..base
    }
}

fn psn(choices: &mut impl Choices) -> u32 {
    if choices.chance_per_mille(500) { 0x00ff_ffff - choices.below(200) } else { choices.below(1 << 24) }
}
