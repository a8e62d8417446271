//! Checks that traces of stock programs (`roxe run --trace`) contain the events that
//! docs/how-to/trace.md describes, in the format that viewers accept.

use roxe_tests::files::Scratch;
use roxe_tests::pair::{self, Program};
use roxe_tests::report::{self, Check, Verdict};
use serde_json::Value;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(60);

type CheckResult = Result<(), String>;
/// Name of a check, and its function, whose argument is the link.
type Case = (&'static str, fn(&str) -> CheckResult);

pub(crate) fn main() -> ExitCode {
    let checks: [Case; 8] = [
        ("both ends of a ping-pong use one clock", ping_pong),
        ("each queue pair has its own tracks", several),
        ("messages of the connection manager are recorded", connection),
        ("retransmissions of lost packets are recorded", loss),
        ("RNR waits are recorded", not_ready),
        ("failed requests end with the error state", error),
        ("each process writes its own file if the file name has %p", own_files),
        ("events of a killed process are recorded", killed),
    ];
    let check = |(name, judge): Case, link: &'static str| {
        Check::new(format!("{name}, link {link}"), move || match judge(link) {
            Ok(()) => Verdict::Passed,
            Err(why) => Verdict::Failed(why),
        })
    };
    report::main(checks.into_iter().flat_map(|case| ["auto", "udp"].map(|link| check(case, link))).collect())
}

