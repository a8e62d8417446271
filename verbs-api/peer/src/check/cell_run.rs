//! Runs one cell on a pair: posts its messages, then judges completions and memory of both sides.

use super::memory::{
    GRH_LEN, GUARD_LEN, SOURCE_GUARD, Slot, compare, fill_untouched, poll, read, send_all, write, wrong,
};
use super::pair::{End, MAX_INLINE, Pair, QKEY};
use super::{Check, CheckError, Clients, Conditions, MessageCounts, PairError};
use crate::client::{Client, ClientError};
use crate::plan::{self, Atomic, Cell, Op, Service, UNTOUCHED, mix};
use crate::protocol::{Command, to_hex};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A running check of one cell.
pub struct CellRun {
    cell: Cell,
    conditions: Conditions,
    /// Index of the requester among the cards.
    from: usize,
    seed: u64,
    /// The upper half of every wr_id.
    number: u64,
    /// Number of messages that must arrive; 0 if they are datagrams longer than the MTU.
    count: u32,
    /// Maximum number of outstanding messages.
    group: u32,
    /// Maximum number of transmissions.
    budget: u32,
    sent: u32,
    delivered: u32,
    repeated: u32,
    arrivals: u32,
    /// Lowest serial that may arrive next in order.
    next: u32,
    seen: Vec<bool>,
    /// Number of posted receives.
    posted: u32,
    /// Number of completed receives.
    consumed: u32,
    /// Serials of the signaled requests of the current group.
    signaled: Vec<u32>,
    /// The atomics so far, each with the word before it.
    atomics: Vec<(u64, Atomic)>,
    /// Text of the refusal of a datagram longer than the MTU.
    refusal: Option<String>,
}

/// Maximum number of transmissions of one cell. The first byte of a message encodes its serial.
const MAX_SERIALS: u32 = 64;
/// Maximum outstanding packets of UC and UD, which have no flow control.
const MAX_OUTSTANDING_PACKETS: u32 = 64;
/// Returns the number of additional transmissions of UC and UD messages. Long messages get fewer,
/// so that the area stays below 8 MiB, the usual limit of locked memory.
const fn more_tries(size: u32) -> u32 {
    if size <= MAX_SHORT { 8 } else { 4 }
}
/// Maximum size of a short message, in bytes.
const MAX_SHORT: u32 = 128 << 10;

impl CellRun {
    /// Runs one check. Fails with the first error found.
    pub fn run(
        pair: &mut Pair,
        clients: &mut Clients<'_>,
        check: &Check,
        conditions: &Conditions,
    ) -> Result<MessageCounts, CheckError> {
        Self::begin(pair, clients, check, conditions)?.finish(pair, clients)
    }

    /// Prepares memory, posts the receives and the first requests. Several cells may run at once,
    /// each on its own pair. Fails if a card does not support the cell, or an agent refuses a
    /// request.
    pub fn begin(
        pair: &mut Pair,
        clients: &mut Clients<'_>,
        check: &Check,
        conditions: &Conditions,
    ) -> Result<Self, CheckError> {
        let (cell, from) = (check.cell, usize::from(check.is_from_far));
        if cell.op.is_atomic()
            && let Some(card) = clients.iter().find(|client| client.card()["limits"]["atomic_cap"] == 0)
        {
            return Err(PairError::Unsupported(format!("{} has no atomics", card.name())).into());
        }
        pair.renew(clients, (cell.service, cell.mtu, check.family), conditions.ack_timeout)?;
        (pair.is_spent, pair.cells) = (true, pair.cells + 1);
        let port_mtus = clients.iter().map(|client| client.card()["port"]["active_mtu"].as_u64().unwrap_or(0));
        let is_too_long = cell.service == Service::Ud && u64::from(cell.size) > port_mtus.min().unwrap_or(0);
        let count = if is_too_long { 0 } else { messages(&cell, conditions) };
        let (group, budget) = match cell.service {
            _ if is_too_long => (1, 1),
            Service::Rc => (count, count),
            _ => ((MAX_OUTSTANDING_PACKETS / cell.packets()).clamp(1, count), count + more_tries(cell.size)),
        };
        let axes =
            (cell.service as u64) << 48 | (cell.op as u64) << 40 | u64::from(cell.mtu) << 24 | u64::from(cell.size);
        let mut run = Self {
            cell,
            conditions: *conditions,
            from,
            seed: mix(conditions.seed ^ mix(axes)),
            number: pair.cells,
            count,
            group,
            budget,
            sent: 0,
            delivered: 0,
            repeated: 0,
            arrivals: 0,
            next: 0,
            seen: vec![false; MAX_SERIALS as usize],
            posted: 0,
            consumed: 0,
            signaled: Vec::new(),
            atomics: Vec::new(),
            refusal: None,
        };
        run.post(pair, clients)?;
        Ok(run)
    }

