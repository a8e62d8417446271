//! How many instructions a message costs on the hot paths, counted by valgrind and compared with
//! `tests/instructions.txt`.
//!
//! Clocks drift from run to run, instructions hardly do: a change that makes a path longer shows up
//! here. Counted is what the thread of the program executes, not the kernel, nor the background
//! thread, which only lends a hand: the walk of `verbs-api/roxe/examples/hot_paths.rs`, as the
//! difference of a long and a short run. Who made a path longer on purpose, or shorter, writes the
//! file anew with `-- --write`. On some paths a message must cost the same with few and with many
//! queue pairs or regions; these need no file.

use roxe_tests::build;
use roxe_tests::guest::link;
use roxe_tests::pair::installed;
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Messages of the short and the long run.
const MESSAGES: [u64; 2] = [160, 1120];
/// The one in the middle of this many counts is taken: now and then the background thread is
/// quicker and takes a packet.
const ROUNDS: usize = 3;
/// The same for what is written down, so that a path on which that happens often is not written as
/// it seldom is.
const ROUNDS_WRITTEN: usize = 9;
/// How much longer a path may be than the file says, percent. Counts repeat to 3 %, also beside
/// eight builds.
const TOLERANCE: u64 = 10;
/// The same for paths of [`COPYING`]. The background thread takes over some of the copies, which
/// are not counted then: 85,000 to 225,000 instructions were seen for one build.
const TOLERANCE_COPYING: u64 = 100;
/// Paths that mostly copy.
const COPYING: [&str; 2] = ["rc_write_64k", "rc_read_64k"];
/// The paths.
const PATHS: [&str; 7] =
    ["rc_send_64", "rc_send_64_list", "rc_write_64", "rc_write_64_list", "ud_send_64", "rc_write_64k", "rc_read_64k"];
/// Values of `ROXE_LINK`, each of which has its numbers.
const LINKS: [&str; 2] = ["auto", "udp"];

/// A path on which a message must cost the same, however many of something there are.
struct Flat {
    path: &'static str,
    /// What there are few or many of.
    what: &'static str,
    few: u64,
    many: u64,
}

/// These paths. The window is full with the few of `all_qps_4k` too.
const FLAT: [Flat; 3] = [
    Flat { path: "round_qps_64", what: "pairs of queue pairs", few: 16, many: 1024 },
    Flat { path: "all_qps_4k", what: "busy pairs of queue pairs", few: 256, many: 1024 },
    Flat { path: "round_mrs_64", what: "memory regions", few: 2, many: 10_000 },
];
/// Messages of their short and their long run: laps of the most queue pairs.
const LAPS: [u64; 2] = [1024, 5 * 1024];
/// How much more a message may cost with many, percent. With that much under way the background
/// thread is never idle, so what it does counts as well; the sum repeats to 15 %.
const TOLERANCE_FLAT: u64 = 25;
/// Threads that are counted: the program's alone, or that of the background too.
const PROGRAM: usize = 1;
const BOTH: usize = 2;

fn main() -> ExitCode {
    // Nobody else's packets.
    if let Err(e) = link::isolate() {
        println!("FAILED   instructions: {e}");
        return ExitCode::FAILURE;
    }
    if std::env::args().any(|word| word == "--write") {
        return write();
    }
    let costs =
        cells().map(|(link, path)| Check::new(format!("instructions: {link} {path}"), move || judge(link, path)));
    let flat = FLAT.each_ref().map(|flat| {
        let Flat { path, what, few, many } = flat;
        Check::new(format!("instructions: {path} with {many} {what} as with {few}"), || judge_flat(flat))
    });
    report::main(costs.chain(flat).collect())
}

/// Every path over every link.
fn cells() -> impl Iterator<Item = (&'static str, &'static str)> {
    LINKS.into_iter().flat_map(|link| PATHS.map(|path| (link, path)))
}

/// Where the numbers are kept.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt")
}

