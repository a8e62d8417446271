//! `roxe doctor`: checks this host, and prints a remedy for each failed check.
//!
//! Opens a device, binds port 4791 for a moment, and tries a user namespace in a child process.

use crate::devices::Netdev;
use crate::output::{Result, Table};
use crate::view::ViewError;
use crate::{files, library, view};
use nix::unistd::geteuid;
use roxe::Context;
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Write, stdout};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;

/// Arguments of `roxe doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    netdev: Netdev,
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Ok,
    /// Works, but slower or without a feature.
    Limited,
    /// Keeps programs from using roxe.
    Missing,
}

impl Grade {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "MISSING",
        }
    }
}

#[derive(Debug)]
struct Finding {
    what: &'static str,
    grade: Grade,
    found: String,
    advice: &'static str,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, grade: Grade::Ok, found: found.into(), advice: "" }
    }

    fn limited(what: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { what, grade: Grade::Limited, found: found.into(), advice }
    }

    fn missing(what: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { what, grade: Grade::Missing, found: found.into(), advice }
    }
}

/// Prints all findings; fails if one of them keeps programs from using roxe.
pub(crate) fn run(args: &Args) -> Result {
    args.netdev.apply()?;
    let findings = [
        library(),
        folder(),
        proc(),
        interfaces(),
        // Before `card`, which opens a device and thereby binds the port.
        own_port(),
        card(),
        buffers(&read("/proc/sys/net/core/rmem_max"), &read("/proc/sys/net/core/wmem_max")),
        view(),
        memory_files(),
        limit("locked memory", "Max locked memory", &read("/proc/self/limits"), 0),
        limit("open files", "Max open files", &read("/proc/self/limits"), 256),
        raw_packets(&read("/proc/self/status")),
    ];
    print(&findings, args.json)?;
    let missing = findings.iter().filter(|finding| finding.grade == Grade::Missing).count();
    if missing == 0 {
        Ok(())
    } else {
        Err(format!("{missing} checks failed: programs cannot use roxe on this host").into())
    }
}