    /// Waits for completions, judges both sides, and sends lost messages of UC and UD again. Fails
    /// with the first error found.
    pub fn finish(mut self, pair: &mut Pair, clients: &mut Clients<'_>) -> Result<MessageCounts, CheckError> {
        if self.count == 0 {
            self.expect_no_arrival(pair, clients)?;
        } else {
            let mut first = 0;
            loop {
                self.poll_requests(pair, clients)?;
                self.receive(pair, clients)?;
                self.judge(pair, clients, first)?;
                if self.is_enough() {
                    break;
                }
                let Self { delivered, count, sent, budget, .. } = self;
                if self.is_reliable() || sent >= budget {
                    return wrong(format!("responder: {delivered} of {count} messages arrived, {sent} were sent"));
                }
                first = sent;
                self.post(pair, clients)?;
            }
            self.expect_no_completion(pair, clients)?;
        }
        // On a lossy network, a late packet must not reach the next cell.
        pair.is_spent = self.may_lose() || self.posted > self.consumed || self.count == 0;
        Ok(MessageCounts { sent: self.sent, delivered: self.delivered, repeated: self.repeated })
    }

    fn is_reliable(&self) -> bool {
        self.cell.service == Service::Rc
    }

    /// Returns true if the network may lose messages for good.
    fn may_lose(&self) -> bool {
        self.conditions.is_lossy && !self.is_reliable()
    }

    /// Returns true if a duplicate of a message may be delivered. UC and UD do not detect duplicate
    /// packets. The network may duplicate both packets of a UC message in order; a duplicate of a
    /// longer message is aborted by the packets in between.
    fn may_duplicate(&self) -> bool {
        self.may_lose() && self.cell.packets() <= 2
    }

    /// Returns true if enough messages have arrived. On a clean network all must arrive; UC and UD
    /// may need several attempts, because a burst may overrun a slow receiver. On a lossy network
    /// one message is enough, and none is required if messages have many packets.
    fn is_enough(&self) -> bool {
        if !self.may_lose() {
            return self.delivered >= self.count;
        }
        self.sent >= self.count && (self.delivered > 0 || self.cell.packets() > 8)
    }

    fn next_group(&self) -> u32 {
        let done = if self.may_lose() { self.sent } else { self.delivered };
        self.count.saturating_sub(done).max(1).min(self.budget - self.sent).min(self.group)
    }

    /// Returns the bytes of a message. The first byte encodes the serial and is never
    /// [`UNTOUCHED`].
    fn message(&self, serial: u32) -> Vec<u8> {
        let mut message = plan::message(mix(self.seed.wrapping_add(serial.into())), self.cell.size as usize);
        if let Some(first) = message.first_mut() {
            *first = self.first_byte().wrapping_add(serial as u8);
        }
        message
    }

    fn first_byte(&self) -> u8 {
        (self.seed % 96) as u8
    }

    /// Returns the immediate data of a message. Its low byte is the serial, which identifies empty
    /// messages too.
    fn imm(&self, serial: u32) -> u32 {
        (mix(self.seed.wrapping_add(1)) as u32) << 8 | serial
    }

    /// Returns the length of a message's first piece; 0 if the message has one piece. Every second
    /// message of each side has two pieces.
    fn split(&self, index: u32, side: u32) -> usize {
        if self.cell.size < 2 || self.cell.op.is_atomic() || (index + side).is_multiple_of(2) {
            return 0;
        }
        (mix(self.seed.wrapping_add(u64::from(2 + side + 2 * index))) % u64::from(self.cell.size)) as usize
    }

    fn slot(&self, index: u32, split: usize, has_grh: bool) -> Slot {
        Slot::new(index, self.cell.size as usize, split, has_grh)
    }

    /// Returns the requester's memory of a message.
    fn local(&self, serial: u32) -> Slot {
        self.slot(serial, self.split(serial, 0), false)
    }

    /// Returns the responder's memory of a WRITE, READ or atomic. All atomics use one word.
    fn remote(&self, serial: u32) -> Slot {
        self.slot(if self.cell.op.is_atomic() { 0 } else { serial }, 0, false)
    }

