//! Stock programs that connect through librdmacm: what each is told, when its server is ready, and what both must say.
//!
//! [`list`] has the programs, [`judge`] reads what they print, [`local`] runs them on this machine; between roxe and the
//! kernel's rxe [`crate::matrix::rdmacm`] runs them.

pub mod judge;
pub mod list;
pub mod local;

use crate::matrix::Ip;
use judge::Says;
use std::fmt;

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
    /// Its data: datagrams are not repeated, and it waits for all of them. Connection messages are repeated.
    Datagrams,
    /// Its data, and it has no connection messages.
    Groups,
}

/// Programs that meet: servers first, then clients, all clients at once.
///
/// In the command lines `OWN` stands for the address of who is told, `SERVER` for that of the servers, `GROUP` for a
/// multicast group, `PORT` for a number that nobody else uses.
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
    /// When the clients may start.
    pub ready: Ready,
    /// Whether the servers go on when the clients have ended.
    pub stays: bool,
    /// What may be lost.
    pub carrier: Carrier,
    /// What they must say.
    pub says: Says,
    /// Packets that each process must have received at least, so that nothing else than roxe carried the data.
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
}

impl Words<'_> {
    /// `line` with its words replaced.
    pub fn fill(&self, line: &str) -> String {
        let words = line.split_whitespace().map(|word| match word {
            "OWN" => self.own.to_owned(),
            "SERVER" => self.server.to_owned(),
            "GROUP" => self.group.to_owned(),
            "PORT" => self.port.to_string(),
            word => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

impl Exchange {
    /// The two programs.
    pub fn tools(&self) -> [&str; 2] {
        [&self.server, &self.client].map(|line| line.split_whitespace().next().unwrap_or_default())
    }
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

/// How that file writes [`group`]: an IPv4 address as a number of this machine.
pub fn group_word(ip: Ip) -> &'static str {
    match ip {
        Ip::V4 => "02014DEF",
        Ip::V6 => "ff0e0000000000000000000000770102",
    }
}

/// What the client is told.
impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.client.replace(" -p PORT", ""), self.note)
    }
}
