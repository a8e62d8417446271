//! Faults of calls, completions and events: the rules of `ROXE_FAULTS` in this process, and its
//! census (`ROXE_CENSUS`), from which `roxe sweep` takes the faults to try.
//!
//! [`crate::outcome`] records the faults that hit the process. While faults, census and outcome are
//! off, a control call costs one load, and posting and polling cost nothing: the C library then
//! returns functions without the check.

use crate::stack::{Frame, Stack};
use crate::{explain, outcome};
use roxe_base::clock;
use roxe_base::config::{config, variable};
use roxe_base::error::Error;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::instruments;
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::random;
use roxe_base::standard_error;
use roxe_transport::fault::{
    Call, CallInjector, CallVerdict, Completion, CompletionVerdict, Direction, EventFault, Process, Raised, RuleError,
    Rules, Verb, WcOps,
};
use roxe_transport::time::Instant;
use roxe_wire::Packet;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::mem;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum number of calls of one verb that a census remembers.
const MAX_CALLS: usize = 1 << 14;

/// True if calls are judged or counted.
static ON: AtomicBool = AtomicBool::new(false);
/// The function that raises events of the device.
static RAISE: OnceLock<fn(EventFault, Duration)> = OnceLock::new();
static STATE: Mutex<rank::CallFaults, Option<State>> = Mutex::new(None);

