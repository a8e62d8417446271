//! The weakest legal card (`ROXE_WEAKEST`): the weaknesses in force, and the choices that follow
//! from its seed.
//!
//! The code of a weakness tests [`has`] and draws [`Choices`] about one subject. A choice depends
//! on the seed, the subject and the number of earlier choices about it, never on time. Where a
//! choice is to the program's disadvantage, [`is_used`] counts an occasion of the weakness; a range
//! of occasions leaves the others out.

use crate::instruments;
use crate::random;
use bitflags::bitflags;
use roxe_transport::fault::mix;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

bitflags! {
    /// Liberties of the standard that common cards do not use. `ROXE_WEAKEST` and
    /// docs/explanation/weakest.md use the names in lower case.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Weakness: u16 {
        /// The limits are those of a small card.
        const LIMITS = 1 << 0;
        /// A slot of a send queue is free only after a completion for it or a later slot was
        /// polled; inline data is limited to the requested size.
        const SLOTS = 1 << 1;
        /// Payload reaches memory in pieces, in any order, at the latest before an operation that
        /// is ordered after it.
        const PLACEMENT = 1 << 2;
        /// Completions are late, in any order between queues, and fewer per poll than requested.
        const COMPLETIONS = 1 << 3;
        /// Arming covers later completions only; queued ones raise no event.
        const EVENTS = 1 << 4;
        /// Atomics are atomic with respect to the card's atomics only.
        const ATOMICS = 1 << 5;
        /// A UC or UD message without a posted receive is dropped at once.
        const RECEIVES = 1 << 6;
        /// Packets are lost and duplicated.
        const LOSS = 1 << 7;
        /// Acknowledgements are delayed, and do not cover requests posted later.
        const ACKS = 1 << 8;
        /// Numbers and keys are drawn from the seed, and reused as soon as they are free.
        const NUMBERS = 1 << 9;
        /// Completion events are spurious if the completion was polled before its event.
        const SPURIOUS = 1 << 10;
        /// Numbers of queue pairs without a connection are reused at once.
        const REUSE = 1 << 11;
    }
}

impl Weakness {
    /// Weaknesses whose occasions are counted.
    pub const OCCASIONAL: Self = Self::PLACEMENT
        .union(Self::COMPLETIONS)
        .union(Self::EVENTS)
        .union(Self::ATOMICS)
        .union(Self::ACKS)
        .union(Self::SPURIOUS);

    const fn index(self) -> usize {
        self.bits().trailing_zeros() as usize
    }
}

/// Number of weaknesses.
const COUNT: usize = Weakness::all().bits().count_ones() as usize;

/// A parsed value of `ROXE_WEAKEST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The seed; `None` for a random one.
    pub seed: Option<u64>,
    /// The weaknesses in force; empty if the mode is off.
    pub weaknesses: Weakness,
    /// First and last occasion of each weakness on which a process uses it.
    occasions: [(u32, u32); COUNT],
}

impl FromStr for Wanted {
    type Err = String;

    /// Parses a seed, `on` (a random seed) or `off`, and names, separated by commas. Names select
    /// weaknesses; names with `-` exclude them. `NAME=N` and `NAME=N..M` select one occasion and a
    /// range of occasions, counted from 1.
    fn from_str(text: &str) -> Result<Self, String> {
        let (mut seed, mut only, mut without) = (None, Weakness::empty(), Weakness::empty());
        let mut occasions = [ALWAYS; COUNT];
        for word in text.split(',').map(str::trim) {
            match word.strip_prefix('-') {
                None if word == "on" => {}
                None if word == "off" && text.trim() == "off" => without = Weakness::all(),
                None if word.starts_with(|first: char| first.is_ascii_digit()) => seed = Some(number(word)?),
                None => {
                    let (name, range) = word.split_once('=').unzip();
                    let weakness = named(name.unwrap_or(word))?;
                    only |= weakness;
                    if let Some(range) = range {
                        occasions[weakness.index()] = parse_occasions(weakness, range)?;
                    }
                }
                Some(name) => without |= named(name)?,
            }
        }
        let base = if only.is_empty() { Weakness::all() } else { only };
        Ok(Self { seed, weaknesses: base - without, occasions })
    }
}

