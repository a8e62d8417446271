//! Captures of links: the Ethernet frames at the switch's end of each, as a pcap file.

use crate::output::Result;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg, setsockopt,
    socket, sockopt,
};
use nix::sys::time::{TimeSpec, TimeVal, TimeValLike};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Maximum length of a frame: the largest MTU and an Ethernet header.
const MAX_FRAME: usize = 65_535 + 14;
/// Milliseconds without frames after which the files are flushed.
const FLUSH_AFTER_MS: i64 = 50;
/// Size of the socket's receive buffer in bytes; the kernel drops frames that exceed it.
const RECEIVE_BUFFER: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Captures {
    /// Set to end the thread.
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

/// The file of each interface, by its index.
type Files = BTreeMap<usize, BufWriter<File>>;

impl Captures {
    /// Captures each of these interfaces of this network namespace to a file in `folder`.
    pub(super) fn start(folder: &Path, links: &[(String, String)]) -> Result<Self> {
        let frames = open().map_err(|cause| format!("cannot capture: {cause}"))?;
        let mut files = Files::new();
        for (interface, name) in links {
            let file = folder.join(format!("{name}.pcap"));
            add(&mut files, interface, &file)
                .map_err(|cause| format!("cannot capture to {}: {cause}", file.display()))?;
        }
        let is_ending = Arc::default();
        let end = Arc::clone(&is_ending);
        Ok(Self { is_ending, thread: thread::Builder::new().spawn(move || copy(&frames, files, &end))? })
    }

    /// Ends the captures once all frames are in the files.
    pub(super) fn end(self) -> Result {
        self.is_ending.store(true, Ordering::Relaxed);
        Ok(self.thread.join().map_err(|_| "a capture failed")??)
    }
}

/// Creates the file of an interface.
fn add(files: &mut Files, interface: &str, file: &Path) -> io::Result<()> {
    let mut to = BufWriter::new(File::create(file)?);
    to.write_all(&file_header())?;
    files.insert(if_nametoindex(interface)? as usize, to);
    Ok(())
}

/// Opens a socket for the frames of all interfaces, with the time at which the kernel saw each
/// (`man 7 packet`, SO_TIMESTAMPNS).
fn open() -> nix::Result<OwnedFd> {
    let frames = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
    setsockopt(&frames, sockopt::ReceiveTimestampns, &true)?;
    setsockopt(&frames, sockopt::ReceiveTimeout, &TimeVal::milliseconds(FLUSH_AFTER_MS))?;
    // More than the system's limit needs a privilege that the root of a user namespace lacks.
    setsockopt(&frames, sockopt::RcvBufForce, &RECEIVE_BUFFER)
        .or_else(|_| setsockopt(&frames, sockopt::RcvBuf, &RECEIVE_BUFFER))?;
    Ok(frames)
}

/// Copies frames to the files of their interfaces until no frame remains and `is_ending` is set.
fn copy(frames: &OwnedFd, mut files: Files, is_ending: &AtomicBool) -> io::Result<()> {
    let (mut room, mut control) = (vec![0; MAX_FRAME], cmsg_space!(TimeSpec));
    loop {
        let mut parts = [IoSliceMut::new(&mut room)];
        match recvmsg::<LinkAddr>(frames.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty()) {
            Ok(received) => {
                let time = received.cmsgs()?.find_map(|message| match message {
                    ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                    _ => None,
                });
                let (len, interface) = (received.bytes, received.address.map(|address| address.ifindex()));
                if let (Some(to), Some(time)) = (interface.and_then(|index| files.get_mut(&index)), time) {
                    to.write_all(&frame_header(time, len))?;
                    to.write_all(room.get(..len).unwrap_or_default())?;
                }
            }
            // The socket reports ENETDOWN once for each interface that goes down.
            Err(Errno::EINTR | Errno::ENETDOWN) => {}
            Err(Errno::EAGAIN) => {
                files.values_mut().try_for_each(BufWriter::flush)?;
                if is_ending.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the header of a pcap file with microseconds and Ethernet frames (`man 5 pcap-savefile`).
fn file_header() -> [u8; 24] {
    let mut head = [0; 24];
    head[..4].copy_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
    (head[4], head[6]) = (2, 4);
    head[16..20].copy_from_slice(&(MAX_FRAME as u32).to_le_bytes());
    head[20] = 1;
    head
}

/// Returns the header of a frame of `len` bytes at `time` after 1970.
fn frame_header(time: Duration, len: usize) -> [u8; 16] {
    let mut head = [0; 16];
    // The format has 32 bits for the seconds.
    let words = [time.as_secs() as u32, time.subsec_micros(), len as u32, len as u32];
    head.chunks_exact_mut(4).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::capture::{LinkType, frames};
    use std::net::UdpSocket;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn written_frames_are_read_back() {
        let mut file = file_header().to_vec();
        for (millis, frame) in [(1500, &b"first"[..]), (2000, b"second one")] {
            file.extend(frame_header(Duration::from_millis(millis), frame.len()));
            file.extend(frame);
        }
        let read: Vec<_> = frames(&file).unwrap().map(|frame| frame.unwrap()).collect();
        assert_eq!(read.iter().map(|frame| frame.data).collect::<Vec<_>>(), [&b"first"[..], b"second one"]);
        assert!(read.iter().all(|frame| frame.link == LinkType::Ethernet));
    }

    #[test]
    fn frame_has_the_time_at_which_it_was_sent() {
        let Ok(socket) = open() else {
            return eprintln!("skipped: only root can open packet sockets");
        };
        // The kernel begins to record times soon after the first socket requests them.
        assert!((0..100).any(|_| sent_frame_has_its_time(&socket)));
    }

    /// Sends a frame, captures it later, and returns true if its time is that of the call that sent
    /// it.
    fn sent_frame_has_its_time(socket: &OwnedFd) -> bool {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let before = now();
        let payload = format!("sent at {before:?}");
        sender.send_to(payload.as_bytes(), sender.local_addr().unwrap()).unwrap();
        let after = now();
        let path = std::env::temp_dir().join(format!("roxe-capture-{}.pcap", std::process::id()));
        let mut files = Files::new();
        add(&mut files, "lo", &path).unwrap();
        copy(socket, files, &AtomicBool::new(true)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let ours = frames(&bytes).unwrap().flatten().filter(|frame| frame.data.ends_with(payload.as_bytes()));
        let times: Vec<_> = ours.map(|frame| u128::from(frame.timestamp_ns / 1000)).collect();
        // Loopback shows each frame twice: sent and received.
        assert!(!times.is_empty());
        let sent = before.as_micros()..=after.as_micros();
        times.iter().all(|time| sent.contains(time))
    }
}
