//! Queries of a process's queue pairs and objects, for `roxe top`, `roxe metrics` and `rdma`, and
//! changes of its fault rules, for `roxe faults`.
//!
//! Each process holds a named Unix datagram socket ([`crate::named`]) per device. A query is
//! answered with a few datagrams of text to the querying socket, without blocking: parts that find
//! no room are dropped.

use crate::named::{NamedSocket, Prefix, namespace};
use crate::runtime_dir::{RuntimeDir, bind_at_random, datagram_socket};
use socket2::{SockAddr, Socket};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Maximum size of a datagram in bytes: less than the minimum send buffer of a socket (`man 7
/// socket`, `wmem_default`).
const MAX_PART: usize = 32 << 10;
/// First word of the last datagram of an answer, followed by the file name of the answering socket.
const LAST: &str = "last";
/// First word of the datagrams before the last.
const MORE: &str = "more";
/// Beginning of the names of status sockets.
const KIND: &str = "status-";

/// Kind of verbs object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Protection domain.
    Pd,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
    /// Identifier of librdmacm.
    CmId,
    /// Memory region.
    Mr,
    /// Opened device.
    Ctx,
    /// Shared receive queue.
    Srq,
}

impl ObjectKind {
    /// All kinds, in the order of `rdma resource`.
    pub const ALL: [Self; 7] = [Self::Pd, Self::Cq, Self::Qp, Self::CmId, Self::Mr, Self::Ctx, Self::Srq];

    /// Returns the name in `rdma resource` of iproute2.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pd => "pd",
            Self::Cq => "cq",
            Self::Qp => "qp",
            Self::CmId => "cm_id",
            Self::Mr => "mr",
            Self::Ctx => "ctx",
            Self::Srq => "srq",
        }
    }

    /// Returns the kind of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Last line of a list that is not complete.
pub const SHORTENED: &str = "shortened\n";

/// Content of an answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    /// Device, counters and progress of queue pairs.
    Status,
    /// Device, the number of objects of each kind, and the counters of the port by their files.
    Counts,
    /// Device, and the objects of one kind.
    Objects(ObjectKind),
    /// Device, and the fault rules, which a text replaces.
    Faults(Option<String>),
}

/// First word of a datagram of [`Query::Faults`].
const FAULTS: &str = "faults";
/// Size in bytes from which on a query is too long and not answered.
const MAX_QUERY: usize = 128 << 10;

impl Query {
    /// Returns the text of the datagram.
    fn text(&self) -> String {
        match self {
            Self::Status => "status".to_owned(),
            Self::Counts => "counts".to_owned(),
            Self::Objects(kind) => kind.name().to_owned(),
            Self::Faults(None) => FAULTS.to_owned(),
            Self::Faults(Some(rules)) => format!("{FAULTS} {rules}"),
        }
    }

    /// Parses a datagram. Unknown words ask for the status.
    fn of(datagram: &[u8]) -> Self {
        let text = str::from_utf8(datagram).unwrap_or_default();
        match (text.split_once(' '), ObjectKind::of(text)) {
            (Some((FAULTS, rules)), _) => Self::Faults(Some(rules.to_owned())),
            (_, Some(kind)) => Self::Objects(kind),
            _ if text == FAULTS => Self::Faults(None),
            _ if text == Self::Counts.text() => Self::Counts,
            _ => Self::Status,
        }
    }
}

/// A device of a process, in the network namespace of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StatusName {
    pid: u32,
    ifindex: u32,
}

impl fmt::Display for StatusName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KIND}{:x}-{:x}", self.pid, self.ifindex)
    }
}

/// A device of a process on this host. Hosts of `roxe lab` and containers share interface indices,
/// and process numbers if they have process namespaces of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SocketId {
    namespace: u64,
    name: StatusName,
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Prefix(self.namespace), self.name)
    }
}

impl SocketId {
    /// Parses the name of a socket's file.
    fn of(text: &str) -> Option<Self> {
        let (Prefix(namespace), name) = Prefix::of(text)?;
        let (pid, ifindex) = name.strip_prefix(KIND)?.split_once('-')?;
        let number = |digits| u32::from_str_radix(digits, 16).ok();
        Some(Self { namespace, name: StatusName { pid: number(pid)?, ifindex: number(ifindex)? } })
    }
}

/// The status socket of a device of this process.
#[derive(Debug)]
pub struct StatusSocket {
    socket: NamedSocket,
    id: SocketId,
}

