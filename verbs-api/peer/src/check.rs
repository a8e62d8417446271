//! The program behind `roxe check-peer`: runs cells between two cards, each driven through its
//! agent, and judges every byte and completion of both sides.
//!
//! A [`Pair`] is two connected queue pairs with an area of memory on each side. A [`Course`] is one
//! cell on a pair: several messages, with scatter lists, inline data and requests without
//! completion among them. Begin to read at [`Course::begin`] and [`Course::finish`]. Uses the
//! connections to the two agents.

use crate::client::{Client, ClientError};
use crate::plan::{self, Atomic, Cell, Op, Service, UNTOUCHED, mix};
use crate::protocol::{Command, from_runs, limits, to_hex};
use serde_json::{Value, json};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The addresses that packets travel between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(if *self == Self::V4 { "ipv4" } else { "ipv6" })
    }
}

/// Service, path MTU and addresses of a pair of queue pairs.
pub type Kind = (Service, u32, Family);

/// A cell between two cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is sent.
    pub cell: Cell,
    /// The addresses.
    pub family: Family,
    /// True if the far side is the requester.
    pub is_from_far: bool,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { service, op, size, mtu } = self.cell;
        let direction = if self.is_from_far { "far->near" } else { "near->far" };
        write!(f, "{} {} size={size} mtu={mtu} {} {direction}", service.name(), op.opcodes().0, self.family)
    }
}

/// Every kind of pair.
pub fn kinds() -> impl Iterator<Item = Kind> {
    let mtus = Service::ALL.into_iter().flat_map(|service| plan::MTUS.map(|mtu| (service, mtu)));
    mtus.flat_map(|(service, mtu)| Family::ALL.map(|family| (service, mtu, family)))
}

/// The checks of one kind of pair: each cell in both directions.
pub fn checks((service, mtu, family): Kind) -> impl Iterator<Item = Check> {
    plan::cells(service, mtu).flat_map(move |cell| [false, true].map(|is_from_far| Check { cell, family, is_from_far }))
}

/// The circumstances of checks.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Origin of message bytes and of the places where scatter lists are cut.
    pub seed: u64,
    /// True if the network loses, duplicates and reorders packets: UC and UD messages need not all
    /// arrive, and one of a single packet may arrive twice.
    pub is_lossy: bool,
    /// True for up to 32 messages in a cell instead of 4.
    pub is_burst: bool,
    /// Local ACK timeout of RC: 4.096 us * 2^N.
    pub ack_timeout: u8,
    /// Milliseconds without an arrival after which a UC or UD message counts as lost.
    pub grace_ms: u64,
    /// Milliseconds that completions may take: a long message to an emulated processor takes
    /// seconds.
    pub patience_ms: u64,
}

impl Default for Conditions {
    fn default() -> Self {
        let (ack_timeout, grace_ms, patience_ms) = (14, 300, 30_000);
        Self { seed: 1, is_lossy: false, is_burst: false, ack_timeout, grace_ms, patience_ms }
    }
}

/// The agents beside the near and the far card.
pub type Cards<'a> = [&'a mut Client; 2];

/// Bytes of the registered area of each side.
const AREA: usize = 12 << 20;
/// Bytes around each piece of a message that nothing may write to.
const GUARD: usize = 64;
/// The guards of memory that messages are read from; others than where they are written to, so that
/// a byte too many shows.
const SOURCE_GUARD: u8 = 0x5a;
/// Bytes of the GRH in front of a received datagram.
const GRH: usize = 40;
/// Bytes that are sent inline, at most.
const MAX_INLINE: u32 = 64;
const QKEY: u32 = 0x1234_5678;
const RIGHTS: &str = "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC";
/// First PSN of every queue pair: the 24-bit PSNs wrap soon.
const FIRST_PSN: u32 = 0xff_fff0;

/// The reason why there is no pair.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// One of the cards has no such address, MTU, service or operation.
    #[error("{0}")]
    Unsupported(String),
    /// An agent refused something that every card can do, or is gone.
    #[error(transparent)]
    Agent(#[from] ClientError),
}

/// The reason why a check did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The cards do not understand each other.
    #[error("{0}")]
    Wrong(String),
    /// One of the cards cannot have such a pair, or an agent refused something.
    #[error(transparent)]
    Pair(#[from] PairError),
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        Self::Pair(error.into())
    }
}

fn wrong<T>(text: impl Into<String>) -> Result<T, Failed> {
    Err(Failed::Wrong(text.into()))
}

/// Reads a number of an answer.
fn number(value: &Value, name: &str) -> Result<u64, ClientError> {
    value[name].as_u64().ok_or_else(|| ClientError::Protocol(format!("no number {name} in {value}")))
}

