//! Runs stock programs with `ROXE_FAULTS` and `ROXE_CAPTURE`, and lets tshark check the captures.

use roxe_tests::files::Scratch;
use roxe_tests::pair::{self, Outcome, Program};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::{build, perftest, tshark};
use roxe_transport::fault::Rules;
use roxe_wire::capture::{Direction, frames, ip_packet, write_interface, write_packet, write_section};
use roxe_wire::capture::{Frame, Outgoing};
use roxe_wire::opcode::Service;
use roxe_wire::{Header, NetHeader, Opcode, Operation, Packet, icrc};
use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TIME_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn main() -> ExitCode {
    let mut checks = fault_checks();
    checks.push(Check::new("equal seeds make equal decisions, different seeds do not", same_seed));
    checks.push(Check::new("two processes with one capture name write two files", one_name));
    checks.push(Check::new("killed processes leave complete captures", killed_processes));
    checks.push(Check::new("roxe faults replaces the rules of a running program", rules_are_replaced));
    checks.push(Check::new("wrong rules and file names are reported", errors_are_reported));
    checks.push(Check::new("tshark reports wrong checksums", tshark_complains));
    checks.push(Check::new("tshark parses every kind of packet like roxe", tshark_agrees));
    report::main(checks)
}

type CheckResult = Result<(), String>;

/// Creates a folder for a check.
fn scratch() -> Scratch {
    Scratch::new("faults").unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the files in a folder.
fn files(folder: &Scratch) -> Vec<PathBuf> {
    let entries = fs::read_dir(&**folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// One packet of a capture.
struct CapturedPacket {
    direction: Direction,
    comment: String,
    net: NetHeader,
    bytes: Vec<u8>,
}

impl CapturedPacket {
    fn new(frame: &Frame<'_>) -> Result<Self, String> {
        let ip = ip_packet(frame.link, frame.data).ok_or("a frame without IP")?;
        let (net, payload) = NetHeader::parse_ip(ip).map_err(|e| e.to_string())?;
        let direction = frame.direction.ok_or("a frame without direction")?;
        if !frame.comment.starts_with("qp 0x") {
            return Err(format!("comment {:?}", frame.comment));
        }
        Ok(Self { direction, comment: frame.comment.to_owned(), net, bytes: payload.to_vec() })
    }

    /// Checks that the ICRC is right, or that the comment reports the damage. The other side's
    /// rules damage incoming packets.
    fn check(&self) -> CheckResult {
        let damaged = match self.direction {
            Direction::Outbound => self.comment.contains("corrupted"),
            Direction::Inbound => self.comment.contains("icrc wrong") || self.comment.contains("malformed"),
        };
        if icrc::verify(&self.net, &self.bytes) == damaged {
            return Err(format!("ICRC right: {}; comment {:?}", !damaged, self.comment));
        }
        Ok(())
    }
}

/// Reads and checks the packets of a capture.
fn read(file: &Path) -> Result<Vec<CapturedPacket>, String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let bytes = fs::read(file).map_err(|e| at(&e))?;
    let mut packets = Vec::new();
    for frame in frames(&bytes).map_err(|e| at(&e))? {
        let packet = CapturedPacket::new(&frame.map_err(|e| at(&e))?).map_err(|e| at(&e))?;
        packet.check().map_err(|e| at(&format_args!("packet {}: {e}", packets.len() + 1)))?;
        packets.push(packet);
    }
    Ok(packets)
}

/// Checks that tshark has no warning about a capture and reads the same fields, if tshark is
/// installed.
fn check_with_tshark(file: &Path) -> CheckResult {
    if !tshark::installed() {
        return Ok(());
    }
    match tshark::complaints(file)?.as_slice() {
        [] => tshark::compare(file).map(drop),
        [first, ..] => Err(format!("{}: tshark: {first}", file.display())),
    }
}

/// Returns a port that no other check of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_300);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn program(name: &str, args: &str) -> Program {
    Program { name: name.to_owned(), args: args.split_whitespace().map(str::to_owned).collect() }
}

/// Returns a server, its client, and their port.
fn server_and_client(tool: &str, args: &str) -> (Program, Program, u16) {
    let port = port();
    let server = program(tool, &format!("{args} -p {port}"));
    let client = program(tool, &format!("{args} -p {port} 127.0.0.1"));
    (server, client, port)
}

fn run_pair(tool: &str, args: &str, envs: &[(&str, &str)], limit: Duration) -> Result<[Outcome; 2], String> {
    let (server, client, port) = server_and_client(tool, args);
    pair::run_pair(&server, &client, port, envs, limit).map_err(|e| e.to_string())
}

/// Returns the checks of programs that must succeed with these rules, whose captures must have
/// comments with these words.
fn fault_checks() -> Vec<Check> {
    let rc = "-g 0 -c -n 200";
    let mut checks = Vec::new();
    for (tool, args, rules, effects) in [
        ("ibv_rc_pingpong", rc, "drop 3% op=REQUEST", &["dropped"][..]),
        ("ibv_rc_pingpong", rc, "duplicate 5%", &["duplicated", "copy"]),
        ("ibv_rc_pingpong", rc, "reorder 3% by=500us", &["delayed"]),
        ("ibv_rc_pingpong", rc, "delay 2% by=100us..1ms tx", &["delayed"]),
        ("ibv_rc_pingpong", rc, "corrupt payload 2%; corrupt header 1% op=REQUEST", &["corrupted"]),
        ("ibv_rc_pingpong", rc, "corrupt icrc rx op=SEND_LAST nth=3,5", &["corrupted"]),
        ("ibv_rc_pingpong", rc, "ecn 20%", &["marked CE"]),
        ("ibv_rc_pingpong", rc, "rnr msg=5..7 times=3", &["no receive"]),
        ("ibv_rc_pingpong", rc, "nak psn_sequence 3%; nak 0x21 2%; cnp 5%", &[": forged", "after a forged packet"]),
        (
            "ibv_rc_pingpong",
            "-g 1 -c -n 200",
            "drop 2% op=REQUEST; duplicate 3%; ecn 5%",
            &["dropped", "copy", "marked CE"],
        ),
        ("ibv_srq_pingpong", "-g 0 -c -n 200 -q 4", "drop 2% op=REQUEST; duplicate 2%", &["dropped", "copy"]),
        ("ibv_ud_pingpong", "-g 0 -c -n 200 -s 1024", "reorder 3% by=200us; ecn 5%", &["delayed", "marked CE"]),
        ("ibv_uc_pingpong", "-g 0 -c -n 200 -s 1000", "reorder 3% by=200us", &["delayed"]),
    ] {
        checks.push(fault_check(tool, args, rules, effects, check_iterations));
    }
    let all = "drop 1%; duplicate 1%; reorder 2%; corrupt payload 0.5%";
    for tool in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        let size = if tool == "ib_atomic_bw" { "" } else { "-s 20000" };
        checks.push(fault_check(
            tool,
            &format!("-F -x 0 -n 300 -u 18 {size}"),
            all,
            &["dropped", "copy", "delayed"],
            check_figures,
        ));
    }
    checks.push(fault_check("ib_send_bw", "-F -x 0 -n 1000 -c UD -s 1000", "duplicate 3%", &["copy"], check_figures));
    checks
}

