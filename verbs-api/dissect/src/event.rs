//! What a packet means where it stands, and in words. Touches nothing.

use roxe_wire::{NakCode, ParseError, Psn};
use std::fmt;
use std::time::Duration;

/// Why a request was sent again, as far as the capture tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The responder missed a packet and said so.
    SequenceNak,
    /// The responder had no receive.
    Rnr,
    /// Nothing asked for it: no answer came in time, or none that the capture has.
    Unanswered,
}

/// What a packet means where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// As expected, or nothing is expected of such a packet.
    New,
    /// The bytes are no packet.
    Malformed(ParseError),
    /// The ICRC is wrong.
    WrongIcrc,
    /// The capture has not all of its headers.
    Cut,
    /// Packets before it are not in the capture.
    Gap {
        /// The PSN that should have come.
        expected: Psn,
        /// How many were jumped over.
        missing: u32,
    },
    /// It was jumped over before.
    FillsGap {
        /// Why it comes, if it was sent again.
        cause: Cause,
    },
    /// It was sent before.
    Retransmission {
        /// How often by now, the first time included.
        times: u32,
        /// Why.
        cause: Cause,
        /// An acknowledgement for it was seen.
        is_acknowledged: bool,
    },
    /// The PSN is far from the one expected: another connection.
    Restart {
        /// The PSN that should have come.
        expected: Psn,
    },
    /// An acknowledgement that says what was said before.
    RepeatedAck,
    /// A response that was there before.
    RepeatedResponse,
    /// Responses before it are not in the capture.
    ResponseGap {
        /// The PSN that should have come.
        expected: Psn,
    },
    /// The responder has no receive for the request.
    Rnr {
        /// How long to wait.
        wait: Duration,
        /// How often it has said so for this PSN.
        times: u32,
    },
    /// The responder refuses.
    Nak(NakCode),
    /// Congestion was met.
    Congestion,
}

/// How much attention an event deserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    /// None.
    Good,
    /// Repeated, and no harm done.
    Note,
    /// Something was lost or late.
    Warning,
    /// Refused or damaged.
    Bad,
}

impl Tone {
    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Bad => "bad",
        }
    }
}

impl Event {
    /// Its verdict in a word or two, the same for all of its kind.
    pub const fn name(self) -> &'static str {
        self.verdict().0
    }

    /// How much attention it deserves.
    pub const fn tone(self) -> Tone {
        self.verdict().1
    }

    const fn verdict(self) -> (&'static str, Tone) {
        match self {
            Self::New => ("ok", Tone::Good),
            Self::Malformed(_) => ("malformed", Tone::Bad),
            Self::WrongIcrc => ("ICRC wrong", Tone::Bad),
            Self::Cut => ("cut", Tone::Warning),
            Self::Gap { .. } => ("PSN gap", Tone::Warning),
            Self::FillsGap { .. } => ("fills gap", Tone::Note),
            Self::Retransmission { .. } => ("retransmission", Tone::Warning),
            Self::Restart { .. } => ("new sequence", Tone::Note),
            Self::RepeatedAck => ("repeated ACK", Tone::Note),
            Self::RepeatedResponse => ("repeated response", Tone::Warning),
            Self::ResponseGap { .. } => ("response gap", Tone::Warning),
            Self::Rnr { .. } => ("RNR NAK", Tone::Warning),
            Self::Nak(_) => ("NAK", Tone::Bad),
            Self::Congestion => ("congestion", Tone::Warning),
        }
    }

    /// Whether a request goes on from where the last one ended.
    pub(crate) const fn is_new(self) -> bool {
        matches!(self, Self::New | Self::Gap { .. } | Self::Restart { .. })
    }

    /// What it says of the packet with this PSN; `None` if there is nothing to say.
    pub fn words(self, psn: Psn) -> Option<String> {
        Some(match self {
            Self::New => return None,
            Self::Malformed(error) => format!("no legal packet: {error}"),
            Self::Cut => "cut: the capture has not all of its headers".to_owned(),
            Self::WrongIcrc => "ICRC wrong: damaged on its way, or sent wrong; a receiver drops it".to_owned(),
            Self::Gap { expected, missing: 1 } => format!("PSN gap: {expected} is missing before {psn}"),
            Self::Gap { expected, missing } => {
                format!("PSN gap: {missing} packets are missing before {psn}, from {expected} on")
            }
            Self::FillsGap { cause: Cause::Unanswered } => {
                format!("PSN {psn}, which was missing, comes now: overtaken, or sent again")
            }
            Self::FillsGap { cause } => format!("PSN {psn}, which was missing, comes now, {cause}"),
            Self::Retransmission { times, cause, is_acknowledged } => {
                let ghost = if is_acknowledged { "; it was acknowledged already" } else { "" };
                format!("retransmission of PSN {psn}, {} time, {cause}{ghost}", ordinal(times))
            }
            Self::Restart { expected } => {
                format!("a new sequence begins at PSN {psn} ({expected} was next): another connection")
            }
            Self::RepeatedAck => "says what an earlier acknowledgement said".to_owned(),
            Self::RepeatedResponse => format!("the response with PSN {psn} once more: the request was repeated"),
            Self::ResponseGap { expected } => format!("responses are missing: {expected} was next, this is {psn}"),
            Self::Rnr { wait, times } => {
                let again = if times > 1 { format!(", {} time", ordinal(times)) } else { String::new() };
                format!("RNR NAK{again}: no receive is posted for PSN {psn}; send it again after {wait:?}")
            }
            Self::Nak(NakCode::PsnSequence) => {
                format!("NAK: PSN sequence error, expects {psn}: a packet before the one it got is missing")
            }
            Self::Nak(code) => format!("NAK: {} at PSN {psn}; the queue pair ends in error", nak_words(code)),
            Self::Congestion => "a switch marked packets (ECN): the sender is asked to slow down".to_owned(),
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SequenceNak => "after the NAK",
            Self::Rnr => "after the RNR NAK",
            Self::Unanswered => "no answer seen in time",
        })
    }
}

/// Why a request was refused, in words.
const fn nak_words(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "PSN sequence error",
        NakCode::InvalidRequest => "invalid request (not supported, not allowed, or malformed)",
        NakCode::RemoteAccess => "remote access error (key, range or access right)",
        NakCode::RemoteOperation => "remote operational error (the responder failed locally)",
        NakCode::InvalidRd => "invalid RD request",
        NakCode::Reserved(_) => "a reserved code",
    }
}

/// 1st, 2nd, 3rd.
fn ordinal(number: u32) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_end_as_they_are_spoken() {
        let said = [1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111].map(ordinal);
        assert_eq!(said, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th"]);
    }
}
