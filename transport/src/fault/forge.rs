//! Packets that a rule forges: a refusal of a request, or a congestion notification, as if the
//! sender of another packet had sent it. Plain data.

use core::fmt;
use roxe_wire::{Aeth, Bth, Header, Kind, NakCode, Packet, Psn, Response, Syndrome, icrc};

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
