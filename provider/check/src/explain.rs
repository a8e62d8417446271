//! Explanations: why a verb was refused, a work request failed or a connection did not come to be,
//! in words.
//!
//! A completion says one of twenty numbers, a verb an errno; what is known beyond that goes to
//! standard error if the user wants it (`ROXE_EXPLAIN`), never into the program's own output. What
//! is said repeatedly is said once. Touches standard error.

use roxe_base::clock;
use roxe_base::config::{Explain, config};
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::standard_error;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::{QpAttr, Service};
use roxe_transport::wr::{Access, Cqe, WC_STATUS_TEXTS, WcStatus};
use roxe_wire::Qpn;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Explanations that a process gives; what comes then is more of the same.
const LIMIT: usize = 50;

/// How long the end of the process waits for explanations at most.
const PATIENCE: Duration = Duration::from_millis(200);

/// Explanations that are still to be given.
static OWED: AtomicU32 = AtomicU32::new(0);
static TOLD: Mutex<rank::Explained, Option<HashSet<String>>> = Mutex::new(None);

/// How much the user wants to hear.
pub fn explains() -> Explain {
    config().map_or(Explain::Off, |config| config.explain)
}

/// A verb was refused with `errno`; `why` is only asked if the user wants to hear it: programs post
/// until a queue is full.
pub fn refused(errno: i32, why: impl FnOnce() -> String) {
    // These mean that there is nothing yet, which programs ask for all the time.
    if explains() > Explain::Off && !matches!(errno, libc::EAGAIN | libc::EINTR) {
        let name = std::io::Error::from_raw_os_error(errno);
        say(&format!("roxe: a verb failed: {} [{name}]\n", why()), "");
    }
}

/// Says that an explanation is to come, before the program can see the failure: it may end at once.
/// The process does not end before the answer is dropped, unless that takes long.
pub fn owe() -> Owed {
    at_exit(Stage::Report, || _ = is_paid_within(PATIENCE));
    OWED.fetch_add(1, Ordering::Relaxed);
    Owed(())
}

/// An explanation that is to come.
#[derive(Debug)]
pub struct Owed(());

impl Drop for Owed {
    fn drop(&mut self) {
        // The child of a fork owes nothing.
        let _ = OWED.fetch_update(Ordering::Release, Ordering::Relaxed, |owed| owed.checked_sub(1));
    }
}

