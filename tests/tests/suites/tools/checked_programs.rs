//! Runs programs of the field under the checker (`roxe run --check`), which reports no errors
//! except mistakes in their source. [`KNOWN_MISTAKES`] and [`DELIBERATE`] list these mistakes, as
//! does docs/reference/checker.md. The suite `misuse` has more correct programs.
//!
//! ```text
//! cargo test -p roxe-tests --test suites -- checked_programs [--all] [WORD...]
//!   --all      also whole suites that start programs, and both links
//!   WORD...    only checks with one of the WORDs in their name
//! ```

use roxe_tests::build;
use roxe_tests::matrix::Ip;
use roxe_tests::pair::{self, Launch, Program};
use roxe_tests::pyverbs::{self, Run};
use roxe_tests::rdmacm::list::{self, Scale};
use roxe_tests::rdmacm::local::{self, Faults, Host, Link};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::unittest::TestResult;
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(60);
const SUITE_LIMIT: Duration = Duration::from_secs(240);

/// Mistakes of programs: the rule, a word in the report's call stacks, and the place in the source.
const KNOWN_MISTAKES: [(&str, &str, &str); 11] = [
    ("acked-too-many", "fio+", "engines/rdma.c:410, 684 acknowledge completions, not events"),
    ("destroy-order", "fio+", "engines/rdma.c:1010 destroys the queue before the queue pair"),
    ("destroy-order", "qperf+", "src/rdma.c:1611, 1940: domain before region; the accepted id stays"),
    ("memory-gone-in-flight", "qperf+", "src/rdma.c:1940 destroys the id that listens, not the accepted one"),
    ("destroy-order", "cmtime+", "cmtime.c:107: rdma_create_qp writes the queue into attributes used again"),
    ("inline-over-grant", "rdma_xclient+", "rdma_xclient.c:65 sends inline without having requested room"),
    ("buffer-changed-in-flight", "rping+", "rping.c:1060, 1076 fill send_buf before a SEND has completed"),
    ("buffer-changed-in-flight", "put_zcopy", "ucp_tests.cc:574 writes into the buffer of the PUT before"),
    ("memory-gone-in-flight", "rc_pingpong_split", "rc_pingpong_split.rs:122: the region is dropped first"),
    ("memory-gone-in-flight", "rrddmma_loopback", "loopback.rs polls one of two completions"),
    ("memory-gone-in-flight", "python", "base.py: of two local players the region is collected first"),
];

/// Rules that tests of rdma-core's suite break on purpose, with the tests.
const DELIBERATE: [(&str, &str); 10] = [
    ("access-missing", "test_atomic.AtomicTest.test_atomic_invalid_mr_access"),
    ("access-missing", "test_atomic.AtomicTest.test_atomic_invalid_qp_access"),
    ("access-missing", "test_mr.MRTest.test_mr_rereg_access_bad_flow"),
    ("access-missing", "test_qpex.QpExTestCase.test_qp_ex_rc_bind_mw"),
    ("key-of-other-pd", "test_mr.MRTest.test_mr_rereg_pd"),
    ("key-out-of-range", "test_mr.MRTest.test_mr_rereg_addr"),
    ("key-stale", "test_mr.MWTest.test_invalidate_mw_type1"),
    ("key-stale", "test_mr.MWTest.test_mw_type2_invalidate_dealloc"),
    ("key-stale", "test_mr.MWTest.test_mw_type2_invalidate_local"),
    ("key-stale", "test_mr.MWTest.test_mw_type2_invalidate_remote"),
];

/// librdmacm programs: a server that outlives its clients, connections, datagrams, small messages.
const SLICE: [&str; 4] = [", 20 clients", "ucmatose -s SERVER -c 4 -C 4", "udaddy -s SERVER -c 4 -C 4", "rdma_client"];

/// Command line of UCX, which posts receives that overlap the next element of its pool.
const UCX: &str = "ucx_perftest -t tag_lat -n 200 -s 8";

/// Suites that start programs.
const SUITES: [&str; 8] =
    ["stock_clients", "rdmacm_clients", "rsockets", "middleware", "field_programs", "crates", "tutorials", "mpi"];

pub(crate) fn main() -> ExitCode {
    let words: Vec<String> = report::arguments().collect();
    let all = words.iter().any(|word| word == "--all");
    let links = if all { &["auto", "udp"][..] } else { &["auto"] };
    let mut checks = Vec::new();
    for link in links {
        for name in SLICE {
            checks.push(Check::new(format!("{name}, link {link}"), move || librdmacm_program(name, link)));
        }
        checks.push(Check::new(format!("{UCX}, link {link}"), move || ucx(link)));
        checks.push(Check::new(format!("pyverbs, link {link}"), move || pyverbs(link)));
        for name in SUITES.iter().filter(|_| all) {
            checks.push(Check::new(format!("all of {name}, link {link}"), move || all_of(name, link)));
        }
    }
    report::run(checks, &words)
}

/// A report file that programs of every user can write; removed when this is dropped.
struct Reports(PathBuf);