/// All occasions.
const ALWAYS: (u32, u32) = (1, u32::MAX);

fn parse_occasions(weakness: Weakness, range: &str) -> Result<(u32, u32), String> {
    let (first, last) = range.split_once("..").unwrap_or((range, range));
    match (first.parse(), last.parse()) {
        _ if !Weakness::OCCASIONAL.contains(weakness) => {
            Err(format!("={range} is not valid: this weakness has no occasions"))
        }
        (Ok(first @ 1..), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err(format!("{range} is not a range of occasions; write 17 or 3..9")),
    }
}

fn number(word: &str) -> Result<u64, String> {
    let read = word.strip_prefix("0x").map_or_else(|| word.parse(), |digits| u64::from_str_radix(digits, 16));
    read.map_err(|_| format!("{word} is not a seed; use a number below 2^64"))
}

fn named(name: &str) -> Result<Weakness, String> {
    let known = || Weakness::all().iter_names().map(|(name, weakness)| (name.to_ascii_lowercase(), weakness));
    let found = known().find(|(known, _)| known == name).map(|(_, weakness)| weakness);
    found.ok_or_else(|| {
        let names: Vec<_> = known().map(|(name, _)| name).collect();
        format!("it must be a seed, on or off, and names with or without a -: {}", names.join(", "))
    })
}

static SEED: AtomicU64 = AtomicU64::new(0);
static WEAKNESSES: AtomicU16 = AtomicU16::new(0);
static OCCASIONS: [Occasions; COUNT] = [const { Occasions::new() }; COUNT];

/// The occasions of one weakness in this process.
struct Occasions {
    first: AtomicU32,
    last: AtomicU32,
    seen: AtomicU32,
}

impl Occasions {
    const fn new() -> Self {
        Self { first: AtomicU32::new(ALWAYS.0), last: AtomicU32::new(ALWAYS.1), seen: AtomicU32::new(0) }
    }

    /// Counts an occasion. Returns true if it is in the range.
    fn is_next_used(&self) -> bool {
        let number = self.seen.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        (self.first.load(Ordering::Relaxed)..=self.last.load(Ordering::Relaxed)).contains(&number)
    }
}

/// Returns a random seed.
pub fn draw_seed() -> io::Result<u64> {
    // 32 bits, so that the seed is short enough to type.
    getrandom::u32().map(u64::from).map_err(io::Error::other)
}

/// Turns the mode on for this process.
pub fn turn_on(seed: u64, weaknesses: Weakness) {
    SEED.store(seed, Ordering::Relaxed);
    WEAKNESSES.store(weaknesses.bits(), Ordering::Relaxed);
    if !weaknesses.is_empty() {
        instruments::turn_on();
    }
}

/// Limits weaknesses to the given occasions.
pub fn narrow(wanted: &Wanted) {
    for (counted, (first, last)) in OCCASIONS.iter().zip(wanted.occasions) {
        counted.first.store(first, Ordering::Relaxed);
        counted.last.store(last, Ordering::Relaxed);
    }
}

/// Counts occasions anew in the child of a fork.
pub fn abandon() {
    OCCASIONS.iter().for_each(|occasions| occasions.seen.store(0, Ordering::Relaxed));
}

/// Counts an occasion of a weakness in force. Returns true if the weakness is used on this
/// occasion.
pub fn is_used(weakness: Weakness) -> bool {
    OCCASIONS.get(weakness.index()).is_none_or(Occasions::is_next_used)
}

/// Returns true if the weakness is in force.
#[inline]
pub fn has(weakness: Weakness) -> bool {
    WEAKNESSES.load(Ordering::Relaxed) & weakness.bits() != 0
}

/// Returns the seed in force.
pub fn seed() -> u64 {
    SEED.load(Ordering::Relaxed)
}

/// The subject of choices. Choices about one subject do not depend on those about another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The payload that a queue pair receives.
    Payload,
    /// The progress of payload that is not placed yet.
    Rounds,
    /// Acknowledgements of a queue pair.
    Acks,
    /// Completions that enter a queue.
    Completions,
    /// Polls of a completion queue.
    Polls,
    /// Numbers of queue pairs.
    Qpns,
    /// Keys of memory regions and windows.
    Keys,
    /// First PSNs of connections.
    Psns,
    /// Events of a completion queue.
    Events,
}

