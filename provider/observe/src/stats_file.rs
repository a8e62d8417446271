//! Writes the counters of each device of a process to a file in the folder `ROXE_STATS_FILES`. A
//! process that a signal kills, or that calls `_exit` as children of a fork do, cannot print its
//! counters; `roxe run --stats` then prints the line in the file. The process locks the file (`man
//! flock`) while it runs, and removes the file when it has printed the line itself.

use crate::counters::Counters;
use roxe_base::lock::{Mutex, rank};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Writer of the file of one device.
#[derive(Debug)]
pub struct StatsFile {
    folder: PathBuf,
    device: String,
    file: Mutex<rank::StatsFile, Option<OpenFile>>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
}

impl StatsFile {
    /// Creates the writer of the file of `device` in `folder`. The first write creates the file.
    pub fn new(folder: &Path, device: &str) -> Self {
        Self { folder: folder.into(), device: device.into(), file: Mutex::default() }
    }

    /// Writes the counters. Errors are ignored: the process still prints its counters at its exit.
    pub fn write(&self, counters: &Counters) {
        let mut current = self.file.lock();
        if current.is_none() {
            *current = self.create().ok();
        }
        let Some(OpenFile { file, .. }) = &*current else { return };
        let text = line(&self.device, "killed, or left by _exit", &counters.list());
        // The line never gets shorter, because counters only grow.
        let _ = file.write_all_at(text.as_bytes(), 0);
    }

    fn create(&self) -> io::Result<OpenFile> {
        let path = self.folder.join(format!("{}-{}", std::process::id(), self.device));
        let file = File::create(&path)?;
        file.try_lock()?;
        Ok(OpenFile { path, file })
    }

    /// Removes the file, because the process prints the line itself.
    pub fn remove(&self) {
        if let Some(OpenFile { path, .. }) = self.file.lock().take() {
            // `roxe run` may have removed the file.
            let _ = fs::remove_file(path);
        }
    }

    /// Forgets the parent's file in the child of a fork. If a thread missing in the child held the
    /// lock, the file stays open.
    pub fn abandon(&self) {
        if let Some(mut current) = self.file.try_lock() {
            *current = None;
        }
    }
}

/// Returns the line printed for a device: `roxe0 (process 17): sent_packets=3 sent_bytes=96`.
/// `ending` follows the process ID and says how the process ended; it is empty for a normal end.
pub fn line(device: &str, ending: &str, counters: &[(&str, u64)]) -> String {
    let used = counters.iter().filter(|(_, value)| *value != 0);
    let values: String = used.map(|(name, value)| format!(" {name}={value}")).collect();
    let comma = if ending.is_empty() { "" } else { ", " };
    let values = if values.is_empty() { " no traffic" } else { &values };
    format!("{device} (process {}{comma}{ending}):{values}\n", std::process::id())
}

/// Returns the meanings of the counters in `line`, one per indented line.
pub fn legend_of(line: &str) -> String {
    let legend = Counters::legend();
    let names: Vec<&str> =
        line.split_whitespace().filter_map(|word| word.split_once('=')).map(|(name, _)| name).collect();
    let used = names.iter().filter_map(|name| legend.iter().find(|(counter, _)| counter == name));
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    used.map(|(name, meaning)| format!("    {name:width$}  {meaning}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_only_nonzero_counters() {
        let id = std::process::id();
        let text = line("roxe0", "", &[("sent_packets", 3), ("malformed", 0), ("np_cnp_sent", 1)]);
        assert_eq!(text, format!("roxe0 (process {id}): sent_packets=3 np_cnp_sent=1\n"));
        assert_eq!(line("roxe1", "", &[("malformed", 0)]), format!("roxe1 (process {id}): no traffic\n"));
    }

    #[test]
    fn legend_explains_counters_of_a_line() {
        let text = legend_of("roxe0 (process 7): malformed=3 icrc_errors=1 unheard_of=2\n");
        let expected =
            "    malformed    Packets that are not valid RoCE packets\n    icrc_errors  Packets with a wrong ICRC\n";
        assert_eq!((text.as_str(), legend_of("roxe0 (process 7): no traffic\n").as_str()), (expected, ""));
    }

    #[test]
    fn file_has_newest_counters_until_removed() {
        let folder = std::env::temp_dir().join(format!("roxe-stats-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, counters) = (StatsFile::new(&folder, "roxe0"), Counters::default());
        let path = folder.join(format!("{}-roxe0", std::process::id()));
        for sent in [1, 2] {
            counters.sent_packets.add(1);
            file.write(&counters);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("killed") && text.ends_with(&format!(" sent_packets={sent}\n")), "{text}");
        }
        assert!(File::open(&path).unwrap().try_lock().is_err(), "the process holds the lock");
        file.remove();
        assert!(!path.exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn missing_folder_is_ignored() {
        let file = StatsFile::new(Path::new("/nonexistent"), "roxe0");
        file.write(&Counters::default());
        file.remove();
        file.abandon();
    }
}
