//! Raw packets: flows that steer frames to a queue pair (`man ibv_create_flow`), and tables that
//! spread the frames of a hash queue pair over work queues (`man ibv_create_rwq_ind_table`). The
//! engine matches frames against the rules of [`roxe_transport::steering`].

use super::core::QpCore;
use crate::context::Context;
use crate::cq::Cq;
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{Use, UseCount};
use roxe_engine::frames::{Destination, Target};
use roxe_engine::queue_pair::{QueuePair, RssGroup};
use roxe_observe::flow_counters::FlowCounters;
use roxe_transport::qp::Service;
use roxe_transport::rss::RxHash;
use roxe_transport::steering::{Rule, RuleId, RuleKind};
use roxe_wire::Gid;
use roxe_wire::frame::{Field, FrameKey, FrameMatch};
use std::sync::Arc;

/// Creation parameters of a flow.
#[derive(Clone, Debug)]
pub struct FlowInit {
    /// Kind of the flow, which orders the matching.
    pub kind: RuleKind,
    /// Match for frames; the default matches all.
    pub filter: FrameMatch,
    /// True if matching frames also go to flows of lower priority. Normal flows only.
    pub continues: bool,
    /// True if matching frames are dropped, also for flows of lower priority.
    pub drops: bool,
    /// Tag in the completions of its frames; 0 means none.
    pub tag: u32,
    /// Counters of its frames.
    pub counters: Vec<Arc<FlowCounters>>,
}

impl Default for FlowInit {
    fn default() -> Self {
        Self {
            kind: RuleKind::Normal(0),
            filter: FrameMatch::default(),
            continues: false,
            drops: false,
            tag: 0,
            counters: Vec::new(),
        }
    }
}

/// A flow; dropping the value removes the flow.
#[derive(Debug)]
pub struct Flow {
    id: RuleId,
    core: Arc<QpCore>,
    _uses: Vec<Use>,
}

impl Flow {
    /// Creates a flow. Errors as of [`Qp::create_flow`](super::Qp::create_flow).
    pub(super) fn create(
        core: &Arc<QpCore>,
        spread: Option<&Arc<Rss>>,
        flows: &FlowUses,
        init: FlowInit,
    ) -> Result<Self, Error> {
        if core.resources.service != Service::Raw {
            return Err(Error::invalid("flows can be attached to raw packet queue pairs only"));
        }
        if init.continues && !matches!(init.kind, RuleKind::Normal(_)) {
            return Err(Error::invalid("only a flow of type NORMAL can leave frames to other flows"));
        }
        let FlowInit { kind, filter, continues, drops, tag, counters } = init;
        let uses = counters.iter().map(|counters| counters.hold()).chain([flows.count.hold()]).collect();
        let to = match spread {
            _ if drops => Destination::Drop,
            Some(rss) => Destination::Rss(Arc::clone(rss) as _),
            None => Destination::Qp(Arc::clone(core) as _),
        };
        let id = core.engine().add_rule(Rule { kind, filter, continues, target: Target { to, tag, counters } })?;
        Ok(Self { id, core: Arc::clone(core), _uses: uses })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.core.engine().remove_rule(self.id);
    }
}

/// Flows and Ethernet groups of a raw packet queue pair.
#[derive(Debug, Default)]
pub(super) struct FlowUses {
    count: UseCount,
    /// Ethernet groups that the queue pair is attached to, with their flows.
    groups: Mutex<rank::FlowGroups, Vec<([u8; 6], Flow)>>,
}

impl FlowUses {
    /// Fails with EBUSY while there are flows.
    pub(super) fn check_unused(&self) -> Result<(), Error> {
        self.count.check_unused("queue pair", "flows")
    }

    /// Adds a flow for the group `mgid` unless there is one. Fails with EINVAL if `mgid` is not a
    /// group address.
    // clause: RAW-GROUP
    pub(super) fn attach(&self, core: &Arc<QpCore>, spread: Option<&Arc<Rss>>, mgid: Gid) -> Result<(), Error> {
        let mac = group_of(mgid)?;
        let mut groups = self.groups.lock();
        if groups.iter().all(|(other, _)| *other != mac) {
            let mut filter = FrameMatch::default();
            // An empty match cannot contradict its first field.
            let _ = filter.require_exactly(Field::DstMac, &mac);
            groups.push((mac, Flow::create(core, spread, self, FlowInit { filter, ..FlowInit::default() })?));
        }
        Ok(())
    }

    /// Ends [`FlowUses::attach`]. Fails with EINVAL if not attached.
    pub(super) fn detach(&self, mgid: Gid) -> Result<(), Error> {
        let mac = group_of(mgid)?;
        let mut groups = self.groups.lock();
        let at = groups.iter().position(|(other, _)| *other == mac);
        let at = at.ok_or_else(|| Error::invalid(format!("the queue pair is not attached to {mgid}")))?;
        groups.swap_remove(at);
        Ok(())
    }

    pub(super) fn clear(&self) {
        self.groups.lock().clear();
    }
}

/// Returns the Ethernet group address in the last six bytes of a GID.
fn group_of(mgid: Gid) -> Result<[u8; 6], Error> {
    match mgid.0 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mac @ ..] if mac[0] & 1 != 0 => Ok(mac),
        _ => Err(Error::invalid(format!("{mgid} does not end with the address of an Ethernet group"))),
    }
}

/// A table of receive work queues, indexed by the hash of a frame.
#[derive(Debug)]
pub struct RwqTable {
    pub(crate) context: Arc<Context>,
    pub(crate) entries: Vec<Arc<QpCore>>,
    /// Nominal completion queue of hash queue pairs, which complete nothing.
    pub(crate) cq: Arc<Cq>,
    pub(crate) uses: UseCount,
    /// Uses of the queues and of the quota, until the table is destroyed.
    pub(crate) held: Mutex<rank::Uses, Vec<Use>>,
}

impl RwqTable {
    /// Destroys the table. Fails with EBUSY while hash queue pairs use it.
    pub fn destroy(&self) -> Result<(), Error> {
        self.uses.check_unused("indirection table", "queue pairs")?;
        self.held.lock().clear();
        Ok(())
    }
}

/// The table and hash of a hash queue pair.
#[derive(Debug)]
pub(crate) struct Rss {
    pub(crate) table: Arc<RwqTable>,
    pub(crate) hash: RxHash,
}

impl RssGroup for Rss {
    // clause: RSS-CHOICE
    fn choose(&self, key: &FrameKey) -> Option<Arc<dyn QueuePair>> {
        let entries = &self.table.entries;
        // The number of entries is a power of two.
        let entry = entries.get(self.hash.of(key) as usize & (entries.len() - 1))?;
        Some(Arc::clone(entry) as _)
    }
}
