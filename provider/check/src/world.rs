//! What the program has: its objects, where each was made, what it set on its queue pairs, and the
//! requests that are outstanding.
//!
//! Kept up to date from the events; rules, which are [`Observer`]s, read it. Touches nothing.

use crate::event::{Event, Made, Memory, Pair};
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

/// Destroyed objects that are remembered.
const REMEMBERED: usize = 4096;

/// An object, and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) made: Made,
    pub(crate) created: Stack,
    /// A library keeps it for itself.
    pub(crate) of_library: bool,
}

/// An object that is gone.
#[derive(Clone, Debug)]
pub(crate) struct Gone {
    pub(crate) id: ObjectId,
    pub(crate) made: Made,
    pub(crate) created: Stack,
    pub(crate) destroyed: Stack,
}

/// A request whose completion the program has not polled, nor one behind it.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) wr_id: u64,
    /// What it asks for; `None`: it is a receive.
    pub(crate) op: Option<SendOp>,
    pub(crate) signaled: bool,
    /// Its list; empty if its data was inline.
    pub(crate) sges: Vec<Sge>,
    /// Bytes of its list or of its inline data.
    pub(crate) len: u64,
    pub(crate) posted: Stack,
    /// How many were posted before it.
    pub(crate) serial: u64,
    /// The card has written its completion.
    pub(crate) completed: bool,
}

/// A rule, or some that share what they remember: looks at events for one subject.
pub(crate) trait Observer: fmt::Debug + Send {
    /// Looks at `event`, which the program caused at `stack`. What the event adds is in `world`
    /// already, what it ends still is.
    fn look(&mut self, event: &Event<'_>, stack: &Stack, world: &World, reports: &mut Vec<Report>);
}

/// The objects of the program and its outstanding requests.
#[derive(Debug, Default)]
pub(crate) struct World {
    objects: IdMap<ObjectId, Known>,
    gone: VecDeque<Gone>,
    numbers: IdMap<(ObjectId, Qpn), ObjectId>,
    attributes: IdMap<ObjectId, Attributes>,
    /// Sends and receives by queue pair, and by shared receive queue.
    works: [IdMap<ObjectId, VecDeque<Work>>; 2],
    /// Requests that were posted so far.
    posted: u64,
}

impl World {
    /// Notes what an event adds, before the rules see it.
    pub(crate) fn begin(&mut self, event: &Event<'_>, stack: &Stack) {
        match *event {
            Event::Modified { qp, attr, mask } => self.attributes.entry(qp).or_default().modify(attr, mask, stack),
            Event::Created(id, made) => {
                self.objects.insert(id, Known { made, created: stack.clone(), of_library: false });
                if let Made::Qp(pair) = made {
                    self.numbers.insert((pair.context, pair.qpn), id);
                }
            }
            Event::Reregistered(id, memory) => {
                if let Some(known) = self.objects.get_mut(&id) {
                    (known.made, known.created) = (Made::Mr(memory), stack.clone());
                }
            }
            Event::MadeByLibrary(id) => {
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
                // The oldest request that a new completion can be of.
                if let Some(work) = works.find(|work| !work.completed && work.wr_id == cqe.wr_id) {
                    work.completed = true;
                }
            }
            _ => {}
        }
    }