thread_local! {
    /// True inside a call: verbs that the provider calls there are not calls of the program.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug)]
struct State {
    injector: CallInjector,
    start: Instant,
    census: Option<Census>,
}

impl State {
    fn at(&self) -> Duration {
        Duration::from_nanos(clock::now().0.saturating_sub(self.start.0))
    }
}

/// The faults that could be injected into this process.
#[derive(Debug, Default)]
struct Census {
    /// The stacks of all calls, in order, by verb and state.
    calls: BTreeMap<(&'static str, Option<Box<str>>), Vec<Stack>>,
    /// Completions by queue pair, in order of creation, and operation.
    completions: BTreeMap<(u32, &'static str), u64>,
    /// Packets sent, by queue pair and opcode.
    packets: BTreeMap<(u32, &'static str), u64>,
    /// Occasions of events.
    occasions: BTreeMap<&'static str, u64>,
}

/// Returns true if calls are judged or counted.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Turns on the judging of calls as the environment requests, before `main`: programs call verbs
/// before they open a device.
pub(crate) fn on_load() {
    let is_wanted = ["ROXE_FAULTS", "ROXE_CENSUS", "ROXE_OUTCOME"].iter().any(|name| variable(name).is_some());
    ON.store(is_wanted, Ordering::Relaxed);
}

/// Returns the rules of this process with their seed, announced on the first call; `None` if there
/// are none.
///
/// # Errors
/// EINVAL if `ROXE_FAULTS` cannot be parsed; an errno if no seed can be drawn.
pub fn rules() -> Result<Option<&'static Rules>, Error> {
    static RULES: OnceLock<Result<Option<Rules>, Error>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let Some(all) = &config()?.faults else { return Ok(None) };
        let rules = own_rules(all)?;
        // After `none`, rules may follow by `roxe faults`.
        if rules.is_empty() && !all.is_empty() {
            return Ok(None);
        }
        announce(&[], &rules);
        Ok(Some(rules))
    });
    rules.as_ref().map(Option::as_ref).map_err(Clone::clone)
}

/// Returns the rules that are for this process, with a seed.
fn own_rules(all: &Rules) -> Result<Rules, Error> {
    let drawn = || random::number().map_err(|e| Error::os("cannot draw a seed", &e));
    Ok(all.for_process(&process()).with_seed(all.seed().map_or_else(drawn, Ok)?))
}

/// Fails with the reason if the rules of this process cannot be replaced.
///
/// # Errors
/// Returns the reason if the process was started without rules.
pub fn check_changeable() -> Result<(), String> {
    match rules() {
        Ok(Some(_)) => Ok(()),
        _ => Err("the process was started without fault rules; start it with `roxe run --faults none`".to_owned()),
    }
}

/// Returns the rules of `text` for this process, which are to replace the present ones.
///
/// # Errors
/// Fails like [`check_changeable`], if the text cannot be parsed, if calls are not judged, or if
/// there is no seed.
pub fn parse_replacement(text: &str) -> Result<Rules, String> {
    check_changeable()?;
    let all: Rules = text.parse().map_err(|error: RuleError| error.to_string())?;
    let rules = own_rules(&all).map_err(|error| error.to_string())?;
    if !rules.calls().is_empty() && STATE.lock().is_none() {
        return Err(
            "the process was started with rules about packets only, so its calls are not judged; start it with `roxe run \
                    --faults none` or with a rule about calls"
                .to_owned(),
        );
    }
    Ok(rules)
}

/// Puts `rules` about calls in place of the present ones; counts and times begin anew. Returns the
/// old ones with their counts.
pub fn replace(rules: &Rules) -> Vec<String> {
    let new = CallInjector::new(rules, 0);
    let mut guard = STATE.lock();
    let Some(state) = &mut *guard else { return Vec::new() };
    state.start = clock::now();
    counts_of(&mem::replace(&mut state.injector, new))
}

/// Returns each rule about calls with its counts.
pub fn counts() -> Vec<String> {
    STATE.lock().as_ref().map_or_else(Vec::new, |state| counts_of(&state.injector))
}

fn counts_of(injector: &CallInjector) -> Vec<String> {
    injector.report().map(|report| report.to_string()).collect()
}

/// Reports on standard error the counts of `old` rules, and those that apply from now on.
pub fn announce(old: &[String], rules: &Rules) {
    old.iter().for_each(|count| write_line(count));
    write_line(rules);
}

fn write_line(text: &dyn Display) {
    standard_error::write(&format!("roxe: faults: {text}\n"));
}

fn process() -> Process {
    Process::of_command_line(&std::fs::read("/proc/self/cmdline").unwrap_or_default())
}

/// Begins to judge and to count calls. Later calls of this function do nothing.
///
/// # Errors
/// Fails like [`rules`].
pub fn start() -> Result<(), Error> {
    let mut state = STATE.lock();
    if state.is_some() {
        return Ok(());
    }
    let (rules, config) = (rules()?, config()?);
    let (census, outcome) = (config.census.is_some(), config.outcome.is_some());
    let has_calls = rules.is_some_and(|rules| rules.is_empty() || !rules.calls().is_empty());
    let wanted = has_calls || census || outcome;
    ON.store(wanted, Ordering::Relaxed);
    if !wanted {
        return Ok(());
    }
    let none = Rules::default();
    let injector = CallInjector::new(rules.unwrap_or(&none), 0);
    *state = Some(State { injector, start: clock::now(), census: census.then(Census::default) });
    drop(state);
    instruments::turn_on();
    at_exit(Stage::Report, end);
    if outcome {
        outcome::start(&process());
    }
    Ok(())
}

/// Sets the function that raises events of the device: the event, and the time until the port comes
/// up again.
pub fn raise_with(function: fn(EventFault, Duration)) {
    let _ = RAISE.set(function);
}

/// The error number of a call that a rule lets fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed(pub i32);

/// Judges and counts a call of `function` by the program, then makes it with `body`. For
/// `ibv_modify_qp`, `state` is the name of the requested state.
///
/// # Errors
/// The error number that a rule gives; `body` has not run.
#[cold]
pub fn call<T>(function: &str, state: Option<&str>, body: impl FnOnce() -> T) -> Result<T, Failed> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(false);
        }
    }
    if INSIDE.replace(true) {
        return Ok(body());
    }
    let _leave = Leave;
    let verdict = Verb::called(function).map(|verb| judge(verb, state)).unwrap_or_default();
    if !verdict.slow.is_zero() {
        std::thread::sleep(verdict.slow);
    }
    if let Some(raise) = RAISE.get() {
        verdict.events.iter().for_each(|(event, time)| raise(*event, *time));
    }
    match verdict.fail {
        None => Ok(body()),
        Some(errno) => {
            explain::because(|| format!("a fault rule requested it: {}", verdict.rules.join("; ")));
            Err(Failed(errno.number))
        }
    }
}

