//! Every `ROXE_*` environment variable, parsed once.
//!
//! This file has the table [`KNOBS`] (printed by `roxe config` and in
//! docs/reference/environment.md), the parsed `Config`, and the names of devices. No other file of
//! the crate reads the environment. It reads only `std::env` and the file of rules in
//! `ROXE_FAULTS=@FILE`.

use crate::privilege::is_privileged_start;
use crate::profile::{self, Profile};
use crate::weakest::Wanted;
use roxe_transport::fault::Rules;
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One environment variable that changes how the card behaves.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name of the variable.
    pub name: &'static str,
    /// Value of an unset variable.
    pub default: &'static str,
    /// The effect, in one sentence.
    pub help: &'static str,
}

/// All knobs. Default behaviour needs none of them.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "ROXE_NETDEV",
        default: "lo",
        help: "Network interfaces to open, separated by commas, as devices 0, 1, ... in this order.",
    },
    Knob {
        name: "ROXE_VENDOR_PART_ID",
        default: "1",
        help: "vendor_part_id to report; 4119 makes perftest post with ibv_wr_* calls.",
    },
    Knob {
        name: "ROXE_PROFILE",
        default: "none",
        help: "Card whose identity and limits the device has: cx3, cx5, cx6, cx6lx, bnxt, e810, qedr or rxe.",
    },
    Knob {
        name: "ROXE_DEVICE_NAME",
        default: "that of the profile, or roxe0",
        help: "Name of the first device, such as mlx5_0; further devices get the following numbers.",
    },
    Knob {
        name: "ROXE_GID_LAYOUT",
        default: "that of the profile",
        help: "Order of the GID table: plain, or mellanox (each address twice, IPv6 first, IPv4 with RoCE v2 at index 3).",
    },
    Knob {
        name: "ROXE_WINDOW",
        default: "from the socket buffer",
        help: "Limit of bytes in flight to one receiving process, 65536 to 67108864; use one value on both sides.",
    },
    Knob {
        name: "ROXE_RCVBUF",
        default: "4194304",
        help: "Socket receive buffer to request, 4096 to 67108864 bytes; the kernel grants net.core.rmem_max at most.",
    },
    Knob {
        name: "ROXE_SPIN_US",
        default: "50",
        help: "Time a thread spins before it sleeps, 0 to 10000 microseconds; four times as long after it slept too early.",
    },
    Knob {
        name: "ROXE_STEERING",
        default: "on",
        help: "Kernel delivery of packets to the process that owns the queue pair: on, or off to forward between processes.",
    },
    Knob {
        name: "ROXE_GSO",
        default: "on",
        help: "Send runs of packets with one system call (UDP_SEGMENT): on or off.",
    },
    Knob {
        name: "ROXE_GRO",
        default: "on",
        help: "Receive runs of packets with one system call (UDP_GRO): on or off.",
    },
    Knob {
        name: "ROXE_LINK",
        default: "auto",
        help: "Link to processes of this user on this host: auto (shared memory), or udp.",
    },
    Knob {
        name: "ROXE_DCQCN",
        default: "off",
        help: "Mark packets as ECN-capable, and slow down on CNPs (DCQCN): on or off.",
    },
    Knob {
        name: "ROXE_STATS",
        default: "off",
        help: "Print counters to standard error when the process ends: off, on, or words for their meanings too; `roxe run --stats` sets it.",
    },
    Knob {
        name: "ROXE_STATS_FILES",
        default: "none",
        help: "Folder where each process keeps its counters in case it is killed; `roxe run --stats` sets it.",
    },
    Knob {
        name: "ROXE_COUNTERS",
        default: "none",
        help: "Folder with counter files, laid out like /sys/class/infiniband, to add counts to; `roxe run` sets it.",
    },
    Knob {
        name: "ROXE_EXPLAIN",
        default: "off",
        help: "Explain failed verbs and work requests on standard error: off, line, or full; `roxe run` sets it.",
    },
    Knob {
        name: "ROXE_CHECK",
        default: "off",
        help: "Report misuse of verbs: on, all (advice too), or rules separated by commas; -RULE leaves one out, warn keeps the exit status, stop or wait halts at the first error, suggest prints suppressions.",
    },
    Knob { name: "ROXE_CHECK_REPORT", default: "none", help: "File to add the reports of ROXE_CHECK to." },
    Knob {
        name: "ROXE_CHECK_REPORT_FORMAT",
        default: "by file name",
        help: "Format of ROXE_CHECK_REPORT: json (lines), sarif or junit; FILE.sarif and FILE.xml imply it.",
    },
    Knob {
        name: "ROXE_CHECK_SUPPRESSIONS",
        default: "none",
        help: "File with reports of ROXE_CHECK to leave out: lines of RULE PATTERN # REASON.",
    },
    Knob {
        name: "ROXE_WEAKEST",
        default: "off",
        help: "Be the weakest card that the standard allows: a seed or on, then names of weaknesses, or -NAME to leave one out; NAME=N..M uses one on these occasions only.",
    },
    Knob { name: "ROXE_FAULTS", default: "none", help: "Fault rules such as 'drop 3%; reorder 2% by=1ms', or @FILE." },
    Knob {
        name: "ROXE_CENSUS",
        default: "none",
        help: "File to which each process adds the calls, completions and packets that could fail; `roxe sweep` sets it.",
    },
    Knob {
        name: "ROXE_OUTCOME",
        default: "none",
        help: "File to which each process adds its end, the faults that hit it and its stacks on fatal signals; `roxe sweep` sets it.",
    },
    Knob {
        name: "ROXE_CAPTURE",
        default: "none",
        help: "File (pcapng) to write every packet to; %p in its name becomes the process id.",
    },
    Knob {
        name: "ROXE_TRACE",
        default: "none",
        help: "File (Trace Event JSON) to write a time line of queue pairs to; processes share it; %p becomes the process id.",
    },
];

