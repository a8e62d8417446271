//! Rules as values: what they do, what they are for. The text of them is in `parse.rs` and
//! `show.rs`.

use super::forge::Forged;
use super::ops::OpSet;
use super::services::ServiceSet;
use super::spans::{PsnSpans, Spans};
use super::verdict::{Direction, Seen};
use core::time::Duration;
use roxe_wire::{Gid, Qpn};

/// A part of all packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

impl Rate {
    /// All packets.
    pub const ALL: Self = Self(100_000_000);

    /// A rate of so many packets in 100 million: millionths of a percent. `None` above 100 %.
    pub const fn from_micro_percent(parts: u32) -> Option<Self> {
        if parts <= Self::ALL.0 { Some(Self(parts)) } else { None }
    }

    /// How many in 100 million.
    pub const fn micro_percent(self) -> u32 {
        self.0
    }

    /// Whether a packet with this random number is one of them.
    pub(super) const fn takes(self, random: u64) -> bool {
        ((random >> 32) * Self::ALL.0 as u64) >> 32 < self.0 as u64
    }
}

/// How long to hold a packet: for a random time from the first to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The shortest time.
    pub min: Duration,
    /// The longest time, not below `min`.
    pub max: Duration,
}

impl Hold {
    /// The longest time that a rule can name.
    pub const LIMIT: Duration = Duration::from_secs(3600);

    /// Always this long.
    pub const fn exactly(time: Duration) -> Self {
        Self { min: time, max: time }
    }

    /// A time between the two, by this random number.
    pub(super) fn pick(self, random: u64) -> Duration {
        let width = self.max.saturating_sub(self.min).min(Self::LIMIT).as_nanos() as u64;
        self.min + Duration::from_nanos(((u128::from(random) * (u128::from(width) + 1)) >> 64) as u64)
    }
}

/// A time in the life of the rules: from the first to before the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// When it begins.
    pub from: Duration,
    /// When it ends, later than it begins; `None`: never.
    pub until: Option<Duration>,
}

impl Window {
    fn contains(self, at: Duration) -> bool {
        self.from <= at && self.until.is_none_or(|until| at < until)
    }
}

/// Part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The data of the application, without the pad.
    Payload,
    /// The base header and those behind it, but for the byte that the ICRC does not cover.
    Header,
    /// The ICRC itself.
    Icrc,
}

impl Part {
    /// The word of the rule language.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Header => "header",
            Self::Icrc => "icrc",
        }
    }
}

/// What a rule does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// Lose the packet.
    #[default]
    Drop,
    /// Carry it more than once.
    Duplicate {
        /// Besides the packet itself, at least 1.
        copies: u8,
        /// How much later the copies travel.
        after: Hold,
    },
    /// Hold it.
    Delay(Hold),
    /// Hold it for a random time up to this one.
    Reorder(Duration),
    /// Flip one bit.
    Corrupt(Part),
    /// Mark it as one that met congestion.
    Ecn,
    /// Let the request find no receive.
    Rnr,
    /// Let a forged packet travel ahead of it.
    Forge(Forged),
}

impl Action {
    /// How long `reorder` holds packets at most if it is not told.
    pub const REORDER_BY: Duration = Duration::from_millis(1);

    /// Whether the action means anything for this packet: there is something to damage, or a
    /// receive to withhold.
    fn applies_to(self, seen: &Seen<'_>) -> bool {
        match self {
            Self::Corrupt(Part::Payload) => !seen.packet.payload.is_empty(),
            Self::Forge(forged) => forged.is_made_of(&seen.packet.header.kind),
            Self::Rnr => seen.dir == Direction::Rx && crate::qp::takes_receive(&seen.packet.header.kind),
            _ => true,
        }
    }
}

/// A queue pair of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpSelector {
    /// By its number.
    Number(Qpn),
    /// By the order of creation, from 0.
    Ordinal(u32),
}

/// One rule. A field that is `None` allows every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// What to do.
    pub action: Action,
    /// How many of the packets that all other fields allow.
    pub rate: Option<Rate>,
    /// Which way they go.
    pub dir: Option<Direction>,
    /// The queue pair on our side.
    pub qp: Option<QpSelector>,
    /// The address of the other side.
    pub peer: Option<Gid>,
    /// When they pass.
    pub at: Option<Window>,
    /// The transport services they belong to.
    pub services: Option<ServiceSet>,
    /// Their opcodes.
    pub ops: Option<OpSet>,
    /// Their PSNs.
    pub psn: Option<PsnSpans>,
    /// The messages they belong to, from 1.
    pub msg: Option<Spans>,
    /// Their places among the packets that the fields above allow, from 1.
    pub nth: Option<Spans>,
    /// No more faults than this.
    pub times: Option<u32>,
}

impl Rule {
    /// `action` on every packet.
    pub fn new(action: Action) -> Self {
        Self { action, ..Self::default() }
    }

    /// Whether the rule is for this packet, of message number `msg`, as far as that needs no
    /// counting.
    pub(super) fn is_for(&self, seen: &Seen<'_>, msg: Option<u64>) -> bool {
        let is_qp = |qp: QpSelector| match qp {
            QpSelector::Number(qpn) => qpn == seen.qpn,
            QpSelector::Ordinal(ordinal) => ordinal == seen.ordinal,
        };
        self.dir.is_none_or(|dir| dir == seen.dir)
            && self.qp.is_none_or(is_qp)
            && self.services.is_none_or(|services| services.contains(&seen.packet.header.kind))
            && self.ops.is_none_or(|ops| ops.contains(seen.packet))
            && self.peer.is_none_or(|peer| peer == seen.peer)
            && self.at.is_none_or(|window| window.contains(seen.at))
            && self.psn.as_ref().is_none_or(|psns| psns.contains(seen.packet.header.bth.psn))
            && self.msg.as_ref().is_none_or(|list| msg.is_some_and(|msg| list.contains(msg)))
            && self.action.applies_to(seen)
    }
}

/// A list of rules, and the seed for what is random in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    seed: Option<u64>,
    list: Vec<Rule>,
}

impl Rules {
    /// Rules in one list.
    pub const MAX: usize = 256;

    /// These rules, the first [`Rules::MAX`] of them.
    pub fn new(seed: Option<u64>, mut list: Vec<Rule>) -> Self {
        list.truncate(Self::MAX);
        Self { seed, list }
    }

    /// The seed that the text names.
    pub const fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The rules, in order.
    pub fn list(&self) -> &[Rule] {
        &self.list
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
