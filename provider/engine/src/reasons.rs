//! Why this process dropped or refused packets, for the process that sent them and wants to explain
//! to its user why they failed (`ROXE_EXPLAIN`).
//!
//! A protocol tells a sender little or nothing, and must not; but on one host both ends belong to
//! one user. So each process has a file in the folder that only this user can enter: its first line
//! names the process, each further one a queue pair number and a reason, or the number of a peer
//! and why it was refused. Its lock (`man flock`) says that the process is alive. Touches these
//! files.

use roxe_base::config::Explain;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_check::explain::explains;
use roxe_net::named;
use roxe_net::runtime_dir::common_dir;
use roxe_net::slot::Slot;
use roxe_wire::Qpn;
use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

/// Reasons that a process writes down; a peer that is flooded looks for the first ones.
const LIMIT: usize = 1000;
/// Reasons of one queue pair that are told: the last ones.
const TOLD: usize = 3;
/// How long the file of a process that was killed is kept: its peers give up within minutes, and
/// later its slot may be anybody's guess.
const KEPT: Duration = Duration::from_secs(600);

/// The files of this process.
#[derive(Debug, Default)]
struct Written {
    files: Vec<Own>,
    /// What is in them.
    lines: HashSet<(String, String)>,
}

/// The file of one slot of this process.
#[derive(Debug)]
struct Own {
    ifindex: u32,
    slot: Slot,
    path: PathBuf,
    file: File,
}

static WRITTEN: Mutex<rank::Reasons, Option<Written>> = Mutex::new(None);

/// Where the reasons of the process that owns `slot` are.
fn path(ifindex: u32, slot: Slot) -> io::Result<PathBuf> {
    let folder = common_dir()?.join("reasons");
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => Err(cause),
        _ => Ok(folder.join(format!("{}{:03x}", names_of(ifindex)?, slot.get()))),
    }
}

/// How the names of all files begin that are of this interface. Other network namespaces have the
/// same folder, numbers of interfaces and slots.
fn names_of(ifindex: u32) -> io::Result<String> {
    Ok(format!("{:x}-{ifindex}-", named::namespace()?))
}

/// This process has taken `slot`, and its peers may ask for reasons.
pub(crate) fn begin(ifindex: u32, slot: Slot) {
    if explains() == Explain::Off {
        return;
    }
    sweep(KEPT);
    // Who cannot have such a file explains less.
    if let Ok(entry) = open(ifindex, slot) {
        at_exit(Stage::Clean, remove);
        WRITTEN.lock().get_or_insert_default().files.push(entry);
    }
}

/// Removes the files of processes that were killed, and that nobody has written to for so long.
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
    // A file that is there is that of a process which died; its readers keep what they have.
    let _ = fs::remove_file(&path);
    let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
    file.try_lock()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Own { ifindex, slot, path, file })
}

/// A packet for `qpn`, which is or would be in this process, was not taken. Nothing is put together
/// unless somebody may ask for the `reason`.
pub fn note(ifindex: u32, qpn: Qpn, reason: impl FnOnce() -> Option<String>) {
    write(ifindex, Some(Slot::of(qpn)), || Some((format!("{:x}", qpn.get()), reason()?)));
}

/// This process has refused to connect to the queue pair `peer`, and its program does not know.
pub fn note_refusal(ifindex: u32, peer: Qpn, reason: impl FnOnce() -> String) {
    write(ifindex, None, || Some((refused(peer), reason())));
}

/// What stands in front of the reason why nobody connects to `peer`.
fn refused(peer: Qpn) -> String {
    format!("refused-{:x}", peer.get())
}

/// Writes a line into the file of `slot`, or of any.
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

/// Why a process of this host has refused to connect to `qpn`, for a reason that its program does
/// not know.
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

/// What the process that owns `qpn` on this host, an address of which its address is, has to say of
/// packets for it: the last thing last.
pub fn of(ifindex: u32, qpn: Qpn) -> Vec<String> {
    let slot = Slot::of(qpn);
    let read = path(ifindex, slot).and_then(|path| Ok((fs::read_to_string(&path)?, File::open(&path)?)));
    let Ok((text, file)) = read else {
        return vec![format!("no process of this user on this host has the queue pair {:#x}", qpn.get())];
    };
    let (process, lines) = text.split_once('\n').unwrap_or((&text, ""));
    let mut said: Vec<String> = lines
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(number, _)| u32::from_str_radix(number, 16) == Ok(qpn.get()))
        .map(|(_, reason)| reason.to_owned())
        .collect();
    said.drain(..said.len().saturating_sub(TOLD));
    if file.try_lock_shared().is_ok() {
        said.push(format!("process {process}, which had the queue pair {:#x}, has died", qpn.get()));
    } else if is_stopped(process) {
        said.push(format!("process {process}, which has the queue pair {:#x}, is stopped", qpn.get()));
    }
    said
}

