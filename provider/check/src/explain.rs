//! Explanations of refused verbs, failed work requests and failed connections, in words
//! (`ROXE_EXPLAIN`).
//!
//! A completion carries one of twenty statuses and a verb an errno. Further facts go to standard
//! error, never into the program's output; a repeated text is written once.

use roxe_base::clock;
use roxe_base::config::{Explain, config};
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::standard_error;
use roxe_transport::cx::Side;
use roxe_transport::qp::{QpAttr, Service};
use roxe_transport::wr::{Cqe, WC_STATUS_TEXTS, WcStatus};
use roxe_wire::Qpn;
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Maximum number of explanations of one process; later ones rarely add anything.
const MAX_EXPLANATIONS: usize = 50;

/// Longest wait for pending explanations at the end of the process.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);

static PENDING: AtomicU32 = AtomicU32::new(0);
static WRITTEN: Mutex<rank::Explained, Option<HashSet<String>>> = Mutex::new(None);

/// Returns the amount of explanation that the user requested.
pub fn explains() -> Explain {
    config().map_or(Explain::Off, |config| config.explain)
}

thread_local! {
    static VERB: RefCell<Verb> = const { RefCell::new(Verb { depth: 0, is_explained: false, because: None }) };
}

/// Calls `body` with the verb of this thread; `None` in exit handlers, where the variable is gone
/// and nothing is explained.
fn with_verb<R>(body: impl FnOnce(&mut Verb) -> R) -> Option<R> {
    VERB.try_with(|verb| body(&mut verb.borrow_mut())).ok()
}

#[derive(Debug)]
struct Verb {
    /// Nesting depth of verbs, such as `ibv_create_qp` inside `rdma_create_qp`.
    depth: u32,
    /// True once the refusal was explained.
    is_explained: bool,
    /// Reason noted for a refusal.
    because: Option<String>,
}

/// Notes why the current verb of this thread is about to be refused. `why` runs only if
/// explanations are on: programs post until a queue is full.
#[cold]
pub fn because(why: impl FnOnce() -> String) {
    if explains() > Explain::Off {
        let why = why();
        with_verb(|verb| verb.because = Some(why));
    }
}

/// Like [`because`], but keeps a reason that an inner function noted.
#[cold]
pub fn because_at_least(why: impl FnOnce() -> String) {
    if explains() > Explain::Off && with_verb(|verb| verb.because.is_none()) == Some(true) {
        because(why);
    }
}

/// Marks this thread as inside a verb until dropped.
#[derive(Debug)]
pub struct InVerb(());

/// Enters a verb if explanations are on. Dropping the guard discards the noted reason, because an
/// inner failure need not refuse the verb.
pub fn enter_verb() -> Option<InVerb> {
    (explains() > Explain::Off).then(|| {
        with_verb(|verb| verb.depth += 1);
        InVerb(())
    })
}

impl Drop for InVerb {
    fn drop(&mut self) {
        with_verb(|verb| {
            verb.depth -= 1;
            if verb.depth == 0 {
                (verb.is_explained, verb.because) = (false, None);
            }
        });
    }
}

/// Explains that the verb `call` failed with `errno`, for the reason noted last.
#[cold]
pub fn refused(call: impl FnOnce() -> String, errno: i32) {
    let level = explains();
    // Programs that poll get these errors all the time.
    if level == Explain::Off || matches!(errno, libc::EAGAIN | libc::EINTR) {
        return;
    }
    let is_usage = matches!(errno, libc::EINVAL | libc::EOPNOTSUPP);
    let why = with_verb(|verb| {
        // Only the outermost verb explains, because the program knows its name.
        if verb.depth > 1 || verb.is_explained {
            return None;
        }
        verb.is_explained = verb.depth > 0;
        let unknown = "the refused argument is unknown; see the man page, and use `roxe run --check`";
        verb.because.take().or_else(|| (level == Explain::Full && is_usage).then(|| unknown.to_owned()))
    });
    if let Some(why) = why.flatten() {
        let name = std::io::Error::from_raw_os_error(errno);
        write_once(&format!("roxe: {} failed: {why} [{name}]\n", call()), "");
    }
}

/// Announces an explanation before the program can see the failure, since it may exit at once. The
/// process waits a limited time for the returned guard to be dropped before it ends.
pub fn owe() -> Owed {
    at_exit(Stage::Report, || _ = none_pending_within(EXIT_TIMEOUT));
    PENDING.fetch_add(1, Ordering::Relaxed);
    Owed(())
}

/// A pending explanation.
#[derive(Debug)]
pub struct Owed(());

