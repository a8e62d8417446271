//! Why a responder refuses a request and how it reacts, as one table (IBA §9.9.3).

use crate::cx::MemError;
use crate::qp::shared::{DropReason, QpEvents, Service};
use crate::wr::WcStatus;
use roxe_wire::NakCode;

/// Reason why a request is not executed. The number is the `vendor_err` of the receive that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Refusal {
    /// The opcode does not continue the partly received message, or there is none.
    OpcodeSequence = 1,
    /// The service does not support this operation, or the access flags do not allow it.
    NotAllowed,
    NoReceive,
    /// More READs, atomics, ATOMIC WRITEs and FLUSHes are outstanding than `max_dest_rd_atomic`.
    TooManyReads,
    /// The payload length does not match the opcode, the path MTU or the announced length.
    Length,
    ReceiveTooShort,
    /// An atomic or ATOMIC WRITE on an address that is not a multiple of 8.
    Misaligned,
    /// The remote key does not grant this right on this range.
    RemoteAccess,
    /// The memory of a valid remote key is unmapped.
    RemoteFault,
    /// The list of the receive is not writable.
    LocalProtection,
    /// A SEND with Invalidate carries a key that cannot be invalidated; its data is placed.
    Invalidate,
    /// XRC: the domain lacks the SRQ in the packet's XRCETH, or the SRQ changed within a message.
    SharedQueue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Silence,
    RnrNak,
    Nak(NakCode),
}

/// Event of refusals that always have a receive to report on.
const NO_EVENT: QpEvents = QpEvents::empty();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reaction {
    pub(crate) answer: Answer,
    /// True if the QP enters the error state: the receive in use ends with `status`, or `event` is
    /// raised without one.
    pub(crate) fatal: bool,
    pub(crate) status: WcStatus,
    pub(crate) event: QpEvents,
    pub(crate) reason: DropReason,
}

impl Refusal {
    pub(crate) const fn remote(error: MemError) -> Self {
        match error {
            MemError::Fault => Self::RemoteFault,
            MemError::BadKey | MemError::WrongDomain | MemError::Access | MemError::Range => Self::RemoteAccess,
        }
    }

