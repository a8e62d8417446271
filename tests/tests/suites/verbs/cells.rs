//! The program `tests/clients/cells` between two roxe processes over the loopback device, and that
//! program judged itself: a client that does one thing wrong must be found out.

use roxe_tests::cc;
use roxe_tests::pair::{self, Outcome, Program};
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// What goes wrong on the way in the checks with faults.
const FAULTS: &str = "drop 1%; duplicate 1%; reorder 2% by=1ms; corrupt payload 0.1%";

pub(crate) fn main() -> ExitCode {
    let mut checks = vec![
        over("127.0.0.1", "every cell over IPv4", "", ""),
        over("::1", "every cell over IPv6", "", ""),
        over("127.0.0.1", "cells under faults", FAULTS, "--lossy --mtus 1024 --sizes 0,1,mtu-1,mtu,mtu+1,65536"),
        over("127.0.0.1", "random cells on four connections under faults", FAULTS, "--soak 3 --grace-ms 50"),
    ];
    checks.extend(SABOTAGES.iter().map(|s| Check::new(format!("found out: {}", s.what), || found_out(s))));
    report::main(checks)
}

/// A client that breaks its word: `from` in client.c becomes `to`.
struct Sabotage {
    what: &'static str,
    from: &'static str,
    to: &'static str,
    args: &'static str,
}

const SEES: &str = "wr.num_sge = slot_sges(slot, q->s->device.mr->lkey, sges);";
const POSTS: &str = "int error = ibv_post_send(q->link->qp, &wr, &bad);";

const SABOTAGES: &[Sabotage] = &[
    Sabotage {
        what: "another byte",
        from: SEES,
        to: "wr.num_sge = slot_sges(slot, q->s->device.mr->lkey, sges); slot->piece[0].at[0] ^= 1;",
        args: "--ops send,send_imm,write,write_imm --sizes 1,1025",
    },
    Sabotage {
        what: "a byte too many",
        from: SEES,
        to: "slot->piece[slot->pieces - 1].length++; wr.num_sge = slot_sges(slot, q->s->device.mr->lkey, sges);",
        args: "--ops send,write --sizes 1,1025",
    },
    Sabotage {
        what: "other immediate data",
        from: "cell_imm(cell, serial) : 0",
        to: "(cell_imm(cell, serial) ^ 0x100) : 0",
        args: "--ops send_imm,write_imm --sizes 0,1025",
    },
    Sabotage {
        what: "a message left out",
        from: POSTS,
        to: "int error = serial == 1 ? 0 : ibv_post_send(q->link->qp, &wr, &bad);",
        args: "--services rc --ops send,write,fetch_add --sizes 1025",
    },
    Sabotage {
        what: "a message sent twice",
        from: POSTS,
        to: "int error = ibv_post_send(q->link->qp, &wr, &bad); if (serial == 1) ibv_post_send(q->link->qp, &wr, &bad);",
        args: "--services uc,ud --ops send,send_imm --sizes 1,255",
    },
    Sabotage {
        what: "memory beside the one agreed on",
        from: "rdma.remote_addr = remote;",
        to: "rdma.remote_addr = remote + 1;",
        args: "--ops write,write_imm,read --sizes 1,1025",
    },
    Sabotage {
        what: "another operand",
        from: "compare_add = operand;",
        to: "compare_add = operand + 1;",
        args: "--ops fetch_add,cmp_swap",
    },
    Sabotage {
        what: "a completion more than expected",
        from: "if (error == 0 && wr.send_flags & IBV_SEND_SIGNALED)",
        to: "if (error == 0 && last)",
        args: "--ops send --sizes 1,255",
    },
];

/// All cells that `args` choose must pass.
fn over(host: &'static str, name: &str, faults: &'static str, args: &'static str) -> Check {
    Check::new(name, move || {
        if host.contains(':') && !pair::has_ipv6() {
            return Verdict::Skipped(pair::NO_IPV6.to_owned());
        }
        match tried(&[], host, faults, args) {
            Err(verdict) => verdict,
            Ok([server, client]) if server.ok && client.ok => Verdict::Passed,
            Ok(outcomes) => Verdict::Failed(said(&outcomes)),
        }
    })
}

/// The sabotaged client must fail every one of its cells.
fn found_out(sabotage: &Sabotage) -> Verdict {
    let replace = [(sabotage.from, sabotage.to)];
    let args = format!("--mtus 256 --cell-timeout-s 2 {}", sabotage.args);
    match tried(&replace, "127.0.0.1", "", &args) {
        Err(verdict) => verdict,
        Ok(outcomes) if outcomes[1].output.contains("\tfail\t") && !outcomes[1].output.contains("\tpass\t") => {
            Verdict::Passed
        }
        Ok(outcomes) => Verdict::Failed(said(&outcomes)),
    }
}

fn said(outcomes: &[Outcome; 2]) -> String {
    let [server, client] = outcomes;
    let bad = client.output.lines().filter(|line| !line.contains("\tpass\t"));
    format!("$ {}\n{}\n$ {}\n{}", server.command, server.output, client.command, bad.collect::<Vec<_>>().join("\n"))
}

/// Runs an honest server and a client with `changes` to its client.c.
fn tried(changes: &[(&str, &str)], host: &str, faults: &str, args: &str) -> Result<[Outcome; 2], Verdict> {
    if !pair::installed("gcc") || !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return Err(Verdict::Skipped("needs gcc and libibverbs-dev (see the README's test command)".to_owned()));
    }
    static NEXT: AtomicU16 = AtomicU16::new(18_800);
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    let scratch = std::env::temp_dir().join(format!("roxe-cells-{}-{port}", std::process::id()));
    let result = (|| {
        let honest = compile(&scratch.join("honest"), &[])?;
        let client = if changes.is_empty() { honest.clone() } else { compile(&scratch.join("other"), changes)? };
        let program = |path: &Path, words: &str| Program {
            name: path.display().to_string(),
            args: words.split_whitespace().map(str::to_owned).collect(),
        };
        let server = program(&honest, &format!("server -p {port}"));
        let client = program(&client, &format!("client {host} -p {port} --quit {args}"));
        pair::run_pair(&server, &client, port, &[("ROXE_FAULTS", faults)], LIMIT).map_err(|e| e.to_string())
    })();
    // A folder that stays behind harms nobody.
    let _ = fs::remove_dir_all(&scratch);
    result.map_err(Verdict::Failed)
}

/// Compiles the sources, with `changes` in client.c, in the new folder `folder`.
fn compile(folder: &Path, changes: &[(&str, &str)]) -> Result<PathBuf, String> {
    let cells = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/cells");
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut sources = Vec::new();
    for entry in fs::read_dir(&cells).map_err(|e| e.to_string())?.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|name| name == "client.c") {
            sources.push(changed(&path, folder, changes)?);
        } else if path.extension().is_some_and(|e| e == "c") {
            sources.push(path);
        }
    }
    let program = folder.join("cells");
    cc::compile("gcc", &[&format!("-I{}", cells.display())], &sources, &["ibverbs"], &program)?;
    Ok(program)
}

/// A copy of `source` in `folder`, with `changes`.
fn changed(source: &Path, folder: &Path, changes: &[(&str, &str)]) -> Result<PathBuf, String> {
    let mut text = fs::read_to_string(source).map_err(|e| e.to_string())?;
    for (from, to) in changes {
        if text.matches(from).count() != 1 {
            return Err(format!("client.c has not exactly one {from:?}"));
        }
        text = text.replace(from, to);
    }
    let copy = folder.join("client.c");
    fs::write(&copy, text).map_err(|e| e.to_string())?;
    Ok(copy)
}
