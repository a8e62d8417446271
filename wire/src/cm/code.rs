//! The codes of connection management: what a message is about, why it refuses, how it went.
//!
//! A code without meaning is kept as it came. Touches `bits`.

use super::bits::numbers;
use core::fmt;

/// An enum of codes of the wire with their meaning in words, and `Other` for the rest.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident: $int:ty { $($variant:ident = $code:literal, $text:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(
                #[doc = concat!($text, " (", $code, ").")]
                $variant,
            )+
            /// A code that is not in this list.
            Other($int),
        }

        impl $name {
            /// All codes with a meaning.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The meaning of `code`; every number has one or is kept.
            pub const fn from_code(code: $int) -> Self {
                match code {
                    $($code => Self::$variant,)+
                    other => Self::Other(other),
                }
            }

            /// The number on the wire.
            pub const fn code(self) -> $int {
                match self {
                    $(Self::$variant => $code,)+
                    Self::Other(other) => other,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => write!(f, "{} ({})", $code, $text),)+
                    Self::Other(other) => write!(f, "{other}"),
                }
            }
        }

        numbers! { $name, $int: Self::from_code, Self::code; }
    };
}

codes! {
    /// Why a REJ refuses (IBA §12.6.7.2; Linux `enum ib_cm_rej_reason`).
    // clause: CM-REASON
    RejReason: u16 {
        NoQp = 1, "no QP";
        NoEec = 2, "no EEC";
        NoResources = 3, "no resources";
        Timeout = 4, "timeout";
        Unsupported = 5, "unsupported request";
        InvalidCommId = 6, "invalid comm id";
        InvalidCommInstance = 7, "invalid comm instance";
        InvalidServiceId = 8, "invalid service id";
        InvalidTransportType = 9, "invalid transport type";
        StaleConnection = 10, "stale connection";
        RdcDoesNotExist = 11, "RDC does not exist";
        InvalidGid = 12, "primary GID rejected";
        InvalidLid = 13, "primary LID rejected";
        InvalidSl = 14, "primary SL rejected";
        InvalidTrafficClass = 15, "primary traffic class rejected";
        InvalidHopLimit = 16, "primary hop limit rejected";
        InvalidPacketRate = 17, "primary packet rate rejected";
        InvalidAltGid = 18, "alternate GID rejected";
        InvalidAltLid = 19, "alternate LID rejected";
        InvalidAltSl = 20, "alternate SL rejected";
        InvalidAltTrafficClass = 21, "alternate traffic class rejected";
        InvalidAltHopLimit = 22, "alternate hop limit rejected";
        InvalidAltPacketRate = 23, "alternate packet rate rejected";
        PortCmRedirect = 24, "port and CM redirect";
        PortRedirect = 25, "port redirect";
        InvalidMtu = 26, "invalid path MTU";
        InsufficientResponderResources = 27, "insufficient responder resources";
        ConsumerDefined = 28, "consumer defined";
        InvalidRnrRetry = 29, "RNR retry count rejected";
        DuplicateCommId = 30, "duplicate local comm id";
        InvalidClassVersion = 31, "unsupported class version";
        InvalidFlowLabel = 32, "primary flow label rejected";
        InvalidAltFlowLabel = 33, "alternate flow label rejected";
        VendorOptionNotSupported = 35, "vendor option not supported";
    }
}

codes! {
    /// How a LAP went (IBA §12.8.2; Linux `enum ib_cm_apr_status`).
    AprStatus: u8 {
        Success = 0, "success";
        InvalidCommId = 1, "invalid comm id";
        Unsupported = 2, "unsupported";
        Reject = 3, "reject";
        Redirect = 4, "redirect";
        IsCurrent = 5, "is the current path";
        InvalidQpn = 6, "invalid QPN or EECN";
        InvalidLid = 7, "invalid LID";
        InvalidGid = 8, "invalid GID";
        InvalidFlowLabel = 9, "invalid flow label";
        InvalidTrafficClass = 10, "invalid traffic class";
        InvalidHopLimit = 11, "invalid hop limit";
        InvalidPacketRate = 12, "invalid packet rate";
        InvalidSl = 13, "invalid SL";
    }
}

codes! {
    /// How a SIDR_REQ went (IBA §12.11.2; Linux `enum ib_cm_sidr_status`).
    SidrStatus: u8 {
        Success = 0, "success";
        Unsupported = 1, "service id not supported";
        Reject = 2, "rejected by the service";
        NoQp = 3, "no QP";
        Redirect = 4, "redirect";
        UnsupportedVersion = 5, "unsupported version";
    }
}

codes! {
    /// Which message an MRA or a REJ answers: 2 bits.
    Answered: u8 {
        Req = 0, "REQ";
        Rep = 1, "REP";
        Neither = 2, "LAP or none";
    }
}

/// Transport of a connection: 2 bits of service type, and 3 bits of extended type that count if the
/// first are 3.
// clause: CM-TRANSPORT
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection (0).
    #[default]
    Rc,
    /// Unreliable connection (1).
    Uc,
    /// Reliable datagram (2).
    Rd,
    /// Extended reliable connection (3, extended type 1).
    Xrc,
    /// Another extended type (3 and this number of 3 bits).
    Extended(u8),
}

impl Transport {
    /// From 5 bits: service type, extended type.
    const fn from_bits(bits: u8) -> Self {
        match (bits >> 3 & 3, bits & 7) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, 1) => Self::Xrc,
            (_, extended) => Self::Extended(extended),
        }
    }

    const fn to_bits(self) -> u8 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1 << 3,
            Self::Rd => 2 << 3,
            Self::Xrc => 3 << 3 | 1,
            Self::Extended(extended) => 3 << 3 | extended & 7,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rc => f.write_str("RC"),
            Self::Uc => f.write_str("UC"),
            Self::Rd => f.write_str("RD"),
            Self::Xrc => f.write_str("XRC"),
            Self::Extended(extended) => write!(f, "extended {extended}"),
        }
    }
}

numbers! { Transport, u8: Self::from_bits, Self::to_bits; }