impl Drop for Owed {
    fn drop(&mut self) {
        // In the child of a fork the counter is 0.
        let _ = PENDING.fetch_update(Ordering::Release, Ordering::Relaxed, |owed| owed.checked_sub(1));
    }
}

fn none_pending_within(limit: Duration) -> bool {
    let start = clock::now();
    while PENDING.load(Ordering::Acquire) > 0 {
        if clock::now().since(start) >= limit {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Resets the count in the child of a fork: pending explanations belong to the parent.
pub(crate) fn abandon() {
    PENDING.store(0, Ordering::Relaxed);
}

/// The cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The cause in words.
    pub text: String,
    /// Advice to the user.
    pub advice: String,
}

/// A request that completed in error, and everything known about it.
#[derive(Clone, Debug)]
pub struct Failure<'a> {
    /// The queue pair.
    pub qpn: Qpn,
    /// Transport service of the queue pair.
    pub service: Service,
    /// Attributes of the queue pair.
    pub attr: &'a QpAttr,
    /// The queue of the request.
    pub side: Side,
    /// Completion of the request.
    pub cqe: &'a Cqe,
    /// The cause, as known by this end, its peer or the network.
    pub cause: Option<Cause>,
    /// Earlier reasons of the peer.
    pub others: Vec<Cause>,
    /// True if the peer's process is on this host and records no reasons.
    pub is_mute: bool,
    /// Bytes of the longest datagram.
    pub port_mtu: u32,
    /// Earlier events of the queue pair, oldest first.
    pub history: Vec<String>,
}

/// Explains why a request failed.
pub fn failed(failure: &Failure<'_>) {
    let level = explains();
    if level == Explain::Off {
        return;
    }
    let cause = failure.cause.clone().unwrap_or_else(|| general(failure));
    let mut text = line(failure, &cause);
    if level == Explain::Full {
        details(failure, &cause, &mut text);
        let labels = std::iter::once("last events").chain(std::iter::repeat(""));
        let events = failure.history.iter().zip(labels);
        write_once(&text, &events.map(|(event, label)| format!("    {label:<14} {event}\n")).collect::<String>());
    } else {
        write_once(&text, "");
    }
}

/// Explains a problem that no request and no verb reports.
pub fn happened(cause: impl FnOnce() -> Cause) {
    let level = explains();
    if level == Explain::Off {
        return;
    }
    let Cause { text, advice } = cause();
    let mut text = format!("roxe: {text}\n");
    if level == Explain::Full {
        let _ = writeln!(text, "    {:<14} {advice}", "what to do");
    }
    write_once(&text, "");
}

/// An attempt to connect that failed.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Both ends, in words.
    pub what: String,
    /// The event that the program gets.
    pub event: &'static str,
    /// Status of the event.
    pub status: i32,
    /// Cause of the failure.
    pub cause: String,
    /// The private data of the other end.
    pub private_data: Option<String>,
    /// Advice to the user.
    pub advice: &'static str,
}

/// Explains why a connection attempt failed.
pub fn not_connected(connection: &Connection) {
    let level = explains();
    if level == Explain::Off {
        return;
    }
    let Connection { what, event, status, cause, private_data, advice } = connection;
    let data = private_data.as_ref().map_or_else(String::new, |data| format!(": private data {data}"));
    let mut text = format!("roxe: {what} failed: {event}, status {status}: {cause}{data}\n");
    if level == Explain::Full {
        let _ = writeln!(text, "    {:<14} {advice}", "what to do");
    }
    write_once(&text, "");
}

/// Returns one line with the request, both ends, the status and the cause.
fn line(failure: &Failure<'_>, cause: &Cause) -> String {
    let Failure { qpn, service, attr, side, cqe, .. } = failure;
    let what = if *side == Side::Recv { "receive" } else { operation(cqe) };
    let mut text = format!(
        "roxe: {what} with wr_id {} of queue pair {:#08x} ({}) failed: {} ({})",
        cqe.wr_id,
        qpn.get(),
        service.name(),
        name(cqe.status),
        cqe.status as u32
    );
    if !matches!(service, Service::Ud | Service::Raw) {
        let (from, to) = (attr.av.sgid.to_ip(), attr.av.dgid.to_ip());
        let _ = write!(text, "; peer {:#08x} at {to}, from {from}", attr.dest_qpn.get());
    }
    let _ = writeln!(text, ": {}", cause.text);
    text
}

