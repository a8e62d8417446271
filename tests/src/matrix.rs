//! The interop matrix: what there is to try between roxe and the kernel's rxe, and what came of it.
//!
//! A *cell* is one kind of message: service, operation, size, path MTU. A *group* is a pair of
//! processes under one condition, which does many cells one after the other. Knows nothing of
//! processes but in [`run`].

pub mod agents;
pub mod capture;
pub mod peer_bugs;
pub mod plan;
pub mod rdmacm;
pub mod report;
pub mod run;
pub mod stock;

pub use roxe_peer::check::{Op, Service};
use std::fmt;

/// Who sends the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// roxe requests, rxe responds.
    RoxeToRxe,
    /// rxe requests, roxe responds.
    RxeToRoxe,
}

/// IP version under the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ip {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What is done to the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Clean,
    /// The guest's netem loses and reorders in both directions.
    Netem,
    /// roxe's own fault rules lose, double, reorder and damage in both directions.
    Faults,
}

impl Condition {
    /// Whether packets get lost.
    pub fn lossy(self) -> bool {
        self != Self::Clean
    }
}

/// A pair of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Who sends the requests.
    pub direction: Direction,
    /// IP version.
    pub ip: Ip,
    /// What is done to the packets.
    pub condition: Condition,
}

/// One kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub op: Op,
    /// Message bytes.
    pub size: u32,
    /// Path MTU.
    pub mtu: u32,
}

/// How a cell ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Bytes and completions were right.
    Passed,
    /// They were not, or the cell was never reached; the text says what was seen.
    Failed(String),
    /// The programs could not try it; the text says why.
    Skipped(String),
    /// It failed in the one way that a known defect of rxe makes it fail; the text names the
    /// defect.
    PeerBug(String),
}

/// A cell with its ending.
#[derive(Clone, Debug)]
pub struct Tried {
    /// What was tried.
    pub cell: Cell,
    /// How it ended.
    pub ending: Ending,
    /// How long it took.
    pub milliseconds: u64,
}

/// A group with all its cells.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The pair of processes.
    pub group: Group,
    /// Each of its cells.
    pub tried: Vec<Tried>,
    /// How long the pair took.
    pub seconds: f32,
    /// What tshark said of its packets, if there was a capture.
    pub capture: Option<capture::Verdict>,
}

impl Judged {
    /// A group that could not be run because of `why`: each of its cells has failed.
    pub fn lost(group: Group, cells: &[Cell], why: &str) -> Self {
        let failed = |cell: &Cell| Tried { cell: *cell, ending: Ending::Failed(why.to_owned()), milliseconds: 0 };
        Self { group, tried: cells.iter().map(failed).collect(), seconds: 0.0, capture: None }
    }
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::RoxeToRxe, Self::RxeToRoxe];
}

impl Ip {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
}

impl Condition {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Clean, Self::Netem, Self::Faults];
}

/// What the test program takes as a word of its command line.
pub trait Word {
    /// That word.
    fn word(self) -> &'static str;
}

impl Word for Service {
    fn word(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        }
    }
}

impl Word for Op {
    fn word(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send_imm",
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Read => "read",
            Self::FetchAdd => "fetch_add",
            Self::CmpSwap => "cmp_swap",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RoxeToRxe => "roxe->rxe",
            Self::RxeToRoxe => "rxe->roxe",
        })
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Clean => "clean",
            Self::Netem => "netem",
            Self::Faults => "faults",
        })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.direction, self.ip, self.condition)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} size={} mtu={}", self.service.word(), self.op.word(), self.size, self.mtu)
    }
}
