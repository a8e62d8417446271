//! Tests sockets over RDMA: the stock programs of `rsocket(7)`, and programs with ordinary sockets
//! under `roxe run --rsocket` or rdma-core's own shim.

use roxe_tests::build;
use roxe_tests::files::Scratch;
use roxe_tests::pair::{self, KILLED, Launch, Outcome, Program};
use roxe_tests::rdmacm::local;
use roxe_tests::report::{self, Check, Verdict};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use std::{fs, io};

const TIME_LIMIT: Duration = Duration::from_secs(60);
const LOSSY_LIMIT: Duration = Duration::from_secs(180);

/// Debian's Python, because other builds may contain their own libc.
const PYTHON: &str = "/usr/bin/python3";
/// rdma-core's own shim.
const STOCK_SHIM: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";
const ADDRESS: &str = "127.0.0.1";
/// Fault rules of the checks with losses.
const LOSS: &str = "seed=5; drop tx 3%";

pub(crate) fn main() -> ExitCode {
    let mut checks = streams();
    checks.extend(copies());
    checks.extend(socket_programs());
    checks.extend(web());
    report::main(checks)
}

type CheckResult = Result<(), String>;

/// A server and its client.
#[derive(Clone)]
struct SocketPair {
    server: Program,
    client: Program,
    port: u16,
    launch: Launch,
    ready: Ready,
    /// Minimum number of packets that each end receives.
    packets: u64,
    /// True if the server never exits.
    stays: bool,
    /// True if the server prints its counters when it exits.
    reports: bool,
}

/// Sign that the server is ready.
#[derive(Clone, Copy)]
enum Ready {
    /// The server listens for RDMA.
    RdmaListens,
    /// The server listens for TCP.
    TcpListens,
    /// The server has bound a UDP socket.
    UdpBound,
}

/// Returns a port that no other program of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(16_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl SocketPair {
    fn new(server: &str, client: &str, port: u16) -> Self {
        let envs = vec![("ROXE_STATS".to_owned(), "on".to_owned())];
        let launch = Launch { envs, ..Launch::default() };
        Self {
            server: Program::parse(server),
            client: Program::parse(client),
            port,
            launch,
            ready: Ready::RdmaListens,
            packets: 5,
            stays: false,
            reports: true,
        }
    }

    fn with_env(mut self, name: &str, value: &str) -> Self {
        self.launch.envs.push((name.to_owned(), value.to_owned()));
        self
    }

    fn under_shim(mut self) -> Self {
        self.launch.options.push("--rsocket".to_owned());
        self
    }

    fn lossy(self, lossy: bool) -> Self {
        if lossy { self.with_env("ROXE_FAULTS", LOSS) } else { self }
    }

    fn is_ready(&self) -> bool {
        match self.ready {
            Ready::RdmaListens => local::listens(std::process::id(), self.port),
            Ready::TcpListens => pair::listens(self.port),
            Ready::UdpBound => is_udp_bound(self.port),
        }
    }

    /// Runs the pair. Checks that both exit with 0 (a server that stays must still run), that
    /// `judge` accepts the client's output, and that the bytes went over RDMA.
    fn check(&self, judge: impl FnOnce(&str) -> CheckResult) -> CheckResult {
        let [server, client] = self.run(&self.launch).map_err(|e| e.to_string())?;
        let check = || {
            let server_is_well = if self.stays { server.output.ends_with(KILLED) } else { server.ok };
            if !client.ok || !server_is_well {
                return Err("a program failed".to_owned());
            }
            judge(&client.output)?;
            let reporting = if self.stays || !self.reports { &[&client][..] } else { &[&server, &client] };
            match reporting.iter().find(|end| received(end) < self.packets) {
                Some(end) => Err(format!("`{}` received {} packets", end.command, received(end))),
                None => Ok(()),
            }
        };
        check().map_err(|why| format!("{why}\n{}\n{}", server.transcript(), client.transcript()))
    }

    /// Runs the pair; the client is started with `clients`.
    fn run(&self, clients: &Launch) -> io::Result<[Outcome; 2]> {
        let lossy = self.launch.envs.iter().any(|(name, _)| name == "ROXE_FAULTS");
        let limit = if lossy { LOSSY_LIMIT } else { TIME_LIMIT };
        let both = [(&self.server, &self.launch), (&self.client, clients)];
        let (tag, ready) = (self.port.to_string(), || self.is_ready());
        if self.stays {
            pair::run_against(both, &tag, ready, limit)
        } else {
            pair::run_pair_with(both, &tag, ready, limit)
        }
    }
}

/// Returns true if a process has bound UDP `port`.
fn is_udp_bound(port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    let has = |text: String| {
        text.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&suffix)))
    };
    ["/proc/net/udp", "/proc/net/udp6"].iter().any(|table| fs::read_to_string(table).is_ok_and(has))
}

