//! Stock programs that connect through librdmacm: their command lines, when a server is ready, and
//! the output required of both.
//!
//! [`list`] has the programs, [`judge`] reads their output, [`local`] runs them on this machine,
//! and [`crate::matrix::rdmacm`] between roxe and the kernel's rxe.

pub mod judge;
pub mod list;
pub mod local;

use crate::matrix::Ip;
use judge::Says;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// Sign that a server is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The server listens on its port.
    Listens,
    /// The server is a member of the multicast group.
    Joined,
}

/// Packets that may be lost for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// No packet: every lost packet is retransmitted.
    Reliable,
    /// Datagrams: they are not retransmitted, and the programs wait for all of them. Connection
    /// messages are retransmitted.
    Datagrams,
    /// Datagrams; there are no connection messages.
    Groups,
}

/// Programs that meet: servers first, then clients.
///
/// Placeholders in the command lines: `OWN`, the address of the program itself; `SERVER`, that of
/// the servers; `GROUP`, a multicast group; `PORT`, an unused port; `COPY`, a new file of the
/// servers.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Command line of a server.
    pub server: String,
    /// Command line of a client.
    pub client: String,
    /// Number of servers.
    pub servers: usize,
    /// Number of clients.
    pub clients: usize,
    /// True if each client starts after the previous one has ended. A persistent rping has one slot
    /// for a connecting client, and confuses two that connect at once.
    pub one_by_one: bool,
    /// Port of programs with a fixed one.
    pub port: Option<u16>,
    /// Sign after which the clients may start.
    pub ready: Ready,
    /// True if the servers do not end with the clients.
    pub stays: bool,
    /// Packets that may be lost for good.
    pub carrier: Carrier,
    /// Required output.
    pub says: Says,
    /// Least number of packets that each process must have received, so that only roxe can have
    /// carried the data.
    pub packets: u64,
    /// The IP versions that the programs know.
    pub ips: &'static [Ip],
    /// Suffix of the name, after the client's command line.
    pub note: &'static str,
}

/// Values of the placeholders of a command line.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// Address of the program itself.
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
    /// Returns true if the program leaves a file.
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

/// Checks that `copy`, as this machine sees it, has the bytes of [`ORIGINAL`], and removes it.
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

/// Number of the group's members in such a file: the column after it.
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

/// Prints the client's command line.
impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.client.replace(" -p PORT", ""), self.note)
    }
}
