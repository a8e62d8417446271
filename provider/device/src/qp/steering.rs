//! Which of the frames that the interface sees come to a raw packet queue pair: flows (`man
//! ibv_create_flow`), and tables that spread the frames of a hash queue pair over receive work
//! queues (`man ibv_create_rwq_ind_table`).
//!
//! The rules themselves are [`roxe_transport::steering`]; who asks them is the engine, and for each
//! frame that a flow has chosen a hash queue pair for it asks the table. Touches the engine.

use super::core::QpCore;
use crate::context::Context;
use crate::cq::Cq;
use roxe_base::error::Error;
use roxe_base::lock::{Mutex, rank};
use roxe_base::uses::{Use, UseCount};
use roxe_engine::frames::{Destination, Target};
use roxe_engine::queue_pair::{QueuePair, Spread};
use roxe_observe::flow_counters::FlowCounters;
use roxe_transport::qp::Service;
use roxe_transport::rss::RxHash;
use roxe_transport::steering::{Rule, RuleId, RuleKind};
use roxe_wire::Gid;
use roxe_wire::frame::{Field, FrameKey, FrameMatch};
use std::sync::Arc;

/// What a flow is created with.
#[derive(Clone, Debug)]
pub struct FlowInit {
    /// When it is asked.
    pub kind: RuleKind,
    /// Which frames it is for; the default is for all.
    pub wanted: FrameMatch,
    /// Its frames go to flows of lower priority, too. Normal flows only.
    pub passes: bool,
    /// Its frames go nowhere, but not to flows of lower priority either.
    pub drops: bool,
    /// Tag in the completions of its frames; 0: none.
    pub tag: u32,
    /// What counts its frames.
    pub counters: Vec<Arc<FlowCounters>>,
}

impl Default for FlowInit {
    fn default() -> Self {
        Self {
            kind: RuleKind::Normal(0),
            wanted: FrameMatch::default(),
            passes: false,
            drops: false,
            tag: 0,
            counters: Vec::new(),
        }
    }
}

/// A flow; it ends when dropped.
#[derive(Debug)]
pub struct Flow {
    id: RuleId,
    core: Arc<QpCore>,
    _uses: Vec<Use>,
}

impl Flow {
    /// EINVAL: another type of queue pair, or a flow of no normal kind that passes frames on.
    /// ENOMEM: too many flows.
    pub(super) fn create(
        core: &Arc<QpCore>,
        spread: Option<&Arc<Rss>>,
        flows: &FlowUses,
        init: FlowInit,
    ) -> Result<Self, Error> {
        if core.resources.service != Service::Raw {
            return Err(Error::invalid("only a raw packet queue pair takes flows"));
        }
        if init.passes && !matches!(init.kind, RuleKind::Normal(_)) {
            return Err(Error::invalid("only a normal flow can pass frames on"));
        }
        let FlowInit { kind, wanted, passes, drops, tag, counters } = init;
        let uses = counters.iter().map(|counters| counters.hold()).chain([flows.count.hold()]).collect();
        let to = match spread {
            _ if drops => Destination::Nobody,
            Some(rss) => Destination::Spread(Arc::clone(rss) as _),
            None => Destination::Qp(Arc::clone(core) as _),
        };
        let id = core.engine().add_rule(Rule { kind, wanted, passes, target: Target { to, tag, counters } })?;
        Ok(Self { id, core: Arc::clone(core), _uses: uses })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.core.engine().remove_rule(self.id);
    }
}

/// The flows of a raw packet queue pair.
#[derive(Debug, Default)]
pub(super) struct FlowUses {
    count: UseCount,
    /// The groups of stations that it is attached to.
    groups: Mutex<rank::FlowGroups, Vec<([u8; 6], Flow)>>,
}

impl FlowUses {
    /// EBUSY while there are flows.
    pub(super) fn check_unused(&self) -> Result<(), Error> {
        self.count.check_unused("queue pair", "flows")
    }

