//! Runs Debian's verbs programs, unmodified, in pairs under `roxe run` over the loopback device,
//! and checks their output.

use roxe_tests::pair::{self, Outcome, Program};
use roxe_tests::perftest;
use roxe_tests::report::{self, Check, Verdict};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

/// Time limit of a check, long enough for a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn main() -> ExitCode {
    let mut checks = device_checks();
    checks.extend(start_checks());
    checks.extend(pingpongs());
    checks.extend(perftests());
    checks.push(Check::new("ten pairs at once: ib_send_bw", || run_ten_pairs("ib_send_bw")));
    checks.push(Check::new("ten pairs at once: ib_write_lat", || run_ten_pairs("ib_write_lat")));
    report::main(checks)
}

/// Returns a port that no other check of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_600);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn program(name: &str, args: &str) -> Program {
    Program { name: name.to_owned(), args: args.split_whitespace().map(str::to_owned).collect() }
}

/// Returns a check that a program exits with 0 and prints all of `words`.
fn alone(name: &'static str, args: &'static str, words: &'static [&'static str]) -> Check {
    Check::new(format!("{name} {args}").trim_end().to_owned(), move || {
        if !pair::installed(name) {
            return Verdict::not_installed(name);
        }
        match pair::run(&program(name, args), &[], TIME_LIMIT) {
            Err(e) => Verdict::Failed(e.to_string()),
            Ok(o) if !o.ok => Verdict::Failed(o.transcript()),
            Ok(o) => match words.iter().find(|w| !o.output.contains(**w)) {
                Some(word) => Verdict::Failed(format!("no {word:?} in\n{}", o.transcript())),
                None => Verdict::Passed,
            },
        }
    })
}

