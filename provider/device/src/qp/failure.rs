//! Explanations of failed requests, unusable lists and refused remote keys, and the history of a
//! queue pair that led to them. A responder records for the peer why it refused a request
//! ([`reasons`]); the requester reads that and prints it with what it knows itself.
//!
//! Nothing here runs on the path of a packet.

use super::resources::QpResources;
use crate::event::AsyncEventKind;
use crate::srq::Srq;
use roxe_base::config::Explain;
use roxe_check::explain::{self, Cause, Failure, Owed, explains};
use roxe_check::is_checking;
use roxe_memory::mapped::why_unusable;
use roxe_memory::region::{KeyState, Users};
use roxe_net::probe::Probe;
use roxe_observe::reasons::{self, Owner, Reason};
use roxe_transport::Qp as Machine;
use roxe_transport::cm::Route;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::{DropReason, QpAttr, QpState, RetryCounts, Service};
use roxe_transport::time::Instant;
use roxe_transport::wr::{Access, Bind, Cqe, WC_STATUS_TEXTS, WcStatus};
use roxe_wire::{Psn, Qpn, RKey};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

const MAX_ENTRIES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Failed {
    /// Cause of a local list or key that could not be used.
    local: Option<Cause>,
    cqe: Option<(Side, Cqe)>,
    /// Held until the failure is explained.
    owed: Option<Owed>,
}

pub(super) fn note_local(failed: &mut Option<Box<Failed>>, why: impl FnOnce() -> Cause) {
    if explains() > Explain::Off {
        failed.get_or_insert_default().local = Some(why());
    }
}

/// Records a request that fails first, not as a consequence of another.
pub(super) fn note(failed: &mut Option<Box<Failed>>, side: Side, cqe: &Cqe) {
    if explains() > Explain::Off {
        let failed = failed.get_or_insert_default();
        failed.cqe.get_or_insert((side, *cqe));
        failed.owed.get_or_insert_with(explain::owe);
    }
}

/// Records a flushed request that no failure preceded; `refusal` may have ended the connection.
pub(super) fn note_flush(
    failed: &mut Option<Box<Failed>>,
    (side, cqe): (Side, &Cqe),
    ended_by_program: bool,
    refusal: Option<Entry>,
) {
    let why = if ended_by_program {
        cause(
            "the program moved the queue pair to ERR (ibv_modify_qp or rdma_disconnect)".to_owned(),
            "poll the completions before the queue pair is moved, if they matter",
        )
    } else if let Some(by) = refusal {
        cause(
            format!("the queue pair went to ERR, and no request of its own had failed: after \"{by}\""),
            "find out why the peer's request was refused",
        )
    } else {
        cause(
            "the queue pair went to ERR, and no request of either end had failed: the cause is unknown".to_owned(),
            "handle asynchronous events (ibv_get_async_event): a completion queue that overran has one",
        )
    };
    note_local(failed, || why);
    note(failed, side, cqe);
}

