//! The work of a scenario: posts random requests and records the expected results.

use super::*;

impl<C: Choices> Scenario<C> {
    pub(super) fn post_recv(&mut self, id: usize) -> Result<bool, Broken> {
        let service = self.world.ends[id].setup.service;
        if service == Service::XrcIni {
            return Ok(false);
        }
        let is_target = service == Service::XrcTgt;
        let side = &mut self.sides[id];
        let queue = if is_target { side.when.below(QUEUES.len() as u32) as usize } else { 0 };
        let outstanding = side.recvs.iter().filter(|recv| recv.queue == queue).count();
        if outstanding >= self.world.ends[id].setup.caps.max_recv_wr as usize {
            return Ok(false);
        }
        let Some(index) = side.free.pop() else { return Ok(false) };
        let short = self.work.mishaps && side.when.chance_per_mille(30);
        let room = self.work.max_len + GRH_LEN;
        let slot = Slot { index, len: if short { side.when.below(room) } else { room } };
        let wr_id = side.fresh_id();
        side.recvs.push_back(PostedRecv { wr_id, slot, queue });
        let start = self.clear_slot(id, slot);
        let side = &mut self.sides[id];
        let (sges, count) = split(&mut side.when, side.sink, start, slot.len);
        let (request, end) = (RecvRequest { wr_id, sges: &sges[..count] }, self.world.end_mut(id));
        if is_target {
            end.host.xrc[queue].srq.post(&request);
            return Ok(true);
        }
        let posted = end.post_recv(&request);
        let at = self.world.now();
        ensure!(posted == Ok(()), Completions, Some(id), at, "there was room for a receive: {posted:?}");
        Ok(true)
    }

    /// Marks a slot as untouched and returns its start.
    fn clear_slot(&mut self, id: usize, slot: Slot) -> u32 {
        let start = slot.index * slot_size(self.work.max_len);
        let memory = &mut self.world.end_mut(id).host.memory;
        let bytes = memory.bytes_mut(self.sides[id].sink);
        bytes[start as usize..(start + slot.len + GUARD_LEN) as usize].fill(UNTOUCHED);
        start
    }

    pub(super) fn post_send(&mut self, id: usize) -> Result<bool, Broken> {
        let side = &self.sides[id];
        if side.sends.len() >= self.world.ends[id].setup.caps.max_send_wr as usize || side.free.is_empty() {
            return Ok(false);
        }
        match self.world.ends[id].setup.service {
            Service::Rc => self.post_rc(id)?,
            Service::XrcIni => {
                self.sides[id].queue = self.sides[id].what.below(QUEUES.len() as u32) as usize;
                self.post_rc(id)?;
            }
            Service::Uc => self.post_uc(id)?,
            Service::Ud | Service::XrcTgt | Service::Raw => self.post_message(id, false)?,
        }
        self.sides[id].posted += 1;
        Ok(true)
    }

    fn post_rc(&mut self, id: usize) -> Result<(), Broken> {
        match self.sides[id].what.below(13) {
            0..=3 => self.post_message(id, false),
            4 => self.post_message(id, true),
            5 | 6 => self.post_write(id),
            7 | 8 => self.post_read(id),
            9 => self.post_atomic(id),
            10 => self.post_atomic_write(id),
            11 => self.post_flush(id),
            _ if self.sides[id].window => self.post_write(id),
            _ => self.post_bind(id),
        }
    }

    fn post_uc(&mut self, id: usize) -> Result<(), Broken> {
        match self.sides[id].what.below(4) {
            0 => self.post_uc_write(id, false),
            1 => self.post_uc_write(id, true),
            _ => self.post_message(id, false),
        }
    }

    /// Posts a SEND, or a WRITE with immediate into the peer's shared region; both consume a
    /// receive.
    fn post_message(&mut self, id: usize, write: bool) -> Result<(), Broken> {
        let mut len = self.length(id);
        if self.world.ends[id].setup.service == Service::Ud {
            len = len.min(self.world.ends[id].setup.path_mtu.bytes());
        }
        let source = self.sides[id].what.below(4 * region_unit(self.work.max_len) - len);
        let imm = (write || self.sides[id].what.chance_per_mille(500))
            .then(|| ImmDt(self.sides[id].what.below(u32::MAX).to_be_bytes()));
        let op = match (imm, write) {
            (Some(imm), true) => {
                let (remote_addr, rkey) = self.change_shared(id, source, len);
                SendOp::WriteImm { remote_addr, rkey, imm }
            }
            (Some(imm), false) => SendOp::SendImm(imm),
            (None, _) => SendOp::Send,
        };
        let queue = self.sides[id].queue;
        self.sides[id].messages.push_back(Message { source, len, imm, write, queue });
        self.post_from_source(id, op, source, len)
    }

