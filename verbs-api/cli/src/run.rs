//! `roxe run -- PROGRAM`: starts a program whose loader finds roxe's libraries instead of the
//! system's.
//!
//! `LD_LIBRARY_PATH` begins with a private folder where `libibverbs.so.1` and `librdmacm.so.1` are
//! links to `libroxe.so` (`library.rs`). Then this process becomes the program, which keeps its
//! process id, signals and exit status.

use crate::files::{FolderError, base_folder, place_link, private_folder};
use crate::library::{self, LINKS, LibraryError, SHIM, is_own_program};
use crate::output::Result;
use crate::program::{self, ProgramError};
use crate::view::{self, ViewParts};
use crate::{asks, bypass, checkers, stats, unused};
use roxe_base::private_file::{self, names_process, with_process_id};
use roxe_check::{Selection, Suppressions};
use roxe_provider::config::{ConfigError, check_value, preset, variable};
use roxe_provider::profile::PROFILES;
use roxe_provider::weakest::{Wanted, draw_seed};
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stderr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options that become variables of the program, for `roxe run` and `roxe env`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Network interfaces to open, separated by commas, as devices 0, 1, ... in this order
    /// [default: lo].
    #[arg(long, value_name = "NAMES")]
    pub(crate) netdev: Option<String>,
    /// Report the identity of a hardware card and enforce its limits (roxe help profiles).
    #[arg(long, value_name = "CARD", value_parser = profiles())]
    profile: Option<String>,
    /// Inject faults: rules such as 'seed=42; drop 3%; reorder 2% by=1ms', or @FILE; --faults help
    /// prints the language.
    #[arg(long, value_name = "RULES")]
    faults: Option<String>,
    /// Write every packet to this file (pcapng); %p in its name becomes the process id.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Write a time line of the queue pairs to this file, for ui.perfetto.dev (roxe help trace).
    /// All processes write to it; %p in its name becomes the process id.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the counters of every device when the program ends.
    #[arg(long)]
    stats: bool,
    /// Explain on standard error why verbs, work requests and connections failed, and why a program
    /// does not see roxe. Without this option, print one line each if standard error is a terminal.
    #[arg(long)]
    explain: bool,
    /// Report misuse of verbs (roxe help checker): errors and warnings, or all, or RULES separated
    /// by commas; -RULE leaves one out, warn keeps the exit status.
    ///
    /// A program that succeeds although an error was reported exits with 66.
    #[arg(long, value_name = "RULES", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    check: Option<String>,
    /// Add the reports of --check to this file: SARIF for FILE.sarif, JUnit XML for FILE.xml,
    /// otherwise JSON lines.
    #[arg(long, value_name = "FILE", requires = "check")]
    report: Option<PathBuf>,
    /// Write the file of --report as json, sarif or junit, regardless of its name.
    #[arg(long, value_name = "FORMAT", requires = "report", value_parser = ["json", "sarif", "junit"])]
    report_format: Option<String>,
    /// Leave out the reports of --check in this file: lines of RULE PATTERN # REASON.
    #[arg(long, value_name = "FILE", requires = "check")]
    suppressions: Option<PathBuf>,
    /// Be the weakest card that the standard allows (roxe help weakest): a random seed, or
    /// SEED[,NAME...]; -NAME leaves a weakness out.
    ///
    /// A program that fails with this card relies on more than verbs guarantee. The printed seed
    /// reproduces the card's choices.
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    weakest: Option<String>,
    /// Also set LD_PRELOAD, for programs with a bundled libibverbs or a fixed library path.
    #[arg(long)]
    preload: bool,
    /// Carry TCP and UDP sockets over RDMA (rsockets); both ends of a connection need it.
    ///
    /// Sets LD_PRELOAD to librspreload.so, which replaces the socket calls of the C library. If the
    /// other end has no rsockets, connect() makes a TCP connection. RS_SQ_SIZE, RS_RQ_SIZE and
    /// RS_INLINE set sizes; servers that fork need RDMAV_FORK_SAFE=1 on both ends;
    /// /etc/rdma/rsocket/preload_config excludes programs. See man 7 rsocket.
    #[arg(long)]
    rsocket: bool,
}