/// One side of a pair: its area, and its queue pair.
#[derive(Debug, Default)]
struct End {
    mr: u64,
    addr: u64,
    rkey: u64,
    gid: String,
    gid_index: u64,
    qp: u64,
    qpn: u64,
    send_cq: u64,
    recv_cq: u64,
    /// Path to the other side, for datagrams.
    ah: Option<u64>,
}

impl End {
    fn register(client: &mut Client) -> Result<Self, ClientError> {
        let mr = client.call(Command::Reg, json!({"length": AREA, "access": RIGHTS}))?;
        let (mr, addr, rkey) = (number(&mr, "mr")?, number(&mr, "addr")?, number(&mr, "rkey")?);
        Ok(Self { mr, addr, rkey, ..Self::default() })
    }

    fn destroy_queue_pair(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let handles =
            [("qp", self.qp), ("ah", self.ah.take().unwrap_or(0)), ("cq", self.send_cq), ("cq", self.recv_cq)];
        for (kind, handle) in handles.into_iter().filter(|(_, handle)| *handle != 0) {
            client.ask(Command::Destroy, json!({"kind": kind, "handle": handle}))?;
        }
        (self.qp, self.send_cq, self.recv_cq) = (0, 0, 0);
        send_all(client)
    }

    fn create_queue_pair(&mut self, client: &mut Client, (service, mtu, family): Kind) -> Result<(), PairError> {
        let unsupported = |what: String| PairError::Unsupported(format!("{} has {what}", client.name()));
        let active_mtu = number(&client.card()["port"], "active_mtu")?;
        if u64::from(mtu) > active_mtu {
            return Err(unsupported(format!("an MTU of {active_mtu}")));
        }
        let gid = gid(client.card(), family);
        (self.gid, self.gid_index) = gid.ok_or_else(|| unsupported("no RoCE v2 GID of that family".to_owned()))?;
        self.send_cq = number(&client.call(Command::CreateCq, json!({"cqe": 64}))?, "cq")?;
        self.recv_cq = number(&client.call(Command::CreateCq, json!({"cqe": 64}))?, "cq")?;
        let created = client.call(
            Command::CreateQp,
            json!({"type": service.name(), "cq": self.send_cq, "recv_cq": self.recv_cq, "max_send_wr": 64,
                   "max_recv_wr": 32, "max_sge": 3, "max_inline": MAX_INLINE}),
        );
        let qp = created.map_err(|error| match error.errno() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => PairError::Unsupported(error.to_string()),
            _ => error.into(),
        })?;
        (self.qp, self.qpn) = (number(&qp, "qp")?, number(&qp, "qpn")?);
        Ok(())
    }

    fn connect(
        &mut self,
        client: &mut Client,
        kind: Kind,
        ack_timeout: u8,
        gid: &str,
        qpn: u64,
    ) -> Result<(), ClientError> {
        let ((service, mtu, _), qp) = (kind, self.qp);
        let limit = |name: &str| client.card()["limits"][name].as_u64().unwrap_or(1).clamp(1, 4);
        let reads = limit("max_qp_rd_atom").min(limit("max_qp_init_rd_atom"));
        // Null members are not sent.
        let (is_datagram, is_reliable) = (service == Service::Ud, service == Service::Rc);
        let of = |is_set: bool, value: Value| if is_set { value } else { Value::Null };
        let access = if is_reliable { RIGHTS } else { "LOCAL_WRITE|REMOTE_WRITE" };
        let steps = [
            json!({"qp": qp, "to": "INIT", "qkey": of(is_datagram, QKEY.into()),
                   "access": of(!is_datagram, access.into())}),
            // Receives are posted before the peer sends: only an injected fault needs the RNR
            // timer.
            json!({"qp": qp, "to": "RTR", "path_mtu": of(!is_datagram, mtu.into()),
                   "dest_qpn": of(!is_datagram, qpn.into()), "rq_psn": of(!is_datagram, FIRST_PSN.into()),
                   "dgid": of(!is_datagram, gid.into()), "sgid_index": of(!is_datagram, self.gid_index.into()),
                   "max_dest_rd_atomic": of(is_reliable, reads.into()), "min_rnr_timer": of(is_reliable, 1.into())}),
            json!({"qp": qp, "to": "RTS", "sq_psn": FIRST_PSN, "timeout": of(is_reliable, ack_timeout.into()),
                   "max_rd_atomic": of(is_reliable, reads.into())}),
        ];
        for step in steps {
            client.ask(Command::ModifyQp, step)?;
        }
        send_all(client)?;
        if is_datagram {
            let ah = client.call(Command::CreateAh, json!({"dgid": gid, "sgid_index": self.gid_index}))?;
            self.ah = Some(number(&ah, "ah")?);
        }
        Ok(())
    }
}

