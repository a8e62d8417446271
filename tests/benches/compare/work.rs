//! Runs the work of a line once: starts both programs, waits for them, and parses the figure.

use crate::line::{BUSY, Line, Link, THREADS, Unit, Verbs, Work};
use crate::network::{Namespaces, Site};
use crate::{middleware, raw, ring, transfer, yardstick};
use roxe_tests::cc;
use roxe_tests::measure::pin::End;
use roxe_tests::pair::{self, Launch, Program};
use roxe_tests::perftest;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

/// Duration of one measurement.
pub(crate) const MEASURE_TIME: Duration = Duration::from_millis(250);
/// Time limit of a pair of programs.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);
/// Largest factor by which the number of messages grows from run to run.
const MAX_GROWTH: f64 = 20.0;
/// Largest factor by which a run, with start and end of the programs, may exceed its time before
/// the next run has fewer messages.
const MAX_OVERRUN: f64 = 8.0;
/// Number of busy connections in [`BUSY`].
const BUSY_CONNECTIONS: u32 = 10;
/// 10^9 bytes in a MiB, the unit of perftest and UCX.
const MIB: f64 = 1_048_576.0 / 1e9;

/// Parts that some lines use in addition to this tree's build of roxe, if they exist.
#[derive(Default)]
pub(crate) struct OptionalParts {
    /// The program `roxe` of the other build.
    pub(crate) before: Option<PathBuf>,
    pub(crate) namespaces: Option<Namespaces>,
}

/// Figures of one run of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// The figure; of latencies the median.
    pub(crate) figure: f64,
    /// Average of latencies, if known. Unlike the median it shows outliers.
    pub(crate) average: Option<f64>,
    /// 99th and 99.9th percentiles, if the program prints them.
    pub(crate) tails: Option<[f64; 2]>,
}

impl From<f64> for Sample {
    fn from(figure: f64) -> Self {
        Self { figure, average: None, tails: None }
    }
}

/// Runs a line's work with this number of messages, or for [`MEASURE_TIME`] if the program
/// accepts a time.
pub(crate) fn once(parts: &OptionalParts, line: &Line, messages: u64) -> Result<Sample, String> {
    let Line { size, unit, .. } = *line;
    let site = Site::ready(parts.namespaces.as_ref(), line.network).map_err(|e| e.to_string())?;
    let own = |figure: io::Result<f64>| figure.map(Sample::from).map_err(|e| e.to_string());
    let timed = |times: io::Result<Sample>| times.map_err(|e| e.to_string());
    match &line.work {
        Work::Verbs(verbs) => self::verbs(parts, &site, verbs, [size as u64, messages], unit),
        Work::Ucx(test, tls) => ucx(&site, [test, tls], [size as u64, messages], unit),
        Work::Mpi(link) => middleware::mpi(*link, [size as u64, messages]),
        Work::Fio(link) => middleware::fio(*link, size as u64),
        Work::Iperf => iperf(&site, size as u64 * messages),
        Work::Fabric(provider, endpoint) => fabric(&site, [provider, endpoint], [size as u64, messages], unit),
        Work::Yardstick(_) if unit == Unit::Microseconds => timed(yardstick::latency(&site, MEASURE_TIME)),
        Work::Yardstick(_) if unit == Unit::MillionsPerSecond => own(yardstick::messages(&site, size, MEASURE_TIME)),
        Work::Yardstick(mtu) => own(yardstick::stream(&site, size, *mtu, MEASURE_TIME)),
        Work::UdpStream(segmented) => own(raw::udp_stream(*segmented, MEASURE_TIME)),
        Work::UdpLatency(datagrams) => timed(raw::udp_latency(&site, *datagrams, MEASURE_TIME)),
        Work::TcpStream => own(raw::tcp_stream(MEASURE_TIME)),
        Work::TcpLatency => timed(raw::tcp_latency(MEASURE_TIME)),
        Work::RingStream if unit == Unit::MillionsPerSecond => own(ring::messages(MEASURE_TIME)),
        Work::RingStream => own(ring::stream(MEASURE_TIME)),
        Work::RingLatency => timed(ring::latency(MEASURE_TIME)),
        Work::Transfer(transfer) => own(transfer::stream(*transfer, size, MEASURE_TIME)),
        Work::Rxe(_) => Err("only a guest has rxe".to_owned()),
    }
}

/// Returns the number of messages for the first run of a line.
pub(crate) fn first_guess(line: &Line) -> u64 {
    match line.unit {
        Unit::Microseconds => 2000,
        _ => (64 << 20 >> line.size.ilog2()).clamp(64, 20_000),
    }
}