    /// Returns an explanation for the user; `None` if the host explains the refusal.
    pub(crate) const fn explanation(self) -> Option<&'static str> {
        Some(match self {
            Self::OpcodeSequence => "its opcode does not continue the message before it",
            Self::NotAllowed => {
                "its operation is not enabled: the type of the responding queue pair does not support it, or its \
                 qp_access_flags lack the right"
            }
            Self::TooManyReads => {
                "more READs and atomics were outstanding than max_dest_rd_atomic of the responder allows"
            }
            Self::Length => "its length does not fit its opcode, the path MTU of the responder or its first packet",
            Self::ReceiveTooShort => "the message is longer than the receive that was posted for it",
            Self::Misaligned => "the address of an atomic is not a multiple of 8",
            Self::LocalProtection => "the list of the receive for it cannot be written",
            Self::SharedQueue => {
                "the XRC domain does not have the SRQ in its XRCETH, or the message began with another SRQ"
            }
            Self::NoReceive | Self::RemoteAccess | Self::RemoteFault | Self::Invalidate => return None,
        })
    }

    pub(crate) const fn reaction(self, service: Service) -> Reaction {
        if service.is_reliable() { self.reliable() } else { self.unreliable() }
    }

    /// Returns the reaction of a reliable responder: a NAK and, except after RNR, the error state.
    // clause: NAK-TABLE
    const fn reliable(self) -> Reaction {
        const fn fatal(code: NakCode, status: WcStatus, event: QpEvents, reason: DropReason) -> Reaction {
            Reaction { answer: Answer::Nak(code), fatal: true, status, event, reason }
        }
        use {DropReason as D, NakCode as N, QpEvents as E, WcStatus as S};
        match self {
            Self::OpcodeSequence
            | Self::NotAllowed
            | Self::TooManyReads
            | Self::Length
            | Self::Misaligned
            | Self::SharedQueue => fatal(N::InvalidRequest, S::RemInvReqErr, E::REQ_ERR, D::InvalidRequest),
            Self::ReceiveTooShort => fatal(N::InvalidRequest, S::LocLenErr, NO_EVENT, D::InvalidRequest),
            // Of these requests only a WRITE with immediate data has a receive in use.
            // clause: STATUS-WRITE-IMM
            Self::RemoteAccess => fatal(N::RemoteAccess, S::LocAccessErr, E::ACCESS_ERR, D::RemoteAccess),
            // clause: INVALIDATE-REFUSED
            Self::Invalidate => fatal(N::RemoteAccess, S::RemInvReqErr, NO_EVENT, D::RemoteAccess),
            Self::RemoteFault => fatal(N::RemoteOperation, S::LocAccessErr, E::ACCESS_ERR, D::LocalProtection),
            // clause: NAK-OWN-FAULT
            Self::LocalProtection => fatal(N::RemoteOperation, S::LocProtErr, NO_EVENT, D::LocalProtection),
            Self::NoReceive => Reaction { answer: Answer::RnrNak, ..silent(D::NoReceive) },
        }
    }

    /// Returns the reaction of an unreliable responder: it drops the packet silently; only a fault
    /// of the local application ends the QP (IBA §9.8.3).
    // clause: UC-LOST
    const fn unreliable(self) -> Reaction {
        use DropReason as D;
        match self {
            Self::OpcodeSequence => silent(D::OutOfSequence),
            Self::NoReceive => silent(D::NoReceive),
            Self::RemoteAccess | Self::RemoteFault => silent(D::RemoteAccess),
            // clause: UNRELIABLE-OWN-FAULT
            Self::LocalProtection => {
                let (status, event) = (WcStatus::LocProtErr, NO_EVENT);
                Reaction { answer: Answer::Silence, fatal: true, status, event, reason: D::LocalProtection }
            }
            Self::NotAllowed
            | Self::TooManyReads
            | Self::Length
            | Self::ReceiveTooShort
            | Self::Misaligned
            | Self::Invalidate
            | Self::SharedQueue => silent(D::InvalidRequest),
        }
    }
}

/// Returns a reaction that only drops the packet; its `status` and `event` are unused.
const fn silent(reason: DropReason) -> Reaction {
    let (status, event) = (WcStatus::GeneralErr, NO_EVENT);
    Reaction { answer: Answer::Silence, fatal: false, status, event, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    const ALL: [Refusal; 12] = [
        Refusal::OpcodeSequence,
        Refusal::NotAllowed,
        Refusal::NoReceive,
        Refusal::TooManyReads,
        Refusal::Length,
        Refusal::ReceiveTooShort,
        Refusal::Misaligned,
        Refusal::RemoteAccess,
        Refusal::RemoteFault,
        Refusal::LocalProtection,
        Refusal::Invalidate,
        Refusal::SharedQueue,
    ];

    fn render() -> String {
        let mut text = String::new();
        for (number, refusal) in (1..).zip(ALL) {
            assert_eq!(refusal as u32, number, "ALL is complete and in order");
            for service in [Service::Rc, Service::Uc] {
                let Reaction { answer, fatal, status, event, reason } = refusal.reaction(service);
                write!(text, "{service:?} {refusal:?}: {answer:?}, counted as {}", reason.name())
                    .expect("write to a String");
                if fatal {
                    write!(text, "; error state, receive ends with {status:?}").expect("write to a String");
                }
                for (name, _) in event.iter_names() {
                    write!(text, " or {name}").expect("write to a String");
                }
                text.push('\n');
            }
        }
        text
    }

    // clause: NAK-TABLE
    #[test]
    fn reaction_table_equals_the_reviewed_file() {
        let (now, reviewed) = (render(), include_str!("refusal_table.txt"));
        assert!(now == reviewed, "a reaction changed; review it and update refusal_table.txt:\n{now}");
    }
}
