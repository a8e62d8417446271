//! Parses rules from text. Any text gives rules of bounded size, or an error that quotes the word.

use super::call::{CallAction, CallRule, Errno, EventFault, Verb, WcOps, status_named, status_names};
use super::rule::{Action, Hold, OpSet, Part, PsnSpans, QpSelector, Rate, Rule, ServiceSet, Spans, Window};
use super::rules::{NONE, Rules};
use super::verdict::{Direction, Forged};
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use core::time::Duration;
use roxe_wire::{Psn, Qpn, Syndrome};
use thiserror::Error;

/// Maximum text length in bytes.
const MAX_TEXT: usize = 64 << 10;
/// Maximum number of copies of one rule.
const MAX_COPIES: u8 = 16;
/// Maximum number of characters that an error quotes.
const MAX_QUOTED: usize = 40;

const ACTIONS: &str =
    "drop, duplicate, delay, reorder, corrupt, ecn, rnr, nak, cnp, fail, slow, complete, event, seed=N, and none";
const WORDS: &str = "a rate like 0.5%, tx, rx, qp=, peer=, from=, to=, at=, service=, op=, psn=, msg=, nth=, times=, \
                     process=, by= and copies=";
const CALL_WORDS: &str = "a rate like 0.5%, errno=, illegal, by=, call=, process=, site=, at=, qp=, op=, wr_id=, nth= \
                          and times=";

/// A text that is not a list of fault rules.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("fault rule{}: {problem}", number_of(*rule))]
pub struct RuleError {
    /// Number of the rule, from 1; 0 if the error is about all rules.
    pub rule: usize,
    /// The wrong word and the allowed ones.
    pub problem: String,
}

fn number_of(rule: usize) -> String {
    if rule == 0 { "s".into() } else { format!(" {rule}") }
}

type Problem = String;

impl FromStr for Rules {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let text_error = |problem: String| RuleError { rule: 0, problem };
        if text.len() > MAX_TEXT {
            return Err(text_error(format!("{} bytes of text exceed the maximum of {MAX_TEXT}", text.len())));
        }
        let (mut seed, mut list, mut calls) = (None, Vec::new(), Vec::new());
        let statements = text.split([';', '\n']).map(str::trim).filter(|statement| !statement.is_empty());
        for (rule, statement) in (1..).zip(statements) {
            let problem = |problem| RuleError { rule, problem };
            match statement.strip_prefix("seed=") {
                None if statement == NONE => {}
                Some(value) => set(&mut seed, number(value).map_err(problem)?, statement).map_err(problem)?,
                None => match parse_call_rule(statement).map_err(problem)? {
                    Some(call) => calls.push(call),
                    None => list.push(parse_rule(statement).map_err(problem)?),
                },
            }
            if list.len() + calls.len() > Self::MAX {
                return Err(text_error(format!("more than {} rules", Self::MAX)));
            }
        }
        Ok(Self::new(seed, list).with_calls(calls))
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        parse_rule(text).map_err(|problem| RuleError { rule: 1, problem })
    }
}

fn parse_rule(text: &str) -> Result<Rule, Problem> {
    let mut words = text.split_whitespace();
    let action = match words.next().unwrap_or_default() {
        "drop" => Action::Drop,
        "duplicate" => Action::Duplicate { copies: 1, after: Hold::exactly(Duration::ZERO) },
        "delay" => Action::Delay(Hold::exactly(Duration::ZERO)),
        "reorder" => Action::Reorder(Action::REORDER_BY),
        "corrupt" => Action::Corrupt(corrupt_part(words.next().unwrap_or_default())?),
        "ecn" => Action::Ecn,
        "rnr" => Action::Rnr,
        "nak" => Action::Forge(forged_nak(words.next().unwrap_or_default())?),
        "cnp" => Action::Forge(Forged::Cnp),
        word => return Err(format!("{} is not an action; known are {ACTIONS}", quoted(word))),
    };
    let mut draft = Draft { rule: Rule::new(action), by: None, copies: None };
    words.try_for_each(|word| draft.parse_word(word))?;
    draft.finish()
}

struct Draft {
    rule: Rule,
    by: Option<Hold>,
    copies: Option<u8>,
}

