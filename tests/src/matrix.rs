//! The interoperability matrix between roxe and the kernel's rxe, and its results.
//!
//! A *cell* is one kind of message: service, operation, size, path MTU. A *group* is a pair of
//! agents under one condition; its cells run one after the other.

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

/// Loss and damage of packets on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No faults are injected.
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
    /// Loss and damage of packets.
    pub condition: Condition,
}

/// Result of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Bytes and completions are correct.
    Passed,
    /// Bytes or completions are wrong, or the cell did not run. Holds the evidence.
    Failed(String),
    /// One of the cards does not support the cell. Holds the reason.
    Skipped(String),
    /// The cell failed because of a known defect of rxe. Holds the defect's name.
    PeerBug(String),
}

/// Result of a cell.
#[derive(Clone, Debug)]
pub struct CellResult {
    /// The cell that ran.
    pub cell: Cell,
    /// Ending of the run.
    pub ending: Ending,
    /// Duration in milliseconds.
    pub milliseconds: u64,
}

/// Results of a group.
#[derive(Clone, Debug)]
pub struct GroupResult {
    /// The group that ran.
    pub group: Group,
    /// Results of its cells.
    pub cells: Vec<CellResult>,
    /// Duration in seconds.
    pub seconds: f32,
    /// Result of tshark on its packets, if there was a capture.
    pub capture: Option<capture::Verdict>,
}

impl GroupResult {
    /// Returns the results of a group that could not run: each cell failed because of `why`.
    pub fn failed(group: Group, cells: &[Cell], why: &str) -> Self {
        let failed = |cell: &Cell| CellResult { cell: *cell, ending: Ending::Failed(why.to_owned()), milliseconds: 0 };
        Self { group, cells: cells.iter().map(failed).collect(), seconds: 0.0, capture: None }
    }
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::RoxeToRxe, Self::RxeToRoxe];
}

impl Condition {
    /// All conditions.
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
