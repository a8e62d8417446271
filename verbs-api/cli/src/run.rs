//! `roxe run -- PROGRAM`: starts a program so that its loader finds our libraries instead of the system's.
//!
//! The loader looks for the names `libibverbs.so.1` and `librdmacm.so.1` in the folders of `LD_LIBRARY_PATH`. So we keep
//! a private folder with these two names, both links to `libroxe.so`, put it first, and become the program: its process
//! id, its signals and its exit status are its own. Touches the file system and the environment, no device.

use crate::{checkers, stats, view};
use nix::unistd::geteuid;
use roxe_provider::config::{ConfigError, check_value, variable};
use roxe_provider::runtime_dir;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The names programs were linked with.
const LINKS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The shared object that Cargo builds.
const LIBRARY: &str = "libroxe.so";

/// The socket shim, beside `LIBRARY`, under the name that it has in rdma-core too.
const SHIM: &str = "librspreload.so";

/// What `roxe run` was asked to do.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Network interfaces to open, separated by commas; the first becomes roxe0 [default: lo].
    #[arg(long, value_name = "NAMES")]
    netdev: Option<String>,
    /// Inject faults: rules like 'seed=42; drop 3%; reorder 2% by=1ms', or @FILE that holds rules.
    #[arg(long, value_name = "RULES")]
    faults: Option<String>,
    /// Write every packet to this file (pcapng); %p in its name stands for the process id.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Print what every device counted when the program ends (ROXE_STATS).
    #[arg(long)]
    stats: bool,
    /// Do not show the program a /sys/class/infiniband and a /dev/infiniband (ROXE_VIEW=off).
    #[arg(long)]
    no_view: bool,
    /// Also set LD_PRELOAD, for programs that ship a libibverbs of their own or were linked with a fixed library path.
    #[arg(long)]
    preload: bool,
    /// Carry the program's TCP and UDP sockets over RDMA (rsockets); both ends of a connection need it.
    ///
    /// Sets LD_PRELOAD to librspreload.so, which stands between the program and the socket calls of the C library. Where nobody
    /// answers by RDMA, connect() makes an ordinary connection. RS_SQ_SIZE, RS_RQ_SIZE and RS_INLINE set sizes; servers that fork
    /// need RDMAV_FORK_SAFE=1 on both ends; /etc/rdma/rsocket/preload_config may leave programs out. See man 7 rsocket.
    #[arg(long)]
    rsocket: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM [ARGS]", allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Args {
    /// The program and its arguments.
    #[cfg(test)]
    pub(crate) fn command(&self) -> &[OsString] {
        &self.command
    }
}

/// Why a program could not be started. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(
        "{LIBRARY} is not there ({}).\n  \
         Build it with `cargo build --release`, or say where it is with ROXE_LIB=/path/to/{LIBRARY}.",
        looked(looked_in)
    )]
    NoLibrary { looked_in: Vec<PathBuf> },
    #[error("{} is not there.\n  Build it with `cargo build --release`; it belongs beside {LIBRARY}.", shim.display())]
    NoShim { shim: PathBuf },
    #[error("ROXE_LIB names {}, which cannot be used: {cause}.\n  Set it to the full path of {LIBRARY}, or unset it.", path.display())]
    BadLibrary { path: PathBuf, cause: io::Error },
    #[error(
        "{} belongs to somebody else or others may write there, so libraries in it cannot be trusted.\n  \
         Remove it, or set XDG_RUNTIME_DIR to a folder that only you can write.",
        path.display()
    )]
    Untrusted { path: PathBuf },
    #[error("{0}.")]
    NoFolder(io::Error),
    #[error("cannot prepare {}: {cause}.\n  Set XDG_RUNTIME_DIR to a folder that only you can write.", path.display())]
    Folder { path: PathBuf, cause: io::Error },
    #[error("{0}")]
    Setting(#[from] ConfigError),
    #[error("ROXE_VIEW={0} is not understood: it must be on or off")]
    View(String),
    #[error("cannot start {}: there is no such program.\n  Check the spelling, or give its full path.", program.display())]
    NotFound { program: PathBuf },
    #[error("cannot start {}: {cause}.", program.display())]
    Exec { program: PathBuf, cause: io::Error },
}

