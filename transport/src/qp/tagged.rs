//! Tag matching as a responder sees it: what becomes of a message whose first packet has arrived,
//! and how its receive ends.
//!
//! The list of tags is the host's ([`crate::tags`]): the shared queue serves many queue pairs. What
//! lives here is read off one header. Touches `wr` and the headers.

use crate::cx::TagFit;
use crate::wr::{Cqe, MAX_MESSAGE, TmFlags, TmInfo, WcOpcode, WcStatus};
use roxe_wire::{RKey, Rvh, TmOp, Tmh};

/// The longest rendezvous request that the card answers itself, bytes: what the first packet holds
/// at any path MTU.
pub const MAX_RENDEZVOUS_REQUEST: u32 = 256;

/// Rendezvous that one QP has under way at most; later ones are left to the program.
pub(crate) const MAX_RENDEZVOUS: u32 = 16;

/// Data that waits in the memory of the peer for us to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rendezvous {
    /// Work request of the matched receive.
    pub(crate) wr_id: u64,
    /// Address of the data at the peer.
    pub(crate) va: u64,
    /// Remote key of the data.
    pub(crate) rkey: RKey,
    /// Length of the data, bytes.
    pub(crate) len: u32,
    /// Whether the end of it is a solicited event.
    pub(crate) solicited: bool,
    /// What the peer is told when it is over.
    pub(crate) fin: Tmh,
}

/// What the current receive of a tag-matching queue is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TagMatch {
    /// No tagged message: a WRITE with immediate, or the queue matches no tags.
    #[default]
    Plain,
    /// A message that is not to be matched lands in an ordinary receive, header and all.
    Untagged,
    /// A message that no tag wants lands in an ordinary receive too, and the program matches it.
    Unexpected {
        /// The program should synchronise.
        asks_sync: bool,
    },
    /// The data behind the header lands in a posted tag.
    Matched(TmInfo),
    /// A posted tag wants the data that the peer keeps, and the card reads it: the message itself
    /// goes nowhere.
    Rendezvous(Rendezvous),
    /// A posted tag wants data that the peer keeps, but the card cannot read it: the posted tag
    /// gets what is behind the header, and the program reads the data.
    Incomplete(TmInfo),
}

impl TagMatch {
    /// What becomes of a message that begins with `first`, which fits `fit` into a receive of
    /// `room` bytes.
    ///
    /// `may_read`: `first` is the whole message, and the card can read data from the peer now.
    pub(crate) fn of(first: &[u8], fit: TagFit, room: u64, may_read: bool) -> Self {
        let header = Tmh::parse(first);
        match (fit, header) {
            (TagFit::Unexpected { asks_sync }, _) => Self::Unexpected { asks_sync },
            (TagFit::Matched, Some((tmh, rest))) => Self::matched(tmh, rest, room, may_read),
            _ => Self::Untagged,
        }
    }

    fn matched(tmh: Tmh, rest: &[u8], room: u64, may_read: bool) -> Self {
        let info = TmInfo { tag: tmh.tag, app_ctx: tmh.app_ctx, flags: TmFlags::MATCH | TmFlags::DATA_VALID };
        if tmh.op != TmOp::Rendezvous {
            return Self::Matched(info);
        }
        let fits = |rvh: &Rvh| u64::from(rvh.len) <= room && rvh.len <= MAX_MESSAGE;
        // clause: TM-RENDEZVOUS-SOFTWARE
        let is_short = rest.len() + Tmh::LEN <= MAX_RENDEZVOUS_REQUEST as usize;
        match Rvh::parse(rest).filter(|rvh| may_read && is_short && fits(rvh)) {
            Some(Rvh { va, rkey, len }) => {
                let fin = Tmh { op: TmOp::Fin, ..tmh };
                Self::Rendezvous(Rendezvous { wr_id: 0, va, rkey, len, solicited: false, fin })
            }
            None => Self::Incomplete(info),
        }
    }

    /// Bytes at the beginning of the message that do not land in the receive.
    // clause: TM-HEADER-SKIPPED
    pub(crate) fn skipped(&self) -> u32 {
        match self {
            Self::Plain | Self::Untagged | Self::Unexpected { .. } => 0,
            Self::Matched(_) | Self::Incomplete(_) => Tmh::LEN as u32,
            Self::Rendezvous(_) => u32::MAX,
        }
    }