/// Returns the checks of `rstream`, `riostream` and `udpong`: all ways to wait, all sizes.
fn streams() -> Vec<Check> {
    let mut checks = Vec::new();
    for lossy in [false, true] {
        for (tool, options) in command_lines(lossy) {
            let name = format!("{tool} {options}{}", if lossy { ", loss" } else { "" });
            // With losses the programs mostly wait, except with `-T n`, which polls.
            let waits = lossy && !options.contains("-T n ");
            checks.push(Check::new(name, move || stock(tool, &options, lossy)).waiting_if(waits));
        }
    }
    checks
}

/// Values of `-T` that select how the programs wait: by `poll`, in the call, or not at all.
const WAITS: [&str; 3] = ["a", "b", "n"];

fn command_lines(lossy: bool) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for tool in ["rstream", "riostream"] {
        for (wait, size) in WAITS.into_iter().flat_map(|wait| [1, 64, 4096, 65_536, 1 << 20].map(|size| (wait, size))) {
            // Fewer: sixteen megabytes already lose a hundred packets.
            let count = if lossy && size == 1 << 20 { 2 } else { 5 };
            lines.push((tool, format!("-T {wait} -T v -S {size} -I 4 -C {count}")));
        }
    }
    if lossy {
        return lines;
    }
    // Small buffers, no inline data, keep-alive, names by RDMA CM, a server that forks under the
    // shim.
    for options in
        ["-T v -B 4096 -S 100000", "-T v -i 0 -S 1000", "-T v -k 1 -S 1000", "-T r -S 65536", "-T f -T v -S 1000"]
    {
        lines.push(("rstream", format!("{options} -I 5 -C 20")));
    }
    // These lines run without losses only: udpong waits for each datagram, and a lost one is not
    // retransmitted.
    for (wait, size) in
        [WAITS.as_slice(), &["e"]].concat().into_iter().flat_map(|wait| [16, 64, 1000].map(|size| (wait, size)))
    {
        lines.push(("udpong", format!("-T {wait} -S {size} -C 50")));
    }
    lines
}

fn stock(tool: &str, options: &str, lossy: bool) -> Verdict {
    if !pair::installed(tool) {
        return Verdict::not_installed(tool);
    }
    let port = port();
    let server = format!("{tool} -b {ADDRESS} {options} -p {port}");
    let client = format!("{tool} -s {ADDRESS} {options} -p {port}");
    let mut sockets = SocketPair::new(&server, &client, port).lossy(lossy);
    if options.contains("-T f") {
        // With `-T f` rstream uses ordinary sockets, for the shim.
        sockets = sockets.under_shim().with_env("RDMAV_FORK_SAFE", "1");
        sockets.ready = Ready::TcpListens;
    }
    if tool == "udpong" {
        (sockets.ready, sockets.stays) = (Ready::UdpBound, true);
        // The client certainly receives only the replies to hello, start and end.
        sockets.packets = 3;
    }
    sockets.check(figures).into()
}

/// Checks that there is a line of results: name, bytes, transfers, iterations (not `udpong`),
/// total, time, rate, microseconds.
fn figures(output: &str) -> CheckResult {
    let is_figure = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        line.starts_with("custom")
            && columns.last().is_some_and(|time| time.parse::<f64>().is_ok_and(|time| time > 0.0))
    };
    if output.contains("verification failed") || output.contains("errno") {
        return Err("the client reports an error".to_owned());
    }
    if output.lines().any(is_figure) { Ok(()) } else { Err("no result".to_owned()) }
}

/// Returns the checks of `rcopy`.
fn copies() -> Vec<Check> {
    let sizes = [("a byte", 1), ("100 kB and some", 100_003), ("30 MB", 30_000_000)];
    let each = |(words, size)| Check::new(format!("rcopy, {words}"), move || copy(size));
    sizes.into_iter().map(each).collect()
}

/// Copies a file of `size` bytes and checks the copy.
fn copy(size: usize) -> Verdict {
    if !pair::installed("rcopy") {
        return Verdict::not_installed("rcopy");
    }
    let work = || {
        let scratch = Scratch::new("rsockets-copy")?;
        let [source, target] = ["source", "target"].map(|name| scratch.join(name));
        let bytes: Vec<u8> = (0..size).map(|n| (n * 31 + n / 251) as u8).collect();
        fs::write(&source, &bytes).map_err(|e| e.to_string())?;
        let port = port();
        let client = format!("rcopy {} {ADDRESS}:{} -p {port}", source.display(), target.display());
        let sockets =
            SocketPair { stays: true, packets: 3, ..SocketPair::new(&format!("rcopy -p {port}"), &client, port) };
        sockets.check(|_| match fs::read(&target) {
            Ok(copied) if copied == bytes => Ok(()),
            Ok(copied) => Err(format!("the copy of {} bytes differs", copied.len())),
            Err(e) => Err(format!("{}: {e}", target.display())),
        })
    };
    work().into()
}

