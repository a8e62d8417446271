//! What a run knows: the script's names, what it has made on the far side, the packets so far; and
//! why a run ends. `near` and `peer` do the steps.

use crate::log::Log;
use crate::mad;
use crate::number::{Names, Number};
use crate::target::{Card, Completed, ConnectionEvent, Handle, Refused, Region, Target};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a packet or a completion may take when the script says nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long nothing must happen when the script does not say it.
const IDLE: Duration = Duration::from_millis(20);

/// Why a case ends before its last step.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// The card did something else.
    Differs { expected: String, received: String },
    /// The far side did not obey.
    Refused(Refused),
    /// The script cannot be followed.
    Script(String),
    /// The card does not have what the script wants.
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

/// A case that is being run.
pub(super) struct Run<'a> {
    pub(super) target: &'a mut dyn Target,
    pub(super) card: Card,
    pub(super) names: Names,
    pub(super) world: World,
    pub(super) log: Log,
    /// When the newest packet was sent or received.
    pub(super) last: Duration,
    /// How long the script has let pass since then.
    pub(super) let_pass: Duration,
    /// How late the judge has been at most: in seeing a packet, in ending a wait, or in sending.
    pub(super) late: Duration,
    /// The newest packet of the card came to the second address of the near side.
    pub(super) came_to_stranger: bool,
    pub(super) steps: usize,
}

impl<'a> Run<'a> {
    /// A case begins: nothing has been made, no packet has come.
    pub(super) fn new(target: &'a mut dyn Target, card: Card, names: &Names) -> Self {
        let mut names = names.clone();
        names.insert("near.id".into(), card.first_near.into());
        names.insert("near.guid".into(), card.guid);
        let (world, log, last) = (World::default(), Log::default(), target.now());
        let (let_pass, late) = (Duration::ZERO, Duration::ZERO);
        Self { target, card, names, world, log, last, let_pass, late, came_to_stranger: false, steps: 0 }
    }

    /// A duration that the script says.
    pub(super) fn time(&self, number: &Number) -> Result<Duration, Stop> {
        Ok(Duration::from_nanos(number.value(&self.names)?).min(Duration::from_secs(600)))
    }

    /// Lets so much time pass.
    pub(super) fn pass(&mut self, time: Option<&Number>) -> Result<(), Stop> {
        let time = time.map_or(Ok(IDLE), |time| self.time(time))?;
        let until = self.target.now() + time;
        while self.target.now() < until {
            self.target.pause(until);
        }
        self.let_pass += time;
        self.note_late(until);
        Ok(())
    }

    /// The judge has come to do something that was due at `due`.
    pub(super) fn note_late(&mut self, due: Duration) {
        // A card in this process has a clock that the judge moves.
        if !self.card.jitter.is_zero() {
            self.late = self.late.max(self.target.now().saturating_sub(due));
        }
    }

    pub(super) fn deadline(&self, within: Option<&Number>) -> Result<Duration, Stop> {
        Ok(self.target.now() + within.map_or(Ok(PATIENCE), |within| self.time(within))?)
    }
}

/// A queue pair of the card and the one of the near side that it is connected to.
#[derive(Clone, Debug)]
pub(super) struct Tie {
    pub(super) name: String,
    pub(super) qp: Handle,
    pub(super) cq: Handle,
    pub(super) qpn: u32,
    pub(super) near: u32,
    pub(super) qkey: u32,
    pub(super) is_datagram: bool,
}

/// A shared receive queue; one of XRC has a completion queue of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedQueue {
    pub(super) srq: Handle,
    pub(super) cq: Option<Handle>,
}

/// What the script has made on the far side.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) ties: Vec<Tie>,
    pub(super) regions: BTreeMap<String, Region>,
    pub(super) domains: BTreeMap<String, Handle>,
    pub(super) srqs: BTreeMap<String, SharedQueue>,
    pub(super) xrc_domains: BTreeMap<String, Handle>,
    pub(super) windows: BTreeMap<String, Handle>,
    /// Identifiers of librdmacm, and their events that nobody has asked for yet.
    pub(super) ids: BTreeMap<String, Handle>,
    pub(super) connection_events: Vec<ConnectionEvent>,
    /// The near side may be reached by its second address, too.
    pub(super) has_alternate: bool,
    /// Completions that nobody has asked for yet.
    pub(super) completed: Vec<Completed>,
    pub(super) events: Vec<String>,
}

impl World {
    /// The queue pair with this name, or the first.
    pub(super) fn tie(&self, name: Option<&str>) -> Result<&Tie, Stop> {
        let found = match name {
            None => self.ties.first(),
            Some(name) => self.ties.iter().find(|tie| tie.name == name),
        };
        found.ok_or_else(|| Stop::Script(format!("there is no queue pair `{}`", name.unwrap_or_default())))
    }

    /// The numbers of the near side.
    pub(super) fn near(&self) -> Vec<u32> {
        let management = (!self.ids.is_empty()).then_some(mad::GSI);
        self.ties.iter().map(|tie| tie.near).chain(management).collect()
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

/// The object that the script has given this name.
pub(super) fn known<T: Copy>(all: &BTreeMap<String, T>, what: &str, name: &str) -> Result<T, Stop> {
    all.get(name).copied().ok_or_else(|| Stop::Script(format!("there is no {what} `{name}`")))
}

pub(super) fn differs(expected: String, received: String) -> Stop {
    Stop::Differs { expected, received }
}
