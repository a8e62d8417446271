//! Compares roxe with the Linux kernel's rxe: the same programs of perftest, two processes in one
//! guest, over either.
//!
//! The guest is emulated, so only ratios of its figures matter: they compare the work per message.
//! rxe uses port 4791 of all addresses, so roxe has its own network namespace in the guest. Has the
//! requirements of `tests/tests/suites/protocol/kernel_rxe.rs`.

use crate::line::{Line, Link, Network, Unit, Verbs, Work};
use crate::rounds::{self, Measured, Rounds};
use crate::{has_links, work};
use roxe_tests::build;
use roxe_tests::guest::sides::{Process, Side};
use roxe_tests::guest::{Guest, kernel::Kernel, link};
use roxe_tests::measure::pin::{self, End};
use roxe_tests::perftest;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// Command prefix that enters roxe's network namespace.
const INSIDE: &str = "ip netns exec roxe ";
/// Number of processors of the guest: one for each process.
const PROCESSORS: u32 = 2;
/// Time limit of a pair of programs, which start slowly on an emulated processor.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Duration of one figure: long, because the emulator must translate the code first.
const EACH: Duration = Duration::from_secs(2);

/// Measures all lines with every word in their name, in one guest.
pub(crate) fn compare(time: Duration, words: &[String]) -> io::Result<Vec<Measured>> {
    let kernel = Kernel::prepare().map_err(|why| io::Error::other(why.0))?;
    let has_links = has_links()?;
    link::enter()?;
    let guest = Guest::boot_with(&kernel, PROCESSORS)?;
    eprintln!("guest with Linux {} is up", kernel.version);
    install(&guest)?;
    let rounds = Rounds { time, each: EACH, least: 3, most: 5, server: Some(guest.pid()) };
    let wanted = |line: &Line| words.iter().all(|word| line.to_string().contains(word));
    let lines = lines().into_iter().filter(|line| wanted(line) && (has_links || !is_shm(line))).collect();
    Ok(rounds::run(lines, &rounds, &mut |line, messages| once(&guest, line, messages)))
}

fn is_shm(line: &Line) -> bool {
    matches!(&line.work, Work::Verbs(verbs) if verbs.link == Link::Shm)
}

fn lines() -> Vec<Line> {
    let bandwidth = ["ib_write_bw", "ib_send_bw", "ib_read_bw"].map(|tool| (tool, 64 << 10, Unit::GigabytesPerSecond));
    let latency = ["ib_write_lat", "ib_send_lat"].map(|tool| (tool, 8, Unit::Microseconds));
    let line = |(group, size, unit), work| Line { group, size, unit, work, network: Network::Loopback };
    let all = bandwidth.into_iter().chain(latency);
    all.flat_map(|what| {
        let new = |link| Verbs::new(what.0, link);
        let rxe = line(what, Work::Rxe(new(Link::Udp)));
        [rxe, line(what, Work::Verbs(new(Link::Udp))), line(what, Work::Verbs(new(Link::Shm)))]
    })
    .collect()
}

/// Copies roxe to the shared folder, because the guest may not see the build folder, and creates
/// its namespace.
fn install(guest: &Guest) -> io::Result<()> {
    let roxe = build::roxe();
    for name in ["roxe", "libroxe.so"] {
        fs::copy(roxe.with_file_name(name), guest.folder().join(name))?;
    }
    guest.run("ip netns add roxe && ip -n roxe link set lo up").map(drop)
}

fn once(guest: &Guest, line: &Line, messages: u64) -> Result<work::Sample, String> {
    let (verbs, inside, prefix, gid, host) = match &line.work {
        Work::Rxe(verbs) => (verbs, "", String::new(), 1, link::GUEST_V4),
        Work::Verbs(verbs) => {
            let envs: String = verbs.link.envs().iter().map(|(name, value)| format!("{name}={value} ")).collect();
            (verbs, INSIDE, format!("env {envs}/mnt/roxe run -- "), 0, "127.0.0.1")
        }
        other => return Err(format!("{other} does not run in a guest")),
    };
    let run = || {
        let (port, tool) = (work::port(), verbs.tool);
        let args = format!("-x {gid} -p {port} {}", work::arguments(verbs, line.size as u64, messages));
        let command = |end| format!("{inside}{} {prefix}{tool} {args}", pin::always(end).join(" "));
        let ready = format!("{inside}grep -qs ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6");
        pair(guest, &command(End::Server), &format!("{} {host}", command(End::Client)), &ready)
    };
    // In a guest on a busy machine perftest often cannot measure the clock rate.
    let output = perftest::retry_without_clock_rate(run, |output| perftest::lacks_clock_rate(output))?;
    if let Work::Verbs(verbs) = &line.work {
        work::check_link(verbs.link, &output)?;
    }
    work::figure(&output, line.size as u64, line.unit)
}

/// Runs a server in the guest and, once it is `ready`, a client. Returns the client's output if
/// both exit with 0.
fn pair(guest: &Guest, server: &str, client: &str, ready: &str) -> Result<String, String> {
    let deadline = Instant::now() + TIME_LIMIT;
    let run = || {
        let first = Process::start(guest, Side::Rxe, server, &[])?;
        // The limit of guest.run bounds the wait. The client reports a server that never listens.
        guest.run(&format!("for i in $(seq 100); do {ready} && break; sleep 0.1; done"))?;
        let client = Process::start(guest, Side::Rxe, client, &[])?.wait(guest, deadline)?;
        let until = if client.ok { deadline } else { Instant::now() };
        Ok::<_, io::Error>([first.wait(guest, until)?, client])
    };
    let [server, client] = run().map_err(|e| e.to_string())?;
    if server.ok && client.ok {
        return Ok(client.output);
    }
    Err(format!("$ {}\n{}\n$ {}\n{}", server.command, server.output, client.command, client.output))
}
