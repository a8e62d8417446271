//! Reports programs that could have used roxe's card and opened no device, after their exit, with a
//! likely remedy.
//!
//! Some libraries choose their transport themselves and silently bypass roxe, such as Open MPI as
//! Debian configures it. A process that lists the devices opens a file in the folder
//! [`roxe_provider::watched_dir`], and a process that starts a device opens another file there. An
//! inotify watch reports both.

use crate::asks;
use nix::sys::inotify::AddWatchFlags;
use roxe_provider::{LISTED_FILE, STARTED_FILE};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Length in bytes of `inotify_event` before its name.
const HEADER_LEN: usize = 16;
/// Libraries of Open MPI's launcher and of programs built with it.
const OPEN_MPI: [&str; 2] = ["libopen-rte.so", "libmpi.so.40"];

/// Files that were opened while the program ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opened {
    /// True if roxe's library was opened.
    pub(crate) library: bool,
    /// True if a process listed the devices.
    pub(crate) list: bool,
    pub(crate) device: bool,
}

impl Opened {
    /// Reads all events of a non-blocking watch.
    pub(crate) fn read(events: &mut impl Read) -> Self {
        let (mut found, mut bytes) = (Self::default(), vec![0; 1 << 16]);
        while let Ok(len @ 1..) = events.read(&mut bytes) {
            found.add(&bytes[..len]);
        }
        found
    }

    fn add(&mut self, mut events: &[u8]) {
        while let Some((header, rest)) = events.split_first_chunk::<HEADER_LEN>() {
            let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
            let (mask, len) = (word(4), word(12) as usize);
            let name = rest.get(..len).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
            // Events lost by an overflow may include the start of a device.
            self.device |= name == STARTED_FILE.as_bytes() || mask & AddWatchFlags::IN_Q_OVERFLOW.bits() != 0;
            self.list |= name == LISTED_FILE.as_bytes();
            let kind = mask & (AddWatchFlags::IN_OPEN | AddWatchFlags::IN_ISDIR).bits();
            self.library |= name.is_empty() && kind == AddWatchFlags::IN_OPEN.bits();
            events = rest.get(len..).unwrap_or_default();
        }
    }
}

/// Returns true if a program with these arguments only prints its help or version.
pub(crate) fn asks_for_help(words: &[OsString]) -> bool {
    words.iter().any(|word| word == "--help" || word == "--version")
        || matches!(words, [_, word] if word == "-h" || word == "-V")
}

/// Returns true if, judged by its file, a program uses verbs or may choose them.
pub(crate) fn may_use_verbs(file: &Path) -> bool {
    asks::verbs_use(file).is_some() || is_open_mpi(file)
}

fn is_open_mpi(file: &Path) -> bool {
    asks::needs(file, &OPEN_MPI)
}

/// Reports that `program`, which has ended, opened no device; `ran` has the files of its processes.
pub(crate) fn report<'a>(program: &'a Path, ran: impl Iterator<Item = &'a PathBuf>, opened: Opened, explain: bool) {
    let mut files = std::iter::once(program).chain(ran.map(PathBuf::as_path));
    let (line, more) = match files.find(|file| is_open_mpi(file)) {
        Some(_) => MPI,
        None if opened.library && !opened.list => NOT_USED,
        None if opened.list && explain => ONLY_LISTED,
        None => return,
    };
    eprintln!("roxe run: {} has ended, and no device was opened: {line}", program.display());
    more.iter().filter(|_| explain).for_each(|more| eprintln!("    {more}"));
}

/// Summary of the report, and more lines for `--explain`.
type ReportText = (&'static str, &'static [&'static str]);

const MPI: ReportText = (
    "Open MPI was set to other transports (Debian's openmpi-mca-params.conf switches ucx and ofi off); start it with \
     `mpirun --mca pml ucx -x UCX_TLS=rc_v,self`",
    &[
        "libfabric      with --netdev eth0, because it does not use the loopback interface: mpirun --mca pml cm --mca mtl ofi \
         --mca mtl_ofi_provider_include 'verbs;ofi_rxm'",
        "in a file      pml = ucx in ~/.openmpi/mca-params.conf; OMPI_MCA_pml=ucx in the environment",
        "why UCX_TLS    between processes of one host UCX prefers shared memory of its own",
    ],
);

const NOT_USED: ReportText = (
    "libibverbs was loaded, but no process listed the devices; choose verbs in the program's settings (UCX_TLS=rc_v,self \
     for UCX, FI_PROVIDER=verbs for libfabric)",
    REMEDIES,
);

const ONLY_LISTED: ReportText = ("a process listed the devices and opened none of them", REMEDIES);

const REMEDIES: &[&str] = &[
    "what it sees   roxe run -- ibv_devinfo",
    "other names    --profile cx6 for programs that look for mlx5_0, ROXE_DEVICE_NAME for others",
    "GID index 3    --profile cx6, or ROXE_GID_LAYOUT=mellanox",
    "libfabric      does not use the loopback interface: --netdev eth0",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an event in the kernel's format (`man inotify`).
    fn event(mask: AddWatchFlags, name: &str) -> Vec<u8> {
        let len = if name.is_empty() { 0 } else { (name.len() + 1).next_multiple_of(16) };
        let mut bytes = [1, mask.bits(), 0, len as u32].map(u32::to_ne_bytes).concat();
        bytes.extend(name.bytes());
        bytes.resize(HEADER_LEN + len, 0);
        bytes
    }

    #[test]
    fn inotify_events_distinguish_library_list_and_device() {
        let library = event(AddWatchFlags::IN_OPEN, "");
        let list = event(AddWatchFlags::IN_OPEN, LISTED_FILE);
        let other = event(AddWatchFlags::IN_OPEN, "other");
        // Any process may list the folder, or remove it.
        let folder = event(AddWatchFlags::IN_OPEN | AddWatchFlags::IN_ISDIR, "");
        let removed = event(AddWatchFlags::IN_IGNORED, "");
        let device = event(AddWatchFlags::IN_OPEN, STARTED_FILE);
        let read = |events: &[&[u8]]| Opened::read(&mut events.concat().as_slice());
        assert_eq!(read(&[]), Opened::default());
        assert_eq!(read(&[&folder, &removed]), Opened::default());
        assert_eq!(read(&[&library, &other]), Opened { library: true, ..Opened::default() });
        assert_eq!(read(&[&list]), Opened { list: true, ..Opened::default() });
        assert_eq!(read(&[&other, &device, &other]), Opened { device: true, ..Opened::default() });
        assert!(read(&[&event(AddWatchFlags::IN_Q_OVERFLOW, "")]).device);
    }

    #[test]
    fn help_and_version_options_are_recognized() {
        let asks = |words: &[&str]| asks_for_help(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(!asks(&["ib_write_bw", "-h", "x"]) && !asks(&["fio", "job"]) && !asks(&["fio"]));
        assert!(asks(&["ib_write_bw", "--help"]) && asks(&["fio", "-V"]));
    }
}
