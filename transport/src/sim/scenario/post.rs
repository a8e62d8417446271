//! The work of a scenario: what is posted, where it lands, and what is expected of it.

use super::*;

impl<C: Choices> Scenario<C> {
    pub(super) fn post_recv(&mut self, who: Peer) -> bool {
        let side = &mut self.sides[who.index()];
        if side.recvs.len() >= self.pair.setup.caps.max_recv_wr as usize {
            return false;
        }
        let Some(index) = side.free.pop() else { return false };
        let short = self.work.mishaps && self.pair.choices.chance(30);
        let room = self.work.max_len + GRH_LEN;
        let slot = Slot { index, len: if short { self.pair.choices.below(room) } else { room } };
        let wr_id = side.fresh_id();
        side.recvs.push_back(PostedRecv { wr_id, slot });
        let (sges, count) = self.landing(who, slot);
        let posted = self.pair.post_recv(who, &RecvRequest { wr_id, sges: &sges[..count] });
        assert_eq!(posted, Ok(()), "there is room for a receive in {:?}", self.pair.end(who).qp.state());
        true
    }

    /// Marks a slot untouched and splits it into a random list.
    fn landing(&mut self, who: Peer, slot: Slot) -> ([Sge; SRQ_MAX_SGE], usize) {
        let size = slot_size(&self.work);
        let sink = self.sides[who.index()].sink;
        let start = (slot.index * size) as usize;
        let memory = &mut self.pair.end(who).host.memory;
        memory.bytes_mut(sink)[start..start + (slot.len + GUARD) as usize].fill(UNTOUCHED);
        split(&mut self.pair.choices, sink, slot.index * size, slot.len)
    }

    pub(super) fn post_send(&mut self, who: Peer) -> bool {
        let side = &self.sides[who.index()];
        if side.sends.len() >= self.pair.setup.caps.max_send_wr as usize || side.free.is_empty() {
            return false;
        }
        match self.pair.setup.service {
            Service::Rc => self.post_rc(who),
            Service::Uc => self.post_uc(who),
            Service::Ud => self.post_message(who, false),
        }
        self.sides[who.index()].posted += 1;
        true
    }

    fn post_rc(&mut self, who: Peer) {
        match self.pair.choices.below(10) {
            0..=3 => self.post_message(who, false),
            4 => self.post_message(who, true),
            5 | 6 => self.post_write(who),
            7 | 8 => self.post_read(who),
            _ => self.post_atomic(who),
        }
    }

    fn post_uc(&mut self, who: Peer) {
        match self.pair.choices.below(4) {
            0 => self.post_uc_write(who, false),
            1 => self.post_uc_write(who, true),
            _ => self.post_message(who, false),
        }
    }

    /// A SEND, or a WRITE with immediate into the peer's shared region; both consume a receive.
    fn post_message(&mut self, who: Peer, write: bool) {
        let mut len = self.length();
        if self.pair.setup.service == Service::Ud {
            len = len.min(self.pair.setup.path_mtu.bytes());
        }
        let source = self.pair.choices.below(self.work.source_len() - len);
        let imm =
            (write || self.pair.choices.chance(500)).then(|| ImmDt(self.pair.choices.below(u32::MAX).to_be_bytes()));
        let op = match (imm, write) {
            (Some(imm), true) => {
                let (remote_addr, rkey) = self.change_shared(who, source, len);
                SendOp::WriteImm { remote_addr, rkey, imm }
            }
            (Some(imm), false) => SendOp::SendImm(imm),
            (None, _) => SendOp::Send,
        };
        self.sides[who.index()].messages.push_back(Message { source, len, imm, write });
        self.post_from_source(who, op, source, len);
    }

    fn post_write(&mut self, who: Peer) {
        let len = self.length();
        let source = self.pair.choices.below(self.work.source_len() - len);
        let (remote_addr, rkey) = self.change_shared(who, source, len);
        self.post_from_source(who, SendOp::Write { remote_addr, rkey }, source, len);
    }

