//! Checks that Debian's UCX and libfabric, unmodified, find and use roxe.
//!
//! UCX silently falls back to TCP or shared memory. So every check allows one transport only,
//! checks in the log that it was chosen, and counts the packets of both sides.
//!
//! `cargo test -p roxe-tests --test suites -- middleware [--weakest=SEED] [WORD...]`: on the
//! weakest card of that seed, without the weaknesses that docs/explanation/weakest.md lists for
//! these programs.

use roxe_tests::guest::link;
use roxe_tests::pair::{self, Outcome, Program};
use roxe_tests::report::{self, Check, Verdict};
use std::io;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Tests of ucx_perftest over UCP: name, iterations, and message size in bytes.
const UCP: [(&str, u32, u32); 14] = [
    ("tag_lat", 500, 8),
    ("tag_lat", 200, 20_000),
    ("tag_bw", 500, 65_536),
    ("tag_bw", 20, 4_000_000),
    ("tag_sync_lat", 200, 64),
    ("ucp_put_lat", 200, 8),
    ("ucp_put_bw", 200, 65_536),
    ("ucp_get", 200, 65_536),
    ("ucp_fadd", 200, 8),
    ("ucp_cswap", 200, 8),
    ("stream_lat", 200, 1_000),
    ("stream_bw", 200, 65_536),
    ("ucp_am_lat", 200, 64),
    ("ucp_am_bw", 200, 65_536),
];

/// Tests of ucx_perftest over UCT, which name their transport. There are no atomics, because UCX
/// uses them only on cards with `IBV_ATOMIC_HCA`, and roxe reports more.
const UCT: [(&str, &str); 7] = [
    ("rc_verbs", "-t am_lat -n 500"),
    ("rc_verbs", "-t am_bw -n 500 -s 4096 -D bcopy"),
    ("rc_verbs", "-t put_lat -n 200"),
    ("rc_verbs", "-t put_bw -n 200 -s 65536 -D zcopy"),
    ("rc_verbs", "-t get -n 200 -s 65536 -D zcopy"),
    ("ud_verbs", "-t am_lat -n 500"),
    ("ud_verbs", "-t am_bw -n 500 -s 1024 -D bcopy"),
];

/// Options of io_demo, for both sides. It connects through librdmacm, whereas ucx_perftest
/// exchanges addresses over TCP. `-q` checks every byte.
const IO_DEMO: [&str; 3] =
    ["-q -i 100 -d 64:8000", "-q -i 100 -d 64:100000 -o read,write -w 4", "-q -i 100 -d 64:100000 -o read,write -A"];

/// Options of fi_pingpong. Endpoints of type `msg` are connections of librdmacm, which `ofi_rxm`
/// uses.
const FABRIC: [&str; 11] = [
    "-p verbs -e msg -c -I 100",
    "-p verbs -e msg -c -I 1000 -S 1024",
    "-p verbs -e msg -c -I 20 -S 1048576",
    "-p verbs;ofi_rxm -e rdm -c -I 100",
    "-p verbs;ofi_rxm -e rdm -c -I 1000 -S 1024",
    "-p verbs;ofi_rxm -e rdm -c -I 20 -S 1048576",
    "-p verbs;ofi_rxm -e rdm -c -I 200 -S 4096 -m tagged",
    "-p verbs -e dgram -c -I 1000",
    "-p verbs -e dgram -c -I 1000 -S 1024",
    "-p verbs;ofi_rxd -e rdm -c -I 200 -S 4096",
    "-p verbs;ofi_rxd -e rdm -c -I 50 -S 65536",
];

/// Interface for libfabric, which does not use the loopback interface.
const NETDEV: &str = "fabric0";
/// Address of [`NETDEV`].
const ADDRESS: &str = "10.88.0.1";

