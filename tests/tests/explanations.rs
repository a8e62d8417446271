//! `roxe run --explain`: each failure is explained by its own cause, so that causes which end in
//! the same status or errno can be told apart. `tests/clients/misuse/failure.c` has the programs.
//! With the link of one host and with sockets.
//!
//! `cargo test -p roxe-tests --test explanations -- WORD...` runs the checks whose name contains a
//! word.

use roxe_tests::pair::{self, Place, Program};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::{cc, misuse};
use std::process::ExitCode;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A program, and what its explanation has to say.
const CASES: [(&str, &[&str]); 26] = [
    ("retry-no-process", &["(12)", "no process of this user on this host has the queue pair"]),
    ("retry-no-queue-pair", &["(12)", "has no queue pair"]),
    ("retry-not-connected", &["(12)", "is in state Init, which takes no such packets"]),
    ("retry-in-error", &["(12)", "is in state Err, which takes no such packets"]),
    ("retry-psn", &["(12)", "its rq_psn 0x500000 is not the sq_psn of its peer", "state RTS", "timeout; PSN 7"]),
    ("retry-gid", &["(12)", "compare the GIDs of both ends"]),
    ("retry-died", &["(12)", "has died"]),
    ("retry-stopped", &["(12)", "is stopped"]),
    ("access-key", &["(10)", "there is no region or window with this key"]),
    ("access-range", &["(10)", "not all of it is inside the region"]),
    ("access-right", &["(10)", "the region does not grant IBV_ACCESS_REMOTE_WRITE"]),
    ("access-domain", &["(10)", "the key belongs to another protection domain"]),
    ("access-unmapped", &["(11)", "is no longer mapped"]),
    ("invalid-not-enabled", &["(9)", "qp_access_flags of the responding queue pair"]),
    ("invalid-too-long", &["(9)", "longer than the receive that was posted"]),
    ("invalid-misaligned", &["(9)", "not a multiple of 8"]),
    ("operation-list", &["(11)", "the list of the receive that it would land in cannot be written"]),
    ("rnr", &["(13)", "had no receive posted", "RNR NAK received; PSN 7", "state ERR"]),
    ("local-key", &["(4)", "there is no region or window with this key"]),
    ("local-range", &["(4)", "not all of it is inside the region"]),
    ("local-domain", &["(4)", "the key belongs to another protection domain"]),
    ("local-right", &["(4)", "the region does not grant IBV_ACCESS_LOCAL_WRITE"]),
    ("queue-full", &["the queue is full", "Cannot allocate memory"]),
    ("state-missing", &["the transition also needs", "DEST_QPN"]),
    ("gid-index", &["GID index 9 is empty"]),
    ("memory-hole", &["are not mapped", "Bad address"]),
];

fn main() -> ExitCode {
    let checks = CASES.iter().flat_map(|(case, words)| {
        ["auto", "udp"].map(|link| Check::new(format!("{case}, link {link}"), move || judge(case, words, link)))
    });
    report::main(checks.collect())
}

fn judge(case: &str, words: &[&str], link: &str) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    match misuse::program().and_then(|program| run(program, case, link)) {
        Ok(output) if output.matches("last events").count() != output.matches(") failed: ").count() => {
            Verdict::Failed(format!("not each queue pair that failed tells its last events, once:\n{output}"))
        }
        Ok(output) if words.iter().all(|word| output.contains(word)) => Verdict::Passed,
        Ok(output) => Verdict::Failed(format!("{words:?} are not all in:\n{output}")),
        Err(why) => Verdict::Failed(why),
    }
}

/// What a program prints that ends well, although its requests fail.
fn run(program: String, case: &str, link: &str) -> Result<String, String> {
    let program = Program { name: program, args: vec![case.to_owned(), "wrong".to_owned()] };
    let envs = vec![("ROXE_LINK".to_owned(), link.to_owned())];
    let place = Place { envs, options: vec!["--explain".to_owned()], ..Place::default() };
    let outcome = pair::run_at(&program, &place, LIMIT).map_err(|e| e.to_string())?;
    if outcome.ok { Ok(outcome.output) } else { Err(outcome.output) }
}
