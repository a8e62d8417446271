//! Impairments of a link: words of the command line, arguments of `tc`, fault rules.
//!
//! The kernel's netem applies all impairments. On a kernel without netem, tbf limits the rate, and
//! fault rules delay and drop packets. Fault rules always mark congestion, because netem marks a
//! packet only instead of dropping it.
//!
//! A rate limits both directions of a link. Towards the switch, frames queue on the host without a
//! limit, as in front of a network card. Towards the host, frames queue in the switch, which drops
//! frames when its queue is full.

use crate::output::Result;
use std::str::FromStr;
use std::time::Duration;

/// Default length in frames of the switch's queue for a link with a rate; it is netem's default.
const DEFAULT_QUEUE: u32 = 1000;
/// Length in frames of a host's own queue; the send buffers of its sockets hold fewer frames.
const UPLINK_QUEUE: u32 = 100_000;
/// Burst that tbf may send after a pause, as a time at the link's rate. It makes up for tbf's
/// timer, which is late on a busy machine.
const BURST: Duration = Duration::from_millis(1);
/// Length in bytes of an Ethernet header, which tbf counts.
const ETHERNET_HEADER_LEN: u32 = 14;

/// Impairments of a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Link {
    /// The words of the command line.
    pub(super) text: String,
    /// Bits per second.
    rate: Option<f64>,
    /// Length in frames of the switch's queue.
    queue: Option<u32>,
    /// Delay of a packet in microseconds.
    delay: Option<f64>,
    /// Random part of the delay in microseconds.
    jitter: Option<f64>,
    /// Percent of packets that are dropped.
    loss: Option<f64>,
    /// Percent of packets that are marked as congested.
    ecn: Option<f64>,
}

/// Units and their factors.
type Units = [(&'static str, f64)];

const RATE_UNITS: &Units = &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
const TIME_UNITS: &Units = &[("us", 1.0), ("ms", 1e3), ("s", 1e6)];
const SHARES: &Units = &[("%", 1.0)];

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut link = Self { text: text.to_owned(), ..Self::default() };
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let (place, value) = match word {
                "jitter" => (&mut link.jitter, words.next().and_then(|value| quantity(value, TIME_UNITS))),
                "loss" => (&mut link.loss, words.next().and_then(percent)),
                "ecn" => (&mut link.ecn, words.next().and_then(percent)),
                "queue" => {
                    let frames = words.next().and_then(|value| value.parse().ok()).filter(|frames| *frames > 0);
                    let frames = frames.ok_or("queue needs a number of frames, such as queue 100")?;
                    if link.queue.replace(frames).is_some() {
                        return Err("queue: given twice".to_owned());
                    }
                    continue;
                }
                _ => match (quantity(word, RATE_UNITS).filter(|rate| *rate > 0.0), quantity(word, TIME_UNITS)) {
                    (rate @ Some(_), _) => (&mut link.rate, rate),
                    (None, delay @ Some(_)) => (&mut link.delay, delay),
                    (None, None) => {
                        return Err(format!(
                            "{word:?} is no rate (10gbit), delay (20us), jitter TIME, loss P%, ecn P% or queue FRAMES"
                        ));
                    }
                },
            };
            let value =
                value.ok_or_else(|| format!("{word} needs a value, such as jitter 5us, loss 0.1% or ecn 1%"))?;
            if place.replace(value).is_some() {
                return Err(format!("{word}: given twice"));
            }
        }
        if link.jitter.is_some_and(|jitter| link.delay.is_none_or(|delay| delay < jitter)) {
            return Err("jitter needs a delay that is not shorter, such as 20us jitter 5us".to_owned());
        }
        if link.queue.is_some() && link.rate.is_none() {
            return Err("queue needs a rate, such as 1gbit queue 100".to_owned());
        }
        Ok(link)
    }
}

/// Parses a word such as `20us` into the first of the units.
fn quantity(word: &str, units: &Units) -> Option<f64> {
    let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
    let value = number.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
    let (_, factor) = units.iter().find(|(unit, _)| *unit == &word[number.len()..])?;
    Some(value * factor)
}