/// Checks the output of a pingpong: it ends with "N iters in S seconds", and with `-c` it prints
/// "invalid data" if bytes differ.
fn check_iterations(output: &str) -> CheckResult {
    if output.contains("invalid data") {
        return Err("the received bytes differ".into());
    }
    if output.contains("iters in") { Ok(()) } else { Err("no result line".into()) }
}

fn check_figures(output: &str) -> CheckResult {
    if perftest::rows(output).is_empty() { Err("no result line".into()) } else { Ok(()) }
}

fn fault_check(
    tool: &'static str,
    args: &str,
    rules: &'static str,
    effects: &'static [&'static str],
    judge: fn(&str) -> CheckResult,
) -> Check {
    let args = args.trim().to_owned();
    Check::new(format!("{tool} {args} under '{rules}'"), move || {
        if !pair::installed(tool) {
            return Verdict::not_installed(tool);
        }
        run_with_faults(tool, &args, rules, effects, judge).into()
    })
}

fn run_with_faults(
    tool: &str,
    args: &str,
    rules: &str,
    effects: &[&str],
    judge: fn(&str) -> CheckResult,
) -> CheckResult {
    let scratch = scratch();
    let capture = scratch.join("%p.pcapng");
    let rules = format!("seed=1; {rules}").parse::<Rules>().map_err(|e| e.to_string())?.to_string();
    let envs = [("ROXE_FAULTS", rules.as_str()), ("ROXE_CAPTURE", &capture.to_string_lossy())];
    let [server, client] = run_pair(tool, args, &envs, TIME_LIMIT)?;
    if !server.ok || !client.ok {
        return Err(format!("{}\n{}", server.transcript(), client.transcript()));
    }
    // The final report may follow an unfinished line of the program.
    let output = client.output.replace("roxe: ", "\nroxe: ");
    judge(&output).map_err(|why| format!("{why}\n{}", client.transcript()))?;
    for outcome in [&server, &client] {
        if !outcome.output.contains(&format!("roxe: faults: {rules}\n")) || !outcome.output.contains(" faults\n") {
            return Err(format!("the rules or their effects are not printed\n{}", outcome.transcript()));
        }
    }
    check_files(&files(&scratch), effects)
}

