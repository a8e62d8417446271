//! Impairments of a link: words of the command line, arguments of netem, fault rules.

use crate::output::Result;
use std::str::FromStr;

/// Impairments of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    /// The words, as they were given.
    pub(super) text: String,
    rate: Option<String>,
    delay: Option<String>,
    jitter: Option<String>,
    loss: Option<String>,
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut link = Self { text: text.to_owned(), ..Self::default() };
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let (place, value) = match word {
                "jitter" => (&mut link.jitter, words.next().filter(|value| is_quantity(value, &["us", "ms", "s"]))),
                "loss" => (&mut link.loss, words.next().filter(|value| is_quantity(value, &["%"]))),
                _ if is_quantity(word, &["kbit", "mbit", "gbit"]) => (&mut link.rate, Some(word)),
                _ if is_quantity(word, &["us", "ms", "s"]) => (&mut link.delay, Some(word)),
                _ => return Err(format!("{word:?} is no rate (10gbit), delay (20us), jitter TIME or loss P%")),
            };
            let value = value.ok_or_else(|| format!("{word} needs a value, such as jitter 5us or loss 0.1%"))?;
            if place.replace(value.to_owned()).is_some() {
                return Err(format!("{value}: given twice"));
            }
        }
        if link.jitter.is_some() && link.delay.is_none() {
            return Err("jitter needs a delay before it, such as 20us jitter 5us".to_owned());
        }
        Ok(link)
    }
}

/// Returns the number and the unit of a word such as `20us` or `0.1%`.
fn quantity(word: &str) -> Option<(f64, &str)> {
    let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
    let value = number.parse().ok().filter(|value| *value >= 0.0)?;
    Some((value, &word[number.len()..]))
}

/// Returns true for a decimal number followed by one of these units.
fn is_quantity(word: &str, units: &[&str]) -> bool {
    quantity(word).is_some_and(|(_, unit)| units.contains(&unit))
}

impl Link {
    /// Returns the arguments of `tc qdisc add dev DEV root netem`.
    pub(super) fn netem(&self) -> Vec<String> {
        let words = [("rate", &self.rate), ("delay", &self.delay), ("", &self.jitter), ("loss", &self.loss)];
        let given = words.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value.clone()?]));
        given.flatten().filter(|word| !word.is_empty()).collect()
    }

    /// Returns fault rules that do the same to packets that a host receives.
    pub(super) fn fault_rules(&self) -> Result<String, &'static str> {
        if self.rate.is_some() {
            return Err(
                "this kernel has no netem (sch_netem), and fault rules cannot limit a rate; leave the rate out",
            );
        }
        let delay = match (&self.delay, &self.jitter) {
            (Some(delay), Some(jitter)) => Some(format!("delay rx by={delay}..{}", sum(delay, jitter))),
            (Some(delay), None) => Some(format!("delay rx by={delay}")),
            (None, _) => None,
        };
        let loss = self.loss.as_ref().map(|loss| format!("drop rx {loss}"));
        Ok([loss, delay].into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// Adds two times; fault rules take whole microseconds.
fn sum(a: &str, b: &str) -> String {
    let micros = |text: &str| {
        let (value, unit) = quantity(text).unwrap_or_default();
        let scale = match unit {
            "us" => 1.0,
            "ms" => 1e3,
            _ => 1e6,
        };
        (value * scale) as u64
    };
    format!("{}us", micros(a) + micros(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_words_become_netem_or_fault_rules() {
        let link: Link = "10gbit 20us jitter 5us loss 0.1%".parse().unwrap();
        assert_eq!(link.netem().join(" "), "rate 10gbit delay 20us 5us loss 0.1%");
        assert!(link.fault_rules().is_err());
        let rules = |text: &str| text.parse::<Link>().unwrap().fault_rules().unwrap();
        assert_eq!(rules("20us jitter 5us loss 0.1%"), "drop rx 0.1%; delay rx by=20us..25us");
        assert_eq!(rules("1ms"), "delay rx by=1ms");
        assert!(rules("20us jitter 5us loss 0.1%").parse::<roxe_transport::fault::Rules>().is_ok());
        assert_eq!(rules(""), "");
    }

    #[test]
    fn wrong_link_words_are_refused() {
        for text in ["fast", "loss", "loss 3", "jitter 5us", "1ms 2ms", "10gbit jitter", "-1ms", "loss -1%"] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
    }
}