/// A variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wrong {name}: {value}; {expected}")]
pub struct ConfigError {
    name: &'static str,
    value: String,
    expected: Cow<'static, str>,
}

/// Amount of explanation of failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Explain {
    /// Failures are not explained.
    #[default]
    Off,
    /// A line for each failure.
    Line,
    /// All known details of each failure.
    Full,
}

/// Order of the addresses of an interface in its GID table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidLayout {
    /// The order of the interface, IPv4 first, each address once.
    #[default]
    Plain,
    /// The order of a port of a Mellanox card
    /// (<https://github.com/ofiwg/libfabric/issues/12673>): each twice, for RoCE v1 and v2; an
    /// IPv6 address at 0 and 1, IPv4 addresses from 2 on.
    Mellanox,
}

impl GidLayout {
    /// Returns the order of `card`.
    fn of(card: &Profile) -> Self {
        if card.vendor_id == profile::MELLANOX { Self::Mellanox } else { Self::Plain }
    }
}

/// Format of a report file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// A line of JSON for each report.
    Lines,
    /// SARIF 2.1.0.
    Sarif,
    /// JUnit XML, as written by test runners.
    Junit,
}

impl ReportFormat {
    /// Returns the format for the extension of a file.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|end| end.to_str()) {
            Some("sarif") => Self::Sarif,
            Some("xml") => Self::Junit,
            _ => Self::Lines,
        }
    }
}

/// Amount of counters to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stats {
    /// No counters are printed.
    #[default]
    Off,
    /// Names and values, in one line.
    Line,
    /// Names, values and descriptions.
    Words,
}