/// Checks that there are two valid captures, whose comments name every effect.
fn check_files(files: &[PathBuf], effects: &[&str]) -> CheckResult {
    if files.len() != 2 {
        return Err(format!("captures: {files:?}"));
    }
    let (mut comments, mut directions) = (Vec::new(), Vec::new());
    for file in files {
        let packets = read(file)?;
        if packets.is_empty() {
            return Err(format!("{}: no packet", file.display()));
        }
        directions.extend(packets.iter().map(|packet| packet.direction));
        comments.extend(packets.into_iter().map(|packet| packet.comment));
        check_with_tshark(file)?;
    }
    if ![Direction::Inbound, Direction::Outbound].iter().all(|direction| directions.contains(direction)) {
        return Err("all packets have one direction".into());
    }
    match effects.iter().find(|effect| !comments.iter().any(|comment| comment.contains(**effect))) {
        Some(effect) => Err(format!("no packet is {effect:?}")),
        None => Ok(()),
    }
}

/// Returns for each process whether it marked its packets, in the order of the packets.
fn decisions(seed: u64) -> Result<Vec<Vec<bool>>, String> {
    let scratch = scratch();
    let (capture, rules) = (scratch.join("%p.pcapng"), format!("seed={seed}; ecn tx 20%"));
    let envs = [("ROXE_FAULTS", rules.as_str()), ("ROXE_CAPTURE", &capture.to_string_lossy())];
    let [server, client] = run_pair("ibv_rc_pingpong", "-g 0 -c -s 64 -n 150", &envs, TIME_LIMIT)?;
    if !server.ok || !client.ok {
        return Err(format!("{}\n{}", server.transcript(), client.transcript()));
    }
    let marked = |packets: Vec<CapturedPacket>| {
        let sent = packets.into_iter().filter(|packet| packet.direction == Direction::Outbound);
        sent.map(|packet| packet.comment.contains("marked CE")).collect()
    };
    files(&scratch).iter().map(|file| read(file).map(marked)).collect()
}

/// The number of acknowledgements, and thus of packets, depends on time. The decisions about equal
/// packets do not.
fn same_seed() -> Verdict {
    if !pair::installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let agree = |a: &[bool], b: &[bool]| a.iter().zip(b).all(|(a, b)| a == b);
    let compare = || {
        let (first, again, other) = (decisions(7)?, decisions(7)?, decisions(8)?);
        let [one, ..] = first.as_slice() else { return Err("no capture".to_owned()) };
        if one.len() < 150 || !one.contains(&true) {
            return Err(format!("{} packets, or none of them marked", one.len()));
        }
        if !first.iter().chain(&again).all(|run| agree(run, one)) {
            return Err("one seed made different decisions".into());
        }
        if other.iter().all(|run| agree(run, one)) { Err("two seeds made equal decisions".into()) } else { Ok(()) }
    };
    compare().into()
}

fn one_name() -> Verdict {
    if !pair::installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let share = || {
        let scratch = scratch();
        let capture = scratch.join("both.pcapng");
        let envs = [("ROXE_CAPTURE", &*capture.to_string_lossy())];
        let [server, client] = run_pair("ibv_rc_pingpong", "-g 0 -c -n 100", &envs, TIME_LIMIT)?;
        let (first, second) =
            if client.output.contains("another process writes") { (server, client) } else { (client, server) };
        if first.output.contains("another process writes") || !second.output.contains("another process writes") {
            return Err(format!("{}\n{}", first.transcript(), second.transcript()));
        }
        let files = files(&scratch);
        if !files.contains(&capture) {
            return Err(format!("captures: {files:?}"));
        }
        check_files(&files, &[])
    };
    share().into()
}

