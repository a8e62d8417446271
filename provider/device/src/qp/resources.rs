//! Creation parameters of a queue pair, and the resources that it has to its end: number, memory,
//! queues. They are read without the queue pair's lock.

use crate::context::Context;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::srq::{Srq, XrcQueues};
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::uses::ObjectId;
use roxe_engine::engine::Engine;
use roxe_memory::region::{AccessScope, PdId};
use roxe_memory::table::MemoryTable;
use roxe_transport::cx::Side;
use roxe_transport::qp::{GRH_LEN, QpCaps, Service};
use roxe_wire::Qpn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Creation parameters of a queue pair.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Transport service.
    pub service: Service,
    /// Queue depths and limits.
    pub caps: QpCaps,
    /// True if every send reports success, whatever its flags.
    pub sq_sig_all: bool,
    /// Completion queue for sends.
    pub send_cq: Arc<Cq>,
    /// Completion queue for receives.
    pub recv_cq: Arc<Cq>,
    /// Shared receive queue; `None`: receives come from the queue pair's own queue.
    pub srq: Option<Arc<Srq>>,
    /// Value that the program chooses and that asynchronous events of this object carry.
    pub user_context: u64,
}

/// Refuses limits beyond the device and objects of different contexts.
pub(super) fn check_init(pd: &Pd, init: &QpInit) -> Result<(), Error> {
    let QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.caps;
    let device = limits::in_force();
    let limits = [
        ("max_send_wr", max_send_wr, device.max_qp_wr),
        ("max_recv_wr", max_recv_wr, device.max_qp_wr),
        ("max_send_sge", max_send_sge, device.max_sge),
        ("max_recv_sge", max_recv_sge, device.max_sge),
        ("max_inline_data", max_inline_data, limits::max_inline_data()),
    ];
    if let Some((name, requested, max)) = limits.into_iter().find(|(_, requested, max)| requested > max) {
        return Err(Error::invalid(format!("{name} is {requested}; the device takes at most {max}")));
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

/// Resources of a queue pair; they do not change.
#[derive(Debug)]
pub(crate) struct QpResources {
    pub(super) qpn: Qpn,
    pub(super) service: Service,
    pub(super) id: ObjectId,
    pub(super) user_context: u64,
    /// Creation order in this process, from 0.
    pub(super) ordinal: u32,
    pub(super) signals_all: bool,
    pub(super) pd_id: PdId,
    pub(super) context: Arc<Context>,
    pub(super) engine: Arc<Engine>,
    pub(super) send_cq: Arc<Cq>,
    pub(super) recv_cq: Arc<Cq>,
    pub(super) srq: Option<Arc<Srq>>,
    /// Queues of its domain, for an XRC target.
    pub(super) xrc_queues: Option<Arc<XrcQueues>>,
    /// True if it ever bound a memory window.
    pub(super) binds: AtomicBool,
}

impl QpResources {
    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the memory table for the queue pair's keys.
    #[inline]
    pub(super) fn memory(&self) -> &MemoryTable {
        self.context.memory()
    }

    /// Returns the memory that its peer may access.
    #[inline]
    pub(super) fn access_scope(&self) -> AccessScope {
        AccessScope { pd: self.pd_id, qp: Some(self.id) }
    }

    #[inline]
    pub(super) fn cq(&self, side: Side) -> &Cq {
        match side {
            Side::Send => &self.send_cq,
            Side::Recv => &self.recv_cq,
        }
    }

    /// Returns the memory table and domain for the lists of its own queues.
    pub(super) fn lists(&self) -> (&MemoryTable, PdId) {
        (self.memory(), self.pd_id)
    }

    /// Returns the bytes of a receive that a message may fill; a datagram is one packet after its
    /// GRH.
    pub(super) fn longest_message(&self) -> u32 {
        match self.service {
            Service::Ud => GRH_LEN + self.context.device().adapter().active_mtu().bytes(),
            _ => u32::MAX,
        }
    }

    /// Closes memory windows that only its peer could use. No further bind may follow.
    pub(super) fn close_windows(&self) {
        if self.binds.load(Ordering::Relaxed) {
            self.memory().forget_qp(self.id);
        }
    }
}
