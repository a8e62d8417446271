//! The judge of a scenario: every completion, and memory in the end.

use super::slots::{GUARD, range};
use super::*;
use crate::qp::GRH_LEN;

impl<C: Choices> Scenario<C> {
    pub(super) fn reap(&mut self, who: usize) -> Result<(), Broken> {
        while let Some(cqe) = self.world.ends[who].host.sends.pop_front() {
            self.check_send(who, &cqe)?;
        }
        while let Some(cqe) = self.world.ends[who].host.recvs.pop_front() {
            self.check_recv(who, 0, &cqe)?;
        }
        for queue in 0..self.world.ends[who].host.xrc.len() {
            while let Some(cqe) = self.world.ends[who].host.xrc[queue].done.pop_front() {
                self.check_recv(who, queue, &cqe)?;
            }
        }
        Ok(())
    }

    fn check_send(&mut self, who: usize, cqe: &Cqe) -> Result<(), Broken> {
        let (me, at) = (Some(who), self.world.now());
        let (may_fail, qpn) = (self.sides[who].fragile, self.world.ends[who].endpoints.here.qpn);
        ensure!(cqe.status == WcStatus::Success || may_fail, Completions, me, at, "failed: {cqe:?}");
        ensure!(cqe.qpn == qpn, Completions, me, at, "of another queue pair: {cqe:?}");
        loop {
            let posted = self.sides[who].sends.pop_front();
            ensure!(posted.is_some(), Completions, me, at, "of no outstanding send: {cqe:?}");
            let Some(posted) = posted else { return Ok(()) };
            let this = posted.wr_id == cqe.wr_id;
            ensure!(this || !posted.signaled, Completions, me, at, "{cqe:?} came before {posted:?}");
            if this && cqe.status != WcStatus::Success {
                self.forget(who, &posted.expect);
                return Ok(());
            }
            ensure!(!this || posted.signaled, Completions, me, at, "unsignaled success reported: {cqe:?}");
            ensure!(!this || posted.is_told_by(cqe), Completions, me, at, "{cqe:?} for {posted:?}");
            self.sides[who].ok_sends += 1;
            self.check_landed(who, &posted)?;
            if posted.opcode == WcOpcode::BindWindow {
                self.sides[who].open = Some(RKey(WINDOW));
            }
            if this {
                return Ok(());
            }
        }
    }

    fn forget(&mut self, who: usize, expect: &Expect) {
        if let Expect::Bytes { slot, .. } = expect {
            self.sides[who].free.push(slot.index);
        }
    }

    fn check_landed(&mut self, who: usize, posted: &PostedSend) -> Result<(), Broken> {
        let Expect::Bytes { slot, data, modelled } = &posted.expect else { return Ok(()) };
        // When things go wrong the order at the peer is not modelled.
        if !(*modelled && self.sides[who].fragile) {
            let right = self.slot(who, *slot, slot.len) == &data[..];
            ensure!(right, Bytes, Some(who), self.world.now(), "wrong bytes landed for {}", posted.wr_id);
        }
        self.check_guard(who, *slot, slot.len)?;
        self.forget(who, &posted.expect);
        Ok(())
    }

    /// The first `len` bytes of a slot.
    fn slot(&self, who: usize, slot: Slot, len: u32) -> &[u8] {
        let sink = self.sides[who].sink;
        range(self.world.ends[who].host.memory.bytes(sink), slot.index * slot_size(self.work.max_len), len)
    }

    /// Bytes behind the first `len` of a slot are as they were.
    fn check_guard(&self, who: usize, slot: Slot, len: u32) -> Result<(), Broken> {
        let all = self.slot(who, slot, slot.len + GUARD);
        let kept = all[len as usize..].iter().all(|&b| b == UNTOUCHED);
        ensure!(kept, Bytes, Some(who), self.world.now(), "bytes beyond the message were written");
        Ok(())
    }

    /// A receive of our queue, or of the shared one with this index, is complete.
    fn check_recv(&mut self, who: usize, queue: usize, cqe: &Cqe) -> Result<(), Broken> {
        let (me, at) = (Some(who), self.world.now());
        let recvs = &mut self.sides[who].recvs;
        let posted = recvs.iter().position(|recv| recv.queue == queue).and_then(|at| recvs.remove(at));
        ensure!(posted.is_some(), Completions, me, at, "of no outstanding receive: {cqe:?}");
        let Some(posted) = posted else { return Ok(()) };
        ensure!(posted.wr_id == cqe.wr_id, Completions, me, at, "{cqe:?} came before {posted:?}");
        let may_fail = self.sides[who].fragile;
        ensure!(cqe.status == WcStatus::Success || may_fail, Completions, me, at, "failed: {cqe:?}");
        if cqe.status == WcStatus::Success {
            self.sides[who].ok_recvs += 1;
            self.check_message(who, queue, cqe, posted.slot)?;
        }
        self.sides[who].free.push(posted.slot.index);
        Ok(())
    }

