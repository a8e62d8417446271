//! Why requests of a queue pair failed: what its end knows is put together here, for the user, and
//! what it knows of the peer's requests is written down for the peer.
//!
//! Nothing here runs unless something failed. Touches the files of [`reasons`].

use super::history::Entry;
use super::resources::QpResources;
use crate::srq::Srq;
use roxe_base::config::Explain;
use roxe_check::explain::{self, Cause, Failure, Owed, explains};
use roxe_engine::reasons::{self, Owner, Reason};
use roxe_net::probe::Probe;
use roxe_transport::Qp as Machine;
use roxe_transport::cm::Route;
use roxe_transport::cx::Side;
use roxe_transport::qp::{DropReason, QpAttr, QpState, Service};
use roxe_transport::wr::{Cqe, WcStatus};
use roxe_wire::Qpn;
use std::sync::Arc;

/// The first failure of a queue pair since it was reset; what comes behind it follows from it.
#[derive(Debug, Default)]
pub(super) struct Failed {
    /// What the card met when it used a local list or a local key.
    local: Option<Cause>,
    /// The completion, once there is one.
    cqe: Option<(Side, Cqe)>,
    /// Until it is explained.
    owed: Option<Owed>,
}

/// A local list, or a key in a local operation, could not be used.
pub(super) fn note_local(failed: &mut Option<Box<Failed>>, why: impl FnOnce() -> Cause) {
    if explains() > Explain::Off {
        failed.get_or_insert_default().local = Some(why());
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

/// Says why requests are flushed: no failure, so it is one line.
fn explain_flush(qp: &QpResources, cqe: &Cqe, why: Cause) {
    let (number, service, first) = (qp.qpn.get(), qp.service.name(), cqe.wr_id);
    let Cause { text, advice } = why;
    let text = format!(
        "requests of queue pair {number:#08x} ({service}) are flushed (5), the first with wr_id {first}: {text}"
    );
    explain::happened(|| cause(text, advice));
}

/// A request is flushed, and none has failed before: `refusal` is what may have ended the
/// connection unless the program did.
pub(super) fn note_flush(
    failed: &mut Option<Box<Failed>>,
    (side, cqe): (Side, &Cqe),
    ended_by_program: bool,
    refusal: Option<Entry>,
) {
    let why = if ended_by_program {
        cause(
            "the program moved the queue pair to ERR (ibv_modify_qp or rdma_disconnect)".to_owned(),
            "wait for the completions before the queue pair is moved, if they matter",
        )
    } else if let Some(by) = refusal {
        cause(
            format!("the queue pair went to ERR, and no request of its own had failed: after \"{by}\""),
            "look for what the peer's request did wrong",
        )
    } else {
        cause(
            "the queue pair went to ERR, and no request of either end had failed: why is not known".to_owned(),
            "handle asynchronous events (ibv_get_async_event): a completion queue that overran has one",
        )
    };
    note_local(failed, || why);
    note(failed, side, cqe);
}

/// What a queue pair knows about a failure.
#[derive(Debug)]
pub(super) struct Circumstances {
    /// Its attributes.
    pub(super) attr: QpAttr,
    /// Length of a request of which nothing was acknowledged.
    pub(super) unanswered: Option<u32>,
    /// A packet by which the network was asked when the first acknowledgement was overdue.
    pub(super) probe: Option<Box<Probe>>,
    /// What happened to it before.
    pub(super) history: Vec<String>,
}

impl Failed {
    /// Explains the failure.
    pub(super) fn explain(self, qp: &QpResources, circumstances: Circumstances) {
        let Circumstances { attr, unanswered, probe, history } = circumstances;
        let Some((side, cqe)) = self.cqe else { return };
        if cqe.status == WcStatus::WrFlushErr {
            return self.local.into_iter().for_each(|why| explain_flush(qp, &cqe, why));
        }
        let is_connected = !matches!(qp.service, Service::Ud | Service::Raw);
        let is_unanswered = cqe.status == WcStatus::RetryExcErr;
        let (mut causes, mut is_mute) = (Vec::new(), false);
        if is_connected && side == Side::Send && qp.engine().link(attr.av.dgid).is_some() {
            let (owner, told) = reasons::of(ifindex(qp), attr.dest_qpn, cqe.status);
            is_mute = owner == Owner::Mute;
            causes.extend(told.into_iter().map(|told| judge(told, qp.qpn, &attr)));
            causes.extend(of_owner(&owner, attr.dest_qpn).filter(|_| is_unanswered));
        } else if is_connected && is_unanswered {
            let way = Route { local: attr.av.sgid, remote: attr.av.dgid };
            causes.extend(qp.engine().why_unreachable(way, probe.as_deref()).map(|text| cause(text, NETWORK)));
        }
        if causes.is_empty() && is_unanswered {
            causes.extend(unanswered.and_then(|length| lost_for_their_size(&attr, length)));
        }
        let cause = self.local.or_else(|| causes.pop());
        let (qpn, service, others) = (qp.qpn, qp.service, causes);
        let port_mtu = qp.context.device().adapter().active_mtu().bytes();
        let attr = &attr;
        explain::failed(&Failure { qpn, service, attr, side, cqe: &cqe, cause, others, is_mute, port_mtu, history });
    }
}

fn cause(text: String, advice: impl Into<String>) -> Cause {
    Cause { text, advice: advice.into() }
}

const NETWORK: &str = "see that the host is up, that UDP port 4791 is open both ways, and that a program there has \
                       opened its RDMA device on the interface with this address";

/// What follows from a reason of the responder and the attributes of both ends.
fn judge(told: Reason, own: Qpn, attr: &QpAttr) -> Cause {
    let Reason { expects, text, advice, .. } = told;
    let peer = attr.dest_qpn.get();
    match expects {
        Some((dest, _)) if dest != own => cause(
            format!(
                "queue pair {peer:#08x} has {:#08x} as its dest_qp_num and not {:#08x}, so its answers go elsewhere",
                dest.get(),
                own.get()
            ),
            "set dest_qp_num of each end to the qp_num of the other",
        ),
        Some((_, psn)) if psn != attr.sq_psn => cause(
            format!("{text}: its rq_psn {:#x} is not the sq_psn of its peer, {:#x}", psn.get(), attr.sq_psn.get()),
            "set rq_psn of each end to the sq_psn of the other",
        ),
        Some((_, psn)) => cause(
            format!("{text}: packets were lost on the way, as both ends began with PSN {:#x}", psn.get()),
            "capture both ends (`roxe run --capture FILE`) and compare what was sent with what arrived",
        ),
        None => cause(text, advice),
    }
}

/// What is wrong with the process that owns the queue pair number.
fn of_owner(owner: &Owner, qpn: Qpn) -> Option<Cause> {
    let qpn = qpn.get();
    Some(match owner {
        Owner::None => cause(
            format!("no process of this user on this host has the queue pair {qpn:#08x} (any more)"),
            "compare dest_qp_num with qp_num of the peer, and let its process live until both ends are done",
        ),
        Owner::Dead(process) => {
            cause(format!("process {process}, which had the queue pair {qpn:#08x}, has died"), "see why it has died")
        }
        Owner::Stopped(process) => cause(
            format!("process {process}, which has the queue pair {qpn:#08x}, is stopped"),
            format!("let it continue: `kill -CONT {process}`, or in the debugger that stopped it"),
        ),
        Owner::Mute | Owner::Running => return None,
    })
}

/// What may be wrong if a request of this length was not acknowledged, no packet of it, but others
/// before it were.
fn lost_for_their_size(attr: &QpAttr, unanswered: u32) -> Option<Cause> {
    let mtu = attr.path_mtu.bytes();
    (unanswered >= mtu).then(|| {
        cause(
            format!(
                "no answer came to packets of {mtu} bytes, the path MTU, though there were answers before: if those \
                 were to shorter ones, the way may lose long packets; try a smaller path_mtu"
            ),
            "`ping -M do -s SIZE ADDRESS` finds the longest packet that passes; set path_mtu below that at both ends",
        )
    })
}

/// A peer could not get at memory of this end; its request ends with `status`.
pub(super) fn note_remote(qp: &QpResources, status: WcStatus, why: impl FnOnce() -> Cause) {
    reasons::note(ifindex(qp), qp.qpn, || {
        let Cause { text, advice } = why();
        Some(Reason { status, expects: None, text, advice })
    });
}

/// A packet of the peer was not taken.
pub(super) fn note_drop(qp: &QpResources, machine: &Machine, reason: DropReason) {
    reasons::note(ifindex(qp), qp.qpn, || why_dropped(qp, machine, reason));
    // The sender of a datagram hears of nothing.
    if explains() == Explain::Full
        && matches!(qp.service, Service::Ud | Service::Uc)
        && reason != DropReason::OutOfSequence
        && let Some(Reason { text, advice, .. }) = why_dropped(qp, machine, reason)
    {
        explain::happened(|| cause(format!("a message was lost: {text}"), advice));
    }
}

/// A packet of the peer waits, maybe for a state that the queue pair never reaches.
pub(super) fn note_early(qp: &QpResources, machine: &Machine) {
    if matches!(machine.state(), QpState::Reset | QpState::Init) {
        reasons::note(ifindex(qp), qp.qpn, || why_dropped(qp, machine, DropReason::BadState));
    }
}

/// What is wrong with a packet, or with the queue pair that it came for; nothing for what belongs
/// to every loss, and for what [`note_remote`] says better.
fn why_dropped(qp: &QpResources, machine: &Machine, reason: DropReason) -> Option<Reason> {
    let attr = machine.attr();
    let mut expects = None;
    let mut status = WcStatus::RetryExcErr;
    let (text, advice) = match reason {
        DropReason::BadState => {
            let advice = match machine.state() {
                QpState::Err => "look for the first failure of the peer's queue pair, or for what moved it to ERR",
                _ => "let the peer reach RTR before this end sends, for example by a message over the socket",
            };
            (format!("is in state {:?}, which takes no such packets", machine.state()), advice)
        }
        DropReason::WrongService => {
            ("is of another transport service than the packets that come".to_owned(), "create both with one qp_type")
        }
        DropReason::Pkey => ("was sent packets with another P_Key".to_owned(), "use pkey_index 0 at both ends"),
        DropReason::Qkey => (
            format!("was sent datagrams with another Q_Key than its {:#x}", attr.qkey.0),
            "set remote_qkey of the work request to the qkey of the peer",
        ),
        DropReason::Address => (
            format!(
                "expects packets from {} to {}, and others come: compare the GIDs of both ends",
                attr.av.dgid.to_ip(),
                attr.av.sgid.to_ip()
            ),
            "set dgid of each end to the GID at sgid_index of the other (`ibv_devinfo -v` lists them)",
        ),
        DropReason::OutOfSequence => {
            expects = Some((attr.dest_qpn, attr.rq_psn));
            ("expects other PSNs".to_owned(), "")
        }
        DropReason::DuplicateRequest => {
            expects = Some((attr.dest_qpn, attr.rq_psn));
            ("takes what comes for repeated".to_owned(), "")
        }
        DropReason::NoReceive => {
            status = WcStatus::RnrRetryExcErr;
            let of = |srq: &Arc<Srq>| format!(": its shared receive queue (handle {}) was empty", srq.user() as u32);
            let queue = qp.srq.as_ref().map_or_else(String::new, of);
            (format!("had no receive posted{queue}"), explain::advice(status))
        }
        DropReason::InvalidRequest | DropReason::LocalProtection => {
            status = match reason {
                DropReason::LocalProtection => WcStatus::RemOpErr,
                _ => WcStatus::RemInvReqErr,
            };
            (format!("refused the request: {}", machine.last_refusal()?), advice_of_refusal(qp.service, status))
        }
        _ => return None,
    };
    let text = format!("queue pair {:#08x} {text}", qp.qpn.get());
    Some(Reason { status, expects, text, advice: advice.to_owned() })
}

const fn advice_of_refusal(service: Service, status: WcStatus) -> &'static str {
    match service {
        Service::Ud => "post receives that are 40 bytes longer than the longest datagram",
        _ => explain::advice(status),
    }
}

fn ifindex(qp: &QpResources) -> u32 {
    qp.context.device().ifindex()
}