impl Failed {
    /// Prints an explanation. `unanswered` is the length of a request of which no packet was
    /// acknowledged; `probe` was sent when the first acknowledgement was overdue.
    pub(super) fn explain(
        self,
        qp: &QpResources,
        attr: &QpAttr,
        unanswered: Option<u32>,
        probe: Option<&Probe>,
        history: Vec<String>,
    ) {
        let Some((side, cqe)) = self.cqe else { return };
        if cqe.status == WcStatus::WrFlushErr {
            // A flush is not a failure: one line is enough.
            let Some(Cause { text, advice }) = self.local else { return };
            let (number, service, first) = (qp.qpn.get(), qp.service.name(), cqe.wr_id);
            let text = format!(
                "requests of queue pair {number:#08x} ({service}) are flushed (5), the first with wr_id {first}: {text}"
            );
            return explain::happened(|| cause(text, advice));
        }
        let is_connected = !matches!(qp.service, Service::Ud | Service::Raw);
        let is_unanswered = cqe.status == WcStatus::RetryExcErr;
        let (mut causes, mut is_mute) = (Vec::new(), false);
        if is_connected && side == Side::Send && qp.engine().link(attr.av.dgid).is_some() {
            let (owner, reason) = reasons::find_drops(ifindex(qp), attr.dest_qpn, cqe.status);
            is_mute = owner == Owner::Mute;
            causes.extend(reason.into_iter().map(|reason| mismatch_cause(reason, qp.qpn, attr)));
            causes.extend(owner_cause(&owner, attr.dest_qpn).filter(|_| is_unanswered));
        } else if is_connected && is_unanswered {
            let route = Route { local: attr.av.sgid, remote: attr.av.dgid };
            causes.extend(qp.engine().why_unreachable(route, probe).map(|text| cause(text, NETWORK)));
        }
        if causes.is_empty() && is_unanswered {
            causes.extend(unanswered.and_then(|length| suspect_mtu(attr, length)));
        }
        let cause = self.local.or_else(|| causes.pop());
        let (qpn, service, others) = (qp.qpn, qp.service, causes);
        let port_mtu = qp.context.device().adapter().active_mtu().bytes();
        explain::failed(&Failure { qpn, service, attr, side, cqe: &cqe, cause, others, is_mute, port_mtu, history });
    }
}

/// Returns the cause of a completion that a fault rule fails.
pub(super) fn requested_by(rule: &str) -> Cause {
    cause(format!("a fault rule requested it: {rule}"), "leave the rule out (roxe run --faults, ROXE_FAULTS)")
}

fn cause(text: String, advice: impl Into<String>) -> Cause {
    Cause { text, advice: advice.into() }
}

const NETWORK: &str = "check that the host is up, that UDP port 4791 is open both ways, and that a program there has \
                       opened its RDMA device on the interface with this address";

