//! Receive work queues (`man ibv_create_wq`), and the hash queue pairs that spread frames over
//! them.
//!
//! A work queue is the receiving half of a raw packet queue pair: it has a receive queue, a state
//! machine and a completion queue, but neither a send queue nor flow rules. Flow rules direct
//! frames to a hash queue pair ([`Pd::create_hash_qp`]), which chooses a work queue for each frame.

use crate::context::Context;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::qp::{Qp, QpInit, QpRole, Rss, RwqTable};
use roxe_base::error::Error;
use roxe_base::limits::{MAX_RWQ_TABLE, MAX_WQ_SGE, MAX_WQ_WR};
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::UseCount;
use roxe_transport::qp::{AttrMask, PostError, QpAttr, QpCaps, QpState, Service};
use roxe_transport::rss::RxHash;
use roxe_transport::wr::RecvRequest;
use std::sync::Arc;

/// Creation parameters of a receive work queue.
#[derive(Clone, Debug)]
pub struct WqInit {
    /// Maximum number of posted receives, 1..=[`MAX_WQ_WR`].
    pub max_wr: u32,
    /// Maximum number of scatter list elements of a receive, up to [`MAX_WQ_SGE`].
    pub max_sge: u32,
    /// Completion queue of its receives.
    pub cq: Arc<Cq>,
    /// Value that the program chooses and that asynchronous events of this object carry.
    pub user_context: u64,
}

/// State of a receive work queue (values of `enum ibv_wq_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WqState {
    /// Empty; accepts neither receives nor frames.
    Reset = 0,
    /// Accepts receives and frames.
    Ready = 1,
    /// Receives are flushed; the queue can only be reset.
    Error = 2,
}

impl WqState {
    /// Returns the state with this number.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Reset),
            1 => Some(Self::Ready),
            2 => Some(Self::Error),
            _ => None,
        }
    }

    const fn from_qp_state(state: QpState) -> Self {
        match state {
            QpState::Reset => Self::Reset,
            QpState::Err => Self::Error,
            _ => Self::Ready,
        }
    }
}

/// A receive work queue.
#[derive(Debug)]
pub struct Wq {
    qp: Arc<Qp>,
    uses: UseCount,
    modify_lock: Mutex<rank::WqModify, ()>,
}

impl Pd {
    /// Creates a receive work queue in the reset state. Fails with EINVAL beyond the limits of the
    /// device.
    pub fn create_wq(self: &Arc<Self>, init: WqInit) -> Result<Arc<Wq>, Error> {
        let WqInit { max_wr, max_sge, cq, user_context } = init;
        if !(1..=MAX_WQ_WR).contains(&max_wr) || max_sge > MAX_WQ_SGE {
            let limits = format!("a work queue accepts 1 to {MAX_WQ_WR} receives of up to {MAX_WQ_SGE} elements");
            return Err(Error::invalid(format!("{limits}, not {max_wr} and {max_sge}")));
        }
        let caps = QpCaps { max_recv_wr: max_wr, max_recv_sge: max_sge, ..QpCaps::default() };
        let (service, sq_sig_all, srq, send_cq, recv_cq) = (Service::Raw, false, None, Arc::clone(&cq), cq);
        let init = QpInit { service, caps, sq_sig_all, send_cq, recv_cq, srq, user_context };
        let qp = Qp::create_in(self, init, QpRole::WorkQueue)?;
        Ok(Arc::new(Wq { qp, uses: UseCount::default(), modify_lock: Mutex::new(()) }))
    }

    /// Creates a queue pair without queues, whose flows spread frames over the work queues of
    /// `table` by their hash. Fails with EINVAL if the fields cannot be hashed together, or the
    /// table is of another context.
    pub fn create_hash_qp(
        self: &Arc<Self>,
        table: &Arc<RwqTable>,
        hash: RxHash,
        user_context: u64,
    ) -> Result<Arc<Qp>, Error> {
        if !hash.fields.is_possible() {
            return Err(Error::invalid("a table can hash one IP version and one of TCP and UDP at a time"));
        }
        if !Arc::ptr_eq(self.context(), &table.context) {
            return Err(Error::invalid("the table belongs to another context than the protection domain"));
        }
        let (send_cq, recv_cq) = (Arc::clone(&table.cq), Arc::clone(&table.cq));
        let (service, caps, sq_sig_all, srq) = (Service::Raw, QpCaps::default(), false, None);
        let init = QpInit { service, caps, sq_sig_all, send_cq, recv_cq, srq, user_context };
        Qp::create_in(self, init, QpRole::Rss(Arc::new(Rss { table: Arc::clone(table), hash })))
    }
}