/// A process of `ibv_rc_pingpong`, killed when dropped.
struct PingPong {
    child: Child,
    log: PathBuf,
}

impl PingPong {
    /// Starts `ibv_rc_pingpong` under `roxe run`; its output goes to a file of `folder`.
    fn start(folder: &Path, options: &[&str], args: &str) -> Result<Self, String> {
        let log = folder.join(format!("{}.log", args.replace(' ', "_")));
        let output = File::create(&log).map_err(|e| e.to_string())?;
        let errors = output.try_clone().map_err(|e| e.to_string())?;
        let mut command = Command::new(build::roxe());
        command.arg("run").args(options).args(["--", "ibv_rc_pingpong", "-g", "0"]).args(args.split(' '));
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(|e| e.to_string())?;
        Ok(Self { child, log })
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Runs `roxe faults` with these words once the device is open. Returns its output.
    ///
    /// # Errors
    /// Its standard error if it fails.
    fn faults(&mut self, words: &[&str]) -> Result<String, String> {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            let mut command = Command::new(build::roxe());
            let command = command.arg("faults").arg(self.child.id().to_string()).args(words);
            let output = command.output().map_err(|e| e.to_string())?;
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() {
                return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
            }
            if !errors.contains("has no device of roxe open") || self.has_ended() || Instant::now() > deadline {
                return Err(errors);
            }
            thread::sleep(pair::POLL_INTERVAL);
        }
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        // Fails if the program has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `condition` is true; fails with `name` after [`TIME_LIMIT`].
fn until(mut condition: impl FnMut() -> Result<bool, String>, name: &str) -> CheckResult {
    let deadline = Instant::now() + TIME_LIMIT;
    while !condition()? {
        if Instant::now() > deadline {
            return Err(format!("missing: {name}"));
        }
        thread::sleep(pair::POLL_INTERVAL);
    }
    Ok(())
}

/// Replaces the rules of a running program: none, a rule about packets, none, and a rule about
/// calls, which ends the program.
fn rules_are_replaced() -> Verdict {
    if !pair::installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let run = || {
        let (scratch, port) = (scratch(), port());
        // More messages than the time limit allows.
        let args = format!("-n 100000000 -p {port}");
        let mut server = PingPong::start(&scratch, &["--faults", "drop rx nth=4000000000"], &args)?;
        until(|| Ok(pair::listens(port) || server.has_ended()), "a server that listens")?;
        let mut client = PingPong::start(&scratch, &["--faults", "none"], &format!("{args} 127.0.0.1"))?;
        let answers = |found: Result<String, String>, begin: &str| match found? {
            found if found.starts_with(begin) => Ok(()),
            found => Err(format!("{found:?} does not begin with {begin}")),
        };
        let refuses = |found: Result<String, String>, why: &str| match found {
            Err(found) if found.contains(why) => Ok(()),
            found => Err(format!("{found:?} is not a refusal because of {why}")),
        };
        answers(client.faults(&[]), "none")?;
        answers(client.faults(&["delay by=1ms tx"]), "delay by=1ms tx: ")?;
        let applied = || Ok(!client.faults(&[])?.ends_with(" 0 faults"));
        until(applied, "a delayed packet")?;
        refuses(client.faults(&["delay by=1ms lost"]), "fault rule 1: \"lost\" is not a word of a packet rule")?;
        answers(client.faults(&[]), "delay by=1ms tx: ")?;
        answers(client.faults(&["@/dev/null"]), "none")?;
        refuses(server.faults(&["fail post_send"]), "started with rules about packets only")?;
        // The client may end before it has answered.
        _ = client.faults(&["fail post_send nth=1"]);
        until(|| Ok(client.has_ended()), "the end of the client after a failed ibv_post_send")?;
        let log = fs::read_to_string(&client.log).map_err(|e| e.to_string())?;
        for line in ["; none\n", "; delay by=1ms tx\n", "roxe: faults: delay by=1ms tx: ", "Couldn't post send"] {
            if !log.contains(line) {
                return Err(format!("{line:?} is missing in {log}"));
            }
        }
        let mut other = PingPong::start(&scratch, &[], &format!("-p {}", self::port()))?;
        refuses(other.faults(&["none"]), "started without fault rules")?;
        let rule = ["--faults", "slow post_send by=1us nth=4000000000"];
        let mut other = PingPong::start(&scratch, &rule, &format!("-p {}", self::port()))?;
        refuses(other.faults(&["drop 1%"]), "started with rules about calls only")
    };
    run().into()
}

/// Bytes of a capture with ten thousand packets, which tshark can check in a second.
const CAPTURED: u64 = 2 << 20;

/// Bytes of the smallest page of Linux.
const PAGE: usize = 4096;

/// Kills server and client while they run and once each has captured [`CAPTURED`] bytes.
fn killed_processes() -> Verdict {
    if !pair::installed("ib_send_bw") {
        return Verdict::not_installed("ib_send_bw");
    }
    let kill = || {
        let scratch = scratch();
        let capture = scratch.join("%p.pcapng");
        let envs = [("ROXE_CAPTURE", &*capture.to_string_lossy())];
        let is_long = |file: &PathBuf| fs::metadata(file).is_ok_and(|file| file.len() >= CAPTURED);
        let enough = || files(&scratch).iter().filter(|file| is_long(file)).count() == 2;
        let (server, client, port) = server_and_client("ib_send_bw", "-F -x 0 -D 60 -s 64 -r 4 -t 4");
        let ends = pair::kill_pair(&server, &client, port, &envs, enough, TIME_LIMIT).map_err(|e| e.to_string())?;
        if !enough() || !ends.iter().all(|end| end.output.ends_with(pair::KILLED)) {
            return Err(format!("not killed while running\n{}\n{}", ends[0].transcript(), ends[1].transcript()));
        }
        files(&scratch).iter().try_for_each(|file| remove_partial_block(file))?;
        check_files(&files(&scratch), &[])
    };
    kill().into()
}

/// Removes a partial block at the end of a capture if it ends at a page boundary, where the kernel
/// may cut the last write of a killed process. A partial block elsewhere is an error.
fn remove_partial_block(path: &Path) -> Result<(), String> {
    let bytes = fs::read(path).map_err(|e| e.to_string())?;
    let len =
        |at: usize| bytes.get(at + 4..at + 8).and_then(|len| Some(u32::from_le_bytes(len.try_into().ok()?) as usize));
    let mut end = 0;
    while let Some(next) = len(end).map(|len| end + len).filter(|next| (end + 1..=bytes.len()).contains(next)) {
        end = next;
    }
    if end == bytes.len() {
        return Ok(());
    }
    if !bytes.len().is_multiple_of(PAGE) {
        return Err(format!("{}: {end} of {} bytes are complete blocks", path.display(), bytes.len()));
    }
    let file = File::options().write(true).open(path);
    file.and_then(|file| file.set_len(end as u64)).map_err(|e| e.to_string())
}

fn errors_are_reported() -> Verdict {
    let fails = |envs: &[(&str, &str)], words: &[&str]| {
        let outcome = pair::run(&program("ibv_devinfo", ""), envs, TIME_LIMIT).map_err(|e| e.to_string())?;
        let missing = words.iter().find(|word| !outcome.output.contains(**word));
        match missing {
            Some(word) => Err(format!("{envs:?}: no {word:?} in\n{}", outcome.transcript())),
            None if outcome.ok && !envs.is_empty() => Err(format!("{envs:?}: succeeded\n{}", outcome.transcript())),
            None => Ok(()),
        }
    };
    let explain = || {
        if pair::installed("ibv_devinfo") {
            fails(&[("ROXE_FAULTS", "lose 3%")], &["roxe: wrong ROXE_FAULTS: lose 3%"])?;
            fails(&[("ROXE_FAULTS", "@/dev/null/rules")], &["cannot read the file /dev/null/rules"])?;
            let file = "/dev/null/a.pcapng";
            fails(
                &[("ROXE_CAPTURE", file)],
                &["roxe: cannot write the capture file /dev/null/a.pcapng (ROXE_CAPTURE)"],
            )?;
        }
        let refused = Command::new(build::roxe()).args(["run", "--faults", "drop 200%", "--", "true"]).output();
        let refused = refused.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&refused.stderr);
        if refused.status.code() != Some(125) || !text.contains("200%") {
            return Err(format!("roxe run --faults: {:?} {text}", refused.status));
        }
        Ok(())
    };
    explain().into()
}

fn no_tshark() -> Verdict {
    Verdict::not_installed("tshark")
}

/// Returns a capture of these packets, in one direction over IPv4 and in the other over IPv6.
fn capture_of(packets: &[Vec<u8>]) -> Vec<u8> {
    let v4 = |last| Ipv4Addr::new(10, 0, 0, last).into();
    let v6 = |last| std::net::IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)).into();
    let mut file = Vec::new();
    write_section(&mut file, "roxe-tests");
    write_interface(&mut file, "roxe0");
    for (number, bytes) in (0u64..).zip(packets) {
        for (src, dst, ident) in [(v4(1), v4(2), number as u16), (v6(2), v6(1), 0)] {
            let net = NetHeader { src, dst, src_port: 0xc012, traffic_class: 2, hop_limit: 64, flow_label: 0, ident };
            let mut payload = bytes.clone();
            icrc::seal(&net, &mut payload);
            let comment = format!("qp 0x11 packet {number}");
            let packet = Outgoing {
                interface: 0,
                timestamp_ns: 1_700_000_000_000_000_000 + number,
                direction: Direction::Outbound,
                net,
                payload: &payload,
                comment: &comment,
            };
            write_packet(&mut file, &packet);
        }
    }
    file
}

