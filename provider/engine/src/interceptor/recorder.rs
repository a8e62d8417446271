//! The capture file of this process (`ROXE_CAPTURE`): pcapng, one section, one interface per
//! device.
//!
//! Each batch is written with one system call, so the file of a killed process is complete up to
//! its last batch. The file is locked while the process lives: a second process with the same name,
//! and the child of a fork, write files of their own next to it.

use roxe_base::cancel::uncancelled;
use roxe_base::lock::{Lockable, Mutex, MutexGuard, rank};
use roxe_base::private_file::{self, names_process, with_process_id};
use roxe_observe::notice;
use roxe_wire::NetHeader;
use roxe_wire::capture::{Direction, Outgoing, write_interface, write_packet, write_section};
use roxe_wire::cm::Mad;
use std::fmt::{Display, Write as _};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[derive(Debug)]
pub(crate) struct Recorder {
    configured: PathBuf,
    state: Mutex<rank::Capture, State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` after a failed write, and in the child of a fork until it resumes.
    file: Option<File>,
    written: u64,
    blocks: Vec<u8>,
    interfaces: Vec<String>,
    comment: String,
}

impl Recorder {
    /// Creates the file, or overwrites it unless another process is writing it.
    pub(crate) fn create(configured: &Path) -> io::Result<Self> {
        let file = match open(&with_process_id(configured))? {
            Some(file) => file,
            None => open_beside(configured)?,
        };
        let recorder = Self { configured: configured.into(), state: Mutex::new(State::default()) };
        recorder.state.lock().begin(file)?;
        Ok(recorder)
    }

    pub(crate) fn configured(&self) -> &Path {
        &self.configured
    }

    /// Returns the index of the interface `name`, which is added if new.
    pub(crate) fn interface(&self, name: &str) -> u32 {
        let mut state = self.state.lock();
        let known = state.interfaces.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            write_interface(&mut state.blocks, name);
            state.interfaces.push(name.to_owned());
            state.write_out();
            state.interfaces.len() - 1
        });
        u32::try_from(number).unwrap_or(0)
    }

    /// Begins a batch; other threads that record wait until the batch is dropped.
    pub(super) fn record(&self) -> Batch<'_> {
        Batch(self.state.lock())
    }

    /// Closes the parent's file in the child of a fork.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock();
        state.file = None;
        state.blocks.clear();
    }

    pub(crate) fn resume(&self) -> io::Result<()> {
        let file = if names_process(&self.configured) { open(&with_process_id(&self.configured))? } else { None };
        let file = file.map_or_else(|| open_beside(&self.configured), Ok)?;
        self.state.lock().begin(file)
    }

    pub(crate) fn lockable(&self) -> &impl Lockable {
        &self.state
    }
}

impl State {
    fn begin(&mut self, file: File) -> io::Result<()> {
        self.blocks.clear();
        write_section(&mut self.blocks, concat!("roxe ", env!("CARGO_PKG_VERSION")));
        self.interfaces.iter().for_each(|name| write_interface(&mut self.blocks, name));
        (&file).write_all(&self.blocks)?;
        self.written = self.blocks.len() as u64;
        self.blocks.clear();
        self.file = Some(file);
        Ok(())
    }

    /// Writes the pending blocks. After a failure the file keeps its complete blocks and recording
    /// ends.
    fn write_out(&mut self) {
        if let Some(mut file) = self.file.take_if(|_| !self.blocks.is_empty()) {
            match uncancelled(|| file.write_all(&self.blocks)) {
                Ok(()) => {
                    self.written += self.blocks.len() as u64;
                    self.file = Some(file);
                }
                Err(cause) => {
                    notice::print(&format_args!("capture: cannot write, nothing more is recorded: {cause}"));
                    // Fails for a pipe, whose reader detects the truncated block.
                    let _ = file.set_len(self.written);
                }
            }
        }
        self.blocks.clear();
    }
}

/// A batch of packets to be written.
#[derive(Debug)]
pub(super) struct Batch<'a>(MutexGuard<'a, rank::Capture, State>);

impl Batch<'_> {
    /// Adds a packet. `payload` reaches from BTH to ICRC; `message` is the CM message in it.
    pub(super) fn packet(
        &mut self,
        interface: u32,
        (direction, net, payload): (Direction, &NetHeader, &[u8]),
        packet_comment: &dyn Display,
        message: Option<&Mad>,
    ) {
        let State { blocks, comment, .. } = &mut *self.0;
        comment.clear();
        let _ = write!(comment, "{packet_comment}");
        if let Some(mad) = message {
            let _ = write!(comment, " | {mad}");
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let timestamp_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        write_packet(blocks, &Outgoing { interface, timestamp_ns, direction, net: *net, payload, comment });
    }

    pub(super) fn mark(&self) -> usize {
        self.0.blocks.len()
    }

    pub(super) fn rewind(&mut self, mark: usize) {
        self.0.blocks.truncate(mark);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.0.write_out();
    }
}

/// Opens `path` and empties it; `None` if another process is writing it.
fn open(path: &Path) -> io::Result<Option<File>> {
    // The file is truncated only once it is locked.
    let file = private_file::open(OpenOptions::new().write(true).truncate(false), path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        // Some file systems have no locks; then no other process can be detected.
        Err(TryLockError::Error(_)) => {}
    }
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(Some(file))
}

/// Opens a file of this process next to the configured one and prints a notice.
fn open_beside(configured: &Path) -> io::Result<File> {
    let path = path_with_process_suffix(configured);
    let file = open(&path)?.ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))?;
    notice::print(&format_args!(
        "capture: another process writes {}, this one ({}) writes {}",
        configured.display(),
        std::process::id(),
        path.display()
    ));
    Ok(file)
}

/// Returns the path `name.PID.pcapng` for `name.pcapng`.
fn path_with_process_suffix(path: &Path) -> PathBuf {
    let id = std::process::id().to_string();
    let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
    path.with_extension(extension.map_or_else(|| id.clone(), |extension| format!("{id}.{extension}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::capture::frames;
    use roxe_wire::cm::{CommId, PrivateData, Rtu, TransactionId};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, symlink};

    /// A file name of one test, removed with the files next to it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("roxe-recorder-{}-{name}.pcapng", std::process::id())))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            for path in [self.0.clone(), path_with_process_suffix(&self.0), with_process_id(&self.0)] {
                let _ = fs::remove_file(path);
            }
        }
    }

    fn record(recorder: &Recorder, comments: &[&str]) {
        let number = recorder.interface("roxe0");
        let mut batch = recorder.record();
        for packet_comment in comments {
            let packet = (Direction::Outbound, &NetHeader::default(), &b"some bytes"[..]);
            batch.packet(number, packet, packet_comment, None);
        }
    }

    fn comments(path: &Path) -> Vec<String> {
        let file = fs::read(path).unwrap();
        frames(&file).unwrap().map(|frame| frame.unwrap().comment.to_owned()).collect()
    }

    #[test]
    fn cm_messages_are_in_comments() {
        let rtu = Rtu { local_comm_id: CommId(1), remote_comm_id: CommId(2), private_data: PrivateData::EMPTY };
        let mad = Mad { tid: TransactionId(3), modifier: 0, message: rtu.into() };
        let scratch = Scratch::new("message");
        let recorder = Recorder::create(&scratch.0).unwrap();
        let number = recorder.interface("roxe0");
        let packet = (Direction::Inbound, &NetHeader::default(), &b""[..]);
        recorder.record().packet(number, packet, &"qp 0x1 received", Some(&mad));
        assert_eq!(comments(&scratch.0), ["qp 0x1 received | CM RTU comm=0x1 peer=0x2"]);
    }

    #[test]
    fn batch_is_in_file_when_it_ends() {
        let scratch = Scratch::new("batch");
        let recorder = Recorder::create(&scratch.0).unwrap();
        assert_eq!((recorder.interface("roxe0"), recorder.interface("roxe1"), recorder.interface("roxe0")), (0, 1, 0));
        record(&recorder, &["a", "b"]);
        assert_eq!(comments(&scratch.0), ["a", "b"]);
        let mut batch = recorder.record();
        let mark = batch.mark();
        batch.packet(0, (Direction::Inbound, &NetHeader::default(), &[]), &"never sent", None);
        batch.rewind(mark);
        drop(batch);
        record(&recorder, &["c"]);
        assert_eq!(comments(&scratch.0), ["a", "b", "c"]);
    }

    #[test]
    fn second_process_writes_own_file_and_old_file_is_overwritten() {
        let scratch = Scratch::new("twice");
        fs::write(&scratch.0, "an old file, longer than the new one".repeat(100)).unwrap();
        let first = Recorder::create(&scratch.0).unwrap();
        let second = Recorder::create(&scratch.0).unwrap();
        record(&first, &["first"]);
        record(&second, &["second"]);
        assert_eq!(comments(&scratch.0), ["first"]);
        assert_eq!(comments(&path_with_process_suffix(&scratch.0)), ["second"]);
    }

    #[test]
    fn child_leaves_parents_file_alone() {
        let scratch = Scratch::new("child");
        let recorder = Recorder::create(&scratch.0).unwrap();
        record(&recorder, &["of the parent"]);
        recorder.abandon();
        record(&recorder, &["of no process"]);
        recorder.resume().unwrap();
        record(&recorder, &["of the child"]);
        assert_eq!(comments(&scratch.0), ["of the parent"]);
        assert_eq!(comments(&path_with_process_suffix(&scratch.0)), ["of the child"]);
    }

    #[test]
    fn new_capture_is_private() {
        let scratch = Scratch::new("private");
        let _recorder = Recorder::create(&scratch.0).unwrap();
        assert_eq!(fs::metadata(&scratch.0).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn capture_refuses_links_and_special_files() {
        let (scratch, target) = (Scratch::new("planted"), Scratch::new("target"));
        fs::write(&target.0, "precious").unwrap();
        type Plant = fn(PathBuf, PathBuf) -> io::Result<()>;
        for plant in [symlink as Plant, fs::hard_link as Plant] {
            plant(target.0.clone(), scratch.0.clone()).unwrap();
            let error = Recorder::create(&scratch.0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            fs::remove_file(&scratch.0).unwrap();
        }
        assert_eq!(fs::read(&target.0).unwrap(), b"precious");
    }

    #[test]
    fn capture_refuses_file_of_another_user() {
        let scratch = Scratch::new("foreign");
        fs::write(&scratch.0, "precious").unwrap();
        if chown(&scratch.0, Some(12_345), None).is_err() {
            return eprintln!("skipped: only root can make a file of another user");
        }
        let error = Recorder::create(&scratch.0).unwrap_err();
        assert!(error.to_string().contains("belongs to user 12345"), "{error}");
        assert_eq!(fs::read(&scratch.0).unwrap(), b"precious");
    }

    #[test]
    fn second_file_has_process_id_before_extension() {
        let id = std::process::id();
        assert_eq!(
            path_with_process_suffix(Path::new("/tmp/a.b.pcapng")),
            PathBuf::from(format!("/tmp/a.b.{id}.pcapng"))
        );
        assert_eq!(path_with_process_suffix(Path::new("plain")), PathBuf::from(format!("plain.{id}")));
    }
}
