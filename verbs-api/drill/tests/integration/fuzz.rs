//! `roxe fuzz` on virtual cards: it finds no difference in the model, and finds a card with one
//! wrong answer, completion or byte, with a script that shows the difference.

use roxe_drill::fuzz::{Options, fuzz};
use roxe_drill::target::{
    Answer, Card, Change, Completed, Datagram, Event, Extensions, FarSide, Handle, NewQp, Piece, Refused, Region, Work,
};
use roxe_drill::{Script, Target, Verdict, VirtualCard, run};
use roxe_wire::Gid;
use std::collections::BTreeMap;
use std::time::Duration;

const OPTIONS: Options =
    Options { seed: 1, time: Duration::from_secs(600), cases: 300, settle: Duration::from_millis(5), spares: false };

/// The longest datagram on an Ethernet with IPv4, bytes.
const MAX_DATAGRAM: usize = 1472;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// It answers an invalid request as if it had failed to carry it out.
    Answer,
    /// Completes each receive twice.
    Completion,
    /// Changes this byte of each region.
    Byte(u64),
    /// Passes on a hop limit in the GRH of datagrams that is lower by one.
    Header,
    /// Names another source queue pair of datagrams.
    Source,
    /// Raises no event for a refused access.
    NoEvent,
    /// Raises the event of a shared receive queue twice.
    TwoEvents,
    /// Changes a byte in each packet from the 30th in the middle of a message on.
    LongMessage,
    /// None; but it tells of completions this long after the last packet.
    Tardy(Duration),
    /// It sends its last packet again at the n-th chance, which is a wait in which none comes.
    Repeat(usize),
    /// It sends a CNP at the n-th chance.
    Cnp(usize),
    /// None; but one of n packets to or from it is lost on the way.
    Loss(u64),
    /// None; but the packets of one run are lost on the way, and at the start of a later run the
    /// agent is lost.
    LostAgent { lossy: usize, lost: usize },
    /// It completes its last work request again at the n-th poll of an empty queue.
    Extra(usize),
    /// None; but each wait and each post takes longer by this time, and the near side sends each
    /// packet later by it.
    Late(Duration),
    /// None; but it takes this time to create a queue pair.
    SlowSetup(Duration),
    /// None; but the near side has one address, on an Ethernet of MTU 1500.
    None,
}

/// A card that does that wrong, and nothing else.
pub(crate) struct Wrong {
    card: VirtualCard,
    mistake: Mistake,
    last_packet: Option<Datagram>,
    last_completion: Option<Completed>,
    chances: usize,
    /// Number of runs that have begun.
    runs: usize,
    /// Packets in the middle of a message since its start, by queue pair.
    middles: BTreeMap<[u8; 3], usize>,
    /// Completions of `Tardy` by queue, and the time of the last packet to the card.
    held: BTreeMap<Handle, Vec<Completed>>,
    sent: Duration,
    random: u64,
    has_erred: bool,
}

impl Wrong {
    /// Returns true if the network loses the next packet.
    fn loses(&mut self) -> bool {
        let period = match self.mistake {
            Mistake::Loss(period) => period,
            Mistake::LostAgent { lossy, .. } => return self.runs == lossy,
            _ => return false,
        };
        // A linear congruential generator: a fixed period would lose the same packet each time.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33).is_multiple_of(period)
    }

    /// Returns the delay of the near side.
    fn late(&self) -> Duration {
        if let Mistake::Late(late) = self.mistake { late } else { Duration::ZERO }
    }

    pub(crate) fn new(mistake: Mistake) -> Self {
        Self {
            card: VirtualCard::default(),
            mistake,
            last_packet: None,
            last_completion: None,
            chances: 0,
            runs: 0,
            middles: BTreeMap::new(),
            held: BTreeMap::new(),
            sent: Duration::ZERO,
            random: 1,
            has_erred: false,
        }
    }