impl Options {
    /// Returns these options as words of a command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let values = [
            ("--netdev=", self.netdev.as_ref().map(OsStr::new)),
            ("--profile=", self.profile.as_ref().map(OsStr::new)),
            ("--faults=", self.faults.as_ref().map(OsStr::new)),
            ("--capture=", self.capture.as_ref().map(OsStr::new)),
            ("--trace=", self.trace.as_ref().map(OsStr::new)),
            ("--check=", self.check.as_ref().map(OsStr::new)),
            ("--report=", self.report.as_ref().map(OsStr::new)),
            ("--report-format=", self.report_format.as_ref().map(OsStr::new)),
            ("--suppressions=", self.suppressions.as_ref().map(OsStr::new)),
            ("--weakest=", self.weakest.as_ref().map(OsStr::new)),
        ];
        let values =
            values.into_iter().filter_map(|(name, value)| Some(OsString::from_iter([OsStr::new(name), value?])));
        let switches = [
            ("--stats", self.stats),
            ("--explain", self.explain),
            ("--preload", self.preload),
            ("--rsocket", self.rsocket),
        ];
        values.chain(switches.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.into())).collect()
    }
}

/// Accepts the names of profiles.
fn profiles() -> clap::builder::PossibleValuesParser {
    PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>().into()
}

/// Arguments of `roxe run`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// Do not show the program /sys/class/infiniband and /dev/infiniband of roxe's devices.
    #[arg(long)]
    no_view: bool,
    /// The program and its arguments.
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "faults",
        value_name = "PROGRAM [ARGS]",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,
}

impl Args {
    /// Returns true for `--faults help` without a program.
    pub(crate) fn asks_for_fault_rules(&self) -> bool {
        self.options.faults.as_deref() == Some("help") && self.command.is_empty()
    }
}

/// A reason why a program could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("wrong --faults: {0}; write rules such as `drop 3%; delay 5% by=1ms tx` (`roxe run --faults help`)")]
    Faults(ConfigError),
    #[error("wrong --profile: {0}")]
    Profile(ConfigError),
    #[error("wrong --check: {0}")]
    Check(String),
    #[error("wrong --weakest: {0}")]
    Weakest(String),
    #[error("cannot draw a seed for --weakest: {0}; give one, such as --weakest=42")]
    Seed(std::io::Error),
    #[error("wrong {option}: {}: {why}", file.display())]
    File { option: &'static str, file: PathBuf, why: String },
    #[error("wrong ROXE_VIEW: {0}; set it to on or off")]
    View(String),
    #[error("no program: `{option} {value}` is two words; write {option}={value}, and -- before the program")]
    Detached { option: &'static str, value: String },
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl RunError {
    /// Returns the status that a shell reports for a command that could not be started.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Program(ProgramError::NotFound { .. }) => 127,
            Self::Program(_) => 126,
            _ => 125,
        }
    }
}

/// `roxe run --faults help`: prints the rule language.
pub(crate) fn print_fault_rules() -> Result {
    Ok(std::io::Write::write_all(&mut std::io::stdout().lock(), roxe_transport::fault::LANGUAGE.as_bytes())?)
}

/// Becomes the program. Returns only if that failed.
pub(crate) fn run(args: &Args) -> RunError {
    match prepare(args) {
        Ok(mut command) => {
            let cause = command.exec();
            ProgramError::explain(command.get_program(), cause).into()
        }
        Err(error) => error,
    }
}

/// Refuses `--check RULE` and `--weakest SEED` without `=`. clap takes the second word for the
/// program; `file` is `None` if there is no such program.
fn check_detached(options: &Options, program: &OsStr, file: Option<&Path>) -> Result<(), RunError> {
    let Some(word) = program.to_str().filter(|_| file.is_none()) else { return Ok(()) };
    let is_bare = |option: &Option<String>| option.as_deref() == Some("on");
    let option = if is_bare(&options.check) && Selection::parse(word).is_ok() {
        "--check"
    } else if is_bare(&options.weakest) && word.parse::<Wanted>().is_ok() {
        "--weakest"
    } else {
        return Ok(());
    };
    Err(RunError::Detached { option, value: word.to_owned() })
}

