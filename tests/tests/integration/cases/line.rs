//! Parser of the lines of a script, for the harness and both agents.

use roxe::Gid;
use std::net::Ipv4Addr;

/// A line `END VERB WORD... OFFSET+LENGTH... KEY=VALUE...`.
pub(crate) struct Line<'a> {
    pub(crate) end: &'a str,
    pub(crate) verb: &'a str,
    words: Vec<&'a str>,
    pub(crate) parts: Vec<Part>,
    values: Vec<(&'a str, &'a str)>,
}

/// A part of an end's memory. `!` after it in the line stands for a wrong key.
pub(crate) struct Part {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) bad_key: bool,
}

impl Part {
    fn parse(word: &str) -> Option<Self> {
        let (offset, len) = word.trim_end_matches('!').split_once('+')?;
        Some(Self { offset: offset.parse().ok()?, len: len.parse().ok()?, bad_key: word.ends_with('!') })
    }
}

impl<'a> Line<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let mut all = text.split_whitespace();
        let (end, verb) = (all.next().unwrap_or_default(), all.next().unwrap_or_default());
        let mut line = Self { end, verb, words: Vec::new(), parts: Vec::new(), values: Vec::new() };
        for word in all {
            match (word.split_once('='), Part::parse(word)) {
                (Some(pair), _) => line.values.push(pair),
                (None, Some(part)) => line.parts.push(part),
                (None, None) => line.words.push(word),
            }
        }
        line
    }

    pub(crate) fn name(&self, at: usize) -> &'a str {
        self.words.get(at).copied().unwrap_or_default()
    }

    pub(crate) fn number(&self, at: usize) -> u32 {
        self.name(at).parse().unwrap_or_else(|_| panic!("{} {}: word {at} is not a number", self.end, self.verb))
    }

    /// Returns offset and length of a part.
    pub(crate) fn part(&self, at: usize) -> (usize, usize) {
        self.parts.get(at).map_or((0, 0), |part| (part.offset, part.len))
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        self.values.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    pub(crate) fn value(&self, key: &str) -> Option<u32> {
        self.text(key).map(|text| text.parse().unwrap_or_else(|_| panic!("{key}={text} is not a number")))
    }

    pub(crate) fn values(&self) -> &[(&'a str, &'a str)] {
        &self.values
    }

    /// Returns the multicast group whose IPv4 address is a word of the line.
    pub(crate) fn group(&self, at: usize) -> Gid {
        gid(self.name(at))
    }

    /// Returns the multicast group whose IPv4 address is a value of the line.
    pub(crate) fn group_of(&self, key: &str) -> Gid {
        gid(self.text(key).unwrap_or_default())
    }
}

fn gid(address: &str) -> Gid {
    address.parse::<Ipv4Addr>().unwrap_or_else(|_| panic!("{address} is not an address")).into()
}
