//! How the two QPs of a [`super::Pair`] are made and connected.
//!
//! May touch: the public face of `qp`. A test changes the fields it is about and leaves the rest.

use super::host::{SRQ_MAX_SGE, SimHost};
use super::wire::Peer;
use crate::Qp;
use crate::qp::attr::{AttrMask, QpAttr, QpState};
use crate::qp::shared::{QpCaps, QpConfig, Service};
use crate::wr::{Access, Av};
use core::net::Ipv4Addr;
use core::num::NonZeroU64;
use core::time::Duration;
use roxe_wire::{PathMtu, Psn, Qkey, Qpn};

/// Number of the first QP.
pub const QPN_A: Qpn = Qpn::new(0x1a);
/// Number of the second QP.
pub const QPN_B: Qpn = Qpn::new(0x2b);
/// Q_Key of both when they are UD.
pub const QKEY: Qkey = Qkey(0x1111_2222);

/// What a pair is made of. Both sides are alike but for numbers and addresses.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Service of both.
    pub service: Service,
    /// Payload bytes of a full packet.
    pub path_mtu: PathMtu,
    /// Queue depths and limits.
    pub caps: QpCaps,
    /// Every send reports success.
    pub sq_sig_all: bool,
    /// Receives come from the hosts' shared receive queues.
    pub srq: bool,
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
    /// How often a full batch keeps the link busy for a while, per thousand batches: what arrives meanwhile finds answers
    /// half sent.
    pub stall: u32,
    /// One-way travel time.
    pub latency: Duration,
    /// Bytes that may be under way in one direction; `None`: no bound.
    pub flow_limit: Option<u32>,
    /// Rate control up to this many bit/s and packets that may be marked; `None`: neither.
    pub line_rate: Option<NonZeroU64>,
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
            latency: Duration::from_micros(5),
            flow_limit: None,
            line_rate: None,
            log: true,
        }
    }
}

impl Setup {
    /// A setup for this service, else as default.
    pub fn of(service: Service) -> Self {
        Self { service, ..Self::default() }
    }

    /// A QP of this setup in RESET, and its surroundings.
    pub fn make(&self, who: Peer) -> (Qp, SimHost) {
        let config = QpConfig {
            qpn: qpn(who),
            service: self.service,
            caps: QpCaps { max_recv_wr: if self.srq { 0 } else { self.caps.max_recv_wr }, ..self.caps },
            sq_sig_all: self.sq_sig_all,
            srq_max_sge: self.srq.then_some(SRQ_MAX_SGE as u32),
            port_mtu: self.path_mtu.bytes(),
            line_rate: self.line_rate,
        };
        let mut host = SimHost::with_depth((self.caps.max_send_wr + self.caps.max_recv_wr) as usize);
        host.flow.limit = self.flow_limit;
        host.flow.returns = self.service == Service::Rc;
        (Qp::new(config), host)
    }

    /// The attributes that connect `who` to its peer; `state` is left for the caller.
    pub fn attr(&self, who: Peer) -> QpAttr {
        QpAttr {
            path_mtu: self.path_mtu,
            qkey: QKEY,
            rq_psn: Psn::new(self.psn[who.other().index()]),
            sq_psn: Psn::new(self.psn[who.index()]),
            dest_qpn: qpn(who.other()),
            access: self.access,
            av: av(who),
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

    /// Moves `qp` one state further towards RTS: RESET to INIT, INIT to RTR, RTR to RTS.
    pub fn advance(&self, who: Peer, qp: &mut Qp, host: &mut SimHost) {
        let state = match qp.state() {
            QpState::Reset => QpState::Init,
            QpState::Init => QpState::Rtr,
            _ => QpState::Rts,
        };
        let attr = QpAttr { state, ..self.attr(who) };
        qp.modify(host, &attr, self.mask(state)).expect("a legal step of the ladder");
    }

    /// Moves `qp` up to `state`, which is on the way from RESET to RTS.
    pub fn bring_to(&self, who: Peer, qp: &mut Qp, host: &mut SimHost, state: QpState) {
        while qp.state() != state {
            self.advance(who, qp, host);
        }
    }

    /// The attributes that the step to `state` needs (IBA §11.2.5.2).
    pub fn mask(&self, state: QpState) -> AttrMask {
        let (init, rtr, rts) = match self.service {
            Service::Rc => (AttrMask::ACCESS_FLAGS, connected() | depth(), AttrMask::SQ_PSN | retries()),
            Service::Uc => (AttrMask::ACCESS_FLAGS, connected(), AttrMask::SQ_PSN),
            Service::Ud => (AttrMask::QKEY, AttrMask::empty(), AttrMask::SQ_PSN),
        };
        AttrMask::STATE
            | match state {
                QpState::Init => init | AttrMask::PKEY_INDEX | AttrMask::PORT,
                QpState::Rtr => rtr,
                QpState::Rts => rts,
                _ => AttrMask::empty(),
            }
    }
}

fn connected() -> AttrMask {
    AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN
}

fn depth() -> AttrMask {
    AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER
}

fn retries() -> AttrMask {
    AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC
}

/// The QP number of `who`.
pub const fn qpn(who: Peer) -> Qpn {
    match who {
        Peer::A => QPN_A,
        Peer::B => QPN_B,
    }
}

/// The way from `who` to its peer.
pub fn av(who: Peer) -> Av {
    let ip = |who: Peer| Ipv4Addr::new(10, 0, 0, 1 + who as u8).into();
    Av { sgid: ip(who), dgid: ip(who.other()), hop_limit: 64, ..Av::default() }
}