    fn receive_slot(&self, index: u32) -> Slot {
        self.slot(index, self.split(index, 1), self.cell.service == Service::Ud)
    }

    fn is_inline(&self, serial: u32) -> bool {
        !serial.is_multiple_of(2) && !self.cell.op.is_fetch() && self.cell.size <= MAX_INLINE
    }

    /// Returns the range of the slots `serials` in the area.
    fn range(&self, serials: Range<u32>) -> Range<usize> {
        self.slot(serials.start, 0, false).range.start..self.slot(serials.end, 0, false).range.start
    }

    /// Returns the bytes of the source slots `serials`.
    fn sources(&self, serials: Range<u32>, slot: fn(&Self, u32) -> Slot) -> Vec<u8> {
        serials.flat_map(|serial| slot(self, serial).image(&self.message(serial), SOURCE_GUARD)).collect()
    }

    fn post(&mut self, pair: &Pair, clients: &mut Clients<'_>) -> Result<(), CheckError> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        let (op, first, count) = (self.cell.op, self.sent, self.next_group());
        let serials = first..first + count;
        let range = self.range(serials.clone());
        // The responder must be ready before the requester sends.
        let client = &mut *clients[1 - self.from];
        if op == Op::Read {
            write(client, to.mr, range.start, &self.sources(serials.clone(), Self::remote))?;
        } else if op.is_write() {
            fill_untouched(client, to.mr, range.clone())?;
        } else if op.is_atomic() && first == 0 {
            let word = mix(self.seed).to_ne_bytes();
            write(client, to.mr, 0, &self.remote(0).image(&word, UNTOUCHED))?;
        }
        while op.takes_receive() && self.posted - self.consumed < count {
            let slot = self.receive_slot(self.posted);
            let mut request = json!({"qp": to.qp, "wr_id": self.wr_id(self.posted)});
            if op != Op::WriteImm {
                fill_untouched(client, to.mr, slot.range.clone())?;
                request["sge"] = slot.sge(to.mr);
            }
            client.ask(Command::PostRecv, request)?;
            self.posted += 1;
        }
        send_all(client)?;
        let client = &mut *clients[self.from];
        if op.is_fetch() {
            fill_untouched(client, from.mr, range)?;
        } else {
            write(client, from.mr, range.start, &self.sources(serials.clone(), Self::local))?;
        }
        send_all(client)?;
        self.signaled.clear();
        for serial in serials {
            let is_signaled = serial.is_multiple_of(2) || serial + 1 == first + count;
            client.ask(Command::PostSend, self.request(from, to, serial, is_signaled))?;
            if is_signaled {
                self.signaled.push(serial);
            }
            if self.is_inline(serial) {
                // The post has copied the inline data, so the memory may change.
                fill_untouched(client, from.mr, self.local(serial).range)?;
            }
            self.sent += 1;
        }
        match send_all(client) {
            Err(ClientError::Refused(refusal)) if self.count == 0 => self.refusal = Some(refusal.to_string()),
            posted => posted?,
        }
        Ok(())
    }

    fn wr_id(&self, index: u32) -> u64 {
        self.number << 32 | u64::from(index)
    }

    fn request(&mut self, from: &End, to: &End, serial: u32, is_signaled: bool) -> Value {
        let Cell { op, .. } = self.cell;
        let flags = [(is_signaled, "SIGNALED"), (self.is_inline(serial), "INLINE")];
        let flags: Vec<_> = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
        let mut request = json!({
            "qp": from.qp, "wr_id": self.wr_id(serial), "opcode": op.opcodes().0,
            "sge": self.local(serial).sge(from.mr), "flags": flags,
        });
        if op.has_imm() {
            request["imm"] = self.imm(serial).into();
        }
        if let Some(ah) = from.ah {
            request["ah"] = ah.into();
            request["remote_qpn"] = to.qpn.into();
            request["remote_qkey"] = QKEY.into();
        } else if !matches!(op, Op::Send | Op::SendImm) {
            request["remote_addr"] = (to.addr + self.remote(serial).start() as u64).into();
            request["rkey"] = to.rkey.into();
        }
        if op.is_atomic() {
            let word = self.atomics.last().map_or_else(|| mix(self.seed), |(_, last)| last.result);
            let atomic = plan::atomic(op, serial, word);
            self.atomics.push((word, atomic));
            request["compare_add"] = atomic.compare_add.into();
            if op == Op::CmpSwap {
                request["swap"] = atomic.swap.into();
            }
        }
        request
    }

