//! `roxe judge`: exit statuses, text and JSON.

use crate::common::{stderr, stdout};
use roxe_wire::capture::{Direction, Outgoing, write_interface, write_packet, write_section};
use roxe_wire::{Bth, Header, Kind, NetHeader, Psn, Qpn, Request, SendTail, icrc};
use serde_json::Value;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Judges `input`, which the command reads from standard input.
fn judge(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxe"));
    command.arg("judge").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn capture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name);
    std::fs::read(path).unwrap()
}

/// SENDs with PSNs 1 to 3, of which the second one has no legal P_Key and this comment.
fn faulty(comment: &str) -> Vec<u8> {
    let net = NetHeader {
        src: Ipv4Addr::new(10, 0, 0, 1).into(),
        dst: Ipv4Addr::new(10, 0, 0, 2).into(),
        ..NetHeader::default()
    };
    let mut file = Vec::new();
    write_section(&mut file, "test");
    write_interface(&mut file, "eth0");
    for psn in 1..=3 {
        let kind = Kind::RcRequest(Request::SendOnly(SendTail::Plain));
        let mut header = Header { bth: Bth::new(Qpn::new(0x11), Psn::new(psn)), kind };
        header.bth.pkey.0 = if psn == 2 { 0x8000 } else { 0xffff };
        let mut payload = vec![0; header.padded_len(8) + icrc::LEN];
        let end = payload.len() - icrc::LEN;
        header.emit(8, &mut payload[..end]).unwrap();
        icrc::seal(&net, &mut payload);
        let comment = if psn == 2 { comment } else { "" };
        let (direction, timestamp_ns, payload) = (Direction::Inbound, 1000, payload.as_slice());
        write_packet(&mut file, &Outgoing { interface: 0, timestamp_ns, direction, net, payload, comment });
    }
    file
}

#[test]
fn clean_capture_exits_with_0() {
    let output = judge(&["-"], &capture("rping.pcap"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "-: 65 packets, 1 connections, 5 datagrams: 0 faults, 0 pieces of advice\n");
}

#[test]
fn faulty_capture_exits_with_1_and_names_card_and_clause() {
    let output = judge(&["-"], &faulty(""));
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(
        text.starts_with("-: frame 2: FAULT  10.0.0.1 (sender): the P_Key is invalid [pkey PKEY-MATCH]\n"),
        "{text}"
    );
    assert!(text.contains("\n  >      2 "), "{text}");
    assert!(text.ends_with("1 connections in one direction only\n"), "{text}");
}

#[test]
fn unusable_input_exits_with_2() {
    for (input, why) in [
        (&b"no capture at all"[..], "neither a pcap nor a pcapng file"),
        (&[0x1f, 0x8b, 8], "gzip -dc - | roxe judge -"),
        (&capture("rping.pcap")[..24], "it has no RoCEv2 packets"),
        (&capture("rping.pcap")[..200], "the capture file ends too early"),
    ] {
        let output = judge(&["-"], input);
        assert_eq!(output.status.code(), Some(2), "{why}");
        assert!(stderr(&output).starts_with("roxe judge: -: ") && stderr(&output).contains(why), "{}", stderr(&output));
    }
    assert_eq!(judge(&[], &[]).status.code(), Some(2));
}

/// The last record is truncated; those before it are judged.
#[test]
fn damaged_capture_exits_with_2_and_is_judged_up_to_the_damage() {
    let whole = faulty("");
    let damaged = &whole[..whole.len() - 8];
    let output = judge(&["--json", "-"], damaged);
    assert_eq!(output.status.code(), Some(2));
    let value: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&value[0]["packets"], &value[0]["charges"][0]["rule"]), (&2.into(), &"pkey".into()));
    let broken = value[0]["broken"].as_str().unwrap();
    assert!(broken.starts_with("cannot read on after frame 2: "), "{broken}");
    assert_eq!(stderr(&output), format!("roxe judge: -: {broken}\n"));
    let output = judge(&["-"], damaged);
    assert_eq!((output.status.code(), stderr(&output)), (Some(2), format!("roxe judge: -: {broken}\n")));
    assert!(stdout(&output).contains("[pkey PKEY-MATCH]"));
}

#[test]
fn message_about_an_unreadable_file_names_it_once() {
    let text = stderr(&judge(&["missing.pcap"], &[]));
    assert!(text.starts_with("roxe judge: cannot read missing.pcap: "), "{text}");
    assert_eq!(text.matches("missing.pcap").count(), 1, "{text}");
    let text = stderr(&judge(&["-"], &[0x1f, 0x8b, 8]));
    assert!(text.starts_with("roxe judge: -: it is compressed"), "{text}");
}

#[test]
fn json_has_the_charges_of_each_file() {
    let output = judge(&["--json", "-"], &faulty(""));
    let value: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let charge = &value[0]["charges"][0];
    assert_eq!(charge["rule"], "pkey");
    assert_eq!(charge["frames"][0], 2);
    assert_eq!(charge["address"], "10.0.0.1");
    assert_eq!(value[0]["connections"][0]["ends"][1], "10.0.0.2 qp 0x11");
}

#[test]
fn comments_of_a_capture_reach_no_terminal_unchanged() {
    let text = stdout(&judge(&["-"], &faulty("qp 0x11 received | \x1b[31mrule 1: dropped")));
    assert!(text.contains("a fault rule of the recording process acted on the packet: .[31mrule 1: dropped"), "{text}");
    assert!(!text.contains('\x1b'));
}
