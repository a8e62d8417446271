//! Makes the kernel deliver each packet to the process that owns its queue pair.
//!
//! All processes of a user share one address and port by `SO_REUSEPORT`. A classic BPF program maps
//! the slot of the destination QPN to the number of a socket. Numbers are unknown and change when a
//! socket closes, so a session *measures* them: it sends each number a probe ([`PROBE`]), collects
//! the slots of the processes that answer, and attaches a new program. It runs when a process
//! joins, when packets for other processes arrive, and when packets are not answered; one process
//! at a time measures for all. Misdelivered packets are forwarded, but a stopped process forwards
//! nothing: unknown slots therefore go to a process that has answered, never to the kernel's hash.

use crate::bpf::{AND, JUMP, JUMP_EQ, JUMP_GE, LOAD_BYTE, LOAD_WORD, RETURN, RETURN_A, SHIFT_RIGHT, jump, op};
use crate::cmsg::Control;
use crate::forward::Frame;
use crate::link::RxMeta;
use crate::named::{NamedSocket, Probe};
use crate::port_owners::count_bound;
use crate::service::AddressPart;
use crate::slot::{self, Slot, SlotSocket};
use crate::udp::UdpLink;
use libc::sock_filter;
use roxe_base::random;
use roxe_transport::time::Instant;
use roxe_wire::Gid;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// First byte of a probe, an opcode that RoCE does not use.
pub const PROBE: u8 = 0xfe;
/// Size of a probe in bytes: [`PROBE`], the round, two zero bytes, index and nonce in network
/// order.
const PROBE_LEN: usize = 16;
/// Maximum wait for the next answer of a session.
const MAX_ANSWER_WAIT: Duration = Duration::from_millis(60);
/// Maximum wait for the next answer after some numbers have not answered.
const NEXT_ANSWER_WAIT: Duration = Duration::from_millis(10);
/// Maximum number of outstanding probes. A mailbox holds 10 datagrams in a new network namespace
/// (`net.unix.max_dgram_qlen`), and answers to a full one are lost.
const WINDOW: usize = 8;
/// Number of sockets from which on a session waits for others that join, and the wait per socket:
/// as long as measuring takes.
const GATHERING: (usize, Duration) = (32, Duration::from_micros(100));
/// First and maximum pause while another process is the builder; it doubles every four checks.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(80));
/// Maximum wait for another builder, which may be stopped.
const YIELDS: Duration = Duration::from_secs(2);
/// Age at which the measurements of a session that was stopped are discarded.
const STALE: Duration = Duration::from_millis(400);
/// Minimum and maximum pause between sessions caused by packets for other processes.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// Minimum pause before a session caused by unanswered packets: a common retransmission timeout.
const UNANSWERED: Duration = Duration::from_millis(250);
/// Maximum number of slots of a program: the kernel accepts 4,096 instructions, and a slot needs
/// five.
const MAX_SLOTS: usize = 800;
/// Result of the program for an unknown slot before any process has answered: no socket has this
/// index, so the kernel chooses a socket by hash.
const NO_SOCKET: u32 = u32::MAX;

/// Keeps the program of one address up to date. The background thread calls [`Steering::step`].
#[derive(Debug)]
pub struct Steering {
    link: Arc<UdpLink>,
    ifindex: u32,
    due: Option<Instant>,
    builder_checks: u32,
    yields_until: Instant,
    session: Option<Session>,
    /// Builder name, held before a session that is due.
    builder: Option<NamedSocket>,
    backoff: Duration,
    /// Packets for other processes start no session before this time.
    quiet_until: Instant,
    /// Unanswered packets start no session before this time.
    patient_until: Instant,
    /// Time of the last reason for a session.
    wanted: Instant,
    /// Time of the last probe by another process's session.
    probed: Option<Instant>,
}