/// Returns the first RoCE v2 GID of this family that another host can reach, and its index.
fn gid(card: &Value, family: Family) -> Option<(String, u64)> {
    card["gids"].as_array()?.iter().filter(|gid| gid["type"] == "RoCE v2").find_map(|gid| {
        let text = gid["gid"].as_str()?;
        let address: Ipv6Addr = text.parse().ok()?;
        let is_v4 = matches!(address.to_canonical(), IpAddr::V4(_));
        let fits = is_v4 == (family == Family::V4) && !address.is_unicast_link_local();
        fits.then_some((text.to_owned(), gid["index"].as_u64()?))
    })
}

/// Two connected queue pairs, near and far, which live as long as checks of one kind pass.
#[derive(Debug)]
pub struct Pair {
    kind: Option<Kind>,
    ends: [End; 2],
    /// True if the queue pairs have failed or may still receive late packets.
    is_spent: bool,
    /// Cells so far; part of every wr_id.
    cells: u64,
}

impl Pair {
    /// Registers an area on each side; the first check creates the queue pairs.
    ///
    /// # Errors
    /// If an agent refuses it, or is gone.
    pub fn register([near, far]: &mut Cards<'_>) -> Result<Self, ClientError> {
        Ok(Self { kind: None, ends: [End::register(near)?, End::register(far)?], is_spent: true, cells: 0 })
    }

    /// Runs one check.
    ///
    /// # Errors
    /// What was wrong, and where.
    pub fn run(&mut self, cards: &mut Cards<'_>, check: &Check, conditions: &Conditions) -> Result<Arrived, Failed> {
        Course::begin(self, cards, check, conditions)?.finish(self, cards)
    }

    /// Connects new queue pairs, unless those of the last check are of this kind and still good.
    fn renew(&mut self, cards: &mut Cards<'_>, kind: Kind, ack_timeout: u8) -> Result<(), PairError> {
        if !self.is_spent && self.kind == Some(kind) {
            return Ok(());
        }
        for (end, client) in self.ends.iter_mut().zip(cards.iter_mut()) {
            end.destroy_queue_pair(client)?;
        }
        for (end, client) in self.ends.iter_mut().zip(cards.iter_mut()) {
            end.create_queue_pair(client, kind)?;
        }
        let others = [1, 0].map(|other: usize| (self.ends[other].gid.clone(), self.ends[other].qpn));
        for ((end, client), (gid, qpn)) in self.ends.iter_mut().zip(cards.iter_mut()).zip(&others) {
            end.connect(client, kind, ack_timeout, gid, *qpn)?;
        }
        self.kind = Some(kind);
        Ok(())
    }
}

/// Messages of a check that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Messages sent.
    pub sent: u32,
    /// Messages that arrived.
    pub delivered: u32,
    /// Copies of messages, which a lossy network makes.
    pub repeated: u32,
}

/// Memory of one message inside the area: up to three pieces, with guards around each.
struct Slot {
    /// Place in the area, and how much the slot takes of it.
    place: Range<usize>,
    /// Place of the GRH within the slot.
    grh: Option<Range<usize>>,
    /// Places of the message's pieces within the slot.
    pieces: Vec<Range<usize>>,
}

impl Slot {
    fn new(index: u32, size: usize, split: usize, has_grh: bool) -> Self {
        let stride = (size + GRH + 4 * GUARD).next_multiple_of(64);
        let start = index as usize * stride;
        let mut at = GUARD;
        let mut piece = |len: usize| {
            let piece = at..at + len;
            at += len + GUARD;
            piece
        };
        let grh = has_grh.then(|| piece(GRH));
        let pieces = if split == 0 { vec![piece(size)] } else { vec![piece(split), piece(size - split)] };
        Self { place: start..start + stride, grh, pieces }
    }

    /// The scatter list of a request; an empty piece has no entry.
    fn sge(&self, mr: u64) -> Value {
        let pieces = self.grh.iter().chain(&self.pieces).filter(|piece| !piece.is_empty());
        let entries =
            pieces.map(|piece| json!({"mr": mr, "offset": self.place.start + piece.start, "length": piece.len()}));
        entries.collect()
    }

    /// The bytes of the whole slot when it holds the message and nothing else.
    fn image(&self, message: &[u8], guard: u8) -> Vec<u8> {
        let mut image = vec![guard; self.place.len()];
        let mut rest = message;
        for piece in &self.pieces {
            let (bytes, others) = rest.split_at(piece.len());
            image[piece.clone()].copy_from_slice(bytes);
            rest = others;
        }
        image
    }

    /// Place of the message's first byte in the area.
    fn start(&self) -> usize {
        self.place.start + self.pieces[0].start
    }
}

