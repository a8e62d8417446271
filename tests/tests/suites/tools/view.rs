//! Tests the `/sys/class/infiniband` and `/dev/infiniband` that programs see under `roxe run`: as
//! root, as an unprivileged user (in a user namespace), inside another `roxe run`, and where
//! namespaces are forbidden. The system's own folders must not change.

use roxe_tests::build;
use roxe_tests::pair::{UNPRIVILEGED, installed};
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output, Stdio};

/// Script that prints the files of the loopback device.
const SCRIPT: &str = r#"
cd /sys/class/infiniband/roxe0 || exit 1
cat node_type node_guid fw_ver ports/1/state ports/1/phys_state ports/1/link_layer ports/1/rate ports/1/pkeys/0
cat ports/1/gids/0 ports/1/gid_attrs/types/0 ports/1/gid_attrs/ndevs/0 ports/1/counters/port_xmit_data
ls device/net
cat /sys/class/infiniband_verbs/abi_version /sys/class/infiniband_verbs/roxe0/ibdev
test -c /dev/infiniband/roxe0 -a -r /dev/infiniband/roxe0 -a -w /dev/infiniband/roxe0 && echo node
cat /sys/class/net/lo/ifindex; echo gone >/dev/null && echo null; : </dev/zero && echo zero; test -d /dev/pts && echo pts
"#;

/// Output of [`SCRIPT`].
const OUTPUT: &str = "1: CA
0272:6f78:6500:0001
0.1.0
4: ACTIVE
5: LinkUp
Ethernet
100 Gb/sec (4X EDR)
0xffff
0000:0000:0000:0000:0000:ffff:7f00:0001
RoCE v2
lo
0
lo
6
roxe0
node
1
null
zero
pts
";

/// Command prefix for the overflow user, as whom all unmapped users appear in a user namespace.
const OVERFLOW: [&str; 5] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];

pub(crate) fn main() -> ExitCode {
    report::main(vec![
        Check::new("view: root sees a card", || as_root(&|prefix| sees_card(prefix, &[]))),
        Check::new("view: other users see a card", || unprivileged(&|prefix| sees_card(prefix, &[]))),
        Check::new("view: nested view shows a card, as root", || {
            as_root(&|prefix| sees_card(prefix, &[roxe(), "run", "--"]))
        }),
        Check::new("view: nested view shows a card", || {
            unprivileged(&|prefix| sees_card(prefix, &[roxe(), "run", "--"]))
        }),
        Check::new("view: nested view of another profile shows only its card", nested_profiles),
        Check::new("view: user and group are kept", || unprivileged(&keeps_user)),
        Check::new("view: system folders are unchanged", keeps_system_folders),
        Check::new("view: device has the name, GIDs and limits of a card", imitates_cards),
        Check::new("view: can be switched off", switched_off),
        Check::new("view: program starts without a view where namespaces are forbidden", forbidden),
        Check::new("view: overflow user has a card but no view", || as_root(&overflow_user)),
        Check::new("view: partial privileges are kept", || as_root(&keeps_capabilities)),
        Check::new("view: set-uid programs start without a view", || unprivileged(&set_user)),
        Check::new("rdma: devices are listed as by iproute2", || as_root(&|prefix| lists_devices(prefix))),
        Check::new("rdma: devices are listed for other users", || unprivileged(&|prefix| lists_devices(prefix))),
        Check::new("rdma: devices are listed by roxe env and without a view", lists_without_view),
        Check::new("view: UCX without a view is told to start under roxe run", ucx_without_view),
        Check::new("view: UCX that is loaded after the first list is reported once", ucx_loaded_later),
        Check::new("rdma: objects of running programs have the kernel's keys", lists_objects),
        Check::new("rdma: wrong names and changes are refused", refuses_changes),
        Check::new("umad: programs that need it get one line, ibstat works", management_programs),
        Check::new("counters: files of a run are the sum over its processes", sum_of_processes),
        Check::new("counters: files change while programs run", counters_change_while_running),
        Check::new("counters: counts of killed processes are printed", killed_processes_are_counted),
        Check::new("counters: perftest --report-counters", perftest_reports),
        Check::new("counters: losses are counted", losses_are_counted),
    ])
}