/// Creates a folder for a check.
fn scratch() -> Scratch {
    Scratch::new("trace").unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the path of a file in a folder.
fn file(folder: &Scratch, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// Returns a port that no other check of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_700);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs a server and its client, which must exit with 0, and returns their trace.
fn trace_pair(line: &str, link: &str, faults: &str) -> Result<Trace, String> {
    let scratch = scratch();
    let file = file(&scratch, "both.json");
    run_pair(line, &[("ROXE_LINK", link), ("ROXE_FAULTS", faults), ("ROXE_TRACE", &file)])?;
    Trace::read(Path::new(&file), true)
}

fn run_pair(line: &str, envs: &[(&str, &str)]) -> CheckResult {
    let port = port();
    let line = format!("{line} -p {port}");
    let (server, client) = (Program::parse(&line), Program::parse(&format!("{line} 127.0.0.1")));
    let outcomes = pair::run_pair(&server, &client, port, envs, TIME_LIMIT).map_err(|e| e.to_string())?;
    match outcomes.iter().find(|outcome| !outcome.ok) {
        Some(outcome) => Err(format!("$ {}\n{}", outcome.command, outcome.output)),
        None => Ok(()),
    }
}

/// The events of a valid trace file.
struct Trace(Vec<Value>);

impl Trace {
    /// Reads a file and checks its format. If `is_complete`, its processes were not killed, so that
    /// every slice and request must end.
    fn read(file: &Path, is_complete: bool) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        // Viewers accept a comma after the last event, and a missing bracket after it.
        let inside = text.strip_suffix(",\n").ok_or("the file does not end with a complete line")?;
        let events: Vec<Value> = serde_json::from_str(&format!("{inside}]")).map_err(|e| e.to_string())?;
        let trace = Self(events);
        trace.check_slices(is_complete)?;
        trace.check_requests(is_complete)?;
        trace.check_names()?;
        Ok(trace)
    }

    /// Checks that the slices of each track are in order, and that each ends.
    fn check_slices(&self, is_complete: bool) -> CheckResult {
        let mut tracks: HashMap<(u64, u64), (f64, i64)> = HashMap::new();
        for event in self.0.iter().filter(|event| matches!(word(event, "ph"), "B" | "E")) {
            let (last, depth) = tracks.entry(track(event)).or_default();
            if time(event) < *last {
                return Err(format!("earlier than the event before it: {event}"));
            }
            *last = time(event);
            *depth += if word(event, "ph") == "B" { 1 } else { -1 };
            if *depth < 0 {
                return Err(format!("an end without a begin: {event}"));
            }
        }
        match tracks.iter().find(|(_, (_, depth))| is_complete && *depth != 0) {
            Some((track, (_, depth))) => Err(format!("{depth} slices of track {track:?} do not end")),
            None => Ok(()),
        }
    }

    /// Checks that each request begins once and then ends once.
    fn check_requests(&self, is_complete: bool) -> CheckResult {
        let mut open: HashMap<(u64, &str), &Value> = HashMap::new();
        let mut all = BTreeSet::new();
        for event in self.0.iter().filter(|event| matches!(word(event, "ph"), "b" | "e")) {
            // With an `id` instead of `id2`, viewers would not show the request in its process.
            let local = event["id2"]["local"].as_str().filter(|_| event.get("id").is_none());
            let id = (track(event).0, local.ok_or_else(|| format!("is not the process's own: {event}"))?);
            if word(event, "ph") == "b" {
                open.insert(id, event);
                if !all.insert(id) {
                    return Err(format!("begins twice: {event}"));
                }
                continue;
            }
            let opening = open.remove(&id).ok_or_else(|| format!("did not begin: {event}"))?;
            if time(opening) > time(event) || word(opening, "name") != word(event, "name") {
                return Err(format!("{opening} does not end with {event}"));
            }
        }
        match open.values().next().filter(|_| is_complete) {
            Some(event) => Err(format!("does not end: {event}")),
            None => Ok(()),
        }
    }

    /// Checks that each track and its process have a name, and that requests of one name belong to
    /// one queue pair, because viewers put them on one track.
    fn check_names(&self) -> CheckResult {
        let named_tracks = |name: &str| self.named("M", name).map(track).collect::<BTreeSet<_>>();
        let (threads, processes) =
            (named_tracks("thread_name"), named_tracks("process_name").into_iter().map(|(pid, _)| pid));
        let processes: BTreeSet<_> = processes.collect();
        let mut requests = HashMap::new();
        for event in &self.0 {
            let track = track(event);
            if !threads.contains(&track) || !processes.contains(&track.0) {
                return Err(format!("on a track without a name: {event}"));
            }
            let is_request = matches!(word(event, "ph"), "b" | "e");
            if is_request && *requests.entry((track.0, word(event, "name"))).or_insert(track) != track {
                return Err(format!("has the name of a request of another queue pair: {event}"));
            }
        }
        Ok(())
    }

    /// Returns the events of this phase whose name begins with `name`.
    fn named<'a>(&'a self, phase: &'a str, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |event| word(event, "ph") == phase && word(event, "name").starts_with(name))
    }

    /// Checks that there are at least this many events of this phase and name.
    fn require(&self, least: usize, phase: &str, name: &str) -> CheckResult {
        let count = self.named(phase, name).count();
        if count >= least { Ok(()) } else { Err(format!("{count} instead of {least} events {phase} {name}")) }
    }

    fn processes(&self) -> BTreeSet<u64> {
        self.0.iter().map(|event| track(event).0).collect()
    }

    /// Checks that both processes have events of this phase and name.
    fn require_both(&self, phase: &str, name: &str) -> CheckResult {
        let have: BTreeSet<_> = self.named(phase, name).map(|event| track(event).0).collect();
        if have.len() == 2 { Ok(()) } else { Err(format!("{have:?} have events {phase} {name}, not two processes")) }
    }

    /// Returns the names of the queue pairs' tracks.
    fn tracks(&self) -> BTreeSet<&str> {
        let names = self.named("M", "thread_name").filter_map(|event| event["args"]["name"].as_str());
        names.filter(|name| name.starts_with("QP")).collect()
    }
}

fn word<'a>(event: &'a Value, key: &str) -> &'a str {
    event[key].as_str().unwrap_or_default()
}

fn track(event: &Value) -> (u64, u64) {
    let number = |key: &str| event[key].as_u64().unwrap_or_default();
    (number("pid"), number("tid"))
}

fn time(event: &Value) -> f64 {
    event["ts"].as_f64().unwrap_or(f64::NAN)
}