/// Returns the number of messages for the next run, which should take `each`. The previous run of
/// `messages` took `wall` with start and end of the programs.
///
/// The growth is limited, because other processes may have disturbed the sample. After a run that
/// took far too long the sample is ignored.
pub(crate) fn messages(line: &Line, sample: Sample, (messages, wall): (u64, Duration), each: Duration) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let (size, messages) = (line.size as f64, messages as f64);
    let figure = sample.average.unwrap_or(sample.figure);
    let per_second = match line.unit {
        Unit::Microseconds => 1e6 / figure / 2.0,
        Unit::GigabytesPerSecond => figure * 1e9 / size,
        Unit::MillionsPerSecond => figure * 1e6,
    };
    let too_long = wall.as_secs_f64() / (each.as_secs_f64() * MAX_OVERRUN);
    let most = if too_long > 1.0 { messages / too_long } else { messages * MAX_GROWTH };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
    let next = (per_second * each.as_secs_f64()).min(most).clamp(64.0, 5e6) as u64;
    next
}

/// Returns a new port for each pair, so that leftovers of a failed pair cannot disturb the next.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn verbs(
    parts: &OptionalParts,
    site: &Site,
    verbs: &Verbs,
    [size, messages]: [u64; 2],
    unit: Unit,
) -> Result<Sample, String> {
    let roxe = parts.before.clone().filter(|_| verbs.before);
    let mut launch = Launch { envs: verbs.link.envs(), roxe, ..Launch::default() };
    launch.envs.extend(site.netdev.map(|name| ("ROXE_NETDEV".to_owned(), name.to_owned())));
    let (program, args) = match verbs.tool {
        BUSY => (own(BUSY)?, format!("-c {} -b {BUSY_CONNECTIONS} -n {messages}", verbs.qps)),
        THREADS => (own(THREADS)?, format!("-t {} -s {size} -n {messages}", verbs.qps)),
        tool => (tool.to_owned(), format!("-x {} {}", site.gid, arguments(verbs, size, messages))),
    };
    let programs = || {
        let port = port();
        let args = format!("-p {port} {args}");
        // The programs connect over IPv4; the GID selects the network of the data.
        run(site, [&args, &format!("{args} {}", site.meet)], &program, &launch, port)
    };
    let once = || {
        let output = perftest::retry_without_clock_rate(programs, |output| perftest::lacks_clock_rate(output))?;
        check_link(verbs.link, &output)?;
        figure(&output, size, unit)
    };
    if verbs.processes == 1 { once() } else { in_parallel(verbs.processes, once) }
}

/// Runs `pairs` of programs in parallel and returns the sum of their rates.
fn in_parallel(pairs: u32, once: impl Fn() -> Result<Sample, String> + Sync) -> Result<Sample, String> {
    thread::scope(|scope| {
        let runs: Vec<_> = (0..pairs).map(|_| scope.spawn(&once)).collect();
        let panicked = |_| Err("the thread of a pair panicked".to_owned());
        let sum = runs.into_iter().map(|run| run.join().unwrap_or_else(panicked).map(|sample| sample.figure)).sum();
        Result::<f64, String>::map(sum, Sample::from)
    })
}

/// Returns the path of a program in `tests/clients/rates`; compiles it on first use.
fn own(tool: &'static str) -> Result<String, String> {
    static BUILT: Mutex<BTreeMap<&str, Result<String, String>>> = Mutex::new(BTreeMap::new());
    let build = || {
        let built = cc::compile_shared("gcc", &[], &format!("rates/{tool}.c"), &["ibverbs", "pthread"]);
        built.map(|path| path.to_string_lossy().into())
    };
    let mut built = BUILT.lock().map_err(|_| "a thread of the benchmark panicked".to_owned())?;
    built.entry(tool).or_insert_with(build).clone()
}

/// Checks that the packets used the requested link, because roxe silently falls back to UDP.
pub(crate) fn check_link(link: Link, output: &str) -> Result<(), String> {
    let counter = |name: &str| {
        let mut words = output.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok()).unwrap_or(0_u64)
    };
    let (sent, by_ring) = (counter("sent_packets"), counter("sent_by_ring"));
    // Packets before the ring exists use UDP: up to half if there are few messages.
    let fits = if link == Link::Shm { by_ring > sent / 2 } else { sent > 0 && by_ring == 0 };
    if fits { Ok(()) } else { Err(format!("{by_ring} of {sent} packets by shared memory over {link}\n{output}")) }
}

/// Returns the common arguments of server and client of a perftest program, except port and GID.
pub(crate) fn arguments(verbs: &Verbs, size: u64, messages: u64) -> String {
    // With several queue pairs perftest 4.5 counts every completion as 100 messages, even the last
    // one of a queue pair, which may stand for fewer. If it reaches the sum while a queue pair
    // still waits for room, it stops polling and never ends. So the number must be a multiple of
    // 100.
    let messages = if verbs.qps > 1 { messages.next_multiple_of(100) } else { messages };
    let mut args = format!("-F -s {size} -n {messages} -m {}", verbs.mtu);
    if !verbs.is_latency() {
        // No peak bandwidth, because its measurement reads the clock for every message.
        args += " -N";
    }
    if verbs.qps > 1 {
        args += &format!(" -q {}", verbs.qps);
    }
    if verbs.events {
        args += " -e";
    }
    args
}