/// Parses a percentage. Rounds it to six decimals, the most that fault rules accept.
fn percent(word: &str) -> Option<f64> {
    quantity(word, SHARES).filter(|share| *share <= 100.0).map(|share| (share * 1e6).round() / 1e6)
}

/// Mechanism that impairs the links of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shaper {
    Netem,
    /// tbf and fault rules.
    Rules,
}

impl Link {
    /// Returns the arguments of `tc qdisc add dev DEV root` for the switch's end of a link with
    /// this MTU; `None` if that end needs no queueing discipline.
    pub(super) fn qdisc(&self, shaper: Shaper, mtu: u32) -> Option<Vec<String>> {
        match shaper {
            Shaper::Netem => words(&self.netem()),
            Shaper::Rules => words(&self.tbf(mtu, self.queue.unwrap_or(DEFAULT_QUEUE))),
        }
    }

    /// Returns the arguments of `tc qdisc add dev DEV root` for the host's end, or `None`.
    pub(super) fn uplink(&self, shaper: Shaper, mtu: u32) -> Option<Vec<String>> {
        match shaper {
            Shaper::Netem => {
                words(&Self { rate: self.rate, queue: self.rate.map(|_| UPLINK_QUEUE), ..Self::default() }.netem())
            }
            Shaper::Rules => words(&self.tbf(mtu, UPLINK_QUEUE)),
        }
    }

    fn netem(&self) -> String {
        let mut words = "netem".to_owned();
        let mut add = |name: &str, value: Option<f64>, unit: &str| {
            words += &value.map(|value| format!(" {name} {value}{unit}")).unwrap_or_default();
        };
        add("rate", self.rate, "bit");
        add("limit", self.queue.map(f64::from), "");
        add("delay", self.delay, "us");
        add("", self.jitter, "us");
        add("loss", self.loss, "%");
        words
    }

    fn tbf(&self, mtu: u32, queue: u32) -> String {
        let (Some(rate), frame) = (self.rate, mtu + ETHERNET_HEADER_LEN) else { return String::new() };
        let burst = (rate / 8.0 * BURST.as_secs_f64()).max(f64::from(2 * frame));
        let limit = u64::from(frame) * u64::from(queue);
        format!("tbf rate {rate}bit burst {burst:.0} limit {limit}")
    }

    /// Returns the bytes in flight that use the whole rate although both directions have this
    /// delay, with a reserve for late acknowledgements; 0 without a rate or a delay.
    fn bytes_in_flight(&self) -> u64 {
        const RESERVE: f64 = 1.5;
        let round_trip = 2.0 * self.delay.unwrap_or_default() / 1e6;
        (self.rate.unwrap_or_default() / 8.0 * round_trip * RESERVE) as u64
    }