/// Parsed values of the environment variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Names of network devices, in order; never empty.
    pub netdevs: Vec<String>,
    /// Part number that the device reports instead of the profile's; some programs choose a code
    /// path by it.
    pub vendor_part_id: Option<u32>,
    /// The card whose limits are in force.
    pub profile: Option<&'static Profile>,
    /// Names of the devices.
    pub device_name: DeviceName,
    /// Order of addresses in GID tables.
    pub gid_layout: GidLayout,
    /// Maximum bytes in flight towards one receiving process; `None`: derived from the receive
    /// buffer.
    pub window: Option<u32>,
    /// Requested size in bytes of the receive buffer.
    pub rcvbuf: usize,
    /// Microseconds of polling before a thread sleeps.
    pub spin_us: u32,
    /// True if the steering program is attached.
    pub steering: bool,
    /// True if sends use `UDP_SEGMENT`.
    pub gso: bool,
    /// True if receives use `UDP_GRO`.
    pub gro: bool,
    /// True if packets to processes of this host use shared memory.
    pub rings: bool,
    /// True if queue pairs limit their rate under congestion.
    pub dcqcn: bool,
    /// Counters to print at the end of the process.
    pub stats: Stats,
    /// Folder to which a process writes its counters if it may be unable to print them.
    pub stats_files: Option<PathBuf>,
    /// Folder with the files of the counters of each device.
    pub counters: Option<PathBuf>,
    /// Amount of explanation of failures.
    pub explain: Explain,
    /// Checker rules to apply; `None` disables the checker.
    pub check: Option<String>,
    /// File for reports, in addition to standard error.
    pub check_report: Option<PathBuf>,
    /// Format of the report file; `None`: from the extension of its name.
    pub check_report_format: Option<ReportFormat>,
    /// File with the suppressed reports.
    pub check_suppressions: Option<PathBuf>,
    /// Weaknesses of the card; `None`: no weakness.
    pub weakest: Option<Wanted>,
    /// Fault rules, also those for other processes.
    pub faults: Option<Rules>,
    /// File to which each process writes the calls that can fail.
    pub census: Option<PathBuf>,
    /// File to which each process writes how it ended.
    pub outcome: Option<PathBuf>,
    /// File of recorded packets, with `%p` for the process id.
    pub capture: Option<PathBuf>,
    /// File of the time line, with `%p` for the process id.
    pub trace: Option<PathBuf>,
}

/// Valid values of variables, with their meanings.
const LAYOUTS: [(&str, GidLayout); 2] = [("plain", GidLayout::Plain), ("mellanox", GidLayout::Mellanox)];
const LINKS: [(&str, bool); 2] = [("auto", true), ("udp", false)];
const EXPLANATIONS: [(&str, Explain); 3] = [("off", Explain::Off), ("line", Explain::Line), ("full", Explain::Full)];
const FORMATS: [(&str, ReportFormat); 3] =
    [("json", ReportFormat::Lines), ("sarif", ReportFormat::Sarif), ("junit", ReportFormat::Junit)];
const SWITCH: [(&str, bool); 6] =
    [("on", true), ("1", true), ("yes", true), ("off", false), ("0", false), ("no", false)];

/// Returns the knobs, each with its value in this environment; `None` if it is not set.
pub fn settings() -> impl Iterator<Item = (&'static Knob, Option<String>)> {
    KNOBS.iter().map(|knob| (knob, text_of(knob.name)))
}

/// The variables that [`preset`] set.
static PRESETS: OnceLock<Vec<(&'static str, OsString)>> = OnceLock::new();

/// Sets variables for this process, as the program will see them that it is about to execute. Must
/// be called once, before the first [`config`].
pub fn preset(variables: Vec<(&'static str, OsString)>) {
    let _ = PRESETS.set(variables);
}

/// Returns the environment variable `name`. It counts as not set if it is empty, or if the program
/// has more rights than its user (set-uid).
pub fn variable(name: &str) -> Option<OsString> {
    if is_privileged_start() {
        return None;
    }
    let preset = PRESETS.get().and_then(|presets| presets.iter().find(|(preset, _)| *preset == name));
    preset.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name)).filter(|value| !value.is_empty())
}