    /// Returns the packet as the card sees it.
    fn seen(&mut self, mut datagram: Datagram) -> Datagram {
        // Opcodes of UD begin with the bits 011.
        let Some([opcode, _, _, _, _, qpn @ .., _, _, _, _]) = datagram.bytes.first_chunk::<12>().copied() else {
            return datagram;
        };
        if self.mistake == Mistake::Header && opcode >> 5 == 0b011 {
            datagram.net.hop_limit -= 1;
        }
        if self.mistake == Mistake::LongMessage {
            let is_middle = matches!(opcode & 0x1f, 0x01 | 0x07);
            let middles = self.middles.entry(qpn).or_default();
            *middles = if is_middle { *middles + 1 } else { 0 };
            if *middles >= 30 && roxe_wire::icrc::verify(&datagram.net, &datagram.bytes) && datagram.bytes.len() > 20 {
                datagram.bytes[12] ^= 1;
                roxe_wire::icrc::seal(&datagram.net, &mut datagram.bytes);
            }
        }
        datagram
    }

    /// Returns true if the card has made its mistake `Repeat`, `Cnp` or `Extra`.
    pub(crate) fn has_erred(&self) -> bool {
        self.has_erred
    }

    /// Returns true at the n-th chance.
    fn errs(&mut self, at: usize) -> bool {
        self.chances += 1;
        let errs = self.chances == at + 1;
        self.has_erred |= errs;
        errs
    }

    /// Returns the packet of the mistake, in a wait in which no packet comes.
    fn stray(&mut self) -> Option<Datagram> {
        let mut datagram = self.last_packet.clone()?;
        let mistake = self.mistake;
        match mistake {
            Mistake::Repeat(at) if self.errs(at) => Some(datagram),
            Mistake::Cnp(at) if self.errs(at) => {
                datagram.bytes[0] = 0x81;
                datagram.bytes[4] = 0x40;
                datagram.bytes[8..12].fill(0);
                datagram.bytes.resize(12 + 16 + 4, 0);
                datagram.bytes[12..].fill(0);
                roxe_wire::icrc::seal(&datagram.net, &mut datagram.bytes);
                Some(datagram)
            }
            _ => None,
        }
    }
}

macro_rules! delegate {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) -> $result {
            self.card.$name($($argument),*)
        })*
    };
}