    /// Returns the fault rules of the host for impairments that the kernel does not apply. They act
    /// on packets that the host receives.
    pub(super) fn fault_rules(&self, shaper: Shaper) -> String {
        let whole = |micros: f64| micros.round() as u64;
        let delay = self.delay.filter(|_| shaper == Shaper::Rules).map(|delay| {
            let jitter = self.jitter.unwrap_or_default();
            (whole(delay - jitter), whole(delay + jitter))
        });
        let delay = delay.filter(|(_, longest)| *longest > 0);
        let rules = [
            self.loss.filter(|_| shaper == Shaper::Rules).map(|loss| format!("drop rx {loss}%")),
            delay.map(|(least, longest)| format!("delay rx by={least}us..{longest}us")),
            self.ecn.map(|share| format!("ecn rx {share}%")),
        ];
        rules.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// Returns the value of `ROXE_WINDOW` with which each link of a lab can carry its rate; `None` if
/// the default is enough. All hosts need the same value.
pub(super) fn window(links: &[Link]) -> Option<u64> {
    /// The defaults with a small and with a large socket buffer, in bytes.
    const DEFAULTS: (u64, u64) = (128 << 10, 1 << 20);
    /// The largest value, in bytes.
    const MAX_WINDOW: u64 = 64 << 20;
    let bytes = links.iter().map(Link::bytes_in_flight).max()?;
    (bytes > DEFAULTS.0).then(|| bytes.clamp(DEFAULTS.1, MAX_WINDOW))
}

/// Returns the words of a queueing discipline; `None` if it has no arguments.
fn words(text: &str) -> Option<Vec<String>> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    (words.len() > 1).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> Link {
        text.parse().unwrap()
    }

    #[test]
    fn link_becomes_netem_and_rules_for_marks() {
        let link = link("10gbit queue 50 20us jitter 5us loss 0.1% ecn 2%");
        let qdisc = link.qdisc(Shaper::Netem, 1500).unwrap();
        assert_eq!(qdisc.join(" "), "netem rate 10000000000bit limit 50 delay 20us 5us loss 0.1%");
        assert_eq!(link.uplink(Shaper::Netem, 1500).unwrap().join(" "), "netem rate 10000000000bit limit 100000");
        assert_eq!(link.fault_rules(Shaper::Netem), "ecn rx 2%");
    }

    #[test]
    fn link_without_netem_becomes_tbf_and_rules() {
        let qdisc_and_rules = |text: &str| {
            let (link, qdisc) = (link(text), |words: Vec<String>| words.join(" "));
            (link.qdisc(Shaper::Rules, 1500).map(qdisc).unwrap_or_default(), link.fault_rules(Shaper::Rules))
        };
        let pair = |qdisc: &str, rules: &str| (qdisc.to_owned(), rules.to_owned());
        assert_eq!(qdisc_and_rules("1gbit queue 100"), pair("tbf rate 1000000000bit burst 125000 limit 151400", ""));
        assert_eq!(
            qdisc_and_rules("100mbit 1ms"),
            pair("tbf rate 100000000bit burst 12500 limit 1514000", "delay rx by=1000us..1000us")
        );
        let uplink = link("1mbit queue 1").uplink(Shaper::Rules, 1500).unwrap().join(" ");
        assert_eq!(uplink, "tbf rate 1000000bit burst 3028 limit 151400000");
        assert_eq!(link("20us").uplink(Shaper::Rules, 1500).or_else(|| link("20us").uplink(Shaper::Netem, 1500)), None);
        let all = qdisc_and_rules("20us jitter 5us loss 0.1% ecn 1%");
        assert_eq!(all, pair("", "drop rx 0.1%; delay rx by=15us..25us; ecn rx 1%"));
        assert!(all.1.parse::<roxe_transport::fault::Rules>().is_ok());
        assert_eq!(["1gbit", "5ms", "1gbit 5ms"].map(|text| link(text).bytes_in_flight()), [0, 0, 1_875_000]);
        let window_for = |texts: &[&str]| window(&texts.iter().map(|text| link(text)).collect::<Vec<_>>());
        assert_eq!(window_for(&[]), None);
        assert_eq!(window_for(&["1gbit", "1gbit 20us"]), None);
        assert_eq!(window_for(&["1gbit 1ms", ""]), Some(1 << 20));
        assert_eq!(window_for(&["1gbit 1ms", "1gbit 5ms"]), Some(1_875_000));
        assert_eq!(window_for(&["100gbit 1s"]), Some(64 << 20));
        assert_eq!(
            (qdisc_and_rules(""), qdisc_and_rules("0us"), qdisc_and_rules("1.5ms").1.as_str()),
            (pair("", ""), pair("", ""), "delay rx by=1500us..1500us")
        );
    }

    #[test]
    fn wrong_link_words_are_refused() {
        for text in [
            "fast",
            "loss",
            "loss 3",
            "loss 101%",
            "jitter 5us",
            "5us jitter 6us",
            "1ms 2ms",
            "10gbit jitter",
            "-1ms",
            "loss -1%",
            "NaNus",
            "0gbit",
            "queue 5",
            "1gbit queue 0",
            "1gbit queue 1 queue 2",
            "ecn",
        ] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
    }
}
