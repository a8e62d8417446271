//! Tests `roxe lab`: runs stock programs between hosts on one machine, as root and as an ordinary
//! user, and checks that nothing is left behind.

use roxe_tests::build;
use roxe_tests::cc::Compiled;
use roxe_tests::files::Scratch;
use roxe_tests::guest::kernel::Kernel;
use roxe_tests::guest::{Unavailable, link};
use roxe_tests::pair::{UNPRIVILEGED, installed};
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Script that runs a server on the first host, and on the others clients, which retry until it
/// listens.
const RPING: &str = "if [ $LAB_HOST = 1 ]; then exec rping -s -a $ADDR -C 5; fi
for i in $(seq 100); do rping -c -a $ADDR -C 5 -v && exit 0; sleep 0.1; done; exit 1";

pub(crate) fn main() -> ExitCode {
    // Prepare the kernel before entering the namespace, which has no network. Checks without a
    // guest also run if that fails.
    let _ = kernel();
    crate::alone("lab", || report::main(checks()))
}

/// Returns the kernel for guests, or the reason why no guest can run here. Fetches the kernel on
/// first use.
fn kernel() -> &'static Result<Kernel, Unavailable> {
    static KERNEL: OnceLock<Result<Kernel, Unavailable>> = OnceLock::new();
    KERNEL.get_or_init(Kernel::prepare)
}

fn checks() -> Vec<Check> {
    vec![
        Check::new("lab: rping between two hosts", || rping(&[], &[], "host1")),
        Check::new("lab: rping between two hosts of an ordinary user", || rping(&UNPRIVILEGED, &[], "host1")),
        Check::new("lab: rping over IPv6", || rping(&[], &["--ipv6"], "fd89::1")),
        Check::new("lab: rping with losses", || rping(&[], &["--link", "50us loss 2%"], "host1")),
        Check::new("lab: rate of a link is not exceeded", rate_is_kept),
        Check::new("lab: rate of a link is not exceeded for an ordinary user", rate_is_kept_for_others),
        Check::new("lab: delay of a link is not undercut", delay_is_kept),
        Check::new("lab: shells and idle hosts have the fault rules of their link", rules_reach_shells),
        Check::new("lab: each host has its name, address, interface and card", hosts_differ),
        Check::new("lab: failing host ends the others and sets the exit status", failure_ends_all),
        Check::new("lab: kill -9 leaves nothing behind", nothing_is_left),
        Check::new("lab: scenario starts hosts in order and waits for text and ports", scenario_orders),
        Check::new("lab: process number of another host is not taken for a listener", numbers_collide),
        Check::new("lab: scenario cuts and heals a link at its times", scenario_changes_links),
        Check::new("lab: network of a host remains after its command has ended", network_remains),
        Check::new("lab: scenario ends by failure and by timeout", scenario_ends),
        Check::new("lab: wrong scenario is refused with its place", scenario_refused),
        Check::new("lab: RC survives a link that is cut and healed by hand", || survives_cut(&[])),
        Check::new("lab: RC of an ordinary user survives a cut link", || survives_cut(&UNPRIVILEGED)),
        Check::new("lab: MPI over three hosts", || mpi(&[])),
        Check::new("lab: MPI over three hosts of an ordinary user", || mpi(&UNPRIVILEGED)),
        Check::new("lab: each link is captured", captures),
        Check::new("lab: RC between roxe and a guest with the kernel's rxe", || rxe_pingpong(&[])),
        Check::new("lab: RC of an ordinary user between roxe and the kernel's rxe", || rxe_pingpong(&UNPRIVILEGED)),
        Check::new("lab: listener of librdmacm in a guest lets other hosts start", rxe_listener),
        Check::new("lab: exit status of a guest is that of the lab", rxe_status),
        Check::new("lab: kill -9 ends guests", rxe_ends),
        Check::new("lab: missing kernel for a guest is reported", rxe_without_kernel),
    ]
}

fn lab(prefix: &[&str], options: &[&str], script: &str) -> Command {
    roxe_lab(&[prefix, &["timeout", "60"]].concat(), &[options, &["--", "sh", "-c", script]].concat())
}