fn device_checks() -> Vec<Check> {
    vec![
        alone("ibv_devices", "", &["roxe0"]),
        alone(
            "ibv_devinfo",
            "-v",
            &["hca_id:\troxe0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "GID[  0]:\t\t::ffff:127.0.0.1, RoCE v2"],
        ),
    ]
}

/// Returns checks that programs start: the loader finds every symbol that they need, private ones
/// included.
fn start_checks() -> Vec<Check> {
    const IMPORT_ALL: &str = "import importlib,pkgutil,pyverbs;names=[m.name for m in pkgutil.walk_packages(pyverbs.__path__,'pyverbs.')];\
                              [importlib.import_module(n) for n in names];print(len(names),'modules')";
    let mut checks = vec![alone("fi_info", "-l", &["version:"]), alone("ucx_info", "-v", &["# Version"])];
    for tool in ["ib_send_bw", "ib_write_lat", "ib_read_bw", "ib_atomic_lat", "raw_ethernet_bw"] {
        checks.push(Check::new(format!("starts: {tool} --version"), move || starts(tool, "--version", "Version")));
    }
    checks.push(Check::new("starts: rping -h", || starts("rping", "-h", "rping -s ")));
    for tool in ["ucmatose", "udaddy", "mckey", "rdma_server", "rdma_client", "rstream", "cmtime", "riostream"] {
        checks.push(Check::new(format!("starts: {tool} -h"), move || starts(tool, "-h", "usage: ")));
    }
    checks.push(Check::new("starts: qperf --version", || starts("qperf", "--version", "qperf")));
    checks.push(Check::new("starts: fio --enghelp=rdma", || starts("fio", "--enghelp=rdma", "hostname")));
    checks.push(Check::new("imports: every pyverbs module", || {
        let python = Program { name: "/usr/bin/python3".into(), args: vec!["-c".into(), IMPORT_ALL.into()] };
        if !std::path::Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir() {
            return Verdict::not_installed("python3-pyverbs");
        }
        match pair::run(&python, &[], TIME_LIMIT) {
            Err(e) => Verdict::Failed(e.to_string()),
            Ok(o) if o.ok && o.output.contains("modules") => Verdict::Passed,
            Ok(o) => Verdict::Failed(o.transcript()),
        }
    }));
    checks
}

/// Checks that a program prints its own text, not the loader's message about a missing symbol. The
/// exit status is ignored, because several programs exit with 1 after their usage text.
fn starts(name: &str, args: &str, word: &str) -> Verdict {
    if !pair::installed(name) {
        return Verdict::not_installed(name);
    }
    match pair::run(&program(name, args), &[], TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(o) if o.output.contains(word) && !o.output.contains("symbol lookup error") => Verdict::Passed,
        Ok(o) => Verdict::Failed(o.transcript()),
    }
}

/// Runs server and client of one program; `judge` checks the client's output.
fn run_pair(tool: &str, args: &str, judge: impl Fn(&str) -> Result<(), String>) -> Verdict {
    run_pair_with(tool, args, &[], judge)
}

/// Runs a pair with additional environment variables.
fn run_pair_with(tool: &str, args: &str, envs: &[(&str, &str)], judge: impl Fn(&str) -> Result<(), String>) -> Verdict {
    if !pair::installed(tool) {
        return Verdict::not_installed(tool);
    }
    let port = port();
    let server = program(tool, &format!("{args} -p {port}"));
    let client = program(tool, &format!("{args} -p {port} 127.0.0.1"));
    // The counters help to explain a failure that is hard to repeat.
    let envs = [envs, &[("ROXE_STATS", "on")]].concat();
    match pair::run_pair(&server, &client, port, &envs, TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok([s, c]) => match (s.ok && c.ok).then(|| judge(&c.output)) {
            Some(Ok(())) => Verdict::Passed,
            Some(Err(why)) => Verdict::Failed(format!("{why}\n{}", c.transcript())),
            None => Verdict::Failed(format!("{}\n{}", s.transcript(), c.transcript())),
        },
    }
}

fn pingpongs() -> Vec<Check> {
    let mut checks = Vec::new();
    for (tool, sizes) in [
        ("ibv_rc_pingpong", ["-s 4096", "-s 1000000 -n 200", "-m 4096 -s 65536"]),
        ("ibv_uc_pingpong", ["-s 4096", "-s 10000", "-m 256 -s 1000"]),
        ("ibv_ud_pingpong", ["-s 2048", "-s 1024", "-s 64"]),
        ("ibv_srq_pingpong", ["-s 4096", "-q 4 -s 65536 -n 200", "-q 16 -s 64"]),
    ] {
        for size in sizes {
            for gid in [0, 1] {
                for events in ["", " -e"] {
                    let args = format!("-g {gid} -c {size}{events}");
                    checks.push(Check::new(format!("{tool} {args}"), move || run_pair(tool, &args, check_iterations)));
                }
            }
        }
    }
    for args in ["-g 0", "-g 1", "-g 0 -e", "-g 0 -o", "-g 0 -s 100000 -n 200"] {
        // Only one client: with more, the server sends to one client's SRQ over the connection of
        // another, for which clients of one host must share an XRC domain.
        checks.push(Check::new(format!("ibv_xsrq_pingpong {args}"), move || run_xsrq_pair(args)));
    }
    for extra in ["-N", "-t", "-N -t", "-N -e", "-o", "-o -P", "-O -P -e", "-j", "-j -N -e"] {
        let args = format!("-g 0 -c {extra}");
        checks.push(Check::new(format!("ibv_rc_pingpong {args}"), move || {
            run_pair("ibv_rc_pingpong", &args, check_iterations)
        }));
    }
    checks
}

fn run_xsrq_pair(args: &str) -> Verdict {
    if !pair::installed("ibv_xsrq_pingpong") {
        return Verdict::not_installed("ibv_xsrq_pingpong");
    }
    let port = port();
    let server = program("ibv_xsrq_pingpong", &format!("{args} -p {port}"));
    let client = program("ibv_xsrq_pingpong", &format!("{args} -p {port} 127.0.0.1"));
    let successes = |end: &Outcome| end.output.matches("success").count();
    match pair::run_pair(&server, &client, port, &[], TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok([s, c]) if s.ok && c.ok && (successes(&s), successes(&c)) == (1, 1) => Verdict::Passed,
        Ok([s, c]) => Verdict::Failed(format!("{}\n{}", s.transcript(), c.transcript())),
    }
}

/// Checks the output of a pingpong: it ends with "N iters in S seconds", and with `-c` it prints
/// "invalid data" if bytes differ.
fn check_iterations(output: &str) -> Result<(), String> {
    if output.contains("invalid data") {
        return Err("the received bytes differ".into());
    }
    if output.contains("iters in") { Ok(()) } else { Err("no result line".into()) }
}

struct Tool {
    name: &'static str,
    services: &'static [&'static str],
    events: bool,
    inline: bool,
}

