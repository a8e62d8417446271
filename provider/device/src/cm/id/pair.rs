//! The queue pair of an id: what connection management gives it, and when.
//!
//! ```text
//!          attach       connect: the peer accepts; accept       disconnect; the peer rejects
//!   RESET ───────► INIT ────────────────────────► RTR ─► RTS ─────────────────────────────► ERR
//!   datagrams: RESET ─► INIT ─► RTR ─► RTS
//! ```

use super::state::{Id, Inner, Link};
use crate::cm::event::UDP_QKEY;
use crate::cm::route::Path;
use crate::ib_cm::Session;
use crate::qp::Qp;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_transport::cm::QpTerms;
use roxe_transport::qp::{AttrMask, QpAttr, QpState, Service};
use roxe_transport::wr::Access;
use std::sync::Arc;

/// What the queue pair is told; see the module.
type Modify = (QpAttr, AttrMask);

/// Verbs.
impl Id {
    /// The id moves this queue pair from now on: now to INIT, datagrams to RTS; then with connect,
    /// accept, reject and disconnect.
    ///
    /// EINVAL: it has one, or no device, or the queue pair is of another device or not in RESET.
    pub fn attach_qp(&self, qp: &Arc<Qp>) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.qp.is_some() {
            return Err(Error::invalid("the id has a queue pair"));
        }
        inner.check_device(qp)?;
        if qp.service() == Service::Ud {
            ud_states().into_iter().try_for_each(|(attr, mask)| qp.modify_at_once(&attr, mask))?;
        } else {
            let (attr, mask) = init(Access::empty());
            qp.modify_at_once(&attr, mask)?;
        }
        inner.groups.attach_all(qp)?;
        inner.qp = Some(Arc::clone(qp));
        Ok(())
    }

    /// Forgets the queue pair.
    pub fn detach_qp(&self) {
        // Nothing that is joined can fail without a queue pair.
        let _ = self.replace_qp(None);
    }

    /// The id moves this queue pair from now on, instead of the one it has, in whatever state both
    /// are: C programs take a queue pair from one id to another by assigning `rdma_cm_id.qp`.
    /// Whether it suits is seen when it is moved.
    ///
    /// The error is that of a group which the id has joined and the queue pair cannot be in; the id
    /// has it all the same.
    pub fn replace_qp(&self, qp: Option<&Arc<Qp>>) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.leave_groups();
        let before = std::mem::replace(&mut inner.qp, qp.map(Arc::clone));
        let joined = qp.map_or(Ok(()), |qp| inner.groups.attach_all(qp));
        drop(inner);
        drop(before);
        joined
    }

    /// The queue pair.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.lock().qp.clone()
    }

    /// What a queue pair has to be given on its way to `state` (INIT, RTR or RTS), for programs
    /// that move it themselves.
    ///
    /// EINVAL: no device, any other state, or the peer has not spoken yet.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        let inner = self.lock();
        let engine = inner.device_addr()?.engine.clone();
        let (link, service) = (inner.link, inner.qp_service(self.service()));
        drop(inner);
        if service == Service::Ud {
            return ud_states().into_iter().find(|(attr, _)| attr.state == state).ok_or_else(no_such_state);
        }
        let Link::Alive(_) = link else {
            return if state == QpState::Init { Ok(init(Access::empty())) } else { Err(too_early()) };
        };
        engine.cm(|session| self.lock().modify_to(session, state, service, None))?
    }
}

impl Inner {
    /// EINVAL without a device, or if the queue pair is of another one.
    fn check_device(&self, qp: &Qp) -> Result<(), Error> {
        if self.device_addr()?.device.index() == qp.pd().context().device().index() {
            return Ok(());
        }
        Err(Error::invalid("the queue pair is of another device"))
    }

    /// Of the queue pair attached, or else `usual`.
    pub(super) fn qp_service(&self, usual: Service) -> Service {
        self.qp.as_ref().map_or(usual, |qp| qp.service())
    }