impl RunError {
    /// The status a shell reports for a command that could not be started.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::Exec { .. } => 126,
            _ => 125,
        }
    }
}

/// Becomes the program. Returns only when that failed.
pub(crate) fn run(args: &Args) -> RunError {
    match prepare(args) {
        Ok(mut command) => exec(&mut command),
        Err(error) => error,
    }
}

fn prepare(args: &Args) -> Result<Command, RunError> {
    let library = find_library()?;
    let folder = link_folder(&library)?;
    let (program, rest) = args.command.split_first().ok_or_else(|| RunError::NotFound { program: PathBuf::new() })?;
    let mut command = Command::new(program);
    command.args(rest).env("LD_LIBRARY_PATH", prepend(folder.as_os_str(), std::env::var_os("LD_LIBRARY_PATH")));
    if let Some(list) = preloaded(args, &library, &folder)? {
        command.env("LD_PRELOAD", list);
    }
    let checkers = checkers::variables(&folder, args.preload || args.rsocket);
    command.envs(checkers.map_err(|cause| RunError::Folder { path: folder, cause })?);
    if let Some(netdev) = &args.netdev {
        command.env("ROXE_NETDEV", netdev);
    }
    if let Some(rules) = &args.faults {
        // The program would only find no device.
        check_value("ROXE_FAULTS", rules)?;
        command.env("ROXE_FAULTS", rules);
    }
    if let Some(file) = &args.capture {
        command.env("ROXE_CAPTURE", file);
    }
    if args.stats {
        command.env("ROXE_STATS", "on");
        leave_stats(&mut command)?;
    }
    if !args.no_view && wants_view(variable("ROXE_VIEW"))? {
        show_view(args, &mut command)?;
    }
    Ok(command)
}

/// What LD_PRELOAD has to be, if it is for us to say.
fn preloaded(args: &Args, library: &Path, folder: &Path) -> Result<Option<OsString>, RunError> {
    let mut list = std::env::var_os("LD_PRELOAD");
    if args.preload {
        list = Some(prepend(folder.join(LINKS[0]).as_os_str(), list));
    }
    if args.rsocket {
        let shim = library.with_file_name(SHIM);
        if !shim.is_file() {
            return Err(RunError::NoShim { shim });
        }
        place_link(folder, SHIM, &shim).map_err(|cause| RunError::Folder { path: folder.into(), cause })?;
        list = Some(prepend(folder.join(SHIM).as_os_str(), list));
    }
    Ok(list.filter(|_| args.preload || args.rsocket))
}

/// What ROXE_VIEW says.
fn wants_view(value: Option<OsString>) -> Result<bool, RunError> {
    match value.as_ref().map_or(Some("on"), |value| value.to_str()) {
        Some("on" | "1" | "yes") => Ok(true),
        Some("off" | "0" | "no") => Ok(false),
        _ => Err(RunError::View(value.unwrap_or_default().to_string_lossy().into_owned())),
    }
}

/// Shows the program our devices in the places where others look for hardware.
fn show_view(args: &Args, command: &mut Command) -> Result<(), RunError> {
    let scratch = private_folder(&base_folder()?.join("view"))?;
    let report = |error| eprintln!("roxe run: {error}");
    if view::enter(args.netdev.as_deref(), command.get_program(), &scratch, report) {
        command.env("ROXE_COUNTERS", view::CLASS);
    }
    Ok(())
}

/// Sees to it that what processes have counted is printed however they end. Who cannot have that has the rest all the same.
fn leave_stats(command: &mut Command) -> Result<(), RunError> {
    let base = private_folder(&base_folder()?.join("stats"))?;
    match stats::watch(&base) {
        Ok(folder) => _ = command.env("ROXE_STATS_FILES", folder),
        Err(e) => eprintln!("roxe run: what killed processes have counted will not be printed: {e}"),
    }
    Ok(())
}