fn ping_pong(link: &str) -> CheckResult {
    let trace = trace_pair("ibv_rc_pingpong -g 0 -n 20", link, "")?;
    trace.require_both("M", "process_name")?;
    if trace.named("M", "process_name").any(|event| event["args"]["name"] != "ibv_rc_pingpong") {
        return Err("a process has another name".to_owned());
    }
    for state in ["RESET", "INIT", "RTR", "RTS"] {
        trace.require_both("B", state)?;
    }
    // The name of each queue pair's track contains the number of its peer.
    let names: Vec<Vec<&str>> = trace.tracks().iter().map(|name| name.split_whitespace().collect()).collect();
    let is_peer = |a: &[&str], b: &[&str]| a.len() == 5 && b.len() == 5 && a[1] == b[4] && a[4] == b[1];
    if !names.iter().all(|a| a.len() < 5 || names.iter().any(|b| is_peer(a, b))) {
        return Err(format!("{names:?} are not peers"));
    }
    trace.require(40, "b", "SEND")?;
    trace.require(40, "i", "receive completed")?;
    let done = trace.named("e", "SEND").filter(|event| event["args"]["status"] == "success").count();
    if done != 40 {
        return Err(format!("{done} SENDs instead of 40 succeeded"));
    }
    // The other end receives each packet after it was sent.
    for sent in trace.named("i", "→ RC SEND_FIRST") {
        let psn = |event: &Value| event["args"]["psn"].as_u64();
        let matches = |event: &&Value| track(event).0 != track(sent).0 && psn(event) == psn(sent);
        let received = trace.named("i", "← RC SEND_FIRST").find(matches);
        if received.is_none_or(|received| time(received) < time(sent)) {
            return Err(format!("{sent} was received as {received:?}"));
        }
    }
    Ok(())
}

fn several(link: &str) -> CheckResult {
    let trace = trace_pair("ib_write_bw -q 3 -n 20 -s 1024", link, "")?;
    let requests: BTreeSet<_> = trace.named("b", "RDMA WRITE").map(|event| word(event, "name")).collect();
    if requests.len() == 3 && trace.tracks().len() >= 6 {
        return Ok(());
    }
    Err(format!("queue pairs {:?} have requests {requests:?}", trace.tracks()))
}

fn connection(link: &str) -> CheckResult {
    let (scratch, port) = (scratch(), port());
    let file = file(&scratch, "both.json");
    let server = Program::parse(&format!("rping -s -a 127.0.0.1 -p {port} -C 3"));
    let client = Program::parse(&format!("rping -c -a 127.0.0.1 -p {port} -C 3"));
    let envs = [("ROXE_LINK", link), ("ROXE_TRACE", &*file)];
    // Nothing shows that the server listens, so the client retries.
    let [server, client] = pair::run_client(&server, &client, &envs, |_| Path::new(&file).exists(), TIME_LIMIT)
        .map_err(|e| e.to_string())?;
    if !client.ok {
        return Err(format!("{}\n{}", server.output, client.output));
    }
    let trace = Trace::read(Path::new(&file), false)?;
    for message in ["CM REQ", "CM REP", "CM RTU"] {
        trace.require(1, "i", &format!("→ {message}"))?;
        trace.require(1, "i", &format!("← {message}"))?;
    }
    trace.require_both("i", "Established")?;
    for event in ["AddrResolved", "RouteResolved", "ConnectRequest"] {
        trace.require(1, "i", event)?;
    }
    // rping may end at both ends before it receives the disconnect.
    trace.require(1, "i", "→ CM DREQ")
}

fn loss(link: &str) -> CheckResult {
    let trace = trace_pair("ib_write_bw -n 100 -s 16384", link, "seed=1; drop 3%")?;
    trace.require(100, "b", "RDMA WRITE")?;
    let again = trace.0.iter().filter(|event| word(event, "cat") == "retransmission");
    let again = again.filter(|event| word(event, "name").contains(" again")).count();
    let dropped = trace.0.iter().filter(|event| word(event, "name").contains("rule 1: drop 3%: dropped")).count();
    let repeated =
        trace.named("e", "RDMA WRITE").filter_map(|event| event["args"]["retransmitted"].as_u64()).sum::<u64>();
    let reasons = trace.0.iter().filter(|event| word(event, "cat") == "retry").count();
    if [again, dropped, usize::try_from(repeated).unwrap_or(0), reasons].contains(&0) {
        return Err(format!("{again} sent again, {dropped} dropped, {repeated} counted, {reasons} reasons"));
    }
    Ok(())
}

