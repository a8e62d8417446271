//! The judge of a scenario: every completion, and memory in the end.

use super::*;

impl<C: Choices> Scenario<C> {
    pub(super) fn reap(&mut self, who: Peer) {
        while let Some(cqe) = self.pair.send_done(who) {
            self.check_send(who, &cqe);
        }
        while let Some(cqe) = self.pair.recv_done(who) {
            self.check_recv(who, &cqe);
        }
    }

    fn check_send(&mut self, who: Peer, cqe: &Cqe) {
        assert!(cqe.status == WcStatus::Success || self.work.mishaps, "{who:?}: {cqe:?}");
        assert_eq!(cqe.qpn, qpn(who));
        loop {
            let posted = self.sides[who.index()].sends.pop_front();
            let posted = posted.unwrap_or_else(|| panic!("{who:?}: completion of no outstanding send: {cqe:?}"));
            let this = posted.wr_id == cqe.wr_id;
            assert!(this || !posted.signaled, "{who:?}: {cqe:?} came before {posted:?}");
            if this && cqe.status != WcStatus::Success {
                return self.forget(who, &posted.expect);
            }
            assert!(!this || posted.signaled, "{who:?}: unsignaled success reported: {cqe:?}");
            assert!(!this || posted.is_told_by(cqe), "{who:?}: {cqe:?} for {posted:?}");
            self.sides[who.index()].ok_sends += 1;
            self.check_landed(who, &posted);
            if this {
                return;
            }
        }
    }

    fn forget(&mut self, who: Peer, expect: &Expect) {
        if let Expect::Bytes { slot, .. } = expect {
            self.sides[who.index()].free.push(slot.index);
        }
    }

    fn check_landed(&mut self, who: Peer, posted: &PostedSend) {
        let Expect::Bytes { slot, data, modelled } = &posted.expect else { return };
        // With mishaps the order at the peer is not modelled.
        if !(*modelled && self.work.mishaps) {
            assert_eq!(self.slot(who, *slot, slot.len), &data[..], "{who:?}: {posted:?}");
        }
        self.check_guard(who, *slot, slot.len);
        self.forget(who, &posted.expect);
    }

    /// The first `len` bytes of a slot.
    fn slot(&self, who: Peer, slot: Slot, len: u32) -> &[u8] {
        let sink = self.sides[who.index()].sink;
        range(self.pair.ends[who.index()].host.memory.bytes(sink), slot.index * slot_size(&self.work), len)
    }

    /// Bytes behind the first `len` of a slot are as they were.
    fn check_guard(&self, who: Peer, slot: Slot, len: u32) {
        let all = self.slot(who, slot, slot.len + GUARD);
        assert!(all[len as usize..].iter().all(|&b| b == UNTOUCHED), "{who:?}: bytes beyond the message were written");
    }

    fn check_recv(&mut self, who: Peer, cqe: &Cqe) {
        let posted = self.sides[who.index()].recvs.pop_front();
        let posted = posted.unwrap_or_else(|| panic!("{who:?}: completion of no outstanding receive: {cqe:?}"));
        assert_eq!(posted.wr_id, cqe.wr_id, "{who:?}: receives complete in order");
        assert!(cqe.status == WcStatus::Success || self.work.mishaps, "{who:?}: {cqe:?}");
        if cqe.status == WcStatus::Success {
            self.sides[who.index()].ok_recvs += 1;
            self.check_message(who, cqe, posted.slot);
        }
        self.sides[who.index()].free.push(posted.slot.index);
    }

    fn check_message(&mut self, who: Peer, cqe: &Cqe, slot: Slot) {
        if self.pair.setup.service == Service::Rc {
            let message = self.sides[who.other().index()].messages.pop_front();
            let message = message.unwrap_or_else(|| panic!("{who:?}: a message nobody sent: {cqe:?}"));
            assert!(self.is_message(who, cqe, slot, &message), "{who:?}: {cqe:?} should be {message:?}");
        } else {
            let sent = &self.sides[who.other().index()].messages;
            let found = sent.iter().any(|message| self.is_message(who, cqe, slot, message));
            assert!(found, "{who:?}: a message nobody sent: {cqe:?}");
        }
        let landed = match (cqe.opcode, self.pair.setup.service) {
            // Pieces of a longer message that was lost may lie behind this one: UC reuses the receive.
            (_, Service::Uc) => slot.len,
            (WcOpcode::Recv, _) => cqe.byte_len,
            _ => 0,
        };
        self.check_guard(who, slot, landed);
    }

    /// Whether a completed receive is exactly `message` of the peer.
    fn is_message(&self, who: Peer, cqe: &Cqe, slot: Slot, message: &Message) -> bool {
        let grh = if self.pair.setup.service == Service::Ud { GRH_LEN } else { 0 };
        let opcode = if message.write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let extra = message.imm.map_or(WcExtra::None, WcExtra::Imm);
        if (cqe.opcode, cqe.byte_len, cqe.extra) != (opcode, message.len + grh, extra) {
            return false;
        }
        let source = self.pair.ends[who.other().index()].host.memory.bytes(self.sides[who.other().index()].source);
        message.write
            || self.slot(who, slot, grh + message.len)[grh as usize..] == *range(source, message.source, message.len)
    }

    /// Memory that the peer writes ends as the model says (RC), or with each write absent or right (UC).
    pub(super) fn check_shared(&self, who: Peer) {
        let side = &self.sides[who.index()];
        let actual = self.pair.ends[who.index()].host.memory.bytes(side.shared);
        if self.pair.setup.service == Service::Rc {
            assert!(actual == side.model, "{who:?}: remote writes and atomics did not run exactly once and in order");
            return;
        }
        let peer = &self.sides[who.other().index()];
        let source = self.pair.ends[who.other().index()].host.memory.bytes(peer.source);
        for write in &peer.uc_writes {
            let pairs = range(actual, write.target, write.len).iter().zip(range(source, write.source, write.len));
            assert!(pairs.clone().all(|(&got, &sent)| got == sent || got == 0), "{who:?}: wrong bytes of {write:?}");
        }
    }
}