fn details(failure: &Failure<'_>, cause: &Cause, text: &mut String) {
    let Failure { attr, others, cqe, .. } = failure;
    let mut line = |label: &str, value: &dyn std::fmt::Display| _ = writeln!(text, "    {label:<14} {value}");
    for other in others.iter().filter(|other| other.text != cause.text) {
        line("before that", &other.text);
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
    line("what to do", &cause.advice);
}

/// Returns the cause and advice that follow from the status alone.
fn general(failure: &Failure<'_>) -> Cause {
    Cause { text: general_text(failure), advice: general_advice(failure) }
}

fn general_text(failure: &Failure<'_>) -> String {
    let Failure { attr, side, service, .. } = failure;
    match (failure.cqe.status, service, side) {
        (WcStatus::RetryExcErr, ..) => {
            format!("no acknowledgment arrived after {} (retry_cnt); the cause is unknown", retries(attr.retry_cnt))
        }
        (WcStatus::RnrRetryExcErr, ..) => {
            let retries = retries(attr.rnr_retry);
            format!("the peer had no receive posted, even after {retries} (rnr_retry)")
        }
        (WcStatus::RemAccessErr, ..) => {
            "the peer refused the access: the key, its range or its rights do not allow it; the cause is unknown"
                .to_owned()
        }
        (WcStatus::LocAccessErr, ..) => {
            "a WRITE with immediate data of the peer was refused: its key, its range or its rights do not allow it"
                .to_owned()
        }
        (WcStatus::RemInvReqErr, ..) => "the peer refused the request as invalid; the cause is unknown".to_owned(),
        (WcStatus::RemOpErr, ..) => "the peer could not execute the request; the cause is unknown".to_owned(),
        (WcStatus::LocLenErr, Service::Ud, Side::Send) => {
            let max = failure.port_mtu;
            format!("the message is longer than the MTU of the port, {max} bytes; a datagram is one packet")
        }
        (WcStatus::LocLenErr, Service::Ud, Side::Recv) => {
            "the datagram does not fit into its receive, of which the first 40 bytes are for the GRH".to_owned()
        }
        (WcStatus::LocLenErr, Service::Rc | Service::XrcIni, Side::Send) => {
            "the list of an atomic has to have 8 bytes".to_owned()
        }
        (WcStatus::LocLenErr, _, Side::Recv) => {
            "the message is longer than the receive that was posted for it".to_owned()
        }
        (WcStatus::LocQpOpErr, ..) if attr.max_rd_atomic == 0 => {
            "max_rd_atomic of the queue pair is 0, so it does no READs and atomics".to_owned()
        }
        (WcStatus::LocLenErr, Service::Raw, Side::Send) => {
            "the frame is shorter than an Ethernet header, or longer than a frame can be".to_owned()
        }
        _ => "the cause is unknown".to_owned(),
    }
}

fn general_advice(failure: &Failure<'_>) -> String {
    const MUTE: &str = "; the peer's process on this host records no reasons: start it with `roxe run --explain` too";
    const REMOTE: &str = "; start the peer with `roxe run --explain` too if it is on this host, and capture both ends \
                       (`roxe run --capture FILE`, `roxe dump FILE`) to see what arrived";
    let Failure { side, service, .. } = failure;
    let status = failure.cqe.status;
    match (status, service, side) {
        (WcStatus::LocLenErr, Service::Ud, Side::Send) => {
            "send shorter datagrams; ibv_query_port has the MTU as active_mtu".to_owned()
        }
        (WcStatus::LocLenErr, Service::Ud, Side::Recv) => {
            "post receives that are 40 bytes longer than the longest datagram".to_owned()
        }
        (WcStatus::LocLenErr, Service::Rc | Service::XrcIni, Side::Send) => {
            "give the atomic a list of 8 bytes".to_owned()
        }
        (WcStatus::LocQpOpErr, ..) => "set max_rd_atomic (IBV_QP_MAX_QP_RD_ATOMIC) on the way to RTS".to_owned(),
        _ => {
            let is_remote = matches!(
                status,
                WcStatus::RetryExcErr
                    | WcStatus::RnrRetryExcErr
                    | WcStatus::RemAccessErr
                    | WcStatus::RemInvReqErr
                    | WcStatus::RemOpErr
            );
            let more = match failure.is_mute {
                _ if !is_remote => "",
                true => MUTE,
                false => REMOTE,
            };
            advice(status).to_owned() + more
        }
    }
}

fn retries(count: u8) -> String {
    if count == 1 { "1 retry".to_owned() } else { format!("{count} retries") }
}

/// Returns advice for requests that end with `status`.
pub const fn advice(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RetryExcErr => {
            "compare dest_qp_num, GIDs, PSNs and path_mtu of both ends; the peer has to be in RTR or RTS"
        }
        WcStatus::RnrRetryExcErr => {
            "post receives before the peer sends, or set rnr_retry to 7 (forever) and a suitable min_rnr_timer"
        }
        WcStatus::RemAccessErr => "compare rkey, remote address, length and the region's access flags at the peer",
        WcStatus::RemInvReqErr => {
            "compare the operation with qp_access_flags, max_dest_rd_atomic and receive sizes of the peer"
        }
        WcStatus::RemOpErr => {
            "register the memory of receives with IBV_ACCESS_LOCAL_WRITE in the domain of the queue pair, and keep all \
             memory mapped"
        }
        WcStatus::LocAccessErr => "see why the request of the peer failed",
        WcStatus::LocProtErr => {
            "compare lkey, address, length and protection domain of the list with the registered regions"
        }
        WcStatus::LocLenErr => "post receives that are long enough",
        _ => "see man ibv_poll_cq; `roxe run --explain` shows the earlier events",
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

/// Returns the text of `ibv_wc_status_str`.
pub(crate) fn name(status: WcStatus) -> &'static str {
    WC_STATUS_TEXTS.get(status as usize).and_then(|text| text.to_str().ok()).unwrap_or("unknown")
}

pub(crate) fn lock() -> &'static dyn Lockable {
    &WRITTEN
}

