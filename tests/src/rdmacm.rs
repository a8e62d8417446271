//! Stock programs that connect through librdmacm: what each is told, when its server is ready, and
//! what both must say.
//!
//! [`list`] has the programs, [`judge`] reads what they print, [`local`] runs them on this machine;
//! between roxe and the kernel's rxe [`crate::matrix::rdmacm`] runs them.

pub mod judge;
pub mod list;
pub mod local;

use crate::matrix::Ip;
use judge::Says;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// How one sees that a server may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It listens on its port.
    Listens,
    /// It is a member of the multicast group.
    Joined,
}

/// What of its packets may be lost for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Nothing: what is lost is repeated.
    Reliable,
    /// Its data: datagrams are not repeated, and it waits for all of them. Connection messages are
    /// repeated.
    Datagrams,
    /// Its data, and it has no connection messages.
    Groups,
}

/// Programs that meet: servers first, then clients.
///
/// In the command lines `OWN` stands for the address of who is told, `SERVER` for that of the
/// servers, `GROUP` for a multicast group, `PORT` for a number that nobody else uses, `COPY` for a
/// file of the servers that is not there yet.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// What a server is told.
    pub server: String,
    /// What a client is told.
    pub client: String,
    /// How many servers.
    pub servers: usize,
    /// How many clients.
    pub clients: usize,
    /// Whether a client starts when the one before has ended. A persistent rping has one place for
    /// the client that asks, and serves some twice and others never if two ask at once.
    pub one_by_one: bool,
    /// The port, of programs that can be told no other.
    pub port: Option<u16>,
    /// When the clients may start.
    pub ready: Ready,
    /// Whether the servers go on when the clients have ended.
    pub stays: bool,
    /// What may be lost.
    pub carrier: Carrier,
    /// What they must say.
    pub says: Says,
    /// Packets that each process must have received at least, so that nothing else than roxe
    /// carried the data.
    pub packets: u64,
    /// The IP versions that the programs know.
    pub ips: &'static [Ip],
    /// What the name says besides the client's command line.
    pub note: &'static str,
}

/// What the words of a command line stand for.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// Address of who is told.
    pub own: &'a str,
    /// Address of the servers.
    pub server: &'a str,
    /// The group.
    pub group: &'a str,
    /// The port.
    pub port: u16,
    /// The file, as the servers see it.
    pub copy: &'a str,
}

impl Words<'_> {
    /// `line` with its words replaced.
    pub fn fill(&self, line: &str) -> String {
        let words = line.split_whitespace().map(|word| match word {
            "OWN" => self.own.to_owned(),
            "SERVER" => self.server.to_owned(),
            "SERVER:COPY" => format!("{}:{}", self.server, self.copy),
            "GROUP" => self.group.to_owned(),
            "PORT" => self.port.to_string(),
            word => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

impl Exchange {
    /// Whether it leaves a file behind.
    pub fn copies(&self) -> bool {
        self.client.contains("COPY")
    }

    /// The two programs.
    pub fn tools(&self) -> [&str; 2] {
        [&self.server, &self.client].map(|line| line.split_whitespace().next().unwrap_or_default())
    }
}

/// The file that is copied: there on this machine and in the guest, which has its root.
pub const ORIGINAL: &str = "/bin/busybox";

/// Whether `copy`, as this machine sees it, has the bytes of [`ORIGINAL`]; it is removed.
pub fn take_copy(copy: &Path) -> judge::Judged {
    let same = || Ok::<_, io::Error>(fs::read(ORIGINAL)? == fs::read(copy)?);
    let judged = match same() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is not {ORIGINAL}", copy.display())),
        Err(e) => Err(format!("{}: {e}", copy.display())),
    };
    let _ = fs::remove_file(copy);
    judged
}

/// The group of the tests.
pub fn group(ip: Ip) -> &'static str {
    match ip {
        Ip::V4 => "239.77.1.2",
        Ip::V6 => "ff0e::77:102",
    }
}

/// The file in `/proc/net` that lists the groups of this IP version.
pub fn group_table(ip: Ip) -> &'static str {
    match ip {
        Ip::V4 => "igmp",
        Ip::V6 => "igmp6",
    }
}

/// How many members the group has in such a file: the column behind it.
pub fn members_in(table: &str, ip: Ip) -> usize {
    // An IPv4 address is written as a number of this machine.
    let word = match ip {
        Ip::V4 => "02014DEF",
        Ip::V6 => "ff0e0000000000000000000000770102",
    };
    let users = |line: &str| {
        let mut columns = line.split_whitespace().skip_while(|column| *column != word).skip(1);
        columns.next().and_then(|users| users.parse::<usize>().ok())
    };
    table.lines().filter_map(users).sum()
}

/// What the client is told.
impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.client.replace(" -p PORT", ""), self.note)
    }
}