    /// A flow for the frames to the group that `mgid` names; once more changes nothing. EINVAL: no
    /// such group.
    // clause: RAW-GROUP
    pub(super) fn attach(&self, core: &Arc<QpCore>, spread: Option<&Arc<Rss>>, mgid: Gid) -> Result<(), Error> {
        let mac = group_of(mgid)?;
        let mut groups = self.groups.lock();
        if groups.iter().all(|(other, _)| *other != mac) {
            let mut wanted = FrameMatch::default();
            // The first of its kind contradicts nothing.
            let _ = wanted.require_exactly(Field::DstMac, &mac);
            groups.push((mac, Flow::create(core, spread, self, FlowInit { wanted, ..FlowInit::default() })?));
        }
        Ok(())
    }

    /// Ends what [`FlowUses::attach`] began; EINVAL if there was nothing.
    pub(super) fn detach(&self, mgid: Gid) -> Result<(), Error> {
        let mac = group_of(mgid)?;
        let mut groups = self.groups.lock();
        let at = groups.iter().position(|(other, _)| *other == mac);
        let at = at.ok_or_else(|| Error::invalid(format!("the queue pair is not attached to {mgid}")))?;
        groups.swap_remove(at);
        Ok(())
    }

    /// The queue pair goes away.
    pub(super) fn clear(&self) {
        self.groups.lock().clear();
    }
}

/// The address of a group of stations, which programs write into the last six bytes of an otherwise
/// empty GID.
fn group_of(mgid: Gid) -> Result<[u8; 6], Error> {
    match mgid.0 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mac @ ..] if mac[0] & 1 != 0 => Ok(mac),
        _ => Err(Error::invalid(format!("{mgid} does not end with the address of an Ethernet group"))),
    }
}

/// A table of receive work queues: which one gets a frame with a given hash.
#[derive(Debug)]
pub struct RwqTable {
    context: Arc<Context>,
    entries: Vec<Arc<QpCore>>,
    /// Where a hash queue pair would complete, if it completed anything.
    cq: Arc<Cq>,
    uses: UseCount,
    /// The uses of the queues and the place in the quota; they end when the table is destroyed.
    held: Mutex<rank::Uses, Vec<Use>>,
}

impl RwqTable {
    /// A table of queues of `context` with these state machines; `held` ends with it. Hash queue
    /// pairs complete in `cq` by name.
    pub(crate) fn new(context: &Arc<Context>, entries: Vec<Arc<QpCore>>, cq: &Arc<Cq>, held: Vec<Use>) -> Arc<Self> {
        let (context, cq, uses) = (Arc::clone(context), Arc::clone(cq), UseCount::default());
        Arc::new(Self { context, entries, cq, uses, held: Mutex::new(held) })
    }

    /// The context of its queues.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Where a hash queue pair would complete, if it completed anything.
    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Takes the table out of use: EBUSY while hash queue pairs use it.
    pub fn destroy(&self) -> Result<(), Error> {
        self.uses.check_unused("indirection table", "queue pairs")?;
        self.held.lock().clear();
        Ok(())
    }
}

/// What a hash queue pair does with frames.
#[derive(Debug)]
pub(crate) struct Rss {
    table: Arc<RwqTable>,
    hash: RxHash,
}

impl Rss {
    /// Spreads frames over the queues of `table` by `hash`.
    pub(crate) fn new(table: &Arc<RwqTable>, hash: RxHash) -> Self {
        Self { table: Arc::clone(table), hash }
    }

    /// Registers one queue pair as a user of the table.
    pub(crate) fn hold(&self) -> Use {
        self.table.uses.hold()
    }
}

impl Spread for Rss {
    // clause: RSS-CHOICE
    fn choose(&self, key: &FrameKey) -> Option<Arc<dyn QueuePair>> {
        let entries = &self.table.entries;
        // A power of two.
        let entry = entries.get(self.hash.of(key) as usize & (entries.len() - 1))?;
        Some(Arc::clone(entry) as _)
    }
}
