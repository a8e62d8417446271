//! What a request must keep: its place in its message, the rights that it needs, the memory that it
//! names; and how many PSNs it takes.
//!
//! Functions of one request and of the message that is open. Touches the host only to ask whether a
//! key allows something.

use crate::cx::Host;
use crate::qp::refusal::Refusal;
use crate::qp::replay::OnceKind;
use crate::qp::reply::check_readable;
use crate::qp::segment;
use crate::wr::Access;
use roxe_wire::{PathMtu, RKey, Request, Reth};

/// A WRITE whose packets are coming in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenWrite {
    pub(super) rkey: RKey,
    /// Where the next byte goes.
    pub(super) va: u64,
    /// Bytes still to come.
    pub(super) left: u32,
    /// Bytes of the whole message.
    pub(super) total: u32,
}

impl OpenWrite {
    pub(super) const fn new(reth: &Reth) -> Self {
        Self { rkey: reth.rkey, va: reth.va, left: reth.dma_len, total: reth.dma_len }
    }
}

/// The message that is not complete yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Open {
    #[default]
    None,
    /// A SEND of which this many bytes are in the current receive.
    Send(u32),
    Write(OpenWrite),
}

/// PSNs that `req` occupies: a READ one for each response packet.
// clause: PSN-SPAN
pub(super) fn psns(req: &Request, mtu: PathMtu) -> u32 {
    match req {
        Request::Read(reth) => segment::packets(reth.dma_len, mtu),
        _ => 1,
    }
}

/// Whether `req` is answered by more than an acknowledgement, so that it must be remembered.
pub(super) const fn has_own_answer(req: &Request) -> bool {
    matches!(req, Request::Read(_)) || OnceKind::of(req).is_some()
}

/// Whether `req` begins a message.
pub(super) const fn starts(req: &Request) -> bool {
    !matches!(req, Request::SendMiddle | Request::SendLast(_) | Request::WriteMiddle | Request::WriteLast(_))
}

/// A message is one run of packets, and no other request comes between them (IBA §9.7.4).
pub(super) fn check_op_seq(open: Open, req: &Request) -> Result<(), Refusal> {
    // clause: CHECK-SEQUENCE
    let in_sequence = match open {
        Open::None => starts(req),
        Open::Send(_) => matches!(req, Request::SendMiddle | Request::SendLast(_)),
        Open::Write(_) => matches!(req, Request::WriteMiddle | Request::WriteLast(_)),
    };
    if in_sequence { Ok(()) } else { Err(Refusal::OpcodeSequence) }
}

/// The right that an operation needs on the QP and on the memory.
#[inline]
pub(super) fn right_of(req: &Request) -> Result<Access, Refusal> {
    Ok(match req {
        Request::SendFirst | Request::SendMiddle | Request::SendLast(_) | Request::SendOnly(_) => Access::empty(),
        // clause: ATOMIC-WRITE-WHOLE
        Request::WriteFirst(_)
        | Request::WriteMiddle
        | Request::WriteLast(_)
        | Request::WriteOnly(..)
        | Request::AtomicWrite(_) => Access::REMOTE_WRITE,
        Request::Read(_) => Access::REMOTE_READ,
        Request::CompareSwap(_) | Request::FetchAdd(_) => Access::REMOTE_ATOMIC,
        // clause: FLUSH-RIGHTS, FLUSH-RESERVED
        Request::Flush(feth, _) => Access::of_flush(feth).ok_or(Refusal::NotAllowed)?,
    })
}

/// The access flags of the QP allow the operation (IBA §9.7.4).
pub(super) fn check_op_valid(access: Access, req: &Request) -> Result<(), Refusal> {
    let needed = right_of(req)?;
    // clause: CHECK-ACCESS-FLAGS
    if access.contains(needed) { Ok(()) } else { Err(Refusal::NotAllowed) }
}

/// The remote key allows the whole range; nothing is asked of it for no bytes (IBA C9-88). A FLUSH,
/// which changes nothing, is checked by doing it.
pub(super) fn check_rkey<H: Host>(host: &mut H, req: &Request) -> Result<(), Refusal> {
    // clause: CHECK-KEY
    let checked = match req {
        // clause: CHECK-KEY-EMPTY
        Request::WriteFirst(reth) | Request::WriteOnly(reth, _) if reth.dma_len > 0 => {
            host.check_remote(reth.rkey, reth.va, reth.dma_len.into(), Access::REMOTE_WRITE)
        }
        Request::Read(reth) => check_readable(host, reth),
        // clause: CHECK-ATOMIC-ALIGNED
        Request::CompareSwap(eth) | Request::FetchAdd(eth) if eth.va % 8 != 0 => return Err(Refusal::Misaligned),
        Request::CompareSwap(eth) | Request::FetchAdd(eth) => {
            host.check_remote(eth.rkey, eth.va, 8, Access::REMOTE_ATOMIC)
        }
        // clause: ATOMIC-WRITE-LENGTH
        Request::AtomicWrite(reth) if reth.va % 8 != 0 => return Err(Refusal::Misaligned),
        Request::AtomicWrite(reth) => host.check_remote(reth.rkey, reth.va, 8, Access::REMOTE_WRITE),
        _ => Ok(()),
    };
    checked.map_err(Refusal::remote)
}

/// The length of a request is why it is refused, unless its receive is too short.
#[cold]
#[inline(never)]
pub(super) fn note_length<H: Host>(host: &mut H, refusal: Refusal, req: &Request, len: usize) {
    if refusal == Refusal::Length {
        host.wrong_length(req, len);
    }
}

/// The access flags of the queue pair do not allow `req`.
#[cold]
#[inline(never)]
pub(super) fn note_denied<H: Host>(host: &mut H, req: &Request) {
    if let Ok(right) = right_of(req) {
        host.denied(right);
    }
}