#[derive(Debug)]
struct Session {
    /// Excludes other builders; `None` if a stopped builder was passed over.
    _builder: Option<NamedSocket>,
    mailbox: NamedSocket,
    nonce: u64,
    /// Slots of the process that answered, by number.
    answers: Vec<Vec<Slot>>,
    /// Numbers below this were probed in this round.
    asked: usize,
    /// Number of probes no longer waited for.
    given_up: usize,
    /// 1, or 2 once this session has attached its own probe rule.
    round: u8,
    deadline: Instant,
}

impl Steering {
    /// Steers the group of `link`; the first session starts at once.
    pub fn new(link: Arc<UdpLink>, ifindex: u32, now: Instant) -> Self {
        let (quiet_until, patient_until) = (now, now);
        Self {
            link,
            ifindex,
            due: Some(now),
            builder_checks: 0,
            yields_until: now.after(YIELDS),
            session: None,
            builder: None,
            backoff: BACKOFF.0,
            quiet_until,
            patient_until,
            wanted: now,
            probed: None,
        }
    }

    /// Returns the address of the group.
    pub fn gid(&self) -> Gid {
        self.link.gid()
    }

    /// Notes a packet for another process. Returns true if [`Steering::deadline`] changed.
    pub fn note_forwarded(&mut self, now: Instant) -> bool {
        self.wanted = now;
        let is_idle = self.due.is_none() && self.session.is_none();
        if is_idle {
            self.due = Some(now.max(self.quiet_until));
        }
        is_idle
    }

    /// Notes unanswered packets: they or their responses may be in the socket of a stopped process.
    /// Returns true if [`Steering::deadline`] changed.
    pub fn note_unanswered(&mut self, now: Instant) -> bool {
        self.wanted = now;
        let at = now.max(self.quiet_until.min(self.patient_until));
        let is_news = self.session.is_none() && self.due.is_none_or(|due| at < due);
        if is_news {
            self.due = Some(at);
        }
        is_news
    }

    /// Notes a probe by another process's session, which was answered.
    pub fn note_probed(&mut self, now: Instant) {
        self.probed = Some(now);
    }

    /// Returns true if another process's session covers the reason for this one. It attaches its
    /// program some time after its probe.
    fn is_covered(&self) -> bool {
        self.probed.is_some_and(|probed| self.wanted <= probed.after(MAX_ANSWER_WAIT))
    }

    /// Returns the mailbox of the current session, to wait on.
    pub fn fd(&self) -> Option<RawFd> {
        self.session.as_ref().map(|session| session.mailbox.as_raw_fd())
    }

    /// Returns the time of the next necessary [`Steering::step`] if no answer arrives.
    pub fn deadline(&self) -> Option<Instant> {
        self.session.as_ref().map(|session| session.deadline).or(self.due)
    }

