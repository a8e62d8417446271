//! The engine's view of a queue pair: receive packets and frames, run timers, transmit.

use super::core::{Credits, Inner, QpCore, sender_of};
use super::host::QpHost;
use roxe_base::clock;
use roxe_base::lock::Lockable;
use roxe_check::{Event, emit};
use roxe_engine::flow_control::Grant;
use roxe_engine::queue_pair::{QpStats, QueuePair, VisitOutcome};
use roxe_engine::run::{Joined, Run, RxTools, header_of};
use roxe_engine::tx::TxCache;
use roxe_memory::guard::SharedBytes;
use roxe_net::link::RxMeta;
use roxe_transport::cx::RxPayload;
use roxe_transport::qp::{AttrMask, EarlyPackets, FrameNote, QpAttr, QpEvents, QpState, QpStatus, Service};
use roxe_transport::time::Instant;
use roxe_wire::{NetHeader, Packet, PacketReader, Qpn};

impl QueuePair for QpCore {
    fn qpn(&self) -> Qpn {
        self.resources.qpn
    }

    fn ordinal(&self) -> u32 {
        self.resources.ordinal
    }

    fn service(&self) -> Service {
        self.resources.service
    }

    fn status(&self) -> (QpStatus, QpStats) {
        let inner = self.inner.lock();
        (inner.machine.status(), QpStats { sent_bytes: inner.tx.sent_bytes(), ..inner.state.stats })
    }

    fn pd_and_srq(&self) -> (u32, Option<u32>) {
        (self.resources.pd_id.number(), self.resources.srq.as_ref().map(|srq| srq.listed()))
    }

    fn is_work_queue(&self) -> bool {
        self.is_work_queue
    }

    fn receive(&self, run: Run<'_>, tools: &mut RxTools<'_>, now: Instant) -> VisitOutcome {
        let serves_at_once = tools.serves_at_once;
        let taken = self.receive_visit((run.bytes.len(), None), serves_at_once, now, |machine, host, early| {
            let mut credits = Credits::default();
            let mut net = header_of(run.meta, run.index);
            let mut reader = PacketReader::default();
            if !run.meta.by_ring {
                tools.ident.begin_run(&net);
            }
            for (index, bytes) in run.packets() {
                net.ident = index;
                // clause: ICRC-WRONG
                if !run.meta.by_ring && !tools.ident.verify(bytes, index) {
                    self.engine().counters().icrc_errors.add(1);
                    continue;
                }
                let Ok(packet) = reader.parse(bytes) else {
                    self.engine().counters().malformed.add(1);
                    continue;
                };
                let sender = sender_of(machine, packet).filter(|_| tools.owes_credit(net.src, net.dst));
                let creditor = sender.filter(|_| !run.meta.by_ring);
                let may_have_overtaken = || sender.is_some() || tools.may_overtake(net.src);
                if !tools.no_receives && early.keep(machine, host, (&net, packet), creditor, may_have_overtaken) {
                    self.note_early(machine, host, (&net, packet));
                    continue;
                }
                let result = match tools.no_receives {
                    true => machine.handle_packet_without_receive(host, &net, packet),
                    false => machine.handle_packet(host, &net, packet),
                };
                if let Err(reason) = result {
                    let history = Some(&mut host.state.history);
                    self.count_dropped(reason, machine, history, (&net, &packet.header, packet.payload.len()));
                }
                credits.add(&self.resources, creditor, net.dst, packet);
            }
            credits.return_all(&self.resources);
            true
        });
        let Some((outcome, delayed_until)) = taken else {
            self.engine().counters().unknown_qp.add(run.count());
            return VisitOutcome::default();
        };
        tools.delayed_until = delayed_until;
        outcome
    }

    fn receive_joined(&self, meta: &RxMeta, packets: &Joined<'_>, now: Instant) -> Option<VisitOutcome> {
        let payload = RxPayload::Shared { at: 0, len: packets.payload.len() };
        let taken = self.receive_visit((packets.bytes, Some(packets.payload)), false, now, |machine, host, _| {
            machine.handle_joined(host, &header_of(meta, 0), &packets.first, packets.len, payload)
        });
        taken.map(|(outcome, _)| outcome)
    }

    fn takes_shared_payload(&self) -> bool {
        let matches_tags = self.resources.srq.as_ref().is_some_and(|srq| srq.matches_tags());
        self.resources.service == Service::Rc && !matches_tags
    }

    fn receive_shared(
        &self,
        meta: &RxMeta,
        (copies, head): (&[u8], usize),
        shared: SharedBytes<'_>,
        now: Instant,
    ) -> VisitOutcome {
        let taken = self.receive_visit((meta.len, Some(shared)), false, now, |machine, host, _| {
            let (net, mut reader) = (header_of(meta, 0), PacketReader::default());
            for (index, bytes) in copies.chunks(meta.segment).enumerate() {
                let Ok(packet) = reader.parse(bytes) else {
                    self.engine().counters().malformed.add(1);
                    continue;
                };
                let (len, before) = (packet.payload.len(), packet.header.padded_len(0));
                let payload = if before + len <= head {
                    RxPayload::Bytes(packet.payload)
                } else {
                    RxPayload::Shared { at: index * meta.segment + before, len }
                };
                let net = NetHeader { ident: index as u16, ..net };
                let result = machine.handle_with_payload(host, &net, &packet.header, payload);
                if let Err(reason) = result {
                    let history = Some(&mut host.state.history);
                    self.count_dropped(reason, machine, history, (&net, &packet.header, len));
                }
            }
            true
        });
        taken.unwrap_or_default().0
    }