    fn check_message(&mut self, who: usize, queue: usize, cqe: &Cqe, slot: Slot) -> Result<(), Broken> {
        let (me, at, service) = (Some(who), self.world.now(), self.world.ends[who].setup.service);
        let sent = &self.sides[who ^ 1].messages;
        let found = if self.keeps_order(who) {
            let next = sent.iter().position(|message| message.queue == queue);
            next.filter(|&next| self.is_message(who, cqe, slot, &sent[next]))
        } else {
            sent.iter().position(|message| self.is_message(who, cqe, slot, message))
        };
        ensure!(found.is_some(), Bytes, me, at, "no message that was sent, or not the next one: {cqe:?}");
        if let Some(found) = found.filter(|_| self.loses_nothing(who)) {
            self.sides[who ^ 1].messages.remove(found);
        }
        let landed = match (cqe.opcode, service) {
            // Pieces of a longer message that was lost may lie behind this one: UC reuses the
            // receive.
            (_, Service::Uc) => slot.len,
            (WcOpcode::Recv, _) => cqe.byte_len,
            _ => 0,
        };
        self.check_guard(who, slot, landed)
    }

    /// Whether every message that is sent to this end arrives: it is repeated until it does, or
    /// nothing can lose it.
    pub(super) fn loses_nothing(&self, who: usize) -> bool {
        let setup = &self.world.ends[who].setup;
        setup.service.is_reliable() || setup.early_wait && !self.sides[who].fragile
    }

    /// Whether messages arrive at this end in the order in which they were sent.
    fn keeps_order(&self, who: usize) -> bool {
        self.loses_nothing(who) && self.world.ends[who].setup.service != Service::Ud
    }

    /// Whether a completed receive is exactly `message` of the peer.
    fn is_message(&self, who: usize, cqe: &Cqe, slot: Slot, message: &Message) -> bool {
        let grh = if self.world.ends[who].setup.service == Service::Ud { GRH_LEN } else { 0 };
        let opcode = if message.write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let extra = message.imm.map_or(WcExtra::None, WcExtra::Imm);
        if (cqe.opcode, cqe.byte_len, cqe.extra) != (opcode, message.len + grh, extra) {
            return false;
        }
        let source = self.world.ends[who ^ 1].host.memory.bytes(self.sides[who ^ 1].source);
        message.write
            || self.slot(who, slot, grh + message.len)[grh as usize..] == *range(source, message.source, message.len)
    }

    /// Memory that the peer writes ends as the model says (RC, XRC), or with each write absent or
    /// right (UC).
    pub(super) fn check_shared(&self, who: usize) -> Result<(), Broken> {
        let (side, peer, at) = (&self.sides[who], &self.sides[who ^ 1], self.world.now());
        let lost = if self.loses_nothing(who) && !side.fragile { peer.messages.len() } else { 0 };
        ensure!(lost == 0, Bytes, Some(who), at, "{lost} messages were lost: {:?}", peer.messages.front());
        let actual = self.world.ends[who].host.memory.bytes(side.shared);
        if self.world.ends[who].setup.service.is_reliable() {
            let right = side.fragile || actual == side.model;
            ensure!(right, Bytes, Some(who), at, "remote writes and atomics did not run exactly once and in order");
            let flushed = self.world.ends[who].host.memory.flushes;
            let right = side.fragile || flushed == peer.flushes;
            ensure!(right, Bytes, Some(who), at, "{flushed} FLUSHes were done, {} posted", peer.flushes);
            return Ok(());
        }
        let source = self.world.ends[who ^ 1].host.memory.bytes(peer.source);
        for write in &peer.uc_writes {
            let mut pairs = range(actual, write.target, write.len).iter().zip(range(source, write.source, write.len));
            let right = pairs.all(|(&got, &sent)| got == sent || got == 0);
            ensure!(right, Bytes, Some(who), at, "wrong bytes of {write:?}");
        }
        Ok(())
    }
}
