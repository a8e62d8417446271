//! `roxe fuzz` on virtual cards: it finds no difference in the model, and finds a card with one
//! wrong answer, completion or byte, with a script that shows the difference.

use roxe_drill::fuzz::{Options, fuzz};
use roxe_drill::target::{
    Answer, Card, Change, Completed, Datagram, Extensions, FarSide, Handle, NewQp, Piece, Refused, Region, Work,
};
use roxe_drill::{Script, Target, Verdict, VirtualCard, run};
use roxe_wire::Gid;
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
        let (card, last_packet, last_completion) = (VirtualCard::default(), None, None);
        Self { card, mistake, last_packet, last_completion, chances: 0, runs: 0, random: 1, has_erred: false }
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

    /// The packet of the mistake, in a wait in which no packet comes.
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
        register(length: u64, access: u32, fill: u8, pd: Option<Handle>) -> Answer<Region>;
        deregister(mr: Handle) -> Answer<()>;
        create_cq(cqe: u32) -> Answer<Handle>;
        create_srq(pd: Option<Handle>) -> Answer<Handle>;
        modify_qp(qp: Handle, change: &Change) -> Answer<()>;
        query_qp(qp: Handle) -> Answer<String>;
        destroy_qp(qp: Handle) -> Answer<()>;
        post_recv(qp: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()>;
        post_srq_recv(srq: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()>;
        write(mr: Handle, at: u64, bytes: &[u8]) -> Answer<()>;
        events() -> Answer<Vec<String>>;
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

impl Extensions for Wrong {}

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
        self.card.send(datagram)
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

/// Checks that this mistake is found with this cause, by a script that fails only on its card.
fn is_found(mistake: Mistake, cause: &str) {
    let summary = fuzz(&mut Wrong::new(mistake), &Options { cases: 200, ..OPTIONS }, |_| {}).unwrap();
    let found = summary.findings.iter().find(|finding| finding.cause == cause);
    let finding = found.unwrap_or_else(|| panic!("{summary:?}"));
    assert!(finding.count > 1, "one cause is one finding: {finding:?}");
    let sends = finding.script.lines().filter(|line| line.starts_with("send ")).count();
    assert!(sends <= 3, "it is short: {}", finding.script);
    let script = Script::parse("found", &finding.script).unwrap();
    let verdict = |card: &mut dyn Target| run("found", &script.cases()[0], card).verdict;
    let model = verdict(&mut VirtualCard::default());
    assert!(matches!(model, Verdict::Pass), "{model:?}\n{}", finding.script);
    assert!(matches!(verdict(&mut Wrong::new(mistake)), Verdict::Fail(_)), "{}", finding.script);
}

#[test]
fn wrong_answer_is_found() {
    is_found(Mistake::Answer, "RC answers: model: NAK invalid_request; card: NAK remote_operation");
}

#[test]
fn duplicate_completion_is_found() {
    is_found(Mistake::Completion, "UD completions: model: nothing; card: status=SUCCESS opcode=RECV");
}

#[test]
fn wrong_byte_is_found() {
    is_found(Mistake::Byte(4000), "UD memory: model: byte; card: byte");
}