    /// Polls the completions of all signaled requests of the group.
    fn poll_requests(&self, pair: &Pair, clients: &mut Clients<'_>) -> Result<(), CheckError> {
        let end = &pair.ends[self.from];
        let limit = self.conditions.timeout_ms;
        let until = Instant::now() + Duration::from_millis(limit);
        let mut rest = self.signaled.iter();
        while let [due, ..] = rest.as_slice() {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as u64;
            let missing = rest.len();
            let completions = poll(clients[self.from], end.send_cq, missing + 1, missing, left)?;
            if completions.is_empty() && left == 0 {
                return wrong(format!("requester: no completion of message {due} within {} s", limit / 1000));
            }
            for completion in &completions {
                if completion["status"] != "SUCCESS" {
                    return wrong(format!("requester: a request failed: {completion}"));
                }
                let Some(serial) = rest.next() else {
                    return wrong(format!("requester: an unexpected completion: {completion}"));
                };
                let mut expected = vec![
                    ("wr_id", self.wr_id(*serial).into()),
                    ("opcode", self.cell.op.opcodes().1.into()),
                    ("qpn", end.qpn.into()),
                ];
                // byte_len is defined only if the requester receives bytes.
                if self.cell.op.is_fetch() {
                    expected.push(("byte_len", self.cell.size.into()));
                }
                expect("requester", completion, &expected)?;
            }
        }
        Ok(())
    }

    /// Polls the responder's completions until all messages have arrived, or none arrives in time.
    fn receive(&mut self, pair: &Pair, clients: &mut Clients<'_>) -> Result<(), CheckError> {
        let end = &pair.ends[1 - self.from];
        let wait = if self.is_reliable() { self.conditions.timeout_ms } else { self.conditions.grace_ms };
        while self.cell.op.takes_receive() && self.delivered < self.sent {
            let completions = poll(clients[1 - self.from], end.recv_cq, 32, 1, wait)?;
            if completions.is_empty() {
                break;
            }
            for completion in &completions {
                self.judge_receive(pair, clients, completion)?;
            }
        }
        Ok(())
    }

    /// Judges one completion of a receive, and its message.
    fn judge_receive(&mut self, pair: &Pair, clients: &mut Clients<'_>, completion: &Value) -> Result<(), CheckError> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        let (op, is_datagram) = (self.cell.op, self.cell.service == Service::Ud);
        if self.consumed == self.posted {
            return wrong(format!("responder: an unexpected completion: {completion}"));
        }
        if completion["status"] != "SUCCESS" {
            return wrong(format!("responder: a receive failed: {completion}"));
        }
        let len = self.cell.size as usize + if is_datagram { GRH_LEN } else { 0 };
        let opcode = if op == Op::WriteImm { "RECV_RDMA_WITH_IMM" } else { "RECV" };
        let wr_id = self.wr_id(self.consumed).into();
        let mut expected =
            vec![("wr_id", wr_id), ("opcode", opcode.into()), ("byte_len", len.into()), ("qpn", to.qpn.into())];
        if is_datagram {
            expected.push(("src_qp", from.qpn.into()));
        }
        expect("responder", completion, &expected)?;
        let imm = completion["imm"].as_u64().and_then(|imm| u32::try_from(imm).ok());
        if imm.is_some() != op.has_imm() {
            return wrong(format!("responder: the immediate data is unexpected or missing: {completion}"));
        }
        let slot = self.receive_slot(self.consumed);
        self.consumed += 1;
        let found = match op {
            Op::WriteImm => Vec::new(),
            _ => read(clients[1 - self.from], to.mr, slot.range.clone())?,
        };
        let serial = match (imm, found.get(slot.pieces[0].start)) {
            (Some(imm), _) => imm & 0xff,
            (None, Some(first)) if self.cell.size > 0 => {
                let first = if slot.pieces[0].is_empty() { found[slot.pieces[1].start] } else { *first };
                first.wrapping_sub(self.first_byte()).into()
            }
            _ => self.arrivals,
        };
        if let Some(imm) = imm.filter(|imm| *imm != self.imm(serial)) {
            return wrong(format!("responder: imm is {imm:#x}, not {:#x}", self.imm(serial)));
        }
        if op != Op::WriteImm {
            let mut image = slot.image(&self.message(serial), UNTOUCHED);
            if let Some(grh) = &slot.grh {
                check_grh(&found[grh.clone()], from, to, completion)?;
                image[grh.clone()].copy_from_slice(&found[grh.clone()]);
            }
            compare("received", serial, &image, &found, slot.pieces[0].start)?;
        }
        self.count_arrival(serial)
    }

