//! Queries of a process's queue pairs, for `roxe top` and `roxe metrics`.
//!
//! Each process holds a named Unix datagram socket ([`crate::named`]) per device. A query is
//! answered by a few datagrams of text to the asking socket, without blocking: parts that find no
//! room are dropped.

use crate::named::NamedSocket;
use crate::runtime_dir::{RuntimeDir, bind_at_random, datagram_socket};
use socket2::{SockAddr, Socket};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Most bytes of a datagram: less than the least send buffer of a socket (`man 7 socket`,
/// `wmem_default`).
const PART: usize = 32 << 10;
/// First word of a datagram, followed by the name of the answering socket.
const LAST: &str = "last";
const MORE: &str = "more";
const KIND: &str = "status-";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    process: u32,
    ifindex: u32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KIND}{:x}-{:x}", self.process, self.ifindex)
    }
}

impl Name {
    /// Parses the name at the end of `text`.
    fn of(text: &str) -> Option<Self> {
        let (_, name) = text.rsplit_once(KIND)?;
        let (process, ifindex) = name.split_once('-')?;
        let number = |digits| u32::from_str_radix(digits, 16).ok();
        Some(Self { process: number(process)?, ifindex: number(ifindex)? })
    }
}

/// The status socket of a device of this process.
#[derive(Debug)]
pub struct StatusSocket {
    socket: NamedSocket,
    name: Name,
}

impl StatusSocket {
    /// Opens the socket for the device on interface `ifindex`. Errors: EADDRINUSE.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let name = Name { process: std::process::id(), ifindex };
        let socket = NamedSocket::bind(&name)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name })
    }

    /// The descriptor, readable when there is a query.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Answers all queries; `text` is called once if there are any.
    pub fn answer(&self, text: impl FnOnce() -> String) {
        let mut askers = Vec::new();
        let mut room = [std::mem::MaybeUninit::uninit(); 16];
        while let Ok((_, asker)) = self.socket.recv_from(&mut room) {
            askers.extend((asker.as_pathname().is_some() && askers.len() < 16).then_some(asker));
        }
        if askers.is_empty() {
            return;
        }
        let text = text();
        for asker in askers {
            // A peer that has exited or whose buffer is full gets no more parts.
            let _ = parts(&text).try_for_each(|(part, is_last)| {
                let state = if is_last { LAST } else { MORE };
                self.socket.send_to(format!("{state} {}\n{part}", self.name).as_bytes(), &asker).map(drop)
            });
        }
    }
}

/// The text in parts of whole lines; true for the last part.
fn parts(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = if text.len() <= PART {
            text.len()
        } else {
            1 + text.as_bytes()[..PART].iter().rposition(|b| *b == b'\n')?
        };
        let (part, left) = text.split_at_checked(end)?;
        rest = (!left.is_empty()).then_some(left);
        Some((part, rest.is_none()))
    })
}

/// State of one device of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The process.
    pub process: u32,
    /// The text, as far as it was received.
    pub text: String,
    /// True if the text is complete. A stopped process sends nothing.
    pub is_whole: bool,
}

/// Queries all processes of this user, or `process` alone, and waits up to `limit` for answers.
pub fn ask(process: Option<u32>, limit: Duration) -> io::Result<Vec<Answer>> {
    ask_those(|name| process.is_none_or(|process| process == name.process), limit)
}

fn ask_those(is_meant: impl Fn(&Name) -> bool, limit: Duration) -> io::Result<Vec<Answer>> {
    let dir = RuntimeDir::get()?;
    let (socket, _path) = bind_at_random(datagram_socket()?, dir.path())?;
    let mut answers = BTreeMap::new();
    for entry in fs::read_dir(dir.path())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| Name::of(&name.to_string_lossy()));
        let Some(name) = name.filter(&is_meant) else { continue };
        // Refused by a dead process.
        if SockAddr::unix(&path).and_then(|address| socket.send_to(b"status", &address)).is_ok() {
            answers.insert(name, Answer { process: name.process, ..Answer::default() });
        }
    }
    let until = Instant::now() + limit;
    while answers.values().any(|answer| !answer.is_whole)
        && let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    {
        receive(&socket, left, &mut answers)?;
    }
    Ok(answers.into_values().collect())
}

fn receive(mut socket: &Socket, limit: Duration, answers: &mut BTreeMap<Name, Answer>) -> io::Result<()> {
    socket.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
    let mut datagram = vec![0; PART + 64];
    let len = match socket.read(&mut datagram) {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return Ok(()),
        result => result?,
    };
    let text = String::from_utf8_lossy(datagram.get(..len).unwrap_or_default());
    if let Some((head, part)) = text.split_once('\n')
        && let Some(answer) = Name::of(head).and_then(|name| answers.get_mut(&name))
    {
        answer.text.push_str(part);
        answer.is_whole = head.starts_with(LAST);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const LONG: Duration = Duration::from_secs(30);

    /// Queries this process about `ifindex`, since other tests may run beside.
    fn ask_this(ifindex: u32, limit: Duration) -> Vec<Answer> {
        let own = |name: &Name| name.ifindex == ifindex && name.process == std::process::id();
        ask_those(own, limit).unwrap()
    }

    #[test]
    fn query_gets_whole_text_in_parts_of_lines() {
        let socket = StatusSocket::open(0xfff1).unwrap();
        let text: String = (0..5000).map(|number| format!("line {number}\n")).collect();
        let is_over = AtomicBool::new(false);
        let answers = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    socket.answer(|| text.clone());
                    std::thread::yield_now();
                }
            });
            let answers = ask_this(0xfff1, LONG);
            is_over.store(true, Ordering::Relaxed);
            answers
        });
        assert!(text.len() > PART);
        let expected = Answer { process: std::process::id(), text, is_whole: true };
        assert_eq!(answers, [expected]);
    }

    #[test]
    fn text_is_not_built_without_query() {
        let socket = StatusSocket::open(0xfff2).unwrap();
        socket.answer(|| panic!("nobody asks"));
        drop(socket);
        assert!(ask(Some(0), LONG).unwrap().is_empty());
    }

    #[test]
    fn silent_process_is_not_awaited_beyond_limit() {
        let _socket = StatusSocket::open(0xfff3).unwrap();
        let answers = ask_this(0xfff3, Duration::from_millis(1));
        assert_eq!(answers, [Answer { process: std::process::id(), ..Answer::default() }]);
    }

    #[test]
    fn names_roundtrip() {
        let name = Name { process: 0x1234, ifindex: 1 };
        assert_eq!(Name::of(&format!("2-1-{name}")), Some(name));
        assert_eq!(Name::of("2-1-slot-7"), None);
    }
}