/// Derives the cause from the responder's reason and the attributes of both ends.
fn mismatch_cause(reason: Reason, own: Qpn, attr: &QpAttr) -> Cause {
    let Reason { expects, text, advice, .. } = reason;
    let peer = attr.dest_qpn.get();
    match expects {
        Some((dest, _)) if dest != own => cause(
            format!(
                "queue pair {peer:#08x} has {:#08x} as its dest_qp_num instead of {:#08x}, so its responses go to another queue pair",
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
            "capture both ends (`roxe run --capture FILE`) and compare the packets sent with those received",
        ),
        None => cause(text, advice),
    }
}

/// Returns the cause if the process that owns the queue pair number cannot answer.
fn owner_cause(owner: &Owner, qpn: Qpn) -> Option<Cause> {
    let qpn = qpn.get();
    Some(match owner {
        Owner::None => cause(
            format!("no process of this user on this host has the queue pair {qpn:#08x} (any more)"),
            "compare dest_qp_num with qp_num of the peer, and keep its process running until both ends are done",
        ),
        Owner::Dead(process) => {
            cause(format!("process {process}, which had the queue pair {qpn:#08x}, has died"), "find out why it died")
        }
        Owner::Stopped(process) => cause(
            format!("process {process}, which has the queue pair {qpn:#08x}, is stopped"),
            format!("let it continue: `kill -CONT {process}`, or in the debugger that stopped it"),
        ),
        Owner::Mute | Owner::Running => return None,
    })
}

/// Suspects the path MTU if no packet of a long request was acknowledged, but earlier ones were.
fn suspect_mtu(attr: &QpAttr, unanswered: u32) -> Option<Cause> {
    let mtu = attr.path_mtu.bytes();
    (unanswered >= mtu).then(|| {
        cause(
            format!(
                "packets of {mtu} bytes, the path MTU, were not acknowledged, although earlier ones were: if those \
                 were shorter, the path may lose long packets; try a smaller path_mtu"
            ),
            "`ping -M do -s SIZE ADDRESS` finds the longest packet that passes; set path_mtu below that at both ends",
        )
    })
}

/// Records for the peer why its request ends with `status`.
pub(super) fn note_remote(qp: &QpResources, status: WcStatus, why: impl FnOnce() -> Cause) {
    reasons::record_drop(ifindex(qp), qp.qpn, || {
        let Cause { text, advice } = why();
        Some(Reason { status, expects: None, text, advice })
    });
}

/// Records for the peer why its packet was dropped.
pub(super) fn note_drop(qp: &QpResources, machine: &Machine, reason: DropReason) {
    reasons::record_drop(ifindex(qp), qp.qpn, || why_dropped(qp, machine, reason));
    // The sender of a datagram never learns of a loss.
    if explains() == Explain::Full
        && matches!(qp.service, Service::Ud | Service::Uc)
        && reason != DropReason::OutOfSequence
        && let Some(Reason { text, advice, .. }) = why_dropped(qp, machine, reason)
    {
        explain::happened(|| cause(format!("a message was lost: {text}"), advice));
    }
}

/// Records for the peer that its packet waits for a state that this queue pair may never reach.
pub(super) fn note_early(qp: &QpResources, machine: &Machine) {
    if matches!(machine.state(), QpState::Reset | QpState::Init) {
        reasons::record_drop(ifindex(qp), qp.qpn, || why_dropped(qp, machine, DropReason::BadState));
    }
}

/// Returns why a packet was dropped; `None` if every loss causes such drops, or if [`note_remote`]
/// has recorded more.
fn why_dropped(qp: &QpResources, machine: &Machine, reason: DropReason) -> Option<Reason> {
    let attr = machine.attr();
    let mut expects = None;
    let mut status = WcStatus::RetryExcErr;
    let (text, advice) = match reason {
        DropReason::BadState => {
            let advice = match machine.state() {
                QpState::Err => "find the first failure of the peer's queue pair, or the call that moved it to ERR",
                _ => "let the peer reach RTR before this end sends, for example by a message over the socket",
            };
            (format!("is in state {:?}, which accepts no such packets", machine.state()), advice)
        }
        DropReason::WrongService => {
            ("is of another transport service than the packets".to_owned(), "create both with one qp_type")
        }
        DropReason::Pkey => ("was sent packets with another P_Key".to_owned(), "use pkey_index 0 at both ends"),
        DropReason::Qkey => (
            format!("was sent datagrams with another Q_Key than its {:#x}", attr.qkey.0),
            "set remote_qkey of the work request to the qkey of the peer",
        ),
        DropReason::Address => (
            format!(
                "expects packets from {} to {}, but got others: compare the GIDs of both ends",
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
            ("regarded packets as duplicates".to_owned(), "")
        }
        DropReason::NoReceive => {
            status = WcStatus::RnrRetryExcErr;
            let empty_srq =
                |srq: &Arc<Srq>| format!(": its shared receive queue (handle {}) was empty", srq.user_context() as u32);
            let queue = qp.srq.as_ref().map_or_else(String::new, empty_srq);
            // UC and UD have no RNR timer.
            let is_reliable = qp.service.is_reliable();
            let advice = if is_reliable { explain::advice(status) } else { "post receives before the peer sends" };
            (format!("had no receive posted{queue}"), advice)
        }
        DropReason::InvalidRequest | DropReason::LocalProtection => {
            status = match reason {
                DropReason::LocalProtection => WcStatus::RemOpErr,
                _ => WcStatus::RemInvReqErr,
            };
            let advice = match qp.service {
                Service::Ud => "post receives that are 40 bytes longer than the longest datagram",
                _ => explain::advice(status),
            };
            (format!("refused the request: {}", machine.last_refusal()?), advice)
        }
        _ => return None,
    };
    let text = format!("queue pair {:#08x} {text}", qp.qpn.get());
    Some(Reason { status, expects, text, advice: advice.to_owned() })
}

fn ifindex(qp: &QpResources) -> u32 {
    qp.context.device().ifindex()
}

/// A range that a request accesses with a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyAccess {
    /// `lkey` or `rkey`.
    pub(super) kind: &'static str,
    pub(super) key: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) access: Access,
}