fn judge(verb: &'static Verb, state: Option<&str>) -> CallVerdict {
    // A wrong value of ROXE_FAULTS is reported when the device is opened.
    if start().is_err() {
        return CallVerdict::default();
    }
    let mut held = STATE.lock();
    let Some(found) = &mut *held else { return CallVerdict::default() };
    if let Some(census) = &mut found.census {
        let calls = census.calls.entry((verb.name, state.map(Into::into))).or_default();
        if calls.len() < MAX_CALLS {
            calls.push(Stack::here());
        }
    }
    let (at, mut frames) = (found.at(), None);
    let mut is_at = |site: &str| {
        let frames = frames.get_or_insert_with(|| Stack::here().frames());
        frames.iter().any(|frame| is_site(frame, site))
    };
    let verdict = found.injector.call(&Call { verb, state, at }, &mut is_at);
    drop(held);
    outcome::called(verb);
    verdict.rules.iter().for_each(|rule| note_hit(rule));
    verdict
}

/// Notes that `rule` was applied at a call of this thread.
fn note_hit(rule: &str) {
    if outcome::is_wanted() {
        outcome::fault(rule, &Stack::here().frames());
    }
}

/// Notes that `rule`, which is about packets, was applied.
#[cold]
pub fn spoiled(rule: &impl Display) {
    if outcome::is_wanted() {
        outcome::fault(&rule.to_string(), &[]);
    }
}

/// Returns true if `site=` matches this frame.
fn is_site(frame: &Frame, site: &str) -> bool {
    let function = word(&frame.function);
    function == site
        || function.strip_prefix(site).is_some_and(|rest| rest.starts_with('('))
        || line_of(frame).is_some_and(|line| line == site)
}

/// Returns the file name and line of a frame.
fn line_of(frame: &Frame) -> Option<String> {
    let name = frame.file.as_ref()?.file_name()?.to_string_lossy();
    Some(word(&format!("{name}:{}", frame.line?)))
}

/// Returns the text as one word of a rule.
fn word(text: &str) -> String {
    text.chars().map(|c| if c.is_whitespace() || c == ';' { '_' } else { c }).collect()
}

/// Returns the words that name the innermost call of the program as a site.
fn site_of(frames: &[Frame]) -> Option<String> {
    let innermost = frames.first()?;
    Some(line_of(innermost).unwrap_or_else(|| word(&innermost.function)))
}

/// Judges and counts a completion that reports success; the time of `done` is ignored.
#[cold]
pub fn completion(done: Completion) -> Option<CompletionVerdict> {
    let mut held = STATE.lock();
    let found = held.as_mut()?;
    let at = found.at();
    if let (Some(census), Some(operation)) = (&mut found.census, WcOps::name_of(done.opcode)) {
        *census.completions.entry((done.ordinal, operation)).or_default() += 1;
    }
    let verdict = found.injector.completion(&Completion { at, ..done });
    drop(held);
    if let Some(verdict) = verdict.as_ref().filter(|_| outcome::is_wanted()) {
        outcome::fault(&verdict.rule, &[]);
    }
    verdict
}

/// Judges and counts an occasion for `event`; returns the events of the rules that apply.
pub fn occasion(event: EventFault) -> Vec<Raised> {
    if !is_on() {
        return Vec::new();
    }
    let mut held = STATE.lock();
    let Some(found) = &mut *held else { return Vec::new() };
    let at = found.at();
    if let Some(census) = &mut found.census {
        *census.occasions.entry(event.name()).or_default() += 1;
    }
    let raised = found.injector.occasion(event, at);
    drop(held);
    raised.iter().filter(|_| outcome::is_wanted()).for_each(|raised| outcome::fault(&raised.rule, &[]));
    raised
}

/// Returns true if a rule requests `event` on this occasion.
pub fn happens(event: EventFault) -> bool {
    !occasion(event).is_empty()
}

