//! The receive side of the raw link: its socket, flow rules, and the destinations of frames.

use crate::poller::{Poller, Watch};
use crate::queue_pair::{QueuePair, RssGroup};
use roxe_base::error::Error;
use roxe_net::raw::{FrameReceiver, RxFilter};
use roxe_observe::adapter::Adapter;
use roxe_observe::flow_counters::FlowCounters;
use roxe_transport::steering::{Rule, RuleKind, Rules};
use roxe_wire::frame::FrameKey;
use std::sync::Arc;

pub(crate) const BUDGET: usize = 8;

/// Destination of the frames of a flow.
#[derive(Clone, Debug)]
pub enum Destination {
    /// A queue pair.
    Qp(Arc<dyn QueuePair>),
    /// One of several work queues, selected by the hash of the frame.
    Rss(Arc<dyn RssGroup>),
    /// No queue pair: the flow withholds frames from flows of lower priority.
    Drop,
}

/// Actions of a flow.
#[derive(Clone, Debug)]
pub struct Target {
    /// Receiver of the frames.
    pub to: Destination,
    /// Tag for the completion; 0 for none.
    pub tag: u32,
    /// Counters of the flow.
    pub counters: Vec<Arc<FlowCounters>>,
}

#[derive(Debug)]
pub(crate) struct FrameSide {
    pub(crate) receiver: FrameReceiver,
    pub(crate) rules: Rules<Target>,
    /// Destinations of the current frame with their tags; kept to reuse its memory.
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

/// Lists in `chosen` the destinations of a frame of `len` bytes, each once, with its tag.
pub(crate) fn choose(rules: &Rules<Target>, chosen: &mut Vec<(Arc<dyn QueuePair>, u32)>, key: &FrameKey, len: usize) {
    rules.steer(key, |target| {
        // clause: FLOW-ACTIONS
        target.counters.iter().for_each(|counters| counters.count(len));
        let qp = match &target.to {
            Destination::Qp(qp) => Some(Arc::clone(qp)),
            Destination::Rss(group) => group.choose(key),
            Destination::Drop => None,
        };
        let Some(qp) = qp else { return };
        // clause: FLOW-COPIES
        if !chosen.iter().any(|(other, _)| Arc::ptr_eq(other, &qp)) {
            chosen.push((qp, target.tag));
        }
    });
}

/// Returns the frames the interface must receive for a rule.
pub(crate) fn filter_of(rule: &Rule<Target>) -> RxFilter {
    match rule.kind {
        RuleKind::Normal(_) => rule.filter.dst_mac().map_or(RxFilter::Everything, RxFilter::Address),
        RuleKind::MulticastDefault => RxFilter::Groups,
        RuleKind::Sniffer | RuleKind::AllDefault => RxFilter::Everything,
    }
}