    /// Starts, continues or ends a session. Spurious calls are harmless.
    pub fn step(&mut self, now: Instant) {
        if let Some(mut session) = self.session.take() {
            session.collect();
            self.session = self.go_on(session, now);
        } else if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.patient_until = now.after(UNANSWERED);
            match self.begin(now) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                    if self.builder_checks == 0 {
                        self.yields_until = now.after(YIELDS);
                    }
                    self.due = Some(now.after((RETRY.0 * (1 << (self.builder_checks / 4).min(8))).min(RETRY.1)));
                    self.builder_checks += 1;
                }
                // On errors (no /proc, no descriptors left) packets are forwarded.
                result => {
                    self.session = result.ok().flatten();
                    self.builder_checks = 0;
                    if self.session.is_none() && self.builder.is_none() {
                        self.quiet_until = self.quiet_until.max(self.patient_until);
                    }
                }
            }
        }
    }

    /// Becomes the builder and starts a session, or schedules it. `None` if it is scheduled or not
    /// needed. Fails with `EADDRINUSE` while another process is the builder.
    fn begin(&mut self, now: Instant) -> io::Result<Option<Session>> {
        if let Some(builder) = self.builder.take() {
            let count = count_bound(self.link.gid())?;
            return Session::begin(&self.link, count, Some(builder), now).map(Some);
        }
        let name = builder_name(self.ifindex, self.link.gid());
        let yields = self.builder_checks == 0 || now < self.yields_until;
        if yields && Probe::new()?.finds(&name) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        if self.is_covered() {
            return Ok(None);
        }
        let builder = match slot::mailbox(&name) {
            Err(e) if yields => return Err(e),
            result => result.ok(),
        };
        let count = count_bound(self.link.gid())?;
        if count > GATHERING.0 && builder.is_some() {
            self.due = Some(now.after(GATHERING.1 * count as u32));
            self.builder = builder;
            return Ok(None);
        }
        if count < 2 { Ok(None) } else { Session::begin(&self.link, count, builder, now).map(Some) }
    }

    /// Continues to wait, starts another round, or attaches the program and ends the session.
    fn go_on(&mut self, mut session: Session, now: Instant) -> Option<Session> {
        let (complete, late) = (session.is_complete(), now >= session.deadline);
        if now >= session.deadline.after(STALE) {
            self.due = Some(now);
            return None;
        }
        if session.round == 1 && (session.has_doubles() || late && session.is_silent()) {
            // The attached program lacks the probe rule: the kernel chose one process, possibly a
            // stopped one, for all probes.
            self.link.attach_steering(&mut program(&session.map())).ok()?;
            session.begin_round(2);
            session.ask(&self.link, now);
            return Some(session);
        }
        if late {
            session.given_up = session.asked.saturating_sub(session.answered());
        }
        if !complete && (session.ask(&self.link, now) || !late) {
            return Some(session);
        }
        let _ = self.link.attach_steering(&mut program(&session.map()));
        let recent = now < self.quiet_until.after(self.backoff);
        self.backoff = if recent { (self.backoff * 2).min(BACKOFF.1) } else { BACKOFF.0 };
        self.quiet_until = now.after(self.backoff);
        None
    }
}

impl Session {
    /// Sends the first probes to the `count` sockets of the group of `link`.
    fn begin(link: &UdpLink, count: usize, builder: Option<NamedSocket>, now: Instant) -> io::Result<Self> {
        let nonce = random::number()?;
        let mailbox = slot::mailbox(&AnswersName(nonce))?;
        let (answers, deadline) = (vec![Vec::new(); count], now);
        let (asked, given_up, round) = (0, 0, 1);
        let mut session = Self { _builder: builder, mailbox, nonce, answers, asked, given_up, round, deadline };
        session.ask(link, now);
        Ok(session)
    }

    /// Starts probing all numbers again.
    fn begin_round(&mut self, round: u8) {
        self.answers.iter_mut().for_each(Vec::clear);
        (self.round, self.asked, self.given_up) = (round, 0, 0);
    }

    fn answered(&self) -> usize {
        self.answers.iter().filter(|slots| !slots.is_empty()).count()
    }

    /// Sends as many probes as [`WINDOW`] allows. Returns true if any.
    fn ask(&mut self, link: &UdpLink, now: Instant) -> bool {
        let end = self.answers.len().min(self.answered() + self.given_up + WINDOW);
        let next = self.asked..end;
        for index in next.clone() {
            // A lost probe counts as a missing answer.
            let _ = link.send_to_own_address(&probe(self.round, index as u32, self.nonce));
        }
        if !next.is_empty() {
            self.asked = end;
            self.deadline = now.after(if self.given_up > 0 { NEXT_ANSWER_WAIT } else { MAX_ANSWER_WAIT });
        }
        !next.is_empty()
    }

    fn collect(&mut self) {
        let mut buf = [0; 4096];
        while let Ok(Some((len, _))) = slot::recv_frame(self.mailbox.as_raw_fd(), &mut buf, &mut Control::new()) {
            let frame = Frame::parse(buf.get(..len).unwrap_or_default());
            let Some((Frame::ProbeSeen { nonce, round, index }, body)) = frame else { continue };
            if (nonce, round) == (self.nonce, self.round)
                && let Some(answer) = self.answers.iter_mut().take(self.asked).nth(index as usize)
            {
                *answer = body.as_chunks::<2>().0.iter().map(|pair| Slot::new(u16::from_ne_bytes(*pair))).collect();
            }
        }
    }

