//! Reasons for dropped or refused packets, left for the sending process on the same host to explain
//! to its user (`ROXE_EXPLAIN`).
//!
//! The protocol tells a sender little, but on one host both ends belong to one user. Each process
//! has a file in the user's private directory: the first line identifies the process, each further
//! one a queue pair number and a [`Reason`], or a refused peer and why. The file is locked (`man
//! flock`) while the process lives.

use roxe_base::config::Explain;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_check::explain::explains;
use roxe_net::named;
use roxe_net::runtime_dir::common_dir;
use roxe_net::slot::{Slot, is_owned};
use roxe_transport::wr::WcStatus;
use roxe_wire::{Psn, Qpn};
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: usize = 1000;
/// Maximum number of reasons reported for a queue pair: the last ones.
const MAX_REASONS: usize = 3;
/// Time for which the file of a killed process is kept: its peers give up within minutes, and its
/// slot may get another owner.
const KEPT: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
struct Written {
    files: Vec<Own>,
    /// Lines written so far, to avoid duplicates.
    lines: HashSet<(String, String)>,
}

#[derive(Debug)]
struct Own {
    ifindex: u32,
    slot: Slot,
    path: PathBuf,
    file: File,
}

static WRITTEN: Mutex<rank::Reasons, Option<Written>> = Mutex::new(None);

/// Returns the path of the file of the process that owns `slot`.
fn path(ifindex: u32, slot: Slot) -> io::Result<PathBuf> {
    let folder = common_dir()?.join("reasons");
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => Err(cause),
        _ => Ok(folder.join(format!("{}{:03x}", names_of(ifindex)?, slot.get()))),
    }
}

/// Returns the prefix of the file names of this interface. Network namespaces may share the
/// directory and the numbers of interfaces and slots.
fn names_of(ifindex: u32) -> io::Result<String> {
    Ok(format!("{:x}-{ifindex}-", named::namespace()?))
}

/// Creates the file of `slot`, which this process has claimed.
pub fn begin(ifindex: u32, slot: Slot) {
    if explains() == Explain::Off {
        return;
    }
    sweep(KEPT);
    // Best effort: without the file, explanations are shorter.
    if let Ok(entry) = open(ifindex, slot) {
        at_exit(Stage::Clean, remove);
        WRITTEN.lock().get_or_insert_default().files.push(entry);
    }
}

/// Removes files of killed processes that were last written longer ago than `kept`.
fn sweep(kept: Duration) {
    let Ok(files) = common_dir().and_then(|folder| fs::read_dir(folder.join("reasons"))) else { return };
    for path in files.flatten().map(|file| file.path()) {
        let is_left = |file: File| {
            let age = file.metadata().ok()?.modified().ok()?.elapsed().ok()?;
            (age > kept && file.try_lock_shared().is_ok()).then_some(())
        };
        if File::open(&path).ok().and_then(is_left).is_some() {
            let _ = fs::remove_file(path);
        }
    }
}

fn open(ifindex: u32, slot: Slot) -> io::Result<Own> {
    let path = path(ifindex, slot)?;
    // An existing file belonged to a process that has died; readers keep it open.
    let _ = fs::remove_file(&path);
    let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
    file.try_lock()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Own { ifindex, slot, path, file })
}

/// Reason for which a responder dropped a packet, with data for the requester's explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The status of the request that fails because of it.
    pub status: WcStatus,
    /// `dest_qp_num` and `rq_psn` of the responder, if they may be the cause.
    pub expects: Option<(Qpn, Psn)>,
    /// The reason in words.
    pub text: String,
    /// Advice.
    pub advice: String,
}

impl Reason {
    /// Parses a line after the queue pair number.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let mut number = || u32::from_str_radix(words.next()?, 16).ok();
        let (status, qpn, psn) = (number()?, number()?, number()?);
        let status = STATUSES.into_iter().find(|known| *known as u32 == status)?;
        let (text, advice) = words.next()?.split_once(SEPARATOR)?;
        let expects = (qpn != 0).then(|| (Qpn::new(qpn), Psn::new(psn)));
        Some(Self { status, expects, text: text.to_owned(), advice: advice.to_owned() })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (qpn, psn) = self.expects.map_or((0, 0), |(qpn, psn)| (qpn.get(), psn.get()));
        write!(f, "{:x} {qpn:x} {psn:x} {}{SEPARATOR}{}", self.status as u32, self.text, self.advice)
    }
}

const SEPARATOR: char = '\t';

/// The statuses that a responder can cause.
const STATUSES: [WcStatus; 5] = [
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
];

/// Records the `reason` for a dropped packet for `qpn`, a number of this process. `reason` is
/// called only if explanations are on.
pub fn note(ifindex: u32, qpn: Qpn, reason: impl FnOnce() -> Option<Reason>) {
    write(ifindex, Some(Slot::of(qpn)), || Some((format!("{:x}", qpn.get()), reason()?.to_string())));
}