impl Draft {
    fn parse_word(&mut self, word: &str) -> Result<(), Problem> {
        let rule = &mut self.rule;
        if let Some(rate) = word.strip_suffix('%') {
            return set(&mut rule.rate, whole_rate(rate, word)?, word);
        }
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "tx" if word == key => self.set_dir(Direction::Tx, word),
            "rx" if word == key => self.set_dir(Direction::Rx, word),
            "qp" => set(&mut rule.qp, qp(value)?, word),
            "peer" => self.set_peer(value, word),
            "from" => self.set_dir(Direction::Rx, word).and_then(|()| self.set_peer(value, word)),
            "to" => self.set_dir(Direction::Tx, word).and_then(|()| self.set_peer(value, word)),
            "at" => set(&mut rule.at, window(value)?, word),
            "service" => set(&mut rule.services, services(value)?, word),
            "op" => set(&mut rule.ops, ops(value)?, word),
            "psn" => set(&mut rule.psn, psns(value)?, word),
            "msg" => set(&mut rule.msg, spans(value)?, word),
            "nth" => set(&mut rule.nth, spans(value)?, word),
            "times" => set(&mut rule.times, bounded(value, 1, u32::MAX)?, word),
            "process" => set(&mut rule.process, name(value, word)?, word),
            "by" => set(&mut self.by, hold(value)?, word),
            "copies" => set(&mut self.copies, bounded(value, 1, MAX_COPIES)?, word),
            _ => Err(format!("{} is not a word of a packet rule; known are {WORDS}", quoted(word))),
        }
    }

    fn set_dir(&mut self, dir: Direction, word: &str) -> Result<(), Problem> {
        match self.rule.dir {
            Some(before) if before != dir => {
                let (before, word) = (before.name(), quoted(word));
                Err(format!("{word} contradicts {before}; for both directions write neither tx nor rx"))
            }
            _ => {
                self.rule.dir = Some(dir);
                Ok(())
            }
        }
    }

    fn set_peer(&mut self, value: &str, word: &str) -> Result<(), Problem> {
        let address: IpAddr = value.parse().map_err(|_| format!("{} is not an IPv4 or IPv6 address", quoted(value)))?;
        set(&mut self.rule.peer, address.into(), word)
    }

    fn finish(mut self) -> Result<Rule, Problem> {
        let (by, copies) = (self.by.take(), self.copies.take());
        self.rule.action = match (self.rule.action, by, copies) {
            (Action::Duplicate { copies, after }, by, more) => {
                Action::Duplicate { copies: more.unwrap_or(copies), after: by.unwrap_or(after) }
            }
            (_, _, Some(_)) => return Err("copies= is valid only for duplicate".into()),
            (Action::Delay(_), Some(hold), _) => Action::Delay(hold),
            (Action::Delay(_), None, _) => return Err("delay needs by=TIME, for example by=5ms".into()),
            (Action::Reorder(_), Some(Hold { min, max }), _) if min == max => Action::Reorder(max),
            (Action::Reorder(_), Some(_), _) => {
                return Err("reorder needs one time, not a range; only delay and duplicate accept a range".into());
            }
            (action, None, _) => action,
            (_, Some(_), _) => return Err("by= is valid only for delay, reorder and duplicate".into()),
        };
        if self.rule.action == Action::Rnr {
            let error_text = |_| "rnr applies only to received packets: write rx or no direction".to_owned();
            self.set_dir(Direction::Rx, "rnr").map_err(error_text)?;
        }
        Ok(self.rule)
    }
}

/// Parses a rule about calls, completions or events; `None` if it is about packets.
fn parse_call_rule(text: &str) -> Result<Option<CallRule>, Problem> {
    let mut words = text.split_whitespace().peekable();
    let action = words.next().unwrap_or_default();
    if !["fail", "slow", "complete", "event"].contains(&action) {
        return Ok(None);
    }
    let subject = words.next().unwrap_or_default();
    let state = words.next_if(|word| STATES.contains(word)).map(Box::<str>::from);
    let action = match action {
        "complete" => {
            CallAction::Complete(status_named(subject).ok_or_else(|| unknown("status", subject, status_names()))?)
        }
        "event" => {
            let event = EventFault::named(subject);
            let event = event.ok_or_else(|| unknown("event", subject, EventFault::names().collect()))?;
            CallAction::Event { event, call: None, by: None }
        }
        "slow" => CallAction::Slow { verb: verb(subject)?, state: state.clone(), by: Hold::exactly(Duration::ZERO) },
        _ => {
            let verb = verb(subject)?;
            CallAction::Fail { verb, state: state.clone(), errno: verb.errnos[0], illegal: false }
        }
    };
    if state.is_some()
        && !matches!(&action, CallAction::Fail { verb, .. } | CallAction::Slow { verb, .. } if verb.name == "ibv_modify_qp")
    {
        return Err("a state is valid only for ibv_modify_qp".into());
    }
    let mut draft = CallDraft { rule: CallRule::new(action), errno: None, illegal: false, by: None, call: None };
    words.try_for_each(|word| draft.parse_word(word))?;
    draft.finish().map(Some)
}