pub(crate) fn main() -> ExitCode {
    let mut checks = vec![Check::new("ucx_info -d lists rc_verbs and ud_verbs on roxe0:1", lists_transports)];
    for (transport, tls) in [("rc_verbs", "rc_v"), ("ud_verbs", "ud_v")] {
        for (test, count, size) in UCP {
            let name = format!("ucx_perftest {test} over {tls}, {size} bytes");
            checks.push(Check::new(name, move || ucp(transport, tls, &format!("-t {test} -n {count} -s {size}"))));
        }
    }
    for (transport, tls) in [("rc_verbs", "rc_v"), ("ud_verbs", "ud_v")] {
        for args in ["-t tag_lat -n 200 -s 8 -E sleep", "-t tag_bw -n 200 -s 100000 -E sleep"] {
            checks.push(Check::new(format!("ucx_perftest {args} over {tls}"), move || ucp(transport, tls, args)));
        }
    }
    for (transport, args) in UCT {
        checks.push(Check::new(format!("ucx_perftest -x {transport} {args}"), move || uct(transport, args)));
    }
    for (transport, tls) in [("rc_verbs", "rc_v"), ("ud_verbs", "ud_v")] {
        for args in IO_DEMO {
            checks.push(Check::new(format!("io_demo {args} over {tls}"), move || io_demo(transport, tls, args)));
        }
    }
    checks.push(Check::new("fi_info lists connections and datagrams of verbs", lists_endpoints));
    for args in FABRIC {
        checks.push(Check::new(format!("fi_pingpong {args}"), move || fabric(args)));
    }
    report::main(checks)
}

/// Returns a port that no other check of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_300);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the weaknesses that programs with `args` and `envs` do not tolerate.
fn untolerated(args: &str, envs: &[(&str, &str)]) -> &'static str {
    match args {
        // While it sleeps, UCX repeats a lost datagram only after a second, so this would take
        // minutes.
        args if args.contains("-E sleep") && envs.contains(&("UCX_TLS", "ud_v")) => ",-events,-loss",
        args if args.contains("-E sleep") => ",-events",
        args if args.contains("-e dgram") => ",-loss,-receives",
        args if args.contains("ofi_rxm") => ",-limits",
        _ => "",
    }
}

/// Runs a pair on the card that the command line selects.
fn run_pair(server: &str, client: &str, port: u16, envs: &[(&str, &str)]) -> io::Result<[Outcome; 2]> {
    let weakest = pair::weakest(untolerated(server, envs));
    let weakest = weakest.as_ref().map(|(name, value)| (*name, value.as_str()));
    let envs: Vec<_> = envs.iter().copied().chain(weakest).chain([("ROXE_STATS", "on")]).collect();
    pair::run_pair(&Program::parse(server), &Program::parse(client), port, &envs, TIME_LIMIT)
}

fn lists_transports() -> Verdict {
    if !pair::installed("ucx_info") {
        return Verdict::not_installed("ucx_info");
    }
    match pair::run(&Program::parse("ucx_info -d"), &[], TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(outcome) if is_without_view(&outcome) => no_view(),
        Ok(outcome) if ["rc_verbs", "ud_verbs"].iter().all(|name| has_transport(&outcome.output, name)) => {
            Verdict::Passed
        }
        Ok(outcome) => Verdict::Failed(outcome.transcript()),
    }
}

/// Returns true if `ucx_info -d` lists the transport `name` on roxe's port: in its line and the
/// next one.
fn has_transport(output: &str, name: &str) -> bool {
    let lines: Vec<&str> = output.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
    lines
        .windows(2)
        .any(|pair| pair[0].ends_with(&format!("Transport: {name}")) && pair[1].ends_with("Device: roxe0:1"))
}

/// Returns true if `roxe run` could not create the device node that UCX needs.
fn is_without_view(outcome: &Outcome) -> bool {
    outcome.output.contains("roxe run: no /")
}

fn no_view() -> Verdict {
    Verdict::Skipped("UCX needs /dev/infiniband, but this user cannot create the namespaces that show it".into())
}

/// Runs a test of ucx_perftest over UCP with one transport.
fn ucp(transport: &str, tls: &str, args: &str) -> Verdict {
    let chosen = format!("{transport}/roxe0:1");
    let envs = [("UCX_TLS", tls), ("UCX_NET_DEVICES", "roxe0:1"), ("UCX_LOG_LEVEL", "info")];
    ucx_perftest(args, &envs, |end| end.output.contains(&chosen) && packets(&end.output) > 100)
}

/// Runs a test of ucx_perftest over UCT, the layer below UCP.
fn uct(transport: &str, args: &str) -> Verdict {
    ucx_perftest(&format!("-d roxe0:1 -x {transport} {args}"), &[], |end| packets(&end.output) > 10)
}

