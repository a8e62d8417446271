//! Instructions per message on the hot paths, counted by valgrind and compared with
//! `tests/instructions.quick.txt`, or, for the release build (`ROXE_TEST_PROFILE=release`), with
//! `tests/instructions.txt`.
//!
//! Times vary from run to run, instruction counts barely do, so this suite notices a longer path.
//! The suite counts the instructions of the program's thread between the two marks of
//! `verbs-api/roxe/examples/hot_paths.rs`, without the kernel and the background thread. `--write`
//! rewrites the file after an intended change. On some paths a message must cost the same with few
//! and with many queue pairs or regions; these need no file.

use roxe_tests::build;
use roxe_tests::pair::installed;
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Messages that warm up, and that are counted. The first 256 polls that find packets in a new ring
/// read the sockets, too.
const MESSAGES: [u64; 2] = [320, 960];
/// Number of counts, of which the majority decides: sometimes the background thread polls a packet
/// first.
const ROUNDS: usize = 3;
/// Number of counts whose median `--write` records, so that a path on which this happens often is
/// not recorded with a rare count.
const ROUNDS_WRITTEN: usize = 9;
/// Percent by which a path may exceed the file. Counts repeat to 3 %, also on a busy machine.
const TOLERANCE: u64 = 10;
/// Tolerance for paths of [`COPYING`]. The background thread does some of the copies, which are not
/// counted then, so counts vary strongly.
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
    /// Objects whose number varies.
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
/// Messages that warm up there, and that are counted: laps of the most queue pairs.
const LAPS: [u64; 2] = [1024, 4 * 1024];
/// Percent by which a message may cost more with many objects. Under that load the background
/// thread is never idle, so its work counts, too, and repeats to 15 %.
const TOLERANCE_FLAT: u64 = 25;
/// Threads that are counted: the program's alone, or that of the background too.
#[derive(Clone, Copy)]
enum Threads {
    Program,
    All,
}

pub(crate) fn main() -> ExitCode {
    if report::arguments().any(|word| word == "--write") {
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

/// Files of the recorded numbers: of the release build, and of a build without optimisation at link
/// time.
fn file() -> PathBuf {
    let name = if build::profile() == "release" { "instructions.txt" } else { "instructions.quick.txt" };
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn write() -> ExitCode {
    let line = |(link, path)| {
        let counts = (0..ROUNDS_WRITTEN).map(|_| count(link, &[path], MESSAGES, Threads::Program));
        let mut counts = counts.collect::<Result<Vec<u64>, String>>()?;
        counts.sort_unstable();
        Ok(format!("{link} {path} {}\n", counts[ROUNDS_WRITTEN / 2]))
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
        return Verdict::not_installed("valgrind");
    }
    let Some(kept) = kept(link, path) else {
        return Verdict::Failed(format!("{} has no line for {link} {path}; write it with `--write`", file().display()));
    };
    let tolerance = if COPYING.contains(&path) { TOLERANCE_COPYING } else { TOLERANCE };
    let round = || {
        let now = count(link, &[path], MESSAGES, Threads::Program)?;
        println!("         {link} {path}: {now} instructions per message, kept {kept}");
        Ok(now * 100 <= kept * (100 + tolerance))
    };
    verdict_of_most(round, || {
        format!(
            "a message costs more than the {kept} instructions that are written down, by over {tolerance} %; if \
             that has to be, write it anew with `--write`"
        )
    })
}

/// Compares many with few objects of this build, so no file is needed.
fn judge_flat(&Flat { path, what, few, many }: &Flat) -> Verdict {
    if !installed("valgrind") {
        return Verdict::not_installed("valgrind");
    }
    let count = |number: u64| count("udp", &[path, &number.to_string()], LAPS, Threads::All);
    let round = || {
        let (with_few, with_many) = (count(few)?, count(many)?);
        println!("         {path}: {with_few} instructions per message with {few} {what}, {with_many} with {many}");
        Ok(with_many * 100 <= with_few * (100 + TOLERANCE_FLAT))
    };
    verdict_of_most(round, || {
        format!("a message costs over {TOLERANCE_FLAT} % more with {many} {what} than with {few}")
    })
}

/// Asks whether a path is short enough until most of [`ROUNDS`] rounds say the same.
fn verdict_of_most(mut round: impl FnMut() -> Result<bool, String>, why: impl FnOnce() -> String) -> Verdict {
    let mut votes = [0; 2];
    loop {
        match round() {
            Err(why) => return Verdict::Failed(why),
            Ok(is_short) => votes[usize::from(is_short)] += 1,
        }
        match votes.map(|votes| votes > ROUNDS / 2) {
            [true, _] => return Verdict::Failed(why()),
            [_, true] => return Verdict::Passed,
            _ => (),
        }
    }
}

/// Instructions per message of a path, whose words are its name and maybe a number: what was
/// executed between the two marks.
fn count(link: &str, path: &[&str], [warm_up, counted]: [u64; 2], threads: Threads) -> Result<u64, String> {
    let (name, number) = path.split_at(1);
    let out = std::env::temp_dir().join(format!("roxe-instructions.{}", std::process::id()));
    let mut command = Command::new("valgrind");
    // callgrind writes a file at each mark, with the count since the last one.
    command.args(["--tool=callgrind", "--dump-before=*hot_paths*mark*"]);
    // A mark writes the counts of its own thread only, where they are kept apart.
    let second_mark = match threads {
        Threads::Program => {
            command.arg("--separate-threads=yes");
            ".2-01"
        }
        Threads::All => ".2",
    };
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(build::hot_paths()).args(name).args([warm_up, counted].map(|messages| messages.to_string()));
    // A thread that spins counts time, not work.
    command.args(number).env("ROXE_SPIN_US", "0").env("ROXE_LINK", link);
    let output = command.output().map_err(|e| format!("valgrind: {e}"))?;
    let count = total(&format!("{}{second_mark}", out.display()));
    for part in ["", "-01", "-02", ".1", ".1-01", ".2", ".2-01"] {
        drop(fs::remove_file(format!("{}{part}", out.display())));
    }
    match count {
        Some(count) if output.status.success() => Ok(count / counted),
        _ => Err(format!("{path:?} under valgrind: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// Instruction count in a file of callgrind.
fn total(file: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}
