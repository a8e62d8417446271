//! What the injector is told about a packet, and what it answers; packets that a rule forges, as if
//! the sender of another packet had sent them. Plain data.

use core::fmt;
use core::time::Duration;
use roxe_wire::{Aeth, Bth, Gid, Header, Kind, NakCode, Packet, Psn, Qpn, Response, Syndrome, icrc};

/// Which way a packet goes, seen from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// We send the packet.
    Tx,
    /// The packet arrived.
    Rx,
}

impl Direction {
    /// The word of the rule language.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        }
    }

    /// The opposite direction.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Tx => Self::Rx,
            Self::Rx => Self::Tx,
        }
    }
}

/// One packet as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Which way it goes.
    pub dir: Direction,
    /// The queue pair on our side: the sender of what we send, the receiver of what arrives.
    pub qpn: Qpn,
    /// Which queue pair of this process that is, counted from 0 in the order of creation.
    pub ordinal: u32,
    /// The address of the other side.
    pub peer: Gid,
    /// How long ago the rules came into force.
    pub at: Duration,
    /// The packet, undamaged.
    pub packet: &'a Packet<'a>,
}

/// Place of a rule in its list, from 0. People see it counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u16);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", u32::from(self.0) + 1)
    }
}

/// One bit to flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The byte of the sealed packet to change, counted from the first one of the BTH.
    pub at: u16,
    /// The bit in it, as a mask.
    pub mask: u8,
}

impl Corruption {
    /// Flips the bit in `packet`: BTH to ICRC, sealed. Does nothing if the packet is not the one
    /// that was judged and is shorter.
    pub fn apply(self, packet: &mut [u8]) {
        if let Some(byte) = packet.get_mut(usize::from(self.at)) {
            *byte ^= self.mask;
        }
    }
}

/// What shall happen to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Lose it. Then nothing else is asked for.
    pub drop: bool,
    /// How many copies travel besides the packet itself. They have the same damage and the same
    /// mark.
    pub copies: u8,
    /// How much later than the packet itself its copies travel.
    pub copies_after: Duration,
    /// How long to hold the packet. Those behind it are not held.
    pub delay: Duration,
    /// The bit to flip after the packet was sealed, or before its ICRC is checked.
    pub corrupt: Option<Corruption>,
    /// Set the congestion mark (CE) in its IP header.
    pub mark_ce: bool,
    /// The receiving queue pair shall act as if no receive were posted:
    /// [`crate::Qp::handle_packet_without_receive`].
    pub rnr: bool,
    /// Let this, made of the packet, travel ahead of it.
    pub forged: Option<Forged>,
    /// The first rule that asked for any of this; `None` if nothing is asked for.
    pub rule: Option<RuleId>,
}

impl Verdict {
    /// Nothing happens to the packet.
    pub const PASS: Self = Self {
        drop: false,
        copies: 0,
        copies_after: Duration::ZERO,
        delay: Duration::ZERO,
        corrupt: None,
        mark_ce: false,
        rnr: false,
        forged: None,
        rule: None,
    };

    /// Whether nothing happens to the packet.
    pub const fn is_pass(&self) -> bool {
        self.rule.is_none()
    }
}

/// What is forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forged {
    /// An acknowledgement with this syndrome, ahead of the answer to a request.
    Nak(Syndrome),
    /// A congestion notification.
    Cnp,
}

/// The syndromes that have a name; the others are numbers.
const NAMES: [(&str, Syndrome); 5] = [
    ("psn_sequence", Syndrome::Nak(NakCode::PsnSequence)),
    ("invalid_request", Syndrome::Nak(NakCode::InvalidRequest)),
    ("remote_access", Syndrome::Nak(NakCode::RemoteAccess)),
    ("remote_operation", Syndrome::Nak(NakCode::RemoteOperation)),
    ("invalid_rd", Syndrome::Nak(NakCode::InvalidRd)),
];

impl Forged {
    /// The names of refusals, as rules say them.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The refusal of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, syndrome)| Self::Nak(*syndrome))
    }

    /// Whether one can be made of this packet: a refusal of an answer that bears a syndrome, a
    /// notification of all but notifications.
    pub(super) const fn is_made_of(self, kind: &Kind) -> bool {
        match self {
            Self::Nak(_) => aeth(kind).is_some(),
            Self::Cnp => !matches!(kind, Kind::Cnp),
        }
    }

    /// The packet, from the BTH to an ICRC that is not computed yet, for the receiver of `seen`;
    /// nothing if none can be made of that.
    pub fn packet(self, seen: &Packet<'_>) -> Option<Vec<u8>> {
        let Bth { dest_qpn, psn, pkey, .. } = seen.header.bth;
        let header = match self {
            Self::Nak(syndrome) => {
                let answer = Response::Ack(Aeth { syndrome, ..*aeth(&seen.header.kind)? });
                let is_xrc = matches!(seen.header.kind, Kind::XrcResponse(_));
                let kind = if is_xrc { Kind::XrcResponse(answer) } else { Kind::RcResponse(answer) };
                Header { bth: Bth { pkey, ..Bth::new(dest_qpn, psn) }, kind }
            }
            Self::Cnp => {
                let bth = Bth { pkey, becn: true, ..Bth::new(dest_qpn, Psn::new(0)) };
                Header { bth, kind: Kind::Cnp }
            }
        };
        let len = header.padded_len(0);
        let mut bytes = vec![0; len + icrc::LEN];
        header.emit(0, bytes.get_mut(..len)?)?;
        Some(bytes)
    }
}

impl fmt::Display for Forged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Nak(syndrome) = self else { return f.write_str("cnp") };
        match NAMES.iter().find(|(_, known)| known == syndrome) {
            Some((name, _)) => write!(f, "nak {name}"),
            None => write!(f, "nak {:#04x}", syndrome.to_u8()),
        }
    }
}

/// The AETH of an answer, if it has one.
const fn aeth(kind: &Kind) -> Option<&Aeth> {
    let (Kind::RcResponse(answer) | Kind::XrcResponse(answer)) = kind else { return None };
    answer.aeth()
}