impl FarSide for Wrong {
    delegate! {
        alloc_pd() -> Answer<Handle>;
        register(length: u64, access: u32, fill: u8, pd: Option<Handle>, edge: Option<u64>) -> Answer<Region>;
        deregister(mr: Handle) -> Answer<()>;
        create_cq(cqe: u32) -> Answer<Handle>;
        create_srq(pd: Option<Handle>) -> Answer<Handle>;
        modify_qp(qp: Handle, change: &Change) -> Answer<()>;
        query_qp(qp: Handle) -> Answer<String>;
        destroy_qp(qp: Handle) -> Answer<()>;
        post_recv(qp: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()>;
        post_srq_recv(srq: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()>;
        write(mr: Handle, at: u64, bytes: &[u8]) -> Answer<()>;
    }

    fn events(&mut self) -> Answer<Vec<Event>> {
        let mut events = self.card.events()?;
        if self.mistake == Mistake::NoEvent {
            events.retain(|event| event.name != "QP_ACCESS_ERR");
        }
        let again = events.iter().filter(|event| self.mistake == Mistake::TwoEvents && event.name.starts_with("SRQ"));
        events.extend(again.cloned().collect::<Vec<_>>());
        Ok(events)
    }

    fn create_qp(&mut self, new: &NewQp) -> Answer<(Handle, u32)> {
        if let Mistake::SlowSetup(time) = self.mistake {
            self.card.pause(self.card.now() + time);
        }
        self.card.create_qp(new)
    }

    fn post_send(&mut self, qp: Handle, work: &Work) -> Answer<()> {
        self.card.pause(self.card.now() + self.late());
        self.card.post_send(qp, work)
    }

    fn poll(&mut self, cq: Handle) -> Answer<Vec<Completed>> {
        let mut done = self.card.poll(cq)?;
        if self.mistake == Mistake::Source {
            done.iter_mut().for_each(|done| done.src_qp ^= 1);
        }
        if let Mistake::Tardy(time) = self.mistake {
            let held = self.held.entry(cq).or_default();
            held.extend(done);
            done = if self.card.now() < self.sent + time { Vec::new() } else { std::mem::take(held) };
        }
        let again = done.iter().filter(|done| self.mistake == Mistake::Completion && done.opcode == "RECV");
        done.extend(again.cloned().collect::<Vec<_>>());
        if let (true, Mistake::Extra(at), Some(last)) = (done.is_empty(), self.mistake, self.last_completion.clone())
            && self.errs(at)
        {
            done.push(last);
        }
        self.last_completion = done.last().cloned().or_else(|| self.last_completion.take());
        Ok(done)
    }

    fn read(&mut self, mr: Handle, at: u64, len: u64) -> Answer<Vec<u8>> {
        let mut bytes = self.card.read(mr, at, len)?;
        if let Mistake::Byte(wrong) = self.mistake
            && let Some(byte) = wrong.checked_sub(at).and_then(|at| bytes.get_mut(at as usize))
        {
            *byte ^= 1;
        }
        Ok(bytes)
    }
}

impl Extensions for Wrong {
    delegate! {
        set_limit(srq: Handle, limit: u32) -> Answer<()>;
    }
}

impl Target for Wrong {
    fn pause(&mut self, until: Duration) {
        self.card.pause(until + self.late());
    }

    fn card(&self, ipv6: bool) -> Option<Card> {
        let mut card = self.card.card(ipv6)?;
        if self.mistake == Mistake::None {
            (card.near[1], card.max_mtu, card.max_datagram) = (Gid::default(), 1024, MAX_DATAGRAM);
        }
        if matches!(self.mistake, Mistake::Late(_) | Mistake::SlowSetup(_)) {
            // Only the lateness of a judge that has no virtual clock is measured.
            card.jitter = Duration::from_nanos(1);
        }
        Some(card)
    }

    fn begin(&mut self, ipv6: bool) -> Answer<()> {
        (self.last_packet, self.last_completion, self.chances) = (None, None, 0);
        self.middles.clear();
        self.held.clear();
        self.runs += 1;
        if self.is_lost() {
            return Err(Refused::broken("the agent has closed the connection"));
        }
        self.card.begin(ipv6)
    }

    fn is_lost(&self) -> bool {
        matches!(self.mistake, Mistake::LostAgent { lost, .. } if self.runs >= lost)
    }

    fn now(&self) -> Duration {
        self.card.now()
    }

    fn send(&mut self, datagram: &Datagram) -> Answer<()> {
        if self.mistake == Mistake::None && datagram.bytes.len() > MAX_DATAGRAM {
            return Err(Refused { text: "the link does not take it".into(), errno: 95 });
        }
        if self.loses() {
            return Ok(());
        }
        self.card.pause(self.card.now() + self.late());
        self.sent = self.card.now();
        let seen = self.seen(datagram.clone());
        self.card.send(&seen)
    }

    fn receive(&mut self, until: Duration) -> Answer<Option<(Duration, Datagram)>> {
        let mut answer = self.card.receive(until)?;
        while answer.is_some() && self.loses() {
            answer = self.card.receive(until)?;
        }
        if let Some((_, Datagram { net, bytes })) = &mut answer
            && self.mistake == Mistake::Answer
            && (bytes[0], bytes[12]) == (0x11, 0x61)
        {
            bytes[12] = 0x63;
            roxe_wire::icrc::seal(net, bytes);
        }
        match &answer {
            Some((_, datagram)) => self.last_packet = Some(datagram.clone()),
            None => answer = self.stray().map(|datagram| (self.card.now(), datagram)),
        }
        Ok(answer)
    }
}

#[test]
fn fuzz_finds_nothing_in_the_model() {
    let summary = fuzz(&mut VirtualCard::default(), &OPTIONS, |finding| panic!("{}", finding.script)).unwrap();
    assert_eq!(summary.cases, OPTIONS.cases);
    assert!(summary.packets > 20 * summary.cases, "{summary:?}");
    assert_eq!(summary.refused, 0);
}

#[test]
fn near_side_with_one_address_runs_every_case() {
    let summary = fuzz(&mut Wrong::new(Mistake::None), &OPTIONS, |finding| panic!("{}", finding.script)).unwrap();
    assert_eq!(summary.refused, 0);
}

#[test]
fn late_completions_are_no_differences() {
    let late = Duration::from_millis(110);
    let options = Options { cases: 100, ..OPTIONS };
    let summary =
        fuzz(&mut Wrong::new(Mistake::Tardy(late)), &options, |finding| panic!("{}", finding.script)).unwrap();
    assert_eq!(summary.passing, 0, "{summary:?}");
    assert!(summary.late > 50, "{summary:?}");
}

#[test]
fn lost_packets_are_counted_as_differences_once() {
    let options = Options { cases: 100, ..OPTIONS };
    let summary = fuzz(&mut Wrong::new(Mistake::Loss(300)), &options, |_| {}).unwrap();
    assert!(summary.passing > 0 && !summary.once.is_empty(), "{summary:?}");
}

/// Checks that this mistake is found with this cause, by a script of at most `most` packets that
/// fails only on its card.
fn is_found(mistake: Mistake, most: usize, cause: &str) {
    let summary = fuzz(&mut Wrong::new(mistake), &Options { cases: 200, ..OPTIONS }, |_| {}).unwrap();
    let found = summary.findings.iter().find(|finding| finding.cause == cause);
    let finding = found.unwrap_or_else(|| panic!("{summary:?}"));
    assert!(finding.count > 1, "one cause is one finding: {finding:?}");
    let sends = finding.script.lines().filter(|line| line.starts_with("send ")).count();
    assert!(sends <= most, "it is short: {}", finding.script);
    let script = Script::parse("found", &finding.script).unwrap();
    let verdict = |card: &mut dyn Target| run("found", &script.cases()[0], card).verdict;
    let model = verdict(&mut VirtualCard::default());
    assert!(matches!(model, Verdict::Pass), "{model:?}\n{}", finding.script);
    assert!(matches!(verdict(&mut Wrong::new(mistake)), Verdict::Fail(_)), "{}", finding.script);
}

#[test]
fn wrong_answer_is_found() {
    let cause = "RC responder: the model answers NAK invalid request, the card answers NAK remote operation";
    is_found(Mistake::Answer, 3, cause);
}

#[test]
fn duplicate_completion_is_found() {
    is_found(Mistake::Completion, 3, "UD responder: the model completes nothing, the card a receive with SUCCESS");
}

#[test]
fn wrong_byte_is_found() {
    is_found(Mistake::Byte(4000), 3, "UD responder: the card changes memory that the model leaves alone");
}

#[test]
fn wrong_hop_limit_in_grh_is_found() {
    is_found(Mistake::Header, 3, "UD responder: the card writes a GRH with another TTL than the model");
}

#[test]
fn wrong_source_queue_pair_is_found() {
    let cause = "UD responder: the card completes a receive with another source queue pair than the model";
    is_found(Mistake::Source, 3, cause);
}

#[test]
fn missing_event_of_queue_pair_is_found() {
    is_found(Mistake::NoEvent, 3, "RC responder: the model raises QP_ACCESS_ERR and the card does not");
}

#[test]
fn second_event_of_shared_receive_queue_is_found() {
    is_found(Mistake::TwoEvents, 3, "RC responder: the card raises SRQ_LIMIT_REACHED and the model does not");
}

#[test]
fn wrong_byte_deep_in_long_message_is_found() {
    is_found(Mistake::LongMessage, 70, "RC responder: the card writes other bytes to memory than the model");
}