fn prepare(args: &Args) -> Result<Command, RunError> {
    let nothing = || ProgramError::NotFound { program: PathBuf::new() };
    let (program, rest) = args.command.split_first().ok_or_else(nothing)?;
    let file = program::find(program);
    check_detached(&args.options, program, file.as_deref())?;
    let mut command = Command::new(program);
    command.args(rest);
    let library = set_variables(&args.options, &mut command)?;
    if !args.options.explain && stderr().is_terminal() && variable("ROXE_EXPLAIN").is_none() {
        command.env("ROXE_EXPLAIN", "line");
    }
    if args.options.stats {
        let base = private_folder(&base_folder()?.join("stats"))?;
        match stats::watch(&base) {
            Ok(folder) => _ = command.env("ROXE_STATS_FILES", folder),
            Err(error) => eprintln!("roxe run: counters of killed processes will not be printed: {error}"),
        }
    }
    let mut view_parts = ViewParts::default();
    if !args.no_view && wants_view(variable("ROXE_VIEW"))? {
        view_parts = show_view(&args.options, &library, file.as_deref(), &mut command)?;
    }
    let missing = file.as_deref().and_then(|file| reason_of_bypass(file, view_parts, args.options.preload));
    if let Some(why) = &missing {
        eprintln!("roxe run: {} may not use roxe: {why}", Path::new(program).display());
    }
    if file.as_deref().is_some_and(asks::sends_mads) {
        eprintln!(
            "roxe run: {} sends management datagrams, which roxe does not carry (no /dev/infiniband/umad); ibstat, rdma \
             and roxe devices show devices and links, rdma statistic the counters",
            Path::new(program).display()
        );
    }
    watch(args, &library, file.as_deref(), missing.is_some())?;
    Ok(command)
}

/// Starts the process that reports a program which bypasses roxe or opens no device. A bypass that
/// was reported already is not reported again.
fn watch(args: &Args, library: &Path, file: Option<&Path>, was_reported: bool) -> Result<(), RunError> {
    let reports_bypass = args.options.explain || stderr().is_terminal();
    let file = file.filter(|_| !was_reported);
    // A nested `roxe run` reports its own program.
    let unused = file.filter(|file| !unused::asks_for_help(&args.command) && !is_own_program(file));
    let report = args.options.report.clone();
    if reports_bypass || report.is_some() || unused.is_some_and(unused::may_use_verbs) {
        let watched = bypass::Args {
            pid: std::process::id(),
            library: library.into(),
            folder: library::link_folder(library)?,
            program: file.filter(|_| reports_bypass).map(Path::to_owned),
            unused: unused.map(Path::to_owned),
            report,
            blind: !reports_bypass,
            explain: args.options.explain,
            detach: true,
        };
        // The program runs even if the watching process does not start.
        _ = bypass::watch(&watched);
    }
    Ok(())
}

/// Returns why a program will not load roxe, judged by its file.
fn reason_of_bypass(program: &Path, view_parts: ViewParts, preload: bool) -> Option<String> {
    if program::is_static(program) {
        return asks::verbs_use(program).map(|_| bypass::STATIC.to_owned());
    }
    if view_parts.library || preload && !program::gains_rights(program) {
        return None;
    }
    program::bypass_by_loader(program).or_else(|| {
        let copy = view::copy_of_python(program)?;
        Some(format!("it may load {}; `roxe run --preload` leads it to roxe", copy.display()))
    })
}

/// Sets the variables of `command` with which its loader finds roxe, and those that pass the
/// options. Returns the path of roxe's library.
pub(crate) fn set_variables(options: &Options, command: &mut Command) -> Result<PathBuf, RunError> {
    let library = library::find()?;
    let folder = library::link_folder(&library)?;
    command.env("LD_LIBRARY_PATH", prepend(folder.as_os_str(), std::env::var_os("LD_LIBRARY_PATH")));
    // If PATH is not set, the system's default applies, and a new value would replace it.
    if let Some(path) = std::env::var_os("PATH").filter(|path| !path.is_empty())
        && let Some(commands) = library::commands(&folder)?
    {
        command.env("PATH", prepend(commands.as_os_str(), Some(path)));
    }
    if let Some(list) = preloaded(options, &library, &folder)? {
        command.env("LD_PRELOAD", list);
    }
    let checkers = checkers::variables(&folder, options.preload || options.rsocket);
    command.envs(checkers.map_err(|cause| FolderError::Unusable { path: folder, cause })?);
    set_options(options, command)?;
    Ok(library)
}

