//! Verdicts on packets in their context, and their texts.

use roxe_wire::{NakCode, ParseError, Psn};
use std::fmt;
use std::time::Duration;

/// Cause of a retransmission, as far as the capture shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A PSN sequence error NAK.
    SequenceNak,
    /// An RNR NAK.
    Rnr,
    /// No response in time, or none in the capture.
    Unanswered,
}

/// Verdict on a packet in its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The packet is next in sequence, or its service has no sequence.
    New,
    /// The bytes are not a packet.
    Malformed(ParseError),
    /// The ICRC is wrong.
    WrongIcrc,
    /// The capture lacks some headers of the packet.
    Truncated,
    /// Packets before this packet are not in the capture.
    Gap {
        /// Expected PSN.
        expected: Psn,
        /// Number of missing packets.
        missing: u32,
    },
    /// The packet fills a gap.
    FillsGap {
        /// Cause, if it was retransmitted.
        cause: Cause,
    },
    /// The packet was sent before.
    Retransmission {
        /// Number of transmissions so far, including the first.
        times: u32,
        /// Cause of the retransmission.
        cause: Cause,
        /// True if the packet was acknowledged before.
        is_acknowledged: bool,
    },
    /// The PSN is far from the expected one: a new connection.
    Restart {
        /// Expected PSN.
        expected: Psn,
    },
    /// A duplicate of an earlier acknowledgement.
    RepeatedAck,
    /// A response that was sent before.
    RepeatedResponse,
    /// Responses before this response are not in the capture.
    ResponseGap {
        /// Expected PSN.
        expected: Psn,
    },
    /// The responder has no receive for the request.
    Rnr {
        /// Wait before the retransmission.
        wait: Duration,
        /// Number of RNR NAKs for this PSN so far.
        times: u32,
    },
    /// The responder refuses the request.
    Nak(NakCode),
    /// A congestion notification.
    Congestion,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    /// Expected on a network without loss.
    Good,
    /// Duplicate or reordered without harm.
    Note,
    /// Lost, late or refused for now.
    Warning,
    /// Refused or damaged.
    Bad,
}

impl Tone {
    /// Returns the severity as one word.
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
    /// Returns the kind of verdict in a word or two.
    pub const fn name(self) -> &'static str {
        self.verdict().0
    }

    /// Returns the severity.
    pub const fn tone(self) -> Tone {
        self.verdict().1
    }

    const fn verdict(self) -> (&'static str, Tone) {
        match self {
            Self::New => ("ok", Tone::Good),
            Self::Malformed(_) => ("malformed", Tone::Bad),
            Self::WrongIcrc => ("ICRC wrong", Tone::Bad),
            Self::Truncated => ("truncated", Tone::Warning),
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

    /// Returns true for a request that is sent for the first time.
    pub(crate) const fn is_new(self) -> bool {
        matches!(self, Self::New | Self::Gap { .. } | Self::Restart { .. })
    }

    /// Explains the verdict on the packet with this PSN; `None` for [`Self::New`].
    pub fn describe(self, psn: Psn) -> Option<String> {
        Some(match self {
            Self::New => return None,
            Self::Malformed(error) => format!("not a valid packet: {error}"),
            Self::Truncated => "truncated: the capture lacks some of its headers".to_owned(),
            Self::WrongIcrc => {
                "ICRC wrong: the packet was damaged on the way or sent so; a receiver drops it".to_owned()
            }
            Self::Gap { expected, missing: 1 } => format!("PSN gap: {expected} is missing before {psn}"),
            Self::Gap { expected, missing } => {
                format!("PSN gap: {missing} packets are missing before {psn}, from {expected} on")
            }
            Self::FillsGap { cause: Cause::Unanswered } => {
                format!("fills the gap at PSN {psn}: reordered or retransmitted")
            }
            Self::FillsGap { cause } => format!("fills the gap at PSN {psn}: retransmitted {cause}"),
            Self::Retransmission { times, cause, is_acknowledged } => {
                let ghost = if is_acknowledged { "; the packet was acknowledged before" } else { "" };
                format!("retransmission of PSN {psn}, {} time, {cause}{ghost}", ordinal(times))
            }
            Self::Restart { expected } => {
                format!("a new sequence begins at PSN {psn} ({expected} was next): another connection")
            }
            Self::RepeatedAck => "duplicate of an earlier acknowledgement".to_owned(),
            Self::RepeatedResponse => {
                format!("the response with PSN {psn} was sent before: the request was retransmitted")
            }
            Self::ResponseGap { expected } => {
                format!("responses are missing: PSN {expected} was next, but this is PSN {psn}")
            }
            Self::Rnr { wait, times } => {
                let again = if times > 1 { format!(", {} time", ordinal(times)) } else { String::new() };
                format!("RNR NAK{again}: no receive is posted for PSN {psn}; retransmit after {wait:?}")
            }
            Self::Nak(NakCode::PsnSequence) => {
                format!("NAK: PSN sequence error, expects PSN {psn}: packets are missing")
            }
            Self::Nak(code) => format!("NAK: {} at PSN {psn}; the queue pair ends in error", nak_words(code)),
            Self::Congestion => "CNP: a switch marked packets (ECN); the sender should slow down".to_owned(),
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SequenceNak => "after the NAK",
            Self::Rnr => "after the RNR NAK",
            Self::Unanswered => "no response seen in time",
        })
    }
}

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
    fn ordinals_have_english_endings() {
        let words = [1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111].map(ordinal);
        assert_eq!(words, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th"]);
    }
}