    fn post_write(&mut self, id: usize) -> Result<(), Broken> {
        let len = self.length(id);
        let source = self.sides[id].what.below(4 * region_unit(self.work.max_len) - len);
        let (remote_addr, rkey) = self.change_shared(id, source, len);
        self.post_from_source(id, SendOp::Write { remote_addr, rkey }, source, len)
    }

    /// Chooses a target in the peer's shared region for a WRITE of RC and updates the model.
    fn change_shared(&mut self, id: usize, source: u32, len: u32) -> (u64, RKey) {
        if !self.world.ends[id].setup.service.is_reliable() {
            return self.claim_uc_target(id, source, len);
        }
        let target = self.sides[id].what.below(2 * region_unit(self.work.max_len) - len);
        let data = range(self.world.ends[id].host.memory.bytes(self.sides[id].source), source, len).to_vec();
        let rkey = self.shared_key(id);
        let peer = &mut self.sides[id ^ 1];
        peer.model[target as usize..(target + len) as usize].copy_from_slice(&data);
        (peer.shared.addr + u64::from(target), rkey)
    }

    /// Returns the key of the peer's shared region, or of the window on it.
    fn shared_key(&mut self, id: usize) -> RKey {
        let key = self.sides[id ^ 1].shared.rkey();
        let through_window = self.sides[id].what.chance_per_mille(500);
        self.sides[id ^ 1].window_key.filter(|_| through_window).unwrap_or(key)
    }

    /// Claims a target of its own for a UC WRITE, because the WRITE may be lost.
    fn claim_uc_target(&mut self, id: usize, source: u32, len: u32) -> (u64, RKey) {
        let side = &mut self.sides[id];
        let target = side.uc_write_next;
        side.uc_write_next += len;
        side.uc_writes.push(UcWrite { target, source, len });
        let shared = self.sides[id ^ 1].shared;
        (shared.addr + u64::from(target), shared.rkey())
    }

    fn post_uc_write(&mut self, id: usize, imm: bool) -> Result<(), Broken> {
        if self.sides[id].uc_write_next + self.work.max_len > 2 * region_unit(self.work.max_len) || imm {
            let fits = self.sides[id].uc_write_next + self.work.max_len <= 2 * region_unit(self.work.max_len);
            return self.post_message(id, imm && fits);
        }
        self.post_write(id)
    }

    /// Posts an operation whose payload is `len` bytes at `source`, inline or as a random list.
    fn post_from_source(&mut self, id: usize, op: SendOp, source: u32, len: u32) -> Result<(), Broken> {
        let mr = self.sides[id].source;
        let inline = len <= self.world.ends[id].setup.caps.max_inline_data && self.sides[id].what.chance_per_mille(400);
        let changes = matches!(op, SendOp::Write { .. } | SendOp::WriteImm { .. } | SendOp::AtomicWrite { .. });
        let fence = changes && self.take_read_pending(id);
        if inline {
            let bytes = range(self.world.ends[id].host.memory.bytes(mr), source, len);
            let mut copy = [0; 64];
            copy[..bytes.len()].copy_from_slice(bytes);
            self.post(id, op, SendData::Inline(&copy[..len as usize]), fence, Expect::Nothing)
        } else {
            let (mut sges, count) = split(&mut self.sides[id].what, mr, source, len);
            self.maybe_spoil(id, &mut sges);
            self.post(id, op, SendData::Sges(&sges[..count]), fence, Expect::Nothing)
        }
    }

    fn take_read_pending(&mut self, id: usize) -> bool {
        core::mem::take(&mut self.sides[id].read_pending) || self.sides[id].what.chance_per_mille(50)
    }

