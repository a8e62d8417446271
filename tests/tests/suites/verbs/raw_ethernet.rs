//! Runs perftest's `raw_ethernet_*`, unmodified, between two network namespaces that a veth pair
//! connects. Needs root.

use roxe_tests::guest::link;
use roxe_tests::pair::{self, Launch, Outcome, Program};
use roxe_tests::perftest;
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::veth::{Interface, Veth};
use std::fs;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(40);
/// Ends of the veth pair: interface, MAC address, IP address.
const HERE: [&str; 3] = ["x0", "02:00:00:00:00:0a", "10.79.0.1"];
const THERE: [&str; 3] = ["x1", "02:00:00:00:00:0b", "10.79.0.2"];
/// Number of frames for which the receiver of a bandwidth test waits.
const RECEIVED: u32 = 1000;
/// Number of frames that the sender of a bandwidth test sends. The receiver's buffer loses most.
const SENT: u32 = 20_000;

pub(crate) fn main() -> ExitCode {
    if !link::is_root() {
        return report::main(vec![Check::new("raw_ethernet", || Verdict::Skipped("not root".into()))]);
    }
    let network = match Network::build() {
        Ok(network) => Arc::new(network),
        Err(e) => {
            println!("FAILED   raw_ethernet: cannot make two namespaces with a link: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut checks = Vec::new();
    for is_outbound in [true, false] {
        checks.extend(bandwidth(&network, is_outbound));
        checks.extend(latency(&network, is_outbound));
    }
    checks.push(flow_rate());
    report::main(checks)
}

/// The two ends of the link.
struct Network(Veth);

impl Network {
    fn build() -> io::Result<Self> {
        let end =
            |[name, mac, address]: [&'static str; 3]| Interface { name, mac, addresses: vec![format!("{address}/24")] };
        Veth::build(&end(HERE), &end(THERE)).map(Self)
    }

    fn launch(&self, end: [&str; 3]) -> Launch {
        let prefix = if end == THERE { self.0.prefix() } else { Vec::new() };
        Launch { prefix, envs: vec![("ROXE_NETDEV".into(), end[0].into())], ..Launch::default() }
    }

    /// Returns true if a process at `end` receives frames of all protocols (column 4 of the table
    /// of packet sockets).
    fn listens(&self, end: [&str; 3]) -> bool {
        let pid = if end == THERE { self.0.pid() } else { std::process::id() };
        let table = fs::read_to_string(format!("/proc/{pid}/net/packet")).unwrap_or_default();
        table.lines().any(|line| line.split_whitespace().nth(3) == Some("0003"))
    }

    /// Runs `tool` as server and client at the two ends; `judge` checks both outputs.
    fn run(
        &self,
        tool: &str,
        is_outbound: bool,
        args: [&str; 2],
        judge: fn(&Outcome) -> Result<(), String>,
    ) -> Verdict {
        if !pair::installed(tool) {
            return Verdict::not_installed(tool);
        }
        let [to, from] = if is_outbound { [THERE, HERE] } else { [HERE, THERE] };
        let program = |role: &str, own: [&str; 3], peer: [&str; 3], args: &str| {
            let line = format!("-d roxe0 --{role} -B {} -E {} {}", own[1], peer[1], addressed(args, to, from));
            Program { name: tool.to_owned(), args: line.split_whitespace().map(str::to_owned).collect() }
        };
        let (server, client) = (program("server", to, from, args[0]), program("client", from, to, args[1]));
        let ends = [(&server, &self.launch(to)), (&client, &self.launch(from))];
        match pair::run_pair_with(ends, "raw", || self.listens(to), TIME_LIMIT) {
            Err(e) => Verdict::Failed(e.to_string()),
            Ok(outcomes) => match outcomes.iter().find_map(|end| failure(end, judge)) {
                Some(why) => Verdict::Failed(why),
                None => Verdict::Passed,
            },
        }
    }
}

/// Replaces the words TO and FROM by the addresses of server and client.
fn addressed(args: &str, to: [&str; 3], from: [&str; 3]) -> String {
    args.replace("TO", to[2]).replace("FROM", from[2])
}

fn failure(end: &Outcome, judge: fn(&Outcome) -> Result<(), String>) -> Option<String> {
    let result = if end.ok { judge(end) } else { Err("it failed".to_owned()) };
    result.err().map(|why| format!("{why}\n$ {}\n{}", end.command, end.output))
}

/// Checks that there is one line of figures with a number above 0.
fn figures(end: &Outcome) -> Result<(), String> {
    match perftest::rows(&end.output).as_slice() {
        [row] if perftest::is_measured(row, &end.output) => Ok(()),
        rows => Err(format!("{} result lines, or nothing measured", rows.len())),
    }
}

fn arrow(is_outbound: bool) -> &'static str {
    if is_outbound { "here to there" } else { "there to here" }
}

/// Returns the bandwidth checks. `--raw_mcast` is not among them, because its server destroys a
/// flow that it has never created.
fn bandwidth(network: &Arc<Network>, is_outbound: bool) -> Vec<Check> {
    const UDP: &str = "-J TO -j FROM -K 5678 -k 1234";
    // Options of both ends, of the server, of the client.
    let cases = [
        ("-s 64", "", ""),
        ("-s 1500", "", ""),
        ("-s 1024", "", "-l 16"),
        ("-s 64", "", "-I 128"),
        ("-s 512 --use-srq", "", ""),
        ("-s 512 --vlan_en", "", ""),
        ("-s 512 -J TO -j FROM", "", ""),
        (&*format!("-s 512 {UDP}"), "", ""),
        (&*format!("-s 512 --tcp {UDP}"), "", ""),
        (&*format!("-s 512 --flows 4 {UDP}"), "", ""),
        ("-s 512 --raw_ipv6 -J fd79::2 -j fd79::1 -K 5678 -k 1234", "", ""),
        ("-s 512", "--promiscuous", ""),
        ("-s 512", "--sniffer", ""),
    ];
    let check = |(both, server, client): (&str, &str, &str)| {
        let (network, tool) = (Arc::clone(network), "raw_ethernet_bw");
        let name = format!("{tool} {both} {server}{client}");
        let args = [format!("{both} -n {RECEIVED} {server}"), format!("{both} -n {SENT} {client}")];
        Check::new(format!("{} ({})", name.trim_end(), arrow(is_outbound)), move || {
            network.run(tool, is_outbound, [&args[0], &args[1]], figures)
        })
    };
    cases.into_iter().map(check).collect()
}

/// Returns the latency checks, in which one frame is in flight at a time, so that none is lost.
fn latency(network: &Arc<Network>, is_outbound: bool) -> Vec<Check> {
    let check = |args: &'static str| {
        let network = Arc::clone(network);
        Check::new(format!("raw_ethernet_lat {args} ({})", arrow(is_outbound)), move || {
            network.run("raw_ethernet_lat", is_outbound, [args, args], figures)
        })
    };
    ["-s 64 -n 500", "-s 1500 -n 500", "-s 512 -n 500 -J TO -j FROM"].map(check).into()
}

/// Returns the check of the program that measures the rate at which flows are created.
fn flow_rate() -> Check {
    Check::new("raw_ethernet_fs_rate -n 200", || {
        let tool = "raw_ethernet_fs_rate";
        if !pair::installed(tool) {
            return Verdict::not_installed(tool);
        }
        let args = format!("-d roxe0 --server -B {} -E {} -n 200", HERE[1], THERE[1]);
        let program = Program { name: tool.into(), args: args.split_whitespace().map(str::to_owned).collect() };
        match pair::run(&program, &[("ROXE_NETDEV", HERE[0])], TIME_LIMIT) {
            Err(e) => Verdict::Failed(e.to_string()),
            Ok(end) => {
                failure(
                    &end,
                    |end| {
                        if end.output.contains("fps[flow per sec]") { Ok(()) } else { Err("no result".into()) }
                    },
                )
                .map_or(Verdict::Passed, Verdict::Failed)
            }
        }
    })
}
