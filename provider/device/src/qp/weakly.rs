//! The weakest legal card: what it does instead, where payload comes in and packets go out.
//!
//! Each function is called only if something watches or changes what the card does, and stands out
//! of line. Touches memory by its keys.

use super::core::{Inner, QpCore};
use super::host::QpHost;
use super::weak::Weak;
use roxe_base::lock::{Mutex, rank};
use roxe_base::weakest::{Weakness, has};
use roxe_base::{clock, instruments};
use roxe_check::{is_checking, is_on};
use roxe_engine::queue_pair::{Deadline, VisitOutcome};
use roxe_memory::guard::{self, own_cells};
use roxe_net::raw::FrameSender;
use roxe_transport::cx::{AtomicOp, MemError, RxPayload, Side};
use roxe_transport::qp::EarlyPackets;
use roxe_transport::time::Instant;
use roxe_transport::wr::{Cqe, Sge};
use roxe_wire::RKey;
use std::ops::Range;
use std::sync::{Arc, Weak as WeakRef};

/// The atomics of the card, which are atomic among themselves.
static ATOMICS: Mutex<rank::CardAtomics, ()> = Mutex::new(());

/// Between the halves of an atomic, for the processors to come in between.
const PAUSE: u32 = 200;

impl QpHost<'_> {
    /// As [`QpHost::scatter`](roxe_transport::cx::Memory::scatter) if something watches or changes
    /// that; `None`: it is to be done as always.
    #[cold]
    #[inline(never)]
    pub(super) fn scatter_watched(
        &mut self,
        side: Side,
        sges: &[Sge],
        offset: u32,
        data: RxPayload<'_>,
    ) -> Option<Result<(), MemError>> {
        if is_checking() {
            self.note_scatter(side, sges, offset);
        }
        let shared = self.shared_domain(side);
        let find = |this: &mut Self| {
            this.look(|regions, own| regions.locate_list(shared.unwrap_or(own.pd), sges, offset, data.len()))
        };
        self.place_weakly(side, data, find)
    }

    /// The same for what a peer writes.
    #[cold]
    #[inline(never)]
    pub(super) fn write_watched(&mut self, rkey: RKey, va: u64, data: RxPayload<'_>) -> Option<Result<(), MemError>> {
        let len = data.len();
        if is_checking() {
            self.note_write(rkey, va, len as u64);
        }
        let find = |this: &mut Self| {
            let place = this.look(|regions, reach| regions.locate_write(reach, rkey, va, len as u64))?;
            Ok(vec![(place, 0..len)])
        };
        self.place_weakly(Side::Recv, data, find)
    }

    /// Takes payload in if all of it has a place; otherwise it goes the usual way, which says why.
    fn place_weakly(
        &mut self,
        side: Side,
        data: RxPayload<'_>,
        find: impl FnOnce(&mut Self) -> Result<Vec<(u64, Range<usize>)>, MemError>,
    ) -> Option<Result<(), MemError>> {
        if self.state.weak.is_none() || !has(Weakness::PLACEMENT) || data.is_empty() {
            return None;
        }
        let found = self.bytes_of(data).and_then(|bytes| Some((bytes, find(self).ok()?)));
        let found = found.filter(|(_, places)| places.iter().all(is_there));
        let (engine, now) = (self.qp.engine(), self.now);
        let weak = self.state.weak.as_mut()?;
        let Some((bytes, places)) = found else {
            // What goes the usual way comes behind everything else.
            weak.placement.settle_all();
            return None;
        };
        let parts: Vec<_> = places.into_iter().filter_map(|(addr, part)| Some((addr, bytes.get(part)?))).collect();
        weak.placement.take_in(side, &parts);
        if !weak.placement.is_settled(side) {
            weak.look_again(engine, now);
        }
        Some(Ok(()))
    }

    /// The bytes, which nobody else changes.
    fn bytes_of(&self, data: RxPayload<'_>) -> Option<Vec<u8>> {
        match data {
            RxPayload::Bytes(bytes) => Some(bytes.to_vec()),
            RxPayload::Shared { at, len } => {
                let mut bytes = vec![0; len];
                self.arrived(at, len).ok()?.copy_to(&mut bytes).ok()?;
                Some(bytes)
            }
        }
    }

    /// An atomic of a peer: everything before it is in memory first (IBA §9.5), and it is read and
    /// written back in steps, which exclude atomics of the card only.
    #[cold]
    #[inline(never)]
    pub(super) fn atomic_watched(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Option<Result<u64, MemError>> {
        self.settle_weakly(Side::Recv);
        let in_steps = has(Weakness::ATOMICS);
        if !in_steps && !is_checking() {
            return None;
        }
        let pause = || (0..PAUSE).for_each(|_| std::hint::spin_loop());
        let done = self.look(|regions, reach| {
            if !in_steps {
                return regions.atomic_remote(reach, rkey, va, op);
            }
            let _alone = ATOMICS.lock();
            regions.atomic_in_steps(reach, rkey, va, op, pause)
        });
        if let (Ok(found), true) = (done, is_checking()) {
            self.note_atomic(rkey, va, op, found);
        }
        Some(done)
    }

    /// A peer changes 8 bytes behind everything that it has written before.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_watched(&mut self, rkey: RKey, va: u64) {
        if is_checking() {
            self.note_write(rkey, va, 8);
        }
        self.settle_weakly(Side::Recv);
    }

    /// Everything of `side` is in memory from now on.
    pub(super) fn settle_weakly(&mut self, side: Side) {
        if let Some(weak) = &mut self.state.weak {
            weak.placement.settle(side);
        }
    }

    /// A request ends: what it brought is in memory, and on the receiving side what came before it.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_watched(&mut self, side: Side, cqe: Cqe) {
        if is_on() {
            self.note_completion(side, cqe);
        }
        self.settle_weakly(side);
        if let Some(weak) = self.state.weak.as_mut().filter(|_| side == Side::Send) {
            weak.slots.completed(&cqe);
        }
    }
}