/// Runs server and client of io_demo, which connect through librdmacm only. Its server never exits.
fn io_demo(transport: &str, tls: &str, args: &str) -> Verdict {
    if !pair::installed("io_demo") {
        return Verdict::not_installed("io_demo");
    }
    let port = port();
    let server = Program::parse(&format!("io_demo {args} -p {port}"));
    let client = Program::parse(&format!("io_demo {args} -p {port} 127.0.0.1"));
    let envs = [
        ("UCX_TLS", tls),
        ("UCX_NET_DEVICES", "roxe0:1"),
        ("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm"),
        ("UCX_LOG_LEVEL", "info"),
        ("ROXE_STATS", "on"),
    ];
    let weakest = pair::weakest(untolerated(args, &envs));
    let weakest = weakest.as_ref().map(|(name, value)| (*name, value.as_str()));
    let envs: Vec<_> = envs.into_iter().chain(weakest).collect();
    match pair::run_client(&server, &client, &envs, |output| output.contains("started listener"), TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(ends) if ends.iter().any(is_without_view) => no_view(),
        Ok([server, client]) => {
            let chosen = format!("{transport}/roxe0:1");
            let good = client.output.contains("Client exit with status 'OK'")
                && [&server, &client].iter().all(|end| end.output.contains(&chosen))
                && packets(&client.output) > 100;
            judge(&[server, client], |_| good)
        }
    }
}

/// Runs server and client of ucx_perftest; checks that both exit with 0 and that `is_good` accepts
/// their output.
fn ucx_perftest(args: &str, envs: &[(&str, &str)], is_good: impl Fn(&Outcome) -> bool) -> Verdict {
    if !pair::installed("ucx_perftest") {
        return Verdict::not_installed("ucx_perftest");
    }
    let port = port();
    let server = format!("ucx_perftest {args} -p {port}");
    match run_pair(&server, &format!("{server} 127.0.0.1"), port, envs) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(ends) if ends.iter().any(is_without_view) => no_view(),
        Ok(ends) => judge(&ends, is_good),
    }
}

fn judge(ends: &[Outcome], is_good: impl Fn(&Outcome) -> bool) -> Verdict {
    if ends.iter().all(|end| end.ok && is_good(end)) {
        Verdict::Passed
    } else {
        Verdict::Failed(ends.iter().map(Outcome::transcript).collect::<Vec<_>>().join("\n"))
    }
}

/// Creates the interface on first use.
///
/// # Errors
/// The reason why it cannot be created.
fn netdev() -> Result<(), String> {
    static CREATED: OnceLock<Result<(), String>> = OnceLock::new();
    CREATED.get_or_init(|| link::add_bridge(NETDEV, ADDRESS).map_err(|e| e.to_string())).clone()
}

/// Runs `check` if `program` is installed and libfabric has an interface.
fn on_fabric(program: &str, check: impl FnOnce() -> Verdict) -> Verdict {
    match netdev() {
        _ if !pair::installed(program) => Verdict::not_installed(program),
        Err(e) => Verdict::Skipped(format!(
            "libfabric does not use the loopback interface, and another interface cannot be created: {e}"
        )),
        Ok(()) => check(),
    }
}

fn lists_endpoints() -> Verdict {
    on_fabric("fi_info", || {
        match pair::run(&Program::parse("fi_info -p verbs"), &[("ROXE_NETDEV", NETDEV)], TIME_LIMIT) {
            Err(e) => Verdict::Failed(e.to_string()),
            Ok(end) => {
                let connections = ["domain: roxe0\n", "FI_EP_MSG", "FI_PROTO_RDMA_CM_IB_RC", "provider: verbs;ofi_rxm"];
                let datagrams = ["domain: roxe0-dgram", "FI_EP_DGRAM", "FI_PROTO_IB_UD", "provider: verbs;ofi_rxd"];
                let words = [connections, datagrams].concat();
                judge(&[end], |end| words.iter().all(|word| end.output.contains(word)))
            }
        }
    })
}

/// Runs server and client of fi_pingpong, which checks the bytes (`-c`).
fn fabric(args: &str) -> Verdict {
    on_fabric("fi_pingpong", || {
        let port = port();
        let server = format!("fi_pingpong {args} -B {port}");
        let client = format!("fi_pingpong {args} -P {port} {ADDRESS}");
        match run_pair(&server, &client, port, &[("ROXE_NETDEV", NETDEV)]) {
            Err(e) => Verdict::Failed(e.to_string()),
            Ok(ends) => judge(&ends, |end| end.output.contains("usec/xfer") && packets(&end.output) > 100),
        }
    })
}

/// Returns the number of packets that the process sent and received.
fn packets(output: &str) -> u64 {
    ["sent_packets", "received_packets"].map(|name| pair::counter(output, name)).into_iter().sum()
}