impl KeyAccess {
    /// Returns why the access was refused, with advice.
    pub(super) fn refused(&self, error: MemError, key_state: KeyState) -> Cause {
        let Self { kind, key, addr, len, access } = *self;
        let (cause, advice) = match (error, key_state) {
            (MemError::BadKey, KeyState::Dead) => (
                "the region or window that had this key is gone: it was deregistered or deallocated".to_owned(),
                "keep the region registered until the last request that uses it has completed",
            ),
            (MemError::BadKey, KeyState::Rebound(now)) => (
                format!("the memory window was bound again, under the key {now:#x}"),
                "send the peer the rkey of the newest bind",
            ),
            (MemError::BadKey, _) => (
                "there is no region or window with this key".to_owned(),
                match kind {
                    "lkey" => "use ibv_mr.lkey of the region that holds these bytes",
                    _ => "exchange the keys after the regions are registered, all 32 bits, in one byte order",
                },
            ),
            (MemError::WrongDomain, KeyState::Unbound) => (
                "the memory window with this key is not bound: it was invalidated, or has never been bound".to_owned(),
                "bind the window before its rkey is used, and do not use an rkey after its invalidation",
            ),
            (MemError::WrongDomain, KeyState::Null) => {
                ("the key is that of a null region, which only lists can use".to_owned(), "use the rkey of a region")
            }
            (MemError::WrongDomain, KeyState::Open { is_window: true, .. }) if kind == "lkey" => {
                ("the key is that of a memory window, which lists cannot use".to_owned(), "use the lkey of the region")
            }
            // The two keys of a region differ while the checker is on.
            (MemError::WrongDomain, KeyState::Open { users: Users::Peers(_), .. }) if kind == "lkey" => {
                ("the key is the rkey of a region, and lists need the lkey".to_owned(), "use ibv_mr.lkey")
            }
            (MemError::Access, KeyState::Open { users: Users::Domain(_), .. }) if kind == "rkey" && is_checking() => {
                ("the key is the lkey of a region, and a peer needs the rkey".to_owned(), "send the peer ibv_mr.rkey")
            }
            (MemError::WrongDomain, KeyState::Open { users: Users::Qp(_), .. }) => (
                "the memory window of type 2 with this key is bound to another queue pair".to_owned(),
                "bind the window on the queue pair whose peer uses it",
            ),
            (MemError::WrongDomain, _) => (
                "the key belongs to another protection domain than the queue pair".to_owned(),
                "register the memory in the protection domain that the queue pair was created in",
            ),
            (MemError::Access, key_state) => {
                let granted = match key_state {
                    KeyState::Open { access, .. } => format!("; it grants {}", names(access)),
                    _ => String::new(),
                };
                (
                    format!("the region does not grant {}{granted}", names(access)),
                    "add the access flag where the region is registered (ibv_reg_mr) or the window is bound",
                )
            }
            (MemError::Range, KeyState::Open { base, length, .. }) => (
                format!("the range is not inside the region, which has {length} bytes from {base:#x} on"),
                "compare the address and the length with those of the region; the address is the virtual one, or \
                 counts from 0 with ZERO_BASED",
            ),
            (MemError::Range, _) => ("the range is not inside the region".to_owned(), "compare address and length"),
            (MemError::Fault, KeyState::Open { addr: memory, base, .. }) => (
                why_unusable(memory.wrapping_add(addr.wrapping_sub(base)), len, is_written(access)),
                "keep the memory mapped, with its rights, until it is deregistered",
            ),
            (MemError::Fault, _) => {
                ("the memory can no longer be accessed".to_owned(), "keep the memory mapped until it is deregistered")
            }
        };
        Cause { text: format!("{len} bytes at {addr:#x} under {kind} {key:#x}: {cause}"), advice: advice.to_owned() }
    }
}

