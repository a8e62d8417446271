//! `roxe run --stats`: prints the counters of processes that could not print them themselves,
//! because a signal killed them or they called `_exit`.
//!
//! ```text
//! roxe run ── makes FOLDER, locks FOLDER/run, starts ──► roxe tell-stats FOLDER
//!     │ becomes the program, whose processes            │ another process group, child of init
//!     │ inherit the lock                                │ waits for the lock: all have ended
//!     └─ each process: FOLDER/PID-roxe0,                └ prints the remaining files,
//!        locked while it lives                            removes the folder
//! ```
//!
//! The program keeps its process id, and the report does not depend on how the program ends. If a
//! process closed the inherited lock, `tell-stats` waits for the lock of the process's own file.

use crate::child;
use crate::output::Result;
use nix::fcntl::{FcntlArg, fcntl};
use roxe_provider::legend_of;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file whose lock all processes of a run hold.
const RUN_LOCK: &str = "run";
/// Minimum descriptor number of the lock: programs may expect low numbers for their own files.
const MIN_LOCK_FD: i32 = 200;

/// Arguments of `roxe tell-stats`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder with the files.
    folder: PathBuf,
    /// Leave the work to a child of init.
    #[arg(long)]
    detach: bool,
}

/// Creates a folder in `base` for the files of the program that this process is about to become,
/// and starts the process that prints them.
pub(crate) fn watch(base: &Path) -> io::Result<PathBuf> {
    let folder = base.join(std::process::id().to_string());
    // An earlier process with this id may have left its folder.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder)?;
    let run = File::create(folder.join(RUN_LOCK))?;
    run.try_lock()?;
    let status = printer(&folder).arg("--detach").status()?;
    if !status.success() {
        return Err(io::Error::other(format!("roxe tell-stats, which prints the counters, did not start: {status}")));
    }
    // The duplicate stays open across exec. It is made after the start of the printing process,
    // which must not hold the lock.
    fcntl(&run, FcntlArg::F_DUPFD(MIN_LOCK_FD))?;
    Ok(folder)
}

fn printer(folder: &Path) -> Command {
    let mut command = child::background("tell-stats");
    command.arg(folder).stdin(std::process::Stdio::null());
    command
}

/// Waits until the processes of a run have ended, and prints the remaining files.
pub(crate) fn print_at_end(args: &Args) -> Result {
    if args.detach {
        printer(&args.folder).spawn()?;
        return Ok(());
    }
    File::open(args.folder.join(RUN_LOCK))?.lock()?;
    while let Some(path) = next_file(&args.folder)? {
        match File::open(&path).and_then(|file| file.lock()) {
            // A process that printed its counters removed the file before it unlocked it.
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

/// Returns one of the remaining files.
fn next_file(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    paths.find(|path| !path.as_ref().is_ok_and(|path| path.ends_with(RUN_LOCK))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;

    #[test]
    fn remaining_files_are_removed_with_the_folder() {
        let folder = Scratch::new("stats");
        for name in [RUN_LOCK, "7-roxe0", "8-roxe0"] {
            folder.file(name, "", 0o600);
        }
        print_at_end(&Args { folder: folder.to_path_buf(), detach: false }).unwrap();
        assert!(!folder.exists());
    }
}
