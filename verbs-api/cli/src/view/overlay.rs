//! Adds entries to a read-only folder, in this mount namespace.
//!
//! A tmpfs replaces the folder. Links are copied; files, devices and folders are bound, with all
//! mounts below them. It is built in another folder and moved into place when complete, so that a
//! failure leaves the folder as it was. Entries that the system adds to the folder later, such as
//! the device file of a new disk, are not visible; changes inside its folders are.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Folders in a target that get entries, too, and a filter for those of their entries to leave out.
pub(super) struct Opened<'a> {
    pub(super) names: &'static [&'static str],
    pub(super) without: &'a dyn Fn(&OsStr) -> bool,
}

/// Adds the files of `write` to `target` and its folders in `open`; `scratch` is a folder to mount
/// on meanwhile.
pub(super) fn add(
    scratch: &Path,
    target: &Path,
    open: &Opened<'_>,
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let entries: Vec<DirEntry> = fs::read_dir(target)?.collect::<io::Result<_>>()?;
    mount(Some("roxe"), scratch, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755"))?;
    let built = build(scratch, target, &entries, open).and_then(|()| write(scratch));
    let moved = built.and_then(|()| Ok(mount(Some(scratch), target, None::<&str>, MsFlags::MS_MOVE, None::<&str>)?));
    if moved.is_err() {
        // If this fails, the mount ends with this process.
        _ = umount2(scratch, MntFlags::MNT_DETACH);
    }
    moved
}

fn build(to: &Path, target: &Path, entries: &[DirEntry], open: &Opened<'_>) -> io::Result<()> {
    for entry in entries {
        let copy = to.join(entry.file_name());
        if open.names.iter().any(|name| entry.file_name() == *name) && entry.path().is_dir() {
            fs::create_dir(&copy)?;
            for inner in fs::read_dir(target.join(entry.file_name()))? {
                let inner = inner?;
                if !(open.without)(&inner.file_name()) {
                    keep(&inner, &copy.join(inner.file_name()))?;
                }
            }
        } else {
            keep(entry, &copy)?;
        }
    }
    Ok(())
}

/// Makes `copy` show `entry`, unless the entry no longer exists.
fn keep(entry: &DirEntry, copy: &Path) -> io::Result<()> {
    let kind = entry.file_type()?;
    let kept = if kind.is_symlink() {
        fs::read_link(entry.path()).and_then(|to| symlink(to, copy))
    } else {
        if kind.is_dir() {
            fs::create_dir(copy)?
        } else {
            File::create(copy).map(drop)?
        }
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        Ok(mount(Some(&entry.path()), copy, None::<&str>, flags, None::<&str>)?)
    };
    match kept {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
