//! `roxe metrics`: counters of running programs in the text format of Prometheus, version 0.0.4, on
//! standard output, in a file, or over HTTP on the loopback interface.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>

use crate::output::Result;
use crate::status::{KeyValues, Process, find_processes, processes};
use roxe_base::private_file;
use roxe_peer::visitors::{self, Timed};
use roxe_provider::Counters;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write, stdout};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `roxe metrics`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Serve /metrics over HTTP at this address of the loopback interface, such as 127.0.0.1:9417,
    /// until stopped. Port 0 selects a free port, which is printed.
    #[arg(long, value_name = "ADDR", conflicts_with = "output")]
    listen: Option<SocketAddr>,
    /// With --listen: show each queue pair with its number and peer, which every user of this host
    /// can then read. By default, the values of a process are sums.
    #[arg(long, requires = "listen")]
    per_qp: bool,
    /// Write to this file instead of standard output. The file is replaced atomically, so
    /// that collectors never read a part of it.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show only this process.
    pid: Option<u32>,
}

pub(crate) fn run(args: &Args) -> Result {
    match (&args.listen, &args.output) {
        (Some(address), _) => serve(*address, args.pid, args.per_qp),
        (None, Some(file)) => {
            let text = text(&find_processes(args.pid)?, true);
            let failed = |error| format!("cannot write {}: {error}", file.display());
            Ok(private_file::replace(file, text.as_bytes()).map_err(failed)?)
        }
        (None, None) => Ok(stdout().write_all(text(&find_processes(args.pid)?, true).as_bytes())?),
    }
}

/// Serves requests from this host; every user of this host can connect.
fn serve(address: SocketAddr, pid: Option<u32>, per_qp: bool) -> Result {
    if !address.ip().is_loopback() {
        return Err(
            format!("{address} is not an address of the loopback interface; use 127.0.0.1:PORT or [::1]:PORT").into()
        );
    }
    let listener = TcpListener::bind(address).map_err(|error| format!("cannot listen at {address}: {error}"))?;
    writeln!(stdout(), "http://{}/metrics", listener.local_addr()?)?;
    let serve = move |stream, _visit| {
        // Clients may disconnect at any time.
        _ = answer(stream, pid, per_qp);
    };
    Ok(visitors::accept(&listener, MAX_CLIENTS, serve)?)
}

/// Maximum number of concurrent clients; another client disconnects the oldest.
const MAX_CLIENTS: usize = 16;

fn answer(stream: TcpStream, pid: Option<u32>, per_qp: bool) -> io::Result<()> {
    /// Maximum length of a request, in bytes.
    const MAX_REQUEST: u64 = 16 << 10;
    /// Time limit of a request, and of a response.
    const TIMEOUT: Duration = Duration::from_secs(2);
    let mut stream = Timed::new(stream, TIMEOUT);
    let mut lines = BufReader::new((&mut stream).take(MAX_REQUEST)).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let (status, kind, body) = match request.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/metrics" | "/", _] => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text(&processes(pid)?, per_qp))
        }
        ["GET", ..] => ("404 Not Found", "text/plain; charset=utf-8", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain; charset=utf-8", "only GET is supported\n".to_owned()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.restart(TIMEOUT);
    stream.write_all((head + &body).as_bytes())
}

/// Name, kind and help of a metric, and the name of the value in [`KeyValues`].
type QpMetric = (&'static str, &'static str, &'static str, &'static str);

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