/// Returns why a key could not be invalidated.
pub(super) fn failed_invalidation(rkey: RKey, error: MemError, key_state: KeyState) -> Cause {
    let rkey = rkey.0;
    let cause = match (error, key_state) {
        (MemError::BadKey, KeyState::Rebound(now)) => {
            format!("rkey {rkey:#x} is a former key of a memory window, which has {now:#x} since it was bound again")
        }
        (MemError::BadKey, KeyState::Dead) => format!("the region or window that had rkey {rkey:#x} is gone"),
        (MemError::BadKey, _) => format!("there is no region or window with rkey {rkey:#x}"),
        (MemError::WrongDomain, KeyState::Open { users: Users::Qp(_), .. }) => {
            format!("the memory window with rkey {rkey:#x} is bound to another queue pair")
        }
        (MemError::WrongDomain, _) => format!("rkey {rkey:#x} belongs to another protection domain"),
        (_, KeyState::Unbound) => format!("the memory window with rkey {rkey:#x} is not bound"),
        (_, KeyState::Open { is_window: true, .. }) => {
            format!("rkey {rkey:#x} is that of a memory window of type 1, which must be bound again instead")
        }
        _ => format!("rkey {rkey:#x} is that of a region, and only memory windows of type 2 can be invalidated"),
    };
    let advice = "invalidate the newest rkey of a bound window of type 2, once, on the queue pair that bound it";
    Cause { text: cause, advice: advice.to_owned() }
}

/// Returns why a window could not be bound, from the states of the keys of the window and of the
/// region.
pub(super) fn failed_bind(bind: &Bind, error: MemError, (window, region): (KeyState, KeyState)) -> Cause {
    let (rkey, lkey, length) = (bind.rkey.0, bind.lkey.0, bind.length);
    let range = KeyAccess { kind: "lkey", key: lkey, addr: bind.addr, len: length, access: bind.access };
    if matches!(window, KeyState::Unknown | KeyState::Dead) {
        return Cause {
            text: format!("there is no memory window whose rkey has the index of {rkey:#x}"),
            advice: "use the key in ibv_mw.rkey, and change its low 8 bits only (ibv_inc_rkey)".to_owned(),
        };
    }
    let (text, advice) = match (error, region) {
        (MemError::Access, _) if matches!(window, KeyState::Open { users: Users::Qp(_), .. }) => (
            format!("the memory window {rkey:#x} of type 2 is bound already"),
            "invalidate the window before it is bound again",
        ),
        (MemError::Access, _) if length == 0 => (
            format!("a memory window of type 2 cannot be bound to {length} bytes"),
            "bind 1 byte or more; an invalidation closes the window",
        ),
        (MemError::Access, KeyState::Open { access, .. }) => {
            let mut needed = Access::MW_BIND;
            if is_written(bind.access) {
                needed |= Access::LOCAL_WRITE;
            }
            let (lacks, granted) = (names(needed.difference(access)), names(access));
            match needed.difference(access).is_empty() {
                true => (
                    format!(
                        "the region {lkey:#x} or the window does not allow these rights: the region grants {granted}, the \
                         window requests {}",
                        names(bind.access)
                    ),
                    "a ZERO_BASED region cannot be bound to windows, and a ZERO_BASED window has to be of type 2",
                ),
                false => (
                    format!("the region with lkey {lkey:#x} does not grant {lacks}; it grants {granted}"),
                    "add the access flags where the region is registered",
                ),
            }
        }
        _ => return range.refused(error, region),
    };
    Cause { text, advice: advice.to_owned() }
}

/// Returns true if the card writes memory with these rights.
fn is_written(access: Access) -> bool {
    access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// Returns the flags as in C, or `none`.
fn names(access: Access) -> String {
    if access.is_empty() { "none".to_owned() } else { access.names(" and ") }
}

/// An event in the life of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Entry {
    State(QpState),
    /// Losses and RNR NAKs, with the oldest unacknowledged PSN and the next new one.
    Retried(RetryCounts, [Psn; 2]),
    Dropped(DropReason, Psn),
    LocalFault(Side, MemError),
    RemoteFault(RKey, MemError),
    Failed(Side, u64, WcStatus),
    /// A number of flushed requests of one queue.
    Flushed(Side, u32),
    Raised(AsyncEventKind),
}