fn text_of(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// Returns the configuration of this process, read from the environment on the first call.
pub fn config() -> Result<&'static Config, ConfigError> {
    static CONFIG: OnceLock<Result<Config, ConfigError>> = OnceLock::new();
    CONFIG.get_or_init(|| parse(text_of)).as_ref().map_err(Clone::clone)
}

/// Checks the environment; an error has the variable and its valid values.
pub fn check() -> Result<(), ConfigError> {
    config().map(drop)
}

/// Checks a value for the variable `name`.
pub fn check_value(name: &str, value: &str) -> Result<(), ConfigError> {
    parse(|asked| (asked == name).then(|| value.to_owned())).map(drop)
}

fn parse(get: impl Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
    let switch = |name, default| parse_with(&get, name, "it must be on or off", default, |text| word(&SWITCH, text));
    let file = |name| parse_with(&get, name, "it must be a path", None, |text| Some(Some(text.into())));
    let netdevs = read_netdevs(&get)?;
    let vendor_part_id = parse_with(&get, "ROXE_VENDOR_PART_ID", "it must be a number below 2^32", None, |text| {
        text.parse().ok().map(Some)
    })?;
    let profile =
        parse_with(&get, "ROXE_PROFILE", "it must be cx3, cx5, cx6, cx6lx, bnxt, e810, qedr or rxe", None, |text| {
            profile::named(text).map(Some)
        })?;
    let layout = profile.map_or(GidLayout::Plain, GidLayout::of);
    let name = profile.and_then(|card| DeviceName::parse(card.device_name)).unwrap_or_default();
    Ok(Config {
        netdevs,
        vendor_part_id,
        profile,
        device_name: parse_with(&get, "ROXE_DEVICE_NAME", DeviceName::RULE, name, DeviceName::parse)?,
        gid_layout: parse_with(&get, "ROXE_GID_LAYOUT", "it must be plain or mellanox", layout, |text| {
            word(&LAYOUTS, text)
        })?,
        window: parse_with(&get, "ROXE_WINDOW", "it must be a number from 65536 to 67108864", None, |text| {
            text.parse().ok().filter(|bytes| (1 << 16..=1 << 26).contains(bytes)).map(Some)
        })?,
        rcvbuf: parse_with(&get, "ROXE_RCVBUF", "it must be a number from 4096 to 67108864", 4 << 20, |text| {
            text.parse().ok().filter(|bytes| (1 << 12..=1 << 26).contains(bytes))
        })?,
        spin_us: parse_with(&get, "ROXE_SPIN_US", "it must be a number from 0 to 10000", 50, |text| {
            text.parse().ok().filter(|us| *us <= 10_000)
        })?,
        steering: switch("ROXE_STEERING", true)?,
        gso: switch("ROXE_GSO", true)?,
        gro: switch("ROXE_GRO", true)?,
        rings: parse_with(&get, "ROXE_LINK", "it must be auto or udp", true, |text| word(&LINKS, text))?,
        dcqcn: switch("ROXE_DCQCN", false)?,
        stats: parse_with(&get, "ROXE_STATS", "it must be off, on or words", Stats::Off, parse_stats)?,
        stats_files: file("ROXE_STATS_FILES")?,
        counters: file("ROXE_COUNTERS")?,
        explain: parse_with(&get, "ROXE_EXPLAIN", "it must be off, line or full", Explain::Off, |text| {
            word(&EXPLANATIONS, text)
        })?,
        check: set_value(&get, "ROXE_CHECK").filter(|text| !matches!(&**text, "off" | "0" | "no")),
        check_report: file("ROXE_CHECK_REPORT")?,
        check_report_format: parse_with(
            &get,
            "ROXE_CHECK_REPORT_FORMAT",
            "it must be json, sarif or junit",
            None,
            |text| word(&FORMATS, text).map(Some),
        )?,
        check_suppressions: file("ROXE_CHECK_SUPPRESSIONS")?,
        weakest: read_weakest(&get)?,
        faults: read_faults(&get)?,
        census: file("ROXE_CENSUS")?,
        outcome: file("ROXE_OUTCOME")?,
        capture: file("ROXE_CAPTURE")?,
        trace: file("ROXE_TRACE")?,
    })
}

