//! The program `tests/clients/cancel`: threads that are cancelled while they post, poll, sleep and make objects end whole, and
//! others go on. With the link of one host and with sockets.
//!
//! `cargo test -p roxe-tests --test cancel -- WORD...` runs the checks whose name contains a word.

use roxe_tests::pair::{self, Program};
use roxe_tests::report::{self, Check, Verdict};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs, process};

const LIMIT: Duration = Duration::from_secs(120);
const ROUNDS: &str = "300";

fn main() -> ExitCode {
    let cells = ["auto", "udp"].map(|link| ["spins", "waits", "makes"].map(|work| (link, work)));
    report::main(cells.concat().into_iter().map(|(link, work)| check(link, work)).collect())
}

fn check(link: &'static str, work: &'static str) -> Check {
    Check::new(format!("cancelled where it {work}, link {link}"), move || {
        if !pair::installed("gcc") || !Path::new("/usr/include/infiniband/verbs.h").exists() {
            return Verdict::Skipped("needs gcc and libibverbs-dev (see the README's test command)".to_owned());
        }
        let folder = env::temp_dir().join(format!("roxe-cancel-{link}-{work}-{}", process::id()));
        let verdict = compile(&folder).map_or_else(Verdict::Failed, |program| judge(program, link, work));
        // A folder that stays behind harms nobody.
        let _ = fs::remove_dir_all(&folder);
        verdict
    })
}

fn judge(program: PathBuf, link: &str, work: &str) -> Verdict {
    let args = vec![work.to_owned(), ROUNDS.to_owned()];
    match pair::run(
        &Program { name: program.display().to_string(), args },
        &[("ROXE_LINK", link), ("ROXE_NETDEV", "lo")],
        LIMIT,
    ) {
        Ok(outcome) if outcome.ok => Verdict::Passed,
        Ok(outcome) => Verdict::Failed(outcome.output),
        Err(e) => Verdict::Failed(e.to_string()),
    }
}

fn compile(folder: &Path) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/cancel/cancel.c");
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let program = folder.join("cancel");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program).arg(source).arg("-libverbs");
    let output = gcc.output().map_err(|e| format!("gcc: {e}"))?;
    if output.status.success() { Ok(program) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
