//! Programs under their authors' checkers, valgrind and gcc's sanitizers, on both links: the tools
//! report the mistakes of the programs, and no mistake of roxe.

use roxe_tests::cc::{self, Compiled};
use roxe_tests::pair::{self, Outcome, Launch, Program};
use roxe_tests::rdmacm::judge::hit_rping_exit_race;
use roxe_tests::rdmacm::local;
use roxe_tests::report::{self, Check, Verdict};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use std::{env, fs, process};

const LIMIT: Duration = Duration::from_secs(240);
/// Values of `ROXE_LINK`.
const LINKS: [&str; 2] = ["auto", "udp"];
/// Valgrind reports errors by this exit status; the other tools do so by default.
const VALGRIND: [&str; 3] = ["valgrind", "-q", "--error-exitcode=9"];
/// Messages of `tests/clients/users` in each direction.
const ROUNDS: &str = "100";
/// Rounds under valgrind.
const ROUNDS_VALGRIND: &str = "5";

/// Options of a pair of programs, and the sign that the server is ready.
struct Pair {
    server: &'static str,
    client: &'static str,
    waits: fn(u16) -> bool,
}

/// Pairs that run under valgrind. Perftest sends uninitialised bytes over its own TCP connection:
/// see [`THEIRS`].
const PAIRS: [Pair; 4] = [
    Pair {
        server: "ibv_rc_pingpong -g 0 -n 50 -p PORT",
        client: "ibv_rc_pingpong -g 0 -n 50 -p PORT 127.0.0.1",
        waits: pair::listens,
    },
    Pair {
        server: "ib_write_bw -F -n 20 -s 4096 -p PORT",
        client: "ib_write_bw -F -n 20 -s 4096 -p PORT 127.0.0.1",
        waits: pair::listens,
    },
    Pair {
        server: "rping -s -a 127.0.0.1 -p PORT -C 3",
        client: "rping -c -a 127.0.0.1 -p PORT -C 3",
        waits: is_bound,
    },
    Pair { server: "rdma_server -p PORT", client: "rdma_client -s 127.0.0.1 -p PORT", waits: is_bound },
];

/// The test's own suppressions, in addition to those of `roxe run`: they show that those of the
/// user stay in force. The second one is for rping's race with itself ([`hit_rping_exit_race`]): its
/// event thread uses the channel that the main thread has freed.
const THEIRS: &str = "\
{
   bytes of perftest that it has not written
   Memcheck:Param
   write(buf)
   ...
   obj:*/bin/ib_*
}
{
   where rping finds its channel
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
            own(link, &Built { tool: Tool::Valgrind, mistake: "", options: &[] }, Hears::Nothing),
            own(link, &Built { tool: Tool::Address, mistake: "", options: &[] }, Hears::Nothing),
            own(link, &Built { tool: Tool::Address, mistake: "unmapped", options: &[] }, Hears::Nothing),
            own(link, &Built { tool: Tool::Thread, mistake: "", options: &[] }, Hears::Nothing),
            own(link, &Built { tool: Tool::Thread, mistake: "unmapped", options: &[] }, Hears::Nothing),
        ]);
    }
    checks.extend([
        own("auto", &Built { tool: Tool::Address, mistake: "", options: &["--preload"] }, Hears::Nothing),
        own("auto", &Built { tool: Tool::Address, mistake: "", options: &["--rsocket"] }, Hears::Nothing),
        // Reports do not include outgoing uninitialised bytes: programs commonly send padding.
        own("udp", &Built { tool: Tool::Valgrind, mistake: "uninitialised", options: &[] }, Hears::Nothing),
        own("udp", &Built { tool: Tool::Valgrind, mistake: "unmapped", options: &[] }, Hears::Of("Invalid read")),
        own(
            "auto",
            &Built { tool: Tool::Valgrind, mistake: "use-after-free", options: &[] },
            Hears::Of("Invalid read"),
        ),
        own("auto", &Built { tool: Tool::Valgrind, mistake: "leak", options: &[] }, Hears::Of("definitely lost")),
        own(
            "auto",
            &Built { tool: Tool::Address, mistake: "use-after-free", options: &[] },
            Hears::Of("heap-use-after-free"),
        ),
        own("auto", &Built { tool: Tool::Address, mistake: "leak", options: &[] }, Hears::Of("LeakSanitizer")),
        own(
            "auto",
            &Built { tool: Tool::Thread, mistake: "race", options: &[] },
            Hears::Of("ThreadSanitizer: data race"),
        ),
    ]);
    report::main(checks)
}

/// Returns a port that no other check of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_200);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A pair of Debian's programs.
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
    let (port, theirs) = (port(), folder.join("theirs.supp"));
    fs::write(&theirs, THEIRS)?;
    let launch = Launch {
        envs: vec![
            ("ROXE_LINK".to_owned(), link.to_owned()),
            ("VALGRIND_OPTS".to_owned(), format!("--suppressions={}", theirs.display())),
        ],
        ..Launch::default()
    };
    let program =
        |line: &str| Program::parse(&format!("{} {}", VALGRIND.join(" "), line.replace("PORT", &port.to_string())));
    let (server, client) = (program(pair.server), program(pair.client));
    let both = [(&server, &launch), (&client, &launch)];
    let outcomes = pair::run_pair_with(both, &port.to_string(), || (pair.waits)(port), LIMIT)?;
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

/// The project's own program, and its options.
struct Built {
    tool: Tool,
    /// Mistake that the program makes; empty for none.
    mistake: &'static str,
    /// Options of `roxe run`.
    options: &'static [&'static str],
}

/// Required reports of a tool.
enum Hears {
    Nothing,
    Of(&'static str),
}

fn own(link: &'static str, &Built { tool, mistake, options }: &Built, hears: Hears) -> Check {
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
            Ok(compiled) => judge(&compiled.program, tool, mistake, options, link, &hears),
            Err(why) => why,
        }
    })
}

fn judge(program: &Path, tool: Tool, mistake: &str, options: &[&str], link: &str, hears: &Hears) -> Verdict {
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
    match (pair::run_with(&Program { name, args }, &launch, LIMIT), hears) {
        (Err(e), _) => Verdict::Failed(e.to_string()),
        (Ok(outcome), Hears::Nothing) if outcome.ok && outcome.output.trim().is_empty() => Verdict::Passed,
        (Ok(outcome), Hears::Of(what)) if !outcome.ok && outcome.output.contains(what) => Verdict::Passed,
        (Ok(outcome), _) => Verdict::Failed(outcome.transcript()),
    }
}

fn scratch(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("roxe-users-{name}-{}", process::id()));
    // If that fails, so does what is done in it.
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
