//! Runs programs under valgrind and gcc's sanitizers, on both links: the tools report the programs'
//! mistakes, and nothing about roxe.

use roxe_tests::cc::{self, Compiled};
use roxe_tests::pair::{self, Launch, Outcome, Program};
use roxe_tests::rdmacm::judge::hit_rping_exit_race;
use roxe_tests::rdmacm::local;
use roxe_tests::report::{self, Check, Verdict};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use std::{env, fs, process};

const TIME_LIMIT: Duration = Duration::from_secs(240);
/// Values of `ROXE_LINK`.
const LINKS: [&str; 2] = ["auto", "udp"];
/// Valgrind with an exit status for errors, which the other tools have by default.
const VALGRIND: [&str; 3] = ["valgrind", "-q", "--error-exitcode=9"];
/// Number of messages of `tests/clients/users` in each direction.
const ROUNDS: &str = "100";
/// Number of messages under valgrind.
const ROUNDS_VALGRIND: &str = "5";

/// Command lines of a pair of programs, and the check that the server is ready.
struct Pair {
    server: &'static str,
    client: &'static str,
    is_ready: fn(u16) -> bool,
}

/// Pairs that run under valgrind. Perftest sends uninitialised bytes over its own TCP connection:
/// see [`SUPPRESSIONS`].
const PAIRS: [Pair; 4] = [
    Pair {
        server: "ibv_rc_pingpong -g 0 -n 50 -p PORT",
        client: "ibv_rc_pingpong -g 0 -n 50 -p PORT 127.0.0.1",
        is_ready: pair::listens,
    },
    Pair {
        server: "ib_write_bw -F -n 20 -s 4096 -p PORT",
        client: "ib_write_bw -F -n 20 -s 4096 -p PORT 127.0.0.1",
        is_ready: pair::listens,
    },
    Pair {
        server: "rping -s -a 127.0.0.1 -p PORT -C 3",
        client: "rping -c -a 127.0.0.1 -p PORT -C 3",
        is_ready: is_bound,
    },
    Pair { server: "rdma_server -p PORT", client: "rdma_client -s 127.0.0.1 -p PORT", is_ready: is_bound },
];

/// Suppressions of the user, which must stay in force beside those of `roxe run`. The second one is
/// for a race of rping ([`hit_rping_exit_race`]): its event thread uses the channel that the main
/// thread has freed.
const SUPPRESSIONS: &str = "\
{
   perftest sends uninitialised bytes
   Memcheck:Param
   write(buf)
   ...
   obj:*/bin/ib_*
}
{
   rping reads its freed channel
   Memcheck:Addr8
   obj:*/bin/rping
   fun:start_thread
}
";

fn is_bound(port: u16) -> bool {
    local::listens(process::id(), port)
}

pub(crate) fn main() -> ExitCode {
    let mut checks = Vec::new();
    for link in LINKS {
        checks.extend(PAIRS.iter().map(|pair| under_valgrind(pair, link)));
        checks.extend([
            users_check(link, &Built { tool: Tool::Valgrind, mistake: "", options: &[] }, Report::None),
            users_check(link, &Built { tool: Tool::Address, mistake: "", options: &[] }, Report::None),
            users_check(link, &Built { tool: Tool::Address, mistake: "unmapped", options: &[] }, Report::None),
            users_check(link, &Built { tool: Tool::Thread, mistake: "", options: &[] }, Report::None),
            users_check(link, &Built { tool: Tool::Thread, mistake: "unmapped", options: &[] }, Report::None),
        ]);
    }
    checks.extend([
        users_check("auto", &Built { tool: Tool::Address, mistake: "", options: &["--preload"] }, Report::None),
        users_check("auto", &Built { tool: Tool::Address, mistake: "", options: &["--rsocket"] }, Report::None),
        // Outgoing uninitialised bytes are not reported, because programs commonly send padding.
        users_check("udp", &Built { tool: Tool::Valgrind, mistake: "uninitialised", options: &[] }, Report::None),
        users_check(
            "udp",
            &Built { tool: Tool::Valgrind, mistake: "unmapped", options: &[] },
            Report::Contains("Invalid read"),
        ),
        users_check(
            "auto",
            &Built { tool: Tool::Valgrind, mistake: "use-after-free", options: &[] },
            Report::Contains("Invalid read"),
        ),
        users_check(
            "auto",
            &Built { tool: Tool::Valgrind, mistake: "leak", options: &[] },
            Report::Contains("definitely lost"),
        ),
        users_check(
            "auto",
            &Built { tool: Tool::Address, mistake: "use-after-free", options: &[] },
            Report::Contains("heap-use-after-free"),
        ),
        users_check(
            "auto",
            &Built { tool: Tool::Address, mistake: "leak", options: &[] },
            Report::Contains("LeakSanitizer"),
        ),
        users_check(
            "auto",
            &Built { tool: Tool::Thread, mistake: "race", options: &[] },
            Report::Contains("ThreadSanitizer: data race"),
        ),
    ]);
    report::main(checks)
}