/// Waits until nothing is owed.
fn is_paid_within(limit: Duration) -> bool {
    let start = clock::now();
    while OWED.load(Ordering::Acquire) > 0 {
        if clock::now().since(start) >= limit {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// In the child of a fork: the parent explains what it has begun.
pub(crate) fn abandon() {
    OWED.store(0, Ordering::Relaxed);
}

/// A request that a queue pair ended in error by, and what its end of the connection knows.
#[derive(Clone, Debug)]
pub struct Failure<'a> {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its transport service.
    pub service: Service,
    /// Its attributes.
    pub attr: &'a QpAttr,
    /// Of which queue the request was.
    pub side: Side,
    /// Its completion.
    pub cqe: &'a Cqe,
    /// What the card met when it used a local list.
    pub local: Option<String>,
    /// What the other end has said of it, or of itself; empty if nothing is known.
    pub peer: Vec<String>,
    /// What happened to the queue pair before, oldest first.
    pub history: Vec<String>,
}

/// Says why a request failed.
pub fn failed(failure: &Failure<'_>) {
    let wanted = explains();
    if wanted == Explain::Off {
        return;
    }
    let mut text = line(failure);
    if wanted == Explain::Full {
        details(failure, &mut text);
        say(&text, &history(failure));
    } else {
        say(&text, "");
    }
}

/// An attempt to connect that failed.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Between which ends.
    pub what: String,
    /// The event that the program gets.
    pub event: &'static str,
    /// Its status.
    pub status: i32,
    /// Why.
    pub cause: String,
    /// The private data of the other end.
    pub said: Option<String>,
    /// What to change.
    pub advice: &'static str,
}

/// Says why an attempt to connect failed.
pub fn not_connected(connection: &Connection) {
    let wanted = explains();
    if wanted == Explain::Off {
        return;
    }
    let Connection { what, event, status, cause, said, advice } = connection;
    let said = said.as_ref().map_or_else(String::new, |said| format!(": private data {said}"));
    let mut text = format!("roxe: {what} failed: {event}, status {status}: {cause}{said}\n");
    if wanted == Explain::Full {
        let _ = writeln!(text, "    {:<14} {advice}", "what to do");
    }
    say(&text, "");
}

/// The line that users of middleware ask for: who, to whom, what, how it ended, and why.
fn line(failure: &Failure<'_>) -> String {
    let Failure { qpn, service, attr, side, cqe, .. } = failure;
    let what = if *side == Side::Recv { "receive" } else { operation(cqe) };
    let mut text = format!(
        "roxe: {what} with wr_id {:#x} of queue pair {:#08x} ({service:?}) failed: {} ({})",
        cqe.wr_id,
        qpn.get(),
        name(cqe.status),
        cqe.status as u32
    );
    if !matches!(service, Service::Ud | Service::Raw) {
        let _ = write!(text, "; peer {:#08x} at {}, from {}", attr.dest_qpn.get(), attr.av.dgid, attr.av.sgid);
    }
    let cause = failure.local.clone().or_else(|| failure.peer.last().cloned());
    let _ = writeln!(text, ": {}", cause.unwrap_or_else(|| general(failure)));
    text
}

fn details(failure: &Failure<'_>, text: &mut String) {
    let Failure { attr, peer, cqe, .. } = failure;
    let mut line = |label: &str, value: &dyn std::fmt::Display| _ = writeln!(text, "    {label:<14} {value}");
    for said in peer {
        line("the other end", said);
    }
    if matches!(cqe.status, WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr) {
        let (timeout, retries, rnr) = (attr.timeout, attr.retry_cnt, attr.rnr_retry);
        let wait = if timeout == 0 {
            "no limit".to_owned()
        } else {
            format!("{:.1} ms", 4.096e-3 * 2f64.powi(timeout.into()))
        };
        line("attributes", &format!("timeout {timeout} ({wait}), retry_cnt {retries}, rnr_retry {rnr}"));
    }
    line("what to do", &advice(cqe.status));
}

/// The last events of the queue pair.
fn history(failure: &Failure<'_>) -> String {
    let labels = std::iter::once("last events").chain(std::iter::repeat(""));
    failure.history.iter().zip(labels).map(|(event, label)| format!("    {label:<14} {event}\n")).collect()
}

/// What can be said where nothing is known but the status.
fn general(failure: &Failure<'_>) -> String {
    let attr = failure.attr;
    match failure.cqe.status {
        WcStatus::RetryExcErr => format!("no answer came after {} retries", attr.retry_cnt),
        WcStatus::RnrRetryExcErr => {
            format!("the peer had no receive posted, also after {} retries (rnr_retry)", attr.rnr_retry)
        }
        WcStatus::RemAccessErr => "the peer's memory protection refused the remote key".to_owned(),
        WcStatus::RemInvReqErr => "the peer found the request illegal".to_owned(),
        WcStatus::RemOpErr => "the peer could not execute the request, for a reason of its own".to_owned(),
        WcStatus::LocLenErr if failure.service == Service::Ud => {
            "a message is longer than its receive less the 40 bytes of the GRH, or a send than the path MTU".to_owned()
        }
        WcStatus::LocLenErr => "a message is longer than the receive that was posted for it".to_owned(),
        _ => "see man ibv_poll_cq".to_owned(),
    }
}

const fn advice(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RetryExcErr => {
            "see that the peer's queue pair exists, is in RTR or RTS, names this one as dest_qp_num, and that both ends \
             agree on GIDs, PSNs and path_mtu"
        }
        WcStatus::RnrRetryExcErr => {
            "post receives before the peer sends, or set rnr_retry to 7 (for ever) and a suitable min_rnr_timer"
        }
        WcStatus::RemAccessErr => "compare rkey, remote address, length and the region's access flags at the peer",
        WcStatus::RemInvReqErr => {
            "compare the operation with qp_access_flags, max_dest_rd_atomic and receive sizes there"
        }
        WcStatus::LocProtErr => "compare lkey, address, length and protection domain of the list with the regions here",
        WcStatus::LocLenErr => "post receives that are long enough; on UD 40 bytes longer than the message",
        _ => "look at the first failure of this queue pair; the others follow from it",
    }
}