const QP_METRICS: [QpMetric; 14] = [
    ("roxe_qp_sends_total", COUNTER, "Send work requests that are complete, modulo 2^32", "sends"),
    ("roxe_qp_received_messages_total", COUNTER, "Messages executed (RC, UC, XRC), modulo 2^24", "received"),
    ("roxe_qp_sent_bytes_total", COUNTER, "Bytes sent, from the BTH to the ICRC", "sent_bytes"),
    ("roxe_qp_received_bytes_total", COUNTER, "Bytes received, from the BTH to the ICRC", "received_bytes"),
    ("roxe_qp_outstanding_sends", GAUGE, "Send work requests that are not complete", "outstanding"),
    ("roxe_qp_unacknowledged_psns", GAUGE, "PSNs that are sent and not acknowledged", "unacknowledged"),
    ("roxe_qp_window_psns", GAUGE, "Maximum number of unacknowledged PSNs", "window"),
    ("roxe_qp_outstanding_reads", GAUGE, "READs and atomics that await their response", "reads"),
    ("roxe_qp_waits_for_receive", GAUGE, "1 while the peer has no receive posted", "waits_for_receive"),
    ("roxe_qp_sequence_naks_total", COUNTER, "PSN sequence error NAKs received", "seq_naks"),
    ("roxe_qp_implied_naks_total", COUNTER, "Responses that imply the loss of an earlier one", "implied_naks"),
    ("roxe_qp_ack_timeouts_total", COUNTER, "ACK timeouts", "timeouts"),
    ("roxe_qp_rnr_naks_received_total", COUNTER, "RNR NAKs received", "rnr_received"),
    ("roxe_qp_rnr_naks_sent_total", COUNTER, "RNR NAKs sent", "rnr_sent"),
];

/// Returns the metrics of these processes. With `per_qp`, each queue pair has its own values, with
/// its number and peer, from which other users could forge packets. Otherwise the values are sums
/// for each process.
fn text(processes: &[Process], per_qp: bool) -> String {
    let mut out = Exposition(String::new());
    out.begin("roxe_up", GAUGE, "1 for a device of a process that answers");
    for process in processes {
        out.sample("roxe_up", &process_labels(process), &u8::from(process.answers).to_string());
    }
    let answering = || processes.iter().filter(|process| process.answers);
    for (name, words) in Counters::legend() {
        let metric = format!("roxe_{name}_total");
        out.begin(&metric, COUNTER, &words);
        for process in answering() {
            out.sample(&metric, &process_labels(process), &process.counter(name).to_string());
        }
    }
    let qps = || answering().flat_map(|process| process.qps.iter().map(move |qp| (process, qp)));
    out.begin("roxe_qp_info", GAUGE, "Queue pairs with these labels");
    let known = ["service", "state", "peer", "address", "path_mtu", "error"];
    let shown = known.into_iter().filter(|name| per_qp || !["peer", "address"].contains(name));
    out.sums(
        "roxe_qp_info",
        qps().map(|(process, qp)| {
            let mut labels = qp_labels(process, qp, per_qp);
            labels.extend(shown.clone().map(|name| (name, qp.text(name))));
            (labels, 1)
        }),
    );
    for (metric, kind, words, name) in QP_METRICS {
        out.begin(metric, kind, words);
        out.sums(metric, qps().map(|(process, qp)| (qp_labels(process, qp, per_qp), qp.number(name))));
    }
    out.0
}

/// Name and value.
type Label<'a> = (&'static str, &'a str);

fn process_labels(process: &Process) -> Vec<Label<'_>> {
    let Process { pid, namespace, command, device, netdev, .. } = process;
    let mut labels: Vec<Label<'_>> = vec![("pid", pid), ("program", command), ("device", device), ("netdev", netdev)];
    labels.extend((!namespace.is_empty()).then_some(("netns", namespace.as_str())));
    labels
}

fn qp_labels<'a>(process: &'a Process, qp: &'a KeyValues, per_qp: bool) -> Vec<Label<'a>> {
    let mut labels = process_labels(process);
    labels.extend(per_qp.then(|| ("qpn", qp.text("qpn"))));
    labels
}

/// Text in the format of Prometheus.
struct Exposition(String);

