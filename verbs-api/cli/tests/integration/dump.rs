//! `roxe dump` with filters and as a page of HTML; runs in a browser if one is installed.

use crate::common::{Scratch, stderr, stdout};
use roxe_wire::capture::{Direction, Outgoing, write_interface, write_packet, write_section};
use roxe_wire::{Bth, Header, Kind, NetHeader, Psn, Qpn, Request, SendTail, icrc};
use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Output};

/// A remark that would change the page if it became markup.
const HOSTILE: &str = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">";

fn dump(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roxe")).arg("dump").args(arguments).output().unwrap()
}

/// Returns the output of a process that succeeded.
fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output)
}

fn capture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name);
    path.to_str().unwrap().to_owned()
}

/// Returns a capture of SENDs with these PSNs, each with a hostile remark.
fn hostile_capture(psns: &[u32]) -> Vec<u8> {
    let loopback = Ipv4Addr::LOCALHOST.into();
    let net = NetHeader { src: loopback, dst: loopback, src_port: 0xc000, ..NetHeader::default() };
    let mut file = Vec::new();
    write_section(&mut file, "test");
    write_interface(&mut file, "lo");
    for psn in psns {
        let kind = Kind::RcRequest(Request::SendOnly(SendTail::Plain));
        let header = Header { bth: Bth::new(Qpn::new(0x11), Psn::new(*psn)), kind };
        let mut payload = vec![0; header.padded_len(8) + icrc::LEN];
        let end = payload.len() - icrc::LEN;
        header.emit(8, &mut payload[..end]).unwrap();
        icrc::seal(&net, &mut payload);
        let (direction, payload) = (Direction::Outbound, payload.as_slice());
        let timestamp_ns = u64::from(*psn) * 1000;
        write_packet(&mut file, &Outgoing { interface: 0, timestamp_ns, direction, net, payload, comment: HOSTILE });
    }
    file
}

/// Returns the document of the page in a browser; `None` without a browser.
fn document(page: &str, scratch: &Scratch) -> Option<String> {
    let profile = format!("--user-data-dir={}", scratch.path("profile"));
    let arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", &profile];
    let output = Command::new("chromium").args(arguments).arg(format!("file://{page}")).output();
    let output = output.inspect_err(|error| eprintln!("skipped: the page in a browser: chromium: {error}")).ok()?;
    Some(text_of(&output))
}

#[test]
fn retransmissions_and_naks_are_printed_and_counted() {
    let text = text_of(&dump(&["--odd", &capture("lossy_atomic.pcap")]));
    let (last, lines) = text.lines().rev().collect::<Vec<_>>().split_first().map(|(l, r)| (*l, r.to_vec())).unwrap();
    assert!(last.starts_with("1591 RoCEv2 packets, 0 of them bad") && last.contains("; NAKs: 6"), "{last}");
    assert!(lines.iter().all(|line| line.ends_with("  icrc ok")), "{text}");
    assert_eq!(lines.iter().filter(|line| line.contains("  NAK: PSN sequence error, expects ")).count(), 6);
    assert!(lines.iter().any(|line| line.contains(", 3rd time, after the NAK")));
}

/// The capture lacks the first transmissions of lost packets, but has the retransmissions.
#[test]
fn transmissions_are_counted_from_the_first_in_the_capture() {
    let text = text_of(&dump(&[&capture("lossy_atomic.pcap")]));
    let word = |line: &str, name: &str| Some(line.split_once(name)?.1.split(' ').next()?.to_owned());
    let (mut counts, mut named) = (BTreeMap::new(), 0);
    for line in text.lines().filter(|line| line.contains(" RC FETCH_ADD ")) {
        let psn = (word(line, " dqpn="), word(line, " psn="));
        let count = counts.entry(psn).or_insert(0);
        *count += 1;
        if let Some((before, _)) = line.split_once(" time, ") {
            let digits = |text: &str| text.trim_end_matches(char::is_alphabetic).parse::<u32>().ok();
            assert_eq!(before.rsplit(' ').next().and_then(digits), Some(*count), "{line}");
            named += 1;
        }
    }
    assert!(named > 800, "{named}");
}

#[test]
fn lines_are_filtered_by_queue_pair_psn_and_opcode() {
    let file = capture("rping.pcap");
    let lines = |arguments: &[&str]| {
        let text = text_of(&dump(&[arguments, &[&*file]].concat()));
        assert!(text.lines().last().unwrap().starts_with("65 RoCEv2 packets"), "all are counted: {text}");
        text.lines().count() - 1
    };
    assert_eq!(lines(&["--qp", "0x1"]), 5);
    assert_eq!(lines(&["--qp", "30"]), 60);
    assert_eq!(lines(&["--opcode", "read_req"]), lines(&["--opcode", "READ_RESPONSE"]));
    assert_eq!(lines(&["--psn", "10775488-10775489", "--opcode", "ack"]), 1);
    let wrong = dump(&["--qp", "many", &file]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("a number such as 17 or 0x11 is needed"));
}

#[test]
fn output_without_terminal_has_no_colours() {
    assert!(!text_of(&dump(&[&capture("lossy_atomic.pcap")])).contains('\x1b'));
}

#[test]
fn page_shows_packets_in_a_browser() {
    let scratch = Scratch::new("page");
    let page = scratch.path("page.html");
    text_of(&dump(&["--html", &page, &capture("lossy_atomic.pcap")]));
    let Some(document) = document(&page, &scratch) else { return };
    assert!(document.contains("data-rows=\"1591\""));
    assert!(document.contains("1591 packets"));
    assert!(document.contains("FETCH_ADD psn=11850441") && document.contains("an atomic at 0x555a6fa95780: adds 1"));
    let rows = document.matches("class=\"row ").count();
    assert!((1..100).contains(&rows), "{rows} rows: only those that can be seen are in the document");
    assert!(document.contains("AtomicETH") && document.contains("10.77.0.12 QP 0x16"), "the first one's fields");
}

#[test]
fn markup_in_a_capture_stays_text_in_a_browser() {
    let scratch = Scratch::new("hostile");
    let (file, page) = (scratch.path("<script>x.pcapng"), scratch.path("page.html"));
    fs::write(&file, hostile_capture(&[1, 2, 2])).unwrap();
    text_of(&dump(&["--html", &page, &file]));
    let Some(document) = document(&page, &scratch) else { return };
    assert!(document.contains("data-rows=\"3\""));
    assert!(document.contains("&lt;/script&gt;&lt;script&gt;document.title='taken'"), "the remark is shown");
    assert!(!document.contains("<title>taken") && !document.contains("<img"));
}

#[test]
fn page_reports_omitted_packets() {
    let scratch = Scratch::new("limit");
    let page = scratch.path("page.html");
    let output = dump(&["--html", &page, "--limit", "10", "--opcode", "fetch_add", &capture("lossy_atomic.pcap")]);
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("1591 RoCEv2 packets"));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("The first 10 packets are shown; "));
    assert!(html.contains(" packets do not pass the filters of the command line"));
    assert_eq!(html.matches("\"FETCH_ADD psn=").count(), 10);
}

#[test]
fn unwritable_page_is_an_error_with_its_path() {
    let output = dump(&["--html", "/dev/null/page.html", &capture("rping.pcap")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write /dev/null/page.html"));
}