fn exec(command: &mut Command) -> RunError {
    let cause = command.exec();
    let program = PathBuf::from(command.get_program());
    match cause.kind() {
        io::ErrorKind::NotFound => RunError::NotFound { program },
        _ => RunError::Exec { program, cause },
    }
}

/// `value` in front of what the variable held already; both lists are separated by colons.
fn prepend(value: &OsStr, old: Option<OsString>) -> OsString {
    let mut list = value.to_owned();
    if let Some(old) = old.filter(|old| !old.is_empty()) {
        list.push(":");
        list.push(old);
    }
    list
}

fn find_library() -> Result<PathBuf, RunError> {
    if let Some(path) = variable("ROXE_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|cause| RunError::BadLibrary { path, cause });
    }
    let looked_in = own_program().map(|exe| candidates(&exe)).unwrap_or_default();
    looked_in.iter().find_map(|path| path.canonicalize().ok()).ok_or(RunError::NoLibrary { looked_in })
}

/// This very program: as the kernel says it, or, where there is no /proc, as it was called.
fn own_program() -> Option<PathBuf> {
    let called = || found_as(Path::new(&std::env::args_os().next()?), std::env::var_os("PATH"));
    std::env::current_exe().ok().or_else(called)
}

/// The file that is started by the name `called`: that name if it has a folder, else in the first folder of `path` that has it.
fn found_as(called: &Path, path: Option<OsString>) -> Option<PathBuf> {
    if called.components().count() > 1 {
        return called.canonicalize().ok();
    }
    std::env::split_paths(&path?).find_map(|folder| folder.join(called).canonicalize().ok())
}

/// Where the library may be when the program is `exe`: in `deps`, where Cargo always leaves the newest; beside the
/// program, where it puts another link when asked for the library itself; in `../lib`, when installed.
fn candidates(exe: &Path) -> Vec<PathBuf> {
    let Some(folder) = exe.parent() else { return Vec::new() };
    ["deps", "", "../lib"].iter().map(|place| folder.join(place).join(LIBRARY)).collect()
}

/// The folder with the links to `library`, made if need be.
///
/// There is one folder per library file, so that two builds do not take each other's links away. Any number of starts may
/// do this at once: every step is either atomic or harmless when another process was faster.
fn link_folder(library: &Path) -> Result<PathBuf, RunError> {
    let base = base_folder()?;
    let folder = private_folder(&base.join(format!("lib-{:016x}", fnv1a(library.as_os_str().as_bytes()))))?;
    for name in LINKS {
        place_link(&folder, name, library).map_err(|cause| RunError::Folder { path: folder.clone(), cause })?;
    }
    Ok(folder)
}

/// The folder that only this user can enter: the loader will run code from it.
fn base_folder() -> Result<PathBuf, RunError> {
    runtime_dir().map_err(RunError::NoFolder)
}

/// Makes `path` with mode 0700 unless it is there, and checks that nobody else may change what it holds: the loader will
/// run code from it.
fn private_folder(path: &Path) -> Result<PathBuf, RunError> {
    let unusable = |cause| RunError::Folder { path: path.into(), cause };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(unusable(cause)),
        _ => {}
    }
    let meta = fs::symlink_metadata(path).map_err(unusable)?;
    let ours = meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0;
    if ours { Ok(path.into()) } else { Err(RunError::Untrusted { path: path.into() }) }
}

/// Makes `folder/name` a link to `target`. A wrong or missing link is replaced by renaming a new one over it, so that a
/// program that starts meanwhile sees the old or the new link, never none.
fn place_link(folder: &Path, name: &str, target: &Path) -> io::Result<()> {
    let link = folder.join(name);
    if fs::read_link(&link).is_ok_and(|current| current == target) {
        return Ok(());
    }
    let fresh = folder.join(format!(".{name}.{}", std::process::id()));
    match symlink(target, &fresh).and_then(|()| fs::rename(&fresh, &link)) {
        // Left behind by a process that had our id and died between the two steps.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&fresh)?;
            symlink(target, &fresh)?;
            fs::rename(&fresh, &link)
        }
        other => other,
    }
}