    /// Chooses where in the peer's shared region a write of RC lands and keeps the model up to date.
    fn change_shared(&mut self, who: Peer, source: u32, len: u32) -> (u64, RKey) {
        if self.pair.setup.service != Service::Rc {
            return self.claim_uc_target(who, source, len);
        }
        let target = self.pair.choices.below(self.work.shared_len() - len);
        let data =
            range(self.pair.ends[who.index()].host.memory.bytes(self.sides[who.index()].source), source, len).to_vec();
        let peer = &mut self.sides[who.other().index()];
        peer.model[target as usize..(target + len) as usize].copy_from_slice(&data);
        (peer.shared.addr + u64::from(target), peer.shared.rkey())
    }

    /// A UC write gets a place of its own, because it may be lost.
    fn claim_uc_target(&mut self, who: Peer, source: u32, len: u32) -> (u64, RKey) {
        let side = &mut self.sides[who.index()];
        let target = side.uc_write_next;
        side.uc_write_next += len;
        side.uc_writes.push(UcWrite { target, source, len });
        let shared = self.sides[who.other().index()].shared;
        (shared.addr + u64::from(target), shared.rkey())
    }

    fn post_uc_write(&mut self, who: Peer, imm: bool) {
        if self.sides[who.index()].uc_write_next + self.work.max_len > self.work.shared_len() || imm {
            let fits = self.sides[who.index()].uc_write_next + self.work.max_len <= self.work.shared_len();
            return self.post_message(who, imm && fits);
        }
        self.post_write(who);
    }

    /// Posts an operation whose payload is `len` bytes at `source`, inline or as a random list.
    fn post_from_source(&mut self, who: Peer, op: SendOp, source: u32, len: u32) {
        let mr = self.sides[who.index()].source;
        let inline = len <= self.pair.setup.caps.max_inline_data && self.pair.choices.chance(400);
        let fence = matches!(op, SendOp::Write { .. } | SendOp::WriteImm { .. }) && self.take_read_pending(who);
        if inline {
            let bytes = range(self.pair.ends[who.index()].host.memory.bytes(mr), source, len);
            let mut copy = [0; 64];
            copy[..bytes.len()].copy_from_slice(bytes);
            self.post(who, op, SendData::Inline(&copy[..len as usize]), fence, Expect::Nothing);
        } else {
            let (mut sges, count) = split(&mut self.pair.choices, mr, source, len);
            self.maybe_spoil(&mut sges);
            self.post(who, op, SendData::Sges(&sges[..count]), fence, Expect::Nothing);
        }
    }

    fn take_read_pending(&mut self, who: Peer) -> bool {
        core::mem::take(&mut self.sides[who.index()].read_pending) || self.pair.choices.chance(50)
    }

    fn post_read(&mut self, who: Peer) {
        let len = self.length();
        let peer = who.other();
        let modelled = self.pair.choices.chance(400);
        let (remote_addr, rkey, data) = if modelled {
            self.sides[who.index()].read_pending = true;
            let at = self.pair.choices.below(self.work.shared_len() - len);
            let peer = &self.sides[peer.index()];
            (peer.shared.addr + u64::from(at), peer.shared.rkey(), range(&peer.model, at, len).to_vec())
        } else {
            let at = self.pair.choices.below(self.work.source_len() - len);
            let mr = self.sides[peer.index()].source;
            let bytes = self.pair.ends[peer.index()].host.memory.bytes(mr);
            (mr.addr + u64::from(at), mr.rkey(), range(bytes, at, len).to_vec())
        };
        self.post_landing(who, SendOp::Read { remote_addr, rkey }, data, modelled, false);
    }

    fn post_atomic(&mut self, who: Peer) {
        let at = self.pair.choices.below(self.work.shared_len() / 8) * 8;
        let peer = &mut self.sides[who.other().index()];
        let word = &mut peer.model[at as usize..at as usize + 8];
        let old = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
        let (remote_addr, rkey) = (peer.shared.addr + u64::from(at), peer.shared.rkey());
        let operand = u64::from(self.pair.choices.below(u32::MAX)) << 13;
        let (op, new) = match self.pair.choices.below(3) {
            0 => (SendOp::FetchAdd { remote_addr, rkey, add: operand }, old.wrapping_add(operand)),
            1 => (SendOp::CompareSwap { remote_addr, rkey, compare: old, swap: operand }, operand),
            _ => (SendOp::CompareSwap { remote_addr, rkey, compare: !old, swap: operand }, old),
        };
        word.copy_from_slice(&new.to_ne_bytes());
        let fence = self.take_read_pending(who);
        self.post_landing(who, op, old.to_ne_bytes().to_vec(), true, fence);
    }