impl Context {
    /// Creates a table that spreads frames over `wqs`. Fails with EINVAL if their number is not a
    /// power of two up to `max_rwq_indirection_table_size`, or they belong to another context;
    /// ENOMEM beyond `max_rwq_indirection_tables` tables.
    // clause: RSS-TABLE
    pub fn create_rwq_table(self: &Arc<Self>, wqs: &[Arc<Wq>]) -> Result<Arc<RwqTable>, Error> {
        let is_possible = wqs.len().is_power_of_two() && wqs.len() <= MAX_RWQ_TABLE as usize;
        let Some(first) = wqs.first().filter(|_| is_possible) else {
            return Err(Error::invalid(format!(
                "a table must have 1, 2, 4 ... {MAX_RWQ_TABLE} queues, not {}",
                wqs.len()
            )));
        };
        if wqs.iter().any(|wq| !Arc::ptr_eq(wq.qp.pd().context(), self)) {
            return Err(Error::invalid("a work queue belongs to another context than the table"));
        }
        let quota = self.device().quotas().rwq_tables.take()?;
        let entries = wqs.iter().map(|wq| Arc::clone(wq.qp.core())).collect();
        let held = Mutex::new(wqs.iter().map(|wq| wq.uses.hold()).chain([quota]).collect());
        let (context, cq, uses) = (Arc::clone(self), Arc::clone(first.qp.recv_cq()), UseCount::default());
        Ok(Arc::new(RwqTable { context, entries, cq, uses, held }))
    }
}

impl Wq {
    /// Returns the number of the queue in completions.
    pub fn number(&self) -> u32 {
        self.qp.qpn().get()
    }

    /// Returns the current state.
    pub fn state(&self) -> WqState {
        WqState::from_qp_state(self.qp.state())
    }

    /// Returns the maximum number of posted receives, and of scatter list elements of a receive.
    pub fn size(&self) -> (u32, u32) {
        let QpCaps { max_recv_wr, max_recv_sge, .. } = self.qp.query().1.caps;
        (max_recv_wr, max_recv_sge)
    }

    /// Moves the queue to `state`. Fails with EINVAL if it is not in `current`, or from error to
    /// ready.
    // clause: WQ-STATES
    pub fn modify(&self, state: WqState, current: Option<WqState>) -> Result<(), Error> {
        let _alone = self.modify_lock.lock();
        let from = self.state();
        if current.is_some_and(|current| current != from) {
            return Err(Error::invalid(format!("the work queue is in state {from:?}, not in the given current state")));
        }
        match (from, state) {
            (WqState::Error, WqState::Ready) => {
                Err(Error::invalid("a work queue leaves the error state only through RESET"))
            }
            (WqState::Ready, WqState::Ready) => Ok(()),
            (_, WqState::Reset) => self.modify_qp(QpState::Reset, AttrMask::empty()),
            (_, WqState::Error) => self.modify_qp(QpState::Err, AttrMask::empty()),
            (_, WqState::Ready) => {
                self.modify_qp(QpState::Init, AttrMask::PORT)?;
                self.modify_qp(QpState::Rtr, AttrMask::empty())
            }
        }
    }

    fn modify_qp(&self, state: QpState, mask: AttrMask) -> Result<(), Error> {
        self.qp.modify(&QpAttr { state, port: 1, ..QpAttr::default() }, AttrMask::STATE | mask)
    }