fn roxe() -> &'static str {
    use std::sync::OnceLock;
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| build::roxe().to_string_lossy().into_owned())
}

fn is_root() -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::geteuid() == 0 }
}

/// Runs a command, `words` and then `rest`, for at most half a minute.
fn run(words: &[&str], rest: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["30"]).args(words).args(rest).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROXE_") && name != "ROXE_LIB") {
        command.env_remove(name);
    }
    command.output().unwrap_or_else(|e| panic!("cannot start timeout: {e}"))
}

/// Runs `script` under `roxe run`, with this command prefix.
fn under_roxe(prefix: &[&str], script: &str) -> Output {
    run(prefix, &[roxe(), "run", "--", "sh", "-c", script])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn transcript(output: &Output) -> String {
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Checks that the exit status is 0, standard output is `expected` and standard error is empty.
fn exactly(output: &Output, expected: &str) -> Verdict {
    if output.status.success() && text(&output.stdout) == expected && output.stderr.is_empty() {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("wrong output:\n{}", transcript(output)))
}

fn as_root(check: &dyn Fn(&[&str]) -> Verdict) -> Verdict {
    if is_root() { check(&[]) } else { Verdict::Skipped("not root".into()) }
}

/// Runs `check` with a command prefix that drops root's privileges if this process is root.
fn unprivileged(check: &dyn Fn(&[&str]) -> Verdict) -> Verdict {
    let prefix: &[&str] = if is_root() { &UNPRIVILEGED } else { &[] };
    if !run(prefix, &[roxe(), "--version"]).status.success() {
        return Verdict::Skipped(format!("user 54321 cannot execute {}", roxe()));
    }
    let unshare = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "x", "/sys/class"];
    if !run(prefix, &unshare).status.success() {
        return Verdict::Skipped("this host allows no user namespaces".into());
    }
    check(prefix)
}

/// Checks that a program sees all files of the card if `between` starts it under `roxe run`.
fn sees_card(prefix: &[&str], between: &[&str]) -> Verdict {
    let program: Vec<&str> = [&[roxe(), "run", "--"], between, &["sh", "-c", SCRIPT]].concat();
    exactly(&run(prefix, &program), OUTPUT)
}

/// Checks that a nested view shows only its own card: the cards of the two profiles differ in name.
fn nested_profiles() -> Verdict {
    unprivileged(&|prefix| {
        let outer = [prefix, &[roxe(), "run", "--profile", "cx6", "--"]].concat();
        let look = "cd /sys/class; ls infiniband infiniband_verbs /dev/infiniband";
        let output = run(&outer, &[roxe(), "run", "--profile", "e810", "--", "sh", "-c", look]);
        exactly(&output, "/dev/infiniband:\nirdma0\n\ninfiniband:\nirdma0\n\ninfiniband_verbs:\nabi_version\nirdma0\n")
    })
}

fn keeps_user(prefix: &[&str]) -> Verdict {
    let script = "id -u; id -g; touch /sys/class/net/new 2>&-; grep CapEff /proc/self/status";
    let expected = run(prefix, &["sh", "-c", script]);
    exactly(&under_roxe(prefix, script), &text(&expected.stdout))
}

/// Returns the mounts of this process, and the files in the folders where views are mounted.
fn system() -> (String, Vec<PathBuf>) {
    let entries = ["/sys/class", "/dev"].iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let mut entries: Vec<_> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    (fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(), entries)
}

fn keeps_system_folders() -> Verdict {
    let before = system();
    let output = under_roxe(&[], "ls /sys/class/infiniband /dev/infiniband");
    if before == system() {
        Verdict::Passed
    } else {
        Verdict::Failed(format!("mounts or folders of the system changed\n{}", transcript(&output)))
    }
}

/// Runs commands of common tutorials: `-d mlx5_0 -g 3`, also in a nested view of that name, and
/// with the limits of a card. Devices named like those of Mellanox have that order of GIDs.
fn imitates_cards() -> Verdict {
    if !installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let qedr: &[&str] = &["ROXE_DEVICE_NAME=mlx5_0", "ROXE_GID_LAYOUT=mellanox"];
    for (variables, profile, limits) in
        [(qedr, "qedr", " vendor_part_id: 32880 max_sge_rd: 4 "), (&[], "cx6", " vendor_part_id: 4123 max_sge_rd: 32 ")]
    {
        if let failed @ Verdict::Failed(_) = has_card(variables, profile, limits) {
            return failed;
        }
    }
    Verdict::Passed
}

fn has_card(variables: &[&str], profile: &str, limits: &str) -> Verdict {
    let card = [&["env"], variables, &[roxe(), "run", "--profile", profile, "--"]].concat();
    let files = "cd /sys/class/infiniband; ls; cat mlx5_0/ports/1/gid_attrs/types/[23]; ls /dev/infiniband; \
                 ibv_devinfo -v | grep -E 'vendor_part_id|max_sge_rd:' | tr -s '[:space:]' ' '";
    let script = pingpong("-d mlx5_0 -g 3", files);
    let seen = format!("mlx5_0\nIB/RoCE v1\nRoCE v2\nmlx5_0\n{limits}");
    for between in [&[][..], &[roxe(), "run", "--"]] {
        let output = run(&card, &[between, &["sh", "-c", &script]].concat());
        if text(&output.stdout) != seen {
            return Verdict::Failed(transcript(&output));
        }
    }
    Verdict::Passed
}

fn switched_off() -> Verdict {
    let script = "test -e /sys/class/infiniband/roxe0 || test -e /dev/infiniband/roxe0 || echo nothing";
    for words in [&[roxe(), "run", "--no-view", "--"], &["env", "ROXE_VIEW=off", roxe(), "run"] as &[&str]] {
        if let failed @ Verdict::Failed(_) = exactly(&run(words, &["sh", "-c", script]), "nothing\n") {
            return failed;
        }
    }
    Verdict::Passed
}

/// Runs roxe without the right to mount, in a user namespace that allows no further ones.
fn forbidden() -> Verdict {
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --bounding-set -all --inh-caps -all \"$@\"";
    let inside = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"];
    if !run(&inside, &["true"]).status.success() {
        return Verdict::Skipped("this host allows no user namespaces, so the check cannot forbid them".into());
    }
    let output = run(&inside, &[roxe(), "run", "--", "sh", "-c", "echo started; exit 7"]);
    let why = text(&output.stderr);
    let has_reason =
        why.lines().count() == 1 && why.contains("/sys/class/infiniband") && why.contains("user namespace");
    if output.status.code() == Some(7) && text(&output.stdout) == "started\n" && has_reason {
        Verdict::Passed
    } else {
        Verdict::Failed(format!("the program must start, with one line about the view\n{}", transcript(&output)))
    }
}

/// Runs roxe with some of root's capabilities, which would be lost in a user namespace.
fn keeps_capabilities(_: &[&str]) -> Verdict {
    let some = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"];
    let script = "grep CapEff /proc/self/status";
    let output = run(&some, &[roxe(), "run", "--", "sh", "-c", script]);
    let why = text(&output.stderr);
    if why.lines().count() == 1
        && why.contains("capabilities")
        && output.stdout == run(&some, &["sh", "-c", script]).stdout
    {
        Verdict::Passed
    } else {
        Verdict::Failed(transcript(&output))
    }
}

/// Runs a set-uid program, without a view, because the set-uid bit has no effect in a user
/// namespace.
fn set_user(prefix: &[&str]) -> Verdict {
    let program = std::env::temp_dir().join(format!("roxe-set-user-{}", std::process::id()));
    let made =
        fs::copy("/bin/true", &program).and_then(|_| fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)));
    let output = run(prefix, &[roxe(), "run", "--", &program.to_string_lossy()]);
    let _ = fs::remove_file(&program);
    let why = text(&output.stderr);
    let reports = |words: &[&str]| why.lines().any(|line| words.iter().all(|word| line.contains(word)));
    let both = reports(&["no /sys/class/infiniband", "gains rights"]) && reports(&["may not use roxe", "gains rights"]);
    if made.is_ok() && output.status.success() && why.lines().count() == 2 && both {
        Verdict::Passed
    } else {
        Verdict::Failed(format!("{made:?} {}", transcript(&output)))
    }
}

