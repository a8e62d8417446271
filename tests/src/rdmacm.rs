//! Stock programs that connect through librdmacm: their command lines, the condition under which a
//! server is ready, and the output expected of servers and clients.
//!
//! [`list`] has the programs, [`judge`] checks their output. [`local`] runs them on this machine,
//! [`crate::matrix::rdmacm`] between roxe and the kernel's rxe.

pub mod judge;
pub mod list;
pub mod local;

use crate::matrix::Ip;
use judge::Expected;
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

/// Service that carries the messages, which decides if a lost packet is retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Every lost packet is retransmitted.
    Reliable,
    /// Lost datagrams are not retransmitted, and the programs wait for all of them. Connection
    /// messages are retransmitted.
    Datagrams,
    /// Datagrams to a multicast group, without connection messages.
    Multicast,
}

/// Servers and the clients that connect to them.
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
    /// True if each client starts after the previous one has ended: a persistent rping confuses two
    /// clients that connect at once.
    pub one_by_one: bool,
    /// Port of programs with a fixed one.
    pub port: Option<u16>,
    /// Sign after which the clients may start.
    pub ready: Ready,
    /// True if the servers run until they are killed.
    pub stays: bool,
    /// Service that carries the messages.
    pub transport: Transport,
    /// Expected output.
    pub expected: Expected,
    /// Least number of packets that each process must receive: it proves that roxe carried the
    /// data.
    pub packets: u64,
    /// The IP versions that the programs support.
    pub ips: &'static [Ip],
    /// Suffix of the name, after the client's command line.
    pub note: &'static str,
}

/// Values of the placeholders of a command line.
#[derive(Clone, Copy, Debug)]
pub struct Placeholders<'a> {
    /// Address of the program itself.
    pub own: &'a str,
    /// Address of the servers.
    pub server: &'a str,
    /// Address of the multicast group.
    pub group: &'a str,
    /// An unused port.
    pub port: u16,
    /// Path of the new file on the servers' side.
    pub copy: &'a str,
}

impl Placeholders<'_> {
    /// Returns `line` with the values in place of the placeholders.
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
    /// Returns true if the client copies a file to the server.
    pub fn copies(&self) -> bool {
        self.client.contains("COPY")
    }

    /// Returns the names of the two programs.
    pub fn tools(&self) -> [&str; 2] {
        [&self.server, &self.client].map(|line| line.split_whitespace().next().unwrap_or_default())
    }
}

/// The file that is copied. The guest sees it too, because its root is this machine's.
pub const ORIGINAL: &str = "/bin/busybox";

/// Checks that the file `copy` equals [`ORIGINAL`], and removes it.
pub fn check_copy(copy: &Path) -> judge::CheckResult {
    let same = || Ok::<_, io::Error>(fs::read(ORIGINAL)? == fs::read(copy)?);
    let judged = match same() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is not {ORIGINAL}", copy.display())),
        Err(e) => Err(format!("{}: {e}", copy.display())),
    };
    let _ = fs::remove_file(copy);
    judged
}

/// Returns the multicast group of the tests.
pub fn group(ip: Ip) -> &'static str {
    match ip {
        Ip::V4 => "239.77.1.2",
        Ip::V6 => "ff0e::77:102",
    }
}

/// Returns the file in `/proc/net` that lists the multicast groups of this IP version.
pub fn group_file(ip: Ip) -> &'static str {
    match ip {
        Ip::V4 => "igmp",
        Ip::V6 => "igmp6",
    }
}

/// Returns the number of members of the tests' group in the text of a [`group_file`]: the column
/// after the group.
pub fn count_members(table: &str, ip: Ip) -> usize {
    // The kernel prints an IPv4 group as a number in host byte order.
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
