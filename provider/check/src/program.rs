//! The checker's model of the program ([`Program`]): its objects and the stack that created each,
//! the attributes of its queue pairs, and the outstanding requests. Events update it; rules
//! ([`Observer`]s) read it.

use crate::event::{Event, MrInfo, Object, QpInfo};
use crate::id_map::IdMap;
use crate::report::Report;
use crate::stack::Stack;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::Side;
use roxe_transport::qp::{AttrMask, QpAttr, QpState};
use roxe_transport::wr::{Cqe, SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use roxe_wire::Qpn;
use std::collections::VecDeque;
use std::fmt;

/// Maximum number of destroyed objects that are remembered.
const MAX_DESTROYED: usize = 4096;

#[derive(Clone, Debug)]
pub(crate) struct LiveObject {
    pub(crate) object: Object,
    pub(crate) created: Stack,
    /// True if a library owns it.
    pub(crate) of_library: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct DestroyedObject {
    pub(crate) id: ObjectId,
    pub(crate) object: Object,
    pub(crate) created: Stack,
    pub(crate) destroyed: Stack,
}

/// An outstanding request. Polling the completion of a send ends it and all earlier sends of its
/// queue; polling that of a receive ends that receive.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) wr_id: u64,
    /// `None` for a receive.
    pub(crate) op: Option<SendOp>,
    pub(crate) signaled: bool,
    /// Empty for inline data.
    pub(crate) sges: Vec<Sge>,
    /// Bytes of the list or of the inline data.
    pub(crate) len: u64,
    pub(crate) posted: Stack,
    /// Sequence number of the post in this process.
    pub(crate) serial: u64,
    /// True once the card has written its completion.
    pub(crate) completed: bool,
}

/// One or several rules that share state.
pub(crate) trait Observer: fmt::Debug + Send {
    /// Judges `event`, which the program caused at `stack`. `program` already contains the objects
    /// and requests that the event adds, and still contains those that it ends.
    fn observe(&mut self, event: &Event<'_>, stack: &Stack, program: &Program, reports: &mut Vec<Report>);
}

#[derive(Debug, Default)]
pub(crate) struct Program {
    objects: IdMap<ObjectId, LiveObject>,
    destroyed: VecDeque<DestroyedObject>,
    numbers: IdMap<(ObjectId, Qpn), ObjectId>,
    attributes: IdMap<ObjectId, Attributes>,
    /// Sends by queue pair, and receives by queue pair or shared receive queue.
    works: [IdMap<ObjectId, VecDeque<Work>>; 2],
    posted: u64,
}

impl Program {
    /// Adds the objects and requests that `event` begins, before the rules observe it.
    pub(crate) fn begin(&mut self, event: &Event<'_>, stack: &Stack) {
        match *event {
            Event::Modified { qp, attr, mask } => self.attributes.entry(qp).or_default().modify(attr, mask, stack),
            Event::Created(id, object) => {
                self.objects.insert(id, LiveObject { object, created: stack.clone(), of_library: false });
                if let Object::Qp(pair) = object {
                    self.numbers.insert((pair.context, pair.qpn), id);
                }
            }
            Event::Reregistered(id, memory) => {
                if let Some(known) = self.objects.get_mut(&id) {
                    (known.object, known.created) = (Object::Mr(memory), stack.clone());
                }
            }
            Event::OwnedByLibrary(id) => {
                if let Some(known) = self.objects.get_mut(&id) {
                    known.of_library = true;
                }
            }
            Event::PostedSend { qp, request } => {
                let all = self.qp(qp).is_some_and(|pair| pair.sq_sig_all);
                self.push(Side::Send, qp, Work::send(request, all, stack.clone()));
            }
            Event::PostedRecv { queue, request } => {
                let (wr_id, sges, posted) = (request.wr_id, request.sges.to_vec(), stack.clone());
                let len = length(&sges);
                let work = Work { wr_id, op: None, signaled: true, sges, len, posted, serial: 0, completed: false };
                self.push(Side::Recv, queue, work);
            }
            Event::Completed { qp, side, cqe } => {
                let queue = self.queue_of(qp, side);
                let mut works = self.works[side as usize].get_mut(&queue).into_iter().flatten();
                // A completion belongs to the oldest uncompleted request of its wr_id.
                if let Some(work) = works.find(|work| !work.completed && work.wr_id == cqe.wr_id) {
                    work.completed = true;
                }
            }
            _ => {}
        }
    }

    /// Removes the objects and requests that `event` ends, after the rules have observed it.
    pub(crate) fn end(&mut self, event: &Event<'_>, stack: &Stack) {
        match *event {
            Event::Destroyed(id) => {
                let Some(LiveObject { object, created, .. }) = self.objects.remove(&id) else { return };
                if let Object::Qp(pair) = object {
                    self.numbers.remove(&(pair.context, pair.qpn));
                }
                self.works.iter_mut().for_each(|works| drop(works.remove(&id)));
                self.attributes.remove(&id);
                if self.destroyed.len() == MAX_DESTROYED {
                    self.destroyed.pop_front();
                }
                self.destroyed.push_back(DestroyedObject { id, object, created, destroyed: stack.clone() });
            }
            Event::SendsWithdrawn { qp, count } => {
                if let Some(works) = self.works[Side::Send as usize].get_mut(&qp) {
                    works.truncate(works.len().saturating_sub(count));
                }
            }
            Event::Polled { cq, cqe } => self.poll(cq, cqe),
            Event::Modified { qp, attr, mask } if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset => {
                self.works.iter_mut().for_each(|works| drop(works.remove(&qp)));
            }
            _ => {}
        }
    }

    /// Removes the requests that a polled completion ends: a send with all before it, or one
    /// receive.
    fn poll(&mut self, cq: ObjectId, cqe: &Cqe) {
        let Some(qp) = self.qp_of(cq, cqe.qpn) else { return };
        let side = side_of(cqe);
        let queue = self.queue_of(qp, side);
        let Some(works) = self.works[side as usize].get_mut(&queue) else { return };
        let failed = cqe.status != WcStatus::Success;
        let is_polled = |work: &Work| work.wr_id == cqe.wr_id && (work.signaled || failed);
        let Some(at) = works.iter().position(is_polled) else { return };
        match side {
            Side::Send => drop(works.drain(..=at)),
            Side::Recv => drop(works.remove(at)),
        }
    }

    fn push(&mut self, side: Side, queue: ObjectId, work: Work) {
        self.posted += 1;
        let work = Work { serial: self.posted, ..work };
        self.works[side as usize].entry(queue).or_default().push_back(work);
    }

    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns the outstanding requests of a queue, oldest first.
    pub(crate) fn outstanding(&self, side: Side, queue: ObjectId) -> impl DoubleEndedIterator<Item = &Work> {
        self.works[side as usize].get(&queue).into_iter().flatten()
    }

    pub(crate) fn depth(&self, side: Side, queue: ObjectId) -> usize {
        self.works[side as usize].get(&queue).map_or(0, VecDeque::len)
    }

    /// Returns all outstanding requests, each with its queue pair or shared receive queue.
    pub(crate) fn all_outstanding(&self) -> impl Iterator<Item = (ObjectId, &Work)> {
        self.works.iter().flatten().flat_map(|(queue, works)| works.iter().map(|work| (*queue, work)))
    }

    pub(crate) fn sends(&self) -> impl Iterator<Item = (ObjectId, &VecDeque<Work>)> {
        self.works[Side::Send as usize].iter().filter(|(_, works)| !works.is_empty()).map(|(qp, works)| (*qp, works))
    }

    /// Returns the queue that holds the requests of one side: the queue pair, or its shared receive
    /// queue.
    pub(crate) fn queue_of(&self, qp: ObjectId, side: Side) -> ObjectId {
        let srq = self.qp(qp).and_then(|pair| pair.srq);
        srq.filter(|_| side == Side::Recv).unwrap_or(qp)
    }

    pub(crate) fn live_object(&self, id: ObjectId) -> Option<&LiveObject> {
        self.objects.get(&id)
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = (ObjectId, &LiveObject)> {
        self.objects.iter().map(|(id, known)| (*id, known))
    }

    /// Returns the destroyed objects, latest first.
    pub(crate) fn destroyed(&self) -> impl Iterator<Item = &DestroyedObject> {
        self.destroyed.iter().rev()
    }

    pub(crate) fn qp(&self, id: ObjectId) -> Option<&QpInfo> {
        match &self.objects.get(&id)?.object {
            Object::Qp(pair) => Some(pair),
            _ => None,
        }
    }

    pub(crate) fn attributes(&self, qp: ObjectId) -> Option<&Attributes> {
        self.attributes.get(&qp)
    }

    /// Returns true if the program moved the queue pair to ERR.
    pub(crate) fn has_set_error(&self, qp: ObjectId) -> bool {
        self.attributes(qp).is_some_and(|attributes| attributes.state == QpState::Err)
    }

    pub(crate) fn all_attributes(&self) -> impl Iterator<Item = (ObjectId, &Attributes)> {
        self.attributes.iter().map(|(qp, attributes)| (*qp, attributes))
    }

    pub(crate) fn qp_of(&self, cq: ObjectId, qpn: Qpn) -> Option<ObjectId> {
        let Object::Cq { context, .. } = self.objects.get(&cq)?.object else { return None };
        self.numbers.get(&(context, qpn)).copied()
    }

    pub(crate) fn regions(&self) -> impl Iterator<Item = (ObjectId, &MrInfo, &Stack)> {
        self.objects.iter().filter_map(|(id, known)| match &known.object {
            Object::Mr(memory) => Some((*id, memory, &known.created)),
            _ => None,
        })
    }

    /// Returns the kind of an object and the numbers by which the program knows it.
    pub(crate) fn name(&self, id: ObjectId) -> String {
        self.objects.get(&id).map_or_else(|| "a destroyed object".to_owned(), |known| describe(&known.object))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    /// Valid are the fields that [`Attributes::modify`] copies, if their bit is in `set`.
    pub(crate) values: QpAttr,
    pub(crate) set: AttrMask,
    /// The state set by the program; failures of the card do not change it.
    pub(crate) state: QpState,
    /// The calls that set the current values, oldest first.
    calls: Vec<(AttrMask, Stack)>,
}

impl Attributes {
    pub(crate) fn has(&self, mask: AttrMask) -> bool {
        self.set.contains(mask)
    }

    pub(crate) fn call(&self, attribute: AttrMask) -> Stack {
        let call = self.calls.iter().find(|(mask, _)| mask.contains(attribute));
        call.map_or_else(Stack::unknown, |(_, stack)| stack.clone())
    }

    /// Applies a modify call; RESET clears everything first.
    pub(crate) fn modify(&mut self, attr: &QpAttr, mask: AttrMask, stack: &Stack) {
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            *self = Self::default();
        }
        let values = &mut self.values;
        macro_rules! copy {
            ($($bit:ident => $field:ident),* $(,)?) => {
                $(if mask.contains(AttrMask::$bit) { values.$field = attr.$field; })*
            };
        }
        copy! {
            ACCESS_FLAGS => access,
            QKEY => qkey,
            AV => av,
            PATH_MTU => path_mtu,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RQ_PSN => rq_psn,
            SQ_PSN => sq_psn,
            MAX_QP_RD_ATOMIC => max_rd_atomic,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            DEST_QPN => dest_qpn,
        }
        if mask.contains(AttrMask::STATE) {
            self.state = attr.state;
        }
        self.set |= mask;
        for (earlier, _) in &mut self.calls {
            earlier.remove(mask);
        }
        self.calls.retain(|(earlier, _)| !earlier.is_empty());
        self.calls.push((mask, stack.clone()));
    }
}

impl Work {
    fn send(request: &SendRequest<'_>, sq_sig_all: bool, posted: Stack) -> Self {
        let (sges, len) = match request.data {
            SendData::Sges(sges) => (sges.to_vec(), length(sges)),
            SendData::Inline(bytes) => (Vec::new(), bytes.len() as u64),
        };
        let signaled = sq_sig_all || request.flags.contains(SendFlags::SIGNALED);
        let (wr_id, op) = (request.wr_id, Some(request.op));
        Self { wr_id, op, signaled, sges, len, posted, serial: 0, completed: false }
    }

    pub(crate) fn operation(&self) -> &'static str {
        self.op.as_ref().map_or("receive", operation)
    }

    /// Returns true if the card writes to the list: a receive, a READ, an atomic.
    pub(crate) fn is_written(&self) -> bool {
        use SendOp::{CompareSwap, FetchAdd, Read};
        matches!(self.op, None | Some(Read { .. } | CompareSwap { .. } | FetchAdd { .. }))
    }
}

pub(crate) const fn operation(op: &SendOp) -> &'static str {
    match op {
        SendOp::Send | SendOp::SendImm(_) => "SEND",
        SendOp::SendInvalidate(_) => "SEND with Invalidate",
        SendOp::Write { .. } => "RDMA WRITE",
        SendOp::WriteImm { .. } => "RDMA WRITE with immediate data",
        SendOp::Read { .. } => "RDMA READ",
        SendOp::CompareSwap { .. } => "atomic compare and swap",
        SendOp::FetchAdd { .. } => "atomic fetch and add",
        SendOp::AtomicWrite { .. } => "ATOMIC WRITE",
        SendOp::Flush { .. } => "FLUSH",
        SendOp::LocalInvalidate(_) => "local invalidation",
        SendOp::BindWindow { .. } => "memory window bind",
    }
}

pub(crate) fn describe(object: &Object) -> String {
    match object {
        Object::Context => "device context".to_owned(),
        Object::Pd { .. } => "protection domain".to_owned(),
        Object::Channel { .. } => "completion channel".to_owned(),
        Object::Cq { capacity, .. } => format!("completion queue of {capacity} entries"),
        Object::Srq { max_wr, .. } => format!("shared receive queue of {max_wr} requests"),
        Object::Qp(QpInfo { qpn, service, .. }) => format!("queue pair {:#08x} ({})", qpn.get(), service.name()),
        Object::Mr(MrInfo { lkey, rkey, addr, length, .. }) => {
            let keys = if lkey == rkey { format!("key {lkey:#x}") } else { format!("lkey {lkey:#x}, rkey {rkey:#x}") };
            format!("region of {length} bytes at {addr:#x} ({keys})")
        }
        Object::Mw { .. } => "memory window".to_owned(),
        Object::Ah { .. } => "address handle".to_owned(),
    }
}

pub(crate) fn length(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

pub(crate) const fn side_of(cqe: &Cqe) -> Side {
    if cqe.opcode as u32 >= 128 { Side::Recv } else { Side::Send }
}