impl StatusSocket {
    /// Opens the socket for the device on interface `ifindex`. Fails with EADDRINUSE if it is open
    /// already.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let name = StatusName { pid: std::process::id(), ifindex };
        let socket = NamedSocket::bind(&name)?;
        socket.set_nonblocking(true)?;
        let id = SocketId { namespace: socket.space().namespace(), name };
        Ok(Self { socket, id })
    }

    /// Returns the descriptor, readable when there is a query.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Answers all queries in order; `text` is called once for each distinct query.
    pub fn answer(&self, text: impl Fn(&Query) -> String) {
        let mut queries = Vec::<(Query, Vec<SockAddr>)>::new();
        let (mut datagram, mut left) = (vec![0; MAX_QUERY], 16);
        // One thread reads, so both calls see the same datagram.
        while let Ok(asker) = self.socket.peek_sender()
            && let Ok(len) = (&*self.socket).read(&mut datagram)
        {
            if asker.as_pathname().is_some() && left > 0 && len < MAX_QUERY {
                left -= 1;
                let query = Query::of(&datagram[..len]);
                match queries.iter_mut().find(|(known, _)| *known == query) {
                    Some((_, askers)) => askers.push(asker),
                    None => queries.push((query, vec![asker])),
                }
            }
        }
        for (query, askers) in queries {
            let text = text(&query);
            for asker in askers {
                // A peer that has exited or whose buffer is full gets no more parts.
                let _ = parts(&text).try_for_each(|(part, is_last)| {
                    let state = if is_last { LAST } else { MORE };
                    self.socket.send_to(format!("{state} {}\n{part}", self.id).as_bytes(), &asker).map(drop)
                });
            }
        }
    }
}

/// Returns the text in parts of whole lines; true for the last part.
fn parts(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = if text.len() <= MAX_PART {
            text.len()
        } else {
            1 + text.as_bytes()[..MAX_PART].iter().rposition(|b| *b == b'\n')?
        };
        let (part, left) = text.split_at_checked(end)?;
        rest = (!left.is_empty()).then_some(left);
        Some((part, rest.is_none()))
    })
}

/// State of one device of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Network namespace of the process.
    pub namespace: u64,
    /// Process id, in the process namespace of the process.
    pub pid: u32,
    /// Index of the interface of the device.
    pub ifindex: u32,
    /// The text, as far as it was received.
    pub text: String,
    /// True if the text is complete. A stopped process sends nothing.
    pub is_whole: bool,
}

/// Queries all processes of this user, or process `pid` alone, and waits up to `limit` for answers.
pub fn ask(pid: Option<u32>, limit: Duration) -> io::Result<Vec<Answer>> {
    let is_selected = |id: &SocketId| pid.is_none_or(|pid| pid == id.name.pid);
    query_devices(&Query::Status, is_selected, usize::MAX, limit)
}

/// Queries one device of process `pid`. `None` if no process of this user in this network namespace
/// has this id and an open device.
pub fn ask_one(pid: u32, query: &Query, limit: Duration) -> io::Result<Option<Answer>> {
    let here = namespace()?;
    let is_selected = |id: &SocketId| id.name.pid == pid && id.namespace == here;
    Ok(query_devices(query, is_selected, 1, limit)?.pop())
}

/// Like [`ask`], for `query` and the processes in these network namespaces.
pub fn ask_in(namespaces: &[u64], query: &Query, limit: Duration) -> io::Result<Vec<Answer>> {
    query_devices(query, |id| namespaces.contains(&id.namespace), usize::MAX, limit)
}

/// Like [`ask_in`], for the network namespace of this thread.
pub fn ask_here(query: &Query, limit: Duration) -> io::Result<Vec<Answer>> {
    ask_in(&[namespace()?], query, limit)
}