    /// Returns true if every number has answered, in the first round each by a different process.
    fn is_complete(&self) -> bool {
        self.answers.iter().all(|slots| !slots.is_empty()) && (self.round > 1 || !self.has_doubles())
    }

    fn is_silent(&self) -> bool {
        self.answers.iter().all(Vec::is_empty)
    }

    /// Returns true if a process answered for two numbers: the kernel did not follow the probe
    /// rule, or there are fewer sockets than numbers.
    fn has_doubles(&self) -> bool {
        let mut firsts: Vec<_> = self.answers.iter().filter_map(|slots| slots.first()).collect();
        firsts.sort_unstable();
        firsts.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// Returns the lowest number of each slot, sorted by slot: only numbers without a socket are
    /// reassigned. Empty while the kernel may not follow the probe rule.
    fn map(&self) -> Vec<(Slot, u32)> {
        if self.round == 1 && self.has_doubles() {
            return Vec::new();
        }
        let numbered = (0u32..).zip(&self.answers);
        let mut map: Vec<_> =
            numbered.flat_map(|(index, slots)| slots.iter().map(move |&slot| (slot, index))).collect();
        map.sort_unstable();
        map.dedup_by_key(|(slot, _)| *slot);
        map.truncate(MAX_SLOTS);
        map
    }
}

/// Returns the name held by the builder for the group of `gid`.
fn builder_name(ifindex: u32, gid: Gid) -> String {
    format!("steer-{ifindex:x}-{}", AddressPart(gid))
}

/// Name of the mailbox of the session with this nonce.
struct AnswersName(u64);

impl fmt::Display for AnswersName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "answers-{:016x}", self.0)
    }
}

/// Returns true if a UDP payload is a steering probe, not a packet. Probes never leave the host, so
/// tools that show traffic may want to hide them.
pub fn is_probe(udp_payload: &[u8]) -> bool {
    matches!(udp_payload, [PROBE, _, 0, 0, rest @ ..] if rest.len() == PROBE_LEN - 4)
}

fn probe(round: u8, index: u32, nonce: u64) -> [u8; PROBE_LEN] {
    let mut bytes = [0; PROBE_LEN];
    bytes[0] = PROBE;
    bytes[1] = round;
    bytes[4..8].copy_from_slice(&index.to_be_bytes());
    bytes[8..].copy_from_slice(&nonce.to_be_bytes());
    bytes
}

/// Answers `packet` if it is a probe from the port of this user. Returns true if the answer left;
/// `None` if it is not such a probe.
pub fn answer(packet: &[u8], meta: &RxMeta, local_port: u16, mine: &[SlotSocket]) -> Option<bool> {
    let Ok(&[PROBE, round, _, _, i0, i1, i2, i3, ref nonce @ ..]) = <&[u8; PROBE_LEN]>::try_from(packet) else {
        return None;
    };
    if meta.src_port != local_port {
        return None;
    }
    let (index, nonce) = (u32::from_be_bytes([i0, i1, i2, i3]), u64::from_be_bytes(*nonce));
    // Called while polling, so nothing is allocated.
    let mut body = [0; 2 * MAX_SLOTS];
    let (slots, _) = body.as_chunks_mut();
    slots.iter_mut().zip(mine).for_each(|(out, socket)| *out = socket.slot().get().to_ne_bytes());
    let body = &body[..2 * mine.len().min(MAX_SLOTS)];
    // A builder that has exited or is busy needs no answer.
    let send_answer = |first: &SlotSocket| {
        first.send_to(&AnswersName(nonce), &Frame::ProbeSeen { nonce, round, index }.header(), body).is_ok()
    };
    Some(mine.first().is_some_and(send_answer))
}