/// Returns a packet of every opcode that roxe can send and tshark knows, with a different value in
/// every header field.
fn every_kind() -> Vec<Vec<u8>> {
    let filler: Vec<u8> = (0..120u32).map(|n| (n * 37 + 11) as u8).collect();
    let packet = |opcode: u8| {
        Opcode::from_u8(opcode).filter(|opcode| is_known_to_tshark(*opcode))?;
        let mut bytes = filler.clone();
        // The BTH has all flags but no pad, the default partition, and the AckReq bit.
        bytes[..4].copy_from_slice(&[opcode, 0xc0, 0xff, 0xff]);
        bytes[4] = 0;
        bytes[8] |= 0x80;
        let packet = (16..bytes.len()).rev().find_map(|len| Packet::parse(bytes.get(..len)?).ok())?;
        Some(emit(&packet.header, packet.payload))
    };
    (0..=u8::MAX).filter_map(packet).collect()
}

/// Returns true if Debian's tshark can dissect the opcode: it knows no XRC, FLUSH and ATOMIC WRITE.
fn is_known_to_tshark(opcode: Opcode) -> bool {
    opcode.service() != Service::Xrc && !matches!(opcode.operation(), Operation::Flush | Operation::AtomicWrite)
}

fn emit(header: &Header, payload: &[u8]) -> Vec<u8> {
    let covered = header.padded_len(payload.len());
    let mut bytes = vec![0; covered + icrc::LEN];
    if let Some(room) = header.emit(payload.len(), &mut bytes[..covered]) {
        room.copy_from_slice(payload);
    }
    bytes
}