    fn post_read(&mut self, id: usize) -> Result<(), Broken> {
        let len = self.length(id);
        let peer = id ^ 1;
        let modelled = self.sides[id].what.chance_per_mille(400);
        let (remote_addr, rkey, data) = if modelled {
            self.sides[id].read_pending = true;
            let at = self.sides[id].what.below(2 * region_unit(self.work.max_len) - len);
            let rkey = self.shared_key(id);
            let peer = &self.sides[peer];
            (peer.shared.addr + u64::from(at), rkey, range(&peer.model, at, len).to_vec())
        } else {
            let at = self.sides[id].what.below(4 * region_unit(self.work.max_len) - len);
            let mr = self.sides[peer].source;
            let bytes = self.world.ends[peer].host.memory.bytes(mr);
            (mr.addr + u64::from(at), mr.rkey(), range(bytes, at, len).to_vec())
        };
        self.post_with_result(id, SendOp::Read { remote_addr, rkey }, data, modelled, false)
    }

    fn post_atomic(&mut self, id: usize) -> Result<(), Broken> {
        let at = self.sides[id].what.below(region_unit(self.work.max_len) / 4) * 8;
        let operand = u64::from(self.sides[id].what.below(u32::MAX)) << 13;
        let kind = self.sides[id].what.below(3);
        let rkey = self.shared_key(id);
        let peer = &mut self.sides[id ^ 1];
        let word = &mut peer.model[at as usize..at as usize + 8];
        let old = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
        let remote_addr = peer.shared.addr + u64::from(at);
        let (op, new) = match kind {
            0 => (SendOp::FetchAdd { remote_addr, rkey, add: operand }, old.wrapping_add(operand)),
            1 => (SendOp::CompareSwap { remote_addr, rkey, compare: old, swap: operand }, operand),
            _ => (SendOp::CompareSwap { remote_addr, rkey, compare: !old, swap: operand }, old),
        };
        word.copy_from_slice(&new.to_ne_bytes());
        let fence = self.take_read_pending(id);
        self.post_with_result(id, op, old.to_ne_bytes().to_vec(), true, fence)
    }

    /// Posts an ATOMIC WRITE to a word of the peer's shared region.
    fn post_atomic_write(&mut self, id: usize) -> Result<(), Broken> {
        let at = self.sides[id].what.below(region_unit(self.work.max_len) / 4) * 8;
        let source = self.sides[id].what.below(4 * region_unit(self.work.max_len) - 8);
        let data = range(self.world.ends[id].host.memory.bytes(self.sides[id].source), source, 8).to_vec();
        let rkey = self.shared_key(id);
        let peer = &mut self.sides[id ^ 1];
        peer.model[at as usize..at as usize + 8].copy_from_slice(&data);
        let remote_addr = peer.shared.addr + u64::from(at);
        self.post_from_source(id, SendOp::AtomicWrite { remote_addr, rkey }, source, 8)
    }

    /// Posts a FLUSH of a part of the peer's shared region, or of the whole.
    fn post_flush(&mut self, id: usize) -> Result<(), Broken> {
        let at = self.sides[id].what.below(2 * region_unit(self.work.max_len));
        let length = self.sides[id].what.below(2 * region_unit(self.work.max_len) - at + 1);
        let selectivity = self.sides[id].what.pick(&[Selectivity::Range, Selectivity::Region]);
        let shared = self.sides[id ^ 1].shared;
        let feth = Feth { selectivity, placement: Placement::GLOBAL_VISIBILITY };
        let op = SendOp::Flush { remote_addr: shared.addr + u64::from(at), rkey: shared.rkey(), length, feth };
        self.sides[id].flushes += 1;
        let fence = self.sides[id].what.chance_per_mille(50);
        self.post(id, op, SendData::Sges(&[]), fence, Expect::Nothing)
    }

    /// Posts the bind of a window on our shared region, for the peer to use.
    fn post_bind(&mut self, id: usize) -> Result<(), Broken> {
        let shared = self.sides[id].shared;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let (rkey, lkey) = (RKey(WINDOW), LKey(shared.key));
        let op = SendOp::BindWindow { rkey, lkey, access, addr: shared.addr, length: shared.len.into() };
        self.sides[id].window = true;
        self.post(id, op, SendData::Sges(&[]), false, Expect::Nothing)
    }

