//! Files in which a process records why it dropped packets and refused connections. A sender on the
//! same host reads them to explain its failed requests to the user (`ROXE_EXPLAIN`).
//!
//! The protocol gives a sender only a status, but the processes of one user on one host can share
//! files. Each process has one file per slot of queue pair numbers, in the user's private
//! directory. The first line has the process ID. Each further line has a queue pair number and a
//! [`Reason`], or a refused peer and the reason for the refusal. The file is locked (`man flock`)
//! while the process lives.

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

/// Maximum number of lines that a process writes, over all of its files.
const MAX_LINES: usize = 1000;
/// Maximum number of reasons reported for a queue pair. The newest are reported.
const MAX_REASONS: usize = 3;
/// Time for which the file of a killed process is kept. Its peers give up within minutes, and later
/// its slot may get another owner.
const RETENTION: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
struct OwnFiles {
    files: Vec<OwnFile>,
    /// Lines written so far, to avoid duplicates.
    lines: HashSet<(String, String)>,
}

#[derive(Debug)]
struct OwnFile {
    ifindex: u32,
    slot: Slot,
    path: PathBuf,
    file: File,
}

static OWN_FILES: Mutex<rank::Reasons, Option<OwnFiles>> = Mutex::new(None);

/// Returns the path of the file of `slot`; creates the folder if it is missing.
fn path(ifindex: u32, slot: Slot) -> io::Result<PathBuf> {
    let folder = common_dir()?.join("reasons");
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => Err(cause),
        _ => Ok(folder.join(format!("{}{:03x}", name_prefix(ifindex)?, slot.get()))),
    }
}

/// Returns the prefix of the file names of this interface. It has the network namespace, since
/// namespaces may share the directory and the numbers of interfaces and slots.
fn name_prefix(ifindex: u32) -> io::Result<String> {
    Ok(format!("{:x}-{ifindex}-", named::namespace()?))
}

/// Creates the file of `slot`, which this process has claimed.
pub fn create_file(ifindex: u32, slot: Slot) {
    if explains() == Explain::Off {
        return;
    }
    remove_stale_files(RETENTION);
    // Best effort: without the file, explanations are shorter.
    if let Ok(file) = create(ifindex, slot) {
        at_exit(Stage::Clean, remove);
        OWN_FILES.lock().get_or_insert_default().files.push(file);
    }
}

/// Removes files of killed processes that were last written longer than `retention` ago.
fn remove_stale_files(retention: Duration) {
    let Ok(files) = common_dir().and_then(|folder| fs::read_dir(folder.join("reasons"))) else { return };
    for path in files.flatten().map(|file| file.path()) {
        let is_stale = |file: File| {
            let age = file.metadata().ok()?.modified().ok()?.elapsed().ok()?;
            (age > retention && file.try_lock_shared().is_ok()).then_some(())
        };
        if File::open(&path).ok().and_then(is_stale).is_some() {
            let _ = fs::remove_file(path);
        }
    }
}

fn create(ifindex: u32, slot: Slot) -> io::Result<OwnFile> {
    let path = path(ifindex, slot)?;
    // An existing file is that of a killed process. A reader that has opened it can still read it.
    let _ = fs::remove_file(&path);
    let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
    file.try_lock()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(OwnFile { ifindex, slot, path, file })
}

/// Reason why a responder dropped a packet, with data for the requester's explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Status of the request that fails because of the drop.
    pub status: WcStatus,
    /// `dest_qp_num` and `rq_psn` of the responder, if they may be the cause.
    pub expects: Option<(Qpn, Psn)>,
    /// Cause of the drop, for the user.
    pub text: String,
    /// Change that the user can make.
    pub advice: String,
}

