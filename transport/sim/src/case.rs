//! A reproducible run, as a value and as a text.
//!
//! The first line of the text describes the world and the work. Each further line is a rule of
//! [`roxe_transport::fault`], where `qp=#N` is end number N.
//!
//! ```
//! use roxe_sim::case::Case;
//!
//! let case: Case = "service=rc net=star nodes=3 gbps=10 connections=6 only=1 \
//!                   messages=4 max_len=2000 seed=7
//!                   drop tx qp=#2 nth=3".parse()?;
//! case.play(&|_| {}).expect("play a case with one lost packet");
//! # Ok::<(), String>(())
//! ```
//!
//! [`shrink`] finds the smallest run that fails in the same way. It first replaces random faults by
//! explicit ones. Then it removes connections, messages and faults while the same promise is broken
//! (delta debugging: halves first, then smaller parts). The result is a [`Case`] again.

use crate::judge::{Broken, Promise};
use crate::links::{LinkSpec, Topology};
use crate::rng::{Choices, Rng};
use crate::scenario::{Accident, Report, Scenario, Work};
use crate::setup::{Place, Setup, number, random_setup};
use crate::wire::Fault;
use crate::world::World;
use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;
use core::time::Duration;
use roxe_transport::fault::{Action, Hold, Part, QpSelector, Rule, Rules, Spans};
use roxe_transport::qp::Service;
use roxe_wire::icrc;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Shape of the network and of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// Two nodes and a link with latency only.
    Direct,
    /// Nodes around a switch, connections between all of them.
    Star,
    Dumbbell,
    /// A star in which all send to node 0.
    Incast,
}

/// Names of networks and services in the text.
const NETS: [(&str, Net); 4] =
    [("direct", Net::Direct), ("star", Net::Star), ("dumbbell", Net::Dumbbell), ("incast", Net::Incast)];
const SERVICES: [(&str, Service); 4] =
    [("rc", Service::Rc), ("uc", Service::Uc), ("ud", Service::Ud), ("xrc", Service::XrcIni)];

#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Service of all queue pairs. On XRC the first end of each connection is the initiator.
    pub service: Service,
    pub net: Net,
    pub nodes: usize,
    pub link: LinkSpec,
    /// True if links differ in latency and bandwidth.
    pub mixed: bool,
    /// Number of connections: ends `2n` and `2n + 1` form connection `n`.
    pub connections: usize,
    /// Active connections; `None`: all.
    pub only: Option<Vec<usize>>,
    pub work: Work,
    /// Maximum number of receives in a queue; `None`: random.
    pub receives: Option<u32>,
    /// Maximum bytes in flight from one node to another.
    pub window: Option<u32>,
    pub dcqcn: bool,
    /// True if early packets wait and none may be lost ([`Setup::early_wait`]).
    pub early_wait: bool,
    pub accidents: Vec<(Duration, Accident)>,
    pub seed: u64,
    pub rules: Rules,
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub broken: Broken,
    pub faults: Vec<Fault>,
}

/// Prepares the world before a run: with exact faults, or with a broken card.
pub type Prepare<'a> = &'a dyn Fn(&mut World<Rng>);

impl Default for Case {
    fn default() -> Self {
        Self {
            service: Service::Rc,
            net: Net::Direct,
            nodes: 2,
            link: LinkSpec::delay(Duration::from_micros(5)),
            mixed: false,
            connections: 1,
            only: None,
            work: Work { messages: 10, max_len: 2000, mishaps: false },
            receives: None,
            window: None,
            dcqcn: false,
            early_wait: false,
            accidents: Vec::new(),
            seed: 0,
            rules: Rules::default(),
        }
    }
}

impl Case {
    pub fn play(&self, prepare: Prepare<'_>) -> Result<Report, Box<Failure>> {
        let mut world = self.world();
        world.wire.record = Some(Vec::new());
        prepare(&mut world);
        let mut scenario = Scenario::new(world, self.work);
        if self.net == Net::Incast {
            scenario.mute_second_ends();
        }
        for &(after, accident) in &self.accidents {
            scenario = scenario.with_accident(after, accident);
        }
        // After a panic only the record is used, which is never partly written.
        let played = catch_unwind(AssertUnwindSafe(|| scenario.play()));
        let result = played.unwrap_or_else(|payload| {
            let (owned, fixed) = (payload.downcast_ref::<String>(), payload.downcast_ref::<&str>());
            let detail = owned.cloned().or_else(|| fixed.map(ToString::to_string)).unwrap_or_default();
            Err(Broken { promise: Promise::NoPanic, end: None, at: scenario.world.now(), detail })
        });
        let faults = scenario.world.wire.record.take().unwrap_or_default();
        result.map_err(|broken| Box::new(Failure { broken, faults }))
    }

