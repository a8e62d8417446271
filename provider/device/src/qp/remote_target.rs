//! Both ends of an XRC request for an XRC queue of another process: the target that asks
//! ([`super::xrc_target`]), and the remote target that executes ([`crate::remote_targets`]).

use super::core::{Inner, QpCore};
use super::host::QpHost;
use super::init::QpInit;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::xrc_domain::XrcDomain;
use roxe_base::limits::MAX_SRQ_SGE;
use roxe_transport::qp::{AttrMask, Outcome, QpAttr, QpCaps, QpConfig, QpState, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::{Access, Av};
use roxe_wire::{NetHeader, Packet, PathMtu, Qpn};
use std::sync::Arc;

impl QpCore {
    /// What stands for the target `qpn` of another process: no engine knows it, and it never sends.
    /// It has `pd` and `cq` in name only.
    pub(crate) fn remote_target(pd: &Pd, cq: &Arc<Cq>, domain: &Arc<XrcDomain>, qpn: Qpn) -> Self {
        let (service, caps) = (Service::XrcTgt, QpCaps::default());
        // What the connection may have was checked by the process of the target.
        let config = QpConfig { srq_max_sge: Some(MAX_SRQ_SGE), ..QpConfig::new(qpn, service, caps) };
        let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
        let init = QpInit { service, caps, sq_sig_all: false, send_cq, recv_cq, srq: None, user: 0 };
        Self::new(pd, pd.context().engine(), &init, config, Some(domain), false)
    }

    /// Takes a new remote target to where it executes requests with the addresses of `net`. False:
    /// they cannot be.
    pub(crate) fn connect_remote_target(&self, mtu: PathMtu, net: &NetHeader, now: Instant) -> bool {
        // What the connection allows is known to the target that asks, and checked there.
        let access = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        let init = QpAttr { state: QpState::Init, port: 1, access, ..QpAttr::default() };
        let av = Av { sgid: net.dst, dgid: net.src, ..Av::default() };
        let rtr = QpAttr { state: QpState::Rtr, av, path_mtu: mtu, max_dest_rd_atomic: 1, ..init };
        let of_init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let of_rtr = AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        [(init, of_init), (rtr, of_rtr)].iter().all(|(attr, mask)| self.change_remote_target(attr, *mask, now))
    }

    fn change_remote_target(&self, attr: &QpAttr, mask: AttrMask, now: Instant) -> bool {
        let inner = &mut *self.inner.lock();
        let mut host = QpHost::new(&self.resources, &mut inner.state, now);
        inner.machine.modify(&mut host, attr, mask | AttrMask::STATE).is_ok()
    }

    /// Whether the remote target is in the middle of a message.
    pub(crate) fn is_in_message(&self) -> bool {
        self.inner.lock().machine.is_in_message()
    }

    /// The remote target executes one request.
    pub(crate) fn execute_for_other(&self, net: &NetHeader, packet: &Packet<'_>, now: Instant) -> Outcome {
        let inner = &mut *self.inner.lock();
        let mut host = QpHost::new(&self.resources, &mut inner.state, now);
        inner.machine.execute_for_other(&mut host, net, packet)
    }

    /// The connection has ended: a receive in use ends as flushed.
    pub(crate) fn flush_remote_target(&self, now: Instant) {
        // To ERR is allowed from every state.
        let _ = self.change_remote_target(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE, now);
    }

    /// Ends what other processes have of a connection that is over, and returns when to ask again
    /// what nobody has answered. Does nothing for other queue pairs than targets that have met
    /// queues of other processes.
    #[inline]
    pub(super) fn settle_xrc(&self, inner: &mut Inner) -> Option<Instant> {
        let requests = inner.state.xrc_requests.as_ref()?;
        // In the error state READs that came before are still answered.
        if inner.machine.state().accepts_requests() || inner.machine.has_work() {
            return requests.deadline();
        }
        inner.state.end_xrc_requests(self.engine());
        None
    }
}