    /// Counts a message. It must arrive once and in order, unless the network may duplicate it.
    fn count_arrival(&mut self, serial: u32) -> Result<(), CheckError> {
        self.arrivals += 1;
        let is_unknown = serial >= self.sent;
        let is_duplicate = !is_unknown && self.seen[serial as usize];
        if !self.may_duplicate() {
            if is_unknown {
                return wrong(format!("responder: message {serial} arrived, but was never sent"));
            }
            if is_duplicate {
                return wrong(format!("responder: message {serial} arrived twice"));
            }
            if serial < self.next || (self.is_reliable() && serial != self.next) {
                return wrong(format!("responder: message {serial} arrived when {} was due", self.next));
            }
        }
        if is_duplicate || is_unknown {
            self.repeated += 1;
            return Ok(());
        }
        (self.seen[serial as usize], self.next) = (true, serial + 1);
        self.delivered += 1;
        Ok(())
    }

    /// Compares the memory of both sides with the memory expected after the messages from `first`
    /// on.
    fn judge(&mut self, pair: &Pair, clients: &mut Clients<'_>, first: u32) -> Result<(), CheckError> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        let (op, serials) = (self.cell.op, first..self.sent);
        let (range, client) = (self.range(serials.clone()), &mut *clients[1 - self.from]);
        if op.is_write() || op == Op::Read {
            let guard = if op == Op::Read { SOURCE_GUARD } else { UNTOUCHED };
            let images: Vec<_> =
                serials.clone().map(|serial| self.remote(serial).image(&self.message(serial), guard)).collect();
            let found = self.await_writes(client, to, first, range.clone(), &images)?;
            for ((serial, image), found) in serials.clone().zip(&images).zip(found.chunks(images[0].len())) {
                if self.is_reliable() || self.seen[serial as usize] {
                    compare("responder's memory", serial, image, found, GUARD_LEN)?;
                } else {
                    self.judge_lost(serial, image, found)?;
                }
            }
        }
        if op.is_atomic() {
            let word = self.atomics.last().map_or(0, |(_, atomic)| atomic.result);
            let slot = self.remote(0);
            let found = read(client, to.mr, slot.range.clone())?;
            compare(
                "the atomic's word",
                self.sent - 1,
                &slot.image(&word.to_ne_bytes(), UNTOUCHED),
                &found,
                GUARD_LEN,
            )?;
        }
        if self.is_reliable() && !op.takes_receive() {
            self.delivered = self.count;
        }
        let found = read(clients[self.from], from.mr, range)?;
        let stride = self.local(0).range.len();
        for (serial, found) in serials.zip(found.chunks(stride)) {
            let slot = self.local(serial);
            let image = match op {
                _ if self.is_inline(serial) => vec![UNTOUCHED; stride],
                Op::Read => slot.image(&self.message(serial), UNTOUCHED),
                _ if op.is_atomic() => slot.image(&self.atomics[serial as usize].0.to_ne_bytes(), UNTOUCHED),
                _ => slot.image(&self.message(serial), SOURCE_GUARD),
            };
            compare("requester's memory", serial, &image, found, slot.pieces[0].start)?;
        }
        Ok(())
    }

    /// Reads the responder's memory. Waits for the bytes of a UC WRITE, which generates no
    /// completion at the responder.
    fn await_writes(
        &mut self,
        client: &mut Client,
        to: &End,
        first: u32,
        range: Range<usize>,
        images: &[Vec<u8>],
    ) -> Result<Vec<u8>, CheckError> {
        let mut since = Instant::now();
        loop {
            let found = read(client, to.mr, range.clone())?;
            if self.is_reliable() || self.cell.op != Op::Write {
                return Ok(found);
            }
            for (index, (image, found)) in images.iter().zip(found.chunks(images[0].len())).enumerate() {
                let seen = &mut self.seen[first as usize + index];
                if !*seen && image == found {
                    *seen = true;
                    self.delivered += 1;
                    since = Instant::now();
                }
            }
            if self.delivered >= self.sent || since.elapsed() > Duration::from_millis(self.conditions.grace_ms) {
                return Ok(found);
            }
        }
    }