    /// Posts an operation whose result `data` lands in a slot of ours.
    fn post_landing(&mut self, who: Peer, op: SendOp, data: Vec<u8>, modelled: bool, fence: bool) {
        let index = self.sides[who.index()].free.pop().expect("checked by the caller");
        let slot = Slot { index, len: data.len() as u32 };
        let (mut sges, count) = self.landing(who, slot);
        self.maybe_spoil(&mut sges);
        self.post(who, op, SendData::Sges(&sges[..count]), fence, Expect::Bytes { slot, data, modelled });
    }

    fn post(&mut self, who: Peer, op: SendOp, data: SendData<'_>, fence: bool, expect: Expect) {
        let opcode = opcode_of(&op);
        let side = &self.sides[who.index()];
        // A queue full of unsignaled requests could never be known to have drained.
        let must =
            side.posted + 1 == self.work.messages || side.sends.len() + 1 == self.pair.setup.caps.max_send_wr as usize;
        let signaled = must || self.pair.choices.chance(700);
        let wr_id = self.sides[who.index()].fresh_id();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, fence);
        flags.set(SendFlags::SOLICITED, self.pair.choices.chance(100));
        let ud = UdDest { av: av(who), qpn: qpn(who.other()), qkey: QKEY };
        let ud = (self.pair.setup.service == Service::Ud).then_some(ud);
        let op = self.maybe_mistarget(op);
        let posted = self.pair.post_send(who, &SendRequest { wr_id, op, flags, data, ud });
        assert_eq!(posted, Ok(()), "there is room for a send in {:?}", self.pair.end(who).qp.state());
        let signaled = signaled || self.pair.setup.sq_sig_all;
        self.sides[who.index()].sends.push_back(PostedSend { wr_id, signaled, opcode, expect });
    }

    /// With mishaps: sometimes one element of the list has a key of nobody.
    fn maybe_spoil(&mut self, sges: &mut [Sge]) {
        if self.work.mishaps && self.pair.choices.chance(20) {
            sges[0].lkey.0 ^= 0x80;
        }
    }

    /// With mishaps: sometimes the remote key or address is wrong.
    fn maybe_mistarget(&mut self, mut op: SendOp) -> SendOp {
        if !(self.work.mishaps && self.pair.choices.chance(20)) {
            return op;
        }
        let far = self.pair.choices.chance(500);
        match &mut op {
            SendOp::Write { remote_addr, rkey }
            | SendOp::WriteImm { remote_addr, rkey, .. }
            | SendOp::Read { remote_addr, rkey }
            | SendOp::CompareSwap { remote_addr, rkey, .. }
            | SendOp::FetchAdd { remote_addr, rkey, .. } => {
                if far {
                    *remote_addr = u64::MAX - 3;
                } else {
                    rkey.0 = rkey.0.wrapping_add(1);
                }
            }
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => {}
        }
        op
    }

    /// A length near the interesting borders, or any.
    fn length(&mut self) -> u32 {
        let mtu = self.pair.setup.path_mtu.bytes();
        let max = self.work.max_len;
        let len = match self.pair.choices.below(8) {
            0 => 0,
            1 => 1,
            2 => mtu - 1,
            3 => mtu,
            4 => mtu + 1,
            5 => self.pair.choices.below(64),
            6 => 2 * mtu,
            _ => self.pair.choices.below(max + 1),
        };
        len.min(max)
    }
}

/// The opcode that the completion of `op` must have.
fn opcode_of(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
    }
}

/// Splits `len` bytes at `start` of `mr` into one to four elements, some of them empty.
fn split(choices: &mut impl Choices, mr: Mr, start: u32, len: u32) -> ([Sge; SRQ_MAX_SGE], usize) {
    let mut sges = [mr.sge(start, 0); SRQ_MAX_SGE];
    let count = choices.between(1, SRQ_MAX_SGE as u32) as usize;
    let mut at = 0;
    for (i, sge) in sges[..count].iter_mut().enumerate() {
        let take = if i + 1 == count { len - at } else { choices.below(len - at + 1) };
        *sge = mr.sge(start + at, take);
        at += take;
    }
    (sges, count)
}
