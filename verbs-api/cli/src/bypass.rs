//! Programs that come to another libibverbs than ours, or to none: says which, and why; and hands
//! over to [`crate::unused`] those that come to ours.
//!
//! ```text
//! roxe run ── starts ──► roxe tell-bypass PID ...     another process group, child of init
//!     │ becomes the program              │ looks at what PID and its children have mapped,
//!     └─ keeps its process id            │ until one has a libibverbs, or PID ends;
//!                                        └ then at the files of those that ran
//! ```
//!
//! Such a program finds no device, or the hardware's, and nothing of ours runs in it that could
//! say so. One that ends between two looks is known by its file, if that links libibverbs, while
//! nobody has opened ours (`man inotify`; the standard input of the looking process). Touches
//! `/proc`.

use crate::asks::{self, Asks};
use crate::unused::{self, Opened};
use crate::{library, program};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use roxe_base::exit::process_end;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a libibverbs is called, whatever stands behind it.
const VERBS: &str = "libibverbs";
/// What ours is called where it is.
const OURS: &str = library::LIBRARY;
/// The name that programs ask the loader for.
const ASKED_FOR: &str = "libibverbs.so.1";
/// The shortest pause between two looks, and the longest. In between it is a part of the time so
/// far: most load their libraries at once, some much later.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(250)];
const PART: u32 = 16;
/// Why a program misses us, where that does not depend on which.
const LOST: &str = "its environment has lost LD_LIBRARY_PATH, or names another libibverbs first there (env -i, sudo, or \
                    a script that sets it); start `roxe run` behind that";
pub(crate) const STATIC: &str = "it is linked statically, so it does not load libibverbs";
const INSIDE: &str =
    "rdma-core is linked into that file, so it does not load libibverbs; build it against libibverbs.so.1";
/// `AT_SECURE` (`man getauxval`).
const AT_SECURE: u64 = 23;

/// What `roxe tell-bypass` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process that becomes the program.
    process: u32,
    /// The library that it has to load.
    library: PathBuf,
    /// Where the loader shall look for it.
    folder: PathBuf,
    /// The program's file, unless all that can be said of it has been.
    #[arg(long)]
    program: Option<PathBuf>,
    /// The program's file, if it is to be said that it has opened no device.
    #[arg(long)]
    unused: Option<PathBuf>,
    /// Do not look at processes, only wait for the end.
    #[arg(long)]
    blind: bool,
    /// Say more.
    #[arg(long)]
    explain: bool,
    /// Leave the work to a process that nobody waits for.
    #[arg(long)]
    detach: bool,
}

impl Args {
    /// For the program that this process is about to become.
    pub(crate) fn new(library: &Path, folder: &Path) -> Self {
        let (process, library, folder) = (std::process::id(), library.to_owned(), folder.to_owned());
        Self { process, library, folder, program: None, unused: None, blind: false, explain: false, detach: false }
    }

    /// With what is to be said of which file, by how close a look, and in how many words.
    pub(crate) fn about(self, bypass: Option<&Path>, unused: Option<&Path>, blind: bool, explain: bool) -> Self {
        Self { program: bypass.map(Path::to_owned), unused: unused.map(Path::to_owned), blind, explain, ..self }
    }
}

/// Starts the process that looks at the program which this process is about to become. From here on
/// only the program may open the library and devices.
pub(crate) fn watch(args: &Args) -> io::Result<()> {
    let opened = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    opened.add_watch(&args.library, AddWatchFlags::IN_OPEN)?;
    unused::watch_devices(&opened)?;
    // A child of a child, so that the program has no child that it does not know.
    itself(args).arg("--detach").stdin(OwnedFd::from(opened)).stdout(Stdio::null()).status().map(drop)
}

/// This program, to look. A signal for the program's process group does not end it.
fn itself(args: &Args) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("tell-bypass").arg(args.process.to_string()).arg(&args.library).arg(&args.folder);
    let files = [("--program", &args.program), ("--unused", &args.unused)];
    command.args(
        files.into_iter().filter_map(|(name, file)| Some([OsStr::new(name), file.as_ref()?.as_os_str()])).flatten(),
    );
    let flags = [("--blind", args.blind), ("--explain", args.explain)];
    command.args(flags.into_iter().filter_map(|(name, set)| set.then_some(name)));
    command.process_group(0);
    command
}

