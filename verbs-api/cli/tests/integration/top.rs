//! `roxe top` and `roxe metrics` while a program runs.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A runtime folder for one test, because processes of other tests may count their wake-ups.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("roxe-top-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roxe"));
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.0);
        command
    }

    fn roxe(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the program `arguments` until `sees` returns a value.
fn watch<T>(place: &Place, arguments: &[&str], mut sees: impl FnMut(&str) -> Option<T>) -> T {
    let mut program = place.command(arguments).stdout(Stdio::null()).spawn().unwrap();
    let pid = program.id().to_string();
    let seen = loop {
        if let Some(seen) = sees(&pid) {
            break Some(seen);
        }
        if program.try_wait().unwrap().is_some() {
            break None;
        }
    };
    let _ = program.kill();
    let _ = program.wait();
    seen.expect("see the program before its exit")
}

#[test]
fn top_shows_queue_pairs_of_a_running_program() {
    let place = Place::new("queue-pairs");
    let qp = watch(&place, &["demo", "rc"], |pid| {
        let output = place.roxe(&["top", pid, "--once", "--json", "--interval", "0.01"]);
        let look: Value = serde_json::from_slice(&output.stdout).ok()?;
        let process = &look["processes"][0];
        assert_eq!((process["pid"].to_string().as_str(), &process["device"]), (pid, &"roxe0".into()));
        let is_busy = |qp: &&Value| qp["state"] == "RTS" && qp["sends"].as_u64() > Some(0);
        process["qps"].as_array()?.iter().find(is_busy).filter(|_| process["answers"] == true).cloned()
    });
    assert_eq!((&qp["service"], &qp["address"], &qp["error"]), (&"RC".into(), &"127.0.0.1".into(), &"-".into()));
    assert!(qp["qpn"].as_str().unwrap().starts_with("0x") && qp["qpn"] != qp["peer"]);
    // Every request and acknowledgement has at least a BTH and an ICRC.
    assert!(qp["sent_bytes"].as_u64() >= qp["sends"].as_u64().map(|sends| 16 * sends), "{qp}");
    assert!(qp["received_bytes"].as_u64() >= Some(16), "{qp}");
}

#[test]
fn top_table_has_lines_for_devices_and_queue_pairs() {
    let place = Place::new("table");
    let text = watch(&place, &["demo", "ud"], |pid| {
        let output = place.roxe(&["top", pid, "--once", "--counters", "--interval", "0.01"]);
        let text = String::from_utf8(output.stdout).unwrap();
        // A queue pair is ready some time before its first packet counts.
        [" UD ", " RTS ", "    sent_packets "].iter().all(|part| text.contains(part)).then_some(text)
    });
    assert!(text.starts_with("PID ") && text.lines().next().unwrap().contains("  TX msg/s  "), "{text}");
    assert!(text.contains("  roxe0 lo "), "{text}");
}

#[test]
fn process_without_device_is_an_error() {
    let place = Place::new("no-program");
    let pid = std::process::id().to_string();
    for words in [&["top", &pid, "--once"][..], &["metrics", &pid]] {
        let output = place.roxe(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("has no device of roxe open, or belongs to another user"), "{words:?}: {text}");
    }
}

/// Returns head and body of the response for `path`.
fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn metrics_are_served_on_the_loopback_interface_only() {
    let place = Place::new("served");
    let mut server = place.command(&["metrics", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    let body = watch(&place, &["demo", "rc"], |pid| {
        let (head, body) = get(address, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let is_busy = |line: &str| line.starts_with("roxe_qp_info{") && line.contains("state=\"RTS\"");
        body.lines().any(|line| is_busy(line) && line.contains(&format!("pid=\"{pid}\""))).then_some(body)
    });
    assert!(body.contains("# TYPE roxe_sent_bytes_total counter\n"));
    assert!(!body.contains("qpn=") && !body.contains("peer="), "every user of the host reads it\n{body}");
    // Unfinished requests do not block others.
    let mut silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    silent.iter_mut().for_each(|stream| stream.write_all(b"GET /metrics").unwrap());
    assert!(get(address, "/metrics").0.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(get(address, "/other").0.starts_with("HTTP/1.1 404 "));
    server.kill().unwrap();
    server.wait().unwrap();
    let refused = place.roxe(&["metrics", "--listen", "192.0.2.1:0"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is not an address of the loopback interface"));
}

#[test]
fn metrics_file_is_replaced_at_once() {
    let place = Place::new("file");
    let folder = place.0.join("metrics");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("roxe.prom");
    let output = place.roxe(&["metrics", "--output", file.to_str().unwrap()]);
    let text = std::fs::read_to_string(&file).unwrap();
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(text.starts_with("# HELP roxe_up ") && files == 1, "{files} files\n{text}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}