    /// Forgets what an event ends, once the rules have seen it.
    pub(crate) fn end(&mut self, event: &Event<'_>, stack: &Stack) {
        match *event {
            Event::Destroyed(id) => {
                let Some(Known { made, created, .. }) = self.objects.remove(&id) else { return };
                if let Made::Qp(pair) = made {
                    self.numbers.remove(&(pair.context, pair.qpn));
                }
                self.works.iter_mut().for_each(|works| drop(works.remove(&id)));
                self.attributes.remove(&id);
                if self.gone.len() == REMEMBERED {
                    self.gone.pop_front();
                }
                self.gone.push_back(Gone { id, made, created, destroyed: stack.clone() });
            }
            Event::TakenBack { qp, count } => {
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

    /// The requests that a polled completion ends: a send and those before it, which are done too,
    /// or one receive.
    fn poll(&mut self, cq: ObjectId, cqe: &Cqe) {
        let Some(qp) = self.qp_of(cq, cqe.qpn) else { return };
        let side = side_of(cqe);
        let queue = self.queue_of(qp, side);
        let Some(works) = self.works[side as usize].get_mut(&queue) else { return };
        let failed = cqe.status != WcStatus::Success;
        let is_it = |work: &Work| work.wr_id == cqe.wr_id && (work.signaled || failed);
        let Some(at) = works.iter().position(is_it) else { return };
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

    /// How many requests were posted so far.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Requests of the queue whose completions nobody has polled, oldest first.
    pub(crate) fn outstanding(&self, side: Side, queue: ObjectId) -> impl DoubleEndedIterator<Item = &Work> {
        self.works[side as usize].get(&queue).into_iter().flatten()
    }

    /// How many requests [`World::outstanding`] has.
    pub(crate) fn depth(&self, side: Side, queue: ObjectId) -> usize {
        self.works[side as usize].get(&queue).map_or(0, VecDeque::len)
    }

    /// All outstanding requests, with the queue pair or shared receive queue of each.
    pub(crate) fn all_outstanding(&self) -> impl Iterator<Item = (ObjectId, &Work)> {
        self.works.iter().flatten().flat_map(|(queue, works)| works.iter().map(|work| (*queue, work)))
    }

    /// The outstanding sends of each queue pair that has some.
    pub(crate) fn sends(&self) -> impl Iterator<Item = (ObjectId, &VecDeque<Work>)> {
        self.works[Side::Send as usize].iter().filter(|(_, works)| !works.is_empty()).map(|(qp, works)| (*qp, works))
    }

    /// Where the requests of one side of a queue pair wait: in itself, or in its shared queue.
    pub(crate) fn queue_of(&self, qp: ObjectId, side: Side) -> ObjectId {
        let srq = self.qp(qp).and_then(|pair| pair.srq);
        srq.filter(|_| side == Side::Recv).unwrap_or(qp)
    }

    /// An object that is alive.
    pub(crate) fn object(&self, id: ObjectId) -> Option<&Known> {
        self.objects.get(&id)
    }

    /// All objects that are alive.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (ObjectId, &Known)> {
        self.objects.iter().map(|(id, known)| (*id, known))
    }

    /// Objects that are gone, the latest first.
    pub(crate) fn gone(&self) -> impl Iterator<Item = &Gone> {
        self.gone.iter().rev()
    }

    /// A queue pair that is alive.
    pub(crate) fn qp(&self, id: ObjectId) -> Option<&Pair> {
        match &self.objects.get(&id)?.made {
            Made::Qp(pair) => Some(pair),
            _ => None,
        }
    }

    /// What was set on a queue pair that is alive.
    pub(crate) fn attributes(&self, qp: ObjectId) -> Option<&Attributes> {
        self.attributes.get(&qp)
    }

    /// Whether the program has moved the queue pair to the error state.
    pub(crate) fn is_in_error(&self, qp: ObjectId) -> bool {
        self.attributes(qp).is_some_and(|attributes| attributes.state == QpState::Err)
    }

    /// What was set on all queue pairs.
    pub(crate) fn all_attributes(&self) -> impl Iterator<Item = (ObjectId, &Attributes)> {
        self.attributes.iter().map(|(qp, attributes)| (*qp, attributes))
    }

    /// The queue pair that a completion names.
    pub(crate) fn qp_of(&self, cq: ObjectId, qpn: Qpn) -> Option<ObjectId> {
        let Made::Cq { context, .. } = self.objects.get(&cq)?.made else { return None };
        self.numbers.get(&(context, qpn)).copied()
    }

    /// The regions that are alive.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (ObjectId, &Memory, &Stack)> {
        self.objects.iter().filter_map(|(id, known)| match &known.made {
            Made::Mr(memory) => Some((*id, memory, &known.created)),
            _ => None,
        })
    }

    /// What people call an object: its kind, and what the program knows it by.
    pub(crate) fn name(&self, id: ObjectId) -> String {
        self.objects.get(&id).map_or_else(|| "an object that is gone".to_owned(), |known| describe(&known.made))
    }
}

/// The attributes of one queue pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    /// Those that are not in `set` have no meaning.
    pub(crate) values: QpAttr,
    pub(crate) set: AttrMask,
    /// The state that the program moved it to; a failure of the card does not show here.
    pub(crate) state: QpState,
    /// The calls that set what there is, oldest first.
    calls: Vec<(AttrMask, Stack)>,
}

impl Attributes {
    /// Whether all of these are set.
    pub(crate) fn has(&self, mask: AttrMask) -> bool {
        self.set.contains(mask)
    }

    /// The call that set `attribute`.
    pub(crate) fn call(&self, attribute: AttrMask) -> Stack {
        let call = self.calls.iter().find(|(mask, _)| mask.contains(attribute));
        call.map_or_else(Stack::unknown, |(_, stack)| stack.clone())
    }

    /// The program set these; back in RESET it begins anew.
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

    /// What it is called.
    pub(crate) fn operation(&self) -> &'static str {
        self.op.as_ref().map_or("receive", operation)
    }

    /// Whether the card writes its list: a receive, a READ, an atomic.
    pub(crate) fn is_written(&self) -> bool {
        use SendOp::{CompareSwap, FetchAdd, Read};
        matches!(self.op, None | Some(Read { .. } | CompareSwap { .. } | FetchAdd { .. }))
    }
}

/// What an operation is called.
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

/// What people call an object.
pub(crate) fn describe(made: &Made) -> String {
    match made {
        Made::Context => "device context".to_owned(),
        Made::Pd { .. } => "protection domain".to_owned(),
        Made::Channel { .. } => "completion channel".to_owned(),
        Made::Cq { capacity, .. } => format!("completion queue of {capacity} entries"),
        Made::Srq { max_wr, .. } => format!("shared receive queue of {max_wr} requests"),
        Made::Qp(Pair { qpn, service, .. }) => format!("queue pair {:#08x} ({})", qpn.get(), service.name()),
        Made::Mr(Memory { lkey, rkey, addr, length, .. }) => {
            let keys = if lkey == rkey { format!("key {lkey:#x}") } else { format!("lkey {lkey:#x}, rkey {rkey:#x}") };
            format!("region of {length} bytes at {addr:#x} ({keys})")
        }
        Made::Mw { .. } => "memory window".to_owned(),
        Made::Ah { .. } => "address handle".to_owned(),
    }
}

pub(crate) fn length(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Of which queue a completion is.
pub(crate) const fn side_of(cqe: &Cqe) -> Side {
    if cqe.opcode as u32 >= 128 { Side::Recv } else { Side::Send }
}