/// Looks until a process of the program has loaded a libibverbs, or the program is gone.
pub(crate) fn tell(args: &Args) -> Result<(), Box<dyn Error>> {
    if args.detach {
        // Until that one looks, the program does not start.
        let mut looks = itself(args).stdout(Stdio::piped()).spawn()?;
        looks.stdout.take().map(|mut pipe| pipe.read(&mut [0])).transpose()?;
        return Ok(());
    }
    println!();
    let ours = fs::metadata(&args.library)?;
    let mut ran = BTreeMap::from_iter(args.program.iter().map(|file| (file.clone(), true)));
    let said = follow(args, &ours, &mut ran);
    let opened = Opened::read(&mut io::stdin());
    let missing = || ran.iter().find_map(|(file, led)| Some((file, misses(file, *led)?)));
    if let Some((file, why)) = missing().filter(|_| !said && !opened.library) {
        eprintln!("roxe run: {} has ended and has not seen roxe: {why}", file.display());
    } else if let Some(program) = args.unused.as_ref().filter(|_| !said && !opened.device && !is_in_use(&ours)) {
        unused::tell(program, ran.keys(), opened, args.explain);
    }
    Ok(())
}

/// Looks until the program has ended. True if something was said of one of its processes.
fn follow(args: &Args, ours: &Metadata, ran: &mut BTreeMap<PathBuf, bool>) -> bool {
    let (begin, mut looks, mut searched) = (Instant::now(), !args.blind, BTreeSet::new());
    let end = process_end(args.process).ok();
    while is_running(args.process) {
        for process in if looks { family(args.process) } else { vec![] } {
            match loaded(process, ours) {
                Loaded::Nothing => {
                    note(process, &args.folder, ran);
                    let modules = modules(process).into_iter().filter(|path| searched.insert(path.clone()));
                    if let Some(path) = modules.into_iter().find(|path| asks::has_verbs_inside(path)) {
                        let program = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
                        eprintln!("roxe run: {}", does_not_see(&program, process, &path, INSIDE));
                        return true;
                    }
                }
                Loaded::Ours => {
                    note(process, &args.folder, ran);
                    looks = false;
                }
                Loaded::Other(path) => {
                    // One that has ended meanwhile does not tell why any more.
                    let Some(sentence) = sentence(process, &path, &args.folder) else { continue };
                    eprintln!("roxe run: {sentence}");
                    return true;
                }
            }
        }
        pause(end.as_ref(), (begin.elapsed() / PART).clamp(PAUSES[0], PAUSES[1]));
    }
    false
}

/// Waits for so long, or until the process has ended, of which `end` tells.
fn pause(end: Option<&OwnedFd>, time: Duration) {
    let Some(end) = end else { return sleep(time) };
    let mut fds = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO));
}

/// True until the last thread of a process has ended. Its parent may not wait for it before
/// standard error is closed, which this process has, too: until then it stays as a zombie.
fn is_running(process: u32) -> bool {
    let folder = Path::new("/proc").join(process.to_string());
    let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
    match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        None | Some('X') => false,
        // The first thread may end before others.
        Some('Z') => fs::read_dir(folder.join("task")).is_ok_and(|tasks| tasks.count() > 1),
        Some(_) => true,
    }
}

/// True if a process has our library although the program has ended, as a daemon has.
fn is_in_use(ours: &Metadata) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.any(|process| loaded(process, ours) == Loaded::Ours)
}

/// Keeps which program a process runs, and whether its environment leads it to us.
fn note(process: u32, folder: &Path, ran: &mut BTreeMap<PathBuf, bool>) {
    // Of a program with rights of its own only the command line may be read.
    let words = || fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let called = || program::find(OsStr::from_bytes(words().split(|byte| *byte == 0).next().unwrap_or_default()));
    let Some(file) = fs::read_link(format!("/proc/{process}/exe")).ok().or_else(called) else { return };
    ran.entry(file).or_insert_with(|| {
        fs::read(format!("/proc/{process}/environ")).map_or(true, |environment| leads_to(&environment, folder))
    });
}