    /// Returns the world of the case: active ends are in RTS.
    fn world(&self) -> World<Rng> {
        let mut world = World::new(self.topology(), Rng::new(self.seed));
        world.wire.pause_faults_after = (!self.work.mishaps).then_some(3);
        world.wire.set_faults(&self.rules, self.seed);
        let mut seeds = Rng::new(!self.seed);
        for connection in 0..self.connections {
            let setup = self.setup(&mut seeds.fork());
            let places = self.places(connection);
            match self.only.as_ref().is_none_or(|only| only.contains(&connection)) {
                true => world.connect(&setup, places),
                false => world.add(&setup, places),
            };
        }
        world
    }

    fn topology(&self) -> Topology {
        let mut topology = match self.net {
            Net::Direct => Topology::direct(self.link.latency),
            Net::Star | Net::Incast => Topology::star(self.nodes, self.link),
            Net::Dumbbell => Topology::dumbbell(self.nodes, self.link, self.link),
        };
        if self.mixed {
            let mut rng = Rng::new(self.seed);
            for node in 0..self.nodes {
                let (latency, slower) = (self.link.latency * rng.between(1, 20), rng.pick(&[1, 1, 4, 10]));
                let bandwidth = self.link.bandwidth.map(|all| all / slower);
                topology.up(node).spec = LinkSpec { latency, bandwidth, ..self.link };
                topology.down(node).spec = LinkSpec { latency, bandwidth, ..self.link };
            }
        }
        topology
    }

    fn setup(&self, rng: &mut Rng) -> Setup {
        let mut setup = random_setup(self.service, rng);
        if self.work.mishaps {
            (setup.retry_cnt, setup.rnr_retry) = (rng.below(8) as u8, rng.below(8) as u8);
        }
        if self.net != Net::Direct {
            // A window belongs to a node. Large worlds have short queues.
            let longest = if self.net == Net::Incast { 32 } else { 8 };
            setup.flow_limit = self.window;
            setup.caps.max_send_wr = setup.caps.max_send_wr.min(longest);
            setup.caps.max_recv_wr = setup.caps.max_recv_wr.min(longest);
            (setup.latency, setup.stall) = (self.link.latency, 0);
        }
        setup.caps.max_recv_wr = self.receives.unwrap_or(setup.caps.max_recv_wr);
        setup.early_wait = self.early_wait;
        setup.line_rate = self.link.bandwidth.filter(|_| self.dcqcn).and_then(NonZeroU64::new);
        setup
    }

    /// Returns the places of both ends of a connection.
    fn places(&self, connection: usize) -> [Place; 2] {
        let (n, others) = (self.nodes, self.nodes - 1);
        let first = if self.net == Net::Incast { 1 + connection % others } else { connection % n };
        let second = if self.net == Net::Incast { 0 } else { (first + 1 + connection / n % others) % n };
        [(first, 2 * connection), (second, 2 * connection + 1)].map(|(node, end)| Place { node, qpn: number(end) })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (link, work) = (&self.link, &self.work);
        write!(f, "service={} net={}", name_of(&SERVICES, self.service), name_of(&NETS, self.net))?;
        write!(f, " nodes={} latency={}us", self.nodes, link.latency.as_micros())?;
        let gbps = link.bandwidth.map(|bandwidth| bandwidth / 1_000_000_000);
        write_word(f, "gbps", gbps)?;
        write_word(f, "queue", link.queue)?;
        write_word(f, "mark", link.mark_above)?;
        write!(f, "{}", if self.mixed { " mixed" } else { "" })?;
        write!(f, " connections={}", self.connections)?;
        if let Some(only) = &self.only {
            let list: Vec<String> = only.iter().map(ToString::to_string).collect();
            write!(f, " only={}", list.join(","))?;
        }
        write!(f, " messages={} max_len={}", work.messages, work.max_len)?;
        for (word, is_set) in [(" mishaps", work.mishaps), (" dcqcn", self.dcqcn), (" early_wait", self.early_wait)] {
            f.write_str(if is_set { word } else { "" })?;
        }
        write_word(f, "receives", self.receives)?;
        write_word(f, "window", self.window)?;
        for (after, accident) in &self.accidents {
            match accident {
                Accident::Error(end) => write!(f, " error={end}@{}us", after.as_micros())?,
                Accident::Gone(node) => write!(f, " gone={node}@{}us", after.as_micros())?,
            }
        }
        write!(f, " seed={}", self.seed)?;
        if let Some(seed) = self.rules.seed() {
            write!(f, "\nseed={seed}")?;
        }
        self.rules.list().iter().try_for_each(|rule| write!(f, "\n{rule}"))
    }
}