const BANDWIDTH: [Tool; 4] = [
    Tool { name: "ib_send_bw", services: &["RC", "UC", "UD"], events: true, inline: true },
    Tool { name: "ib_write_bw", services: &["RC", "UC"], events: false, inline: true },
    Tool { name: "ib_read_bw", services: &["RC"], events: true, inline: false },
    Tool { name: "ib_atomic_bw", services: &["RC"], events: true, inline: false },
];

const LATENCY: [Tool; 4] = [
    Tool { name: "ib_send_lat", services: &["RC", "UC", "UD"], events: true, inline: true },
    Tool { name: "ib_write_lat", services: &["RC", "UC"], events: false, inline: true },
    Tool { name: "ib_read_lat", services: &["RC"], events: true, inline: false },
    Tool { name: "ib_atomic_lat", services: &["RC"], events: true, inline: false },
];

/// Returns the checks of perftest: every tool with the options that apply to it.
fn perftests() -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, args) in variants() {
        checks.push(Check::new(format!("{name} {args}"), move || run_pair(name, &args, |out| check_figures(out, 1))));
    }
    for (name, args) in wr_call_variants() {
        checks.push(Check::new(format!("{name} {args}, with ibv_wr_*"), move || run_with_wr_calls(name, &args)));
    }
    for (tool, bandwidth) in BANDWIDTH.iter().map(|t| (t, true)).chain(LATENCY.iter().map(|t| (t, false))) {
        for service in tool.services {
            for options in options(tool, service, bandwidth) {
                let args = format!("-F -c {service} {options}");
                let name = tool.name;
                let sizes = result_lines(&options, service);
                checks.push(Check::new(format!("{name} {args}"), move || {
                    run_pair(name, &args, |out| check_figures(out, sizes))
                }));
            }
        }
        for options in ["-x 0 -n 500", "-x 1 -n 500 -m 1024"] {
            let (name, args) = (tool.name, format!("-F -c XRC {options}"));
            checks
                .push(Check::new(format!("{name} {args}"), move || run_pair(name, &args, |out| check_figures(out, 1))));
        }
    }
    checks
}

/// Options that all variants share.
const PLAIN: &str = "-F -x 0 -n 500";

/// Returns runs with an SRQ, with on-demand paging, and with both on XRC.
fn variants() -> Vec<(&'static str, String)> {
    let mut sets = Vec::new();
    for tool in ["ib_send_bw", "ib_send_lat"] {
        for options in ["-c RC --use-srq", "-c UD --use-srq -s 1024", "-c XRC --use-srq", "-c XRC --use-srq --odp"] {
            sets.push((tool, format!("{PLAIN} {options}")));
        }
    }
    for options in ["-c RC --use-srq -q 4", "-c XRC --use-srq -q 4 -b"] {
        sets.push(("ib_send_bw", format!("{PLAIN} {options}")));
    }
    sets.extend(
        ["ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat"].map(|tool| (tool, format!("{PLAIN} --odp"))),
    );
    sets
}