fn not_ready(link: &str) -> CheckResult {
    let trace = trace_pair("ibv_rc_pingpong -g 0 -n 20", link, "rnr rx msg=3 times=2")?;
    trace.require(1, "i", "→ RNR NAK")?;
    trace.require(1, "i", "RNR NAK received")?;
    trace.require(1, "B", "RNR wait")
}

/// Drops all packets, so that all retries fail.
fn error(link: &str) -> CheckResult {
    let (scratch, port) = (scratch(), port());
    let file = file(&scratch, "both.json");
    let line = format!("ibv_rc_pingpong -g 0 -p {port}");
    let (server, client) = (Program::parse(&line), Program::parse(&format!("{line} 127.0.0.1")));
    let envs = [("ROXE_LINK", link), ("ROXE_FAULTS", "drop rx"), ("ROXE_TRACE", &*file)];
    let limit = Duration::from_secs(20);
    let [_, client] = pair::run_pair(&server, &client, port, &envs, limit).map_err(|e| e.to_string())?;
    if client.ok {
        return Err("it did not fail".to_owned());
    }
    let trace = Trace::read(Path::new(&file), false)?;
    trace.require(7, "i", "timeout")?;
    trace.require(1, "B", "ERR")?;
    match trace.named("e", "SEND").any(|event| event["args"]["status"] == "transport retry counter exceeded") {
        true => Ok(()),
        false => Err("no SEND ends with its status".to_owned()),
    }
}

fn own_files(link: &str) -> CheckResult {
    let scratch = scratch();
    run_pair("ibv_rc_pingpong -g 0 -n 5", &[("ROXE_LINK", link), ("ROXE_TRACE", &file(&scratch, "%p.json"))])?;
    let files: Vec<_> = fs::read_dir(&*scratch).into_iter().flatten().flatten().collect();
    for file in &files {
        let processes = Trace::read(&file.path(), true)?.processes();
        let own = processes.iter().map(|pid| format!("{pid}.json"));
        if !own.eq([file.file_name().to_string_lossy().into_owned()]) {
            return Err(format!("{:?} holds {processes:?}", file.file_name()));
        }
    }
    if files.len() == 2 { Ok(()) } else { Err(format!("{files:?}")) }
}

/// Runs a server until it is killed.
fn killed(link: &str) -> CheckResult {
    let (scratch, port) = (scratch(), port());
    let file = file(&scratch, "both.json");
    let server = Program::parse(&format!("rping -s -P -a 127.0.0.1 -p {port}"));
    let client = Program::parse(&format!("rping -c -a 127.0.0.1 -p {port} -C 3"));
    let envs = [("ROXE_LINK", link), ("ROXE_TRACE", &*file)];
    let first = OnceCell::new();
    // The messages of a first client must be in the file while the server still runs.
    let is_written = |_: &str| {
        Path::new(&file).exists()
            && *first.get_or_init(|| pair::run(&client, &envs, TIME_LIMIT).is_ok_and(|outcome| outcome.ok))
            && Trace::read(Path::new(&file), false).is_ok_and(|trace| trace.require_both("i", "← RC SEND_ONLY").is_ok())
    };
    let outcomes = pair::run_client(&server, &client, &envs, is_written, TIME_LIMIT).map_err(|e| e.to_string())?;
    match outcomes.iter().find(|outcome| !outcome.ok) {
        Some(outcome) => Err(format!("{}\n{}", outcome.command, outcome.output)),
        None => Trace::read(Path::new(&file), false)?.require(2, "B", "RTS"),
    }
}