/// The last events of a queue pair, oldest first. Kept even if nothing is explained, so only rare
/// events enter: states, retries, refusals, errors.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: VecDeque<(Instant, Entry)>,
    /// True once printed since the last reset.
    is_printed: bool,
}

impl History {
    #[cold]
    #[inline(never)]
    pub(super) fn note(&mut self, now: Instant, entry: Entry) {
        if let (Some((at, Entry::Flushed(of, count))), Entry::Flushed(side, more)) = (self.entries.back_mut(), entry)
            && *of == side
        {
            *at = now;
            *count = count.saturating_add(more);
            return;
        }
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back((now, entry));
    }

    /// Adds a state if it is a new one.
    pub(super) fn note_state(&mut self, now: Instant, state: QpState) {
        let is_state = |(_, entry): &&(Instant, Entry)| matches!(entry, Entry::State(_));
        if self.entries.iter().rev().find(is_state).is_none_or(|(_, entry)| *entry != Entry::State(state)) {
            self.note(now, Entry::State(state));
        }
    }

    /// Allows another printout; entries from before the reset stay.
    pub(super) fn reset(&mut self) {
        self.is_printed = false;
    }

    /// Returns the newest entry that ends a connection without a failed request of this end.
    pub(super) fn last_refusal(&self) -> Option<Entry> {
        let mut newest = self.entries.iter().rev().map(|(_, entry)| *entry);
        newest.find(|entry| match entry {
            Entry::RemoteFault(..) | Entry::LocalFault(..) => true,
            Entry::Dropped(reason, _) => {
                matches!(reason, DropReason::InvalidRequest | DropReason::RemoteAccess | DropReason::LocalProtection)
            }
            Entry::Raised(kind) => matches!(kind, AsyncEventKind::QpFatal),
            Entry::State(_) | Entry::Retried(..) | Entry::Failed(..) | Entry::Flushed(..) => false,
        })
    }