impl Reason {
    /// Parses the part of a line that follows the queue pair number.
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

/// Separates the text from the advice.
const SEPARATOR: char = '\t';

/// The statuses that a responder can cause.
const STATUSES: [WcStatus; 5] = [
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
];

/// Records the `reason` for dropping a packet to `qpn`, a queue pair of this process. `reason` is
/// called only if explanations are on.
pub fn record_drop(ifindex: u32, qpn: Qpn, reason: impl FnOnce() -> Option<Reason>) {
    write(ifindex, Some(Slot::of(qpn)), || Some((format!("{:x}", qpn.get()), reason()?.to_string())));
}

/// Records the `reason` for refusing a connection with the queue pair `peer`.
pub fn record_refusal(ifindex: u32, peer: Qpn, reason: impl FnOnce() -> String) {
    write(ifindex, None, || Some((refusal_key(peer), reason())));
}

/// Returns the first word of a line about a refusal.
fn refusal_key(peer: Qpn) -> String {
    format!("refused-{:x}", peer.get())
}

/// Writes a line into the file of `slot`, or of any slot.
fn write(ifindex: u32, slot: Option<Slot>, line: impl FnOnce() -> Option<(String, String)>) {
    if explains() == Explain::Off {
        return;
    }
    let Some(line) = line() else { return };
    let mut own_files = OWN_FILES.lock();
    let Some(OwnFiles { files, lines }) = &mut *own_files else { return };
    let is_selected = |own: &&mut OwnFile| own.ifindex == ifindex && slot.is_none_or(|slot| slot == own.slot);
    if lines.len() < MAX_LINES
        && let Some(OwnFile { file, .. }) = files.iter_mut().find(is_selected)
        && lines.insert(line.clone())
    {
        let (key, reason) = line;
        let _ = writeln!(file, "{key} {reason}");
    }
}

/// Returns the reason why a process of this host refused a connection with `qpn`.
pub fn find_refusal(ifindex: u32, qpn: Qpn) -> Option<String> {
    let (folder, key, prefix) = (common_dir().ok()?.join("reasons"), refusal_key(qpn), name_prefix(ifindex).ok()?);
    let files = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(&prefix));
    let reason = |text: String| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' ')).filter(|(word, _)| *word == key);
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

/// Returns the owner of `qpn` on this host, and the owner's newest reasons for dropping packets to
/// `qpn` that cause `status`, newest last.
pub fn find_drops(ifindex: u32, qpn: Qpn, status: WcStatus) -> (Owner, Vec<Reason>) {
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

/// Returns true if `process` is stopped by a signal or a debugger (`man proc_pid_stat`).
fn is_stopped(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
}

fn remove() {
    if let Some(own_files) = OWN_FILES.try_lock().and_then(|mut own_files| own_files.take()) {
        own_files.files.iter().for_each(|own| _ = fs::remove_file(&own.path));
    }
}

/// Returns the lock of the files, for the fork handlers.
pub fn lock() -> &'static dyn Lockable {
    &OWN_FILES
}