/// Records the `reason` for refusing a connection with the queue pair `peer`.
pub fn note_refusal(ifindex: u32, peer: Qpn, reason: impl FnOnce() -> String) {
    write(ifindex, None, || Some((refused(peer), reason())));
}

/// Returns the first word of a line about a refusal.
fn refused(peer: Qpn) -> String {
    format!("refused-{:x}", peer.get())
}

/// Writes a line into the file of `slot`, or of any slot.
fn write(ifindex: u32, slot: Option<Slot>, line: impl FnOnce() -> Option<(String, String)>) {
    if explains() == Explain::Off {
        return;
    }
    let Some(line) = line() else { return };
    let mut written = WRITTEN.lock();
    let Some(Written { files, lines }) = &mut *written else { return };
    let is_its = |own: &&mut Own| own.ifindex == ifindex && slot.is_none_or(|slot| slot == own.slot);
    if lines.len() < LIMIT
        && let Some(Own { file, .. }) = files.iter_mut().find(is_its)
        && lines.insert(line.clone())
    {
        let (about, reason) = line;
        let _ = writeln!(file, "{about} {reason}");
    }
}

/// Returns the reason for which a process of this host refused a connection with `qpn`.
pub fn of_refusal(ifindex: u32, qpn: Qpn) -> Option<String> {
    let (folder, about, names) = (common_dir().ok()?.join("reasons"), refused(qpn), names_of(ifindex).ok()?);
    let files = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(&names));
    let reason = |text: String| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' ')).filter(|(of, _)| *of == about);
        lines.next_back().map(|(_, reason)| reason.to_owned())
    };
    files.filter_map(|file| fs::read_to_string(file.path()).ok()).find_map(reason)
}

/// State of the process that owns a queue pair number on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No process owns the number.
    None,
    /// The owner records no reasons, because its explanations are off.
    Mute,
    /// The owner runs and records reasons.
    Running,
    /// The owner, with this process id, was killed.
    Dead(String),
    /// The owner, with this process id, is stopped.
    Stopped(String),
}

/// Returns the owner of `qpn` on this host, and its last reasons for dropping packets for it that
/// cause `status`, newest last.
pub fn of(ifindex: u32, qpn: Qpn, status: WcStatus) -> (Owner, Vec<Reason>) {
    let slot = Slot::of(qpn);
    let read = path(ifindex, slot).and_then(|path| Ok((fs::read_to_string(&path)?, File::open(&path)?)));
    let Ok((text, file)) = read else {
        return (if is_owned(ifindex, slot) { Owner::Mute } else { Owner::None }, Vec::new());
    };
    let (process, lines) = text.split_once('\n').unwrap_or((&text, ""));
    let mut reasons: Vec<_> = lines
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(number, _)| u32::from_str_radix(number, 16) == Ok(qpn.get()))
        .filter_map(|(_, reason)| Reason::parse(reason))
        .filter(|reason| reason.status == status)
        .collect();
    reasons.drain(..reasons.len().saturating_sub(MAX_REASONS));
    let is_dead = file.try_lock_shared().is_ok();
    if is_dead && is_owned(ifindex, slot) {
        // Another process without explanations has claimed the slot since.
        return (Owner::Mute, Vec::new());
    }
    let owner = if is_dead {
        Owner::Dead(process.to_owned())
    } else if is_stopped(process) {
        Owner::Stopped(process.to_owned())
    } else {
        Owner::Running
    };
    (owner, reasons)
}

/// Returns true if a process is stopped by a signal or a debugger (`man proc_pid_stat`).
fn is_stopped(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
}

fn remove() {
    if let Some(written) = WRITTEN.try_lock().and_then(|mut written| written.take()) {
        written.files.iter().for_each(|own| _ = fs::remove_file(&own.path));
    }
}

/// Returns the lock of the files, for the fork handlers.
pub fn lock() -> &'static dyn Lockable {
    &WRITTEN
}

