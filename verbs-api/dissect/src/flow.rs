//! What is kept of the packets towards one queue pair. Touches nothing.

use crate::requests::{Requests, Seq};
use roxe_wire::capture::Direction;
use roxe_wire::{Gid, Psn, Qpn};
use std::collections::VecDeque;

/// Where packets go: from a host to a queue pair of a host, as seen by one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Address of the sender.
    pub src: Gid,
    /// Address of the receiver.
    pub dst: Gid,
    /// The receiving queue pair.
    pub qpn: Qpn,
    /// Which end recorded it, if the file says. A process that talks to itself records both.
    pub direction: Option<Direction>,
}

impl FlowKey {
    /// The key of the way back, to the queue pair `qpn`.
    pub(crate) fn back(self, qpn: Qpn) -> Self {
        let direction = self.direction.map(|direction| match direction {
            Direction::Inbound => Direction::Outbound,
            Direction::Outbound => Direction::Inbound,
        });
        Self { src: self.dst, dst: self.src, qpn, direction }
    }
}

/// The packets to one queue pair.
#[derive(Debug)]
pub struct Flow {
    /// Where they go.
    pub key: FlowKey,
    /// Where they come from, if that is known by now.
    pub source: Option<Qpn>,
    pub(crate) requests: Option<Requests>,
    pub(crate) responses: Responses,
    /// Messages that are not complete, the oldest first.
    pub(crate) open: VecDeque<usize>,
}

impl Flow {
    pub(crate) fn new(key: FlowKey) -> Self {
        let (responses, open) = (Responses::default(), VecDeque::new());
        Self { key, source: None, requests: None, responses, open }
    }
}

/// The responses towards one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    pub acknowledged: Option<Seq>,
    /// The newest response with data.
    pub data: Option<Seq>,
    /// The newest RNR NAK, and how often it was said.
    pub rnr: Option<(Psn, u32)>,
}