impl Exposition {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Writes a sample for each set of labels, with the sum of the set's values.
    fn sums<'a>(&mut self, name: &str, values: impl Iterator<Item = (Vec<Label<'a>>, u64)>) {
        let mut sums = BTreeMap::<_, u64>::new();
        for (labels, value) in values {
            let sum = sums.entry(labels).or_default();
            *sum = sum.saturating_add(value);
        }
        sums.iter().for_each(|(labels, sum)| self.sample(name, labels, &sum.to_string()));
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: &str) {
        self.0.push_str(name);
        let mut separator = '{';
        for (label, text) in labels {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            _ = write!(self.0, "{separator}{label}=\"{text}\"");
            separator = ',';
        }
        _ = writeln!(self.0, "}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::{equal_pids, process};
    use std::collections::HashSet;

    fn exposition() -> String {
        let mut process = process(96, "qp qpn=0x11 service=RC state=RTS sends=5 rnr_sent=2 error=-");
        process.command = "a \"b\\\n".to_owned();
        text(&[process], true)
    }

    #[test]
    fn samples_have_escaped_labels_and_the_values_of_the_process() {
        let text = exposition();
        let labels = "pid=\"4294967295\",program=\"a \\\"b\\\\\\n\",device=\"roxe0\",netdev=\"lo\"";
        for line in [
            format!("roxe_up{{{labels}}} 1"),
            format!("roxe_sent_bytes_total{{{labels}}} 96"),
            format!("roxe_qp_sends_total{{{labels},qpn=\"0x11\"}} 5"),
            format!("roxe_qp_rnr_naks_sent_total{{{labels},qpn=\"0x11\"}} 2"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn exposition_lines_follow_the_format() {
        let text = exposition();
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty();
        let (mut metrics, mut samples) = (HashSet::new(), HashSet::new());
        let mut current = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                current = rest.split(' ').next().unwrap();
                assert!(is_name(current) && metrics.insert(current), "{line}: once for each metric");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, current);
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            } else {
                let (name, rest) = line.split_once('{').unwrap();
                let (labels, value) = rest.rsplit_once("} ").unwrap();
                assert!(name == current && value.parse::<u64>().is_ok() && samples.insert((name, labels)), "{line}");
            }
        }
        assert!(text.ends_with('\n') && metrics.len() > 70 && samples.len() == metrics.len());
    }

    #[test]
    fn equal_pids_of_two_namespaces_have_own_samples() {
        let text = text(&equal_pids([96, 97]), false);
        let samples: Vec<&str> = text.lines().filter(|line| line.starts_with("roxe_qp_sends_total{")).collect();
        assert!(samples.len() == 2 && samples.iter().all(|sample| sample.ends_with("} 5")), "{samples:?}");
        let other = format!("pid=\"{}\",program=\"\",device=\"roxe0\",netdev=\"eth0\",netns=\"8\"", std::process::id());
        assert!(text.contains(&format!("roxe_sent_bytes_total{{{other}}} 97\n")), "{text}");
        assert_eq!(text.matches("netns=").count(), text.matches("netdev=").count() / 2);
    }

    #[test]
    fn sums_hide_queue_pairs_and_peers() {
        let mut process = process(96, "qp qpn=0x11 service=RC state=RTS peer=0x12 address=10.0.0.1 sends=5 error=-");
        process.qps.push(KeyValues(process.qps[0].0.clone()));
        process.qps[1].0.insert("qpn".to_owned(), "0x13".to_owned());
        let text = text(&[process], false);
        assert!(["0x11", "0x12", "0x13", "10.0.0.1", "qpn="].iter().all(|secret| !text.contains(secret)), "{text}");
        let labels = "pid=\"4294967295\",program=\"\",device=\"roxe0\",netdev=\"lo\"";
        assert!(text.contains(&format!("roxe_qp_sends_total{{{labels}}} 10\n")), "{text}");
        let info = format!("roxe_qp_info{{{labels},service=\"RC\",state=\"RTS\",path_mtu=\"\",error=\"-\"}} 2\n");
        assert!(text.contains(&info), "{text}");
    }

    #[test]
    fn unresponsive_process_is_down_without_values() {
        let down = Process { pid: "7".to_owned(), answers: false, ..Process::default() };
        let text = text(&[down], true);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["roxe_up{pid=\"7\",program=\"\",device=\"\",netdev=\"\"} 0"]);
    }
}