/// Forgets the parent's files in the child of a fork.
pub fn abandon() {
    if let Some(mut written) = WRITTEN.try_lock() {
        *written = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_net::slot::SlotSocket;
    use std::process::Command;
    use std::time::SystemTime;

    /// Returns the index of a missing interface that concurrent test processes do not use.
    fn nowhere(number: u32) -> u32 {
        0x4000_0000 | std::process::id() << 4 | number
    }

    const STATUS: WcStatus = WcStatus::RetryExcErr;

    fn reason(status: WcStatus, number: u32) -> Reason {
        let expects = (number & 1 == 0).then(|| (Qpn::new(0x22), Psn::new(0x33)));
        Reason { status, expects, text: format!("reason {number}"), advice: "change it".to_owned() }
    }

    /// Ends the process of `file`. Unlocks it, since a child forked by another test may share the
    /// lock until it executes another program.
    fn end(file: File) {
        file.unlock().unwrap();
    }

    #[test]
    fn unowned_numbers_differ_from_mute_owners() {
        let number = nowhere(0);
        assert_eq!(of(number, Qpn::new(0x123_456), STATUS), (Owner::None, vec![]));
        let mute = SlotSocket::claim_one(number, Slot::new(0x123)).unwrap();
        assert_eq!(of(number, Qpn::new(0x123_456), STATUS), (Owner::Mute, vec![]));
        // A killed process has left its reasons, and another one owns its slot.
        let Own { path, mut file, .. } = open(number, Slot::new(0x123)).unwrap();
        writeln!(file, "123456 {}", reason(STATUS, 1)).unwrap();
        end(file);
        assert_eq!(of(number, Qpn::new(0x123_456), STATUS), (Owner::Mute, vec![]));
        drop(mute);
        assert!(matches!(of(number, Qpn::new(0x123_456), STATUS), (Owner::Dead(_), reasons) if reasons.len() == 1));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn reasons_of_running_process_match_status() {
        let (ifindex, slot) = (nowhere(1), Slot::new(0x321));
        let Own { path, mut file, .. } = open(ifindex, slot).unwrap();
        for number in 0..5 {
            writeln!(file, "{:x} {}", slot.qpn(7).get(), reason(STATUS, number)).unwrap();
            writeln!(file, "{:x} {}", slot.qpn(7).get(), reason(WcStatus::RnrRetryExcErr, number)).unwrap();
        }
        writeln!(file, "{:x} {}", slot.qpn(8).get(), reason(STATUS, 9)).unwrap();
        writeln!(file, "{} the backlog is full", refused(slot.qpn(7))).unwrap();
        assert_eq!(
            of(ifindex, slot.qpn(7), STATUS),
            (Owner::Running, [2, 3, 4].map(|number| reason(STATUS, number)).to_vec())
        );
        assert_eq!(of(ifindex, slot.qpn(7), WcStatus::RemOpErr), (Owner::Running, vec![]));
        assert_eq!(of_refusal(ifindex, slot.qpn(7)).as_deref(), Some("the backlog is full"));
        assert_eq!(of_refusal(ifindex, slot.qpn(8)), None);
        end(file);
        assert_eq!(of(ifindex, slot.qpn(7), STATUS).0, Owner::Dead(std::process::id().to_string()));
        fs::remove_file(path).unwrap();
    }

    /// An interface of another network namespace may have the same index, and thus the same file
    /// name. The test starts itself again in such a namespace, which needs root.
    #[test]
    fn other_network_namespace_has_its_own_files() {
        const INSIDE: &str = "ROXE_TEST_INTERFACE";
        let slot = Slot::new(0x324);
        if let Ok(ifindex) = std::env::var(INSIDE) {
            let ifindex = ifindex.parse().unwrap();
            assert_eq!(of(ifindex, slot.qpn(7), STATUS).0, Owner::None);
            assert_eq!(of_refusal(ifindex, slot.qpn(7)), None);
            fs::remove_file(open(ifindex, slot).unwrap().path).unwrap();
            return;
        }
        let unshare = || {
            let mut command = Command::new("unshare");
            command.arg("--net");
            command
        };
        if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: a network namespace needs root");
            return;
        }
        let Own { path, mut file, .. } = open(nowhere(3), slot).unwrap();
        writeln!(file, "{} the backlog is full", refused(slot.qpn(7))).unwrap();
        let name = std::thread::current().name().unwrap().to_owned();
        let inside = unshare()
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .env(INSIDE, nowhere(3).to_string())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&inside.stdout);
        assert!(inside.status.success() && output.contains("1 passed"), "{output}");
        assert_eq!(of_refusal(nowhere(3), slot.qpn(7)).as_deref(), Some("the backlog is full"));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn sweep_removes_old_files_of_dead_processes() {
        let ifindex = nowhere(2);
        let [alive, killed] = [0x322, 0x323].map(|slot| open(ifindex, Slot::new(slot)).unwrap());
        let owner = |slot: u16| of(ifindex, Slot::new(slot).qpn(7), STATUS).0;
        drop(killed.file);
        sweep(KEPT);
        assert!(matches!(owner(0x323), Owner::Dead(_)), "not long ago");
        let long_ago = SystemTime::now() - 2 * KEPT;
        for path in [&alive.path, &killed.path] {
            File::options().append(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        sweep(KEPT);
        assert_eq!((owner(0x323), owner(0x322)), (Owner::None, Owner::Running));
        fs::remove_file(alive.path).unwrap();
    }
}