/// Returns the command `roxe lab` with these arguments and this prefix.
fn roxe_lab(prefix: &[&str], arguments: &[&str]) -> Command {
    let roxe = build::roxe().display().to_string();
    let words: Vec<&str> = prefix.iter().copied().chain([roxe.as_str(), "lab"]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(arguments);
    command.stdin(Stdio::null()).env("XDG_CACHE_HOME", "/dev/null/none");
    command
}

/// Creates a folder for a check that every user can write to.
fn folder(name: &str) -> Scratch {
    let folder = Scratch::new(&format!("lab-{name}")).unwrap();
    fs::set_permissions(&*folder, fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Returns the path of a file in the folder.
fn in_folder(folder: &Scratch, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// Runs a scenario to its end.
fn scenario(name: &str, text: &str) -> Result<Output, Verdict> {
    scenario_in(&folder(name), &["timeout", "60"], &[], text)
}

/// Runs a scenario in this folder, with this command prefix and these options of `roxe lab`.
fn scenario_in(folder: &Scratch, prefix: &[&str], options: &[&str], text: &str) -> Result<Output, Verdict> {
    let file = in_folder(folder, "lab.toml");
    fs::write(&file, text).unwrap();
    output(roxe_lab(prefix, &[options, &[&file]].concat()).current_dir(&**folder))
}

/// The second host starts when the first has printed a text, the third when a program of the second
/// listens through librdmacm, the fourth when the third has ended.
fn scenario_orders() -> Verdict {
    let text = r#"
        [[host]]
        run = "echo one; echo is up; sleep 1000"
        prints = "is up"
        daemon = true
        [[host]]
        after = "host1"
        run = "echo two; rping -s -a host2 -C 5"
        listens = 7174
        [[host]]
        after = ["host1", 2]
        run = "echo three; rping -c -a host2 -C 5 -v"
        [[host]]
        after = 3
        run = "echo four"
    "#;
    judge_order("order", text, &["| one\n", "| two\n", "| three\n", "| four\n"], "host3 | ping data: rdma-ping-4")
}

/// Runs a scenario; checks that it succeeds and prints these lines in this order, and `other`
/// anywhere.
fn judge_order(name: &str, text: &str, lines: &[&str], other: &str) -> Verdict {
    let output = match scenario(name, text) {
        Ok(output) => output,
        Err(verdict) => return verdict,
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    let at: Option<Vec<_>> = lines.iter().map(|line| printed.find(line)).collect();
    if output.status.success() && at.is_some_and(|at| at.is_sorted()) && printed.contains(other) {
        return Verdict::Passed;
    }
    Verdict::Failed(text_of(&output))
}

/// In its own process namespace, the first host's server has the same process id as a process of
/// the second host in the lab's namespace. Host 2 starts its server only after host 3, which waits
/// for host 1, so host 2 must not count as ready before.
fn numbers_collide() -> Verdict {
    let text = r#"
        [[host]]
        run = """
        until [ -s number ]; do sleep 0.05; done
        exec unshare --pid --fork --mount-proc sh -c '
            echo $(($(cat number) - 1)) > /proc/sys/kernel/ns_last_pid
            rping -s -a host1 -C 1 & [ $! = $(cat number) ] || exit 9
            wait'
        """
        listens = 7174
        daemon = true
        [[host]]
        run = "echo $$ > number; until [ -e go ]; do sleep 0.05; done; rping -s -a host2 -C 1"
        listens = 7174
        daemon = true
        [[host]]
        after = 1
        run = "echo three; touch go"
        [[host]]
        after = 2
        run = "echo four; rping -c -a host2 -C 1"
    "#;
    judge_order("numbers", text, &["| three\n", "| four\n"], "")
}

/// The first host waits until its link goes down and comes up again; the second one has no command.
fn scenario_changes_links() -> Verdict {
    let text = r#"
        hosts = 2
        [[host]]
        run = """
        carrier() { cat /sys/class/net/eth0/carrier; }
        until [ "$(carrier)" = 0 ]; do :; done; echo cut
        until [ "$(carrier)" = 1 ]; do :; done; echo healed
        """
        [[event]]
        at = "1500ms"
        heal = 1
        [[event]]
        at = "1s"
        cut = "host1"
    "#;
    match scenario("cut", text) {
        Ok(output) => {
            let printed = text_of(&output);
            let events = ["1 s: the link of host1 is cut", "1.5 s: the link of host1 is healed"];
            if output.status.success()
                && printed.contains("host1 | cut\nhost1 | healed\n")
                && events.iter().all(|line| printed.contains(line))
            {
                Verdict::Passed
            } else {
                Verdict::Failed(printed)
            }
        }
        Err(verdict) => verdict,
    }
}

/// After the command of the second host has ended, that host still refuses connections (errno 111),
/// and its link can be cut and healed.
fn network_remains() -> Verdict {
    let text = r#"
        [[host]]
        after = "host2"
        run = """
        python3 -c 'import socket; print(socket.socket().connect_ex(("host2", 9)))'
        sleep 2
        """
        [[host]]
        run = "true"
        [[event]]
        at = "1s"
        cut = "host2"
        [[event]]
        at = "1100ms"
        heal = "host2"
    "#;
    match scenario("remains", text) {
        Ok(output) => judge_output(&output, 0, &["host1 | 111\n", "the link of host2 is healed"]),
        Err(verdict) => verdict,
    }
}

fn scenario_ends() -> Verdict {
    let failing = "[[host]]\nrun = \"sleep 1000\"\n[[host]]\nrun = \"exit 7\"\n";
    let late = "timeout = \"100ms\"\n[[host]]\nrun = \"sleep 1000\"\n";
    let after = "run = \"true\"\n[[host]]\nrun = \"sleep 1000\"\nafter = \"host1\"\n";
    let deaf = format!("[[host]]\nlistens = 7174\n{after}");
    let mute = format!("[[host]]\nprints = \"ready\"\n{after}");
    for (text, status, line) in [
        (failing, 7, "host2 failed with exit status 7"),
        (late, 124, "did not end within 100ms"),
        (&deaf, 1, "host1 has ended and never listened on port 7174, for which host2 waits"),
        (&mute, 1, "host1 has ended and never printed \"ready\", for which host2 waits"),
    ] {
        match scenario("ends", text) {
            Ok(output) if output.status.code() == Some(status) && text_of(&output).contains(line) => {}
            Ok(output) => return Verdict::Failed(text_of(&output)),
            Err(verdict) => return verdict,
        }
    }
    Verdict::Passed
}

fn scenario_refused() -> Verdict {
    let text = "[[host]]\nrun = \"true\"\n[[host]]\nrun = \"true\"\nafter = 3\n";
    match scenario("refused", text) {
        Ok(output)
            if output.status.code() == Some(1)
                && text_of(&output).contains("lab.toml: host 2: after: no such host")
                && output.stdout.is_empty() =>
        {
            Verdict::Passed
        }
        Ok(output) => Verdict::Failed(text_of(&output)),
        Err(verdict) => verdict,
    }
}

/// Shell functions for the second host while its ib_write_bw runs: the PSN of the newest request,
/// and the number of timeouts.
const PROGRESS: &str = r#"
psn() { rdma res show qp type RC state RTS | sed -n "s/.* sq-psn \([0-9]*\) .*/\1/p"; }
timeouts() { rdma statistic qp show | sed -n "s/^ *local_ack_timeout_err \([0-9]*\) */\1/p"; }
"#;

fn survives_cut(prefix: &[&str]) -> Verdict {
    if !prefix.is_empty() && !link::is_root() {
        return Verdict::Skipped("needs root, to become an ordinary user".to_owned());
    }
    if let Err(verdict) = output(&mut lab(prefix, &[], "true")) {
        return verdict;
    }
    if !installed("ib_write_bw") {
        return Verdict::not_installed("ib_write_bw");
    }
    // Seven retries with a timeout of half a second outlast the cut.
    let script = "options='-F -x 0 -u 17 -s 1000 --run_infinitely'
        if [ $LAB_HOST = 1 ]; then exec ib_write_bw $options; fi
        until ib_write_bw $options host1; do sleep 0.1; done";
    let mut running =
        match roxe_lab(prefix, &["--", "sh", "-c", script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(running) => running,
            Err(e) => return Verdict::Failed(e.to_string()),
        };
    let verdict = cut_and_heal(prefix, &running.id().to_string());
    let _ = running.kill();
    let _ = running.wait();
    verdict
}

/// Condition that is true while new requests are sent, which stops when too many are
/// unacknowledged.
const GROWS: &str = "before=$(psn); sleep 0.1; [ \"$before\" ] && [ \"$(psn)\" != \"$before\" ]";

/// Waits until the second host makes progress, cuts its link, waits for two timeouts, heals the
/// link and waits for progress.
fn cut_and_heal(prefix: &[&str], process: &str) -> Verdict {
    let act = |words: &[&str]| {
        let output = roxe_lab(&[prefix, &["timeout", "30"]].concat(), &[&["--lab", process], words].concat()).output();
        output.unwrap_or_else(|e| panic!("cannot start timeout: {e}"))
    };
    let wait_for = |condition: &str| {
        let script = format!("{PROGRESS} until {condition}; do :; done; echo reached");
        act(&["--shell", "2", "--", "sh", "-c", &script])
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    // The host exists once the lab is up.
    while !act(&["--shell", "host2", "--", "true"]).status.success() {
        if Instant::now() > deadline {
            return Verdict::Failed("the second host does not appear".to_owned());
        }
    }
    let missing = act(&["--cut", "3"]);
    if missing.status.success() || !text_of(&missing).contains("host3 does not exist") {
        return Verdict::Failed(format!("a missing host was not reported: {}", text_of(&missing)));
    }
    let cut = |words: &[&str], carrier: &str| {
        let output = act(words);
        if !output.status.success() {
            return output;
        }
        wait_for(&format!("[ \"$(cat /sys/class/net/eth0/carrier)\" = {carrier} ]"))
    };
    let steps: [&dyn Fn() -> Output; 6] = [
        &|| wait_for("[ \"$(psn)\" ]"),
        &|| wait_for(GROWS),
        &|| cut(&["--cut", "2"], "0"),
        &|| wait_for("[ \"$(timeouts)\" -ge 2 ]"),
        &|| cut(&["--heal", "host2"], "1"),
        &|| wait_for(GROWS),
    ];
    for (number, step) in steps.iter().enumerate() {
        let output = step();
        if !output.status.success() || !text_of(&output).contains("reached") {
            return Verdict::Failed(format!("step {number}: {}", text_of(&output)));
        }
    }
    Verdict::Passed
}

/// Runs one rank on each host. docs/how-to/several-hosts.md has the script with which mpirun
/// reaches the other hosts.
fn mpi(prefix: &[&str]) -> Verdict {
    if !prefix.is_empty() && !link::is_root() {
        return Verdict::Skipped("needs root, to become an ordinary user".to_owned());
    }
    if let Some(missing) = ["mpicc.openmpi", "mpirun.openmpi"].into_iter().find(|tool| !installed(tool)) {
        return Verdict::not_installed(missing);
    }
    let folder = folder("mpi");
    let tag = format!("lab-{}", prefix.len());
    let exchange = match Compiled::new("mpicc.openmpi", "mpi/exchange.c", &[], &tag) {
        Ok(exchange) => exchange,
        Err(why) => return Verdict::Failed(why),
    };
    let page = include_str!("../../../../docs/how-to/several-hosts.md");
    let (_, script) = page.split_once("```sh,file=rsh.sh\n").expect("the page has the script");
    let (script, _) = script.split_once("```").expect("the script ends");
    let text = r#"
        hosts = 3
        [[host]]
        run = """
        exec mpirun.openmpi --allow-run-as-root --host host1,host2,host3 --mca plm_rsh_agent "sh $PWD/rsh.sh" \
            --mca pml ucx --mca btl ^openib,ofi -x UCX_TLS=rc_v,self ./exchange
        """
    "#;
    let files = fs::write(folder.join("rsh.sh"), script)
        .and_then(|()| fs::write(folder.join("lab.toml"), text))
        .and_then(|()| fs::copy(&exchange.program, folder.join("exchange")));
    if let Err(e) = files {
        return Verdict::Failed(e.to_string());
    }
    let bin = build::roxe().parent().map(|bin| bin.display().to_string()).unwrap_or_default();
    let mut lab = roxe_lab(&[prefix, &["timeout", "60"]].concat(), &[&in_folder(&folder, "lab.toml")]);
    lab.current_dir(&*folder).env("HOME", &*folder).env("PATH", format!("{bin}:/usr/bin:/bin:/usr/sbin:/sbin"));
    match output(&mut lab) {
        Ok(output) if output.status.success() && text_of(&output).contains("bytes as expected") => Verdict::Passed,
        Ok(output) => Verdict::Failed(text_of(&output)),
        Err(verdict) => verdict,
    }
}

fn captures() -> Verdict {
    let folder = folder("captures");
    let files = in_folder(&folder, "links");
    match output(lab(&[], &["--captures", &files], RPING).env("ADDR", "host1")) {
        Ok(output) if output.status.success() => {}
        Ok(output) => return Verdict::Failed(text_of(&output)),
        Err(verdict) => return verdict,
    }
    for host in ["host1", "host2"] {
        let file = format!("{files}/{host}.pcap");
        let dump = Command::new(build::roxe()).args(["dump", "--check", &file]).output().unwrap();
        let printed = text_of(&dump);
        if !dump.status.success() || !printed.contains("WRITE") || !printed.contains("icrc ok") {
            return Verdict::Failed(printed);
        }
    }
    Verdict::Passed
}

/// Runs a lab. Returns its output, or a verdict if labs cannot run here.
fn output(command: &mut Command) -> Result<Output, Verdict> {
    if let Some(tool) = ["ip", "setpriv", "rping"].into_iter().find(|tool| !installed(tool)) {
        return Err(Verdict::not_installed(tool));
    }
    let output = command.output().map_err(|e| Verdict::Failed(e.to_string()))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    if printed.contains("grants no user namespace") {
        return Err(Verdict::Skipped(printed.trim().to_owned()));
    }
    Ok(output)
}

fn text_of(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn rping(prefix: &[&str], options: &[&str], address: &str) -> Verdict {
    if !prefix.is_empty() && !link::is_root() {
        return Verdict::Skipped("needs root, to become an ordinary user".to_owned());
    }
    match output(lab(prefix, options, RPING).env("ADDR", address)) {
        Ok(output) if output.status.success() && text_of(&output).contains("host2 | ping data: rdma-ping-4") => {
            Verdict::Passed
        }
        Ok(output) => Verdict::Failed(text_of(&output)),
        Err(verdict) => verdict,
    }
}

/// Returns a script that runs server and client of a program of perftest.
fn perftest(program: &str) -> String {
    format!(
        "if [ $LAB_HOST = 1 ]; then exec {program} -F -x 0 >&2; fi
        for i in $(seq 100); do {program} -F -x 0 host1 && exit 0; sleep 0.1; done; exit 1"
    )
}

/// Runs a program of perftest over links with these rules. Returns the numbers of its last line.
fn figures(prefix: &[&str], link: &str, program: &str) -> Result<Vec<f64>, Verdict> {
    if let Some(missing) = program.split(' ').next().filter(|program| !installed(program)) {
        return Err(Verdict::not_installed(missing));
    }
    let output = output(&mut lab(prefix, &["--link", link], &perftest(program)))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let numbers = |line: &str| {
        let words = line.strip_prefix("host2 | ")?.split_whitespace();
        words.map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>().filter(|numbers| numbers.len() > 3)
    };
    let last = printed.lines().filter_map(numbers).next_back();
    last.filter(|_| output.status.success()).ok_or_else(|| Verdict::Failed(text_of(&output)))
}

fn rate_is_kept() -> Verdict {
    rate(&[])
}

fn rate_is_kept_for_others() -> Verdict {
    if link::is_root() {
        rate(&UNPRIVILEGED)
    } else {
        Verdict::Skipped("needs root, to become an ordinary user".into())
    }
}

/// Checks that perftest measures at most 20 Mb/s, and 2 % more, because tbf sends a burst after a
/// pause.
fn rate(prefix: &[&str]) -> Verdict {
    match figures(prefix, "20mbit queue 50", "ib_write_bw -s 65536 -n 20 --report_gbits") {
        Ok(figures) if (0.0..=0.0204).contains(&figures[3]) => Verdict::Passed,
        Ok(figures) => Verdict::Failed(format!("{figures:?}: more than 0.02 Gb/s on average")),
        Err(verdict) => verdict,
    }
}

/// Checks that a READ takes at least 100 µs, because it crosses both links.
fn delay_is_kept() -> Verdict {
    match figures(&[], "50us", "ib_read_lat -s 64 -n 2000") {
        Ok(figures) if figures[2] >= 100.0 => Verdict::Passed,
        Ok(figures) => Verdict::Failed(format!("{figures:?}: less than 100 us at least")),
        Err(verdict) => verdict,
    }
}

/// Opens a shell on the third host, which has no command.
fn rules_reach_shells() -> Verdict {
    let folder = folder("shells");
    let file = in_folder(&folder, "lab.toml");
    let roxe = build::roxe().display().to_string();
    let text = format!(
        "hosts = 3
        link = \"ecn 1%\"
        [[host]]
        run = \"{roxe} lab --shell 3 -- ibv_devinfo\"
        [[host]]
        run = \"echo $LAB_FAULTS\""
    );
    fs::write(&file, text).unwrap();
    match output(roxe_lab(&["timeout", "60"], &[&file]).current_dir(&*folder)) {
        Ok(output) => {
            let printed = text_of(&output);
            let lines = ["ecn 1% rx: 0 packets matched", "host2 | ecn rx 1%"];
            let is_good = output.status.success() && lines.iter().all(|line| printed.contains(line));
            if is_good { Verdict::Passed } else { Verdict::Failed(printed) }
        }
        Err(verdict) => verdict,
    }
}

fn hosts_differ() -> Verdict {
    let script = "echo $(hostname) $LAB_HOST/$LAB_HOSTS $LAB_NAMES $LAB_ADDRS $(ls /sys/class/net | tr '\\n' ' ') \
                  $(ls /sys/class/infiniband) $(grep host3 /etc/hosts)";
    let output = match output(&mut lab(&[], &["--hosts", "3"], script)) {
        Ok(output) => output,
        Err(verdict) => return verdict,
    };
    let text = text_of(&output);
    for number in 1..=3 {
        let line = format!(
            "host{number} | host{number} {number}/3 host1 host2 host3 10.89.0.1 10.89.0.2 10.89.0.3 eth0 lo roxe0 \
             10.89.0.3 host3\n"
        );
        if !text.contains(&line) {
            return Verdict::Failed(format!("no line {line:?} in\n{text}"));
        }
    }
    Verdict::Passed
}

fn failure_ends_all() -> Verdict {
    let started = Instant::now();
    match output(&mut lab(&[], &["--hosts", "3"], "[ $LAB_HOST = 2 ] && exit 7; sleep 1000")) {
        Ok(output) if output.status.code() == Some(7) && started.elapsed() < Duration::from_secs(50) => Verdict::Passed,
        Ok(output) => Verdict::Failed(text_of(&output)),
        Err(verdict) => verdict,
    }
}

/// Returns the number of processes whose command line contains this text.
fn processes(mark: &str) -> usize {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = folders.filter_map(|folder| fs::read(folder.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(mark.len()).any(|part| part == mark.as_bytes())).count()
}

/// Calls `judge` with the version of the kernel for guests and its folder. Skips if no guest can
/// run.
fn with_kernel(judge: impl FnOnce(&str, String) -> Result<Verdict, Verdict>) -> Verdict {
    match kernel() {
        Ok(kernel) => {
            let folder = kernel.image.ancestors().nth(2).expect("the image is in a folder `boot`");
            judge(&kernel.version, folder.display().to_string()).unwrap_or_else(|verdict| verdict)
        }
        Err(Unavailable(why)) => Verdict::Skipped(why.clone()),
    }
}

/// Checks that the lab exited with this status and printed all these lines.
fn judge_output(output: &Output, status: i32, lines: &[&str]) -> Verdict {
    let printed = text_of(output);
    let is_good = output.status.code() == Some(status) && lines.iter().all(|line| printed.contains(line));
    if is_good { Verdict::Passed } else { Verdict::Failed(printed) }
}

/// Runs a scenario with a guest to its end, with this command prefix. Adds the last packets of the
/// second host to the output of a scenario that fails.
fn rxe_scenario(name: &str, prefix: &[&str], text: &str) -> Result<Output, Verdict> {
    let folder = folder(name);
    let captures = in_folder(&folder, "captures");
    let prefix = [prefix, &["timeout", BOOT_LIMIT]].concat();
    let mut output = scenario_in(&folder, &prefix, &["--captures", &captures], text)?;
    if !output.status.success() {
        let dump = Command::new(build::roxe()).arg("dump").arg(format!("{captures}/host2.pcap")).output();
        let packets = dump.map(|dump| text_of(&dump)).unwrap_or_else(|error| error.to_string());
        output.stderr.extend(report::last_lines(&packets, 30).into_bytes());
    }
    Ok(output)
}

/// Time limit in seconds of a lab with a guest, which boots in ten seconds on an idle machine.
const BOOT_LIMIT: &str = "240";

/// A script for `sh` that shows the folder `$0` as `$1` and starts the rest of its arguments.
const SHOW: &str = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";

/// Runs a pingpong that compares the data. The first host is the guest.
fn rxe_pingpong(user: &[&str]) -> Verdict {
    with_kernel(|version, kernel| {
        // The home folder of root, which may hold this checkout, is closed to other users.
        let place = folder("rxe-kernel");
        let place = place.display().to_string();
        let shown = ["unshare", "--mount", "sh", "-c", SHOW, &kernel, &place];
        let (folder, prefix) = if user.is_empty() { (&kernel, vec![]) } else { (&place, [&shown, user].concat()) };
        let text = format!(
            r#"
            kernel = "{folder}"
            [[host]]
            rxe = true
            run = "echo $(hostname) of $LAB_ADDRS has $(uname -r); exec ibv_rc_pingpong -d rxe0 -g 1 -c -n 200"
            listens = 18515
            [[host]]
            after = 1
            run = "exec ibv_rc_pingpong -g 0 -c -n 200 host1"
            "#
        );
        let output = rxe_scenario(&format!("rxe-{}", prefix.len()), &prefix, &text)?;
        let first = format!("host1 | host1 of 10.89.0.1 10.89.0.2 has {version}\n");
        Ok(judge_output(&output, 0, &[&first, "host1 | 200 iters", "host2 | 200 iters"]))
    })
}

fn rxe_listener() -> Verdict {
    with_kernel(|_, folder| {
        let text = format!(
            r#"
            kernel = "{folder}"
            ipv6 = true
            [[host]]
            rxe = true
            run = "exec rping -s -a host1 -C 5"
            listens = 7174
            [[host]]
            after = 1
            run = "exec rping -c -a host1 -C 5 -v"
            "#
        );
        let output = rxe_scenario("rxe-listener", &[], &text)?;
        Ok(judge_output(&output, 0, &["host2 | ping data: rdma-ping-4"]))
    })
}

fn rxe_status() -> Verdict {
    with_kernel(|_, folder| {
        let script = "if [ $LAB_RXE ]; then echo to errors >&2; exit 7; fi; exec sleep 1000";
        let options = ["--hosts", "3", "--rxe-hosts", "1", "--kernel", &folder, "--", "sh", "-c", script];
        let output = output(&mut roxe_lab(&["timeout", BOOT_LIMIT], &options))?;
        Ok(judge_output(&output, 7, &["host3 | to errors\n", "host3 failed with exit status 7"]))
    })
}

/// The mark is a symbolic link to the kernel's folder, whose name is in QEMU's command line.
fn rxe_ends() -> Verdict {
    with_kernel(|_, kernel| {
        let folder = folder("rxe-ends");
        let mark = in_folder(&folder, "kernel");
        symlink(kernel, &mark).unwrap();
        let options = ["--rxe-hosts", "1", "--kernel", &mark, "--", "sh", "-c", "echo started; exec sleep 1000"];
        Ok(ends_with_lab(&mark, &mut roxe_lab(&["timeout", BOOT_LIMIT], &options)))
    })
}

fn rxe_without_kernel() -> Verdict {
    with_kernel(|_, _| {
        let options = ["--rxe-hosts", "1", "--kernel", "/dev/null/none", "--", "true"];
        let output = output(&mut roxe_lab(&["timeout", "60"], &options))?;
        let line = "roxe lab: host2 did not start: no kernel with rdma_rxe in /dev/null/none; install ";
        Ok(judge_output(&output, 1, &[line]))
    })
}

fn nothing_is_left() -> Verdict {
    let mark = format!("1{:09}", std::process::id());
    ends_with_lab(&mark, &mut lab(&[], &[], &format!("setsid sleep {mark} & echo started; sleep {mark}")))
}

/// Kills a lab when a host has printed a line. Then no process may remain whose command line
/// contains `mark`.
fn ends_with_lab(mark: &str, lab: &mut Command) -> Verdict {
    let mut child = match lab.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(e) => return Verdict::Failed(e.to_string()),
    };
    let mut output = [0; 40];
    let read = child.stdout.take().and_then(|mut stream| stream.read(&mut output).ok());
    let before = processes(mark);
    // The child is `timeout`, which ends with the lab.
    let _ = Command::new("pkill").args(["-9", "-f", &format!("roxe lab .*{mark}")]).status();
    let _ = child.wait();
    let deadline = Instant::now() + Duration::from_secs(10);
    while processes(mark) > 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(20));
    }
    match (read, before, processes(mark)) {
        (Some(1..), 3.., 0) => Verdict::Passed,
        (read, before, after) => Verdict::Failed(format!("read {read:?}; {before} processes before, {after} after")),
    }
}