/// Queries up to `max` devices and waits up to `limit` for answers.
fn query_devices(
    query: &Query,
    is_selected: impl Fn(&SocketId) -> bool,
    max: usize,
    limit: Duration,
) -> io::Result<Vec<Answer>> {
    let dir = RuntimeDir::get()?;
    let (socket, _path) = bind_at_random(datagram_socket()?, dir.path())?;
    let mut answers = BTreeMap::new();
    for entry in fs::read_dir(dir.path())? {
        let path = entry?.path();
        let file = path.file_name().map(|file| file.to_string_lossy()).unwrap_or_default();
        let Some(id) = SocketId::of(&file).filter(|id| answers.len() < max && is_selected(id)) else { continue };
        // The send fails if the process is dead.
        if SockAddr::unix(&path).and_then(|address| socket.send_to(query.text().as_bytes(), &address)).is_ok() {
            let SocketId { namespace, name: StatusName { pid, ifindex } } = id;
            answers.insert(id, Answer { namespace, pid, ifindex, ..Answer::default() });
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

fn receive(mut socket: &Socket, limit: Duration, answers: &mut BTreeMap<SocketId, Answer>) -> io::Result<()> {
    socket.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
    let mut datagram = vec![0; MAX_PART + 64];
    let len = match socket.read(&mut datagram) {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return Ok(()),
        result => result?,
    };
    let text = String::from_utf8_lossy(datagram.get(..len).unwrap_or_default());
    if let Some((head, part)) = text.split_once('\n')
        && let Some((state, id)) = head.split_once(' ')
        && let Some(answer) = SocketId::of(id).and_then(|id| answers.get_mut(&id))
    {
        answer.text.push_str(part);
        answer.is_whole = state == LAST;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const LONG_TIMEOUT: Duration = Duration::from_secs(30);

    fn unanswered(ifindex: u32) -> Answer {
        let namespace = namespace().unwrap();
        Answer { namespace, pid: std::process::id(), ifindex, ..Answer::default() }
    }

    /// Queries this process about `ifindex`, since other tests may run at the same time.
    fn ask_this(ifindex: u32, limit: Duration) -> Vec<Answer> {
        let own = |id: &SocketId| id.name == StatusName { pid: std::process::id(), ifindex };
        query_devices(&Query::Status, own, usize::MAX, limit).unwrap()
    }

    #[test]
    fn query_gets_whole_text_in_parts_of_lines() {
        let socket = StatusSocket::open(0xfff1).unwrap();
        let text: String = (0..5000).map(|number| format!("line {number}\n")).collect();
        let is_over = AtomicBool::new(false);
        let answers = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    socket.answer(|_| text.clone());
                    std::thread::yield_now();
                }
            });
            let answers = ask_this(0xfff1, LONG_TIMEOUT);
            is_over.store(true, Ordering::Relaxed);
            answers
        });
        assert!(text.len() > MAX_PART);
        assert_eq!(answers, [Answer { text, is_whole: true, ..unanswered(0xfff1) }]);
    }

    #[test]
    fn text_is_not_built_without_query() {
        let socket = StatusSocket::open(0xfff2).unwrap();
        socket.answer(|_| panic!("an answer without a query"));
        drop(socket);
        assert!(ask(Some(0), LONG_TIMEOUT).unwrap().is_empty());
    }

    #[test]
    fn silent_process_is_not_awaited_beyond_limit() {
        let _socket = StatusSocket::open(0xfff3).unwrap();
        let answers = ask_this(0xfff3, Duration::from_millis(1));
        assert_eq!(answers, [unanswered(0xfff3)]);
    }

    #[test]
    fn query_words_roundtrip_and_others_ask_for_status() {
        let objects = ObjectKind::ALL.into_iter().map(Query::Objects);
        for query in
            objects.chain([Query::Status, Query::Counts, Query::Faults(None), Query::Faults(Some("drop 3%".into()))])
        {
            assert_eq!(Query::of(query.text().as_bytes()), query);
        }
        assert_eq!(Query::of(b"unheard of"), Query::Status);
    }

    #[test]
    fn file_names_roundtrip() {
        let id = SocketId { namespace: 0xabc, name: StatusName { pid: 0x1234, ifindex: 1 } };
        assert_eq!(SocketId::of(&id.to_string()), Some(id));
        for other in ["2-1-slot-7", "1-abc-status-1234-1", "status-1234-1", "2-abc-status-1234"] {
            assert_eq!(SocketId::of(other), None);
        }
    }

    #[test]
    fn other_network_namespace_is_not_asked() {
        let _socket = StatusSocket::open(0xfff4).unwrap();
        let here = namespace().unwrap();
        let asked = |namespace: u64| {
            let answers = ask_in(&[namespace], &Query::Status, Duration::from_millis(1)).unwrap();
            answers.contains(&unanswered(0xfff4))
        };
        assert!(asked(here) && !asked(here + 1));
    }

    #[test]
    fn ask_one_skips_dead_sockets_and_other_namespaces() {
        // No process has this number.
        const PROCESS: u32 = u32::MAX - 6;
        let here = namespace().unwrap();
        let bind = |namespace, ifindex| {
            let id = SocketId { namespace, name: StatusName { pid: PROCESS, ifindex } };
            let path = RuntimeDir::get().unwrap().path().join(id.to_string());
            let socket = datagram_socket().unwrap();
            // A killed run may have left the file.
            let _ = fs::remove_file(&path);
            socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
            (socket, path)
        };
        let dead: Vec<_> = (1..9).map(|ifindex| bind(here, ifindex).1).collect();
        let others: Vec<_> = (1..9).map(|ifindex| bind(u64::MAX, ifindex)).collect();
        let live = bind(here, 9);
        let answer = ask_one(PROCESS, &Query::Faults(None), Duration::from_millis(1)).unwrap();
        let expected = Answer { namespace: here, pid: PROCESS, ifindex: 9, ..Answer::default() };
        drop(live.0);
        let none = ask_one(PROCESS, &Query::Faults(None), Duration::from_millis(1)).unwrap();
        for path in dead.iter().chain(others.iter().map(|(_, path)| path)).chain([&live.1]) {
            // Other processes may have removed the files of dead sockets.
            let _ = fs::remove_file(path);
        }
        assert_eq!((answer, none), (Some(expected), None));
    }

    #[test]
    fn equal_process_of_other_namespace_has_own_answer() {
        let (asker, _path) = bind_at_random(datagram_socket().unwrap(), RuntimeDir::get().unwrap().path()).unwrap();
        let address = asker.local_addr().unwrap();
        let name = StatusName { pid: 12, ifindex: 2 };
        let [first, second] = [1, 2].map(|namespace| SocketId { namespace, name });
        let mut answers = BTreeMap::from([first, second].map(|id| (id, Answer::default())));
        for (id, text) in [(first, "one\n"), (second, "two\n")] {
            datagram_socket().unwrap().send_to(format!("{LAST} {id}\n{text}").as_bytes(), &address).unwrap();
            receive(&asker, LONG_TIMEOUT, &mut answers).unwrap();
        }
        assert_eq!([&answers[&first].text, &answers[&second].text], ["one\n", "two\n"]);
    }
}