/// Why a program has not come to us, as far as its file tells, if it comes to verbs at all.
fn misses(file: &Path, is_led: bool) -> Option<String> {
    let asks = asks::of(file)?;
    if program::is_static(file) {
        return Some(STATIC.to_owned());
    }
    program::goes_its_own_way(file).or_else(|| (asks == Asks::Links && !is_led).then(|| LOST.to_owned()))
}

/// A process and its children, theirs, and so on (`man proc_pid_task`).
fn family(process: u32) -> Vec<u32> {
    let mut all = vec![process];
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

/// Which libibverbs a process has.
#[derive(Debug, PartialEq, Eq)]
enum Loaded {
    Nothing,
    Ours,
    Other(PathBuf),
}

fn loaded(process: u32, ours: &Metadata) -> Loaded {
    let root = PathBuf::from(format!("/proc/{process}/root"));
    // In a view our library stands under the names of others.
    let is_ours = |path: &Path| {
        let inside = root.join(path.strip_prefix("/").unwrap_or(path));
        fs::metadata(inside).is_ok_and(|meta| (meta.dev(), meta.ino()) == (ours.dev(), ours.ino()))
    };
    // Who may not be looked at, or is gone, is left alone.
    fs::read(format!("/proc/{process}/maps")).map_or(Loaded::Nothing, |maps| among(&maps, is_ours))
}

/// Which libibverbs is among the files that a process has mapped (`man proc_pid_maps`).
fn among(maps: &[u8], is_ours: impl Fn(&Path) -> bool) -> Loaded {
    let mut other = None;
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b'/') else { continue };
        let path = Path::new(OsStr::from_bytes(line.get(at..).unwrap_or_default()));
        let begins = |begin: &[u8]| path.file_name().is_some_and(|name| name.as_bytes().starts_with(begin));
        if (begins(VERBS.as_bytes()) || begins(OURS.as_bytes())) && is_ours(path) {
            return Loaded::Ours;
        }
        if begins(VERBS.as_bytes()) {
            other = Some(path.to_owned());
        }
    }
    other.map_or(Loaded::Nothing, Loaded::Other)
}

/// What is said of it, in one line, if it is still there.
fn sentence(process: u32, path: &Path, folder: &Path) -> Option<String> {
    let read = |file: &str| fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    let program = fs::read_link(format!("/proc/{process}/exe")).ok()?;
    let (environment, vector) = (read("environ"), read("auxv"));
    // A process that is there has a vector, so it was still there when its environment was read.
    if vector.is_empty() {
        return None;
    }
    let why = why(path, has_rights(&vector), leads_to(&environment, folder));
    Some(does_not_see(&program, process, path, why))
}

fn does_not_see(program: &Path, process: u32, path: &Path, why: &str) -> String {
    format!("{} (process {process}) has loaded {} and does not see roxe: {why}", program.display(), path.display())
}

/// The libraries that a process runs code of, but for those of the system. None while it becomes
/// another program.
fn modules(process: u32) -> BTreeSet<PathBuf> {
    let program = || fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
    let (before, maps) = (program(), fs::read(format!("/proc/{process}/maps")).unwrap_or_default());
    if before != program() || fs::read_link("/proc/self/exe").is_ok_and(|own| own == before) {
        return BTreeSet::new();
    }
    let lines = maps.split(|byte| *byte == b'\n').filter(|line| line.windows(6).any(|part| part == b" r-xp "));
    let paths = lines.filter_map(|line| line.iter().position(|byte| *byte == b'/').and_then(|at| line.get(at..)));
    let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    paths.filter(|path| *path != before && !asks::FOLDERS.iter().any(|folder| path.starts_with(folder))).collect()
}

