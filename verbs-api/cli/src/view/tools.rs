//! Binds this program over the `rdma` of iproute2, in this mount namespace: for programs that name
//! its full path or change PATH.

use super::sysfs::shows_other_cards;
use crate::library::{RDMA, own_program};
use nix::mount::{MsFlags, mount};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folders in which distributions install the command.
const FOLDERS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// Binds this program over the command, unless the kernel has devices for it. A failure leaves the
/// command that PATH finds.
pub(super) fn replace() {
    let Some(own) = own_program().filter(|_| !shows_other_cards()) else { return };
    for command in installed(&own) {
        let _ = mount(Some(&own), &command, None::<&str>, MsFlags::MS_BIND, None::<&str>);
    }
}

/// Returns the files of the command, without links, other than this program.
fn installed(own: &Path) -> Vec<PathBuf> {
    let identity = |file: &Path| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    let files = FOLDERS.iter().filter_map(|folder| Path::new(folder).join(RDMA).canonicalize().ok());
    let mut files: Vec<_> = files.filter(|file| identity(file) != identity(own)).collect();
    files.sort();
    files.dedup();
    files
}