/// FNV-1a, 64 bits: a name for a folder, the same in every process (the standard hasher does not promise that).
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn looked(places: &[PathBuf]) -> String {
    if places.is_empty() {
        return "looked nowhere: without /proc it cannot be told where this program lies".to_owned();
    }
    format!("looked in: {}", places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("roxe-cli-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn paths_are_prepended() {
        assert_eq!(prepend(OsStr::new("/a"), None), "/a");
        assert_eq!(prepend(OsStr::new("/a"), Some("".into())), "/a");
        assert_eq!(prepend(OsStr::new("/a"), Some("/b:/c".into())), "/a:/b:/c");
    }

    #[test]
    fn library_is_looked_for_beside_the_program_then_in_lib() {
        let places = candidates(Path::new("/opt/bin/roxe"));
        let expected = ["/opt/bin/deps/libroxe.so", "/opt/bin/libroxe.so", "/opt/bin/../lib/libroxe.so"];
        assert_eq!(places, expected.map(PathBuf::from));
    }

    #[test]
    fn without_proc_the_program_is_found_as_it_was_called() {
        let folder = scratch("called").canonicalize().unwrap();
        let program = folder.join("roxe");
        fs::write(&program, "").unwrap();
        assert_eq!(found_as(&program, None), Some(program.clone()));
        let path = std::env::join_paths([Path::new("/nowhere"), &folder]).unwrap();
        assert_eq!(found_as(Path::new("roxe"), Some(path)), Some(program));
        assert_eq!(found_as(Path::new("roxe"), None), None);
        let text = RunError::NoLibrary { looked_in: Vec::new() }.to_string();
        assert!(text.contains("looked nowhere") && text.contains("ROXE_LIB"), "{text}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_socket_shim_is_preloaded_from_beside_the_library() {
        let folder = scratch("shim");
        let library = folder.join(LIBRARY);
        let args = |rsocket| Args { rsocket, ..Args::default() };
        assert_eq!(preloaded(&args(false), &library, &folder).unwrap(), None);
        let text = preloaded(&args(true), &library, &folder).unwrap_err().to_string();
        assert!(text.contains(SHIM) && text.contains("cargo build --release"), "{text}");
        let links = folder.join("links");
        fs::create_dir(&links).unwrap();
        fs::write(folder.join(SHIM), "").unwrap();
        let list = preloaded(&args(true), &library, &links).unwrap().unwrap();
        assert_eq!(list.to_str().unwrap().split(':').next(), links.join(SHIM).to_str());
        assert_eq!(fs::read_link(links.join(SHIM)).unwrap(), folder.join(SHIM));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_wrong_link_is_replaced_and_a_right_one_is_kept() {
        let folder = scratch("links");
        symlink("/nowhere", folder.join(LINKS[0])).unwrap();
        place_link(&folder, LINKS[0], Path::new("/somewhere")).unwrap();
        place_link(&folder, LINKS[0], Path::new("/somewhere")).unwrap();
        assert_eq!(fs::read_link(folder.join(LINKS[0])).unwrap(), Path::new("/somewhere"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary link is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn many_starts_at_once_agree() {
        let folder = scratch("race").join("new");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| private_folder(&folder).unwrap());
            }
        });
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let folder = scratch("open");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(private_folder(&folder), Err(RunError::Untrusted { .. })));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_view_is_on_unless_switched_off() {
        assert!(wants_view(None).unwrap() && wants_view(Some("on".into())).unwrap());
        assert!(!wants_view(Some("off".into())).unwrap());
        assert!(wants_view(Some("maybe".into())).unwrap_err().to_string().contains("ROXE_VIEW=maybe"));
    }

    #[test]
    fn errors_say_what_to_do() {
        let text = RunError::NoLibrary { looked_in: candidates(Path::new("/x/roxe")) }.to_string();
        assert!(text.contains("cargo build --release") && text.contains("ROXE_LIB"), "{text}");
    }
}