/// States of a queue pair, as in `fail ibv_modify_qp STATE`.
const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

struct CallDraft {
    rule: CallRule,
    errno: Option<Errno>,
    illegal: bool,
    by: Option<Hold>,
    call: Option<&'static Verb>,
}

impl CallDraft {
    fn parse_word(&mut self, word: &str) -> Result<(), Problem> {
        let rule = &mut self.rule;
        if let Some(rate) = word.strip_suffix('%') {
            return set(&mut rule.rate, whole_rate(rate, word)?, word);
        }
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "illegal" if word == key => {
                self.illegal = true;
                Ok(())
            }
            "errno" => {
                let errno = Errno::named(value).ok_or_else(|| {
                    format!(
                        "{} is not the name of an error; write it as errno.h does, for example ENOMEM",
                        quoted(value)
                    )
                })?;
                set(&mut self.errno, errno, word)
            }
            "by" => set(&mut self.by, hold(value)?, word),
            "call" => set(&mut self.call, verb(value)?, word),
            "process" => set(&mut rule.process, name(value, word)?, word),
            "site" => set(&mut rule.site, name(value, word)?, word),
            "at" => set(&mut rule.at, window(value)?, word),
            "qp" => set(&mut rule.qp, qp(value)?, word),
            "op" => set(&mut rule.ops, wc_ops(value)?, word),
            "wr_id" => set(&mut rule.wr_id, ids(value)?, word),
            "nth" => set(&mut rule.nth, spans(value)?, word),
            "times" => set(&mut rule.times, bounded(value, 1, u32::MAX)?, word),
            _ => Err(format!(
                "{} is not a word of a rule about calls, completions or events; known are {CALL_WORDS}",
                quoted(word)
            )),
        }
    }

    fn finish(self) -> Result<CallRule, Problem> {
        let Self { mut rule, errno, illegal, by, call } = self;
        let refuse_if = |is_wrong: bool, problem: &str| if is_wrong { Err(problem.to_owned()) } else { Ok(()) };
        let is_fail = matches!(rule.action, CallAction::Fail { .. });
        refuse_if(!is_fail && (errno.is_some() || illegal), "errno= and illegal are valid only for fail")?;
        let subject = match &mut rule.action {
            CallAction::Fail { verb, errno: wanted, illegal: allows, .. } => {
                *wanted = errno.unwrap_or(*wanted);
                *allows = illegal;
                if !illegal && !verb.errnos.contains(wanted) {
                    let known: Vec<_> = verb.errnos.iter().map(|errno| errno.name).collect();
                    let (verb, known) = (verb.name, known.join(", "));
                    return Err(format!(
                        "{verb} does not fail with {}, but with {known}; or write illegal",
                        wanted.name
                    ));
                }
                refuse_if(by.is_some(), "by= is valid only for slow and some events, not for fail")?;
                Subject::Call
            }
            CallAction::Slow { by: wait, .. } => {
                *wait = by.ok_or("slow needs by=TIME, for example by=5ms")?;
                Subject::Call
            }
            CallAction::Complete(_) => {
                refuse_if(by.is_some(), "by= is valid only for slow and some events, not for complete")?;
                Subject::Completion
            }
            CallAction::Event { event, call: place, by: time } => {
                refuse_if(
                    by.is_some() && !event.takes_time(),
                    "for events, by= is valid only for PORT_ERR and DISCONNECTED",
                )?;
                refuse_if(
                    call.is_some() && !event.is_of_device(),
                    "call= is valid only for the events PORT_ERR, GID_CHANGE and DEVICE_FATAL",
                )?;
                (*place, *time) = (call, by);
                match event {
                    _ if event.is_of_completion() => Subject::Completion,
                    _ if call.is_some() => Subject::Call,
                    _ => Subject::Event,
                }
            }
        };
        refuse_if(
            call.is_some() && !matches!(rule.action, CallAction::Event { .. }),
            "call= is valid only for events",
        )?;
        refuse_if(subject != Subject::Call && rule.site.is_some(), "site= is valid only for calls")?;
        let is_of_completions = rule.qp.is_some() || rule.ops.is_some() || rule.wr_id.is_some();
        refuse_if(
            subject != Subject::Completion && is_of_completions,
            "qp=, op= and wr_id= are valid only for completions",
        )?;
        Ok(rule)
    }
}

