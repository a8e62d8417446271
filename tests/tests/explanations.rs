//! `roxe run --explain`: each failure is explained by its own cause, so that causes which end in
//! the same status or errno can be told apart. `tests/clients/misuse/failure.c` has the programs.
//! With the link of one host and with sockets, and, as root, towards another host. A program that
//! loads another libibverbs is told so.
//!
//! `cargo test -p roxe-tests --test explanations -- WORD...` runs the checks whose name contains a
//! word.

use roxe_tests::guest::link;
use roxe_tests::pair::{self, Place, Program};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::veth::{End, Veth};
use roxe_tests::{cc, misuse};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A program, and what its explanation has to say.
const CASES: [(&str, &[&str]); 32] = [
    ("retry-no-process", &["(12)", "no process of this user on this host has the queue pair"]),
    ("retry-no-queue-pair", &["(12)", "has no queue pair"]),
    ("retry-not-connected", &["(12)", "is in state Init, which takes no such packets"]),
    ("retry-in-error", &["(12)", "is in state Err, which takes no such packets"]),
    ("retry-psn", &["(12)", "its rq_psn 0x500000 is not the sq_psn of its peer", "state RTS", "timeout; PSN 7"]),
    ("retry-gid", &["(12)", "compare the GIDs of both ends"]),
    ("retry-died", &["(12)", "has died"]),
    ("retry-stopped", &["(12)", "is stopped"]),
    ("access-key", &["(10)", "there is no region or window with this key"]),
    ("access-range", &["(10)", "not all of it is inside the region"]),
    ("access-right", &["(10)", "the region does not grant IBV_ACCESS_REMOTE_WRITE"]),
    ("access-domain", &["(10)", "the key belongs to another protection domain"]),
    ("access-unmapped", &["(11)", "is no longer mapped"]),
    ("invalid-not-enabled", &["(9)", "qp_access_flags of the responding queue pair"]),
    ("invalid-too-long", &["(9)", "longer than the receive that was posted"]),
    ("invalid-misaligned", &["(9)", "not a multiple of 8"]),
    ("operation-list", &["(11)", "the list of the receive that it would land in cannot be written"]),
    ("rnr", &["(13)", "had no receive posted", "RNR NAK received; PSN 7", "state ERR"]),
    ("local-key", &["(4)", "there is no region or window with this key"]),
    ("local-range", &["(4)", "not all of it is inside the region"]),
    ("local-domain", &["(4)", "the key belongs to another protection domain"]),
    ("local-right", &["(4)", "the region does not grant IBV_ACCESS_LOCAL_WRITE"]),
    ("queue-full", &["the queue is full", "Cannot allocate memory"]),
    ("state-missing", &["the transition also needs", "DEST_QPN"]),
    ("gid-index", &["GID index 9 is empty"]),
    ("memory-hole", &["are not mapped", "Bad address"]),
    ("cm-nobody-listens", &["RDMA_CM_EVENT_REJECTED, status 8", "nobody listens at 127.0.0.1 port 7"]),
    ("cm-refused", &["RDMA_CM_EVENT_REJECTED, status 28", "rdma_reject", "private data \"no such tenant\""]),
    ("cm-backlog", &["RDMA_CM_EVENT_REJECTED, status 28", "the listener's backlog is full: 1 requests wait"]),
    ("cm-stale", &["RDMA_CM_EVENT_REJECTED, status 10", "is in timewait", "create a new queue pair"]),
    ("cm-own-queue-pair", &["RDMA_CM_EVENT_CONNECT_ERROR", "the own queue pair could not be moved"]),
    ("cm-create-qp", &["a verb failed", "1000"]),
];

/// A program, where it runs, and what its explanation has to say.
struct Far {
    name: &'static str,
    case: &'static str,
    envs: &'static [(&'static str, &'static str)],
    words: &'static [&'static str],
}

/// What becomes of packets to another host, 192.0.2.2 behind the interface `near`. The last one
/// takes the interface down.
const FAR: [Far; 11] = [
    Far {
        name: "network: a host without a card, a connection",
        case: "cm-no-card",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.2")],
        words: &["RDMA_CM_EVENT_UNREACHABLE", "192.0.2.2 answers that nobody listens on UDP port 4791"],
    },
    Far {
        name: "network: the interface is no device, a connection",
        case: "cm-address",
        envs: &[("PEER", "192.0.2.2")],
        words: &["RDMA_CM_EVENT_ADDR_ERROR", "set ROXE_NETDEV=near"],
    },
    Far {
        name: "network: no route, a connection",
        case: "cm-address",
        envs: &[("PEER", "198.51.100.7")],
        words: &["RDMA_CM_EVENT_ADDR_ERROR", "no route to 198.51.100.7"],
    },
    Far {
        name: "network: a host without a card, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.2")],
        words: &["(12)", "192.0.2.2 answers that nobody listens on UDP port 4791"],
    },
    Far {
        name: "network: the way leads over another interface, a request",
        case: "retry-far",
        envs: &[("PEER", "192.0.2.2")],
        words: &["(12)", "the way to 192.0.2.2 leads over near, and this device is lo: set ROXE_NETDEV=near"],
    },
    Far {
        name: "network: a neighbour that does not answer, a connection",
        case: "cm-address",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.76")],
        words: &["RDMA_CM_EVENT_ADDR_ERROR, status -110", "192.0.2.76 does not answer ARP"],
    },
    Far {
        name: "network: a host that is not there any more, a connection",
        case: "cm-no-card",
        // Its address is forgotten, and it does not answer any more.
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.77"), ("THEN", "ip neigh del 192.0.2.77 dev near")],
        words: &["RDMA_CM_EVENT_UNREACHABLE", "the network answers that the host 192.0.2.77 cannot be reached"],
    },
    Far {
        name: "network: a host that the network cannot reach, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.79"), ("THEN", "ip route add unreachable 192.0.2.79")],
        words: &["(12)", "the network answers that 192.0.2.79 cannot be reached"],
    },
    Far {
        name: "network: packets vanish, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.78")],
        words: &["(12)", "no answer came after"],
    },
    Far {
        name: "network: long packets vanish",
        case: "retry-long",
        envs: &[("ROXE_FAULTS", "drop tx qp=#0 msg=2..")],
        words: &["(12)", "the way may lose long packets; try a smaller path_mtu"],
    },
    Far {
        name: "network: the interface is down, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.2"), ("THEN", "ip link set near down")],
        words: &["(12)", "the interface near is down: `ip link set near up`"],
    },
];