/// Whether memory is there, so that what is placed later does not fail.
fn is_there((addr, part): &(u64, Range<usize>)) -> bool {
    let mut bytes = vec![0; part.len()];
    guard::read(*addr, own_cells(&mut bytes)).is_ok()
}

impl QpCore {
    /// What is to be known of it once it exists: what raw packets leave by, and whether it is one
    /// of the weakest legal card.
    pub(super) fn begin(self: &Arc<Self>, frames: Option<Arc<FrameSender>>, max_send_wr: u32) {
        let mut inner = self.inner.lock();
        inner.frames = frames;
        if instruments::any() && has(Weakness::all()) {
            let me: WeakRef<dyn Deadline> = Arc::downgrade(self) as _;
            inner.state.weak = Some(Box::new(Weak::new(me, self.ordinal, max_send_wr)));
            inner.is_usual = false;
            if has(Weakness::RECEIVES) {
                inner.early = EarlyPackets::none();
            }
        }
    }

    /// As `transmit` where that is not the usual one: an acknowledgement may wait, and nothing is
    /// acknowledged or answered that is not in memory.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_weakly(&self, inner: &mut Inner, now: Instant) -> VisitOutcome {
        let Inner { machine, state, is_cut_off: false, .. } = inner else { return VisitOutcome::default() };
        let Some(weak) = state.weak.as_mut().filter(|_| machine.has_work()) else { return VisitOutcome::default() };
        // What a READ has brought may be sent now.
        weak.placement.settle(Side::Send);
        if self.resources.service.is_reliable() {
            if machine.owes_only_ack() && weak.holds_ack() {
                weak.look_again(self.engine(), now);
                return VisitOutcome::default();
            }
            weak.placement.settle(Side::Recv);
            weak.acknowledged();
            machine.set_acks_last(weak.puts_acks_last());
        }
        inner.is_usual = true;
        let report = self.transmit(inner, now);
        inner.is_usual = false;
        report
    }
}

impl Deadline for QpCore {
    /// What waits on the weakest legal card has waited.
    fn on_deadline(&self, _: Instant) {
        let (mut inner, now) = (self.inner.lock(), clock::now());
        if let Inner { state, is_cut_off: false, .. } = &mut *inner
            && let Some(weak) = &mut state.weak
        {
            weak.on_deadline(self.engine(), now);
            self.end_visit(inner, VisitOutcome::default(), now);
        }
    }
}
