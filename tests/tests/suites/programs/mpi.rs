//! Runs an MPI program over Debian's OpenMPI and MPICH, unmodified, on both links, as root and as
//! an ordinary user. `tests/clients/mpi/exchange.c` compares every byte that its ranks exchange.
//!
//! Both libraries silently fall back to TCP or their own shared memory. So every check allows one
//! transport only, and requires that roxe sends at least the bytes that the ranks exchange.
//!
//! `cargo test -p roxe-tests --test suites -- mpi [--weakest=SEED] [WORD...]`: on the weakest card
//! of that seed, without the weaknesses that docs/explanation/weakest.md lists for these programs.

use roxe_tests::build;
use roxe_tests::cc::Compiled;
use roxe_tests::guest::link;
use roxe_tests::pair::{self, Launch, Outcome, Program};
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Number of ranks: three, so that the previous and the next rank differ.
const RANKS: &str = "3";
/// UID of the ordinary user, which Debian never assigns.
const USER: &str = "54321";
/// Interface for libfabric, which does not use the loopback interface.
const NETDEV: &str = "fabric0";
/// Address of [`NETDEV`].
const ADDRESS: &str = "10.88.0.1";

/// An MPI library and the transport that it may use.
struct Stack {
    name: &'static str,
    mpi: &'static str,
    /// Options of the launcher.
    options: &'static str,
    envs: &'static [(&'static str, &'static str)],
}

const STACKS: [Stack; 6] = [
    Stack {
        name: "OpenMPI over UCX rc_verbs",
        mpi: "openmpi",
        options: "--mca pml ucx",
        envs: &[("UCX_TLS", "rc_v,self")],
    },
    Stack {
        name: "OpenMPI over UCX ud_verbs",
        mpi: "openmpi",
        options: "--mca pml ucx",
        envs: &[("UCX_TLS", "ud_v,self")],
    },
    Stack {
        name: "OpenMPI over libfabric ofi_rxm",
        mpi: "openmpi",
        options: "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm",
        envs: &[("ROXE_NETDEV", NETDEV)],
    },
    Stack {
        name: "OpenMPI over libfabric ofi_rxd",
        mpi: "openmpi",
        options: "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxd",
        envs: &[("ROXE_NETDEV", NETDEV)],
    },
    Stack { name: "MPICH over UCX rc_verbs", mpi: "mpich", options: "", envs: &[("UCX_TLS", "rc_v,self")] },
    Stack { name: "MPICH over UCX ud_verbs", mpi: "mpich", options: "", envs: &[("UCX_TLS", "ud_v,self")] },
];

impl Stack {
    /// Returns options with which OpenMPI accepts root and more ranks than processors, and does not
    /// load components that search for cards themselves and print warnings.
    fn launcher(&self) -> &'static str {
        match self.mpi {
            "openmpi" => "--allow-run-as-root --oversubscribe --mca btl ^openib,ofi",
            _ => "",
        }
    }

    /// Returns the weaknesses that the library does not tolerate.
    fn untolerated(&self) -> &'static str {
        match self.options {
            options if options.contains("ofi_rxm") => ",-limits",
            options if options.contains("ofi_rxd") => ",-loss",
            _ => "",
        }
    }

    fn is_by_libfabric(&self) -> bool {
        self.envs.iter().any(|(name, _)| *name == "ROXE_NETDEV")
    }
}

pub(crate) fn main() -> ExitCode {
    let mut checks = Vec::new();
    for stack in &STACKS {
        for link in ["auto", "udp"] {
            for user in ["root", "an ordinary user"] {
                let name = format!("{}, link {link}, as {user}", stack.name);
                checks.push(Check::new(name, move || run(stack, link, user == "root")));
            }
        }
    }
    report::main(checks)
}

