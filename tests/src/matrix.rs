//! The interop matrix between roxe and the kernel's rxe, and its results.
//!
//! A *cell* is one kind of message: service, operation, size, path MTU. A *group* is a pair of
//! agents under one condition, between which cells run one after the other. Only [`run`] starts
//! processes.

pub mod agents;
pub mod capture;
pub mod peer_bugs;
pub mod plan;
pub mod rdmacm;
pub mod report;
pub mod run;
pub mod stock;

pub use roxe_peer::check::Family as Ip;
pub use roxe_peer::plan::{Cell, Op, Service};
use std::fmt;

/// Direction of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// roxe requests, rxe responds.
    RoxeToRxe,
    /// rxe requests, roxe responds.
    RxeToRoxe,
}

/// Treatment of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The network changes no packet.
    Clean,
    /// The guest's netem drops and reorders packets in both directions.
    Netem,
    /// roxe's fault rules drop, duplicate, reorder and damage packets in both directions.
    Faults,
}

impl Condition {
    /// Returns true if packets get lost.
    pub fn lossy(self) -> bool {
        self != Self::Clean
    }
}

/// A pair of agents under one condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Direction of the requests.
    pub direction: Direction,
    /// IP version.
    pub ip: Ip,
    /// Treatment of the packets.
    pub condition: Condition,
}

/// Result of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Bytes and completions are correct.
    Passed,
    /// Bytes or completions are wrong, or the cell did not run; with the evidence.
    Failed(String),
    /// A card cannot run the cell; with the reason.
    Skipped(String),
    /// A known defect of rxe makes the cell fail; with the defect's name.
    PeerBug(String),
}

/// A cell with its ending.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Cell that was run.
    pub cell: Cell,
    /// Result.
    pub ending: Ending,
    /// Duration in milliseconds.
    pub milliseconds: u64,
}

/// A group with all its cells.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The pair of processes.
    pub group: Group,
    /// Each of its cells.
    pub tried: Vec<Tried>,
    /// Duration in seconds.
    pub seconds: f32,
    /// Result of tshark on its packets, if there was a capture.
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

impl Condition {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Clean, Self::Netem, Self::Faults];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RoxeToRxe => "roxe->rxe",
            Self::RxeToRoxe => "rxe->roxe",
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