/// Checks that tshark detects a wrong IPv4 header checksum and a wrong UDP checksum.
fn tshark_complains() -> Verdict {
    if !tshark::installed() {
        return no_tshark();
    }
    let complain = || {
        let scratch = scratch();
        let good = capture_of(&every_kind()[..1]);
        let find = |bytes: &[u8]| good.windows(bytes.len()).position(|window| window == bytes).ok_or("no address");
        // The IPv4 checksum ends before the source address. The UDP checksum is 6 bytes after the
        // addresses.
        let v4 = find(&[10, 0, 0, 1, 10, 0, 0, 2])? - 1;
        let v6 = find(&Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets())? + 16 + 7;
        for (header, at) in [("IPv4 header", v4), ("UDP over IPv6", v6)] {
            let (mut bad, file) = (good.clone(), scratch.join("bad.pcapng"));
            bad[at] ^= 1;
            fs::write(&file, bad).map_err(|e| e.to_string())?;
            if tshark::complaints(&file)?.len() != 1 {
                return Err(format!("a wrong checksum of the {header} is not reported"));
            }
        }
        Ok(())
    };
    complain().into()
}

fn tshark_agrees() -> Verdict {
    if !tshark::installed() {
        return no_tshark();
    }
    let agree = || {
        let (scratch, kinds) = (scratch(), every_kind());
        let file = scratch.join("kinds.pcapng");
        fs::write(&file, capture_of(&kinds)).map_err(|e| e.to_string())?;
        check_with_tshark(&file)?;
        match tshark::compare(&file)? {
            compared if kinds.len() >= 38 && compared == 2 * kinds.len() => Ok(()),
            compared => Err(format!("{} kinds, {compared} packets compared", kinds.len())),
        }
    };
    agree().into()
}