/// Returns a script that runs server and client of a pingpong, then `after`.
fn pingpong(options: &str, after: &str) -> String {
    format!(
        "ibv_rc_pingpong {options} >/dev/null & \
         until ibv_rc_pingpong {options} 127.0.0.1 >/dev/null; do kill -0 $! || exit 1; done; wait; {after}"
    )
}

/// A user namespace would map other users to this user's overflow UID, so its programs start
/// without a namespace, and their card works.
fn overflow_user(_: &[&str]) -> Verdict {
    if !installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let output = run(&OVERFLOW, &[roxe(), "run", "--", "sh", "-c", &pingpong("-g 0", "echo ended")]);
    let why = text(&output.stderr);
    let has_reason = why.lines().any(|line| line.contains("its user stands for all others"));
    if output.status.success() && text(&output.stdout) == "ended\n" && has_reason {
        Verdict::Passed
    } else {
        Verdict::Failed(transcript(&output))
    }
}

/// Output of `rdma -j link` for the loopback device.
const LINK: &str = "[{\"ifindex\":0,\"ifname\":\"roxe0\",\"port\":1,\"state\":\"ACTIVE\",\"physical_state\":\"LINK_UP\",\
                    \"netdev\":\"lo\",\"netdev_index\":1}]\n";
/// Output of `rdma link` for the loopback device.
const LINK_TEXT: &str = "link roxe0/1 state ACTIVE physical_state LINK_UP netdev lo \n";