/// Subject of a rule that is not about packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Call,
    Completion,
    Event,
}

fn verb(name: &str) -> Result<&'static Verb, Problem> {
    let unknown =
        || format!("{} is not a call with fault rules; examples are reg_mr, post_send and rdma_connect", quoted(name));
    Verb::named(name).ok_or_else(unknown)
}

fn unknown(kind: &str, name: &str, known: Vec<&str>) -> Problem {
    format!("{} is not a known {kind}; known are {}", quoted(name), known.join(", "))
}

/// Parses the value of `process=` or `site=`.
fn name(value: &str, word: &str) -> Result<Box<str>, Problem> {
    if value.is_empty() { Err(format!("{} has no value", quoted(word))) } else { Ok(value.into()) }
}

fn wc_ops(value: &str) -> Result<WcOps, Problem> {
    value.split(',').try_fold(WcOps::default(), |set, name| match WcOps::named(name) {
        Some(named) => Ok(set.union(named)),
        None => Err(unknown("operation", name, WcOps::names().collect())),
    })
}

/// Fills `slot`; returns an error if it has a value already.
fn set<T>(slot: &mut Option<T>, value: T, word: &str) -> Result<(), Problem> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{} sets a value that an earlier word has set", quoted(word))),
    }
}

fn corrupt_part(word: &str) -> Result<Part, Problem> {
    let parts = [Part::Payload, Part::Header, Part::Icrc];
    let found = parts.into_iter().find(|part| part.name() == word);
    found.ok_or_else(|| format!("corrupt {}: the part must be payload, header or icrc", quoted(word)))
}

/// Parses the name of a NAK, or a syndrome.
fn forged_nak(word: &str) -> Result<Forged, Problem> {
    if let Some(named) = Forged::named(word) {
        return Ok(named);
    }
    let byte = bounded(word, 0, u8::MAX).map_err(|_| {
        let names: Vec<_> = Forged::names().collect();
        format!("nak {}: the NAK must be {}, or a syndrome like 0x2c", quoted(word), names.join(", "))
    })?;
    Ok(Forged::Nak(Syndrome::from_u8(byte)))
}

fn qp(value: &str) -> Result<QpSelector, Problem> {
    match value.strip_prefix('#') {
        Some(ordinal) => bounded(ordinal, 0, u32::MAX).map(QpSelector::Ordinal),
        None => bounded(value, 0, 0x00ff_ffff).map(|number| QpSelector::Number(Qpn::new(number))),
    }
}

fn services(value: &str) -> Result<ServiceSet, Problem> {
    value.split(',').try_fold(ServiceSet::EMPTY, |set, name| match ServiceSet::named(name) {
        Some(named) => Ok(set.union(named)),
        None => Err(format!("{} is not a service; known are RC, UC, UD and XRC", quoted(name))),
    })
}

fn ops(value: &str) -> Result<OpSet, Problem> {
    value.split(',').try_fold(OpSet::EMPTY, |set, name| match OpSet::named(name) {
        Some(named) => Ok(set.union(named)),
        None => {
            let known: Vec<_> = OpSet::names().collect();
            Err(format!("{} is not an opcode; known are {}", quoted(name), known.join(", ")))
        }
    })
}

fn spans(value: &str) -> Result<Spans, Problem> {
    spans_from(value, 1)
}

/// Parses numbers that may be 0.
fn ids(value: &str) -> Result<Spans, Problem> {
    spans_from(value, 0)
}

fn spans_from(value: &str, least: u64) -> Result<Spans, Problem> {
    let ranges = ranges(value, |word| bounded(word, least, u64::MAX), Some(u64::MAX))?;
    if let Some((from, to)) = ranges.iter().find(|(from, to)| from > to) {
        return Err(format!("{from}..{to} ends before it starts"));
    }
    Spans::new(ranges).ok_or_else(|| too_many(value))
}

