//! Creates temporary folders and lists the files below a folder.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder in the temporary folder of the system, removed with its files when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a folder whose name contains `name` and is unique among running processes.
    ///
    /// # Errors
    /// If the folder cannot be created; the text contains its path.
    pub fn new(name: &str) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("roxe-{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| format!("cannot create {}: {e}", path.display()))?;
        Ok(Self(path))
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover folder is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the files below `folder` with this extension, in alphabetical order. Skips folders named
/// `target`.
///
/// # Panics
/// If a folder cannot be read.
#[must_use]
pub fn below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("cannot read {}: {e}", folder.display()));
        for path in entries.map(|entry| entry.expect("read an entry of the folder").path()) {
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|its| its == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_folders_differ_and_are_removed() {
        let (first, second) = (Scratch::new("files").unwrap(), Scratch::new("files").unwrap());
        assert_ne!(&*first, &*second);
        let path = first.to_path_buf();
        fs::write(path.join("file"), "x").unwrap();
        drop(first);
        assert!(!path.exists() && second.is_dir());
    }

    #[test]
    fn files_in_target_folders_are_skipped() {
        let scratch = Scratch::new("below").unwrap();
        for name in ["b.rs", "a/c.rs", "a/d.md", "target/e.rs"] {
            let path = scratch.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        assert_eq!(below(&scratch, "rs"), ["a/c.rs", "b.rs"].map(|name| scratch.join(name)));
    }
}
