//! The receive side of the raw link: its socket, the rules of all flows, and who gets a frame.
//!
//! Touches the socket.

use crate::poller::{Poller, Watch};
use crate::queue_pair::{QueuePair, Spread};
use roxe_base::error::Error;
use roxe_net::raw::{FrameReceiver, Reach};
use roxe_observe::adapter::Adapter;
use roxe_observe::flow_counters::FlowCounters;
use roxe_transport::steering::{Rule, RuleKind, Rules};
use roxe_wire::frame::FrameKey;
use std::sync::Arc;

/// Batches of one visit.
pub(crate) const BUDGET: usize = 8;

/// Who gets the frames of a flow.
#[derive(Clone, Debug)]
pub enum Destination {
    /// This queue pair.
    Qp(Arc<dyn QueuePair>),
    /// One of several work queues, by the hash of the frame.
    Spread(Arc<dyn Spread>),
    /// Nobody: the flow takes them away from flows of lower priority.
    Nobody,
}

/// What a flow does with a frame.
#[derive(Clone, Debug)]
pub struct Target {
    /// Who gets it.
    pub to: Destination,
    /// For the completion; 0: none.
    pub tag: u32,
    /// What counts it.
    pub counters: Vec<Arc<FlowCounters>>,
}

/// The receive side of the raw link.
#[derive(Debug)]
pub(crate) struct FrameSide {
    pub(crate) receiver: FrameReceiver,
    pub(crate) rules: Rules<Target>,
    /// The queue pairs that get the frame in hand, with its tag; kept for its memory.
    pub(crate) chosen: Vec<(Arc<dyn QueuePair>, u32)>,
}

impl FrameSide {
    pub(crate) fn open(adapter: &Adapter, poller: &Poller) -> Result<Self, Error> {
        let receiver = FrameReceiver::open(adapter.interface())?;
        let watched = poller.watch(receiver.fd(), Watch::All);
        // clause: RAW-EVENT
        watched.map_err(|e| Error::os("cannot wait for frames", &e))?;
        Ok(Self { receiver, rules: Rules::default(), chosen: Vec::new() })
    }
}

/// Lists in `chosen` who gets a frame of `len` bytes, each receiver once, and with which tag.
pub(crate) fn choose(rules: &Rules<Target>, chosen: &mut Vec<(Arc<dyn QueuePair>, u32)>, key: &FrameKey, len: usize) {
    rules.steer(key, |target| {
        // clause: FLOW-ACTIONS
        target.counters.iter().for_each(|counters| counters.count(len));
        let qp = match &target.to {
            Destination::Qp(qp) => Some(Arc::clone(qp)),
            Destination::Spread(spread) => spread.choose(key),
            Destination::Nobody => None,
        };
        let Some(qp) = qp else { return };
        // clause: FLOW-COPIES
        if !chosen.iter().any(|(other, _)| Arc::ptr_eq(other, &qp)) {
            chosen.push((qp, target.tag));
        }
    });
}

/// What the interface must take in for a rule.
pub(crate) fn reach_of(rule: &Rule<Target>) -> Reach {
    match rule.kind {
        RuleKind::Normal(_) => rule.wanted.dst_mac().map_or(Reach::Everything, Reach::Address),
        RuleKind::MulticastDefault => Reach::Groups,
        RuleKind::Sniffer | RuleKind::AllDefault => Reach::Everything,
    }
}
