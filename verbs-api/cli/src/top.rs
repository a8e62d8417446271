//! `roxe top`: a table of the queue pairs of running programs, redrawn every second.

use crate::output::{Result, Table};
use crate::status::{KeyValues, Process, find_processes};
use roxe_provider::legend_of;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write, stdout};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Arguments of `roxe top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show only this process.
    pid: Option<u32>,
    /// Print one table with the rates of one interval, and exit.
    #[arg(long)]
    once: bool,
    /// Print the values as JSON, one object per line and interval.
    #[arg(long)]
    json: bool,
    /// Below the table, print the counters of every device with their explanations.
    #[arg(long, conflicts_with = "json")]
    counters: bool,
    /// Seconds between two tables.
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    parsed.filter(|interval| !interval.is_zero()).ok_or_else(|| "a number of seconds above 0 is needed".to_owned())
}

pub(crate) fn run(args: &Args) -> Result {
    let mut before = Snapshot::take(args.pid)?;
    // A terminal gets the first table at once, without rates.
    if !args.once {
        show(args, &before, &before)?;
    }
    loop {
        sleep(args.interval);
        let now = Snapshot::take(args.pid)?;
        show(args, &before, &now)?;
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

/// The state of all processes at one time.
#[derive(Debug)]
struct Snapshot {
    at: Instant,
    processes: Vec<Process>,
}

impl Snapshot {
    fn take(pid: Option<u32>) -> Result<Self> {
        let processes = find_processes(pid)?;
        Ok(Self { at: Instant::now(), processes })
    }

    fn find(&self, process: &Process) -> Option<&Process> {
        self.processes.iter().find(|known| {
            known.namespace == process.namespace && known.pid == process.pid && known.device == process.device
        })
    }
}

fn show(args: &Args, before: &Snapshot, now: &Snapshot) -> Result {
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", json(now))?;
        return Ok(out.flush()?);
    }
    if !args.once && out.is_terminal() {
        // Clears the screen (`man console_codes`).
        write!(out, "\x1b[H\x1b[2J")?;
    }
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    write!(out, "{}", table(before, now, seconds))?;
    if now.processes.is_empty() {
        writeln!(out, "no program of this user has a device of roxe open")?;
    }
    if args.counters {
        now.processes.iter().try_for_each(|process| write!(out, "\n{}", counters(process)))?;
    }
    Ok(out.flush()?)
}

/// Returns the counters of a device that are not zero, with their explanations.
fn counters(process: &Process) -> String {
    let used = process.counters.iter().filter(|(_, value)| *value > 0);
    let values: String = used.map(|(name, value)| format!(" {name}={value}")).collect();
    let values = if values.is_empty() { " all counters are zero" } else { &values };
    let line = format!("{} (process {}):{values}\n", process.device, process.pid);
    let legend = legend_of(&line);
    line + &legend
}

/// Returns a line for each device, and below it one for each of its queue pairs.
fn table(before: &Snapshot, now: &Snapshot, seconds: f64) -> Table {
    let mut table = Table::new([
        "PID", "PROGRAM", "QP", "PEER", "TYPE", "STATE", "TX msg/s", "RX msg/s", "TX pkt/s", "RX pkt/s", "TX MB/s",
        "RX MB/s", "OUTST", "UNACKED", "RETRIES", "RNR", "ERROR",
    ]);
    for process in &now.processes {
        let old = before.find(process).unwrap_or(process);
        let grown = |name, unit| rate(process.counter(name).saturating_sub(old.counter(name)) as f64 / unit, seconds);
        let packets = [grown("sent_packets", 1.0), grown("received_packets", 1.0)];
        let bytes = [grown("sent_bytes", 1e6), grown("received_bytes", 1e6)];
        let state = if process.answers { "" } else { "no answer" };
        let place = format!("{} {}", process.device, process.netdev);
        let head = [process.pid.clone(), process.command.clone(), place.trim().to_owned()];
        let rest = ["", "", state, "", ""].map(str::to_owned);
        table.row(head.into_iter().chain(rest).chain(packets).chain(bytes));
        for qp in &process.qps {
            let cells = match old.qps.iter().find(|old| old.text("qpn") == qp.text("qpn")) {
                Some(old) if is_same_connection(old, qp) => cells(old, qp, seconds),
                _ => cells(qp, qp, 0.0),
            };
            table.row([String::new(), String::new()].into_iter().chain(cells));
        }
    }
    table
}

/// Returns true if a queue pair was not connected anew between two snapshots. A new connection
/// sets new PSNs, from which no rate follows.
fn is_same_connection(old: &KeyValues, qp: &KeyValues) -> bool {
    let is_same = |name| old.text(name) == qp.text(name);
    let was_connected = !["RESET", "INIT", "RTR"].contains(&old.text("state"));
    is_same("peer") && is_same("address") && (is_same("state") || was_connected)
}

fn cells(old: &KeyValues, qp: &KeyValues, seconds: f64) -> [String; 15] {
    let grown = |name: &str, bits: u32| (qp.number(name).wrapping_sub(old.number(name)) & ((1 << bits) - 1)) as f64;
    let megabytes = |name| rate(qp.number(name).saturating_sub(old.number(name)) as f64 / 1e6, seconds);
    let peer = match qp.text("address") {
        "-" => String::new(),
        address => format!("{} {address}", qp.text("peer")),
    };
    // UD queue pairs neither acknowledge nor count received datagrams.
    let is_datagram = matches!(qp.text("service"), "UD" | "RAW");
    let received = |name| if is_datagram { "-".to_owned() } else { rate(grown(name, 24), seconds) };
    let unacknowledged = match qp.text("service") {
        "RC" | "XRC_INI" => format!("{}/{}", qp.number("unacknowledged"), qp.number("window")),
        _ => "-".to_owned(),
    };
    let sum = |names: &[&str]| names.iter().map(|name| qp.number(name)).sum::<u64>().to_string();
    let rnr = sum(&["rnr_received"]) + "/" + &sum(&["rnr_sent"]);
    let error = if qp.text("error") == "-" { "" } else { qp.text("error") };
    [
        qp.text("qpn").to_owned(),
        peer,
        qp.text("service").to_owned(),
        qp.text("state").to_owned(),
        rate(grown("sends", 32), seconds),
        received("received"),
        rate(grown("sent_psn", 24), seconds),
        received("expected_psn"),
        megabytes("sent_bytes"),
        megabytes("received_bytes"),
        qp.number("outstanding").to_string(),
        unacknowledged,
        sum(&["seq_naks", "implied_naks", "timeouts"]),
        rnr,
        error.to_owned(),
    ]
}

/// Returns the growth per second; an empty text if no time has passed.
fn rate(grown: f64, seconds: f64) -> String {
    match grown / seconds {
        _ if seconds <= 0.0 => String::new(),
        0.0 => "0".to_owned(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

fn json(snapshot: &Snapshot) -> Value {
    let value = |text: &String| text.parse::<u64>().map_or_else(|_| text.as_str().into(), Value::from);
    let processes = snapshot.processes.iter().map(|process| {
        let counters: Value = process.counters.iter().map(|(name, value)| (name.clone(), *value)).collect();
        let qp_object = |qp: &KeyValues| qp.0.iter().map(|(name, text)| (name.clone(), value(text))).collect::<Value>();
        json!({
            "pid": process.pid.parse::<u32>().ok(),
            "program": process.command,
            "device": process.device,
            "netdev": process.netdev,
            "answers": process.answers,
            "counters": counters,
            "qps": process.qps.iter().map(qp_object).collect::<Value>(),
        })
    });
    json!({ "processes": processes.collect::<Value>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::{equal_pids, process};

    fn snapshot(sent_bytes: u64, qp: &str) -> Snapshot {
        Snapshot { at: Instant::now(), processes: vec![process(sent_bytes, qp)] }
    }

    #[test]
    fn rates_are_growth_per_second_across_wraparound() {
        let qp = |sends: u32, received: u32, bytes: u64, error: &str| {
            format!(
                "qp qpn=0x11 service=RC state=RTS peer=0x12 address=10.0.0.1 sends={sends} received={received} \
                 outstanding=2 unacknowledged=3 window=64 seq_naks=1 timeouts=2 rnr_received=4 rnr_sent=5 sent_bytes={bytes} \
                 received_bytes=7 error={error}"
            )
        };
        let before = snapshot(1_000_000, &qp(u32::MAX, 0xff_ffff, 1_000_000, "-"));
        let now = snapshot(5_000_000, &qp(19, 9, 3_000_000, "RetryExcErr"));
        let text = table(&before, &now, 2.0).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["4294967295", "roxe0", "lo", "0", "0", "2.0", "0"]);
        let expected = "0x11 0x12 10.0.0.1 RC RTS 10 5.0 0 0 1.0 0 2 3/64 3 4/5 RetryExcErr";
        assert_eq!(lines[2].join(" "), expected);
    }

    #[test]
    fn equal_pids_of_two_namespaces_have_own_rates() {
        let snapshot = |sent_bytes| Snapshot { at: Instant::now(), processes: equal_pids(sent_bytes) };
        let text = table(&snapshot([1_000_000, 50_000_000]), &snapshot([3_000_000, 90_000_000]), 1.0).to_string();
        let rates: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("eth0"))
            .filter_map(|line| line.split_whitespace().nth_back(1))
            .collect();
        assert_eq!(rates, ["2.0", "40"], "{text}");
    }

    #[test]
    fn queue_pair_connected_between_looks_has_no_rates() {
        let qp = |state: &str, peer: &str, psn: u32| {
            snapshot(
                0,
                &format!("qp qpn=0x11 service=RC state={state} peer={peer} address=10.0.0.1 sent_psn={psn} error=-"),
            )
        };
        let connected = qp("RTS", "0x12", 7_000_020);
        let rates = |before: &Snapshot| -> Vec<f64> {
            let text = table(before, &connected, 1.0).to_string();
            let words = text.lines().nth(2).unwrap().split_whitespace();
            words.filter_map(|word| word.parse().ok()).filter(|rate| *rate > 0.0).collect()
        };
        assert_eq!(rates(&qp("RTS", "0x12", 7_000_000)), [20.0]);
        for before in [qp("INIT", "0x12", 0), qp("RTR", "0x12", 0), qp("RTS", "0x13", 5)] {
            assert_eq!(rates(&before), [0.0; 0]);
        }
    }

    #[test]
    fn first_table_has_no_rates() {
        let snapshot = snapshot(5, "qp qpn=0x11 service=UD state=RTS address=- sends=5 outstanding=0 window=0 error=-");
        let text = table(&snapshot, &snapshot, 0.0).to_string();
        assert_eq!(
            text.lines().nth(2).unwrap().split_whitespace().collect::<Vec<_>>(),
            ["0x11", "UD", "RTS", "-", "-", "0", "-", "0", "0/0"]
        );
    }

    #[test]
    fn zero_counters_are_summarized() {
        let idle = Process { counters: Default::default(), ..process(0, "") };
        assert_eq!(counters(&idle), "roxe0 (process 4294967295): all counters are zero\n");
    }

    #[test]
    fn json_has_numbers_and_texts() {
        let value = json(&snapshot(5, "qp qpn=0x11 service=RC sends=5"));
        let process = &value["processes"][0];
        assert_eq!(process["counters"]["sent_bytes"], 5);
        assert_eq!((&process["qps"][0]["sends"], &process["qps"][0]["qpn"]), (&5.into(), &"0x11".into()));
    }

    #[test]
    fn interval_is_a_positive_number_of_seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(["0", "-1", "soon", "1e99"].iter().all(|text| parse_seconds(text).is_err()));
    }
}