fn write() -> ExitCode {
    let line = |(link, path)| {
        count(link, &[path], MESSAGES, PROGRAM, ROUNDS_WRITTEN).map(|count| format!("{link} {path} {count}\n"))
    };
    let text = cells().map(line).collect::<Result<String, String>>();
    match text.and_then(|text| fs::write(file(), text).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("FAILED   instructions: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The number that is kept.
fn kept(link: &str, path: &str) -> Option<u64> {
    let text = fs::read_to_string(file()).ok()?;
    let head = format!("{link} {path} ");
    text.lines().find_map(|line| line.strip_prefix(&head))?.parse().ok()
}

fn judge(link: &str, path: &str) -> Verdict {
    if !installed("valgrind") {
        return Verdict::Skipped("valgrind is not installed".to_owned());
    }
    let Some(kept) = kept(link, path) else {
        return Verdict::Failed(format!(
            "tests/instructions.txt has no line for {link} {path}; write it with `-- --write`"
        ));
    };
    let tolerance = if COPYING.contains(&path) { TOLERANCE_COPYING } else { TOLERANCE };
    match count(link, &[path], MESSAGES, PROGRAM, ROUNDS) {
        Err(why) => Verdict::Failed(why),
        Ok(now) if now * 100 > kept * (100 + tolerance) => Verdict::Failed(format!(
            "a message costs {now} instructions, and {kept} when tests/instructions.txt was written; \
             if that has to be, write it anew with `-- --write`"
        )),
        Ok(now) => {
            println!("         {link} {path}: {now} instructions per message, kept {kept}");
            Verdict::Passed
        }
    }
}

/// Compares many with few of this very build, so that nothing has to be written down.
fn judge_flat(&Flat { path, what, few, many }: &Flat) -> Verdict {
    if !installed("valgrind") {
        return Verdict::Skipped("valgrind is not installed".to_owned());
    }
    match [few, many].map(|number| count("udp", &[path, &number.to_string()], LAPS, BOTH, ROUNDS)) {
        [Err(why), _] | [_, Err(why)] => Verdict::Failed(why),
        [Ok(with_few), Ok(with_many)] if with_many * 100 > with_few * (100 + TOLERANCE_FLAT) => Verdict::Failed(
            format!("a message costs {with_few} instructions with {few} {what} and {with_many} with {many}"),
        ),
        [Ok(with_few), Ok(with_many)] => {
            println!("         {path}: {with_few} instructions per message with {few} {what}, {with_many} with {many}");
            Verdict::Passed
        }
    }
}

/// Instructions per message of a path, whose words are its name and maybe a number, as the
/// difference of two runs: the one in the middle of `rounds`.
fn count(link: &str, path: &[&str], messages: [u64; 2], threads: usize, rounds: usize) -> Result<u64, String> {
    let one = || {
        let [short, long] = messages.map(|messages| run(link, path, messages, threads));
        Ok((long?.saturating_sub(short?)) / (messages[1] - messages[0]))
    };
    let mut counts = (0..rounds).map(|_| one()).collect::<Result<Vec<u64>, String>>()?;
    counts.sort_unstable();
    counts.get(rounds / 2).copied().ok_or_else(|| "nothing was counted".to_owned())
}

/// Instructions of the first `threads` threads in one whole run.
fn run(link: &str, path: &[&str], messages: u64, threads: usize) -> Result<u64, String> {
    let (name, number) = path.split_at(1);
    let out = std::env::temp_dir().join(format!("roxe-instructions.{}", std::process::id()));
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--separate-threads=yes"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(build::hot_paths()).args(name).arg(messages.to_string()).args(number);
    // A thread that spins counts time, not work.
    let output =
        command.env("ROXE_SPIN_US", "0").env("ROXE_LINK", link).output().map_err(|e| format!("valgrind: {e}"))?;
    // One file for each thread, the first one's is the program's; and one that has nothing of
    // interest.
    let files = ["-01", "-02", ""].map(|thread| format!("{}{thread}", out.display()));
    let counts: Option<Vec<u64>> = files[..threads].iter().map(|file| total(file)).collect();
    files.iter().for_each(|file| drop(fs::remove_file(file)));
    match counts {
        Some(counts) if output.status.success() => Ok(counts.iter().sum()),
        _ => Err(format!("{path:?} under valgrind: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// What a file of callgrind counts.
fn total(file: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}