/// Counts a packet of the queue pair `ordinal` for the census.
pub fn packet(dir: Direction, ordinal: u32, packet: &Packet<'_>) {
    if dir == Direction::Tx
        && is_on()
        && let Some(census) = STATE.lock().as_mut().and_then(|found| found.census.as_mut())
    {
        let operation = packet.header.opcode().operation().properties().name;
        *census.packets.entry((ordinal, operation)).or_default() += 1;
    }
}

fn end() {
    if outcome::is_wanted() {
        outcome::end();
    }
    // `try_lock`, because another thread may hold the lock forever.
    let Some(mut held) = STATE.try_lock() else { return };
    let Some(found) = &mut *held else { return };
    counts_of(&found.injector).iter().for_each(|count| write_line(count));
    if let (Some(census), Ok(Some(path))) = (found.census.take(), config().map(|config| config.census.as_deref())) {
        let text = census.text();
        if let Err(error) = outcome::append(path, &text) {
            standard_error::write(&format!("roxe: cannot write the census to {}: {error}\n", path.display()));
        }
    }
}

impl Census {
    /// Returns one line for each fault to try, its words separated by tabs: `process NAME:HASH
    /// PID`, `call VERB STATE SITE NTH STACK`, `completion ORDINAL OPERATION COUNT`, `packet
    /// ORDINAL OPCODE COUNT`, `occasion EVENT COUNT`. An empty STATE or STACK is `-`.
    fn text(&self) -> String {
        let mut text = format!("process\t{}\t{}\n", process(), std::process::id());
        for ((verb, state), stacks) in &self.calls {
            let state = state.as_deref().unwrap_or("-");
            for (site, nth, frames) in candidates(stacks) {
                let _ = writeln!(text, "call\t{verb}\t{state}\t{site}\t{nth}\t{frames}");
            }
        }
        for ((ordinal, operation), count) in &self.completions {
            let _ = writeln!(text, "completion\t{ordinal}\t{operation}\t{count}");
        }
        for ((ordinal, opcode), count) in &self.packets {
            let _ = writeln!(text, "packet\t{ordinal}\t{opcode}\t{count}");
        }
        for (event, count) in &self.occasions {
            let _ = writeln!(text, "occasion\t{event}\t{count}");
        }
        text
    }
}

/// Returns the calls of a verb to let fail: of each stack the first one and one in the middle, each
/// as its site, its position among the calls from that site, and its stack in words.
fn candidates(stacks: &[Stack]) -> Vec<(String, u64, String)> {
    let mut known: Vec<(&Stack, Vec<Frame>)> = Vec::new();
    let mut at_site = BTreeMap::<String, u64>::new();
    let mut by_stack = BTreeMap::<usize, Vec<(String, u64)>>::new();
    for stack in stacks {
        let at = known.iter().position(|(other, _)| *other == stack).unwrap_or_else(|| {
            known.push((stack, stack.frames()));
            known.len() - 1
        });
        let site = site_of(&known[at].1).unwrap_or_else(|| "-".to_owned());
        let nth = at_site.entry(site.clone()).or_default();
        *nth += 1;
        by_stack.entry(at).or_default().push((site, *nth));
    }
    let mut found = Vec::new();
    for (at, calls) in by_stack {
        let frames = outcome::stack_field(&known[at].1);
        let middle = (calls.len() > 1).then(|| calls[calls.len() / 2].clone());
        let chosen = calls.into_iter().take(1).chain(middle);
        found.extend(chosen.map(|(site, nth)| (site, nth, frames.clone())));
    }
    found
}

/// Returns the lock that a fork has to take.
pub(crate) fn lock() -> &'static dyn Lockable {
    &STATE
}

/// Clears the census in the child of a fork: its counts belong to the parent.
pub(crate) fn abandon() {
    if let Some(found) = STATE.try_lock().as_deref_mut().and_then(Option::as_mut)
        && found.census.is_some()
    {
        found.census = Some(Census::default());
    }
}
