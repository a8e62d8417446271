//! Binds this program over the `rdma` of iproute2, in this mount namespace: for programs that name
//! its full path or change PATH.

use super::sysfs::shows_other_cards;
use crate::library::{RDMA, SYSTEM_COMMANDS, is_own_program, own_program};
use nix::mount::{MsFlags, mount};
use std::path::{Path, PathBuf};

/// Binds this program over the command, unless the kernel has devices for it. A failure leaves the
/// command that PATH finds.
pub(super) fn replace() {
    let Some(own) = own_program().filter(|_| !shows_other_cards()) else { return };
    for command in installed() {
        let _ = mount(Some(&own), &command, None::<&str>, MsFlags::MS_BIND, None::<&str>);
    }
}

/// Returns the files of the command, without links, other than this program.
fn installed() -> Vec<PathBuf> {
    let files = SYSTEM_COMMANDS.iter().filter_map(|folder| Path::new(folder).join(RDMA).canonicalize().ok());
    let mut files: Vec<_> = files.filter(|file| !is_own_program(file)).collect();
    files.sort();
    files.dedup();
    files
}