/// One cell on its way.
pub struct Course {
    cell: Cell,
    conditions: Conditions,
    /// Index of the requester among the cards.
    from: usize,
    seed: u64,
    /// The high half of every wr_id.
    number: u64,
    /// Messages that must arrive; 0 for a datagram that is too long to be sent.
    count: u32,
    /// Messages under way at once, and transmissions in all, at most.
    group: u32,
    budget: u32,
    sent: u32,
    delivered: u32,
    repeated: u32,
    arrivals: u32,
    /// Serial after the last one that arrived in order.
    next: u32,
    seen: Vec<bool>,
    /// Receives: posted and completed.
    posted: u32,
    taken: u32,
    /// Messages of the present group whose requests ask for a completion.
    signaled: Vec<u32>,
    /// The atomics up to now, and the word that each met.
    atomics: Vec<(u64, Atomic)>,
    /// Reason why a request that is too long was not accepted.
    refusal: Option<String>,
}

/// Transmissions of one cell, at most; the first byte of a message is their serial.
const MAX_SERIALS: u32 = 64;
/// Packets under way at once of UC and UD, which have no flow control.
const PACKETS_AT_ONCE: u32 = 64;
/// Transmissions that UC and UD have beyond the messages that must arrive.
const MORE_TRIES: u32 = 8;

impl Course {
    /// Prepares memory, posts the receives and the first requests. Several courses, each on its
    /// pair, may be under way at once.
    ///
    /// # Errors
    /// If a card cannot run the cell, or an agent refuses something.
    pub fn begin(
        pair: &mut Pair,
        cards: &mut Cards<'_>,
        check: &Check,
        conditions: &Conditions,
    ) -> Result<Self, Failed> {
        let (cell, from) = (check.cell, usize::from(check.is_from_far));
        if cell.op.is_atomic()
            && let Some(card) = cards.iter().find(|client| client.card()["limits"]["atomic_cap"] == 0)
        {
            return Err(PairError::Unsupported(format!("{} has no atomics", card.name())).into());
        }
        pair.renew(cards, (cell.service, cell.mtu, check.family), conditions.ack_timeout)?;
        (pair.is_spent, pair.cells) = (true, pair.cells + 1);
        let port_mtus = cards.iter().map(|client| client.card()["port"]["active_mtu"].as_u64().unwrap_or(0));
        let is_too_long = cell.service == Service::Ud && u64::from(cell.size) > port_mtus.min().unwrap_or(0);
        let count = if is_too_long { 0 } else { messages(&cell, conditions) };
        let (group, budget) = match cell.service {
            _ if is_too_long => (1, 1),
            Service::Rc => (count, count),
            _ => ((PACKETS_AT_ONCE / cell.packets()).clamp(1, count), count + MORE_TRIES),
        };
        let axes =
            (cell.service as u64) << 48 | (cell.op as u64) << 40 | u64::from(cell.mtu) << 24 | u64::from(cell.size);
        let mut course = Self {
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
            taken: 0,
            signaled: Vec::new(),
            atomics: Vec::new(),
            refusal: None,
        };
        course.post(pair, cards)?;
        Ok(course)
    }

    /// Waits for completions, judges both sides, and sends again what UC and UD lost.
    ///
    /// # Errors
    /// The first thing that was wrong.
    pub fn finish(mut self, pair: &mut Pair, cards: &mut Cards<'_>) -> Result<Arrived, Failed> {
        if self.count == 0 {
            self.expect_no_arrival(pair, cards)?;
        } else {
            let mut first = 0;
            loop {
                self.collect(pair, cards)?;
                self.receive(pair, cards)?;
                self.judge(pair, cards, first)?;
                if self.is_enough() {
                    break;
                }
                let Self { delivered, count, sent, budget, .. } = self;
                if self.cell.service == Service::Rc || sent >= budget {
                    return wrong(format!("responder: {delivered} of {count} messages arrived, {sent} were sent"));
                }
                first = sent;
                self.post(pair, cards)?;
            }
            self.expect_no_completion(pair, cards)?;
        }
        // On a lossy network a late packet must not meet the next cell.
        let is_unreliable = self.conditions.is_lossy && self.cell.service != Service::Rc;
        pair.is_spent = is_unreliable || self.posted > self.taken || self.count == 0;
        Ok(Arrived { sent: self.sent, delivered: self.delivered, repeated: self.repeated })
    }

    fn is_reliable(&self) -> bool {
        self.cell.service == Service::Rc
    }

    /// UC and UD cannot tell a packet from its copy. A UC message of two packets may be copied as a
    /// whole; a longer one is ended by any packet between the copies.
    fn may_repeat(&self) -> bool {
        self.conditions.is_lossy && !self.is_reliable() && self.cell.packets() <= 2
    }

