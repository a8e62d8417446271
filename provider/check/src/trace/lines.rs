//! Lines of a trace: one event each, in Chrome's Trace Event format.
//!
//! Times are microseconds of CLOCK_MONOTONIC, which all processes of a host share. Touches nothing.

use roxe_transport::time::Instant;
use std::fmt::{self, Display, Write};

/// What kind of event a line is (`ph`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Something begins on the track; the last that began there ends first.
    Begin,
    /// It ends; whatever it is called.
    End,
    /// Something begins that ends independently of others, by this number.
    AsyncBegin(u64),
    /// It ends.
    AsyncEnd(u64),
    /// It takes no time.
    Instant,
    /// A number has the value in the arguments from now on.
    Counter,
    /// The arguments name the process or the track.
    Name,
}

/// Lines that wait to be written.
#[derive(Debug)]
pub(super) struct Lines {
    pid: u32,
    text: String,
}

impl Lines {
    pub(super) const fn new(pid: u32) -> Self {
        Self { pid, text: String::new() }
    }

    /// The process whose they are. Its number is also that of the track for what belongs to no
    /// queue pair.
    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Bytes.
    pub(super) const fn len(&self) -> usize {
        self.text.len()
    }

    /// Exchanges the lines with others, which should be empty.
    pub(super) const fn swap(&mut self, text: &mut String) {
        std::mem::swap(&mut self.text, text);
    }

    /// Adds an event of a track.
    pub(super) fn put(
        &mut self,
        phase: Phase,
        track: u32,
        at: Instant,
        (category, name): (&str, &dyn Display),
        args: &Args,
    ) {
        let (pid, to) = (self.pid, &mut self.text);
        let (letter, id) = match phase {
            Phase::Begin => ('B', None),
            Phase::End => ('E', None),
            Phase::AsyncBegin(id) => ('b', Some(id)),
            Phase::AsyncEnd(id) => ('e', Some(id)),
            Phase::Instant => ('i', None),
            Phase::Counter => ('C', None),
            Phase::Name => ('M', None),
        };
        let mut line = || {
            write!(to, "{{\"ph\":\"{letter}\",\"pid\":{pid},\"tid\":{track},")?;
            write!(to, "\"ts\":{}.{:03}", at.0 / 1000, at.0 % 1000)?;
            if phase != Phase::End {
                write!(to, ",\"cat\":\"{category}\",\"name\":\"")?;
                write!(Escaped(to), "{name}")?;
                to.push('"');
            }
            if let Some(id) = id {
                // Local to the process: with an `id` for all of them, viewers show these slices
                // apart from every process.
                write!(to, ",\"id2\":{{\"local\":\"{id:#x}\"}}")?;
            }
            if phase == Phase::Instant {
                // It belongs to its track alone.
                to.push_str(",\"s\":\"t\"");
            }
            writeln!(to, ",\"args\":{{{}}}}},", args.0)
        };
        // Writing to a string cannot fail.
        let _: fmt::Result = line();
    }
}

/// What is said about an event.
#[derive(Debug, Default)]
pub(super) struct Args(String);

impl Args {
    pub(super) fn number(self, key: &str, value: impl Into<u64>) -> Self {
        let value = value.into();
        self.add(key, |to| write!(to, "{value}"))
    }

    pub(super) fn hex(self, key: &str, value: impl Into<u64>) -> Self {
        let value = value.into();
        self.add(key, |to| write!(to, "\"{value:#x}\""))
    }

    pub(super) fn text(self, key: &str, value: &dyn Display) -> Self {
        self.add(key, |to| {
            to.push('"');
            write!(Escaped(to), "{value}")?;
            to.push('"');
            Ok(())
        })
    }

    fn add(mut self, key: &str, value: impl FnOnce(&mut String) -> fmt::Result) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        // Writing to a string cannot fail.
        let _ = write!(self.0, "\"{key}\":").and_then(|()| value(&mut self.0));
        self
    }
}

/// Writes the inside of a string. Control characters become spaces: not every viewer reads the
/// escapes of the others.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '"' | '\\' => self.0.extend(['\\', character]),
                character if character.is_control() => self.0.push(' '),
                character => self.0.push(character),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn line(phase: Phase, name: &str, args: &Args) -> Value {
        let mut lines = Lines::new(7);
        lines.put(phase, 9, Instant(1_234_567_008), ("cat", &name), args);
        let mut text = String::new();
        lines.swap(&mut text);
        assert_eq!(lines.len(), 0);
        let line = text.strip_suffix(",\n").unwrap();
        assert!(!line.contains('\n'));
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn a_line_is_an_event_of_the_format_whatever_its_texts_hold() {
        let args = Args::default().number("n", 1u8).hex("x", u64::MAX).text("t", &"a \"b\" \\ \n c");
        assert_eq!(
            line(Phase::Instant, "na\tme \"q\" →", &args),
            json!({"ph": "i", "pid": 7, "tid": 9, "ts": 1_234_567.008, "cat": "cat", "name": "na me \"q\" →", "s": "t",
                "args": {"n": 1, "x": "0xffffffffffffffff", "t": "a \"b\" \\   c"}})
        );
        let slice = line(Phase::AsyncBegin(26), "SEND", &Args::default());
        assert_eq!((&slice["ph"], &slice["id2"], &slice["args"]), (&json!("b"), &json!({"local": "0x1a"}), &json!({})));
    }
}