/// Checks the output of `rdma`, found by PATH and, if iproute2 is installed, at the paths of its
/// program.
fn lists_devices(prefix: &[&str]) -> Verdict {
    let script = "rdma link show -j; rdma link show roxe0/1; rdma res
        for full in /usr/bin/rdma /usr/sbin/rdma /sbin/rdma /bin/rdma; do test -e $full && $full -j link | grep -v roxe0; done
        true";
    let none = "0: roxe0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0 \n";
    exactly(&under_roxe(prefix, script), &format!("{LINK}{LINK_TEXT}{none}"))
}

const UCX_LINE: &str = "roxe: UCX does not use roxe0 in this process: only roxe run shows it /dev/infiniband/roxe0; \
                        start the program, or its mpirun, by roxe run\n";

/// Runs UCX without a view: it lists the devices and then opens files that only a view has.
fn ucx_without_view() -> Verdict {
    if !installed("ucx_info") {
        return Verdict::not_installed("ucx_info");
    }
    let env = format!("eval \"$({} env)\"; ucx_info -d", roxe());
    for (output, error, device) in [
        (run(&["sh", "-c", &env], &[]), UCX_LINE, false),
        (run(&[roxe(), "run", "--no-view", "--"], &["ucx_info", "-d"]), UCX_LINE, false),
        (run(&[roxe(), "run", "--"], &["ucx_info", "-d"]), "", true),
    ] {
        if text(&output.stderr) != error || text(&output.stdout).contains("roxe0") != device {
            return Verdict::Failed(transcript(&output));
        }
    }
    Verdict::Passed
}