/// Returns a port that no other check of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_200);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the check of a pair of Debian's programs.
fn under_valgrind(pair: &'static Pair, link: &'static str) -> Check {
    let tool = pair.server.split(' ').next().unwrap_or_default();
    Check::new(format!("valgrind, link {link}: {tool}"), move || {
        if let Some(missing) = ["valgrind", tool].into_iter().find(|tool| !pair::installed(tool)) {
            return Verdict::not_installed(missing);
        }
        let folder = scratch(&format!("valgrind-{tool}-{link}"));
        let verdict = judge_pair(pair, link, &folder).unwrap_or_else(|e| Verdict::Failed(e.to_string()));
        // A leftover folder is harmless.
        let _ = fs::remove_dir_all(&folder);
        verdict
    })
}

fn judge_pair(pair: &Pair, link: &str, folder: &Path) -> std::io::Result<Verdict> {
    let (port, suppressions) = (port(), folder.join("suppressions.supp"));
    fs::write(&suppressions, SUPPRESSIONS)?;
    let launch = Launch {
        envs: vec![
            ("ROXE_LINK".to_owned(), link.to_owned()),
            ("VALGRIND_OPTS".to_owned(), format!("--suppressions={}", suppressions.display())),
        ],
        ..Launch::default()
    };
    let program =
        |line: &str| Program::parse(&format!("{} {}", VALGRIND.join(" "), line.replace("PORT", &port.to_string())));
    let (server, client) = (program(pair.server), program(pair.client));
    let both = [(&server, &launch), (&client, &launch)];
    let outcomes = pair::run_pair_with(both, &port.to_string(), || (pair.is_ready)(port), TIME_LIMIT)?;
    let ended = |outcome: &Outcome| outcome.ok || hit_rping_exit_race(outcome);
    let bad = outcomes.iter().find(|outcome| !ended(outcome) || outcome.output.contains("\n=="));
    Ok(bad.map_or(Verdict::Passed, |_| Verdict::Failed(outcomes.each_ref().map(Outcome::transcript).join("\n"))))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Valgrind,
    Address,
    Thread,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Valgrind => "valgrind",
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }
}

/// A build of `tests/clients/users`, with its options.
struct Built {
    tool: Tool,
    /// Mistake that the program makes; empty for none.
    mistake: &'static str,
    /// Options of `roxe run`.
    options: &'static [&'static str],
}

/// The expected report of a tool.
enum Report {
    None,
    Contains(&'static str),
}

fn users_check(link: &'static str, &Built { tool, mistake, options }: &Built, expected: Report) -> Check {
    let words: Vec<&str> = [tool.name(), mistake].into_iter().chain(options.iter().copied()).collect();
    let name = format!("{}, link {link}: users", words.join(" ").trim());
    Check::new(name.split_whitespace().collect::<Vec<_>>().join(" "), move || {
        if let Some(why) = cc::missing() {
            return Verdict::Skipped(why);
        }
        if tool == Tool::Valgrind && !pair::installed("valgrind") {
            return Verdict::not_installed("valgrind");
        }
        match compile(tool, &format!("users-{}-{link}-{}", tool.name(), words.concat())) {
            Ok(compiled) => judge(&compiled.program, tool, mistake, options, link, &expected),
            Err(why) => why,
        }
    })
}

fn judge(program: &Path, tool: Tool, mistake: &str, options: &[&str], link: &str, expected: &Report) -> Verdict {
    let program = program.display().to_string();
    let line: Vec<&str> = match tool {
        Tool::Valgrind => {
            let leaks = ["--leak-check=full", "--errors-for-leak-kinds=definite,possible"];
            VALGRIND.into_iter().chain(leaks).chain([program.as_str(), ROUNDS_VALGRIND, mistake]).collect()
        }
        Tool::Address | Tool::Thread => vec![&program, ROUNDS, mistake],
    };
    let (name, args) = (line[0].to_owned(), line[1..].iter().map(|word| (*word).to_owned()).collect());
    let launch = Launch {
        envs: vec![("ROXE_LINK".to_owned(), link.to_owned())],
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Launch::default()
    };
    match (pair::run_with(&Program { name, args }, &launch, TIME_LIMIT), expected) {
        (Err(e), _) => Verdict::Failed(e.to_string()),
        (Ok(outcome), Report::None) if outcome.ok && outcome.output.trim().is_empty() => Verdict::Passed,
        (Ok(outcome), Report::Contains(text)) if !outcome.ok && outcome.output.contains(text) => Verdict::Passed,
        (Ok(outcome), _) => Verdict::Failed(outcome.transcript()),
    }
}

fn scratch(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("roxe-users-{name}-{}", process::id()));
    // If this fails, writing into the folder fails, too.
    let _ = fs::create_dir_all(&folder);
    folder
}

fn compile(tool: Tool, tag: &str) -> Result<Compiled, Verdict> {
    let sanitize = format!("-fsanitize={}", tool.name());
    let flags: &[&str] = if tool == Tool::Valgrind { &["-g"] } else { &["-g", &sanitize] };
    Compiled::with_flags("gcc", flags, "users/users.c", &["ibverbs"], tag).map_err(|text| {
        if text.contains("cannot find") {
            return Verdict::Skipped(format!("this host's gcc has no runtime for {sanitize}"));
        }
        Verdict::Failed(text)
    })
}
