//! `roxe tell-bypass`: reports programs that load another libibverbs than roxe's, or none, with the
//! reason. [`crate::unused`] reports programs that load roxe's library and open no device.
//!
//! ```text
//! roxe run ── starts ──► roxe tell-bypass PID ...     another process group, child of init
//!     │ becomes the program              │ reads the mappings of PID and its children
//!     └─ keeps its process id            │ until one has a libibverbs, or PID ends;
//!                                        └ then the files of the programs that ran
//! ```
//!
//! No code of roxe runs in a program that bypasses it, so this process reports the program. A
//! program that ends between two checks is judged by its file, if no process opened roxe's library
//! (`man inotify`; the watch is the standard input of this process).

use crate::asks::{self, VerbsUse};
use crate::output::Result;
use crate::unused::{self, Opened};
use crate::{child, library, program};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use roxe_base::exit::process_end;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Name prefix of every libibverbs.
const VERBS: &str = "libibverbs";
/// Name that programs ask the loader for.
const SONAME: &str = "libibverbs.so.1";
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(250);
/// The pause between two checks is the time so far, divided by this number, within [`MIN_PAUSE`]
/// and [`MAX_PAUSE`]: most programs load their libraries at once, some much later.
const PAUSE_DIVISOR: u32 = 16;
const LOST_PATH: &str = "its environment has lost LD_LIBRARY_PATH, or has another libibverbs first in it (env -i, sudo, or \
                    a script that sets it); start `roxe run` after that";
pub(crate) const STATIC: &str = "it is linked statically, so it does not load libibverbs";
const LINKED_INSIDE: &str =
    "rdma-core is linked into that file, so it does not load libibverbs; build it against libibverbs.so.1";
/// `AT_SECURE` (`man getauxval`).
const AT_SECURE: u64 = 23;

/// Arguments of `roxe tell-bypass`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Process that becomes the program.
    pub(crate) pid: u32,
    /// Roxe's library.
    pub(crate) library: PathBuf,
    /// Folder in which the loader finds it.
    pub(crate) folder: PathBuf,
    /// File of the program, if a bypass is still to be reported.
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    /// File of the program, if it is to be reported that it opened no device.
    #[arg(long)]
    pub(crate) unused: Option<PathBuf>,
    /// File of `--report`, which is not written if no device is opened.
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
    /// Do not look at processes, only wait for the end.
    #[arg(long)]
    pub(crate) blind: bool,
    /// Print more lines of explanation.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Do the work in a child of init.
    #[arg(long)]
    pub(crate) detach: bool,
}

impl Args {
    /// Returns the command that does the work, without `--detach`.
    fn command(&self) -> Command {
        let mut command = child::background("tell-bypass");
        command.arg(self.pid.to_string()).args([&self.library, &self.folder]);
        for (name, file) in [("--program", &self.program), ("--unused", &self.unused), ("--report", &self.report)] {
            command.args(file.iter().flat_map(|file| [OsStr::new(name), file.as_os_str()]));
        }
        let flags = [("--blind", self.blind), ("--explain", self.explain)];
        command.args(flags.into_iter().filter_map(|(name, is_set)| is_set.then_some(name)));
        command
    }
}

/// Starts the process that watches the program which this process is about to become. From here on
/// only the program may open the library and devices, because the watch ascribes each opening to
/// it.
pub(crate) fn watch(args: &Args) -> io::Result<()> {
    let opened = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    opened.add_watch(&args.library, AddWatchFlags::IN_OPEN)?;
    opened.add_watch(&roxe_provider::watched_dir()?, AddWatchFlags::IN_OPEN)?;
    args.command().arg("--detach").stdin(OwnedFd::from(opened)).status().map(drop)
}

