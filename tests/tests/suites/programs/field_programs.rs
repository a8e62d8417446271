//! Runs Debian's qperf, fio, dapltest and QEMU's live migration over both links, unmodified. Each
//! connects through librdmacm.

use roxe_tests::pair::{self, Launch, Outcome, Program};
use roxe_tests::rdmacm::local;
use roxe_tests::report::{self, Check, Verdict};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use std::{env, fs, process};

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Tests of qperf that take a second each. Its UC and UD tests set no GRH, so they cannot work over
/// RoCE, and Debian's qperf has no XRC. `ver_*` verifies the results of atomics.
const QPERF: [&str; 12] = [
    "rc_bw",
    "rc_bi_bw",
    "rc_lat",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// Tests of dapltest: transactions with validated bytes (`-V`), and measurements.
const DAPLTEST: [&str; 5] = [
    "-T T -i 100 -t 1 -w 2 -V client SR 256 server SR 256",
    "-T T -i 100 -t 4 -w 4 -V client SR 256 server RW 4096 2 server SR 256 client SR 256 server RR 4096 server SR 256 \
     client SR 256 server SR 256",
    "-T T -i 20 -t 2 -w 2 -V -P client SR 65536 4 server SR 65536 4",
    "-T P -i 1000 -p 16 -m p RW 4096 1",
    "-T P -i 1000 -p 1 -m b RR 65536 2",
];

/// dapl's name of the loopback interface, which [`Registry`] defines.
const ADAPTER: &str = "ofa-v2-lo";

/// Number of bytes that fio transfers.
const FIO_BYTES: u64 = 8 << 20;
/// Bytes of each of fio's messages.
const FIO_BLOCK: u64 = 64 << 10;

pub(crate) fn main() -> ExitCode {
    let mut checks = Vec::new();
    for link in ["auto", "udp"] {
        for test in QPERF {
            checks.push(Check::new(format!("qperf {test}, link {link}"), move || qperf(link, test)));
        }
        for verb in ["write", "read"] {
            checks.push(Check::new(format!("fio verb={verb}, link {link}"), move || fio_memory(link, verb)));
        }
        checks.push(Check::new(format!("fio verb=send, verified, link {link}"), move || {
            fio_messages(link, "crc32c", |ends| ends.iter().all(|end| end.ok))
        }));
        checks.push(Check::new(format!("fio verb=send detects changed bytes, link {link}"), move || {
            fio_messages(link, "md5", |[server, _]| !server.ok && server.output.contains("verify failed"))
        }));
        for args in DAPLTEST {
            checks.push(Check::new(format!("dapltest {args}, link {link}"), move || dapltest(link, args)));
        }
        checks.push(Check::new(format!("qemu migrates a guest, link {link}"), move || qemu(link)));
        checks.push(Check::new(format!("dapltest ends its server, link {link}"), move || dapltest_quits(link)));
    }
    report::main(checks)
}

/// Returns a port that no other check of this run uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(19_300);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn program(name: &str, args: &str) -> Program {
    Program { name: name.to_owned(), args: args.split_whitespace().map(str::to_owned).collect() }
}

fn missing(name: &str) -> Option<Verdict> {
    (!pair::installed(name)).then(|| Verdict::not_installed(name))
}

/// Returns true if the client exchanged at least `packets`, and over `link`. Servers are not
/// checked, because some are killed and print no counters.
fn used_link(link: &str, client: &Outcome, packets: u64) -> bool {
    let count = |name| pair::counter(&client.output, name);
    let by_ring = count("sent_by_ring") + count("received_by_ring");
    let all = count("sent_packets") + count("received_packets");
    all >= packets && if link == "udp" { by_ring == 0 } else { by_ring * 2 > all }
}

fn verdict(ends: &[Outcome; 2], good: bool) -> Verdict {
    if good { Verdict::Passed } else { Verdict::Failed(ends.each_ref().map(Outcome::transcript).join("\n")) }
}

/// Runs a test of qperf over librdmacm (`-cm1`). Its server never exits.
fn qperf(link: &str, test: &str) -> Verdict {
    if let Some(verdict) = missing("qperf") {
        return verdict;
    }
    let port = port();
    let server = program("qperf", &format!("-lp {port}"));
    let client = program("qperf", &format!("-lp {port} -t 1 -cm1 127.0.0.1 {test}"));
    let envs = [("ROXE_LINK", link), ("ROXE_STATS", "on")];
    match pair::run_client(&server, &client, &envs, |_| pair::listens(port), TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(ends) => {
            let [_, client] = &ends;
            let unit = ["bw  =", "latency  =", "msg_rate  ="].iter().any(|word| client.output.contains(word));
            let good = client.ok && unit && used_link(link, client, 20);
            verdict(&ends, good)
        }
    }
}