    /// The completion of the receive: `cqe` is what it would be without tags.
    // clause: TM-COMPLETION
    pub(crate) fn stamp(&self, cqe: Cqe) -> Cqe {
        let (opcode, tm) = match *self {
            Self::Plain => return cqe,
            Self::Untagged => (WcOpcode::TmNoTag, TmInfo::default()),
            Self::Unexpected { asks_sync } => {
                let flags = if asks_sync { TmFlags::SYNC_REQ } else { TmFlags::empty() };
                (WcOpcode::TmRecv, TmInfo { flags, ..TmInfo::default() })
            }
            Self::Matched(info) | Self::Incomplete(info) => (WcOpcode::TmRecv, info),
            Self::Rendezvous(Rendezvous { fin, .. }) => {
                (WcOpcode::TmRecv, TmInfo { tag: fin.tag, app_ctx: fin.app_ctx, flags: TmFlags::MATCH })
            }
        };
        match (self, cqe.status) {
            (Self::Incomplete(_), WcStatus::Success) => Cqe { opcode, tm, status: WcStatus::TmRndvIncomplete, ..cqe },
            (_, WcStatus::Success) => Cqe { opcode, tm, ..cqe },
            _ => Cqe { opcode, ..cqe },
        }
    }
}

/// The tag that a message which begins with `first` is matched by, if it is.
pub(crate) fn wanted_tag(first: &[u8]) -> Option<u64> {
    // clause: TM-UNTAGGED
    let (tmh, _) = Tmh::parse(first)?;
    matches!(tmh.op, TmOp::Eager | TmOp::Rendezvous).then_some(tmh.tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TMH: Tmh = Tmh { op: TmOp::Rendezvous, app_ctx: 7, tag: 0x99 };

    /// A rendezvous request for `len` bytes, `extra` bytes longer than it need be.
    fn request(len: u32, extra: usize) -> Vec<u8> {
        let mut bytes = TMH.to_bytes().to_vec();
        bytes.extend(0x1000_u64.to_be_bytes());
        bytes.extend(5_u32.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.resize(bytes.len() + extra, 0);
        bytes
    }

    fn is_ours(first: &[u8], room: u64, may_read: bool) -> bool {
        matches!(TagMatch::of(first, TagFit::Matched, room, may_read), TagMatch::Rendezvous(_))
    }

    // clause: TM-RENDEZVOUS-SOFTWARE
    #[test]
    fn the_card_does_a_rendezvous_that_it_can_do_whole() {
        assert!(is_ours(&request(100, 0), 100, true));
        assert!(is_ours(&request(100, 224), 100, true));
        assert!(!is_ours(&request(100, 225), 100, true), "longer than the card looks at");
        assert!(!is_ours(&request(101, 0), 100, true), "longer than the receive");
        assert!(!is_ours(&request(100, 0), 100, false), "not now");
        assert!(!is_ours(&request(100, 0)[..31], 100, true), "no whole header");
        let TagMatch::Rendezvous(rendezvous) = TagMatch::of(&request(8, 0), TagFit::Matched, 8, true) else {
            panic!("no rendezvous");
        };
        assert_eq!((rendezvous.va, rendezvous.rkey, rendezvous.len), (0x1000, RKey(5), 8));
        assert_eq!(rendezvous.fin, Tmh { op: TmOp::Fin, ..TMH });
    }

    // clause: TM-UNTAGGED
    #[test]
    fn only_eager_and_rendezvous_messages_are_matched() {
        let begins = |op| Tmh { op, ..TMH }.to_bytes();
        for (op, tag) in
            [(TmOp::NoTag, None), (TmOp::Fin, None), (TmOp::Eager, Some(0x99)), (TmOp::Rendezvous, Some(0x99))]
        {
            assert_eq!(wanted_tag(&begins(op)), tag);
        }
        assert_eq!(wanted_tag(&begins(TmOp::Eager)[..15]), None);
        assert_eq!(wanted_tag(&[9; 16]), None);
    }

    // clause: TM-COMPLETION
    #[test]
    fn failed_tagged_receives_report_only_their_opcode() {
        let failed = Cqe { status: WcStatus::WrFlushErr, ..Cqe::default() };
        let tag_match = TagMatch::of(&request(8, 0), TagFit::Matched, 8, false);
        let cqe = tag_match.stamp(failed);
        assert_eq!(cqe, Cqe { opcode: WcOpcode::TmRecv, ..failed });
        assert_eq!(tag_match.stamp(Cqe::default()).status, WcStatus::TmRndvIncomplete);
    }
}
