//! Input and output of the injector, and forged packets.

use core::fmt;
use core::time::Duration;
use roxe_wire::{Aeth, Bth, Gid, Header, Kind, NakCode, Packet, Psn, Qpn, Response, Syndrome, icrc};

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sent by this process.
    Tx,
    /// Received by this process.
    Rx,
}

impl Direction {
    /// Returns the keyword of the rule language.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        }
    }

    /// Returns the opposite direction.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Tx => Self::Rx,
            Self::Rx => Self::Tx,
        }
    }
}

/// A packet that the rules judge, and its circumstances.
#[derive(Clone, Copy, Debug)]
pub struct PacketContext<'a> {
    /// Sent or received.
    pub dir: Direction,
    /// Local queue pair: sender or receiver of the packet.
    pub qpn: Qpn,
    /// Number of that queue pair in order of creation, from 0.
    pub ordinal: u32,
    /// Address of the peer.
    pub peer: Gid,
    /// Time since the rules were set.
    pub at: Duration,
    /// The packet, undamaged.
    pub packet: &'a Packet<'a>,
}

/// Position of a rule in its list, from 0; displayed from 1.
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
    /// Byte of the sealed packet, counted from the start of the BTH.
    pub at: u16,
    /// Mask of the bit.
    pub mask: u8,
}

impl Corruption {
    /// Flips the bit in the sealed `packet`, from BTH to ICRC. Does nothing if the packet is too
    /// short.
    pub fn apply(self, packet: &mut [u8]) {
        if let Some(byte) = packet.get_mut(usize::from(self.at)) {
            *byte ^= self.mask;
        }
    }
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True if the packet is dropped; no other field is set then.
    pub drop: bool,
    /// Number of copies in addition to the packet itself, with the same damage and mark.
    pub copies: u8,
    /// Delay of the copies after the packet.
    pub copies_after: Duration,
    /// Delay of the packet, but not of those after it.
    pub delay: Duration,
    /// Bit to flip after the packet was sealed, or before its ICRC is checked.
    pub corrupt: Option<Corruption>,
    /// True if the congestion mark (CE) is set in the IP header.
    pub mark_ce: bool,
    /// True if the responder must find no receive: [`crate::Qp::handle_packet_without_receive`].
    pub rnr: bool,
    /// Forged packet to send ahead of the packet.
    pub forged: Option<Forged>,
    /// First rule that applied; `None` if none did.
    pub rule: Option<RuleId>,
}

impl Verdict {
    /// The packet is unchanged.
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

    /// Returns true if the packet is unchanged.
    pub const fn is_pass(&self) -> bool {
        self.rule.is_none()
    }
}

/// A forged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forged {
    /// An acknowledgement with this syndrome, ahead of a response.
    Nak(Syndrome),
    /// A congestion notification.
    Cnp,
}

/// Named syndromes.
const NAMES: [(&str, Syndrome); 5] = [
    ("psn_sequence", Syndrome::Nak(NakCode::PsnSequence)),
    ("invalid_request", Syndrome::Nak(NakCode::InvalidRequest)),
    ("remote_access", Syndrome::Nak(NakCode::RemoteAccess)),
    ("remote_operation", Syndrome::Nak(NakCode::RemoteOperation)),
    ("invalid_rd", Syndrome::Nak(NakCode::InvalidRd)),
];

impl Forged {
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, syndrome)| Self::Nak(*syndrome))
    }

    /// Returns true if the forged packet can be derived from a packet of this kind: a NAK from a
    /// response with an AETH, a CNP from every packet but a CNP.
    pub(super) const fn can_derive_from(self, kind: &Kind) -> bool {
        match self {
            Self::Nak(_) => aeth(kind).is_some(),
            Self::Cnp => !matches!(kind, Kind::Cnp),
        }
    }

    /// Builds the packet, from the BTH to an ICRC that is not computed yet, for the receiver of
    /// `context`; `None` if that is impossible.
    pub fn packet(self, context: &Packet<'_>) -> Option<Vec<u8>> {
        let Bth { dest_qpn, psn, pkey, .. } = context.header.bth;
        let header = match self {
            Self::Nak(syndrome) => {
                let answer = Response::Ack(Aeth { syndrome, ..*aeth(&context.header.kind)? });
                let is_xrc = matches!(context.header.kind, Kind::XrcResponse(_));
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

const fn aeth(kind: &Kind) -> Option<&Aeth> {
    let (Kind::RcResponse(answer) | Kind::XrcResponse(answer)) = kind else { return None };
    answer.aeth()
}