/// Returns the path of the Python program.
fn script() -> PathBuf {
    build::sources().join("tests/clients/sockets/sockets.py")
}

/// Returns the checks of programs with ordinary sockets, for every way to wait for sockets.
fn socket_programs() -> Vec<Check> {
    let mut checks = Vec::new();
    for kind in ["blocking", "select", "poll", "epoll", "edge", "asyncio", "spawn", "addressed", "fork", "datagram"] {
        for lossy in [false, true] {
            // Lost datagrams are not retransmitted.
            if !lossy || kind != "datagram" {
                let name = format!("python {kind}{}", if lossy { ", loss" } else { "" });
                checks.push(Check::new(name, move || python(kind, lossy)));
            }
        }
    }
    checks
}

/// Runs one server and several clients at once. With `fork` there are more clients, so that several
/// of the server's processes share its port.
fn python(kind: &str, lossy: bool) -> Verdict {
    if !pair::installed(PYTHON) {
        return Verdict::not_installed(PYTHON);
    }
    let (port, script) = (port(), script());
    let line = |role: &str, last: &str| format!("{PYTHON} {} {kind} {role} {ADDRESS} {port} {last}", script.display());
    let count = if kind == "fork" { 12 } else { 3 };
    let clients = (1..=count).map(|number| line("client", &number.to_string()) + " & ").collect::<String>();
    let mut sockets = SocketPair::new(&line("server", &count.to_string()), "sh", port).under_shim().lossy(lossy);
    sockets.client.args = vec!["-c".to_owned(), format!("{clients} wait")];
    match kind {
        "fork" => {
            sockets = sockets.with_env("RDMAV_FORK_SAFE", "1");
            // The server's children print no counters.
            (sockets.ready, sockets.reports) = (Ready::TcpListens, false);
        }
        "datagram" => (sockets.ready, sockets.packets) = (Ready::UdpBound, 5),
        _ => {}
    }
    let result = sockets.check(|output| match output.matches("good").count() {
        good if good == count => Ok(()),
        good => Err(format!("{good} of {count} clients succeeded")),
    });
    result.into()
}

/// Returns the checks of a web server with curl: with roxe's shim, with rdma-core's shim on the
/// client's side, and with a server without a shim, to which the client must connect over TCP.
fn web() -> Vec<Check> {
    vec![
        Check::new("http.server and curl", || fetch(&["--rsocket"], "", true)),
        Check::new("http.server and curl under rdma-core's shim", || fetch(&["--rsocket"], STOCK_SHIM, true)),
        Check::new("http.server without a shim and wget", || fetch(&[], "", false)),
    ]
}

fn fetch(server_options: &[&str], client_shim: &str, by_rdma: bool) -> Verdict {
    // wget waits for its connection, so that the shim can fall back to TCP; curl does not wait.
    let tool = if by_rdma { "curl" } else { "wget" };
    if let Some(name) = [PYTHON, tool].into_iter().find(|name| !pair::installed(name)) {
        return Verdict::not_installed(name);
    }
    if !client_shim.is_empty() && !Path::new(client_shim).exists() {
        return Verdict::not_installed(client_shim);
    }
    let work = || {
        let (port, folder) = (port(), build::sources());
        let url = format!("http://{ADDRESS}:{port}/LICENSE-APACHE");
        let server = format!("{PYTHON} -m http.server --bind {ADDRESS} --directory {} {port}", folder.display());
        let client = if by_rdma { format!("curl -sS {url}") } else { format!("wget -q -O - {url}") };
        let mut sockets = SocketPair { stays: true, ..SocketPair::new(&server, &client, port) };
        let mut clients = sockets.launch.clone();
        sockets.launch.options = server_options.iter().map(|option| (*option).to_owned()).collect();
        match client_shim {
            "" => clients.options = vec!["--rsocket".to_owned()],
            shim => clients.envs.push(("LD_PRELOAD".to_owned(), shim.to_owned())),
        }
        sockets.ready = if server_options.is_empty() { Ready::TcpListens } else { Ready::RdmaListens };
        let [server, client] = sockets.run(&clients).map_err(|e| e.to_string())?;
        let page = fs::read_to_string(folder.join("LICENSE-APACHE")).map_err(|e| e.to_string())?;
        let (is_complete, bytes) = (client.output.contains(&page), pair::counter(&client.output, "received_bytes"));
        match client.ok && is_complete && (bytes > page.len() as u64) == by_rdma {
            true => Ok(()),
            false => Err(format!(
                "complete: {is_complete}, bytes by RDMA: {bytes}\n{}\n{}",
                server.transcript(),
                client.transcript()
            )),
        }
    };
    work().into()
}

/// Returns the number of packets that a process counted.
fn received(end: &Outcome) -> u64 {
    pair::counter(&end.output, "received_packets")
}