/// Writes a text and `more`, unless the text was written before or [`MAX_EXPLANATIONS`] is reached.
fn write_once(text: &str, more: &str) {
    let mut written = WRITTEN.lock();
    let written = written.get_or_insert_default();
    if written.len() < MAX_EXPLANATIONS && written.insert(text.to_owned()) {
        // Several processes write to one terminal.
        let text = text.replacen("roxe: ", &format!("roxe: process {}: ", std::process::id()), 1);
        // Written under the lock, so that texts of several threads do not interleave.
        standard_error::write(&format!("{text}{more}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(attr: &QpAttr, (service, side): (Service, Side), status: WcStatus, cause: Option<&str>) -> String {
        let cqe = Cqe { wr_id: 7, status, ..Cqe::default() };
        let cause = cause.map(|text| Cause { text: text.to_owned(), advice: String::new() });
        let (qpn, is_mute, port_mtu) = (Qpn::new(0x11), true, 1024);
        let (others, history) = (Vec::new(), Vec::new());
        let failure = Failure { qpn, service, attr, side, cqe: &cqe, cause, others, is_mute, port_mtu, history };
        let cause = failure.cause.clone().unwrap_or_else(|| general(&failure));
        let mut text = line(&failure, &cause);
        details(&failure, &cause, &mut text);
        text
    }

    #[test]
    fn line_has_both_ends_the_request_and_the_cause() {
        let attr = QpAttr { dest_qpn: Qpn::new(0x22), retry_cnt: 3, ..QpAttr::default() };
        let text = failure(&attr, (Service::Rc, Side::Send), WcStatus::RetryExcErr, None);
        for part in
            ["SEND with wr_id 7 ", "0x000011 (RC)", "0x000022", "(12)", "no acknowledgment arrived after 3 retries"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = failure(&attr, (Service::Rc, Side::Send), WcStatus::RetryExcErr, Some("it is in ERR"));
        assert!(text.contains(": it is in ERR\n") && !text.contains("no acknowledgment"), "{text}");
    }

    #[test]
    fn unknown_cause_has_advice_for_finding_it() {
        let attr = QpAttr::default();
        for status in [WcStatus::RetryExcErr, WcStatus::RemAccessErr, WcStatus::RemInvReqErr, WcStatus::RemOpErr] {
            let text = failure(&attr, (Service::Rc, Side::Send), status, None);
            assert!(text.contains("cause is unknown") && text.contains("records no reasons: start it with"), "{text}");
        }
    }

    #[test]
    fn datagram_length_error_has_the_cause_of_its_side() {
        let attr = QpAttr::default();
        let failure_on = |side| failure(&attr, (Service::Ud, side), WcStatus::LocLenErr, None);
        assert!(
            failure_on(Side::Send).contains("MTU of the port, 1024 bytes")
                && !failure_on(Side::Send).contains("receive")
        );
        assert!(failure_on(Side::Recv).contains("40 bytes are for the GRH") && !failure_on(Side::Recv).contains("MTU"));
    }

    #[test]
    fn process_exit_waits_for_pending_explanations() {
        let owed = owe();
        assert!(!none_pending_within(Duration::ZERO));
        let writer = std::thread::spawn(move || drop(owed));
        assert!(none_pending_within(Duration::from_secs(60)));
        writer.join().unwrap();
        let owed = owe();
        abandon();
        drop(owed);
        assert!(none_pending_within(Duration::ZERO));
    }
}
