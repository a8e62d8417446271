//! What a queue pair is created with, and what it may not be created with.

use crate::context::Context;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::srq::Srq;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_transport::qp::{QpCaps, Service};
use std::sync::Arc;

/// What a queue pair is created with.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Transport service.
    pub service: Service,
    /// Depths and limits.
    pub caps: QpCaps,
    /// Every send work request reports success, whatever its flags say.
    pub sq_sig_all: bool,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where receives come from instead of an own queue.
    pub srq: Option<Arc<Srq>>,
    /// Token that events carry.
    pub user: u64,
}

/// Refuses what the device cannot do or what does not belong together.
pub(super) fn check_init(pd: &Pd, init: &QpInit) -> Result<(), Error> {
    let QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.caps;
    let most = limits::in_force();
    let limits = [
        ("max_send_wr", max_send_wr, most.max_qp_wr),
        ("max_recv_wr", max_recv_wr, most.max_qp_wr),
        ("max_send_sge", max_send_sge, most.max_sge),
        ("max_recv_sge", max_recv_sge, most.max_sge),
        ("max_inline_data", max_inline_data, limits::max_inline_data()),
    ];
    if let Some((name, asked, most)) = limits.into_iter().find(|(_, asked, most)| asked > most) {
        return Err(Error::invalid(format!("{name} is {asked}; the device takes at most {most}")));
    }
    // clause: TM-QUEUE
    if init.service != Service::Rc && init.srq.as_ref().is_some_and(|srq| srq.matches_tags()) {
        return Err(Error::invalid("a shared receive queue that matches tags is for reliable connections only"));
    }
    let context = pd.context();
    let same = |other: &Arc<Context>| Arc::ptr_eq(context, other);
    if !same(init.send_cq.context()) || !same(init.recv_cq.context()) {
        return Err(Error::invalid("a completion queue belongs to another context than the protection domain"));
    }
    if init.srq.as_ref().is_some_and(|srq| !same(srq.pd().context())) {
        return Err(Error::invalid("the shared receive queue belongs to another context than the protection domain"));
    }
    Ok(())
}