fn psns(value: &str) -> Result<PsnSpans, Problem> {
    let ranges = ranges(value, |word| bounded(word, 0, 0x00ff_ffff).map(Psn::new), None)?;
    PsnSpans::new(ranges).ok_or_else(|| too_many(value))
}

/// Parses `N`, `N..M` or, if `end` is set, `N..`, separated by commas. Stops after one range more
/// than [`Spans::MAX`], so that the caller can report the excess.
fn ranges<T: Copy>(
    value: &str,
    number: impl Fn(&str) -> Result<T, Problem>,
    end: Option<T>,
) -> Result<Vec<(T, T)>, Problem> {
    let range = |word: &str| match (word.split_once(".."), end) {
        (None, _) => number(word).map(|n| (n, n)),
        (Some((from, "")), Some(end)) => Ok((number(from)?, end)),
        (Some((from, to)), _) => Ok((number(from)?, number(to)?)),
    };
    value.split(',').take(Spans::MAX + 1).map(range).collect()
}

fn too_many(value: &str) -> Problem {
    format!("{} has more than the maximum of {} elements", quoted(value), Spans::MAX)
}

fn number(word: &str) -> Result<u64, Problem> {
    let (digits, radix) = word.strip_prefix("0x").map_or((word, 10), |hex| (hex, 16));
    let number = if digits.starts_with('+') { None } else { u64::from_str_radix(digits, radix).ok() };
    number.ok_or_else(|| format!("{} is not a number; write 17 or 0x11", quoted(word)))
}

fn bounded<T: TryFrom<u64> + PartialOrd + fmt::Display>(word: &str, min: T, max: T) -> Result<T, Problem> {
    let number = T::try_from(number(word)?).ok().filter(|number| (&min..=&max).contains(&number));
    number.ok_or_else(|| format!("{} is not in {min}..{max}", quoted(word)))
}

/// Parses `TIME` or `TIME..TIME`.
fn hold(value: &str) -> Result<Hold, Problem> {
    let (min, max) = value.split_once("..").unwrap_or((value, value));
    let hold = Hold { min: time(min)?, max: time(max)? };
    if hold.max.is_zero() || hold.min > hold.max {
        return Err(format!(
            "{} is not a delay; it must exceed 0, and a range must start with the shorter time",
            quoted(value)
        ));
    }
    Ok(hold)
}

/// Parses `TIME..TIME` or `TIME..`.
fn window(value: &str) -> Result<Window, Problem> {
    let parts = value.split_once("..");
    let (from, until) = parts.ok_or_else(|| format!("{} is not a time range; write 2s..3s or 2s..", quoted(value)))?;
    let until = if until.is_empty() { None } else { Some(time(until)?) };
    let window = Window { from: time(from)?, until };
    if window.until.is_some_and(|until| until <= window.from) {
        return Err(format!("{} ends before it begins", quoted(value)));
    }
    Ok(window)
}

fn time(word: &str) -> Result<Duration, Problem> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let micros = units.iter().find_map(|(unit, micros)| {
        let count = number(word.strip_suffix(unit)?).ok()?;
        count.checked_mul(*micros)
    });
    let time = micros.map(Duration::from_micros).filter(|time| *time <= Hold::MAX_TIME);
    time.ok_or_else(|| format!("{} is not a time; write 250us, 5ms or 1s; the maximum is one hour", quoted(word)))
}

/// Parses `rate`, the part of `word` before its `%`.
fn whole_rate(rate: &str, word: &str) -> Result<Rate, Problem> {
    let bad =
        || format!("{} is not a rate; write 3% or 0.1%; the maximum is 100%, with up to six decimals", quoted(word));
    parse_rate(rate).ok_or_else(bad)
}

fn parse_rate(word: &str) -> Option<Rate> {
    let (whole, decimals) = word.split_once('.').unwrap_or((word, "0"));
    let digits = |text: &str| (1..=6).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let micro = format!("{decimals:0<6}").parse::<u32>().ok()?;
    Rate::from_micro_percent(whole.parse::<u32>().ok()?.checked_mul(1_000_000)?.checked_add(micro)?)
}

/// Quotes a word for an error: shortened, control characters escaped.
fn quoted(word: &str) -> String {
    match word.char_indices().nth(MAX_QUOTED) {
        None => format!("{word:?}"),
        Some((end, _)) => format!("{:?}...", word.get(..end).unwrap_or_default()),
    }
}