/// Runs a program that lists devices before it loads UCX, like an MPI that tries libfabric first.
/// The library with UCX's name is a copy of libm.
fn ucx_loaded_later() -> Verdict {
    let script = "
import ctypes, shutil, tempfile
verbs = ctypes.CDLL('libibverbs.so.1')
verbs.ibv_get_device_list(None)
ctypes.CDLL('libm.so.6')
libm = next(line.split()[-1] for line in open('/proc/self/maps') if '/libm.so' in line or '/libm-' in line)
with tempfile.TemporaryDirectory() as folder:
    ctypes.CDLL(shutil.copy(libm, folder + '/libuct_ib.so.0'))
    for _ in range(2):
        verbs.ibv_get_device_list(None)
";
    let output = run(&[roxe(), "run", "--no-view", "--"], &["python3", "-c", script]);
    if output.status.success() && text(&output.stderr) == UCX_LINE {
        return Verdict::Passed;
    }
    Verdict::Failed(transcript(&output))
}

fn lists_without_view() -> Verdict {
    let script = format!("eval \"$({} env)\"; rdma -j link", roxe());
    let plain = run(&[roxe(), "rdma"], &["-j", "link"]);
    let unseen = run(&[roxe(), "run", "--no-view", "--"], &["rdma", "-j", "link"]);
    for output in [run(&["sh", "-c", &script], &[]), plain, unseen] {
        if let failed @ Verdict::Failed(_) = exactly(&output, LINK) {
            return failed;
        }
    }
    Verdict::Passed
}

/// Keys that `rdma` prints for objects of the kernel's rxe.
const KEYS: [(&str, &str); 6] = [
    ("qp", "ifindex ifname port lqpn rqpn type state rq-psn sq-psn path-mig-state pdn pid comm"),
    ("cq", "ifindex ifname cqn cqe users adaptive-moderation ctxn pid comm"),
    ("mr", "ifindex ifname mrn rkey lkey mrlen pdn pid comm"),
    ("pd", "ifindex ifname pdn local_dma_lkey users ctxn pid comm"),
    ("cm_id", "ifindex ifname port cm-idn lqpn qp-type state ps pid comm src-addr dst-addr"),
    ("ctx", "ifindex ifname ctxn pid comm"),
];

/// Lists the objects of both ends of rping while they run. The script prints the process id of the
/// client, then a line for each kind of object.
fn lists_objects() -> Verdict {
    if !installed("rping") {
        return Verdict::not_installed("rping");
    }
    let kinds: String = KEYS.map(|(kind, _)| format!("rdma -j res show {kind} pid $client; ")).concat();
    let script = format!(
        "rping -s -a 127.0.0.1 -C 100000000 >/dev/null & server=$!
        until rdma res show cm_id state LISTEN | grep -q \"pid $server comm rping \"; do kill -0 $server || exit 1; done
        rping -c -a 127.0.0.1 -C 100000000 >/dev/null & client=$!
        until rdma res show qp state RTS pid $client | grep -q rping; do kill -0 $client || exit 1; done
        echo $client; {kinds}
        rdma res show qp pid $client; rdma statistic qp show pid $client
        kill -KILL $server $client; wait; rdma res show qp"
    );
    // The script ends the programs, which the shell may report.
    let output = under_roxe(&[], &script);
    let stdout = text(&output.stdout);
    let mut lines = stdout.lines();
    let client = lines.next().unwrap_or_default();
    for (kind, keys) in KEYS {
        let line = lines.next().unwrap_or_default();
        let first = line.split('}').next().unwrap_or_default();
        let found: Vec<&str> =
            first.match_indices("\":").filter_map(|(end, _)| Some(first[..end].rsplit_once('"')?.1)).collect();
        if found.join(" ") != keys || !line.contains(&format!("\"pid\":{client},\"comm\":\"rping\"")) {
            return Verdict::Failed(format!("{kind} lacks keys or has others: {line}\n{}", transcript(&output)));
        }
    }
    let rest: Vec<&str> = lines.collect();
    let is_qp = |line: &str| line.starts_with("link roxe0/1 lqpn ") && line.contains(" type RC state RTS rq-psn ");
    let is_counter = |line: &str| line.starts_with("link roxe0/1 cntn ") && line.contains(" qp-type RC pid ");
    match rest.as_slice() {
        [qp, counter, .., last] if is_qp(qp) && is_counter(counter) && last.starts_with("    LQPN: <") => {
            Verdict::Passed
        }
        _ => Verdict::Failed(transcript(&output)),
    }
}