/// Watches until a process of the program has loaded a libibverbs, or the program has ended.
pub(crate) fn report(args: &Args) -> Result {
    if args.detach {
        // The first byte shows that the watching process runs; only then may the program start.
        let mut watcher = args.command().stdout(Stdio::piped()).spawn()?;
        watcher.stdout.take().map(|mut pipe| pipe.read(&mut [0])).transpose()?;
        return Ok(());
    }
    println!();
    let ours = fs::metadata(&args.library)?;
    let mut ran = BTreeMap::from_iter(args.program.iter().map(|file| (file.clone(), true)));
    let was_reported = watch_processes(args, &ours, &mut ran);
    let opened = Opened::read(&mut io::stdin());
    let is_unused = !opened.device && !is_in_use(&ours);
    if let Some(file) = args.report.as_ref().filter(|_| is_unused) {
        eprintln!(
            "roxe run: --report: {} was not written: no process opened a device, so nothing was checked",
            file.display()
        );
    }
    if was_reported {
        return Ok(());
    }
    let missing = || ran.iter().find_map(|(file, finds_roxe)| Some((file, reason_by_file(file, *finds_roxe)?)));
    if let Some((file, why)) = missing().filter(|_| !opened.library) {
        eprintln!("roxe run: {} has ended without loading roxe: {why}", file.display());
    } else if let Some(program) = args.unused.as_ref().filter(|_| is_unused) {
        unused::report(program, ran.keys(), opened, args.explain);
    }
    Ok(())
}

/// Watches until the program has ended. Returns true if one of its processes was reported.
fn watch_processes(args: &Args, ours: &Metadata, ran: &mut BTreeMap<PathBuf, bool>) -> bool {
    let (begin, mut checks, mut searched) = (Instant::now(), !args.blind, BTreeSet::new());
    let end = process_end(args.pid).ok();
    while is_running(args.pid) {
        for pid in if checks { with_descendants(args.pid) } else { vec![] } {
            match loaded(pid, ours) {
                Loaded::Nothing => {
                    record_program(pid, &args.folder, ran);
                    let modules = modules(pid).into_iter().filter(|path| searched.insert(path.clone()));
                    if let Some(path) = modules.into_iter().find(|path| asks::has_verbs_inside(path)) {
                        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
                        eprintln!("roxe run: {}", bypass_text(&program, pid, &path, LINKED_INSIDE));
                        return true;
                    }
                }
                Loaded::Ours => {
                    record_program(pid, &args.folder, ran);
                    checks = false;
                }
                Loaded::Other(path) => {
                    // `explain` returns nothing for a process that has ended meanwhile.
                    let Some(text) = explain(pid, &path, &args.folder) else { continue };
                    eprintln!("roxe run: {text}");
                    return true;
                }
            }
        }
        pause(end.as_ref(), (begin.elapsed() / PAUSE_DIVISOR).clamp(MIN_PAUSE, MAX_PAUSE));
    }
    false
}

/// Waits for `time`, or until the process behind `end` has ended.
fn pause(end: Option<&OwnedFd>, time: Duration) {
    let Some(end) = end else { return sleep(time) };
    let mut fds = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
    _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO));
}

/// Returns true until the last thread of a process has ended. A zombie counts as ended: its parent
/// may wait for it only after standard error is closed, which this process holds open.
fn is_running(pid: u32) -> bool {
    let folder = Path::new("/proc").join(pid.to_string());
    let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
    match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        None | Some('X') => false,
        // The first thread may end before others.
        Some('Z') => fs::read_dir(folder.join("task")).is_ok_and(|tasks| tasks.count() > 1),
        Some(_) => true,
    }
}

/// Returns true if a process, such as a daemon, still has roxe's library mapped.
fn is_in_use(ours: &Metadata) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.any(|pid| loaded(pid, ours) == Loaded::Ours)
}

/// Records the program of a process, and true if the loader finds roxe by the process's
/// environment.
fn record_program(pid: u32, folder: &Path, ran: &mut BTreeMap<PathBuf, bool>) {
    // Of a set-uid program only the command line is readable.
    let words = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let called = || program::find(OsStr::from_bytes(words().split(|byte| *byte == 0).next().unwrap_or_default()));
    let Some(file) = fs::read_link(format!("/proc/{pid}/exe")).ok().or_else(called) else { return };
    ran.entry(file).or_insert_with(|| {
        fs::read(format!("/proc/{pid}/environ")).map_or(true, |environment| finds_roxe(&environment, folder))
    });
}