    /// On a clean network all messages arrive, though UC and UD not at the first attempt: a burst
    /// may overrun a slow receiver. On a lossy network one is enough, and one of many packets may
    /// never survive.
    fn is_enough(&self) -> bool {
        if !self.conditions.is_lossy || self.is_reliable() {
            return self.delivered >= self.count;
        }
        self.sent >= self.count && (self.delivered > 0 || self.cell.packets() > 8)
    }

    fn next_group(&self) -> u32 {
        let wanted = if self.conditions.is_lossy && !self.is_reliable() {
            self.count - self.sent.min(self.count.saturating_sub(1))
        } else {
            self.count - self.delivered
        };
        wanted.max(1).min(self.budget - self.sent).min(self.group)
    }

    /// The bytes of a message. The first one is its serial and never [`UNTOUCHED`].
    fn message(&self, serial: u32) -> Vec<u8> {
        let mut message = plan::message(mix(self.seed.wrapping_add(serial.into())), self.cell.size as usize);
        if let Some(first) = message.first_mut() {
            *first = self.first_byte() + serial as u8;
        }
        message
    }

    fn first_byte(&self) -> u8 {
        (self.seed % 96) as u8
    }

    /// The low byte is the serial, so that an empty message has a name too.
    fn imm(&self, serial: u32) -> u32 {
        (mix(self.seed + 1) as u32) << 8 | serial
    }

    /// Length of a message's first piece: every second message of each side has two pieces.
    fn split(&self, index: u32, side: u32) -> usize {
        if self.cell.size < 2 || self.cell.op.is_atomic() || (index + side).is_multiple_of(2) {
            return 0;
        }
        (mix(self.seed.wrapping_add(u64::from(2 + side + 2 * index))) % u64::from(self.cell.size)) as usize
    }

    fn slot(&self, index: u32, split: usize, has_grh: bool) -> Slot {
        Slot::new(index, self.cell.size as usize, split, has_grh)
    }

    /// Memory of the requester.
    fn local(&self, serial: u32) -> Slot {
        self.slot(serial, self.split(serial, 0), false)
    }

    /// Memory of the responder that a WRITE, a READ or an atomic names. All atomics meet one word.
    fn remote(&self, serial: u32) -> Slot {
        self.slot(if self.cell.op.is_atomic() { 0 } else { serial }, 0, false)
    }

    /// Memory of a receive.
    fn receive_slot(&self, index: u32) -> Slot {
        self.slot(index, self.split(index, 1), self.cell.service == Service::Ud)
    }

    fn is_inline(&self, serial: u32) -> bool {
        !serial.is_multiple_of(2) && !self.cell.op.is_fetch() && self.cell.size <= MAX_INLINE
    }

    /// The area of the slots `serials`.
    fn place(&self, serials: Range<u32>) -> Range<usize> {
        self.slot(serials.start, 0, false).place.start..self.slot(serials.end, 0, false).place.start
    }

    /// The slots that messages are read from.
    fn sources(&self, serials: Range<u32>, slot: fn(&Self, u32) -> Slot) -> Vec<u8> {
        serials.flat_map(|serial| slot(self, serial).image(&self.message(serial), SOURCE_GUARD)).collect()
    }