/// Passes the options to the library by variables. Checks their values here, because with an
/// invalid value the program would just find no device.
fn set_options(options: &Options, command: &mut Command) -> Result<(), RunError> {
    if let Some(card) = &options.profile {
        check_value("ROXE_PROFILE", card).map_err(RunError::Profile)?;
    }
    let faults = options.faults.as_deref().map(located_rules).transpose()?;
    let written = |option, file: &Option<PathBuf>| file.as_deref().map(|file| written_file(option, file)).transpose();
    let capture = written("--capture", &options.capture)?;
    let trace = written("--trace", &options.trace)?;
    let report = written("--report", &options.report)?;
    let suppressions = options.suppressions.as_deref().map(read_suppressions).transpose()?;
    if let Some(rules) = &options.check {
        Selection::parse(rules).map_err(RunError::Check)?;
    }
    let weakest = options.weakest.as_deref().map(choose_seed).transpose()?;
    let variables = [
        ("ROXE_NETDEV", options.netdev.as_ref().map(OsStr::new)),
        ("ROXE_PROFILE", options.profile.as_ref().map(OsStr::new)),
        ("ROXE_FAULTS", faults.as_ref().map(OsStr::new)),
        ("ROXE_CAPTURE", capture.as_ref().map(OsStr::new)),
        ("ROXE_TRACE", trace.as_ref().map(OsStr::new)),
        ("ROXE_EXPLAIN", options.explain.then_some(OsStr::new("full"))),
        ("ROXE_CHECK", options.check.as_ref().map(OsStr::new)),
        ("ROXE_WEAKEST", weakest.as_ref().map(OsStr::new)),
        ("ROXE_CHECK_REPORT", report.as_ref().map(OsStr::new)),
        ("ROXE_CHECK_REPORT_FORMAT", options.report_format.as_ref().map(OsStr::new)),
        ("ROXE_CHECK_SUPPRESSIONS", suppressions.as_ref().map(OsStr::new)),
        ("ROXE_STATS", options.stats.then_some(OsStr::new("words"))),
    ];
    command.envs(variables.into_iter().filter_map(|(name, value)| Some((name, value?))));
    Ok(())
}

/// Returns the value of ROXE_WEAKEST with a seed, which all processes share, and prints the seed.
fn choose_seed(text: &str) -> Result<String, RunError> {
    let wanted = text.parse::<Wanted>().map_err(RunError::Weakest)?;
    if wanted.weaknesses.is_empty() {
        return Ok(text.to_owned());
    }
    let (seed, text) = match wanted.seed {
        Some(seed) => (seed, text.to_owned()),
        None => draw_seed().map(|seed| (seed, format!("{seed},{text}"))).map_err(RunError::Seed)?,
    };
    eprintln!("roxe: weakest: seed {seed}");
    Ok(text)
}

/// Returns the absolute path of a file that the program will write, because the program may change
/// its working folder. Fails if the folder of the file does not exist and its name has no `%p`.
fn written_file(option: &'static str, file: &Path) -> Result<PathBuf, RunError> {
    let path = std::path::absolute(file).and_then(|path| {
        let is_known = !path.parent().is_some_and(names_process);
        // The program keeps the id of this process.
        if is_known { private_file::check(&with_process_id(&path)).map(|()| path) } else { Ok(path) }
    });
    path.map_err(|cause| RunError::File { option, file: file.into(), why: cause.to_string() })
}

/// Returns the absolute path of a valid file of suppressions.
fn read_suppressions(file: &Path) -> Result<PathBuf, RunError> {
    let path = std::fs::read_to_string(file).map_err(|cause| cause.to_string()).and_then(|text| {
        Suppressions::parse(&text)?;
        std::path::absolute(file).map_err(|cause| cause.to_string())
    });
    path.map_err(|why| RunError::File { option: "--suppressions", file: file.into(), why })
}

/// Returns the fault rules, with an absolute path in `@FILE`.
fn located_rules(rules: &str) -> Result<String, RunError> {
    check_value("ROXE_FAULTS", rules).map_err(RunError::Faults)?;
    let Some(file) = rules.trim().strip_prefix('@') else { return Ok(rules.to_owned()) };
    let path = std::path::absolute(file).map_err(|cause| cause.to_string()).and_then(|path| {
        path.into_os_string().into_string().map_err(|path| format!("{} is not UTF-8", path.display()))
    });
    let wrong = |why| RunError::File { option: "--faults", file: file.into(), why };
    Ok(format!("@{}", path.map_err(wrong)?))
}

/// Returns the value of LD_PRELOAD, if the options change it.
fn preloaded(options: &Options, library: &Path, folder: &Path) -> Result<Option<OsString>, RunError> {
    let mut list = std::env::var_os("LD_PRELOAD");
    if options.preload {
        list = Some(prepend(folder.join(LINKS[0]).as_os_str(), list));
    }
    if options.rsocket {
        let shim = library::shim(library)?;
        place_link(folder, SHIM, &shim).map_err(|cause| FolderError::Unusable { path: folder.into(), cause })?;
        list = Some(prepend(folder.join(SHIM).as_os_str(), list));
    }
    Ok(list.filter(|_| options.preload || options.rsocket))
}