/// Returns why a program with verbs did not load roxe, judged by its file.
fn reason_by_file(file: &Path, finds_roxe: bool) -> Option<String> {
    let verbs_use = asks::verbs_use(file)?;
    if program::is_static(file) {
        return Some(STATIC.to_owned());
    }
    program::bypass_by_loader(file)
        .or_else(|| (verbs_use == VerbsUse::Links && !finds_roxe).then(|| LOST_PATH.to_owned()))
}

/// Returns a process and its descendants (`man proc_pid_task`).
fn with_descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(parent) = all.get(at) {
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().filter_map(Result::ok);
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children = children.collect::<Vec<_>>().join(" ");
        all.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        at += 1;
    }
    all
}

/// The libibverbs of a process.
#[derive(Debug, PartialEq, Eq)]
enum Loaded {
    Nothing,
    Ours,
    Other(PathBuf),
}

fn loaded(pid: u32, ours: &Metadata) -> Loaded {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    // In a view, roxe's library is bound over other files.
    let is_ours = |path: &Path| {
        let inside = root.join(path.strip_prefix("/").unwrap_or(path));
        fs::metadata(inside).is_ok_and(|meta| (meta.dev(), meta.ino()) == (ours.dev(), ours.ino()))
    };
    // The file is unreadable if the process has ended or belongs to another user.
    fs::read(format!("/proc/{pid}/maps")).map_or(Loaded::Nothing, |maps| find_libibverbs(&maps, is_ours))
}

/// Finds the libibverbs among mapped files (`man proc_pid_maps`).
fn find_libibverbs(maps: &[u8], is_ours: impl Fn(&Path) -> bool) -> Loaded {
    let mut other = None;
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b'/') else { continue };
        let path = Path::new(OsStr::from_bytes(line.get(at..).unwrap_or_default()));
        let name = path.file_name().unwrap_or_default().as_bytes();
        // Extension modules of pyverbs are called libibverbs_enums and libibverbs.cpython.
        let is_verbs =
            name.strip_prefix(VERBS.as_bytes()).is_some_and(|end| end.starts_with(b".so") || end.starts_with(b"-"));
        if (is_verbs || name.starts_with(library::LIBRARY.as_bytes())) && is_ours(path) {
            return Loaded::Ours;
        }
        if is_verbs {
            other = Some(path.to_owned());
        }
    }
    other.map_or(Loaded::Nothing, Loaded::Other)
}

/// Explains in one line why a process loaded another libibverbs; `None` if the process has ended.
fn explain(pid: u32, path: &Path, folder: &Path) -> Option<String> {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let (environment, vector) = (read("environ"), read("auxv"));
    // The process still had an auxiliary vector, so it had not ended when its environment was read.
    if vector.is_empty() {
        return None;
    }
    let why = reason(path, has_rights(&vector), finds_roxe(&environment, folder));
    Some(bypass_text(&program, pid, path, why))
}

fn bypass_text(program: &Path, pid: u32, path: &Path, why: &str) -> String {
    format!("{} (process {pid}) has loaded {} instead of roxe: {why}", program.display(), path.display())
}

/// Returns the libraries outside the system's folders whose code a process has mapped. Returns
/// none while the process becomes another program.
fn modules(pid: u32) -> BTreeSet<PathBuf> {
    let program = || fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let (before, maps) = (program(), fs::read(format!("/proc/{pid}/maps")).unwrap_or_default());
    if before != program() || fs::read_link("/proc/self/exe").is_ok_and(|own| own == before) {
        return BTreeSet::new();
    }
    let lines = maps.split(|byte| *byte == b'\n').filter(|line| line.windows(6).any(|part| part == b" r-xp "));
    let paths = lines.filter_map(|line| line.iter().position(|byte| *byte == b'/').and_then(|at| line.get(at..)));
    let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    paths.filter(|path| *path != before && !asks::FOLDERS.iter().any(|folder| path.starts_with(folder))).collect()
}

fn reason(path: &Path, has_rights: bool, finds_roxe: bool) -> &'static str {
    if has_rights {
        "it has rights of its own (set-uid, or capabilities by setcap), so the loader ignores LD_LIBRARY_PATH; start a \
         copy of it without them"
    } else if !finds_roxe {
        LOST_PATH
    } else if !path.file_name().is_some_and(|name| name.as_bytes().starts_with(SONAME.as_bytes())) {
        "it brings a copy of its own; start it with `roxe run --preload`"
    } else {
        "it was linked with a fixed library path (RPATH), or the path of the file; start it with `roxe run --preload`"
    }
}