fn refuses_changes() -> Verdict {
    for (words, why) in [
        ("link show mlx5_0/1", "wrong device name: mlx5_0"),
        ("link add rxe0 type rxe netdev lo", "--netdev"),
        ("res show qp colour 3", "unsupported filter option: colour"),
        ("nonsense", "unknown object 'nonsense'"),
    ] {
        let output = under_roxe(&[], &format!("rdma {words}"));
        let is_one_line = text(&output.stderr).lines().count() == 1;
        if output.status.code() != Some(1) || !is_one_line || !text(&output.stderr).contains(why) {
            return Verdict::Failed(format!("rdma {words}: {}", transcript(&output)));
        }
    }
    Verdict::Passed
}

fn management_programs() -> Verdict {
    if !installed("perfquery") || !installed("ibstat") {
        return Verdict::not_installed("infiniband-diags");
    }
    let ibstat = run(&[roxe(), "run", "--"], &["ibstat"]);
    if !ibstat.status.success() || !text(&ibstat.stdout).contains("CA 'roxe0'") || !ibstat.stderr.is_empty() {
        return Verdict::Failed(transcript(&ibstat));
    }
    for program in ["perfquery", "ibhosts"] {
        let output = run(&[roxe(), "run", "--"], &[program]);
        let line = format!("roxe run: {program} sends management datagrams, which roxe does not carry");
        if !text(&output.stderr).starts_with(&line) {
            return Verdict::Failed(transcript(&output));
        }
    }
    Verdict::Passed
}

fn sum_of_processes() -> Verdict {
    if !installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let files = "cd /sys/class/infiniband/roxe0/ports/1; cat hw_counters/sent_pkts counters/port_xmit_packets \
                 hw_counters/rcvd_pkts counters/port_rcv_data";
    let script = pingpong("-g 0 -n 100 -s 100000", files);
    let output = run(&[roxe(), "run", "--stats", "--"], &["sh", "-c", &script]);
    let printed = |name| sum_printed(&text(&output.stderr), name);
    let sent = printed("sent_packets");
    // Each process rounds its own count down to words of 4 bytes.
    let words = printed("received_bytes") / 4;
    let Some([pkts, packets, received, data]) = numbers(&output) else {
        return Verdict::Failed(transcript(&output));
    };
    let same = pkts == sent && packets == sent && received == printed("received_packets");
    if sent > 200 && same && (words.saturating_sub(1)..=words).contains(&data) {
        Verdict::Passed
    } else {
        Verdict::Failed(format!("the files do not show the sums\n{}", transcript(&output)))
    }
}

/// Returns the sum of the counter `name` over all processes, as `--stats` printed it.
fn sum_printed(stderr: &str, name: &str) -> u64 {
    let values =
        stderr.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok());
    values.sum()
}

fn numbers<const N: usize>(output: &Output) -> Option<[u64; N]> {
    let lines: Vec<u64> = text(&output.stdout).lines().filter_map(|line| line.trim().parse().ok()).collect();
    lines.try_into().ok()
}

/// Checks that the counters of a running client change, and then stops it.
fn counters_change_while_running() -> Verdict {
    if !installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let script = "ibv_rc_pingpong -g 0 -n 100000000 >/dev/null & server=$!
        (until ibv_rc_pingpong -g 0 -n 100000000 127.0.0.1 >/dev/null 2>&1; do :; done) &
        cd /sys/class/infiniband/roxe0/ports/1/hw_counters
        until [ $(cat sent_pkts) -gt 0 ]; do :; done
        first=$(cat sent_pkts)
        until [ $(cat sent_pkts) -gt $first ]; do :; done
        kill -0 $server && echo moved
        trap '' TERM; kill 0; wait";
    let output = under_roxe(&["setsid", "--wait"], script);
    if text(&output.stdout) == "moved\n" { Verdict::Passed } else { Verdict::Failed(transcript(&output)) }
}