fn read_netdevs(get: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, ConfigError> {
    let expected = "it must be names of network devices separated by commas";
    parse_with(get, "ROXE_NETDEV", expected, vec!["lo".to_owned()], parse_names)
}

fn parse_stats(text: &str) -> Option<Stats> {
    match text {
        "words" => Some(Stats::Words),
        _ => word(&SWITCH, text).map(|is_on| if is_on { Stats::Line } else { Stats::Off }),
    }
}

/// Parses `ROXE_WEAKEST`; the parser explains errors.
fn read_weakest(get: impl Fn(&str) -> Option<String>) -> Result<Option<Wanted>, ConfigError> {
    let name = "ROXE_WEAKEST";
    let Some(value) = set_value(get, name) else { return Ok(None) };
    let wanted = value.parse::<Wanted>().map_err(|expected| ConfigError { name, value, expected: expected.into() })?;
    Ok((!wanted.weaknesses.is_empty()).then_some(wanted))
}

/// Parses the fault rules of `text`, or of the file after `@`. The error is a message for the user.
pub fn fault_rules(text: &str) -> Result<Rules, String> {
    let text = match text.trim().strip_prefix('@') {
        Some(file) => &std::fs::read_to_string(file).map_err(|e| format!("cannot read the file {file}: {e}"))?,
        None => text,
    };
    text.parse::<Rules>().map_err(|e| e.to_string())
}

/// Reads the rules of `ROXE_FAULTS`. Errors contain the message of the parser.
fn read_faults(get: impl Fn(&str) -> Option<String>) -> Result<Option<Rules>, ConfigError> {
    let name = "ROXE_FAULTS";
    let Some(value) = set_value(get, name) else { return Ok(None) };
    let rules = fault_rules(&value);
    let rules = rules.map_err(|expected| ConfigError { name, value, expected: expected.into() })?;
    Ok(Some(rules))
}

/// Returns the value of a variable; none if it is empty, because scripts empty a variable where
/// they mean to unset it.
fn set_value(get: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    get(name).filter(|value| !value.trim().is_empty())
}

fn parse_with<T>(
    get: impl Fn(&str) -> Option<String>,
    name: &'static str,
    expected: &'static str,
    default: T,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, ConfigError> {
    let Some(value) = set_value(get, name) else { return Ok(default) };
    read(value.trim()).ok_or_else(|| ConfigError { name, value: value.clone(), expected: expected.into() })
}

/// Returns the value of `text`, which must be one of these words.
fn word<T: Copy>(words: &[(&str, T)], text: &str) -> Option<T> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
}

fn parse_names(text: &str) -> Option<Vec<String>> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    names.iter().all(|name| !name.is_empty()).then_some(names)
}

/// The names of devices (`ROXE_DEVICE_NAME`): a stem, and the number of the first device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    stem: String,
    first: u32,
}

impl Default for DeviceName {
    fn default() -> Self {
        Self { stem: "roxe".to_owned(), first: 0 }
    }
}

impl DeviceName {
    const RULE: &str = "it must be letters, _ and - followed by a number, such as mlx5_0";
    /// Maximum length in bytes, which leaves room for longer numbers in the 64 bytes of a name.
    const MAX: usize = 56;

    fn parse(text: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if text.is_empty() || text.len() > Self::MAX || !text.bytes().all(is_allowed) {
            return None;
        }
        let stem = text.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let number = &text[stem.len()..];
        // "x007" would be printed as "x7", and "x" as "x0".
        let first: u32 = number.parse().ok().filter(|first: &u32| first.to_string() == number)?;
        first.checked_add(u32::from(u16::MAX))?;
        Some(Self { stem: stem.to_owned(), first })
    }

    /// Returns the name of device number `index` of a process.
    pub fn nth(&self, index: u32) -> String {
        format!("{}{}", self.stem, self.first.saturating_add(index))
    }