    /// Posts an operation whose result `data` is placed in a slot of ours.
    fn post_with_result(
        &mut self,
        id: usize,
        op: SendOp,
        data: Vec<u8>,
        modelled: bool,
        fence: bool,
    ) -> Result<(), Broken> {
        let index = self.sides[id].free.pop().expect("checked by the caller");
        let slot = Slot { index, len: data.len() as u32 };
        let start = self.clear_slot(id, slot);
        let side = &mut self.sides[id];
        let (mut sges, count) = split(&mut side.what, side.sink, start, slot.len);
        self.maybe_spoil(id, &mut sges);
        self.post(id, op, SendData::Sges(&sges[..count]), fence, Expect::Bytes { slot, data, modelled })
    }

    fn post(&mut self, id: usize, op: SendOp, data: SendData<'_>, fence: bool, expect: Expect) -> Result<(), Broken> {
        let opcode = opcode_of(&op);
        let side = &self.sides[id];
        // A queue full of unsignaled requests would never be known to have drained.
        let must_signal = side.posted + 1 == side.quota
            || side.sends.len() + 1 == self.world.ends[id].setup.caps.max_send_wr as usize;
        // The decision is always drawn, so that later decisions do not depend on the fill level of
        // the queue.
        let signaled = self.sides[id].what.chance_per_mille(700) || must_signal;
        let wr_id = self.sides[id].fresh_id();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, fence);
        flags.set(SendFlags::SOLICITED, self.sides[id].what.chance_per_mille(100));
        let endpoints = &self.world.ends[id].endpoints;
        let ud = UdDest { av: endpoints.av(), qpn: endpoints.there.qpn, qkey: QKEY };
        let ud = (self.world.ends[id].setup.service == Service::Ud).then_some(ud);
        let op = self.maybe_mistarget(id, op);
        let srqn = QUEUES[self.sides[id].queue];
        let request = SendRequest { wr_id, op, flags, data, ud };
        let posted = self.world.end_mut(id).qp.post_send_to_srq(srqn, &request);
        ensure!(posted == Ok(()), Completions, Some(id), self.world.now(), "there was room for a send: {posted:?}");
        let signaled = signaled || self.world.ends[id].setup.sq_sig_all;
        self.sides[id].sends.push_back(PostedSend { wr_id, signaled, opcode, expect });
        Ok(())
    }

    /// Sometimes gives one element of the list an invalid key, if mishaps are allowed.
    fn maybe_spoil(&mut self, id: usize, sges: &mut [Sge]) {
        if self.work.mishaps && self.sides[id].what.chance_per_mille(20) {
            sges[0].lkey.0 ^= 0x80;
        }
    }

    /// Sometimes makes the remote key or address wrong, if mishaps are allowed.
    fn maybe_mistarget(&mut self, id: usize, mut op: SendOp) -> SendOp {
        if !(self.work.mishaps && self.sides[id].what.chance_per_mille(20)) {
            return op;
        }
        let far = self.sides[id].what.chance_per_mille(500);
        match &mut op {
            SendOp::Write { remote_addr, rkey }
            | SendOp::WriteImm { remote_addr, rkey, .. }
            | SendOp::Read { remote_addr, rkey }
            | SendOp::CompareSwap { remote_addr, rkey, .. }
            | SendOp::FetchAdd { remote_addr, rkey, .. }
            | SendOp::AtomicWrite { remote_addr, rkey }
            | SendOp::Flush { remote_addr, rkey, .. } => {
                if far {
                    *remote_addr = u64::MAX - 3;
                } else {
                    rkey.0 = rkey.0.wrapping_add(1);
                }
            }
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => {}
            SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => {}
        }
        op
    }

    /// Returns a length near the MTU boundaries, or a random one.
    fn length(&mut self, id: usize) -> u32 {
        let mtu = self.world.ends[id].setup.path_mtu.bytes();
        let max = self.work.max_len;
        let len = match self.sides[id].what.below(8) {
            0 => 0,
            1 => 1,
            2 => mtu - 1,
            3 => mtu,
            4 => mtu + 1,
            5 => self.sides[id].what.below(64),
            6 => 2 * mtu,
            _ => self.sides[id].what.below(max + 1),
        };
        len.min(max)
    }
}

/// Returns the opcode expected in the completion of `op`.
fn opcode_of(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
        SendOp::BindWindow { .. } => WcOpcode::BindWindow,
        SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
        SendOp::Flush { .. } => WcOpcode::Flush,
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
