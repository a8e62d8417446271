//! Adds entries to a read-only folder, in this mount namespace.
//!
//! A tmpfs replaces the folder. Links are copied; files, devices and folders are bound, with all
//! mounts below them. The tmpfs is built in another folder and moved into place when complete, so
//! that a failure leaves the folder as it was. Entries that the system adds to the folder later,
//! such as the device file of a new disk, are not visible; changes inside the folder's folders are
//! visible.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Folders inside the target that also get entries, and a filter for existing entries to leave out.
pub(super) struct OpenFolders<'a> {
    pub(super) names: &'static [&'static str],
    pub(super) without: &'a dyn Fn(&OsStr) -> bool,
}

/// Adds the files of `write` to `target` and to its folders in `open`; `scratch` is a folder for a
/// temporary mount.
pub(super) fn add(
    scratch: &Path,
    target: &Path,
    open: &OpenFolders<'_>,
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

fn build(to: &Path, target: &Path, entries: &[DirEntry], open: &OpenFolders<'_>) -> io::Result<()> {
    for entry in entries {
        let copy = to.join(entry.file_name());
        if open.names.iter().any(|name| entry.file_name() == *name) && entry.path().is_dir() {
            fs::create_dir(&copy)?;
            for inner in fs::read_dir(target.join(entry.file_name()))? {
                let inner = inner?;
                if !(open.without)(&inner.file_name()) {
                    show_entry(&inner, &copy.join(inner.file_name()))?;
                }
            }
        } else {
            show_entry(entry, &copy)?;
        }
    }
    Ok(())
}

/// Makes `copy` show `entry`, unless the entry no longer exists.
fn show_entry(entry: &DirEntry, copy: &Path) -> io::Result<()> {
    let kind = entry.file_type()?;
    let shown = if kind.is_symlink() {
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
    match shown {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