/// A sequence of choices, the same for the same seed.
#[derive(Debug)]
pub struct Choices(u64);

impl Choices {
    /// Creates the choices of `seed` about `subject` of object `number` of this process.
    pub fn new(seed: u64, subject: Subject, number: u64) -> Self {
        Self(mix(mix(seed ^ mix(subject as u64)) ^ number))
    }

    /// Returns the next choice: any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// Returns the next choice: a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.number()) * end as u128) >> 64) as usize
    }

    /// Returns the next choice: true once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns the next choice: one of `values`.
    pub fn pick<T: Copy, const N: usize>(&mut self, values: [T; N]) -> T {
        const { assert!(N > 0) };
        values[self.below(N)]
    }
}

/// Returns a number for an object. On the weakest legal card it follows from the seed and the value
/// of the counter `number`, which grows by one; else it is random.
pub fn number_for(subject: Subject, number: &AtomicU64) -> io::Result<u32> {
    if has(Weakness::NUMBERS) {
        let number = number.fetch_add(1, Ordering::Relaxed);
        return Ok(Choices::new(seed(), subject, number).number() as u32);
    }
    random::number().map(|number| number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_a_seed_and_names() {
        let all = Weakness::all();
        for (text, seed, weaknesses) in [
            ("on", None, all),
            ("42", Some(42), all),
            ("0x2a", Some(42), all),
            ("off", None, Weakness::empty()),
            ("7,-loss", Some(7), all - Weakness::LOSS),
            ("7, placement, atomics", Some(7), Weakness::PLACEMENT | Weakness::ATOMICS),
        ] {
            assert_eq!(text.parse(), Ok(Wanted { seed, weaknesses, occasions: [ALWAYS; COUNT] }), "{text}");
        }
        for text in ["maybe", "", "7,off", "7x", "-42", "7,-los", "7,LOSS", "7,acks=0", "7,acks=3..2", "7,loss=3"] {
            assert!(text.parse::<Wanted>().is_err(), "{text}");
        }
        assert!(all.iter_names().all(|(name, one)| named(&name.to_lowercase()) == Ok(one)), "each has a name");
    }

    #[test]
    fn range_of_occasions_leaves_the_others_out() {
        let wanted: Wanted = "7,placement=3..4,acks".parse().unwrap();
        assert_eq!(wanted.weaknesses, Weakness::PLACEMENT | Weakness::ACKS);
        assert_eq!("7,placement=3".parse::<Wanted>().unwrap().occasions[Weakness::PLACEMENT.index()], (3, 3));
        narrow(&wanted);
        let used = |weakness| (1..=6).filter(|_| is_used(weakness)).count();
        let first: Vec<_> = (1..=6).filter(|_| is_used(Weakness::PLACEMENT)).collect();
        assert_eq!((first, used(Weakness::PLACEMENT), used(Weakness::ACKS)), (vec![3, 4], 0, 6));
    }

    #[test]
    fn choices_depend_on_seed_and_subject_only() {
        let first = |subject, number| (0..4).map(|_| Choices::new(9, subject, number).number()).collect::<Vec<_>>();
        assert_eq!(first(Subject::Payload, 1), first(Subject::Payload, 1));
        assert_ne!(first(Subject::Payload, 1), first(Subject::Payload, 2));
        assert_ne!(first(Subject::Payload, 1), first(Subject::Rounds, 1));
        let mut choices = Choices::new(9, Subject::Acks, 0);
        let seen: Vec<_> = (0..100).map(|_| choices.below(3)).collect();
        assert!((0..3).all(|one| seen.contains(&one)) && seen.iter().all(|one| *one < 3));
        assert_eq!(choices.below(0), 0);
    }
}