fn main() -> ExitCode {
    if let Err(e) = link::isolate() {
        println!("FAILED   explanations: {e}");
        return ExitCode::FAILURE;
    }
    let checks = CASES.iter().flat_map(|(case, words)| {
        ["auto", "udp"].map(|link| Check::new(format!("{case}, link {link}"), move || judge(case, words, link)))
    });
    let bypass = Check::new("a program that loads another libibverbs", judge_bypass);
    let far = FAR.iter().map(|far| Check::new(far.name.to_owned(), move || judge_far(far)));
    report::main(checks.chain([bypass]).chain(far).collect())
}

fn judge(case: &str, words: &[&str], link: &str) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    match misuse::program().and_then(|program| run(program, case, &[("ROXE_LINK", link)])) {
        Ok(output) if output.matches("last events").count() != output.matches(") failed: ").count() => {
            Verdict::Failed(format!("not each queue pair that failed tells its last events, once:\n{output}"))
        }
        Ok(output) if words.iter().all(|word| output.contains(word)) => Verdict::Passed,
        Ok(output) => Verdict::Failed(format!("{words:?} are not all in:\n{output}")),
        Err(why) => Verdict::Failed(why),
    }
}

/// What a program prints that ends well, although its requests fail.
fn run(program: String, case: &str, envs: &[(&str, &str)]) -> Result<String, String> {
    let program = Program { name: program, args: vec![case.to_owned(), "wrong".to_owned()] };
    let envs = envs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let place = Place { envs, options: vec!["--explain".to_owned()], ..Place::default() };
    let outcome = pair::run_at(&program, &place, LIMIT).map_err(|e| e.to_string())?;
    if outcome.ok { Ok(outcome.output) } else { Err(outcome.output) }
}

/// A program whose environment has lost what leads it to roxe, and that no view serves. It runs
/// until somebody says so.
fn judge_bypass() -> Verdict {
    let script = "until grep -qs roxe /proc/$$/fd/2; do sleep 0.01; done";
    let args = ["-i", "LD_PRELOAD=libibverbs.so.1", "sh", "-c", script].map(str::to_owned).to_vec();
    let place = Place { options: ["--no-view", "--explain"].map(str::to_owned).into(), ..Place::default() };
    match pair::run_at(&Program { name: "env".to_owned(), args }, &place, LIMIT) {
        Ok(outcome) if outcome.output.contains("libibverbs.so.1") && outcome.output.contains("env -i") => {
            Verdict::Passed
        }
        Ok(outcome) if outcome.output.contains("cannot be preloaded") => {
            Verdict::Skipped("libibverbs is not installed (tests/run installs it)".to_owned())
        }
        Ok(outcome) => Verdict::Failed(outcome.output),
        Err(e) => Verdict::Failed(e.to_string()),
    }
}

/// Makes the other host, which is there until this process ends: the system takes its time to
/// remove an interface whose name would be used again.
fn other_host() -> Result<(), String> {
    static HOST: OnceLock<Result<Veth, String>> = OnceLock::new();
    let end = |name, mac, address: &str| End { name, mac, addresses: vec![address.to_owned()] };
    let build = || {
        let here = end("near", "02:00:00:00:00:01", "192.0.2.1/24");
        let there = end("far", "02:00:00:00:00:02", "192.0.2.2/24");
        let veth = Veth::build(&here, &there).map_err(|e| e.to_string())?;
        // Hosts that have been there, at an address of the link that none has.
        for (host, state) in [("192.0.2.77", "permanent"), ("192.0.2.78", "permanent"), ("192.0.2.79", "permanent")] {
            let words = ["neigh", "add", host, "lladdr", "02:00:00:00:00:09", "dev", "near", "nud", state];
            let added = Command::new("ip").args(words).status().map_err(|e| e.to_string())?;
            if !added.success() {
                return Err(format!("ip {}", words.join(" ")));
            }
        }
        Ok(veth)
    };
    HOST.get_or_init(build).as_ref().map(|_| ()).map_err(Clone::clone)
}

fn judge_far(far: &Far) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    if !link::is_root() {
        return Verdict::Skipped("takes root, for a network of its own".to_owned());
    }
    match other_host().and_then(|()| run(misuse::program()?, far.case, far.envs)) {
        Ok(output) if far.words.iter().all(|word| output.contains(word)) => Verdict::Passed,
        Ok(output) => Verdict::Failed(format!("{:?} are not all in:\n{output}", far.words)),
        Err(why) => Verdict::Failed(why),
    }
}