/// Returns runs of every tool on every service that it supports, for the `ibv_wr_*` calls.
fn wr_call_variants() -> Vec<(&'static str, String)> {
    let tools = BANDWIDTH.iter().chain(&LATENCY);
    let services = tools.flat_map(|tool| tool.services.iter().chain(&["XRC"]).map(|service| (tool.name, *service)));
    services.map(|(tool, service)| (tool, format!("{PLAIN} -c {service} -s 8"))).collect()
}

/// Runs a pair with the part ID of a card for which perftest posts by `ibv_wr_*` calls instead of
/// `ibv_post_send`.
fn run_with_wr_calls(name: &str, args: &str) -> Verdict {
    run_pair_with(name, args, &[("ROXE_VENDOR_PART_ID", "4119")], |out| check_figures(out, 1))
}

/// Returns the option sets of one tool and service.
fn options(tool: &Tool, service: &str, bandwidth: bool) -> Vec<String> {
    let atomic = tool.name.contains("atomic");
    let mut sets = vec!["-x 0 -n 1000".to_owned(), "-x 1 -n 1000".to_owned(), "-x 0 -D 1".to_owned()];
    if atomic {
        sets.push("-x 0 -n 1000 -A CMP_AND_SWAP".to_owned());
    } else {
        // All sizes up to 8 MB. Latency runs have fewer iterations, because each copies 8 MB
        // without overlap.
        sets.push(format!("-x 0 -a -n {}", if bandwidth { 200 } else { 20 }));
    }
    // Latency runs use one path MTU. The suite `cells` checks every operation at each MTU.
    let mtus: &[u32] = if bandwidth { &[256, 512, 1024, 2048, 4096] } else { &[1024] };
    for mtu in mtus {
        let size = if service == "UD" { 200 } else { 20_000 };
        let size = if atomic { String::new() } else { format!(" -s {size}") };
        sets.push(format!("-x 0 -n 500 -m {mtu}{size}"));
    }
    if tool.events {
        sets.push("-x 0 -n 1000 -e".to_owned());
    }
    if tool.inline {
        sets.push("-x 0 -n 1000 -s 64 --inline_size 128".to_owned());
    }
    if bandwidth {
        sets.push("-x 0 -n 500 -q 8".to_owned());
        sets.push("-x 0 -n 1000 -b".to_owned());
        sets.push("-x 0 -n 500 -q 8 -b".to_owned());
    }
    sets
}

/// Returns the number of result lines that a run must print.
fn result_lines(options: &str, service: &str) -> usize {
    match (options.contains("-a "), service) {
        (true, "UD") => 12,
        (true, _) => 23,
        (false, _) => 1,
    }
}

fn check_figures(output: &str, expected: usize) -> Result<(), String> {
    let rows = perftest::rows(output);
    if rows.len() != expected {
        return Err(format!("{} result lines instead of {expected}", rows.len()));
    }
    match rows.iter().find(|row| !perftest::is_measured(row, output)) {
        Some(row) => Err(format!("nothing was measured at {} bytes", row.size)),
        None => Ok(()),
    }
}

/// Runs ten servers and ten clients on one address at the same time.
fn run_ten_pairs(tool: &'static str) -> Verdict {
    if !pair::installed(tool) {
        return Verdict::not_installed(tool);
    }
    let pairs: Vec<_> = (0..10)
        .map(|_| thread::spawn(move || run_pair(tool, "-F -x 0 -n 300 -s 4096", |out| check_figures(out, 1))))
        .collect();
    let verdicts =
        pairs.into_iter().map(|p| p.join().unwrap_or_else(|_| Verdict::Failed("the thread panicked".into())));
    let failed: Vec<String> =
        verdicts.filter_map(|v| if let Verdict::Failed(why) = v { Some(why) } else { None }).collect();
    if failed.is_empty() { Verdict::Passed } else { Verdict::Failed(failed.join("\n")) }
}
