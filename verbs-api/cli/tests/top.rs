//! `roxe top` beside a running program.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn roxe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roxe")).args(arguments).output().unwrap()
}

/// Looks at the program `arguments` until it `sees` what it wants to; what that was.
fn watch<T>(arguments: &[&str], mut sees: impl FnMut(&str) -> Option<T>) -> T {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxe"));
    let mut program = command.args(arguments).stdout(Stdio::null()).spawn().unwrap();
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
    seen.expect("the program ends before it is seen")
}

#[test]
fn the_queue_pairs_of_a_program_are_told_while_it_runs() {
    let qp = watch(&["demo", "rc"], |pid| {
        let output = roxe(&["top", pid, "--once", "--json", "--interval", "0.01"]);
        let look: Value = serde_json::from_slice(&output.stdout).ok()?;
        let process = &look["processes"][0];
        assert_eq!((process["pid"].to_string().as_str(), &process["device"]), (pid, &"roxe0".into()));
        let is_busy = |qp: &&Value| qp["state"] == "RTS" && qp["sends"].as_u64() > Some(0);
        process["qps"].as_array()?.iter().find(is_busy).filter(|_| process["answers"] == true).cloned()
    });
    assert_eq!((&qp["service"], &qp["address"], &qp["error"]), (&"RC".into(), &"127.0.0.1".into(), &"-".into()));
    assert!(qp["qpn"].as_str().unwrap().starts_with("0x") && qp["qpn"] != qp["peer"]);
}

#[test]
fn a_table_has_a_line_for_each_device_and_each_queue_pair() {
    let text = watch(&["demo", "ud"], |pid| {
        let output = roxe(&["top", pid, "--once", "--counters", "--interval", "0.01"]);
        let text = String::from_utf8(output.stdout).unwrap();
        (text.contains(" UD ") && text.contains(" RTS ")).then_some(text)
    });
    assert!(text.starts_with("PID ") && text.lines().next().unwrap().contains("  TX msg/s  "), "{text}");
    assert!(text.contains("  roxe0 lo ") && text.contains("    sent_packets "), "{text}");
}

#[test]
fn a_process_without_a_device_is_an_error() {
    let output = roxe(&["top", &std::process::id().to_string(), "--once"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is no program of yours that has a device of roxe open"));
}
