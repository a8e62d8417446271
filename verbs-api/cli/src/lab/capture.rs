//! Captures of links: the Ethernet frames at the switch's end of each, as a pcap file.

use crate::output::Result;
use pnet_datalink::{Channel, Config, DataLinkReceiver, channel, interfaces};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest frame: that of the largest MTU, with an Ethernet header.
const LONGEST: usize = 65_535 + 14;
/// Pause without frames after which the file is written out.
const PERIOD: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Captures {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Captures {
    /// Captures each of these interfaces of this network namespace to a file in `folder`.
    pub(super) fn start(folder: &Path, links: &[(String, String)]) -> Result<Self> {
        let mut captures = Self { ends: Arc::default(), threads: Vec::new() };
        let known = interfaces();
        for (interface, name) in links {
            let file = folder.join(format!("{name}.pcap"));
            let failed = |cause: &dyn std::fmt::Display| format!("cannot capture to {}: {cause}", file.display());
            let found =
                known.iter().find(|known| known.name == *interface).ok_or_else(|| failed(&"no such interface"))?;
            let config = Config { read_buffer_size: LONGEST, read_timeout: Some(PERIOD), ..Config::default() };
            let Channel::Ethernet(_, frames) = channel(found, config).map_err(|cause| failed(&cause))? else {
                return Err(failed(&"not an Ethernet interface").into());
            };
            let mut to = BufWriter::new(File::create(&file).map_err(|cause| failed(&cause))?);
            to.write_all(&head()).map_err(|cause| failed(&cause))?;
            let ends = Arc::clone(&captures.ends);
            captures.threads.push(thread::Builder::new().spawn(move || copy(frames, to, &ends))?);
        }
        Ok(captures)
    }

    /// Ends the captures when all frames are in the files.
    pub(super) fn end(self) -> Result {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| "a capture failed")??;
        }
        Ok(())
    }
}

/// Copies frames to the file until there are no more and `ends` is set.
fn copy(mut frames: Box<dyn DataLinkReceiver>, mut to: BufWriter<File>, ends: &AtomicBool) -> io::Result<()> {
    loop {
        match frames.next() {
            Ok(frame) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                to.write_all(&record(since, frame.len()))?;
                to.write_all(frame)?;
            }
            // An interface that goes down reports so once.
            Err(error) => {
                to.flush()?;
                let goes_on = matches!(
                    error.kind(),
                    ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NetworkDown
                );
                if ends.load(Ordering::Relaxed) || !goes_on {
                    return Ok(());
                }
            }
        }
    }
}

/// Head of a pcap file with microseconds and Ethernet frames (`man 5 pcap-savefile`).
fn head() -> [u8; 24] {
    let mut head = [0; 24];
    head[..4].copy_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
    (head[4], head[6]) = (2, 4);
    head[16..20].copy_from_slice(&(LONGEST as u32).to_le_bytes());
    head[20] = 1;
    head
}

/// Head of a frame of `len` bytes at `time` after 1970.
fn record(time: Duration, len: usize) -> [u8; 16] {
    let mut head = [0; 16];
    // The format has 32 bits.
    let words = [time.as_secs() as u32, time.subsec_micros(), len as u32, len as u32];
    head.chunks_exact_mut(4).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::capture::{LinkType, frames};

    #[test]
    fn written_frames_are_read_back() {
        let mut file = head().to_vec();
        for (millis, frame) in [(1500, &b"first"[..]), (2000, b"second one")] {
            file.extend(record(Duration::from_millis(millis), frame.len()));
            file.extend(frame);
        }
        let read: Vec<_> = frames(&file).unwrap().map(|frame| frame.unwrap()).collect();
        assert_eq!(read.iter().map(|frame| frame.data).collect::<Vec<_>>(), [&b"first"[..], b"second one"]);
        assert!(read.iter().all(|frame| frame.link == LinkType::Ethernet));
    }
}
