//! State of a run: the script's names, the objects of the far side, the packets, and the reasons to
//! stop.

use crate::figures::Figure;
use crate::log::Log;
use crate::mad;
use crate::number::{Names, Number};
use crate::script::Case;
use crate::target::{Card, Completed, ConnectionEvent, Event, Handle, Refused, Region, Source, Target};
use std::collections::BTreeMap;
use std::time::Duration;

/// A reason to end a case before its last step.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    Differs {
        expected: String,
        received: String,
    },
    /// A verb failed.
    Refused(Refused),
    /// The script is invalid.
    Script(String),
    /// The target lacks a feature.
    Unsupported(String),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<String> for Stop {
    fn from(text: String) -> Self {
        Self::Script(text)
    }
}

/// A running case.
pub(super) struct Run<'a> {
    pub(super) target: &'a mut dyn Target,
    pub(super) card: Card,
    pub(super) names: Names,
    pub(super) objects: Objects,
    /// Bytes of inline data that a queue pair is created for if its line does not say. A card may
    /// grant none, so only scripts that post inline data ask for some.
    pub(super) inline: u64,
    pub(super) log: Log,
    /// Time of the newest packet.
    pub(super) last: Duration,
    /// Time that the script has waited since the newest packet.
    pub(super) waited: Duration,
    /// Longest delay of the judge: in receiving, ending a wait, or sending.
    pub(super) late: Duration,
    /// True if the newest packet of the card went to the stranger's address.
    pub(super) is_to_stranger: bool,
    pub(super) steps: usize,
    pub(super) figures: Vec<Figure>,
}

impl<'a> Run<'a> {
    pub(super) fn new(target: &'a mut dyn Target, card: Card, case: &Case) -> Self {
        let mut names = case.names.clone();
        names.insert("near.id".into(), card.first_near.into());
        names.insert("near.guid".into(), card.guid);
        for (end, gid) in [("near", card.near[0]), ("stranger", card.near[1]), ("card", card.address)] {
            let address = u128::from_be_bytes(gid.0);
            names.insert(format!("{end}.high"), (address >> 64) as u64);
            names.insert(format!("{end}.low"), address as u64);
        }
        let (objects, log, last) = (Objects::default(), Log::default(), target.now());
        let inline = if case.lines.iter().any(|line| line.step.posts_inline()) { 64 } else { 0 };
        let (waited, late) = (Duration::ZERO, Duration::ZERO);
        let (is_to_stranger, steps, figures) = (false, 0, Vec::new());
        Self { target, card, names, objects, inline, log, last, waited, late, is_to_stranger, steps, figures }
    }

    /// Evaluates a duration.
    pub(super) fn time(&self, number: &Number) -> Result<Duration, Stop> {
        Ok(Duration::from_nanos(number.value(&self.names)?).min(Duration::from_secs(600)))
    }

    /// Evaluates an optional number.
    pub(super) fn optional(&self, number: Option<&Number>) -> Result<Option<u64>, Stop> {
        Ok(number.map(|number| number.value(&self.names)).transpose()?)
    }

    /// Waits for a duration on the target's clock.
    pub(super) fn pass(&mut self, time: &Number) -> Result<(), Stop> {
        let time = self.time(time)?;
        let until = self.target.now() + time;
        while self.target.now() < until {
            self.target.pause(until);
        }
        self.waited += time;
        self.record_delay(until);
        Ok(())
    }

    /// Records the delay of an action that was due at `due`.
    pub(super) fn record_delay(&mut self, due: Duration) {
        // The judge itself moves the clock of a virtual card.
        if !self.card.jitter.is_zero() {
            self.late = self.late.max(self.target.now().saturating_sub(due));
        }
    }
}

/// A queue pair of the card.
#[derive(Clone, Debug)]
pub(super) struct CardQp {
    pub(super) name: String,
    pub(super) qp: Handle,
    pub(super) cq: Handle,
    pub(super) qpn: u32,
    /// Number of its peer on the near side.
    pub(super) near: u32,
    pub(super) qkey: u32,
    pub(super) service: String,
}

impl CardQp {
    pub(super) fn is_datagram(&self) -> bool {
        self.service == "UD"
    }