/// Whether a process is stopped by a signal or a debugger (`man proc_pid_stat`).
fn is_stopped(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
}

/// The process ends.
fn remove() {
    if let Some(written) = WRITTEN.try_lock().and_then(|mut written| written.take()) {
        written.files.iter().for_each(|own| _ = fs::remove_file(&own.path));
    }
}

/// The lock of the files, for a fork.
pub fn lock() -> &'static dyn Lockable {
    &WRITTEN
}

/// In the child of a fork: the files are the parent's.
pub fn abandon() {
    if let Some(mut written) = WRITTEN.try_lock() {
        *written = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::SystemTime;

    /// An interface that is not there, and which other processes that run these tests do not name.
    fn nowhere(number: u32) -> u32 {
        0x4000_0000 | std::process::id() << 4 | number
    }

    #[test]
    fn a_queue_pair_of_nobody_is_said_to_be_nobodys() {
        let said = of(nowhere(0), Qpn::new(0x123_456));
        assert!(said.len() == 1 && said[0].contains("no process") && said[0].contains("0x123456"), "{said:?}");
    }

    #[test]
    fn a_process_is_seen_to_be_alive_by_its_lock_and_its_last_reasons_are_told() {
        let (ifindex, slot) = (nowhere(1), Slot::new(0x321));
        let Own { path, mut file, .. } = open(ifindex, slot).unwrap();
        for number in 0..5 {
            writeln!(file, "{:x} reason {number}", slot.qpn(7).get()).unwrap();
        }
        writeln!(file, "{:x} of another", slot.qpn(8).get()).unwrap();
        writeln!(file, "{} the backlog is full", refused(slot.qpn(7))).unwrap();
        assert_eq!(of(ifindex, slot.qpn(7)), ["reason 2", "reason 3", "reason 4"]);
        assert_eq!(of_refusal(ifindex, slot.qpn(7)).as_deref(), Some("the backlog is full"));
        assert_eq!(of_refusal(ifindex, slot.qpn(8)), None);
        drop(file);
        assert!(of(ifindex, slot.qpn(7)).last().unwrap().contains("has died"));
        fs::remove_file(path).unwrap();
    }

    /// The same name as another process in a namespace of its own, as root: that of this test,
    /// which is started again there.
    #[test]
    fn a_process_of_another_network_namespace_neither_takes_the_file_nor_is_asked() {
        const INSIDE: &str = "ROXE_TEST_INTERFACE";
        let slot = Slot::new(0x324);
        if let Ok(ifindex) = std::env::var(INSIDE) {
            let ifindex = ifindex.parse().unwrap();
            assert!(of(ifindex, slot.qpn(7)).last().unwrap().contains("no process"));
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
            eprintln!("skipped: a network namespace takes root");
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
        let said = String::from_utf8_lossy(&inside.stdout);
        assert!(inside.status.success() && said.contains("1 passed"), "{said}");
        assert_eq!(of_refusal(nowhere(3), slot.qpn(7)).as_deref(), Some("the backlog is full"));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_was_killed_long_ago_is_forgotten_and_who_lives_is_not() {
        let ifindex = nowhere(2);
        let [alive, killed] = [0x322, 0x323].map(|slot| open(ifindex, Slot::new(slot)).unwrap());
        let said = |slot: u16| of(ifindex, Slot::new(slot).qpn(7));
        drop(killed.file);
        sweep(KEPT);
        assert!(said(0x323).last().unwrap().contains("has died"), "not long ago");
        let long_ago = SystemTime::now() - 2 * KEPT;
        for path in [&alive.path, &killed.path] {
            File::options().append(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        sweep(KEPT);
        assert!(said(0x323).last().unwrap().contains("no process"));
        assert_eq!(said(0x322), [""; 0], "it lives, and has nothing to say");
        fs::remove_file(alive.path).unwrap();
    }
}