    fn receive_frame(&self, frame: &[u8], note: FrameNote, now: Instant) -> VisitOutcome {
        let taken = self.receive_visit((frame.len(), None), false, now, |machine, host, _| {
            if let Err(reason) = machine.handle_frame(host, frame, note) {
                emit(|| Event::Dropped { qp: self.resources.id, reason, packet: None });
                self.engine().counters().count_drop(reason);
            }
            true
        });
        taken.unwrap_or_default().0
    }

    fn is_crowded(&self) -> bool {
        self.inner.lock().early.is_half_full()
    }

    fn return_credit(&self, packet: &Packet<'_>, net: &NetHeader, tools: &RxTools<'_>) {
        let sender = sender_of(&self.inner.lock().machine, packet);
        let creditor = sender.filter(|_| tools.owes_credit(net.src, net.dst));
        let mut credits = Credits::default();
        credits.add(&self.resources, creditor, net.dst, packet);
        credits.return_all(&self.resources);
    }

    fn serve(&self, now: Instant) {
        self.end_visit(self.inner.lock(), VisitOutcome::default(), now);
    }

    fn serve_or_delay_ack(&self, outcome: VisitOutcome, now: Instant) -> Option<Instant> {
        let (served, until) = self.serve_locked(&mut self.inner.lock(), now);
        self.announce(outcome | served);
        until
    }

    fn settle_memory(&self) {
        if let Some(weak) = &mut self.inner.lock().state.weak {
            weak.settle_all();
        }
    }

    fn send_delayed_ack(&self, now: Instant) {
        let mut inner = self.inner.lock();
        if inner.machine.has_work() {
            inner.delayed_ack.on_expiry();
            self.end_visit(inner, VisitOutcome::default(), now);
        }
    }

    fn serve_waiter(&self, grant: Option<Grant>, now: Instant) {
        let mut inner = self.inner.lock();
        // A coalescing queue pair has no turn. One that waited for room reserves again, and must
        // not be refused the room granted to it.
        if !std::mem::take(&mut inner.coalesces) || grant.is_some() {
            (inner.state.waits_for, inner.state.has_turn) = (None, true);
        }
        inner.tx.stop_waiting();
        drop(grant);
        self.end_visit(inner, VisitOutcome::default(), now);
    }

    fn on_timer(&self, deadline: Instant, now: Instant) {
        let mut inner = self.inner.lock();
        if inner.registered != Some(deadline) {
            return;
        }
        inner.registered = None;
        if inner.state.stalls_at.is_some_and(|at| at <= now) && !self.resources.service.is_reliable() {
            inner.tx.note_room_timeout(self.engine());
        }
        inner.state.on_timer(self.engine(), self.resources.service, now);
        let retry_early = inner.early.deadline().is_some_and(|at| at <= now);
        let mut outcome = if retry_early { self.deliver_early(&mut inner, now) } else { VisitOutcome::default() };
        let Inner { machine, state, tx, .. } = &mut *inner;
        if machine.poll_timeout().is_some_and(|at| at <= deadline) {
            if tx.link_moved(self.engine()) {
                machine.on_link_moved(now);
            }
            let mut host = QpHost::new(&self.resources, state, now);
            machine.handle_timeout(&mut host);
            outcome |= host.outcome;
        }
        self.end_visit(inner, outcome, now);
        if retry_early {
            self.engine().send_credits(now);
        }
    }

    #[inline]
    fn announce(&self, outcome: VisitOutcome) {
        if outcome.contains(VisitOutcome::NOTIFY_SEND_CQ) {
            self.resources.send_cq.notify();
        }
        if outcome.contains(VisitOutcome::NOTIFY_RECV_CQ) {
            self.resources.recv_cq.notify();
        }
        if outcome.intersects(VisitOutcome::EVENTS | VisitOutcome::FAILED) {
            self.raise(QpEvents::from_bits_truncate(outcome.bits() as u8));
            if outcome.contains(VisitOutcome::FAILED) {
                self.explain_failure();
            }
        }
    }

    fn cut_off(&self) -> bool {
        let mut inner = self.inner.lock();
        let Inner { machine, state, early, tx, frames, is_cut_off, fast_path, .. } = &mut *inner;
        let is_first = !std::mem::replace(is_cut_off, true);
        if is_first {
            *fast_path = false;
            *tx = TxCache::default();
            *frames = None;
            self.engine().counters().unknown_qp.add(early.len() as u64);
            *early = EarlyPackets::default();
            // RESET is allowed from every state; it releases reserved room.
            let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            let _ = machine.modify(&mut QpHost::new(&self.resources, state, clock::now()), &attr, AttrMask::STATE);
        }
        is_first
    }

    fn lockable(&self) -> &dyn Lockable {
        &self.inner
    }
}

#[cfg(test)]
mod tests;