    /// Posts the next group.
    fn post(&mut self, pair: &Pair, cards: &mut Cards<'_>) -> Result<(), Failed> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        let (op, first, count) = (self.cell.op, self.sent, self.next_group());
        let serials = first..first + count;
        let place = self.place(serials.clone());
        // The responder is ready before the requester sends.
        let client = &mut *cards[1 - self.from];
        if op == Op::Read {
            write(client, to.mr, place.start, &self.sources(serials.clone(), Self::remote))?;
        } else if op.is_write() {
            blank(client, to.mr, place.clone())?;
        } else if op.is_atomic() && first == 0 {
            let word = mix(self.seed).to_ne_bytes();
            write(client, to.mr, 0, &self.remote(0).image(&word, UNTOUCHED))?;
        }
        while op.takes_receive() && self.posted - self.taken < count {
            let slot = self.receive_slot(self.posted);
            let mut request = json!({"qp": to.qp, "wr_id": self.wr_id(self.posted)});
            if op != Op::WriteImm {
                blank(client, to.mr, slot.place.clone())?;
                request["sge"] = slot.sge(to.mr);
            }
            client.ask(Command::PostRecv, request)?;
            self.posted += 1;
        }
        send_all(client)?;
        let client = &mut *cards[self.from];
        if op.is_fetch() {
            blank(client, from.mr, place)?;
        } else {
            write(client, from.mr, place.start, &self.sources(serials.clone(), Self::local))?;
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
                // Inline data belongs to the card since the request was posted.
                blank(client, from.mr, self.local(serial).place)?;
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

    /// Waits for the completions of the group's requests.
    fn collect(&self, pair: &Pair, cards: &mut Cards<'_>) -> Result<(), Failed> {
        let end = &pair.ends[self.from];
        let patience = self.conditions.patience_ms;
        let until = Instant::now() + Duration::from_millis(patience);
        let mut rest = self.signaled.iter();
        while let [due, ..] = rest.as_slice() {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as u64;
            let missing = rest.len();
            let completions = poll(cards[self.from], end.send_cq, missing + 1, missing, left)?;
            if completions.is_empty() && left == 0 {
                return wrong(format!("requester: no completion of message {due} within {} s", patience / 1000));
            }
            for completion in &completions {
                if completion["status"] != "SUCCESS" {
                    return wrong(format!("requester: a request failed: {completion}"));
                }
                let Some(serial) = rest.next() else {
                    return wrong(format!("requester: a completion too many: {completion}"));
                };
                let mut expected = vec![
                    ("wr_id", self.wr_id(*serial).into()),
                    ("opcode", self.cell.op.opcodes().1.into()),
                    ("qpn", end.qpn.into()),
                ];
                // byte_len is defined only where the requester receives bytes.
                if self.cell.op.is_fetch() {
                    expected.push(("byte_len", self.cell.size.into()));
                }
                expect("requester", completion, &expected)?;
            }
        }
        Ok(())
    }

    /// Takes the responder's completions until all messages arrived, or no more are to be expected.
    fn receive(&mut self, pair: &Pair, cards: &mut Cards<'_>) -> Result<(), Failed> {
        let end = &pair.ends[1 - self.from];
        let wait = if self.is_reliable() { self.conditions.patience_ms } else { self.conditions.grace_ms };
        while self.cell.op.takes_receive() && self.delivered < self.sent {
            let completions = poll(cards[1 - self.from], end.recv_cq, 32, 1, wait)?;
            if completions.is_empty() {
                break;
            }
            for completion in &completions {
                self.arrived(pair, cards, completion)?;
            }
        }
        Ok(())
    }

    /// Judges one completion of a receive, and the message that it reports.
    fn arrived(&mut self, pair: &Pair, cards: &mut Cards<'_>, completion: &Value) -> Result<(), Failed> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        let (op, is_datagram) = (self.cell.op, self.cell.service == Service::Ud);
        if self.taken == self.posted {
            return wrong(format!("responder: a completion too many: {completion}"));
        }
        if completion["status"] != "SUCCESS" {
            return wrong(format!("responder: a receive failed: {completion}"));
        }
        let len = self.cell.size as usize + if is_datagram { GRH } else { 0 };
        let opcode = if op == Op::WriteImm { "RECV_RDMA_WITH_IMM" } else { "RECV" };
        let wr_id = self.wr_id(self.taken).into();
        let mut expected =
            vec![("wr_id", wr_id), ("opcode", opcode.into()), ("byte_len", len.into()), ("qpn", to.qpn.into())];
        if is_datagram {
            expected.push(("src_qp", from.qpn.into()));
        }
        expect("responder", completion, &expected)?;
        let imm = completion["imm"].as_u64().and_then(|imm| u32::try_from(imm).ok());
        if imm.is_some() != op.has_imm() {
            return wrong(format!("responder: immediate data where there is none, or the reverse: {completion}"));
        }
        let slot = self.receive_slot(self.taken);
        self.taken += 1;
        let found = match op {
            Op::WriteImm => Vec::new(),
            _ => read(cards[1 - self.from], to.mr, slot.place.clone())?,
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

    /// Each message arrives once and in order, unless the network makes copies.
    fn count_arrival(&mut self, serial: u32) -> Result<(), Failed> {
        self.arrivals += 1;
        let is_unknown = serial >= self.sent;
        let is_again = !is_unknown && self.seen[serial as usize];
        if !self.may_repeat() {
            if is_unknown {
                return wrong(format!("responder: message {serial} arrived, but was never sent"));
            }
            if is_again {
                return wrong(format!("responder: message {serial} arrived twice"));
            }
            if serial < self.next || (self.is_reliable() && serial != self.next) {
                return wrong(format!("responder: message {serial} arrived when {} was due", self.next));
            }
        }
        if is_again || is_unknown {
            self.repeated += 1;
            return Ok(());
        }
        (self.seen[serial as usize], self.next) = (true, serial + 1);
        self.delivered += 1;
        Ok(())
    }

    /// Compares the memory of both sides with what the messages from `first` on must have left.
    fn judge(&mut self, pair: &Pair, cards: &mut Cards<'_>, first: u32) -> Result<(), Failed> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        let (op, serials) = (self.cell.op, first..self.sent);
        let (place, client) = (self.place(serials.clone()), &mut *cards[1 - self.from]);
        if op.is_write() || op == Op::Read {
            let guard = if op == Op::Read { SOURCE_GUARD } else { UNTOUCHED };
            let images: Vec<_> =
                serials.clone().map(|serial| self.remote(serial).image(&self.message(serial), guard)).collect();
            let found = self.await_writes(client, to, first, place.clone(), &images)?;
            for ((serial, image), found) in serials.clone().zip(&images).zip(found.chunks(images[0].len())) {
                if self.is_reliable() || self.seen[serial as usize] {
                    compare("responder's memory", serial, image, found, GUARD)?;
                } else {
                    self.judge_lost(serial, image, found)?;
                }
            }
        }
        if op.is_atomic() {
            let word = self.atomics.last().map_or(0, |(_, atomic)| atomic.result);
            let slot = self.remote(0);
            let found = read(client, to.mr, slot.place.clone())?;
            compare("the atomic's word", self.sent - 1, &slot.image(&word.to_ne_bytes(), UNTOUCHED), &found, GUARD)?;
        }
        if self.is_reliable() && !op.takes_receive() {
            self.delivered = self.count;
        }
        let found = read(cards[self.from], from.mr, place)?;
        let stride = self.local(0).place.len();
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

    /// Reads the responder's memory. A WRITE over UC ends without a word to either side, so that
    /// one is waited for.
    fn await_writes(
        &mut self,
        client: &mut Client,
        to: &End,
        first: u32,
        place: Range<usize>,
        images: &[Vec<u8>],
    ) -> Result<Vec<u8>, Failed> {
        let mut since = Instant::now();
        loop {
            let found = read(client, to.mr, place.clone())?;
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

    /// A message that was lost left each packet's share as a whole or not at all, and nothing
    /// beside.
    fn judge_lost(&self, serial: u32, image: &[u8], found: &[u8]) -> Result<(), Failed> {
        let message = GUARD..GUARD + self.cell.size as usize;
        let mut allowed = vec![UNTOUCHED; image.len()];
        for start in message.clone().step_by(self.cell.mtu as usize) {
            let share = start..(start + self.cell.mtu as usize).min(message.end);
            if found[share.clone()] == image[share.clone()] {
                allowed[share.clone()].copy_from_slice(&image[share]);
            }
        }
        compare("responder's memory after a loss", serial, &allowed, found, GUARD)
    }

    /// A datagram that is too long is refused, completes with an error, or (Linux's rxe) completes
    /// and is not sent.
    fn expect_no_arrival(&mut self, pair: &Pair, cards: &mut Cards<'_>) -> Result<(), Failed> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        let is_refused = self.refusal.is_some();
        if !is_refused && poll(cards[self.from], from.send_cq, 1, 1, self.conditions.patience_ms)?.is_empty() {
            return wrong("requester: a datagram longer than the MTU neither completed nor was refused");
        }
        let wait = self.conditions.grace_ms / 10;
        match poll(cards[1 - self.from], to.recv_cq, 1, 1, wait)?.first() {
            Some(completion) => wrong(format!("responder: a datagram longer than the MTU arrived: {completion}")),
            None => Ok(()),
        }
    }

    /// Nothing more may complete, neither here nor on a queue that nothing was posted to.
    fn expect_no_completion(&mut self, pair: &Pair, cards: &mut Cards<'_>) -> Result<(), Failed> {
        let (from, to) = (&pair.ends[self.from], &pair.ends[1 - self.from]);
        for (side, cq) in [(self.from, from.send_cq), (self.from, from.recv_cq), (1 - self.from, to.send_cq)] {
            if let Some(completion) = poll(cards[side], cq, 1, 0, 0)?.first() {
                let name = if side == self.from { "requester" } else { "responder" };
                return wrong(format!("{name}: a completion too many: {completion}"));
            }
        }
        for completion in &poll(cards[1 - self.from], to.recv_cq, 32, 0, 0)? {
            self.arrived(pair, cards, completion)?;
        }
        Ok(())
    }
}

/// Messages of a cell that must arrive.
fn messages(cell: &Cell, conditions: &Conditions) -> u32 {
    let is_short = cell.size <= 128 << 10;
    match conditions.is_burst {
        // Cards that start over at each lost packet take long for hundreds of them.
        _ if conditions.is_lossy && cell.packets() > 1024 => 1,
        true if cell.op.is_atomic() => 16,
        true if cell.size <= 8192 => 32,
        true if is_short => 8,
        false if is_short => 4,
        _ => 2,
    }
}

/// Checks the GRH in front of a datagram: the IPv6 header, or 20 undefined bytes and the IPv4
/// header.
fn check_grh(grh: &[u8], from: &End, to: &End, completion: &Value) -> Result<(), Failed> {
    if !completion["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "GRH")) {
        return wrong(format!("responder: no GRH flag: {completion}"));
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

fn expect(side: &str, completion: &Value, expected: &[(&str, Value)]) -> Result<(), Failed> {
    match expected.iter().find(|(name, value)| completion[*name] != *value) {
        None => Ok(()),
        Some((name, value)) => wrong(format!("{side}: {name} of a completion is {}, not {value}", completion[*name])),
    }
}

/// Compares a slot with its image; `start` is the place of the message in it.
fn compare(place: &str, serial: u32, image: &[u8], found: &[u8], start: usize) -> Result<(), Failed> {
    let Some(at) = image.iter().zip(found).position(|(image, found)| image != found) else { return Ok(()) };
    let part = |bytes: &[u8]| to_hex(&bytes[at..bytes.len().min(at + 16)]);
    let count = image.iter().zip(found).filter(|(image, found)| image != found).count();
    let offset = at as i64 - start as i64;
    let (found, image) = (part(found), part(image));
    wrong(format!(
        "{place}: {count} bytes differ, the first at {offset} of message {serial}: {found} instead of {image}"
    ))
}

/// Polls for at least `min` completions, for at most `wait_ms`.
fn poll(client: &mut Client, cq: u64, max: usize, min: usize, wait_ms: u64) -> Result<Vec<Value>, ClientError> {
    let wait = wait_ms.min(limits::WAIT_MS);
    let mut answer = client.call(Command::Poll, json!({"cq": cq, "max": max, "min": min, "timeout_ms": wait}))?;
    Ok(answer["completions"].as_array_mut().map_or_else(Vec::new, std::mem::take))
}

/// Sends the requests that wait; returns the first refusal.
fn send_all(client: &mut Client) -> Result<(), ClientError> {
    client.answers()?.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(())
}

/// Writes bytes into the area with the next [`send_all`].
fn write(client: &mut Client, mr: u64, start: usize, bytes: &[u8]) -> Result<(), ClientError> {
    for (offset, part) in (start..).step_by(limits::TRANSFER).zip(bytes.chunks(limits::TRANSFER)) {
        client.ask(Command::Write, json!({"mr": mr, "offset": offset, "hex": to_hex(part)}))?;
    }
    Ok(())
}

/// Marks a part of the area as [`UNTOUCHED`] with the next [`send_all`].
fn blank(client: &mut Client, mr: u64, place: Range<usize>) -> Result<(), ClientError> {
    for offset in place.clone().step_by(limits::TRANSFER) {
        let length = (place.end - offset).min(limits::TRANSFER);
        client.ask(Command::Write, json!({"mr": mr, "offset": offset, "fill": UNTOUCHED, "length": length}))?;
    }
    Ok(())
}

fn read(client: &mut Client, mr: u64, place: Range<usize>) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::with_capacity(place.len());
    for offset in place.clone().step_by(limits::TRANSFER) {
        let length = (place.end - offset).min(limits::TRANSFER);
        let answer = client.call(Command::Read, json!({"mr": mr, "offset": offset, "length": length, "runs": true}))?;
        let part = from_runs(&answer["runs"], length);
        bytes.extend(part.ok_or_else(|| ClientError::Protocol("not the bytes that were asked for".to_owned()))?);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted by hand, for one direction and family: RC 5 operations x 7 sizes x 3 MTUs + 2 x 3,
    /// UC 4 x 7 x 3, UD 2 x 7 x 3.
    #[test]
    fn checks_are_distinct_and_as_many_as_counted_by_hand() {
        let names: std::collections::BTreeSet<_> = kinds().flat_map(checks).map(|check| check.to_string()).collect();
        assert_eq!(names.len(), 4 * (105 + 6 + 84 + 42));
        assert_eq!(kinds().flat_map(checks).count(), names.len());
    }

    #[test]
    fn slots_of_the_longest_cells_fit_into_the_area() {
        for conditions in [Conditions::default(), Conditions { is_burst: true, ..Conditions::default() }] {
            for cell in kinds().flat_map(checks).map(|check| check.cell) {
                let most = messages(&cell, &conditions) + if cell.service == Service::Rc { 0 } else { MORE_TRIES };
                assert!(
                    most <= MAX_SERIALS && Slot::new(most - 1, cell.size as usize, 0, true).place.end <= AREA,
                    "{cell:?}"
                );
            }
        }
    }

    #[test]
    fn image_has_the_message_in_pieces_between_guards() {
        let slot = Slot::new(1, 5, 2, true);
        let image = slot.image(&[1, 2, 3, 4, 5], 9);
        let pieces: Vec<_> = slot.pieces.iter().flat_map(|piece| image[piece.clone()].to_vec()).collect();
        assert_eq!((pieces, image.iter().filter(|byte| **byte == 9).count()), (vec![1, 2, 3, 4, 5], image.len() - 5));
        assert!(slot.grh.is_some_and(|grh| grh.end < slot.pieces[0].start && slot.place.start == image.len()));
    }
}
