//! Runs the catalogue of conformance cases against an agent on this host over UDP sockets. Cases
//! that need two hosts (IPv6 on both sides, connections to the near side) run over a veth pair.
//! Also checks the report and capture of `roxe drill` for a deviating card.
//!
//! `cargo test -p roxe-tests --test suites -- conform [--all] [WORD...]`: without `--all` only
//! folders with fast scripts, and over the veth pair only scripts that need it.

use roxe_tests::build;
use roxe_tests::guest::link;
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::veth::{Interface, Veth};
use serde_json::Value;
use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::{fs, thread};

/// Folders of `tests/conform` that rarely wait for timers.
const QUICK: [&str; 6] = ["responder/", "congestion/", "xrc/", "windows/", "migration/", "multicast/"];
/// Folders of `tests/conform` that often wait for timers.
const SLOW: [&str; 5] = ["cm/", "requester/", "robustness/", "uc/", "ud/"];

/// Scripts with cases that need two hosts.
const BETWEEN_HOSTS: [&str; 6] = ["cm/active", "cm/connect", "cm/private_data", "cm/stale", "ipv6", "ud/grh"];
/// Address of the agent at the other end of the veth pair.
const FAR: &str = "10.77.0.1";
/// Addresses of the near side. The second one of each IP version sends packets that belong to no
/// connection.
const NEAR: &str = "10.77.0.2,10.77.0.3,fd77::2,fd77::3";

pub(crate) fn main() -> ExitCode {
    let all = report::arguments().any(|word| word == "--all");
    let veth = match link::is_root().then(create_veth).transpose() {
        Ok(veth) => veth,
        Err(e) => {
            println!("FAILED   conform: cannot make two namespaces with a link: {e}");
            return ExitCode::FAILURE;
        }
    };
    let slow = SLOW.into_iter().filter(|_| all);
    let catalogue = QUICK.into_iter().chain(slow).map(|folder| {
        Check::new(format!("conform self {folder}"), move || conforms(&["conform", "self", folder]).map(drop).into())
    });
    let drill = Check::new("drill reports a deviating card and leaves a capture", drill);
    let manager = Check::new("drill reports a deviating connection manager", manager);
    let agent_lost = Check::new("conform names the case in which the agent is lost", agent_lost);
    let unread = Check::new("conform exits quietly when its reader closes the pipe", unread);
    let long = Check::new("packet that exceeds the link MTU is not a failure of the card", long);
    let inline = Check::new("card with less inline data than a script posts is not a failure", little_inline);
    let marks = Check::new("conform sees the TOS of the card's packets", marks);
    let stopped = Check::new("drill continues after SIGSTOP while it waits for packets", stopped);
    let words: &[&str] = if all { &[] } else { &BETWEEN_HOSTS };
    let between = Check::new("conform over a veth pair supports every case", move || match &veth {
        Some(veth) => conforms_between(veth, words),
        None => Verdict::Skipped("needs root: two network namespaces with a link".into()),
    });
    report::main(catalogue.chain([drill, manager, agent_lost, unread, long, inline, marks, stopped, between]).collect())
}

/// Creates a second network namespace, with two addresses of each IP version here and one there.
fn create_veth() -> io::Result<Veth> {
    let end = |name, mac, addresses: &[&str]| Interface {
        name,
        mac,
        addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
    };
    let near = ["10.77.0.2/24", "10.77.0.3/24", "fd77::2/64", "fd77::3/64"];
    let here = end("conform0", "02:00:00:00:77:02", &near);
    let there = end("conform1", "02:00:00:00:77:01", &["10.77.0.1/24", "fd77::1/64"]);
    let veth = Veth::build(&here, &there)?;
    // A path MTU of 4096 needs longer frames.
    veth.set_mtu(&here, &there, 9000)?;
    Ok(veth)
}