    pub(super) fn is_reliable(&self) -> bool {
        !matches!(self.service.as_str(), "UC" | "UD")
    }
}

/// A shared receive queue. If it is one of XRC, or matches tags, it has its own completion queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Srq {
    pub(super) srq: Handle,
    pub(super) cq: Option<Handle>,
}

/// Objects of the far side by their names in the script.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// Index of the current repetition, for names of queue pairs with `[i]`.
    pub(super) index: u64,
    pub(super) qps: Vec<CardQp>,
    pub(super) regions: BTreeMap<String, Region>,
    pub(super) domains: BTreeMap<String, Handle>,
    pub(super) srqs: BTreeMap<String, Srq>,
    pub(super) xrc_domains: BTreeMap<String, Handle>,
    pub(super) windows: BTreeMap<String, Handle>,
    /// Handles of posted tags.
    pub(super) tags: BTreeMap<String, u32>,
    /// Identifiers of librdmacm (`rdma_cm_id`).
    pub(super) ids: BTreeMap<String, Handle>,
    /// Events that no step has consumed.
    pub(super) connection_events: Vec<ConnectionEvent>,
    /// True if the card may send to the stranger's address, too.
    pub(super) has_alternate: bool,
    /// Completions that no step has consumed.
    pub(super) completed: Vec<Completed>,
    pub(super) events: Vec<Event>,
}

impl Objects {
    /// Returns the name of a queue pair with the index of the repetition in place of `[i]`.
    pub(super) fn indexed(&self, name: &str) -> String {
        name.replace("[i]", &format!("[{}]", self.index))
    }

    /// Returns the queue pair with this name; without a name, the first.
    pub(super) fn card_qp(&self, name: Option<&str>) -> Result<&CardQp, Stop> {
        let found = match name {
            None => self.qps.first(),
            Some(name) => {
                let name = self.indexed(name);
                self.qps.iter().find(|card_qp| card_qp.name == name)
            }
        };
        found.ok_or_else(|| Stop::Script(format!("there is no queue pair `{}`", name.unwrap_or_default())))
    }

    /// Returns the queue pair numbers of the near side.
    pub(super) fn near(&self) -> Vec<u32> {
        let management = (!self.ids.is_empty()).then_some(mad::GSI);
        self.qps.iter().map(|card_qp| card_qp.near).chain(management).collect()
    }

    /// Returns true if an event is about the queue pair or shared receive queue with this name.
    pub(super) fn is_of(&self, event: &Event, name: &str) -> bool {
        let name = self.indexed(name);
        match event.of {
            Source::Qp(qp) => self.qps.iter().any(|card_qp| card_qp.qp == qp && card_qp.name == name),
            Source::Srq(srq) => self.srqs.get(&name).is_some_and(|queue| queue.srq == srq),
            Source::Other => false,
        }
    }

    /// Returns the names of the events that no step has consumed.
    pub(super) fn unconsumed_events(&self) -> String {
        let names: Vec<_> = self.events.iter().map(|event| event.name.as_str()).collect();
        format!("events: {}", names.join(", "))
    }

    pub(super) fn id(&self, name: &str) -> Result<Handle, Stop> {
        known(&self.ids, "identifier", name)
    }

    pub(super) fn region(&self, name: &str) -> Result<Region, Stop> {
        known(&self.regions, "memory", name)
    }

    pub(super) fn xrc_domain(&self, name: Option<&String>) -> Result<Option<Handle>, Stop> {
        name.map(|name| known(&self.xrc_domains, "domain", name)).transpose()
    }

    pub(super) fn domain(&self, name: Option<&String>) -> Result<Option<Handle>, Stop> {
        name.map(|name| known(&self.domains, "domain", name)).transpose()
    }
}

/// Returns the object with this name.
pub(super) fn known<T: Copy>(all: &BTreeMap<String, T>, what: &str, name: &str) -> Result<T, Stop> {
    all.get(name).copied().ok_or_else(|| Stop::Script(format!("there is no {what} `{name}`")))
}

pub(super) fn differs(expected: String, received: String) -> Stop {
    Stop::Differs { expected, received }
}