/// Forgets the parent's files, in the child of a fork.
pub fn abandon() {
    if let Some(mut own_files) = OWN_FILES.try_lock() {
        *own_files = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_net::slot::SlotSocket;
    use std::process::Command;
    use std::time::SystemTime;

    /// Returns the index of a missing interface that concurrent test processes do not use.
    fn unused_ifindex(number: u32) -> u32 {
        0x4000_0000 | std::process::id() << 4 | number
    }

    const STATUS: WcStatus = WcStatus::RetryExcErr;

    fn reason(status: WcStatus, number: u32) -> Reason {
        let expects = (number & 1 == 0).then(|| (Qpn::new(0x22), Psn::new(0x33)));
        Reason { status, expects, text: format!("reason {number}"), advice: "change it".to_owned() }
    }

    /// Simulates the death of the process that owns `file`. Unlocks the file instead of closing it,
    /// since a child forked by another test may share the lock until it executes another program.
    fn simulate_death(file: File) {
        file.unlock().unwrap();
    }

    #[test]
    fn unowned_qpn_differs_from_qpn_of_mute_owner() {
        let ifindex = unused_ifindex(0);
        assert_eq!(find_drops(ifindex, Qpn::new(0x123_456), STATUS), (Owner::None, vec![]));
        let mute = SlotSocket::claim_one(ifindex, Slot::new(0x123)).unwrap();
        assert_eq!(find_drops(ifindex, Qpn::new(0x123_456), STATUS), (Owner::Mute, vec![]));
        // A killed process has left its reasons, and another one owns its slot.
        let OwnFile { path, mut file, .. } = create(ifindex, Slot::new(0x123)).unwrap();
        writeln!(file, "123456 {}", reason(STATUS, 1)).unwrap();
        simulate_death(file);
        assert_eq!(find_drops(ifindex, Qpn::new(0x123_456), STATUS), (Owner::Mute, vec![]));
        drop(mute);
        assert!(
            matches!(find_drops(ifindex, Qpn::new(0x123_456), STATUS), (Owner::Dead(_), reasons) if reasons.len() == 1)
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn reasons_of_running_process_match_status() {
        let (ifindex, slot) = (unused_ifindex(1), Slot::new(0x321));
        let OwnFile { path, mut file, .. } = create(ifindex, slot).unwrap();
        for number in 0..5 {
            writeln!(file, "{:x} {}", slot.qpn(7).get(), reason(STATUS, number)).unwrap();
            writeln!(file, "{:x} {}", slot.qpn(7).get(), reason(WcStatus::RnrRetryExcErr, number)).unwrap();
        }
        writeln!(file, "{:x} {}", slot.qpn(8).get(), reason(STATUS, 9)).unwrap();
        writeln!(file, "{} the backlog is full", refusal_key(slot.qpn(7))).unwrap();
        assert_eq!(
            find_drops(ifindex, slot.qpn(7), STATUS),
            (Owner::Running, [2, 3, 4].map(|number| reason(STATUS, number)).to_vec())
        );
        assert_eq!(find_drops(ifindex, slot.qpn(7), WcStatus::RemOpErr), (Owner::Running, vec![]));
        assert_eq!(find_refusal(ifindex, slot.qpn(7)).as_deref(), Some("the backlog is full"));
        assert_eq!(find_refusal(ifindex, slot.qpn(8)), None);
        simulate_death(file);
        assert_eq!(find_drops(ifindex, slot.qpn(7), STATUS).0, Owner::Dead(std::process::id().to_string()));
        fs::remove_file(path).unwrap();
    }

    /// An interface of another network namespace may have the same index, and thus the same file
    /// name. The test starts itself again in such a namespace, which needs root.
    #[test]
    fn other_network_namespace_has_its_own_files() {
        const CHILD_IFINDEX: &str = "ROXE_TEST_INTERFACE";
        let slot = Slot::new(0x324);
        if let Ok(ifindex) = std::env::var(CHILD_IFINDEX) {
            let ifindex = ifindex.parse().unwrap();
            assert_eq!(find_drops(ifindex, slot.qpn(7), STATUS).0, Owner::None);
            assert_eq!(find_refusal(ifindex, slot.qpn(7)), None);
            fs::remove_file(create(ifindex, slot).unwrap().path).unwrap();
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
        let OwnFile { path, mut file, .. } = create(unused_ifindex(3), slot).unwrap();
        writeln!(file, "{} the backlog is full", refusal_key(slot.qpn(7))).unwrap();
        let name = std::thread::current().name().unwrap().to_owned();
        let inside = unshare()
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .env(CHILD_IFINDEX, unused_ifindex(3).to_string())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&inside.stdout);
        assert!(inside.status.success() && output.contains("1 passed"), "{output}");
        assert_eq!(find_refusal(unused_ifindex(3), slot.qpn(7)).as_deref(), Some("the backlog is full"));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn sweep_removes_old_files_of_dead_processes() {
        let ifindex = unused_ifindex(2);
        let [alive, killed] = [0x322, 0x323].map(|slot| create(ifindex, Slot::new(slot)).unwrap());
        let owner = |slot: u16| find_drops(ifindex, Slot::new(slot).qpn(7), STATUS).0;
        drop(killed.file);
        remove_stale_files(RETENTION);
        assert!(matches!(owner(0x323), Owner::Dead(_)), "not long ago");
        let long_ago = SystemTime::now() - 2 * RETENTION;
        for path in [&alive.path, &killed.path] {
            File::options().append(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        remove_stale_files(RETENTION);
        assert_eq!((owner(0x323), owner(0x322)), (Owner::None, Owner::Running));
        fs::remove_file(alive.path).unwrap();
    }
}
