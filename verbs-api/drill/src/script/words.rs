//! A line taken apart: words, and `name=value` among them. Pure text.

use crate::number::Number;
use crate::script::steps::{Data, Numbers};
use roxe_peer::protocol::from_hex;

/// The part of a line in front of its comment, which begins with `#` at the start of a word.
pub(super) fn without_comment(line: &str) -> &str {
    let starts = line.match_indices('#').find(|(at, _)| *at == 0 || line[..*at].ends_with(char::is_whitespace));
    starts.map_or(line, |(at, _)| &line[..at]).trim()
}

/// The words of a text; what is in quotes is one word.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let split = text.split(move |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    });
    split.filter(|word| !word.is_empty())
}

/// The words of a step that nobody has taken yet.
#[derive(Debug)]
pub(super) struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self(split(text).collect())
    }

    /// Takes the first word.
    pub(super) fn next(&mut self, what: &str) -> Result<&'a str, String> {
        if self.0.is_empty() { Err(format!("{what} is missing")) } else { Ok(self.0.remove(0)) }
    }

    /// Takes the first word if it is a name alone, no `name=value`, and none of those that mean
    /// something by themselves.
    pub(super) fn next_name(&mut self, keywords: &[&str]) -> Option<&'a str> {
        let first = self.0.first()?;
        if first.contains('=') || keywords.contains(first) { None } else { Some(self.0.remove(0)) }
    }

    /// Takes the word `name`, if it is there.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let found = self.0.iter().position(|word| *word == name);
        found.is_some_and(|at| !self.0.remove(at).is_empty())
    }

    /// Takes the two words `name DURATION`.
    pub(super) fn behind(&mut self, name: &str) -> Result<Option<Number>, String> {
        let Some(at) = self.0.iter().position(|word| *word == name) else { return Ok(None) };
        self.0.remove(at);
        if at >= self.0.len() {
            return Err(format!("what is {name} is missing"));
        }
        Number::parse_time(self.0.remove(at)).map(Some)
    }

    /// Takes `name=...`.
    pub(super) fn text(&mut self, name: &str) -> Option<&'a str> {
        let is_it = |word: &&str| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        let at = self.0.iter().position(is_it)?;
        self.0.remove(at).get(name.len() + 1..)
    }

    /// Takes `name=...`, a number.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<Number>, String> {
        self.text(name).map(Number::parse).transpose()
    }

    /// Takes what says which bytes: `len=` with `from=` or `fill=`, `data=`, `hex=`.
    pub(super) fn data(&mut self) -> Result<Option<Data>, String> {
        if let Some(text) = self.text("data") {
            let inside = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
            return Ok(Some(Data::Bytes(inside.ok_or("data stands in quotes")?.into())));
        }
        if let Some(text) = self.text("hex") {
            let bytes = from_hex(text).ok_or("bytes are pairs of hexadecimal digits")?;
            return Ok(Some(Data::Bytes(bytes)));
        }
        let Some(len) = self.number("len")? else { return Ok(None) };
        let (from, fill) = (self.number("from")?, self.number("fill")?);
        Ok(Some(match (from, fill) {
            (from, None) => Data::Pattern { len, from },
            (None, Some(byte)) => Data::Fill { len, byte },
            (Some(_), Some(_)) => return Err("from= and fill= exclude each other".into()),
        }))
    }

    /// Takes all that are left and begin with `name=`.
    pub(super) fn all(&mut self, name: &str) -> Vec<&'a str> {
        std::iter::from_fn(|| self.text(name)).collect()
    }

    /// All that are left, as names and values; a name alone has none.
    pub(super) fn rest(&mut self) -> Vec<(&'a str, Option<&'a str>)> {
        let split = |word: &'a str| word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        self.0.drain(..).map(split).collect()
    }

    /// Nothing may be left.
    pub(super) fn finish(&self) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |word| Err(format!("`{word}` means nothing here")))
    }
}

/// All of `NAME=NUMBER` with one of these names.
pub(super) fn numbers(words: &mut Words<'_>, names: &[&'static str]) -> Result<Numbers, String> {
    let mut found = Numbers::new();
    for name in names {
        if let Some(number) = words.number(name)? {
            found.insert(name, number);
        }
    }
    Ok(found)
}

/// The word, if it is one of these.
pub(super) fn one_of(known: &[&str], word: &str) -> Result<String, String> {
    if known.contains(&word) {
        return Ok(word.into());
    }
    Err(format!("`{word}` is none of {}", known.join(", ")))
}