/// Runs server and client of fio's engine `rdma` with these options.
fn fio(link: &str, server: &str, client: &str) -> Result<[Outcome; 2], Verdict> {
    if let Some(verdict) = missing("fio") {
        return Err(verdict);
    }
    let port = port();
    let common = format!("--thread --ioengine=rdma --port={port} --size={FIO_BYTES} --bs={FIO_BLOCK}");
    let server = program("fio", &format!("--name=server {common} --rw=read {server}"));
    let client = program("fio", &format!("--name=client {common} --hostname=127.0.0.1 --rw=write {client}"));
    let envs = [("ROXE_LINK", link), ("ROXE_STATS", "on")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let launch = Launch { envs: envs.to_vec(), ..Launch::default() };
    let ready = || local::listens(process::id(), port);
    pair::run_pair_with([(&server, &launch), (&client, &launch)], &port.to_string(), ready, TIME_LIMIT)
        .map_err(|e| Verdict::Failed(e.to_string()))
}

/// Runs fio with RDMA WRITE or READ. fio verifies neither, because its server is passive and its
/// client does not check the bytes that it reads. So this checks roxe's byte counters.
fn fio_memory(link: &str, verb: &str) -> Verdict {
    match fio(link, "--iodepth=16", &format!("--iodepth=16 --verb={verb}")) {
        Err(verdict) => verdict,
        Ok(ends) => {
            let [_, client] = &ends;
            let moved = pair::counter(&client.output, if verb == "read" { "received_bytes" } else { "sent_bytes" });
            let good = ends.iter().all(|end| end.ok) && moved >= FIO_BYTES && used_link(link, client, 2000);
            verdict(&ends, good)
        }
    }
}

/// Runs fio with SENDs that contain crc32c checksums, which the server verifies as `verify`. fio
/// leaves `rnr_retry` at 0, so that a message without a receive would end the run. The server posts
/// a receive for each message before the client sends, half a second after the connection.
fn fio_messages(link: &str, verify: &str, is_good: impl Fn(&[Outcome; 2]) -> bool) -> Verdict {
    let depth = FIO_BYTES / FIO_BLOCK;
    let server = format!("--iodepth={depth} --verify={verify} --verify_state_save=0");
    match fio(link, &server, &format!("--iodepth={depth} --verb=send --verify=crc32c --verify_state_save=0")) {
        Err(verdict) => verdict,
        Ok(ends) => {
            let good = is_good(&ends) && used_link(link, &ends[1], 2000);
            verdict(&ends, good)
        }
    }
}

/// Migrates a QEMU guest that runs its firmware; most of its memory is zero.
fn qemu(link: &str) -> Verdict {
    if let Some(verdict) = missing("qemu-system-x86_64") {
        return verdict;
    }
    let port = port();
    let machine = "-machine q35,accel=tcg -m 64 -display none -serial none -nodefaults";
    let shell = |script: String| Program { name: "sh".to_owned(), args: vec!["-c".to_owned(), script] };
    let server = program("qemu-system-x86_64", &format!("{machine} -monitor none -incoming rdma:127.0.0.1:{port}"));
    let commands = format!("printf 'migrate rdma:127.0.0.1:{port}\\ninfo migrate\\nquit\\n'");
    let client = format!("{commands} | qemu-system-x86_64 {machine} -monitor stdio");
    let envs = [("ROXE_LINK", link), ("ROXE_STATS", "on")];
    let ready = |_: &str| local::listens(process::id(), port);
    match pair::run_client(&server, &shell(client), &envs, ready, TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(ends) => {
            let [_, client] = &ends;
            let is_done = client.output.contains("Migration status: completed");
            let moved = pair::counter(&client.output, "sent_bytes");
            verdict(&ends, client.ok && is_done && moved > 1 << 20 && used_link(link, client, 100))
        }
    }
}

/// File that describes [`ADAPTER`] to dapl, in a temporary folder.
struct Registry(std::path::PathBuf);

impl Registry {
    fn new(port: u16) -> std::io::Result<Self> {
        let file = env::temp_dir().join(format!("roxe-dat-{}-{port}.conf", process::id()));
        let line = format!("{ADAPTER} u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"lo 0\" \"\"\n");
        fs::write(&file, line)?;
        Ok(Self(file))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // A leftover file is harmless.
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs server and client of dapltest. Unless `server_ends`, kills the server after the client.
fn dapl(link: &str, args: &str, server_ends: bool) -> Result<[Outcome; 2], Verdict> {
    if let Some(verdict) = missing("dapltest") {
        return Err(verdict);
    }
    let port = port();
    let registry = Registry::new(port).map_err(|e| Verdict::Failed(e.to_string()))?;
    let (kind, rest) = args.split_at(args.match_indices(' ').nth(1).map_or(args.len(), |(at, _)| at));
    let server = program("dapltest", &format!("-T S -D {ADAPTER} -n {port}"));
    let client = program("dapltest", &format!("{kind} -s 127.0.0.1 -D {ADAPTER} -n {port}{rest}"));
    let file = registry.0.display().to_string();
    let envs = [("ROXE_LINK", link), ("ROXE_STATS", "on"), ("DAT_OVERRIDE", &file)];
    let envs = envs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let launch = Launch { envs, ..Launch::default() };
    let programs = [(&server, &launch), (&client, &launch)];
    let (tag, ready) = (port.to_string(), || local::listens(process::id(), port));
    let ends = match server_ends {
        true => pair::run_pair_with(programs, &tag, ready, TIME_LIMIT),
        false => pair::run_against(programs, &tag, ready, TIME_LIMIT),
    };
    ends.map_err(|e| Verdict::Failed(e.to_string()))
}

/// Checks the client's output, because the client always exits with 0.
fn dapltest(link: &str, args: &str) -> Verdict {
    match dapl(link, args, false) {
        Err(verdict) => verdict,
        Ok(ends) => {
            let [_, client] = &ends;
            let has_result = ["Total WQE", "raw: "].iter().any(|word| client.output.contains(word));
            let wrong = ["rror", "Warning", "mismatch"].iter().any(|word| client.output.contains(word));
            let good = client.ok && has_result && !wrong && used_link(link, client, 200);
            verdict(&ends, good)
        }
    }
}

fn dapltest_quits(link: &str) -> Verdict {
    match dapl(link, "-T Q", true) {
        Err(verdict) => verdict,
        Ok(ends) => {
            let good = ends.iter().all(|end| end.ok) && ends[0].output.contains("Exiting");
            verdict(&ends, good)
        }
    }
}
