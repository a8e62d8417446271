//! The `rdma` of iproute2 for the devices of the kernel, if this host has any: its output precedes
//! that of roxe.

use crate::library::{RDMA, SYSTEM_COMMANDS, is_own_program};
use crate::output::Result;
use crate::view;
use serde_json::Value;
use std::env::{split_paths, var_os};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The command of iproute2.
#[derive(Debug)]
pub(super) struct Tool(PathBuf);

/// Returns the command if the kernel of this host has devices of its own.
pub(super) fn find() -> Option<Tool> {
    if !view::shows_other_cards() {
        return None;
    }
    let path = var_os("PATH").unwrap_or_default();
    let folders = split_paths(&path).chain(SYSTEM_COMMANDS.map(PathBuf::from));
    folders.map(|folder| folder.join(RDMA)).find(|file| is_program(file) && !is_own_program(file)).map(Tool)
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

impl Tool {
    /// Becomes the command. Returns only if that failed.
    pub(super) fn exec(&self, args: &[OsString]) -> Result {
        Err(Command::new(&self.0).args(args).exec().into())
    }

    /// Returns the standard output of the command.
    pub(super) fn output(&self, args: &[OsString]) -> Result<String> {
        let output = Command::new(&self.0).args(args).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the first index that no device of the kernel has.
    pub(super) fn next_index(&self) -> Result<u32> {
        Ok(next_index(&self.output(&["-j".into(), "dev".into()])?))
    }
}

fn next_index(devices: &str) -> u32 {
    let devices: Value = serde_json::from_str(devices).unwrap_or_default();
    let indices = devices.as_array().into_iter().flatten().filter_map(|device| device["ifindex"].as_u64());
    indices.filter_map(|index| u32::try_from(index).ok()?.checked_add(1)).max().unwrap_or(0)
}

/// Returns the objects of a JSON array, as text without its brackets.
pub(super) fn objects(array: &str) -> &str {
    let inner = array.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_of_roxe_follow_those_of_the_kernel() {
        assert_eq!(next_index(r#"[{"ifindex":0,"ifname":"mlx5_0"},{"ifindex":4,"ifname":"rxe0"}]"#), 5);
        assert_eq!(next_index("[]"), 0);
        assert_eq!(next_index("error"), 0);
    }

    #[test]
    fn brackets_of_an_array_are_removed() {
        assert_eq!(objects("[ {\n \"a\": 1\n } ]\n"), "{\n \"a\": 1\n }");
        assert_eq!(objects("[{},{}]\n"), "{},{}");
        assert_eq!((objects("[]"), objects("")), ("", ""));
    }
}