    /// Returns a line for each entry, with times relative to the last error; none if they were
    /// printed already.
    pub(super) fn lines(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.is_printed, true) {
            return Vec::new();
        }
        let failed = self.entries.iter().rev().find(|(_, entry)| matches!(entry, Entry::Failed(..)));
        let zero = failed.or_else(|| self.entries.back()).map_or(0, |(at, _)| at.0);
        let line = |(at, entry): &(Instant, Entry)| {
            #[expect(clippy::cast_precision_loss, reason = "a time of the last days, for people")]
            let ms = (at.0 as f64 - zero as f64) / 1e6;
            format!("{ms:>12.3} ms  {entry}")
        };
        self.entries.iter().map(line).collect()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = |side: &Side| if *side == Side::Send { "send" } else { "receive" };
        match self {
            Self::State(state) => write!(f, "state {}", format!("{state:?}").to_uppercase()),
            Self::Retried(counts, [oldest, next]) => {
                let counts = [
                    (counts.local_ack_timeout_err, "timeout"),
                    (counts.packet_seq_err, "NAK received: PSN sequence error"),
                    (counts.implied_nak_seq_err, "implied NAK received"),
                    (counts.rnr_nak_retry_err, "RNR NAK received"),
                    (counts.send_rnr_err, "RNR NAK sent"),
                ];
                let retries = counts.iter().filter(|(times, _)| *times > 0).map(|(times, what)| match times {
                    1 => (*what).to_owned(),
                    _ => format!("{what} {times} times"),
                });
                f.write_str(&retries.collect::<Vec<_>>().join(", "))?;
                // After the last retry no packet is outstanding.
                if oldest == next {
                    return Ok(());
                }
                write!(f, "; PSN {oldest} not acknowledged, next is {next}")
            }
            Self::Dropped(reason, psn) => write!(f, "packet with PSN {psn} dropped: {}", reason.name()),
            Self::LocalFault(side, error) => write!(f, "list of a {} request unusable: {error:?}", queue(side)),
            Self::RemoteFault(rkey, error) => write!(f, "rkey {:#x} refused: {error:?}", rkey.0),
            Self::Failed(side, wr_id, status) => {
                let text = WC_STATUS_TEXTS.get(*status as usize).and_then(|text| text.to_str().ok());
                write!(f, "{} request with wr_id {wr_id} ended: {}", queue(side), text.unwrap_or("unknown"))
            }
            Self::Flushed(side, count) => write!(f, "{count} {} requests flushed", queue(side)),
            Self::Raised(kind) => write!(f, "asynchronous event {kind:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_base::uses::ObjectId;
    use roxe_memory::region::PdId;

    #[test]
    fn missing_right_is_named_as_flag_to_add() {
        let access = KeyAccess { kind: "rkey", key: 5, addr: 0x1000, len: 8, access: Access::REMOTE_WRITE };
        let users = Users::Domain(PdId::next());
        let key_state = |access| KeyState::Open { is_window: false, users, addr: 0, base: 0, length: 8, access };
        let Cause { text, .. } = access.refused(MemError::Access, key_state(Access::REMOTE_READ));
        let expected = "8 bytes at 0x1000 under rkey 0x5: the region does not grant IBV_ACCESS_REMOTE_WRITE; it \
                        grants IBV_ACCESS_REMOTE_READ";
        assert_eq!(text, expected);
        let Cause { text, .. } = access.refused(MemError::Range, key_state(Access::REMOTE_WRITE));
        assert!(text.ends_with("inside the region, which has 8 bytes from 0x0 on"), "{text}");
    }

    #[test]
    fn rkey_in_a_list_is_named() {
        let access = KeyAccess { kind: "lkey", key: 5, addr: 0, len: 8, access: Access::empty() };
        let key_state = |is_window, users| KeyState::Open {
            is_window,
            users,
            addr: 0,
            base: 0,
            length: 8,
            access: Access::REMOTE_READ,
        };
        let pd = PdId::next();
        let qp = Users::Qp(ObjectId::next());
        for (key_state, expected) in [
            (key_state(false, Users::Peers(pd)), "the key is the rkey of a region, and lists need the lkey"),
            (key_state(true, Users::Peers(pd)), "the key is that of a memory window, which lists cannot use"),
            (key_state(true, qp), "the key is that of a memory window, which lists cannot use"),
            (key_state(false, Users::Domain(pd)), "the key belongs to another protection domain than the queue pair"),
        ] {
            let Cause { text, .. } = access.refused(MemError::WrongDomain, key_state);
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn history_keeps_64_entries_and_prints_once() {
        let mut history = History::default();
        for at in 0..70 {
            let counts = RetryCounts { local_ack_timeout_err: 1, ..RetryCounts::default() };
            history.note(Instant(at * 1_000_000), Entry::Retried(counts, [Psn::new(5), Psn::new(9)]));
        }
        history.note(Instant(70_500_000), Entry::Failed(Side::Send, 7, WcStatus::RetryExcErr));
        history.note(Instant(71_000_000), Entry::Flushed(Side::Send, 1));
        history.note(Instant(71_500_000), Entry::Flushed(Side::Send, 1));
        let lines = history.lines();
        assert_eq!(lines.len(), MAX_ENTRIES);
        assert_eq!(lines[0].trim(), "-62.500 ms  timeout; PSN 5 not acknowledged, next is 9");
        let failed = "0.000 ms  send request with wr_id 7 ended: transport retry counter exceeded";
        assert_eq!([lines[62].trim(), lines[63].trim()], [failed, "1.000 ms  2 send requests flushed"]);
        assert!(history.lines().is_empty());
        history.reset();
        assert_eq!(history.lines().len(), MAX_ENTRIES);
    }

    #[test]
    fn history_notes_state_only_on_change() {
        let mut history = History::default();
        for state in [QpState::Rts, QpState::Rts, QpState::Err] {
            history.note_state(Instant(0), state);
        }
        history.note(Instant(0), Entry::Raised(AsyncEventKind::QpFatal));
        history.note_state(Instant(0), QpState::Err);
        assert_eq!(history.entries.len(), 3);
    }
}