fn why(path: &Path, has_rights: bool, is_led: bool) -> &'static str {
    if has_rights {
        "it has rights of its own (set-uid, or capabilities by setcap), so the loader ignores LD_LIBRARY_PATH; start a \
         copy of it without them"
    } else if !is_led {
        LOST
    } else if !is_asked_for(path) {
        "it brings a copy of its own; start it with `roxe run --preload`"
    } else {
        "it was linked with a fixed library path (RPATH), or names the file; start it with `roxe run --preload`"
    }
}

/// Whether the file has the name that programs ask for, or that with the rest of its version.
fn is_asked_for(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(ASKED_FOR.as_bytes()))
}

/// Whether `LD_LIBRARY_PATH` of an environment has the folder, and no other libibverbs before it.
fn leads_to(environment: &[u8], folder: &Path) -> bool {
    let value = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"LD_LIBRARY_PATH="));
    let value = OsString::from_vec(value.unwrap_or_default().to_vec());
    let first = std::env::split_paths(&value).find(|entry| entry == folder || entry.join(ASKED_FOR).exists());
    first.is_some_and(|entry| entry == folder)
}

/// Whether the auxiliary vector says that the loader must not trust the environment.
fn has_rights(vector: &[u8]) -> bool {
    let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    vector.chunks_exact(16).any(|entry| word(entry) == Some(AT_SECURE) && word(&entry[8..]) != Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_nobody_has_waited_for_has_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        assert!(is_running(child.id()));
        drop(child.stdin.take());
        // The end of its output comes before its own.
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        let start = Instant::now();
        while is_running(child.id()) {
            assert!(start.elapsed() < Duration::from_secs(20), "a zombie counts as running");
        }
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }

    #[test]
    fn another_libibverbs_counts_only_without_ours() {
        let ours = |path: &Path| path == Path::new("/opt/lib/libroxe.so");
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 12  {path}\n");
        let own = line("/home/me/libs/libibverbs-1a2b3c4d.so.1.14");
        assert_eq!(among(line("/usr/lib/libc.so.6").as_bytes(), ours), Loaded::Nothing);
        let other = Loaded::Other("/home/me/libs/libibverbs-1a2b3c4d.so.1.14".into());
        assert_eq!(among(own.as_bytes(), ours), other);
        assert_eq!(among((own + &line("/opt/lib/libroxe.so")).as_bytes(), ours), Loaded::Ours);
    }

    #[test]
    fn each_reason_says_what_to_do() {
        let system = Path::new("/usr/lib/libibverbs.so.1.14.50");
        let copy = Path::new("/x/libibverbs-1a2b3c4d.so.1");
        for (path, rights, led, part) in [
            (system, true, false, "setcap"),
            (system, false, false, "env -i"),
            (system, false, true, "RPATH"),
            (copy, false, true, "a copy of its own"),
        ] {
            assert!(why(path, rights, led).contains(part), "{part}");
        }
    }

    #[test]
    fn the_environment_and_the_vector_of_a_process_are_read() {
        let environment = b"A=1\0LD_LIBRARY_PATH=/x:/roxe/lib\0B=2";
        assert!(leads_to(environment, Path::new("/roxe/lib")) && !leads_to(environment, Path::new("/roxe")));
        assert!(!leads_to(b"", Path::new("/roxe/lib")));
        let vector = |value: u64| [AT_SECURE, value, 0, 0].map(u64::to_ne_bytes).concat();
        assert!(has_rights(&vector(1)) && !has_rights(&vector(0)) && !has_rights(&[]));
    }

    #[test]
    fn of_a_process_that_has_ended_nothing_is_said() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = child.id();
        let told = || sentence(id, Path::new("/x/libibverbs-1a2b3c4d.so.1"), Path::new("/roxe/lib"));
        let while_it_runs = told();
        child.kill().unwrap();
        // A zombie until it is waited for.
        while fs::read(format!("/proc/{id}/auxv")).is_ok_and(|vector| !vector.is_empty()) {
            std::thread::yield_now();
        }
        let afterwards = told();
        child.wait().unwrap();
        assert!(while_it_runs.is_some_and(|text| text.contains("cat")));
        assert_eq!(afterwards, None);
    }

    #[test]
    fn children_belong_to_the_family() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let me = std::process::id();
        let known = family(me).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(known && family(me).contains(&me));
    }
}