/// Kills two running programs once both have written their counters. On a busy machine one may do
/// so 1,000 packets before the other.
fn killed_processes_are_counted() -> Verdict {
    if !installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let script = "ibv_rc_pingpong -g 0 -n 100000000 >/dev/null & server=$!
        client() { exec ibv_rc_pingpong -g 0 -n 100000000 127.0.0.1 >/dev/null 2>&3; }
        counted() { grep -q ' sent_packets=' $ROXE_STATS_FILES/$1-roxe0; }
        exec 3>&2 2>/dev/null
        client & client=$!
        cd /sys/class/infiniband/roxe0/ports/1/hw_counters
        until [ $(cat sent_pkts) -gt 1000 ] && counted $server && counted $client; do
            kill -0 $client || { client & client=$!; }
        done
        kill -TERM $server; kill -KILL $client; wait; cat sent_pkts; echo $server; echo $client";
    let output = run(&[roxe(), "run", "--stats", "--"], &["sh", "-c", script]);
    let Some([sent, server, client]) = numbers(&output) else { return Verdict::Failed(transcript(&output)) };
    let stderr = text(&output.stderr);
    let printed = |pid: u64| stderr.lines().find(|line| line.contains(&format!("(process {pid}, killed")));
    let both = [server, client].map(|pid| printed(pid).map_or(0, |line| sum_printed(line, "sent_packets")));
    // A process writes its own counters just before it adds to the files of the view.
    if both.iter().all(|sent| *sent > 0) && both.iter().sum::<u64>() >= sent {
        Verdict::Passed
    } else {
        Verdict::Failed(format!("{both:?} of {sent}\n{}", transcript(&output)))
    }
}

fn perftest_reports() -> Verdict {
    if !installed("ib_write_bw") {
        return Verdict::not_installed("ib_write_bw");
    }
    let options = "-F -x 0 -n 2000 -s 65536 -p 18590";
    let names = "counters/port_xmit_data,hw_counters/sent_pkts,hw_counters/out_of_sequence";
    let script = format!(
        "ib_write_bw {options} >/dev/null & until grep -q :489E /proc/net/tcp; do kill -0 $! || exit 1; done; \
         ib_write_bw {options} --report-counters={names} 127.0.0.1; status=$?; wait; exit $status"
    );
    let output = under_roxe(&[], &script);
    let stdout = text(&output.stdout);
    let value = |name: &str| -> Option<u64> {
        let line = stdout.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
        line?.trim().parse().ok()
    };
    let (data, packets) = (value("counters/port_xmit_data"), value("hw_counters/sent_pkts"));
    let all = data.is_some_and(|words| words > 0) && packets.is_some_and(|count| count > 0);
    if output.status.success() && all && value("hw_counters/out_of_sequence").is_some() {
        Verdict::Passed
    } else {
        Verdict::Failed(format!("no counters\n{}", transcript(&output)))
    }
}

fn losses_are_counted() -> Verdict {
    if !installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let files = "cd /sys/class/infiniband/roxe0/ports/1/hw_counters; cat out_of_sequence packet_seq_err rnr_nak_retry_err send_rnr_err";
    // The faults end before the last message: a side with all its messages exits at once, and could
    // not repeat a lost acknowledgement.
    let rules = "seed=7; drop 3% times=60; rnr rx msg=3 times=2";
    let script = pingpong("-g 0 -n 100 -s 20000", files);
    let output = run(&[roxe(), "run", "--faults", rules, "--"], &["sh", "-c", &script]);
    match numbers::<4>(&output) {
        Some([gaps, naks, rnr_naks, refusals]) if gaps > 0 && naks > 0 && rnr_naks > 0 && refusals >= rnr_naks => {
            Verdict::Passed
        }
        _ => Verdict::Failed(format!("losses were not counted\n{}", transcript(&output))),
    }
}