    /// Moves the queue pair, if there is one, to RTS: the peer has spoken. `depths` are the
    /// program's, of resources and requests. EINVAL: it is of another device, or in a state that
    /// does not lead there.
    pub(in crate::cm) fn make_ready(&self, session: &mut Session<'_>, depths: Option<(u8, u8)>) -> Result<(), Error> {
        let Some(qp) = &self.qp else { return Ok(()) };
        self.check_device(qp)?;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = self.modify_to(session, state, qp.service(), depths)?;
            qp.modify_at_once(&attr, mask)?;
        }
        Ok(())
    }

    /// The peer does not want it, or it was given up.
    pub(in crate::cm) fn fail_qp(&self) {
        if let Some(qp) = &self.qp {
            // A queue pair that its program has reset meanwhile stays so.
            let _ = fail(qp);
        }
    }

    fn modify_to(
        &self,
        session: &mut Session<'_>,
        state: QpState,
        service: Service,
        depths: Option<(u8, u8)>,
    ) -> Result<Modify, Error> {
        // While the peer has not answered there is only what we offer it.
        let terms = session.cm.qp_terms(self.alive()?);
        if state == QpState::Init {
            return Ok(init(rights(terms.map_or(0, |terms| terms.max_dest_rd_atomic))));
        }
        let mut terms = terms.ok_or_else(too_early)?;
        terms.rq_psn = self.psn;
        let (resources, requests) = depths.unwrap_or((limits::MAX_QP_RD_ATOM, limits::MAX_QP_RD_ATOM));
        terms.max_dest_rd_atomic = terms.max_dest_rd_atomic.min(resources);
        terms.max_rd_atomic = terms.max_rd_atomic.min(requests);
        match state {
            QpState::Rtr => Ok(rtr(&terms, service, self.device_addr()?.gid_index)),
            QpState::Rts => Ok(rts(&terms, service, self.options.ack_timeout)),
            _ => Err(no_such_state()),
        }
    }
}

/// Moves a queue pair to ERR.
pub(super) fn fail(qp: &Qp) -> Result<(), Error> {
    qp.modify_at_once(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE)
}

/// What a peer may do that we serve so many READs and atomics of.
// clause: CM-QP-INIT
fn rights(resources: u8) -> Access {
    let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
    if resources > 0 { Access::REMOTE_WRITE | reads } else { Access::REMOTE_WRITE }
}

fn init(access: Access) -> Modify {
    let attr = QpAttr { state: QpState::Init, access, port: limits::PORTS, ..QpAttr::default() };
    (attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS)
}

/// All that a datagram queue pair needs.
fn ud_states() -> [Modify; 3] {
    let attr = |state| QpAttr { state, qkey: UDP_QKEY, port: limits::PORTS, ..QpAttr::default() };
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    [
        (attr(QpState::Init), init),
        (attr(QpState::Rtr), AttrMask::STATE),
        (attr(QpState::Rts), AttrMask::STATE | AttrMask::SQ_PSN),
    ]
}

// clause: CM-QP-RTR
fn rtr(terms: &QpTerms, service: Service, sgid_index: u8) -> Modify {
    let attr = QpAttr {
        state: QpState::Rtr,
        av: Path::of_terms(terms).av(sgid_index),
        path_mtu: terms.path_mtu,
        dest_qpn: terms.dest_qpn,
        rq_psn: terms.rq_psn,
        max_dest_rd_atomic: terms.max_dest_rd_atomic,
        min_rnr_timer: 0,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let responder = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    (attr, if matches!(service, Service::Rc | Service::XrcTgt) { mask | responder } else { mask })
}

// clause: CM-QP-RTS
fn rts(terms: &QpTerms, service: Service, ack_timeout: Option<u8>) -> Modify {
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: terms.sq_psn,
        timeout: ack_timeout.unwrap_or_else(|| terms.timeout.get()),
        retry_cnt: terms.retry_cnt.get(),
        rnr_retry: terms.rnr_retry.get(),
        max_rd_atomic: terms.max_rd_atomic,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::SQ_PSN;
    let requester = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let mask = match service {
        Service::Rc | Service::XrcIni => mask | AttrMask::TIMEOUT | requester,
        Service::XrcTgt => mask | AttrMask::TIMEOUT,
        _ => mask,
    };
    (attr, mask)
}

fn too_early() -> Error {
    Error::invalid("the peer has not answered yet")
}

fn no_such_state() -> Error {
    Error::invalid("a queue pair is given attributes on its way to INIT, RTR and RTS only")
}
