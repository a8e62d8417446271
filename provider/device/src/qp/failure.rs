//! Why requests of a queue pair failed: what its end knows is put together here, for the user, and
//! what it knows of the peer's requests is written down for the peer.
//!
//! Nothing here runs unless something failed. Touches the files of [`reasons`].

use super::resources::QpResources;
use roxe_base::config::Explain;
use roxe_check::explain::{self, Failure, Owed, explains};
use roxe_engine::reasons;
use roxe_transport::Qp as Machine;
use roxe_transport::cm::Route;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::{DropReason, QpAttr, QpState, Service};
use roxe_transport::wr::{Access, Cqe, Sge, WcStatus};
use roxe_wire::RKey;

/// The first failure of a queue pair since it was reset; what comes behind it follows from it.
#[derive(Debug, Default)]
pub(super) struct Failed {
    /// What the card met when it used a local list.
    local: Option<String>,
    /// The completion, once there is one.
    cqe: Option<(Side, Cqe)>,
    /// Until it is explained.
    owed: Option<Owed>,
}

/// A local list could not be used.
pub(super) fn note_local(failed: &mut Option<Box<Failed>>, sges: &[Sge], access: Access, error: MemError) {
    if explains() > Explain::Off {
        failed.get_or_insert_default().local = sges.first().map(|sge| {
            let others = if sges.len() > 1 { ", or another element of the list" } else { "" };
            let range = (sge.addr, sge.length.into());
            explain::memory("lkey", sge.lkey.0, range, access, error) + others
        });
    }
}

/// A request ends in error, and not because of one before it.
pub(super) fn note(failed: &mut Option<Box<Failed>>, side: Side, cqe: &Cqe) {
    if explains() > Explain::Off {
        let failed = failed.get_or_insert_default();
        failed.cqe.get_or_insert((side, *cqe));
        failed.owed.get_or_insert_with(explain::owe);
    }
}

impl Failed {
    /// Says why. `unanswered` is the length of a request of which nothing arrived, `history` what
    /// happened to the queue pair before.
    pub(super) fn explain(self, qp: &QpResources, attr: &QpAttr, unanswered: Option<u32>, history: Vec<String>) {
        let Some((side, cqe)) = self.cqe else { return };
        let is_connected = !matches!(qp.service, Service::Ud | Service::Raw);
        let asks = is_connected && side == Side::Send && qp.engine().link(attr.av.dgid).is_some();
        let mut peer = if asks { reasons::of(ifindex(qp), attr.dest_qpn) } else { Vec::new() };
        if peer.is_empty() && is_connected && cqe.status == WcStatus::RetryExcErr {
            let way = Route { local: attr.av.sgid, remote: attr.av.dgid };
            let network = if asks { None } else { qp.engine().why_unreachable(way) };
            peer.extend(network.or_else(|| lost_for_their_size(attr, unanswered?)));
        }
        let (qpn, service) = (qp.qpn, qp.service);
        explain::failed(&Failure { qpn, service, attr, side, cqe: &cqe, local: self.local, peer, history });
    }
}

/// What may be wrong if a request of this length was not acknowledged, no packet of it, but others
/// before it were.
fn lost_for_their_size(attr: &QpAttr, unanswered: u32) -> Option<String> {
    let mtu = attr.path_mtu.bytes();
    (unanswered >= mtu).then(|| {
        format!(
            "no answer came to packets of {mtu} bytes, the path MTU, though there were answers before: if those were \
             to shorter ones, the way may lose long packets; try a smaller path_mtu"
        )
    })
}

/// A peer could not get at memory of this end.
pub(super) fn note_remote(qp: &QpResources, (rkey, va, len): (RKey, u64, u64), access: Access, error: MemError) {
    reasons::note(ifindex(qp), qp.qpn, || Some(explain::memory("rkey", rkey.0, (va, len), access, error)));
}

/// A packet of the peer was not taken.
pub(super) fn note_drop(qp: &QpResources, machine: &Machine, reason: DropReason) {
    let said = || Some(format!("queue pair {:#x} {}", qp.qpn.get(), sentence(machine, reason)?));
    reasons::note(ifindex(qp), qp.qpn, said);
}

/// A packet of the peer waits, maybe for a state that the queue pair never reaches.
pub(super) fn note_early(qp: &QpResources, machine: &Machine) {
    if matches!(machine.state(), QpState::Reset | QpState::Init) {
        note_drop(qp, machine, DropReason::BadState);
    }
}

/// What is wrong with a packet, or with the queue pair that it came for; nothing for what belongs
/// to every loss, and for what [`note_remote`] says better.
fn sentence(machine: &Machine, reason: DropReason) -> Option<String> {
    let attr = machine.attr();
    Some(match reason {
        DropReason::BadState => format!("is in state {:?}, which takes no such packets", machine.state()),
        DropReason::WrongService => "is of another transport service than the packets that come".to_owned(),
        DropReason::Pkey => "was sent packets with another P_Key".to_owned(),
        DropReason::Qkey => format!("was sent datagrams with another Q_Key than its {:#x}", attr.qkey.0),
        DropReason::Address => format!(
            "expects packets from {} to {}, and others come: compare the GIDs of both ends",
            attr.av.dgid, attr.av.sgid
        ),
        DropReason::OutOfSequence => format!(
            "expects other PSNs: packets were lost, or its rq_psn {:#x} is not the sq_psn of its peer",
            attr.rq_psn.get()
        ),
        DropReason::DuplicateRequest => format!(
            "takes what comes for repeated: answers were lost, or its rq_psn {:#x} is not the sq_psn of its peer",
            attr.rq_psn.get()
        ),
        DropReason::NoReceive => "had no receive posted".to_owned(),
        DropReason::InvalidRequest | DropReason::LocalProtection => {
            format!("refused the request: {}", machine.last_refusal()?)
        }
        _ => return None,
    })
}

fn ifindex(qp: &QpResources) -> u32 {
    qp.context.device().ifindex()
}