    /// Returns true if `name` is the stem and a number.
    pub fn matches(&self, name: &str) -> bool {
        let number = name.strip_prefix(&*self.stem).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Config, ConfigError> {
        parse(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn counters_are_printed_with_words_or_without() {
        let stats = |value| with("ROXE_STATS", value).map(|config| config.stats);
        assert_eq!((stats("0"), stats("on"), stats("words")), (Ok(Stats::Off), Ok(Stats::Line), Ok(Stats::Words)));
        assert!(stats("some").unwrap_err().to_string().contains("off, on or words"));
    }

    #[test]
    fn unset_variables_give_defaults() {
        let config = parse(|_| None).unwrap();
        assert_eq!(config.netdevs, ["lo"]);
        assert_eq!((config.window, config.rcvbuf, config.spin_us), (None, 4 << 20, 50));
        assert!(config.steering && config.gso && config.gro && config.rings);
        assert_eq!((config.dcqcn, config.stats, config.faults, config.capture), (false, Stats::Off, None, None));
        assert_eq!((config.counters, config.stats_files, config.trace, config.weakest), (None, None, None, None));
    }

    #[test]
    fn empty_variable_counts_as_unset() {
        let unset = format!("{:?}", parse(|_| None).unwrap());
        assert_eq!(format!("{:?}", parse(|_| Some(String::new())).unwrap()), unset);
        assert_eq!(format!("{:?}", parse(|_| Some(" ".to_owned())).unwrap()), unset);
    }

    #[test]
    fn values_are_read_at_both_ends_of_their_range() {
        assert_eq!(with("ROXE_NETDEV", "eth0, lo").unwrap().netdevs, ["eth0", "lo"]);
        assert_eq!(with("ROXE_VENDOR_PART_ID", "4119").unwrap().vendor_part_id, Some(4119));
        assert_eq!(with("ROXE_PROFILE", "cx5").unwrap().profile.map(|card| card.vendor_part_id), Some(4119));
        assert_eq!(with("ROXE_GID_LAYOUT", "mellanox").unwrap().gid_layout, GidLayout::Mellanox);
        for (profile, layout) in [("cx5", GidLayout::Mellanox), ("qedr", GidLayout::Plain), ("rxe", GidLayout::Plain)] {
            assert_eq!(with("ROXE_PROFILE", profile).unwrap().gid_layout, layout, "{profile}");
        }
        for card in profile::PROFILES {
            assert_eq!(with("ROXE_PROFILE", card.name).unwrap().device_name.nth(0), card.device_name);
        }
        let both = |name: &str| {
            let chosen = [("ROXE_PROFILE", "cx5"), ("ROXE_GID_LAYOUT", "plain"), ("ROXE_DEVICE_NAME", "roxe0")];
            chosen.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
        };
        let chosen = parse(both).unwrap();
        assert_eq!((chosen.gid_layout, chosen.device_name.nth(0)), (GidLayout::Plain, "roxe0".to_owned()));
        assert!(["ROXE_PROFILE", "ROXE_GID_LAYOUT"].iter().all(|name| with(name, "cx99").is_err()));
        assert_eq!(with("ROXE_WINDOW", "65536").unwrap().window, Some(65536));
        assert_eq!(with("ROXE_WINDOW", "67108864").unwrap().window, Some(1 << 26));
        assert_eq!(with("ROXE_RCVBUF", "4096").unwrap().rcvbuf, 4096);
        assert_eq!(with("ROXE_SPIN_US", "0").unwrap().spin_us, 0);
        assert!(!with("ROXE_STEERING", "off").unwrap().steering);
        assert!(with("ROXE_LINK", "auto").unwrap().rings && !with("ROXE_LINK", "udp").unwrap().rings);
        assert_eq!(with("ROXE_COUNTERS", "/x").unwrap().counters, Some("/x".into()));
        assert_eq!(with("ROXE_STATS_FILES", "/x").unwrap().stats_files, Some("/x".into()));
        assert_eq!(with("ROXE_CAPTURE", "a.pcapng").unwrap().capture, Some("a.pcapng".into()));
        assert_eq!(with("ROXE_TRACE", "a.json").unwrap().trace, Some("a.json".into()));
    }

    #[test]
    fn report_format_is_explicit_or_by_file_name() {
        assert_eq!(with("ROXE_CHECK_REPORT_FORMAT", "junit").unwrap().check_report_format, Some(ReportFormat::Junit));
        let named = ["a.sarif", "b.xml", "c.json", "d"].map(|name| ReportFormat::of(Path::new(name)));
        let lines = ReportFormat::Lines;
        assert_eq!(named, [ReportFormat::Sarif, ReportFormat::Junit, lines, lines]);
    }

    #[test]
    fn rules_come_from_the_variable_or_from_a_file() {
        let rules = "seed=42; drop 3%".parse().unwrap();
        assert_eq!(with("ROXE_FAULTS", "seed=42; drop 3%").unwrap().faults, Some(rules));
        let file = std::env::temp_dir().join(format!("roxe-rules-{}", std::process::id()));
        std::fs::write(&file, "seed=42\ndrop 3%\n").unwrap();
        let named = parse(|asked| (asked == "ROXE_FAULTS").then(|| format!("@{}", file.display())));
        std::fs::remove_file(file).unwrap();
        assert_eq!(named.unwrap().faults, with("ROXE_FAULTS", "seed=42; drop 3%").unwrap().faults);
        assert_eq!(with("ROXE_FAULTS", "").unwrap().faults, None);
        assert_eq!(with("ROXE_FAULTS", "none").unwrap().faults, Some(Rules::default()));
        assert!(check_value("ROXE_FAULTS", "drop tx").is_ok() && check_value("ROXE_FAULTS", "drop up").is_err());
    }

    #[test]
    fn invalid_value_error_names_variable_and_rule() {
        for (name, value) in [
            ("ROXE_NETDEV", "eth0,,lo"),
            ("ROXE_VENDOR_PART_ID", "connectx"),
            ("ROXE_WINDOW", "65535"),
            ("ROXE_RCVBUF", "4095"),
            ("ROXE_SPIN_US", "10001"),
            ("ROXE_GSO", "maybe"),
            ("ROXE_LINK", "tcp"),
            ("ROXE_WEAKEST", "7,-luck"),
            ("ROXE_CHECK_REPORT_FORMAT", "html"),
            ("ROXE_FAULTS", "lose 3%"),
            ("ROXE_FAULTS", "@/nonexistent/rules"),
        ] {
            let text = with(name, value).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(value), "{text}");
        }
    }

    #[test]
    fn every_parsed_variable_is_in_the_table() {
        let mut asked = std::sync::Mutex::new(Vec::new());
        let _ = parse(|name| {
            asked.lock().unwrap().push(name.to_owned());
            None
        });
        let listed: Vec<&str> = KNOBS.iter().map(|knob| knob.name).collect();
        assert_eq!(asked.get_mut().unwrap().as_slice(), listed.as_slice());
    }

    #[test]
    fn devices_count_on_from_the_number_in_the_name() {
        let name = DeviceName::parse("mlx5_0").unwrap();
        assert_eq!([name.nth(0), name.nth(2)], ["mlx5_0", "mlx5_2"]);
        assert_eq!(DeviceName::parse("rocep1s0f1").unwrap().nth(1), "rocep1s0f2");
        assert_eq!(DeviceName::default().nth(3), "roxe3");
        assert!(name.matches("mlx5_17") && !name.matches("mlx5_") && !name.matches("mlx5_0a"));
        let long = format!("{}0", "x".repeat(60));
        for wrong in ["", "mlx", "x007", "a/0", "../x0", "x4294967295", &long] {
            assert_eq!(DeviceName::parse(wrong), None, "{wrong}");
        }
    }
}