fn write_word(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {name}={value}"))
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, of)| *of == value).map_or("", |(name, _)| name)
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (words, rules) = text.trim().split_once('\n').unwrap_or((text, ""));
        let mut case = Self { rules: rules.parse().map_err(|error| format!("{error}"))?, ..Self::default() };
        for word in words.split_whitespace() {
            case.parse_word(word).ok_or_else(|| format!("{word:?} is not a word of a case"))?;
        }
        let known = |end: usize| end < 2 * case.connections;
        let is_valid = case.nodes >= 2
            && case.only.iter().flatten().all(|&connection| known(2 * connection))
            && case.accidents.iter().all(|(_, accident)| !matches!(accident, Accident::Error(end) if !known(*end)));
        if is_valid { Ok(case) } else { Err("a node or an end of the case does not exist".into()) }
    }
}

impl Case {
    fn parse_word(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "service" => self.service = SERVICES.iter().find(|(name, _)| *name == value)?.1,
            "net" => self.net = NETS.iter().find(|(name, _)| *name == value)?.1,
            "nodes" => self.nodes = value.parse().ok()?,
            "latency" => self.link.latency = micros(value)?,
            "gbps" => self.link.bandwidth = Some(value.parse::<u64>().ok()?.checked_mul(1_000_000_000)?),
            "queue" => self.link.queue = Some(value.parse().ok()?),
            "mark" => self.link.mark_above = Some(value.parse().ok()?),
            "mixed" => self.mixed = true,
            "connections" => self.connections = value.parse().ok()?,
            "only" => self.only = Some(value.split(',').map(str::parse).collect::<Result<_, _>>().ok()?),
            "messages" => self.work.messages = value.parse().ok()?,
            "max_len" => self.work.max_len = value.parse().ok()?,
            "mishaps" => self.work.mishaps = true,
            "dcqcn" => self.dcqcn = true,
            "early_wait" => self.early_wait = true,
            "receives" => self.receives = Some(value.parse().ok()?),
            "window" => self.window = Some(value.parse().ok()?),
            "error" | "gone" => self.accidents.push(accident(name, value)?),
            "seed" => self.seed = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}

fn micros(text: &str) -> Option<Duration> {
    text.strip_suffix("us")?.parse().ok().map(Duration::from_micros)
}

fn accident(name: &str, value: &str) -> Option<(Duration, Accident)> {
    let (number, after) = value.split_once('@')?;
    let number = number.parse().ok()?;
    Some((micros(after)?, if name == "gone" { Accident::Gone(number) } else { Accident::Error(number) }))
}

const MAX_RUNS: u32 = 2000;

/// Result of [`shrink`].
#[derive(Clone, Debug)]
pub struct Smallest {
    pub case: Case,
    pub broken: Broken,
    pub runs: u32,
}

impl fmt::Display for Smallest {
    /// Writes the broken promise, and the text of the case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nthe smallest run that does it (found in {} runs):\n{}", self.broken, self.runs, self.case)
    }
}

/// Shrinks `case`, which failed with `failure` after `prepare`.
pub fn shrink(case: &Case, failure: &Failure, prepare: Prepare<'_>) -> Smallest {
    let mut search = Search { prepare, broken: failure.broken.clone(), runs: 0 };
    let mut case = case.clone();
    search.leave_out_connections(&mut case, None);
    search.leave_out_messages(&mut case, None);
    let Some(mut faults) = search.faults_of(&case) else { return search.found(case) };
    for _ in 0..2 {
        search.leave_out(&mut faults, |search, rest| search.fails(&case, Some(rest)));
        search.leave_out_connections(&mut case, Some(&faults));
        search.leave_out_messages(&mut case, Some(&faults));
    }
    let explicit = Case { rules: rules_of(&faults), ..case.clone() };
    // Rules do not name the damaged bit, and their number is limited.
    if search.fails(&explicit, None) { search.found(explicit) } else { search.found(case) }
}

struct Search<'a> {
    prepare: Prepare<'a>,
    broken: Broken,
    runs: u32,
}