impl Reports {
    fn new() -> std::io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let count = NEXT.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("roxe-checked-{}-{count}.jsonl", id()));
        File::create(&file)?;
        fs::set_permissions(&file, Permissions::from_mode(0o666))?;
        Ok(Self(file))
    }

    /// Returns the environment variables that turn the checker on with this file.
    fn envs(&self, link: &str) -> Vec<(String, String)> {
        let file = self.0.display().to_string();
        let envs = [("ROXE_CHECK", "warn"), ("ROXE_CHECK_REPORT", &file), ("ROXE_LINK", link)];
        envs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    /// Checks that there are no errors except [`KNOWN_MISTAKES`] and those of `allowed_rules`.
    ///
    /// # Errors
    /// The other errors, one a line.
    fn new_reports(&self, allowed_rules: &[&str]) -> Result<(), String> {
        let text = fs::read_to_string(&self.0).map_err(|e| e.to_string())?;
        let is_new = |line: &&str| {
            let report: Value = serde_json::from_str(line).unwrap_or_default();
            let calls = report["stacks"].to_string();
            let is_known = KNOWN_MISTAKES.iter().any(|(rule, word, _)| report["rule"] == *rule && calls.contains(word));
            report["severity"] != "warning" && allowed_rules.iter().all(|rule| report["rule"] != *rule) && !is_known
        };
        let new: Vec<&str> = text.lines().filter(is_new).collect();
        if new.is_empty() { Ok(()) } else { Err(new.join("\n")) }
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        // A leftover file is harmless.
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs `work` with a report file. Passes if `work` passes and there are no new reports.
fn check_reports(allowed_rules: &[&str], work: impl FnOnce(&Reports) -> Verdict) -> Verdict {
    let reports = match Reports::new() {
        Ok(reports) => reports,
        Err(e) => return Verdict::Failed(e.to_string()),
    };
    match (work(&reports), reports.new_reports(allowed_rules)) {
        (Verdict::Passed, Err(new)) => Verdict::Failed(new),
        (verdict, _) => verdict,
    }
}

/// Runs a program that connects through librdmacm.
fn librdmacm_program(name: &str, link: &str) -> Verdict {
    let exchange = list::all(Scale::Small).into_iter().find(|exchange| exchange.to_string().contains(name));
    let Some(exchange) = exchange else { return Verdict::Failed(format!("there is no {name}")) };
    check_reports(&[], |reports| {
        let launch = Launch { envs: reports.envs(link), ..Launch::default() };
        let end = Host { launch, address: "127.0.0.1".to_owned(), namespace_pid: id() };
        local::run(&Link { name: "lo", ip: Ip::V4, server: end.clone(), client: end }, Faults::Clean, &exchange)
    })
}

/// Runs UCX over UD; there must not even be a warning that it changes its receives.
fn ucx(link: &str) -> Verdict {
    const PORT: u16 = 18_290;
    if !pair::installed("ucx_perftest") {
        return Verdict::not_installed("ucx_perftest");
    }
    check_reports(&[], |reports| {
        let mut envs = reports.envs(link);
        envs.extend([("UCX_TLS", "ud_v"), ("UCX_NET_DEVICES", "roxe0:1")].map(|(n, v)| (n.to_owned(), v.to_owned())));
        let launch = Launch { envs, ..Launch::default() };
        let server = Program::parse(&format!("{UCX} -p {PORT}"));
        let client = Program::parse(&format!("{UCX} -p {PORT} 127.0.0.1"));
        let both = [(&server, &launch), (&client, &launch)];
        match pair::run_pair_with(both, "checked-ucx", || pair::listens(PORT), TIME_LIMIT) {
            Err(e) => Verdict::Failed(e.to_string()),
            Ok(ends) if ends.iter().any(|end| end.output.contains("roxe run: no /")) => Verdict::Skipped(
                "UCX needs /dev/infiniband, but this user cannot create the namespaces that show it".to_owned(),
            ),
            Ok(ends) => {
                let text = fs::read_to_string(&reports.0).unwrap_or_default();
                let good = ends.iter().all(|end| end.ok) && !text.contains("receive-changed-early");
                if good { Verdict::Passed } else { Verdict::Failed(ends.map(|end| end.output).join("\n") + &text) }
            }
        }
    })
}

/// Runs rdma-core's own suite: first the tests that break no rule on purpose, then the others.
fn pyverbs(link: &str) -> Verdict {
    if !pyverbs::is_installed() {
        return Verdict::not_installed("python3-pyverbs");
    }
    if let Err(e) = pyverbs::unpack() {
        return Verdict::Failed(e.to_string());
    }
    let (deliberate, others): (Vec<String>, Vec<String>) =
        pyverbs::names().into_iter().partition(|test| DELIBERATE.iter().any(|(_, deliberate)| test == deliberate));
    let run = |tests: &[String], allowed_rules: &[&str]| {
        check_reports(allowed_rules, |reports| {
            let envs = reports.envs(link);
            let envs: Vec<_> = envs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let run = Run::new(tests, &envs, SUITE_LIMIT);
            let failed = |result: &TestResult| matches!(result, TestResult::Failed(_) | TestResult::Unknown);
            match run.results().iter().find(|(_, result)| failed(result)) {
                Some((test, result)) => Verdict::Failed(format!("{test}: {result:?}{}", run.traceback(test))),
                None if run.results().is_empty() => Verdict::Failed(run.tail()),
                None => Verdict::Passed,
            }
        })
    };
    let rules = DELIBERATE.map(|(rule, _)| rule);
    match run(&others, &[]) {
        Verdict::Passed => run(&deliberate, &rules),
        verdict => verdict,
    }
}

/// Runs a suite with all its programs under the checker. `rdma_xclient` may fail: the checker
/// refuses its inline data, like a card that grants no more room than was requested.
fn all_of(name: &str, link: &str) -> Verdict {
    check_reports(&[], |reports| {
        let cargo = Command::new(env!("CARGO"))
            .args(["test", "--others", "--workspace", "--test", name])
            .envs(reports.envs(link))
            .env("ROXE_BIN", build::roxe())
            .output();
        let output = match cargo {
            Ok(output) => {
                String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
            }
            Err(e) => return Verdict::Failed(e.to_string()),
        };
        let failed = output.lines().filter(|line| line.starts_with("FAILED") && !line.contains("rdma_xclient"));
        if failed.count() == 0 && output.contains(" passed, ") { Verdict::Passed } else { Verdict::Failed(output) }
    })
}