fn run(stack: &Stack, link: &str, as_root: bool) -> Verdict {
    if let Some(program) =
        ["mpicc", "mpirun"].map(|name| format!("{name}.{}", stack.mpi)).iter().find(|p| !pair::installed(p))
    {
        return Verdict::not_installed(program);
    }
    if stack.mpi == "mpich" && !is_mpich_for_ucx() {
        return Verdict::Skipped("this MPICH is not built for UCX (mpichversion)".to_owned());
    }
    if as_root && !link::is_root() {
        return Verdict::Skipped("needs root".to_owned());
    }
    if stack.is_by_libfabric()
        && let Err(why) = netdev()
    {
        return Verdict::Skipped(format!(
            "libfabric does not use the loopback interface, and another interface cannot be created: {why}"
        ));
    }
    let tag = format!("mpi-{}-{link}-{as_root}", stack.name.replace(' ', "-"));
    let outcome = Compiled::new(&format!("mpicc.{}", stack.mpi), "mpi/exchange.c", &[], &tag).and_then(|exchange| {
        let launch = launch(stack, link, as_root, &exchange)?;
        pair::run_with(&program(stack, &exchange.program), &launch, TIME_LIMIT).map_err(|e| e.to_string())
    });
    match outcome {
        Err(why) => Verdict::Failed(why),
        Ok(outcome) if outcome.output.contains("roxe run: no /") => Verdict::Skipped(
            "UCX needs /dev/infiniband, but this user cannot create the namespaces that show it".to_owned(),
        ),
        Ok(outcome) => match judge(&outcome, link) {
            Ok(()) => Verdict::Passed,
            Err(why) => Verdict::Failed(format!("{why}\n$ {}\n{}", outcome.command, outcome.output)),
        },
    }
}

/// Returns true if MPICH is built for UCX. Debian builds it for either UCX or libfabric.
fn is_mpich_for_ucx() -> bool {
    let output = Command::new("mpichversion").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("ch4:ucx"))
}

/// Creates the interface on first use.
///
/// # Errors
/// The reason why it cannot be created.
fn netdev() -> Result<(), String> {
    static CREATED: OnceLock<Result<(), String>> = OnceLock::new();
    CREATED.get_or_init(|| link::add_bridge(NETDEV, ADDRESS).map_err(|e| e.to_string())).clone()
}

fn program(stack: &Stack, exchange: &Path) -> Program {
    let words = [stack.launcher(), "-n", RANKS, stack.options].map(str::split_whitespace).into_iter().flatten();
    let args = words.map(str::to_owned).chain([exchange.display().to_string()]).collect();
    Program { name: format!("mpirun.{}", stack.mpi), args }
}

/// Returns how the ranks are started: as this user, or as an ordinary user with a copy of roxe that
/// every user can read.
fn launch(stack: &Stack, link: &str, as_root: bool, exchange: &Compiled) -> Result<Launch, String> {
    let home = exchange.folder().display().to_string();
    let common = [
        ("ROXE_LINK", link),
        ("ROXE_STATS", "on"),
        ("UCX_NET_DEVICES", "roxe0:1"),
        ("HOME", &home),
        ("TMPDIR", "/tmp"),
    ];
    let weakest = pair::weakest(stack.untolerated());
    let weakest = weakest.iter().map(|(name, value)| (*name, value.as_str()));
    let envs = common.into_iter().chain(stack.envs.iter().copied()).chain(weakest);
    let envs = envs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    if as_root || !link::is_root() {
        return Ok(Launch { envs, ..Launch::default() });
    }
    let copy = copy_product(exchange.folder()).map_err(|e| format!("{}: {e}", exchange.folder().display()))?;
    let user = [format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned(), "--".to_owned()];
    let run = [copy.display().to_string(), "run".to_owned(), "--".to_owned()];
    let prefix = [String::from("setpriv")].into_iter().chain(user).chain(run).collect();
    Ok(Launch { prefix, envs, without_roxe: true, ..Launch::default() })
}

/// Copies `roxe` and its libraries into a folder that every user can read, and returns the path of
/// `roxe`. The build may be in a home folder.
fn copy_product(to: &Path) -> std::io::Result<PathBuf> {
    let roxe = build::roxe();
    let from = roxe.parent().unwrap_or_else(|| Path::new("."));
    for name in ["libroxe.so", "librspreload.so"] {
        fs::copy(from.join(name), to.join(name))?;
    }
    let copy = to.join("roxe");
    fs::copy(&roxe, &copy)?;
    Ok(copy)
}

fn judge(outcome: &Outcome, link: &str) -> Result<(), String> {
    let numbers: Vec<u64> = outcome
        .output
        .lines()
        .filter(|line| line.starts_with("exchanged "))
        .flat_map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()))
        .collect();
    let [_, exchanged] = numbers[..] else { return Err("no rank has compared its bytes".to_owned()) };
    let count = |name| pair::counter(&outcome.output, name);
    let (sent, by_ring) = (count("sent_bytes"), count("sent_by_ring"));
    match (outcome.ok, link) {
        (false, _) => Err("it did not end well".to_owned()),
        _ if sent < exchanged => {
            Err(format!("the ranks received {exchanged} bytes, of which {sent} went through roxe"))
        }
        (_, "udp") if by_ring > 0 => Err(format!("{by_ring} packets did not go over udp")),
        (_, "auto") if by_ring == 0 => Err("no packet went through shared memory".to_owned()),
        _ => Ok(()),
    }
}