impl Search<'_> {
    fn found(self, case: Case) -> Smallest {
        Smallest { case, broken: self.broken, runs: self.runs }
    }

    /// Returns true if the run still breaks the promise, with `faults`, if any, instead of its
    /// rules.
    fn fails(&mut self, case: &Case, faults: Option<&[Fault]>) -> bool {
        self.failure(case, faults).is_some()
    }

    fn failure(&mut self, case: &Case, faults: Option<&[Fault]>) -> Option<Box<Failure>> {
        if self.runs >= MAX_RUNS {
            return None;
        }
        self.runs += 1;
        let prepare = self.prepare;
        let failure = case
            .play(&|world| {
                if let Some(faults) = faults {
                    world.wire.repeat_faults(faults);
                }
                prepare(world);
            })
            .err()?;
        if failure.broken.promise != self.broken.promise {
            return None;
        }
        self.broken.clone_from(&failure.broken);
        Some(failure)
    }

    /// Returns the faults of a run, rounded to what rules can express; `None` if they alone do not
    /// make it fail.
    fn faults_of(&mut self, case: &Case) -> Option<Vec<Fault>> {
        let faults: Vec<Fault> = self.failure(case, None)?.faults.into_iter().map(rounded).collect();
        self.fails(case, Some(&faults)).then_some(faults)
    }

    fn leave_out_connections(&mut self, case: &mut Case, faults: Option<&[Fault]>) {
        let mut only = case.only.clone().unwrap_or_else(|| (0..case.connections).collect());
        let with_only = |case: &Case, only: &[usize]| Case { only: Some(only.to_vec()), ..case.clone() };
        self.leave_out(&mut only, |search, rest| !rest.is_empty() && search.fails(&with_only(case, rest), faults));
        *case = with_only(case, &only);
    }

    fn leave_out_messages(&mut self, case: &mut Case, faults: Option<&[Fault]>) {
        let mut step = case.work.messages / 2;
        while step > 0 {
            let mut fewer = case.clone();
            fewer.work.messages -= step.min(fewer.work.messages - 1);
            if fewer.work.messages < case.work.messages && self.fails(&fewer, faults) {
                *case = fewer;
            } else {
                step /= 2;
            }
        }
    }

    /// Removes parts of `list` while the rest still fails: large parts first, single items last.
    fn leave_out<T: Clone>(&mut self, list: &mut Vec<T>, fails: impl Fn(&mut Self, &[T]) -> bool) {
        let mut part = list.len();
        while part > 0 {
            let mut at = 0;
            while at < list.len() {
                let end = (at + part).min(list.len());
                let rest = [&list[..at], &list[end..]].concat();
                if fails(self, &rest) {
                    *list = rest;
                } else {
                    at = end;
                }
            }
            part = part.min(list.len()) / 2;
        }
    }
}

/// Rounds the times of a fault to microseconds, the unit of rules.
fn rounded(mut fault: Fault) -> Fault {
    let to_micros = |time: Duration| Duration::from_micros(u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(0));
    fault.verdict.delay = to_micros(fault.verdict.delay);
    fault.verdict.copies_after = to_micros(fault.verdict.copies_after);
    fault
}

pub fn rules_of(faults: &[Fault]) -> Rules {
    Rules::new(None, faults.iter().flat_map(rules_of_one).collect())
}

fn rules_of_one(fault: &Fault) -> impl Iterator<Item = Rule> {
    let (verdict, end) = (fault.verdict, u32::try_from(fault.end).unwrap_or(u32::MAX));
    let twice = Action::Duplicate { copies: verdict.copies, after: Hold::exactly(verdict.copies_after) };
    let actions = [
        verdict.drop.then_some(Action::Drop),
        (verdict.copies > 0).then_some(twice),
        (!verdict.delay.is_zero()).then_some(Action::Delay(Hold::exactly(verdict.delay))),
        verdict.corrupt.map(|corruption| Action::Corrupt(part_of(fault, corruption.at.into()))),
        verdict.mark_ce.then_some(Action::Ecn),
        verdict.rnr.then_some(Action::Rnr),
        verdict.forged.map(Action::Forge),
    ];
    let (fault, dir) = (*fault, Some(fault.dir));
    actions.into_iter().flatten().map(move |action| {
        // A rule counts only packets that its action can affect.
        let nth = match action {
            Action::Corrupt(Part::Payload) => fault.nth.with_payload,
            Action::Rnr => fault.nth.with_receive,
            _ => fault.nth.all,
        };
        Rule { dir, qp: Some(QpSelector::Ordinal(end)), nth: Spans::new(vec![(nth, nth)]), ..Rule::new(action) }
    })
}

/// Returns the damaged part of the packet; the pad counts as payload.
fn part_of(fault: &Fault, at: usize) -> Part {
    match at {
        at if at < fault.header_len => Part::Header,
        at if at + icrc::LEN < fault.len => Part::Payload,
        _ => Part::Icrc,
    }
}