/// What was met when a list or a remote key was used.
pub fn memory(what: &str, key: u32, (addr, len): (u64, u64), access: Access, error: MemError) -> String {
    let range = format!("{len} bytes at {addr:#x} under {what} {key:#x}");
    match error {
        MemError::BadKey => format!("{range}: there is no region or window with this key (any more)"),
        MemError::WrongDomain => format!("{range}: the key belongs to another protection domain than the queue pair"),
        MemError::Access => {
            let flags: Vec<_> = access.iter_names().map(|(name, _)| format!("IBV_ACCESS_{name}")).collect();
            format!("{range}: the region does not grant {}", flags.join(" and "))
        }
        MemError::Range => format!("{range}: not all of it is inside the region"),
        MemError::Fault => format!("{range}: the memory is not mapped any more"),
    }
}

const fn operation(cqe: &Cqe) -> &'static str {
    use roxe_transport::wr::WcOpcode;
    match cqe.opcode {
        WcOpcode::RdmaWrite => "RDMA WRITE",
        WcOpcode::RdmaRead => "RDMA READ",
        WcOpcode::CompareSwap => "compare and swap",
        WcOpcode::FetchAdd => "fetch and add",
        WcOpcode::AtomicWrite => "ATOMIC WRITE",
        WcOpcode::Flush => "FLUSH",
        WcOpcode::BindWindow => "memory window bind",
        WcOpcode::LocalInvalidate => "local invalidation",
        _ => "SEND",
    }
}

/// As `ibv_wc_status_str` calls it.
pub(crate) fn name(status: WcStatus) -> &'static str {
    WC_STATUS_TEXTS.get(status as usize).and_then(|text| text.to_str().ok()).unwrap_or("unknown")
}

/// The lock of what was said, for a fork.
pub(crate) fn lock() -> &'static dyn Lockable {
    &TOLD
}

/// Writes a text that was not written before, while there are not too many, and what belongs to it.
fn say(text: &str, more: &str) {
    let mut told = TOLD.lock();
    let told = told.get_or_insert_default();
    if told.len() < LIMIT && told.insert(text.to_owned()) {
        // Under the lock, so that no text is torn by another one. Nobody else can be told.
        standard_error::write(&format!("{text}{more}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(attr: &QpAttr, status: WcStatus, peer: &[&str]) -> String {
        let cqe = Cqe { wr_id: 7, status, ..Cqe::default() };
        let peer = peer.iter().map(|said| (*said).to_owned()).collect();
        let (qpn, service, side) = (Qpn::new(0x11), Service::Rc, Side::Send);
        line(&Failure { qpn, service, attr, side, cqe: &cqe, local: None, peer, history: Vec::new() })
    }

    #[test]
    fn the_line_names_both_ends_the_request_and_the_cause() {
        let attr = QpAttr { dest_qpn: Qpn::new(0x22), retry_cnt: 3, ..QpAttr::default() };
        let text = failure(&attr, WcStatus::RetryExcErr, &[]);
        for part in ["SEND with wr_id 0x7", "0x000011", "0x000022", "(12)", "no answer came after 3 retries"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(failure(&attr, WcStatus::RetryExcErr, &["it is in ERR"]).ends_with(": it is in ERR\n"));
    }

    #[test]
    fn the_end_of_the_process_waits_for_what_is_owed() {
        let owed = owe();
        assert!(!is_paid_within(Duration::ZERO));
        let teller = std::thread::spawn(move || drop(owed));
        assert!(is_paid_within(Duration::from_secs(60)));
        teller.join().unwrap();
        let owed = owe();
        abandon();
        drop(owed);
        assert!(is_paid_within(Duration::ZERO));
    }

    #[test]
    fn a_missing_right_is_named_as_the_flag_to_add() {
        let text = memory("rkey", 5, (0x1000, 8), Access::REMOTE_WRITE, MemError::Access);
        assert_eq!(text, "8 bytes at 0x1000 under rkey 0x5: the region does not grant IBV_ACCESS_REMOTE_WRITE");
    }
}
