//! Programs that load another libibverbs than ours: says which, and why.
//!
//! ```text
//! roxe run ── starts ──► roxe tell-bypass PID ...     another process group, child of init
//!     │ becomes the program                             │ looks at what PID and its children have
//!     └─ keeps its process id                           └ mapped, until one has a libibverbs, or PID ends
//! ```
//!
//! Such a program finds no device, or the hardware's, and nothing of ours runs in it that could
//! say so. Touches `/proc`.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a libibverbs is called, whatever stands behind it.
const VERBS: &str = "libibverbs";
/// The name that programs ask the loader for.
const ASKED_FOR: &str = "libibverbs.so.1";
/// The shortest pause between two looks, and the longest. In between it is a part of the time so
/// far: most load their libraries at once, some much later.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];
const PART: u32 = 16;
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
    /// Leave the work to a process that nobody waits for.
    #[arg(long)]
    detach: bool,
}

/// Starts who looks at the program that this process is about to become.
pub(crate) fn watch(library: &Path, folder: &Path) -> io::Result<()> {
    let (process, library, folder) = (std::process::id(), library.to_owned(), folder.to_owned());
    // A child of a child, so that the program has no child that it does not know.
    itself(&Args { process, library, folder, detach: true }).arg("--detach").status().map(drop)
}

/// This program, to look. A signal for the program's process group does not end it.
fn itself(args: &Args) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("tell-bypass").arg(args.process.to_string()).arg(&args.library).arg(&args.folder);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Looks until a process of the program has loaded a libibverbs, or the program is gone.
pub(crate) fn tell(args: &Args) -> Result<(), Box<dyn Error>> {
    if args.detach {
        itself(args).spawn()?;
        return Ok(());
    }
    let begin = Instant::now();
    while Path::new("/proc").join(args.process.to_string()).exists() {
        for process in family(args.process) {
            match loaded(process, &args.library) {
                Loaded::Nothing => {}
                Loaded::Ours => return Ok(()),
                Loaded::Other(path) => {
                    eprintln!("roxe run: {}", sentence(process, &path, &args.folder));
                    return Ok(());
                }
            }
        }
        sleep((begin.elapsed() / PART).clamp(PAUSES[0], PAUSES[1]));
    }
    Ok(())
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

fn loaded(process: u32, ours: &Path) -> Loaded {
    // Who may not be looked at, or is gone, is left alone.
    fs::read(format!("/proc/{process}/maps")).map_or(Loaded::Nothing, |maps| among(&maps, ours))
}

/// Which libibverbs is among the files that a process has mapped (`man proc_pid_maps`).
fn among(maps: &[u8], ours: &Path) -> Loaded {
    let mut other = None;
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b'/') else { continue };
        let path = Path::new(OsStr::from_bytes(line.get(at..).unwrap_or_default()));
        if path == ours {
            return Loaded::Ours;
        }
        if path.file_name().is_some_and(|name| name.as_bytes().starts_with(VERBS.as_bytes())) {
            other = Some(path.to_owned());
        }
    }
    other.map_or(Loaded::Nothing, Loaded::Other)
}

/// What is said of it, in one line.
fn sentence(process: u32, path: &Path, folder: &Path) -> String {
    let program = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let vector = fs::read(format!("/proc/{process}/auxv")).unwrap_or_default();
    let why = why(path, has_rights(&vector), leads_to(&environment, folder));
    format!("{} (process {process}) has loaded {} and does not see roxe: {why}", program.display(), path.display())
}

fn why(path: &Path, has_rights: bool, is_led: bool) -> &'static str {
    if has_rights {
        "it has rights of its own (set-uid, or capabilities by setcap), so the loader ignores LD_LIBRARY_PATH; start a \
         copy of it without them"
    } else if !is_led {
        "its environment has lost LD_LIBRARY_PATH (env -i, sudo, or a script that sets it); start `roxe run` behind \
         that"
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

/// Whether `LD_LIBRARY_PATH` of an environment has the folder.
fn leads_to(environment: &[u8], folder: &Path) -> bool {
    let value = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"LD_LIBRARY_PATH="));
    let value = OsString::from_vec(value.unwrap_or_default().to_vec());
    std::env::split_paths(&value).any(|entry| entry == folder)
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
    fn another_libibverbs_counts_only_without_ours() {
        let ours = Path::new("/opt/lib/libroxe.so");
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
    fn children_belong_to_the_family() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let me = std::process::id();
        let known = family(me).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(known && family(me).contains(&me));
    }
}
