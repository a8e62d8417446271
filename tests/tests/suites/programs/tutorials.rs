//! Runs `tests/clients/tutorials`, which makes the same calls as the programs of a well-known
//! tutorial on librdmacm ("The geek in the corner"): one server, a hundred clients one after the
//! other, over both links. Each process must print its last line, although it frees everything at
//! DISCONNECTED.

use roxe_tests::cc::{self, Compiled};
use roxe_tests::pair::{self, Launch, Outcome, Program};
use roxe_tests::rdmacm::local;
use roxe_tests::report::{self, Check, Verdict};
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use std::{fs, io};

const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Size of the copied file in bytes: several pieces, the last one shorter.
const FILE_BYTES: usize = 2_500_000;

/// Program, number of clients, and beginning of the line that both sides print for a connection.
const PROGRAMS: [(&str, usize, &str); 4] = [
    ("basic", 100, "received: message of the"),
    ("write", 100, "remote buffer: message of the"),
    ("read", 100, "remote buffer: message of the"),
    ("file", 20, "disconnected"),
];

pub(crate) fn main() -> ExitCode {
    let mut checks = Vec::new();
    for link in ["auto", "udp"] {
        for (program, clients, line) in PROGRAMS {
            let name = format!("tutorial {program}, {clients} clients, link {link}");
            checks.push(Check::new(name, move || run(link, program, clients, line)));
        }
    }
    report::main(checks)
}

fn run(link: &str, program: &str, clients: usize, line: &str) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    let tag = format!("tutorials-{program}-{link}");
    let compiled = Compiled::new("gcc", "tutorials/tutorials.c", &["rdmacm", "ibverbs"], &tag);
    let ends = compiled.and_then(|compiled| exchange(link, program, clients, &compiled).map_err(|e| e.to_string()));
    match ends {
        Err(why) => Verdict::Failed(why),
        Ok(ends) => match judge(link, clients, line, &ends) {
            Ok(()) => Verdict::Passed,
            Err(why) => {
                let [server, client] = &ends;
                let last =
                    |end: &Outcome| end.output.lines().rev().take(8).map(|l| format!("\n{l}")).collect::<String>();
                Verdict::Failed(format!("{why}\nserver, from its end:{}\nclient:{}", last(server), last(client)))
            }
        },
    }
}

/// Runs one server and all its clients.
fn exchange(link: &str, program: &str, clients: usize, compiled: &Compiled) -> io::Result<[Outcome; 2]> {
    static NEXT: AtomicU16 = AtomicU16::new(19_700);
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    let (folder, path) = (compiled.folder().display(), compiled.program.display());
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| ((at * 31) >> 5).to_le_bytes()[0]).collect();
    fs::write(compiled.folder().join("original"), bytes)?;
    // Check the server's copy and remove it before the next client.
    let check_copy = if program == "file" { "cmp original original.copy && rm original.copy" } else { "true" };
    let shell = |script: String| Program { name: "sh".to_owned(), args: vec!["-c".to_owned(), script] };
    let server = shell(format!("cd {folder} && exec {path} {program} server {port} {clients}"));
    let client = shell(format!(
        "cd {folder} && for client in $(seq {clients}); do \
         {path} {program} client 127.0.0.1 {port} original && {check_copy} || exit 1; done"
    ));
    let envs = [("ROXE_LINK", link), ("ROXE_STATS", "on")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let launch = Launch { envs: envs.to_vec(), ..Launch::default() };
    let ready = || local::listens(process::id(), port);
    pair::run_pair_with([(&server, &launch), (&client, &launch)], &port.to_string(), ready, TIME_LIMIT)
}

fn judge(link: &str, clients: usize, line: &str, ends: &[Outcome; 2]) -> Result<(), String> {
    for (role, end) in ["server", "clients"].iter().zip(ends) {
        let printed = end.output.lines().filter(|printed| printed.starts_with(line)).count();
        if !end.ok || printed != clients {
            return Err(format!("the {role} printed {line:?} for {printed} of {clients} connections"));
        }
        let by_ring = pair::counter(&end.output, "sent_by_ring");
        // A connection with one message each way may end before its ring is agreed; a file takes
        // longer.
        let is_expected = if link == "udp" { by_ring == 0 } else { by_ring > 0 || line != "disconnected" };
        if !is_expected {
            return Err(format!("{by_ring} packets of the {role} went through shared memory"));
        }
    }
    Ok(())
}
