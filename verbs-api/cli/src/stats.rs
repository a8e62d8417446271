//! `roxe run --stats`: prints what those processes have counted that could not do so themselves,
//! because a signal ended them or they left by `_exit`.
//!
//! ```text
//! roxe run ── makes FOLDER, locks FOLDER/run, starts ──► roxe tell-stats FOLDER
//!     │ becomes the program, whose processes            │ another process group, child of init
//!     │ inherit the lock                                │ waits for the lock: none is left
//!     └─ each process: FOLDER/PID-roxe0,                └ prints the files that are left,
//!        locked while it lives                            removes the folder
//! ```
//!
//! So the program keeps its process id, and nothing depends on how it ends. A process that has
//! closed all its descriptors is waited for by the lock of its own file. Touches the folder and the
//! lock.

use nix::fcntl::{FcntlArg, fcntl};
use roxe_provider::legend_of;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file whose lock all processes of a run hold.
const RUN: &str = "run";
/// Where its descriptor is put: programs count on the first numbers.
const OUT_OF_THE_WAY: i32 = 200;

/// What `roxe tell-stats` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the files are.
    folder: PathBuf,
    /// Leave the work to a process that nobody waits for.
    #[arg(long)]
    detach: bool,
}

/// Makes a folder in `base` for the files of the program that this process is about to become, and
/// starts who prints them.
pub(crate) fn watch(base: &Path) -> io::Result<PathBuf> {
    let folder = base.join(std::process::id().to_string());
    // Left behind by a process that had our id and was killed with all others.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder)?;
    let run = File::create(folder.join(RUN))?;
    run.try_lock()?;
    // A child of a child, so that the program has no child that it does not know.
    let status = itself(&folder).arg("--detach").status()?;
    if !status.success() {
        return Err(io::Error::other("the process that prints it does not start"));
    }
    // Only now, so that who waits for the lock does not hold it. The duplicate outlives exec.
    fcntl(&run, FcntlArg::F_DUPFD(OUT_OF_THE_WAY))?;
    Ok(folder)
}

/// This program, to print what is in `folder`. A signal for the program's process group does not
/// end it.
fn itself(folder: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("tell-stats").arg(folder).process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Waits until the processes of a run are gone, and prints what they have left.
pub(crate) fn tell(args: &Args) -> Result<(), Box<dyn Error>> {
    if args.detach {
        itself(&args.folder).spawn()?;
        return Ok(());
    }
    File::open(args.folder.join(RUN))?.lock()?;
    while let Some(path) = next(&args.folder)? {
        match File::open(&path).and_then(|file| file.lock()) {
            // A process that prints its counters itself removes the file before it lets go of the
            // lock.
            Ok(()) if path.exists() => {
                let line = fs::read_to_string(&path)?;
                eprint!("{line}{}", legend_of(&line));
                fs::remove_file(&path)?;
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    Ok(fs::remove_dir_all(&args.folder)?)
}

/// One of the files that processes have left.
fn next(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    paths.find(|path| !path.as_ref().is_ok_and(|path| path.ends_with(RUN))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_removed_with_the_folder() {
        let folder = std::env::temp_dir().join(format!("roxe-cli-stats-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in [RUN, "7-roxe0", "8-roxe0"] {
            fs::write(folder.join(name), "").unwrap();
        }
        tell(&Args { folder: folder.clone(), detach: false }).unwrap();
        assert!(!folder.exists());
    }
}
