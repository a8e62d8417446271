//! The comment on a packet in a capture, one line: the queue pair, the reason for sending or the
//! state on receipt, and the effects of fault rules.

use roxe_transport::cx::PacketNote;
use roxe_transport::fault::{Rule, RuleId, Verdict};
use roxe_wire::{ParseError, Qpn};
use std::fmt;

#[derive(Clone, Debug)]
pub(crate) struct PacketComment {
    pub origin: Origin,
    /// The packet's [`Fate`] as text; `None` if no rule applied.
    pub fate: Option<String>,
}

impl PacketComment {
    pub(crate) fn new(origin: Origin, fate: &Fate) -> Self {
        Self { origin, fate: fate.rule.map(|_| fate.to_string()) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// Sent by a queue pair of this process.
    Sent(PacketNote),
    /// Received for this queue pair.
    Received(Qpn),
    /// Received damaged, probably for this queue pair.
    Damaged(Qpn),
    /// Received for this queue pair, with an invalid header.
    Malformed(Qpn, ParseError),
    /// Received for a queue pair number that no queue pair has.
    Unknown(Qpn),
}

/// The outcome of the fault rules for a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// The rule that applied first.
    pub rule: Option<(RuleId, &'static Rule)>,
    /// All effects of the rules on the packet.
    pub verdict: Verdict,
    /// True if the packet is the copy that a `duplicate` rule made.
    pub is_copy: bool,
    /// True if the packet is the one that a rule forged.
    pub is_forged: bool,
}

impl Fate {
    /// No rule applied.
    pub(crate) const PASS: Self = Self { rule: None, verdict: Verdict::PASS, is_copy: false, is_forged: false };

    pub(crate) const fn of_copy(self) -> Self {
        Self { is_copy: true, ..self }
    }

    pub(crate) fn of_forged(self) -> Self {
        let verdict = Verdict { forged: self.verdict.forged, ..Verdict::PASS };
        Self { is_forged: true, verdict, ..self }
    }
}

impl fmt::Display for PacketComment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)?;
        self.fate.as_ref().map_or(Ok(()), |fate| write!(f, " | {fate}"))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent(note) => {
                write!(f, "qp {:#x} ", note.qpn.get())?;
                note.wr_id.map_or(Ok(()), |wr_id| write!(f, "wr_id {wr_id} "))?;
                f.write_str(note.reason.name())
            }
            Self::Received(qpn) => write!(f, "qp {:#x} received", qpn.get()),
            Self::Damaged(qpn) => write!(f, "qp {:#x} received, icrc wrong", qpn.get()),
            Self::Malformed(qpn, error) => write!(f, "qp {:#x} received, malformed: {error}", qpn.get()),
            Self::Unknown(qpn) => write!(f, "qp {:#x} received, no such queue pair", qpn.get()),
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((id, rule)) = self.rule {
            write!(f, "rule {id}: {rule}: ")?;
        }
        let Verdict { drop, copies, delay, corrupt, mark_ce, rnr, forged, .. } = self.verdict;
        let mut separator = "";
        let effects = [
            (drop, "dropped"),
            (self.is_copy, "copy"),
            (copies > 0 && !self.is_copy, "duplicated"),
            (corrupt.is_some(), "corrupted"),
            (mark_ce, "marked CE"),
            (rnr, "no receive"),
            (forged.is_some() && !self.is_forged, "after a forged packet"),
            (self.is_forged, "forged"),
        ];
        for (_, effect) in effects.into_iter().filter(|(applies, _)| *applies) {
            write!(f, "{separator}{effect}")?;
            separator = ", ";
        }
        if !delay.is_zero() {
            write!(f, "{separator}delayed {} us", delay.as_micros())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_transport::cx::TxReason;
    use roxe_transport::fault::Forged;
    use std::time::Duration;

    #[test]
    fn comment_is_one_line() {
        let qpn = Qpn::new(0x11);
        let sent = Origin::Sent(PacketNote { qpn, wr_id: Some(7), reason: TxReason::First });
        assert_eq!(PacketComment::new(sent, &Fate::PASS).to_string(), "qp 0x11 wr_id 7 first");
        // Texts count rules from 1, ids from 0.
        let rule: &'static Rule = Box::leak(Box::new("drop 3%".parse().unwrap()));
        let verdict = Verdict { drop: true, rule: Some(RuleId(1)), ..Verdict::PASS };
        let fate = Fate { rule: Some((RuleId(1), rule)), verdict, ..Fate::PASS };
        let response = Origin::Sent(PacketNote::without_wr(qpn, TxReason::ReadResponse));
        let packet_comment = PacketComment::new(response, &fate);
        assert_eq!(packet_comment.to_string(), "qp 0x11 read response | rule 2: drop 3%: dropped");
        let verdict = Verdict { copies: 1, mark_ce: true, delay: Duration::from_micros(80), ..Verdict::PASS };
        let fate = Fate { verdict, ..fate };
        assert_eq!(fate.to_string(), "rule 2: drop 3%: duplicated, marked CE, delayed 80 us");
        assert_eq!(fate.of_copy().to_string(), "rule 2: drop 3%: copy, marked CE, delayed 80 us");
        let verdict = Verdict { forged: Some(Forged::Cnp), ..verdict };
        let forged = PacketComment::new(sent, &Fate { verdict, ..fate }.of_forged());
        assert_eq!(forged.to_string(), "qp 0x11 wr_id 7 first | rule 2: drop 3%: forged");
        assert_eq!(Origin::Malformed(qpn, ParseError::Pad).to_string().lines().count(), 1);
    }
}