fn print(findings: &[Finding], as_json: bool) -> Result {
    let mut out = stdout();
    if as_json {
        let list = findings.iter().map(|Finding { what, grade, found, advice }| {
            json!({"what": what, "grade": grade.name().to_lowercase(), "found": found, "advice": advice})
        });
        return Ok(writeln!(out, "{:#}", list.collect::<Value>())?);
    }
    let mut table = Table::new(["", "", ""]);
    for finding in findings {
        let mut lines = finding.found.lines();
        table.row([finding.grade.name().into(), finding.what.into(), lines.next().unwrap_or_default().into()]);
        for line in lines.chain(Some(finding.advice).filter(|advice| !advice.is_empty())) {
            table.row([String::new(), String::new(), format!("  {}", line.trim())]);
        }
    }
    Ok(table.lines().iter().skip(1).try_for_each(|line| writeln!(out, "{line}"))?)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn library() -> Finding {
    let links = library::find().map_err(|error| error.to_string()).and_then(|library| {
        library::link_folder(&library).map_err(|error| error.to_string())?;
        Ok(library)
    });
    match links {
        Ok(library) => Finding::ok("library", library.display().to_string()),
        Err(why) => Finding::missing("library", why, ""),
    }
}

fn folder() -> Finding {
    match files::base_folder() {
        Ok(path) => Finding::ok("XDG_RUNTIME_DIR", format!("processes of this user connect in {}", path.display())),
        Err(error) => Finding::missing("XDG_RUNTIME_DIR", error.to_string(), ""),
    }
}

fn proc() -> Finding {
    if Path::new("/proc/self/status").exists() {
        return Finding::ok("/proc", "mounted");
    }
    Finding::limited("/proc", "not mounted: no view, and no --stats of killed programs", "mount -t proc proc /proc")
}

fn interfaces() -> Finding {
    match roxe_provider::preview() {
        Ok(devices) if devices.is_empty() => {
            Finding::missing("interfaces", "none can be used", "ip link set lo up, or name one: --netdev eth0")
        }
        Ok(devices) => {
            let list = devices.iter().map(|device| format!("{} on {}", device.name(), device.netdev()));
            Finding::ok("interfaces", list.collect::<Vec<_>>().join(", "))
        }
        Err(error) => Finding::missing("interfaces", error.to_string(), ""),
    }
}

fn card() -> Finding {
    let queue_pair = || {
        let pd = Context::open_first()?.alloc_pd()?;
        let cq = pd.context().create_cq(16)?;
        pd.create_qp(&cq, &cq).build().map(drop)
    };
    match queue_pair() {
        Ok(()) => Finding::ok("queue pairs", "one was created on the first device"),
        Err::<_, roxe::Error>(error) => Finding::missing("queue pairs", error.to_string(), ""),
    }
}

fn own_port() -> Finding {
    let first = roxe_provider::preview().ok().and_then(|devices| devices.into_iter().next());
    let addresses = first.map(|device| device.gid_entries()).unwrap_or_default();
    let mut addresses = addresses.into_iter().map(|entry| entry.gid.to_ip()).filter(IpAddr::is_ipv4);
    let address = addresses.next().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    port(address, UdpSocket::bind((address, 4791)).map_err(|error| error.kind()), &read("/proc/net/udp"))
}

/// Checks port 4791. `bound` is the result of binding it for this process alone, `table` is
/// /proc/net/udp.
fn port<T>(address: IpAddr, bound: Result<T, ErrorKind>, table: &str) -> Finding {
    const WHAT: &str = "port 4791";
    match (bound, owner_of_port(table)) {
        (Ok(_), _) => Finding::ok(WHAT, format!("free on {address}")),
        (Err(ErrorKind::AddrInUse), Some(user)) if user == geteuid().as_raw() => {
            Finding::ok(WHAT, "in use by a program of yours; programs on roxe share it")
        }
        (Err(ErrorKind::AddrInUse), owner) => {
            let owner = owner.map_or_else(|| "another user".to_owned(), |user| format!("user {user}"));
            let advice = "end that program, or use another address: --netdev";
            Finding::missing(WHAT, format!("{owner} has it on {address}, and users cannot share it"), advice)
        }
        (Err(kind), _) => Finding::missing(WHAT, format!("cannot be bound on {address}: {kind}"), ""),
    }
}

/// Returns the user who owns the socket on UDP port 4791 (`man proc_net`: the second word is the
/// local address, the eighth the user).
fn owner_of_port(table: &str) -> Option<u32> {
    const PORT: &str = ":12B7";
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|words| words.get(1).is_some_and(|local| local.ends_with(PORT)))?.get(7)?.parse().ok()
}

fn buffers(receive: &str, send: &str) -> Finding {
    /// Default of `ROXE_RCVBUF`.
    const WANTED: u64 = 4_194_304;
    const WHAT: &str = "socket buffers";
    match (receive.trim().parse::<u64>(), send.trim().parse::<u64>()) {
        (Ok(receive), Ok(send)) if receive >= WANTED => {
            Finding::ok(WHAT, format!("{receive} and {send} bytes at most"))
        }
        (Ok(receive), _) => Finding::limited(
            WHAT,
            format!("net.core.rmem_max is {receive}, but roxe requests {WANTED}: big messages over udp are slower"),
            "sysctl -w net.core.rmem_max=4194304",
        ),
        _ => Finding::ok(WHAT, "the system does not report their largest size"),
    }
}

fn view() -> Finding {
    match view::possible() {
        Ok(()) => Finding::ok("namespaces", "programs see a /sys/class/infiniband of their own"),
        // The text of these errors has the remedy.
        Err(error @ (ViewError::Root | ViewError::NoSys)) => Finding::limited("namespaces", error.to_string(), ""),
        Err(error @ (ViewError::Rights | ViewError::PowerlessRoot)) => Finding::limited(
            "namespaces",
            error.to_string(),
            "run as an ordinary user (in a container: --user 1000), or with CAP_SYS_ADMIN (--cap-add sys_admin)",
        ),
        Err(error) => Finding::limited(
            "namespaces",
            error.to_string(),
            "sysctl -w kernel.unprivileged_userns_clone=1 \
            or, in a container, --security-opt seccomp=unconfined; most programs do without",
        ),
    }
}

