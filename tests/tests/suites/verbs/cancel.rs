//! Runs the programs in `tests/clients/cancel` on both links. Threads are cancelled while they
//! post, poll, sleep and create objects; no lock stays held, and the other threads continue. A
//! process whose main thread ends first exits with its last thread.

use roxe_tests::cc::{self, Compiled};
use roxe_tests::pair::{self, Program};
use roxe_tests::report::{self, Check, Verdict};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(120);
const ROUNDS: &str = "300";

pub(crate) fn main() -> ExitCode {
    let cells = ["auto", "udp"].map(|link| ["spins", "waits", "makes"].map(|work| (link, work)));
    let cells = cells.concat().into_iter();
    let cancelled =
        cells.map(|(link, work)| check(format!("cancelled where it {work}, link {link}"), "cancel", link, work));
    let ended = ["first", "later"].map(|opener| {
        check(
            format!("process exits after pthread_exit of the main thread, device opened {opener}"),
            "main_ends",
            "auto",
            opener,
        )
    });
    report::main(cancelled.chain(ended).collect())
}

fn check(name: String, program: &'static str, link: &'static str, work: &'static str) -> Check {
    Check::new(name, move || {
        if let Some(why) = cc::missing() {
            return Verdict::Skipped(why);
        }
        let source = format!("cancel/{program}.c");
        let compiled = Compiled::new("gcc", &source, &["ibverbs", "pthread"], &format!("{program}-{link}-{work}"));
        compiled.map_or_else(Verdict::Failed, |compiled| judge(&compiled.program, link, work))
    })
}

fn judge(program: &Path, link: &str, work: &str) -> Verdict {
    let args = vec![work.to_owned(), ROUNDS.to_owned()];
    match pair::run(
        &Program { name: program.display().to_string(), args },
        &[("ROXE_LINK", link), ("ROXE_NETDEV", "lo")],
        TIME_LIMIT,
    ) {
        Ok(outcome) if outcome.ok => Verdict::Passed,
        Ok(outcome) => Verdict::Failed(outcome.output),
        Err(e) => Verdict::Failed(e.to_string()),
    }
}