/// Returns the program for `map`, sorted by slot, of at most [`MAX_SLOTS`]. Other slots go to the
/// lowest number, which is reassigned last and belongs to a process that has just answered.
fn program(map: &[(Slot, u32)]) -> Vec<sock_filter> {
    let other = map.iter().map(|(_, index)| *index).min().unwrap_or(NO_SOCKET);
    let mut code = vec![
        op(LOAD_BYTE, 0),
        jump(JUMP_EQ, PROBE.into(), 0, 2),
        op(LOAD_WORD, 4),
        op(RETURN_A, 0),
        // The destination QPN is the low 24 bits of the second word of the BTH.
        op(LOAD_WORD, 4),
        op(AND, 0x00ff_ffff),
        op(SHIFT_RIGHT, 12),
    ];
    push_tree(&mut code, map, other);
    code
}

/// Appends a binary search for the slot in the accumulator; slots missing in `map` give `other`.
fn push_tree(code: &mut Vec<sock_filter>, map: &[(Slot, u32)], other: u32) {
    match *map {
        [] => code.push(op(RETURN, other)),
        [(slot, index)] => {
            code.extend([jump(JUMP_EQ, slot.get().into(), 0, 1), op(RETURN, index), op(RETURN, other)]);
        }
        _ => {
            let (left, right) = map.split_at(map.len() / 2);
            let pivot = right.first().map_or(0, |(slot, _)| slot.get());
            let at = code.len();
            // Conditional jumps reach 255 instructions, unconditional ones any number.
            code.extend([jump(JUMP_GE, pivot.into(), 0, 1), op(JUMP, 0)]);
            push_tree(code, left, other);
            let distance = (code.len() - at - 2) as u32;
            code[at + 1] = op(JUMP, distance);
            push_tree(code, right, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::{NetHeader, ROCE_PORT};
    use std::net::Ipv4Addr;

    /// Runs `program` on `packet` as the kernel does.
    fn run(program: &[sock_filter], packet: &[u8]) -> u32 {
        let (mut pc, mut a) = (0, 0u32);
        loop {
            let insn = program[pc];
            let k = insn.k as usize;
            pc += 1;
            match insn.code {
                LOAD_BYTE => a = packet[k].into(),
                LOAD_WORD => a = u32::from_be_bytes(packet[k..k + 4].try_into().unwrap()),
                AND => a &= insn.k,
                SHIFT_RIGHT => a >>= insn.k,
                JUMP => pc += k,
                JUMP_EQ => pc += usize::from(if a == insn.k { insn.jt } else { insn.jf }),
                JUMP_GE => pc += usize::from(if a >= insn.k { insn.jt } else { insn.jf }),
                RETURN => return insn.k,
                RETURN_A => return a,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn packet_to(slot: u16) -> [u8; 16] {
        let mut packet = [0; 16];
        packet[4..8].copy_from_slice(&(0xee00_0000 | u32::from(slot) << 12 | 0x123).to_be_bytes());
        packet
    }

    #[test]
    fn program_finds_slots_and_gives_others_to_lowest_number() {
        for count in [0u16, 1, 2, 3, 100, MAX_SLOTS as u16] {
            let map: Vec<_> = (0..count).map(|i| (Slot::new(i * 5 + 1), u32::from(i ^ 1))).collect();
            let program = program(&map);
            assert!(program.len() <= crate::bpf::MAX_LEN, "{count} slots need {} instructions", program.len());
            for slot in 0..0x1000 {
                let owner = map.iter().find(|(known, _)| known.get() == slot);
                let other = if count == 0 { NO_SOCKET } else { u32::from(count == 1) };
                assert_eq!(run(&program, &packet_to(slot)), owner.map_or(other, |&(_, index)| index));
            }
        }
    }

    #[test]
    fn probes_go_to_the_number_they_carry() {
        let program = program(&[(Slot::new(7), 1)]);
        assert_eq!(run(&program, &probe(1, 42, 0)), 42);
    }

    fn session(answers: &[&[u16]]) -> Session {
        let answers: Vec<_> = answers.iter().map(|slots| slots.iter().map(|&slot| Slot::new(slot)).collect()).collect();
        let mailbox = slot::mailbox(&AnswersName(random::number().unwrap())).unwrap();
        let (asked, given_up, round, deadline) = (answers.len(), 0, 1, Instant(0));
        Session { _builder: None, mailbox, nonce: 1, answers, asked, given_up, round, deadline }
    }

    #[test]
    fn answers_of_hashing_kernel_are_detected() {
        assert!(session(&[&[1], &[2, 3]]).is_complete());
        assert_eq!(session(&[&[9], &[2, 3]]).map(), [(Slot::new(2), 1), (Slot::new(3), 1), (Slot::new(9), 0)]);
        assert!(!session(&[&[1], &[]]).is_complete());
        assert!(!session(&[&[1], &[1]]).is_complete());
        assert!(session(&[&[1], &[1]]).map().is_empty());
    }

    #[test]
    fn number_without_socket_gets_no_slots() {
        let second = Session { round: 2, ..session(&[&[7], &[5], &[7]]) };
        assert!(second.is_complete());
        assert_eq!(second.map(), [(Slot::new(5), 1), (Slot::new(7), 0)]);
        assert!(!Session { round: 2, ..session(&[&[7], &[]]) }.is_complete());
    }

    type Member = (Arc<UdpLink>, [SlotSocket; 1]);

    /// Sockets of one group, each a stand-in for a process.
    fn members(gid: Gid, ifindex: u32, count: usize) -> Vec<Member> {
        let link = || Arc::new(UdpLink::open(gid, 1, true, true).unwrap());
        (0..count).map(|_| (link(), [SlotSocket::claim(ifindex).unwrap()])).collect()
    }

    /// Answers all received probes; returns the numbers of probes and of answers sent.
    fn answer_all(members: &[Member]) -> [usize; 2] {
        let mut buf = vec![0; 65_536];
        let mut answers = Vec::new();
        for (link, mine) in members {
            while let Some(meta) = link.recv(&mut buf).unwrap() {
                answers.extend(
                    buf[..meta.len]
                        .chunks(meta.segment)
                        .map(|packet| answer(packet, &meta, link.local_port(), mine).unwrap()),
                );
            }
        }
        [answers.len(), answers.iter().filter(|is_told| **is_told).count()]
    }

    #[test]
    fn answers_of_many_processes_fit_the_mailbox() {
        const NOWHERE: u32 = 0x7000_0015;
        let members = members(Ipv4Addr::new(127, 78, 0, 6).into(), NOWHERE, 3 * WINDOW);
        let mut steering = Steering::new(Arc::clone(&members[0].0), NOWHERE, Instant(0));
        steering.step(Instant(0));
        // The session sees no time pass, so it ends with the last answer. The kernel may deliver a
        // datagram a little later.
        let limit = std::time::Instant::now() + Duration::from_secs(20);
        while steering.deadline().is_some() {
            let [probes, answers] = answer_all(&members);
            assert_eq!((probes <= WINDOW, answers), (true, probes));
            assert!(std::time::Instant::now() < limit, "{steering:?}");
            steering.step(Instant(0));
        }
    }

    #[test]
    fn answer_for_unprobed_number_is_ignored() {
        const NOWHERE: u32 = 0x7000_0018;
        let members = members(Ipv4Addr::new(127, 78, 0, 9).into(), NOWHERE, 2 * WINDOW);
        let mut steering = Steering::new(Arc::clone(&members[0].0), NOWHERE, Instant(0));
        steering.step(Instant(0));
        let (nonce, sender) = (steering.session.as_ref().unwrap().nonce, &members[0].1[0]);
        for index in [WINDOW as u32 - 1, WINDOW as u32, u32::MAX] {
            let header = Frame::ProbeSeen { nonce, round: 1, index }.header();
            sender.send_to(&AnswersName(nonce), &header, &sender.slot().get().to_ne_bytes()).unwrap();
        }
        let session = steering.session.as_mut().unwrap();
        session.collect();
        assert_eq!((session.asked, session.answered()), (WINDOW, 1));
    }

    #[test]
    fn session_waits_for_joiners_in_large_group() {
        const NOWHERE: u32 = 0x7000_0016;
        let gid = Ipv4Addr::new(127, 78, 0, 7).into();
        let mut all = members(gid, NOWHERE, GATHERING.0 + 1);
        let mut steering = Steering::new(Arc::clone(&all[0].0), NOWHERE, Instant(0));
        steering.step(Instant(0));
        let begins = steering.deadline().unwrap();
        // Sockets that others open and close meanwhile may be counted twice.
        assert!(steering.fd().is_none() && begins >= Instant(0).after(GATHERING.1 * all.len() as u32));
        let mut joins = Steering::new(Arc::clone(&all[1].0), NOWHERE, Instant(0));
        joins.step(Instant(0));
        assert!(joins.deadline().is_some_and(|due| due > Instant(0)) && joins.fd().is_none(), "one at a time");
        all.extend(members(gid, NOWHERE, 3));
        steering.step(begins);
        assert!(steering.session.is_some_and(|session| session.answers.len() >= all.len()));
    }

    #[test]
    fn probed_process_measures_only_for_later_reasons() {
        const NOWHERE: u32 = 0x7000_0017;
        let gid: Gid = Ipv4Addr::new(127, 78, 0, 8).into();
        let members = members(gid, NOWHERE, 2);
        let new = || Steering::new(Arc::clone(&members[0].0), NOWHERE, Instant(0));
        let (mut joins, mut asked) = (new(), new());
        joins.step(Instant(0));
        assert!(joins.fd().is_some());
        drop(joins);
        asked.note_probed(Instant(0));
        asked.step(Instant(0));
        assert_eq!((asked.fd(), asked.deadline()), (None, None));
        let later = Instant(0).after(UNANSWERED);
        assert!(asked.note_unanswered(later));
        asked.step(later);
        assert!(asked.fd().is_some());
    }

    /// Three sockets of a group on an address of its own, each a stand-in for a process.
    #[test]
    fn session_measures_numbers_and_kernel_follows() {
        const NOWHERE: u32 = 0x7000_0010;
        let gid: Gid = Ipv4Addr::new(127, 78, 0, 1).into();
        let members = members(gid, NOWHERE, 3);
        let mut steering = Steering::new(Arc::clone(&members[2].0), NOWHERE, Instant(0));
        let mut buf = vec![0; 65_536];
        steering.step(Instant(0));
        assert!(steering.fd().is_some());
        for round in 0..2 {
            let [probes, answers] = answer_all(&members);
            assert_eq!(probes, answers);
            steering.step(Instant(round));
        }
        assert_eq!((steering.fd(), steering.deadline()), (None, None));
        let to = NetHeader { dst: gid, src_port: ROCE_PORT, ..NetHeader::default() };
        for (link, mine) in &members {
            members[0].0.send(&to, &packet_to(mine[0].slot().get()), 16).unwrap();
            assert_eq!(link.recv(&mut buf).unwrap().map(|meta| meta.len), Some(16));
        }
    }

    #[test]
    fn unanswering_process_is_replaced_by_answering_one() {
        const NOWHERE: u32 = 0x7000_0012;
        let gid: Gid = Ipv4Addr::new(127, 78, 0, 3).into();
        let members = members(gid, NOWHERE, 8);
        let (runs, mut buf) = (&members[7], vec![0; 65_536]);
        let mut steering = Steering::new(Arc::clone(&runs.0), NOWHERE, Instant(0));
        let mut now = Instant(0);
        steering.step(now);
        while let Some(deadline) = steering.deadline() {
            // Packets sent to the others stay there.
            while let Some(meta) = runs.0.recv(&mut buf).unwrap() {
                buf[..meta.len]
                    .chunks(meta.segment)
                    .for_each(|packet| assert!(answer(packet, &meta, runs.0.local_port(), &runs.1).is_some()));
            }
            now = deadline;
            steering.step(now);
        }
        // The kernel's hash depends on the source address.
        for last in 1..=32 {
            let from = UdpLink::open(Ipv4Addr::new(127, 78, 1, last).into(), 1, true, true).unwrap();
            let to = NetHeader { dst: gid, src_port: ROCE_PORT, ..NetHeader::default() };
            from.send(&to, &packet_to(members[0].1[0].slot().get()), 16).unwrap();
            assert_eq!(runs.0.recv(&mut buf).unwrap().map(|meta| meta.len), Some(16), "from 127.78.1.{last}");
        }
    }

    #[test]
    fn unanswered_packets_start_sessions_at_intervals() {
        const NOWHERE: u32 = 0x7000_0013;
        let gid: Gid = Ipv4Addr::new(127, 78, 0, 4).into();
        let link = Arc::new(UdpLink::open(gid, 1, true, true).unwrap());
        let (mut steering, mut now) = (Steering::new(link, NOWHERE, Instant(0)), Instant(0));
        steering.step(now);
        assert_eq!(steering.deadline(), None, "the process is alone");
        assert!(steering.note_unanswered(now));
        assert_eq!(steering.deadline(), Some(now.after(UNANSWERED)));
        now = now.after(UNANSWERED);
        steering.step(now);
        for _ in 0..3 {
            // Packets for others may have to wait longer.
            steering.quiet_until = now.after(BACKOFF.1);
            assert!(steering.note_forwarded(now));
            assert!(steering.note_unanswered(now) && !steering.note_unanswered(now));
            let due = steering.deadline().unwrap();
            assert_eq!(due, now.after(UNANSWERED));
            now = due;
            steering.step(now);
        }
        assert!(steering.note_unanswered(now.after(BACKOFF.1)));
        assert_eq!(
            steering.deadline(),
            Some(now.after(BACKOFF.1)),
            "the first trigger after a pause starts a session at once"
        );
    }

    #[test]
    fn stopped_session_is_discarded() {
        const NOWHERE: u32 = 0x7000_0014;
        let gid: Gid = Ipv4Addr::new(127, 78, 0, 5).into();
        let members = members(gid, NOWHERE, 2);
        let mut steering = Steering::new(Arc::clone(&members[0].0), NOWHERE, Instant(0));
        steering.step(Instant(0));
        let asked = steering.deadline().unwrap();
        let woken = asked.after(STALE);
        steering.step(woken);
        assert_eq!((steering.fd(), steering.deadline()), (None, Some(woken)), "the session begins again");
        steering.step(woken);
        assert_eq!(steering.deadline(), Some(woken.after(MAX_ANSWER_WAIT)));
    }

    #[test]
    fn stopped_builder_does_not_block_others() {
        const NOWHERE: u32 = 0x7000_0011;
        let gid: Gid = Ipv4Addr::new(127, 78, 0, 2).into();
        let links: Vec<_> = (0..2).map(|_| Arc::new(UdpLink::open(gid, 1, true, true).unwrap())).collect();
        let _stopped = slot::mailbox(&builder_name(NOWHERE, gid)).unwrap();
        let mut steering = Steering::new(Arc::clone(&links[0]), NOWHERE, Instant(0));
        let (mut now, mut builder_checks) = (Instant(0), 0);
        while now < Instant(0).after(YIELDS) {
            steering.step(now);
            assert!(steering.fd().is_none());
            now = steering.deadline().unwrap();
            builder_checks += 1;
        }
        assert!(builder_checks < 50, "{builder_checks}");
        steering.step(now);
        assert!(steering.fd().is_some());
    }
}