    /// Posts a receive; the error state flushes it at once.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.qp.post_recv(request)
    }

    /// Destroys the queue. Fails with EBUSY while an indirection table refers to it.
    pub fn destroy(&self) -> Result<(), Error> {
        self.uses.check_unused("work queue", "indirection tables")?;
        self.qp.destroy();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::CqInit;
    use crate::event::AsyncEventKind;
    use crate::testing;
    use roxe_engine::queue_pair::RssGroup;
    use roxe_transport::rss::HashFields;
    use roxe_transport::wr::{Sge, WcStatus};
    use roxe_wire::frame::FrameKey;

    fn cq(pd: &Arc<Pd>) -> Arc<Cq> {
        pd.context().create_cq(CqInit { cqe: 16, ..CqInit::default() }).unwrap()
    }

    fn wq(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Arc<Wq> {
        pd.create_wq(WqInit { max_wr: 4, max_sge: 1, cq: Arc::clone(cq), user_context: 1 }).unwrap()
    }

    fn hash(fields: HashFields) -> RxHash {
        RxHash { key: [7; 40], fields }
    }

    // clause: WQ-STATES
    #[test]
    fn modify_follows_state_table_and_error_flushes() {
        let pd = testing::pd();
        let cq = cq(&pd);
        let wq = wq(&pd, &cq);
        let request = RecvRequest { wr_id: 9, sges: &[Sge::default()] };
        assert_eq!((wq.state(), wq.post_recv(&request)), (WqState::Reset, Err(PostError::State)));
        wq.modify(WqState::Ready, None).unwrap();
        wq.modify(WqState::Ready, Some(WqState::Ready)).unwrap();
        wq.post_recv(&request).unwrap();
        assert_eq!(wq.modify(WqState::Error, Some(WqState::Reset)).unwrap_err().errno(), libc::EINVAL);
        wq.modify(WqState::Error, None).unwrap();
        let mut completions = vec![];
        cq.poll(4, |cqe| completions.push((cqe.wr_id, cqe.status, cqe.qpn.get()))).unwrap();
        assert_eq!(completions, [(9, WcStatus::WrFlushErr, wq.number())]);
        assert_eq!(wq.modify(WqState::Ready, None).unwrap_err().errno(), libc::EINVAL);
        wq.modify(WqState::Reset, None).unwrap();
        wq.modify(WqState::Ready, None).unwrap();
        assert_eq!(wq.state(), WqState::Ready);
    }

    // clause: RSS-TABLE
    #[test]
    fn table_needs_power_of_two_and_holds_its_queues() {
        let pd = testing::pd();
        let cq = cq(&pd);
        let wqs = [wq(&pd, &cq), wq(&pd, &cq), wq(&pd, &cq)];
        let table = |wqs: &[Arc<Wq>]| pd.context().create_rwq_table(wqs);
        for wrong in [&wqs[..0], &wqs[..3]] {
            assert_eq!(table(wrong).unwrap_err().errno(), libc::EINVAL);
        }
        let table = table(&wqs[..2]).unwrap();
        assert_eq!(wqs[0].destroy().unwrap_err().errno(), libc::EBUSY);
        wqs[2].destroy().unwrap();
        let fields = HashFields::SRC_IPV4;
        let both = fields | HashFields::SRC_IPV6;
        assert_eq!(pd.create_hash_qp(&table, hash(both), 1).unwrap_err().errno(), libc::EINVAL);
        let qp = pd.create_hash_qp(&table, hash(fields), 1).unwrap();
        assert_eq!(table.destroy().unwrap_err().errno(), libc::EBUSY);
        qp.destroy();
        table.destroy().unwrap();
        wqs[..2].iter().for_each(|wq| wq.destroy().unwrap());
        cq.destroy().unwrap();
    }

    // clause: CQ-OVERRUN
    #[test]
    fn overrun_raises_event_of_work_queue() {
        let pd = testing::pd();
        let cq = pd.context().create_cq(CqInit { cqe: 1, user_context: 3, ..CqInit::default() }).unwrap();
        let wq = pd.create_wq(WqInit { max_wr: 4, max_sge: 1, cq, user_context: 5 }).unwrap();
        wq.modify(WqState::Ready, None).unwrap();
        (0..3).for_each(|wr_id| wq.post_recv(&RecvRequest { wr_id, sges: &[] }).unwrap());
        wq.modify(WqState::Error, None).unwrap();
        let next = || pd.context().next_async_event().map(|event| (event.kind, event.user_context)).unwrap();
        assert_eq!([next(), next()], [(AsyncEventKind::CqErr, 3), (AsyncEventKind::WqFatal, 5)]);
    }

    // clause: RSS-CHOICE
    #[test]
    fn low_bits_of_hash_choose_queue() {
        let pd = testing::pd();
        let cq = cq(&pd);
        let wqs = [wq(&pd, &cq), wq(&pd, &cq), wq(&pd, &cq), wq(&pd, &cq)];
        let table = pd.context().create_rwq_table(&wqs).unwrap();
        let key = std::array::from_fn(|at| (at * 73 % 251) as u8);
        let hash = RxHash { key, fields: HashFields::SRC_IPV4 | HashFields::DST_IPV4 };
        let rss = Rss { table, hash };
        let mut frame = vec![0; 34];
        (frame[12], frame[14], frame[17], frame[23]) = (8, 0x45, 20, 17);
        let mut chosen = std::collections::BTreeSet::new();
        for last in 0..=255 {
            frame[29] = last;
            let key = FrameKey::of(&frame).unwrap();
            let number = rss.choose(&key).unwrap().qpn().get();
            assert_eq!(number, wqs[hash.of(&key) as usize % 4].number());
            chosen.insert(number);
        }
        assert_eq!(chosen.len(), 4, "all queues get frames");
    }

    #[test]
    fn sizes_beyond_device_are_refused() {
        let pd = testing::pd();
        let cq = cq(&pd);
        for (max_wr, max_sge) in [(0, 1), (MAX_WQ_WR + 1, 1), (1, MAX_WQ_SGE + 1)] {
            let error = pd.create_wq(WqInit { max_wr, max_sge, cq: Arc::clone(&cq), user_context: 1 }).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL);
        }
    }
}