/// Checks /dev/shm, which only other programs need: roxe's rings are unnamed memory files.
fn memory_files() -> Finding {
    if Path::new("/dev/shm").is_dir() {
        return Finding::ok("/dev/shm", "exists (MPI and UCX need it, roxe does not)");
    }
    Finding::limited("/dev/shm", "missing: MPI and UCX need it, roxe does not", "mount -t tmpfs tmpfs /dev/shm")
}

/// Checks a limit in /proc/self/limits; roxe needs `needed`.
fn limit(what: &'static str, line: &str, limits: &str, needed: u64) -> Finding {
    let row = limits.lines().find_map(|row| row.strip_prefix(line));
    let soft = row.and_then(|row| row.split_whitespace().next()).unwrap_or("unknown");
    match soft.parse::<u64>() {
        Ok(count) if count < needed => {
            Finding::limited(what, format!("{count} at most; every device and connection takes some"), "ulimit -n 4096")
        }
        _ if needed == 0 => Finding::ok(what, format!("{soft} (roxe locks none, so any limit is enough)")),
        _ => Finding::ok(what, soft),
    }
}

/// Checks for `CAP_NET_RAW` in /proc/self/status (`man capabilities`).
fn raw_packets(status: &str) -> Finding {
    const NET_RAW: u32 = 13;
    if view::capabilities(status) >> NET_RAW & 1 == 1 {
        return Finding::ok("raw packets", "allowed (CAP_NET_RAW)");
    }
    let advice = "run as root, or with CAP_NET_RAW, if a program creates raw packet queue pairs";
    Finding::limited("raw packets", "not allowed; all other queue pairs are", advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n \
                         77: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 4711        0 1 2 0 0\n";

    #[test]
    fn taken_port_is_reported_with_its_owner() {
        let port = |bound: Result<(), _>, table| port(Ipv4Addr::LOCALHOST.into(), bound, table);
        assert_eq!(port(Ok(()), "").grade, Grade::Ok);
        let taken = port(Err(ErrorKind::AddrInUse), TABLE);
        assert_eq!(taken.grade, Grade::Missing);
        assert!(taken.found.contains("user 4711"), "{taken:?}");
        let own = TABLE.replace("4711", &geteuid().to_string());
        assert_eq!(port(Err(ErrorKind::AddrInUse), &own).grade, Grade::Ok);
        assert_eq!(port(Err(ErrorKind::AddrNotAvailable), TABLE).grade, Grade::Missing);
    }

    #[test]
    fn small_socket_buffers_are_reported_with_sysctl() {
        let small = buffers("212992\n", "212992\n");
        assert_eq!(small.grade, Grade::Limited);
        assert!(small.found.contains("212992") && small.advice.contains("rmem_max=4194304"), "{small:?}");
        assert_eq!(buffers("4194304\n", "1\n").grade, Grade::Ok);
        assert_eq!(buffers("", "").grade, Grade::Ok);
    }

    #[test]
    fn limits_are_read_from_proc() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max open files            20                   1048576              files     \n\
                      Max locked memory         unlimited            unlimited            bytes     \n";
        assert_eq!(limit("open files", "Max open files", limits, 256).grade, Grade::Limited);
        assert_eq!(limit("open files", "Max open files", limits, 10).grade, Grade::Ok);
        assert!(limit("locked memory", "Max locked memory", limits, 0).found.starts_with("unlimited"));
    }

    #[test]
    fn raw_packets_need_cap_net_raw() {
        assert_eq!(raw_packets("CapEff:\t0000000000002000\n").grade, Grade::Ok);
        assert_eq!(raw_packets("CapEff:\t0000000000000000\n").grade, Grade::Limited);
    }
}
