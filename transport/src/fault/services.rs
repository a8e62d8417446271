//! Sets of transport services, so that a rule can be for those that recover from loss, or for those
//! that do not.

use core::fmt;
use roxe_wire::Kind;

/// A set of transport services, as the opcodes of packets name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSet(u8);

const RC: u8 = 1;
const UC: u8 = 1 << 1;
const UD: u8 = 1 << 2;
const XRC: u8 = 1 << 3;

/// All services, in the order in which they are printed.
const ALL: [(&str, u8); 4] = [("RC", RC), ("UC", UC), ("UD", UD), ("XRC", XRC)];

impl ServiceSet {
    /// No service.
    pub(super) const EMPTY: Self = Self(0);

    /// The service called `name`, in capitals or not.
    pub fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|(service, _)| service.eq_ignore_ascii_case(name)).map(|(_, bit)| Self(bit))
    }

    /// The services of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a packet of this kind belongs to one of them. A congestion notification belongs to
    /// none: its opcode is the same for all.
    pub const fn contains(self, kind: &Kind) -> bool {
        let bit = match kind {
            Kind::RcRequest(_) | Kind::RcResponse(_) => RC,
            Kind::UcRequest(_) => UC,
            Kind::Ud { .. } => UD,
            Kind::XrcRequest(..) | Kind::XrcResponse(_) => XRC,
            Kind::Cnp => 0,
        };
        self.0 & bit != 0
    }
}

impl fmt::Display for ServiceSet {
    /// The names, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, _) in ALL.into_iter().filter(|(_, bit)| self.0 & bit != 0) {
            write!(f, "{separator}{name}")?;
            separator = ",";
        }
        Ok(())
    }
}