/// Extracts the figure from the output of a perftest client.
pub(crate) fn figure(output: &str, size: u64, unit: Unit) -> Result<Sample, String> {
    // Bandwidth: iterations, peak, average, million messages. Latency: iterations, least, largest,
    // typical, average, deviation, 99 %, 99.9 %.
    let row = perftest::rows(output).pop().filter(|row| row.size == size);
    let sample = row.and_then(|row| {
        let figure = |column: usize| row.figures.get(column).copied().filter(|figure| *figure > 0.0);
        Some(match unit {
            Unit::GigabytesPerSecond => Sample::from(figure(2)? * MIB),
            Unit::MillionsPerSecond => Sample::from(figure(3)?),
            Unit::Microseconds => {
                let tails = figure(6).zip(figure(7)).map(<[f64; 2]>::from);
                Sample { figure: figure(3)?, average: figure(4), tails }
            }
        })
    });
    sample.ok_or_else(|| format!("no result:\n{output}"))
}

fn ucx(site: &Site, [test, tls]: [&str; 2], [size, messages]: [u64; 2], unit: Unit) -> Result<Sample, String> {
    let port = port();
    let args = format!("-t {test} -s {size} -n {messages} -w 100 -f -p {port}");
    let envs = [
        ("UCX_TLS", tls),
        ("UCX_LOG_LEVEL", "error"),
        ("UCX_NET_DEVICES", site.netdev.unwrap_or("all")),
        ("UCX_TCP_AF_PRIO", site.family()),
    ];
    let envs = envs.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    let launch = Launch { without_roxe: true, envs, prefix: site.sysfs(), ..Launch::default() };
    let output = run(site, [&args, &format!("{args} {}", site.meet)], "ucx_perftest", &launch, port)?;
    // Messages; typical, average and overall time; average and overall MiB per second; average and
    // overall messages.
    let sample = perftest::rows(&output).pop().and_then(|row| {
        let figure = |column: usize| row.figures.get(column).copied().filter(|figure| *figure > 0.0);
        Some(match unit {
            Unit::Microseconds => Sample { figure: figure(0)?, average: figure(2), tails: None },
            _ => Sample::from(figure(4)? * MIB),
        })
    });
    sample.ok_or_else(|| format!("ucx_perftest gave no result:\n{output}"))
}

/// Runs iperf3 with one TCP connection that sends this number of bytes. Returns the receiver's
/// rate.
fn iperf(site: &Site, bytes: u64) -> Result<Sample, String> {
    let (port, launch) = (port(), Launch { without_roxe: true, ..Launch::default() });
    let words = [format!("-s -1 -p {port}"), format!("-c {} -p {port} -n {bytes} -f m", site.host)];
    let output = run(site, [&words[0], &words[1]], "iperf3", &launch, port)?;
    // "... 4.66 GBytes  39962 Mbits/sec                  receiver"
    let rate = output.lines().rfind(|line| line.ends_with("receiver")).and_then(|line| {
        let mut words = line.split_whitespace().rev().skip_while(|word| *word != "Mbits/sec");
        words.nth(1)?.parse::<f64>().ok()
    });
    rate.map(|rate| Sample::from(rate / 8e3)).ok_or_else(|| format!("iperf3 gave no result:\n{output}"))
}

fn fabric(
    site: &Site,
    [provider, endpoint]: [&str; 2],
    [size, messages]: [u64; 2],
    unit: Unit,
) -> Result<Sample, String> {
    let port = port();
    let args = format!("-p {provider} -e {endpoint} -I {messages} -S {size}");
    let launch = Launch { without_roxe: true, ..Launch::default() };
    let output = run(
        site,
        [&format!("{args} -B {port}"), &format!("{args} -P {port} {}", site.host)],
        "fi_pingpong",
        &launch,
        port,
    )?;
    // The last line ends with MB per second, microseconds and million messages, all one way and on
    // average.
    let words: Vec<f64> = output
        .lines()
        .rfind(|line| line.contains('='))
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .unwrap_or_default();
    let figure = match (&words[..], unit) {
        ([.., _, microseconds, _], Unit::Microseconds) => Some(*microseconds),
        ([.., megabytes, _, _], _) => Some(megabytes / 1e3),
        _ => None,
    };
    figure
        .filter(|figure| *figure > 0.0)
        .map(Sample::from)
        .ok_or_else(|| format!("fi_pingpong gave no result:\n{output}"))
}

/// Runs a server and a client, which must both end well; returns the client's output.
fn run(site: &Site, [server, client]: [&str; 2], name: &str, launch: &Launch, port: u16) -> Result<String, String> {
    let program =
        |args: &str| Program { name: name.to_owned(), args: args.split_whitespace().map(str::to_owned).collect() };
    let prefix = |end| [site.prefix(end), launch.prefix.clone()].concat();
    let at = |end| Launch { prefix: prefix(end), calibrate_clock: true, ..launch.clone() };
    let programs = [(&program(server), &at(End::Server)), (&program(client), &at(End::Client))];
    let ends = pair::run_pair_with(programs, &port.to_string(), || pair::listens(port), TIME_LIMIT);
    let [server, client] = ends.map_err(|e| e.to_string())?;
    if server.ok && client.ok {
        return Ok(client.output);
    }
    Err(format!("{}\n{}", server.transcript(), client.transcript()))
}