/// Returns true if `LD_LIBRARY_PATH` has the folder, and no other libibverbs before it.
fn finds_roxe(environment: &[u8], folder: &Path) -> bool {
    let value = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"LD_LIBRARY_PATH="));
    let value = OsString::from_vec(value.unwrap_or_default().to_vec());
    let first = std::env::split_paths(&value).find(|entry| entry == folder || entry.join(SONAME).exists());
    first.is_some_and(|entry| entry == folder)
}

/// Returns true if the auxiliary vector makes the loader ignore the environment.
fn has_rights(vector: &[u8]) -> bool {
    let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    vector.chunks_exact(16).any(|entry| word(entry) == Some(AT_SECURE) && word(&entry[8..]) != Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zombie_is_not_running() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        assert!(is_running(child.id()));
        drop(child.stdin.take());
        // The output ends before the process does.
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        let start = Instant::now();
        while is_running(child.id()) {
            assert!(start.elapsed() < Duration::from_secs(20), "a zombie counts as running");
        }
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }

    #[test]
    fn other_libibverbs_is_found_only_without_ours() {
        let ours = |path: &Path| path == Path::new("/opt/lib/libroxe.so");
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 12  {path}\n");
        let own = line("/home/me/libs/libibverbs-1a2b3c4d.so.1.14");
        assert_eq!(find_libibverbs(line("/usr/lib/libc.so.6").as_bytes(), ours), Loaded::Nothing);
        let other = Loaded::Other("/home/me/libs/libibverbs-1a2b3c4d.so.1.14".into());
        assert_eq!(find_libibverbs(own.as_bytes(), ours), other);
        let modules = ["/x/pyverbs/libibverbs_enums.cpython-311.so", "/x/pyverbs/libibverbs.cpython-311.so"];
        assert_eq!(find_libibverbs(modules.map(line).concat().as_bytes(), ours), Loaded::Nothing);
        assert_eq!(find_libibverbs((own + &line("/opt/lib/libroxe.so")).as_bytes(), ours), Loaded::Ours);
    }

    #[test]
    fn reasons_say_what_to_do() {
        let system = Path::new("/usr/lib/libibverbs.so.1.14.50");
        let copy = Path::new("/x/libibverbs-1a2b3c4d.so.1");
        for (path, rights, finds_roxe, part) in [
            (system, true, false, "setcap"),
            (system, false, false, "env -i"),
            (system, false, true, "RPATH"),
            (copy, false, true, "a copy of its own"),
        ] {
            assert!(reason(path, rights, finds_roxe).contains(part), "{part}");
        }
    }

    #[test]
    fn environment_and_auxiliary_vector_are_parsed() {
        let environment = b"A=1\0LD_LIBRARY_PATH=/x:/roxe/lib\0B=2";
        assert!(finds_roxe(environment, Path::new("/roxe/lib")) && !finds_roxe(environment, Path::new("/roxe")));
        assert!(!finds_roxe(b"", Path::new("/roxe/lib")));
        let vector = |value: u64| [AT_SECURE, value, 0, 0].map(u64::to_ne_bytes).concat();
        assert!(has_rights(&vector(1)) && !has_rights(&vector(0)) && !has_rights(&[]));
    }

    #[test]
    fn ended_process_is_not_explained() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = child.id();
        let report = || explain(id, Path::new("/x/libibverbs-1a2b3c4d.so.1"), Path::new("/roxe/lib"));
        let while_it_runs = report();
        child.kill().unwrap();
        while fs::read(format!("/proc/{id}/auxv")).is_ok_and(|vector| !vector.is_empty()) {
            std::thread::yield_now();
        }
        let afterwards = report();
        child.wait().unwrap();
        assert!(while_it_runs.is_some_and(|text| text.contains("cat")));
        assert_eq!(afterwards, None);
    }

    #[test]
    fn descendants_include_children_and_the_process() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let me = std::process::id();
        let known = with_descendants(me).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(known && with_descendants(me).contains(&me));
    }
}