    /// Judges the memory of a lost message: the bytes of each packet must be complete or untouched.
    fn judge_lost(&self, serial: u32, image: &[u8], found: &[u8]) -> Result<(), CheckError> {
        let message = GUARD_LEN..GUARD_LEN + self.cell.size as usize;
        let mut allowed = vec![UNTOUCHED; image.len()];
        for start in message.clone().step_by(self.cell.mtu as usize) {
            let share = start..(start + self.cell.mtu as usize).min(message.end);
            if found[share.clone()] == image[share.clone()] {
                allowed[share.clone()].copy_from_slice(&image[share]);
            }
        }
        compare("responder's memory after a loss", serial, &allowed, found, GUARD_LEN)
    }

    /// Checks that a datagram longer than the MTU does not arrive. Cards refuse it, complete it
    /// with an error, or (Linux's rxe) complete it without sending it.
    fn expect_no_arrival(&mut self, pair: &Pair, clients: &mut Clients<'_>) -> Result<(), CheckError> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        let is_refused = self.refusal.is_some();
        if !is_refused && poll(clients[self.from], from.send_cq, 1, 1, self.conditions.timeout_ms)?.is_empty() {
            return wrong("requester: a datagram longer than the MTU neither completed nor was refused");
        }
        let wait = self.conditions.grace_ms / 10;
        match poll(clients[1 - self.from], to.recv_cq, 1, 1, wait)?.first() {
            Some(completion) => wrong(format!("responder: a datagram longer than the MTU arrived: {completion}")),
            None => Ok(()),
        }
    }

    fn expect_no_completion(&mut self, pair: &Pair, clients: &mut Clients<'_>) -> Result<(), CheckError> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        for (side, cq) in [(self.from, from.send_cq), (self.from, from.recv_cq), (1 - self.from, to.send_cq)] {
            if let Some(completion) = poll(clients[side], cq, 1, 0, 0)?.first() {
                let name = if side == self.from { "requester" } else { "responder" };
                return wrong(format!("{name}: an unexpected completion: {completion}"));
            }
        }
        for completion in &poll(clients[1 - self.from], to.recv_cq, 32, 0, 0)? {
            self.judge_receive(pair, clients, completion)?;
        }
        Ok(())
    }
}

/// Returns the number of messages that must arrive.
fn messages(cell: &Cell, conditions: &Conditions) -> u32 {
    let is_short = cell.size <= MAX_SHORT;
    match conditions.is_burst {
        // Cards that go back to the first lost packet are slow with thousands of packets.
        _ if conditions.is_lossy && cell.packets() > 1024 => 1,
        true if cell.op.is_atomic() => 16,
        true if cell.size <= 8192 => 32,
        true if is_short => 8,
        false if is_short => 4,
        _ => 2,
    }
}

/// Checks the GRH before a datagram: an IPv6 header, or 20 undefined bytes and an IPv4 header.
fn check_grh(grh: &[u8], from: &End, to: &End, completion: &Value) -> Result<(), CheckError> {
    if !completion["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "GRH")) {
        return wrong(format!("responder: the GRH flag is missing: {completion}"));
    }
    let address = |end: &End| end.gid.parse::<Ipv6Addr>().map(|address| address.to_canonical());
    let is_right = match (address(from), address(to)) {
        (Ok(IpAddr::V4(from)), Ok(IpAddr::V4(to))) => {
            grh[20] >> 4 == 4 && grh[32..36] == from.octets() && grh[36..40] == to.octets()
        }
        (Ok(IpAddr::V6(from)), Ok(IpAddr::V6(to))) => {
            grh[0] >> 4 == 6 && grh[8..24] == from.octets() && grh[24..40] == to.octets()
        }
        _ => false,
    };
    if is_right { Ok(()) } else { wrong(format!("responder: the GRH has other addresses: {}", to_hex(grh))) }
}

fn expect(side: &str, completion: &Value, expected: &[(&str, Value)]) -> Result<(), CheckError> {
    match expected.iter().find(|(name, value)| completion[*name] != *value) {
        None => Ok(()),
        Some((name, value)) => wrong(format!("{side}: {name} of a completion is {}, not {value}", completion[*name])),
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::AREA_LEN;
    use super::super::{checks, kinds};
    use super::*;

    #[test]
    fn slots_of_the_longest_cells_fit_into_the_area() {
        for conditions in [Conditions::default(), Conditions { is_burst: true, ..Conditions::default() }] {
            for cell in kinds().flat_map(checks).map(|check| check.cell) {
                let max =
                    messages(&cell, &conditions) + if cell.service == Service::Rc { 0 } else { more_tries(cell.size) };
                assert!(
                    max <= MAX_SERIALS && Slot::new(max - 1, cell.size as usize, 0, true).range.end <= AREA_LEN,
                    "{cell:?}"
                );
            }
        }
    }
}