fn wants_view(value: Option<OsString>) -> Result<bool, RunError> {
    match value.as_ref().map_or(Some("on"), |value| value.to_str()) {
        Some("on" | "1" | "yes") => Ok(true),
        Some("off" | "0" | "no") => Ok(false),
        _ => Err(RunError::View(value.unwrap_or_default().to_string_lossy().into_owned())),
    }
}

/// Enters the view, in which the program sees roxe's devices in `/sys` and `/dev`.
fn show_view(
    options: &Options,
    library: &Path,
    program: Option<&Path>,
    command: &mut Command,
) -> Result<ViewParts, RunError> {
    let scratch = private_folder(&base_folder()?.join("view"))?;
    let chosen = [("ROXE_NETDEV", &options.netdev), ("ROXE_PROFILE", &options.profile)];
    preset(chosen.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?.into()))).collect());
    let view_parts = view::enter(library, program, &scratch, |error| eprintln!("roxe run: {error}"));
    if view_parts.counters {
        command.env("ROXE_COUNTERS", view::CLASS);
    }
    Ok(view_parts)
}

/// Prepends `value` to a list separated by colons.
fn prepend(value: &OsStr, old: Option<OsString>) -> OsString {
    let mut list = value.to_owned();
    let is_first = |old: &OsString| std::env::split_paths(old).next().is_some_and(|first| first == value);
    if old.as_ref().is_some_and(is_first) {
        return old.unwrap_or_default();
    }
    if let Some(old) = old.filter(|old| !old.is_empty()) {
        list.push(":");
        list.push(old);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;
    use std::fs;

    #[test]
    fn option_values_without_equals_sign_are_refused() {
        let options = Options { check: Some("on".into()), weakest: Some("on".into()), ..Options::default() };
        let check = |options: &Options, word: &str| {
            let word = OsStr::new(word);
            check_detached(options, word, program::find(word).as_deref()).map_err(|error| error.to_string())
        };
        let refused = |word: &str| check(&options, word);
        assert!(refused("leak").unwrap_err().contains("--check=leak"));
        assert!(refused("42").unwrap_err().contains("--weakest=42"));
        assert!(refused("ls").is_ok() && refused("./no-such-program").is_ok());
        assert!(check(&Options::default(), "leak").is_ok());
    }

    #[test]
    fn paths_are_prepended() {
        assert_eq!(prepend(OsStr::new("/a"), None), "/a");
        assert_eq!(prepend(OsStr::new("/a"), Some("".into())), "/a");
        assert_eq!(prepend(OsStr::new("/a"), Some("/b:/c".into())), "/a:/b:/c");
    }

    #[test]
    fn socket_shim_is_preloaded_from_beside_the_library() {
        let folder = Scratch::new("shim");
        let library = folder.join(library::LIBRARY);
        let args = |rsocket| Options { rsocket, ..Options::default() };
        assert_eq!(preloaded(&args(false), &library, &folder).unwrap(), None);
        let links = folder.join("links");
        fs::create_dir(&links).unwrap();
        folder.file(SHIM, "", 0o700);
        let list = preloaded(&args(true), &library, &links).unwrap().unwrap();
        assert_eq!(list.to_str().unwrap().split(':').next(), links.join(SHIM).to_str());
        assert_eq!(fs::read_link(links.join(SHIM)).unwrap(), folder.join(SHIM));
    }

    #[test]
    fn view_is_on_unless_switched_off() {
        assert!(wants_view(None).unwrap() && wants_view(Some("on".into())).unwrap());
        assert!(!wants_view(Some("off".into())).unwrap());
        assert!(wants_view(Some("maybe".into())).unwrap_err().to_string().contains("wrong ROXE_VIEW: maybe"));
    }

    #[test]
    fn wrong_options_are_refused_with_an_example_or_the_file() {
        let mut command = Command::new("true");
        let mut wrong = |args: Options| set_options(&args, &mut command).unwrap_err().to_string();
        let text = wrong(Options { faults: Some("drop 3".into()), ..Options::default() });
        assert!(text.starts_with("wrong --faults") && text.contains("drop 3%"), "{text}");
        let text = wrong(Options { profile: Some("cx99".into()), ..Options::default() });
        assert!(text.starts_with("wrong --profile") && text.contains("cx5"), "{text}");
        let text = wrong(Options { capture: Some("/no/such/folder/x.pcapng".into()), ..Options::default() });
        assert!(text.contains("there is no folder /no/such/folder"), "{text}");
        for file in ["x.pcapng", "/tmp/x.pcapng", "/no/such/%p/x.pcapng"] {
            assert!(written_file("--capture", Path::new(file)).is_ok(), "{file}");
        }
    }
}
