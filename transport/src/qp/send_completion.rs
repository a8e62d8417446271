//! How send work requests complete: those of the program in its completion queue, those of the card
//! where they matter.
//!
//! Touches [`Shared`] and the host.

use crate::cx::{Host, Side};
use crate::qp::shared::{QpEvents, Shared};
use crate::qp::sq::{Origin, SendWqe};
use crate::wr::{Cqe, SendFlags, TmFlags, TmInfo, WcOpcode, WcStatus};

/// Appends a completion of `wqe`.
pub(super) fn complete<H: Host>(sh: &mut Shared, host: &mut H, wqe: &SendWqe, status: WcStatus) {
    match wqe.origin {
        Origin::Program => {}
        Origin::Rendezvous => return complete_rendezvous(sh, host, wqe, status),
        Origin::Fin => return fail_fin(sh, status),
    }
    let cqe = Cqe {
        wr_id: wqe.wr_id,
        status,
        opcode: wqe.wc_opcode(),
        // clause: WC-BYTE-LEN
        byte_len: wqe.lands(),
        // clause: WC-SOLICITED
        solicited: status != WcStatus::Success,
        ..Cqe::default()
    };
    sh.complete(host, Side::Send, cqe);
}

/// The data of a rendezvous is there, or will never be: the receive that matched it completes for
/// the second time.
// clause: TM-RENDEZVOUS-BROKEN
fn complete_rendezvous<H: Host>(sh: &mut Shared, host: &mut H, wqe: &SendWqe, status: WcStatus) {
    let (status, byte_len, flags) = match status {
        WcStatus::Success => (status, wqe.length, TmFlags::DATA_VALID),
        _ => (WcStatus::TmRndvIncomplete, 0, TmFlags::empty()),
    };
    let cqe = Cqe {
        wr_id: wqe.wr_id,
        status,
        opcode: WcOpcode::TmRecv,
        byte_len,
        solicited: status != WcStatus::Success || wqe.flags.contains(SendFlags::SOLICITED),
        tm: TmInfo { flags, ..TmInfo::default() },
        ..Cqe::default()
    };
    sh.complete(host, Side::Recv, cqe);
}

/// The peer could not be told that a rendezvous is over. No completion can say so, but for a flush
/// somebody else's has.
fn fail_fin(sh: &mut Shared, status: WcStatus) {
    // clause: TM-FIN-LOST
    if status != WcStatus::WrFlushErr {
        sh.events.insert(QpEvents::FATAL);
    }
}
