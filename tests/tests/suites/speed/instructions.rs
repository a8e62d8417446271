//! Counts instructions per message on the hot paths with valgrind, and compares them with
//! `tests/instructions.quick.txt`, or for the release build (`ROXE_TEST_PROFILE=release`) with
//! `tests/instructions.txt`.
//!
//! Instruction counts barely vary between runs, unlike times, so this suite detects a longer path.
//! It counts the instructions of the program's thread between the two marks of
//! `verbs-api/roxe/examples/hot_paths.rs`, without the kernel and the background thread. `--write`
//! rewrites the file after an intended change. On some paths a message must cost the same with few
//! and with many queue pairs or regions; these paths need no file.

use roxe_tests::build;
use roxe_tests::pair::installed;
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Numbers of warm-up messages and of counted messages. The warm-up is long because the first 256
/// polls with packets in a new ring also read the sockets.
const MESSAGES: [u64; 2] = [320, 960];
/// Number of counts, of which the majority decides: a count is wrong if the background thread polls
/// a packet first.
const ROUNDS: usize = 3;
/// Number of counts of which `--write` records the median: on some paths the background thread
/// often polls a packet first.
const ROUNDS_WRITTEN: usize = 9;
/// Percent by which a path may exceed its count in the file. Counts vary by 3 %.
const TOLERANCE: u64 = 10;
/// Tolerance in percent for the paths of [`COPYING`]. Their counts vary strongly, because copies by
/// the background thread are not counted.
const TOLERANCE_COPYING: u64 = 100;
/// Paths whose instructions are mostly copies.
const COPYING: [&str; 2] = ["rc_write_64k", "rc_read_64k"];
/// Arguments of `hot_paths` that select a path.
const PATHS: [&str; 7] =
    ["rc_send_64", "rc_send_64_list", "rc_write_64", "rc_write_64_list", "ud_send_64", "rc_write_64k", "rc_read_64k"];
/// Values of `ROXE_LINK`, each with its own counts.
const LINKS: [&str; 2] = ["auto", "udp"];

/// A path on which a message must cost the same with few and many objects of a kind.
struct Flat {
    path: &'static str,
    /// Kind of the objects.
    objects: &'static str,
    few: u64,
    many: u64,
}

/// The window of `all_qps_4k` is full even with the smaller number of queue pairs.
const FLAT: [Flat; 3] = [
    Flat { path: "round_qps_64", objects: "pairs of queue pairs", few: 16, many: 1024 },
    Flat { path: "all_qps_4k", objects: "busy pairs of queue pairs", few: 256, many: 1024 },
    Flat { path: "round_mrs_64", objects: "memory regions", few: 2, many: 10_000 },
];
/// Numbers of warm-up messages and of counted messages on these paths: multiples of the largest
/// number of queue pairs.
const FLAT_MESSAGES: [u64; 2] = [1024, 4 * 1024];
/// Percent by which a message may cost more with many objects. The background thread, which is
/// never idle under this load, is counted, too, so that counts vary by 15 %.
const TOLERANCE_FLAT: u64 = 25;
/// The counted threads: the program's, or also the background thread.
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
        let Flat { path, objects, few, many } = flat;
        Check::new(format!("instructions: {path} with {many} {objects} as with {few}"), || judge_flat(flat))
    });
    report::main(costs.chain(flat).collect())
}

/// Returns every combination of link and path.
fn cells() -> impl Iterator<Item = (&'static str, &'static str)> {
    LINKS.into_iter().flat_map(|link| PATHS.map(|path| (link, path)))
}

/// Returns the file of the recorded counts: one for the release build, and one for a build without
/// link-time optimisation.
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

/// Returns the recorded count of a path.
fn recorded(link: &str, path: &str) -> Option<u64> {
    let text = fs::read_to_string(file()).ok()?;
    let head = format!("{link} {path} ");
    text.lines().find_map(|line| line.strip_prefix(&head))?.parse().ok()
}

fn judge(link: &str, path: &str) -> Verdict {
    if !installed("valgrind") {
        return Verdict::not_installed("valgrind");
    }
    let Some(recorded) = recorded(link, path) else {
        return Verdict::Failed(format!("{} has no line for {link} {path}; write it with `--write`", file().display()));
    };
    let tolerance = if COPYING.contains(&path) { TOLERANCE_COPYING } else { TOLERANCE };
    let round = || {
        let now = count(link, &[path], MESSAGES, Threads::Program)?;
        println!("         {link} {path}: {now} instructions per message, recorded {recorded}");
        Ok(now * 100 <= recorded * (100 + tolerance))
    };
    verdict_of_most(round, || {
        format!(
            "a message costs over {tolerance} % more than the recorded {recorded} instructions; after an intended \
             change, run `--write`"
        )
    })
}

/// Compares the costs with many and with few objects.
fn judge_flat(&Flat { path, objects, few, many }: &Flat) -> Verdict {
    if !installed("valgrind") {
        return Verdict::not_installed("valgrind");
    }
    let count = |number: u64| count("udp", &[path, &number.to_string()], FLAT_MESSAGES, Threads::All);
    let round = || {
        let (with_few, with_many) = (count(few)?, count(many)?);
        println!("         {path}: {with_few} instructions per message with {few} {objects}, {with_many} with {many}");
        Ok(with_many * 100 <= with_few * (100 + TOLERANCE_FLAT))
    };
    verdict_of_most(round, || {
        format!("a message costs over {TOLERANCE_FLAT} % more with {many} {objects} than with {few}")
    })
}

/// Calls `round`, which returns true if a path is short enough, until a majority of [`ROUNDS`]
/// agrees.
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

/// Returns the instructions per message between the two marks. `path` is the name of the path, and
/// the number of objects if it has one.
fn count(link: &str, path: &[&str], [warm_up, counted]: [u64; 2], threads: Threads) -> Result<u64, String> {
    let (name, number) = path.split_at(1);
    let out = std::env::temp_dir().join(format!("roxe-instructions.{}", std::process::id()));
    let mut command = Command::new("valgrind");
    // callgrind writes a file at each mark, with the count since the last one.
    command.args(["--tool=callgrind", "--dump-before=*hot_paths*mark*"]);
    // With separate counts for each thread, a mark writes only those of its own thread.
    let second_mark = match threads {
        Threads::Program => {
            command.arg("--separate-threads=yes");
            ".2-01"
        }
        Threads::All => ".2",
    };
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(build::hot_paths()).args(name).args([warm_up, counted].map(|messages| messages.to_string()));
    // No spinning, whose instructions measure time, not work.
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

/// Returns the instruction count in a file of callgrind.
fn total(file: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}