fn conforms_between(veth: &Veth, words: &[&str]) -> Verdict {
    let roxe = build::roxe().to_string_lossy().into_owned();
    let listen = format!("{FAR}:0");
    let prefix = veth.prefix();
    let mut agent = Command::new(&prefix[0])
        .args(&prefix[1..])
        .args([&roxe, "run", "--", &roxe, "peer", "--once", "--listen", &listen])
        .envs([("ROXE_LINK", "udp"), ("ROXE_NETDEV", "conform1")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("nsenter can be started");
    let target = match target(&mut agent) {
        Ok(target) => target,
        Err(greeting) => return Verdict::Failed(greeting),
    };
    let words: Vec<_> = ["conform", &target, "--near", NEAR].iter().chain(words).copied().collect();
    let result = conforms(&words);
    agent.kill().and_then(|()| agent.wait()).expect("kill the agent");
    result.and_then(|sums| if sums.contains("unsupported") { Err(sums) } else { Ok(()) }).into()
}

/// Kills an agent in the middle of the catalogue.
fn agent_lost() -> Verdict {
    let mut agent = start(&["run", "--", &build::roxe().to_string_lossy(), "peer", "--listen", "127.0.0.1:0"]);
    let target = match target(&mut agent) {
        Ok(target) => target,
        Err(greeting) => return Verdict::Failed(greeting),
    };
    let mut conform = start(&["conform", &target, "-v", "responder/"]);
    let mut progress = lines(&mut conform);
    let started = progress.by_ref().take(3).count();
    agent.kill().and_then(|()| agent.wait()).expect("kill the agent");
    let rest = progress.count();
    let ended = conform.wait_with_output().expect("wait for roxe conform");
    let text = String::from_utf8_lossy(&ended.stderr);
    let says =
        text.contains("the agent has stopped answering in responder/") && text.contains("more cases were not run");
    if started == 3 && ended.status.code() == Some(1) && says {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{} after {started} and {rest} lines\n{text}", ended.status))
}

/// Runs `conform | head`, whose reader closes the pipe.
fn unread() -> Verdict {
    let mut conform = start(&["conform", "virtual", "-v"]);
    let first = lines(&mut conform).next();
    let ended = conform.wait_with_output().expect("wait for roxe conform");
    let text = String::from_utf8_lossy(&ended.stderr);
    if first.is_some() && ended.status.success() && text.is_empty() {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{}\n{text}", ended.status))
}

fn start(words: &[&str]) -> Child {
    let command = &mut Command::new(build::roxe());
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("roxe can be started")
}

/// Returns the target of an agent, from the first line that it prints.
///
/// # Errors
/// The line, if it has another form.
fn target(agent: &mut Child) -> Result<String, String> {
    let greeting = lines(agent).next().unwrap_or_default();
    match greeting.split(' ').collect::<Vec<_>>()[..] {
        ["listening", address, "token", token] => Ok(format!("peer://{token}@{address}")),
        _ => Err(greeting),
    }
}

fn lines(child: &mut Child) -> impl Iterator<Item = String> {
    BufReader::new(child.stdout.take().expect("take the pipe")).lines().map_while(Result::ok)
}

fn roxe(words: &[&str]) -> Output {
    let output = Command::new(build::roxe()).args(words).output().expect("roxe can be started");
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs `roxe` with these words, and returns the last line if no case failed.
///
/// # Errors
/// Returns the whole output if a case failed.
fn conforms(words: &[&str]) -> Result<String, String> {
    let output = roxe(words);
    let text = String::from_utf8_lossy(&output.stdout);
    let sums = text.lines().last().unwrap_or_default();
    println!("{sums}");
    if output.status.success() && sums.contains(" pass") { Ok(sums.to_owned()) } else { Err(text.into_owned()) }
}

fn drill() -> Verdict {
    let folder = build::target_dir().join("drill");
    fs::create_dir_all(&folder).expect("create the folder");
    let script = folder.join("wrong.drill");
    let text = "title A count that is wrong\npeer qp q\nsend WRITE_ONLY psn=100 ackreq\nexpect ACK psn=100 msn=2\n";
    fs::write(&script, text).expect("write the script");
    let captures = folder.join("captures");
    let words = ["drill", "self", &script.to_string_lossy(), "--captures", &captures.to_string_lossy()];
    let output = roxe(&words);
    let text = String::from_utf8_lossy(&output.stdout);
    let says = text.contains(":4: expect ACK psn=100 msn=2") && text.contains("(msn is 1, not 2)");
    let files: Vec<_> = fs::read_dir(&captures).into_iter().flatten().flatten().collect();
    let dump = files.first().map(|file| roxe(&["dump", &file.path().to_string_lossy()]));
    let dump = dump.map(|dump| String::from_utf8_lossy(&dump.stdout).into_owned()).unwrap_or_default();
    fs::remove_dir_all(&folder).expect("remove the folder");
    let is_complete = dump.contains("2 RoCEv2 packets, 0 of them bad") && dump.contains("# msn is 1, not 2");
    if output.status.code() == Some(1) && says && is_complete {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{}\n{text}\n{dump}", output.status))
}

/// Stops and continues the process, as Ctrl-Z and `fg` do: waiting system calls are interrupted.
fn stopped() -> Verdict {
    let file = build::target_dir().join("stopped.drill");
    fs::write(&file, "title A second without a packet\npeer qp q\nsilence 1s\n").expect("write the script");
    let mut drill = start(&["drill", "self", &file.to_string_lossy()]);
    let stat = format!("/proc/{}/stat", drill.id());
    while drill.try_wait().expect("poll roxe drill").is_none() {
        for (signal, state) in [(libc::SIGSTOP, 'T'), (libc::SIGCONT, 'S')] {
            // SAFETY: the process is a child that is not reaped yet.
            unsafe { libc::kill(drill.id().cast_signed(), signal) };
            // An ended program is a zombie until it is reaped.
            let is_in_state =
                |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with([state, 'Z']));
            while !fs::read_to_string(&stat).is_ok_and(is_in_state) {
                thread::yield_now();
            }
        }
    }
    let ended = drill.wait_with_output().expect("wait for roxe drill");
    fs::remove_file(&file).expect("remove the script");
    if ended.status.success() {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{ended:?}"))
}

/// Checks that the case measures the DSCP of roxe's CNPs, which is 48.
fn marks() -> Verdict {
    let file = build::target_dir().join("marks.json");
    let output = roxe(&["conform", "self", "congestion/cnp_by_rate", "--json", &file.to_string_lossy()]);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let report: Value = serde_json::from_str(&text).unwrap_or_default();
    let cases = report["cases"].as_array().map_or(&[][..], Vec::as_slice);
    let is_dscp = |figure: &&Value| figure["name"] == "cnp_dscp";
    let dscp = |case: &Value| case["figures"].as_array()?.iter().find(is_dscp)?["median"].as_u64();
    let dscps: Vec<_> = cases.iter().map(dscp).collect();
    if output.status.success() && !dscps.is_empty() && dscps.iter().all(|dscp| *dscp == Some(48)) {
        fs::remove_file(&file).expect("remove the script");
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{}: {dscps:?}\n{text}", output.status))
}

/// Runs a script with a packet that is longer than a UDP datagram can be.
fn long() -> Verdict {
    let file = build::target_dir().join("long.drill");
    fs::write(&file, "title A packet of 66000 bytes\npeer qp q\nsend SEND_ONLY psn=100 len=66000\n")
        .expect("write the script");
    let output = roxe(&["drill", "self", &file.to_string_lossy()]);
    fs::remove_file(&file).expect("remove the script");
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && text.contains("unsupported") {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{}\n{text}", output.status))
}

/// Runs a script that posts 400 bytes inline against a card that grants 64.
fn little_inline() -> Verdict {
    let mut conform = Command::new(build::roxe());
    let output = conform.args(["conform", "self", "inline_segments"]).env("ROXE_WEAKEST", "limits").output();
    let output = output.expect("roxe can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && text.contains("2 unsupported: the card grants a queue pair less than 400 bytes") {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{}\n{text}", output.status))
}

/// Checks that scripts with a wrong message, a wrong event, wrong private data and a missing packet
/// fail.
fn manager() -> Verdict {
    const BEGINS: &str = "title A request that is accepted otherwise\npeer listen l\npeer qp q state=RESET\n\
                          send REQ service=l.service data=\"abc\"\n";
    let wrong = [
        ("peer request c of=l\npeer accept c qp=q\nexpect REP remote_id=near.id qpn=q.qpn+1", ":7:", "(qpn is "),
        ("peer request c of=l\npeer reject c\nexpect REP remote_id=near.id", ":7:", "(another message)"),
        ("peer request c of=l\npeer accept c qp=q", ":6:", "no packet after the last step"),
        ("peer request c of=l data=\"abd\"", ":5:", "private data differs from byte 2"),
        ("peer request c of=l\npeer cm c ESTABLISHED within 50ms", ":6:", "received: nothing"),
        ("peer quiet l for 50ms", ":5:", "CONNECT_REQUEST"),
    ];
    let folder = build::target_dir().join("drill-cm");
    fs::create_dir_all(&folder).expect("create the folder");
    let file = |(number, (text, ..)): (usize, &(&str, &str, &str))| {
        let file = folder.join(format!("{number}.drill"));
        fs::write(&file, format!("{BEGINS}{text}\n")).expect("write the script");
        file.to_string_lossy().into_owned()
    };
    let files: Vec<_> = wrong.iter().enumerate().map(file).collect();
    let words: Vec<_> = ["drill", "self"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let output = roxe(&words);
    fs::remove_dir_all(&folder).expect("remove the folder");
    let text = String::from_utf8_lossy(&output.stdout);
    let failures = text.split("FAIL ").filter(|part| part.contains("expected: "));
    let matches = |(part, (_, line, what)): (&str, &(&str, &str, &str))| part.contains(line) && part.contains(what);
    if failures.clone().count() == wrong.len() && failures.zip(&wrong).all(matches) {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{}\n{text}", output.status))
}
