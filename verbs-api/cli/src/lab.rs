//! `roxe lab -- COMMAND` and `roxe lab FILE.toml`: several hosts on this machine, each with a
//! network stack, a name and a roxe card of its own, and one bridge between them.
//!
//! ```text
//! roxe lab ── makes a user and a process namespace, and waits
//!    └─ roxe lab-switch   process 1 there; the bridge is in its network namespace
//!         ├─ roxe lab-host 1   a network namespace; becomes roxe run -- COMMAND
//!         └─ roxe lab-host 2   ...
//! ```
//!
//! `lab-switch` ends with `roxe lab`, even if `roxe lab` is killed. Then the kernel ends every
//! process of the process namespace, and with them the network namespaces. Nothing is written to
//! the machine's file system. `ip` and `tc` of iproute2 configure the links.
//!
//! A host with the kernel's rxe has a guest of QEMU in its namespaces (`guest.rs`).
//!
//! `scenario.rs` reads the scenario. `director.rs` starts the hosts in the scenario's order and
//! changes their links; `control.rs` changes links by hand and opens shells. `net.rs` has names and
//! tools, `link.rs` the impairments, `capture.rs` the captures.

mod capture;
mod control;
mod director;
mod guest;
mod host;
mod link;
mod net;
mod scenario;

use crate::child::{ip, own};
use crate::files::create_folder;
use crate::output::Result;
use crate::run::Options;
use crate::view::{mount_own_proc, unshare_as_root};
use capture::Captures;
use control::Control;
use director::Director;
use guest::Guest;
use host::{Host, step};
use link::{Link, Shaper};
use net::{Net, RULES, SWITCH, status_of, tc};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::sethostname;
use scenario::Scenario;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Arguments of `roxe lab`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    net: Net,
    #[command(flatten)]
    control: Control,
    #[command(flatten)]
    options: Options,
    /// The command that every host runs, with its arguments; or a scenario, FILE.toml.
    #[arg(trailing_var_arg = true, required_unless_present_any = ["shell", "cut", "heal"],
          value_name = "COMMAND [ARGS]", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Arguments of the processes that `roxe lab` starts.
#[derive(Debug, clap::Args)]
pub(crate) struct InnerArgs {
    #[command(flatten)]
    net: Net,
    /// The scenario.
    #[arg(long)]
    scenario: Option<PathBuf>,
    /// Number of this host, from 1.
    #[arg(long, default_value_t = 0)]
    number: u8,
    /// Queueing discipline of this host's end of the link.
    #[arg(long)]
    uplink: Option<String>,
    /// This host is a guest with the kernel's rxe.
    #[arg(long)]
    rxe: bool,
    /// Port on which a program of this host will listen.
    #[arg(long)]
    listens: Option<u16>,
    /// Arguments of `roxe run`; a host without them is idle.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    run: Vec<OsString>,
}

/// Runs the lab, or acts on a running lab. Returns the exit status of the first host that failed.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.control.is_given() {
        return args.control.run(&args.command);
    }
    let file = scenario_of(&args.command);
    let mut net = args.net.clone();
    let scenario = file.map(scenario::read).transpose()?;
    if let Some(scenario) = &scenario {
        net.complete(scenario)?;
    }
    net.check()?;
    if let Some(folder) = &net.captures {
        create_folder(folder)?;
    }
    unshare_as_root(CloneFlags::CLONE_NEWPID)?;
    let mut switch = Command::new(own()?);
    switch.arg(SWITCH).args(net.arguments());
    switch.args(file.map(|file| OsString::from_iter([OsStr::new("--scenario="), file.as_os_str()])));
    let hosts = scenario.map_or_else(|| net.plan(), |scenario| scenario.hosts);
    if let Some(window) = link::window(&net.links(&hosts)).filter(|_| std::env::var_os(WINDOW).is_none()) {
        switch.env(WINDOW, window.to_string());
    }
    switch.arg("--").args(args.options.words());
    if file.is_none() {
        switch.arg("--").args(&args.command);
    }
    // The first child after `unshare` is process 1 of the namespace.
    let status = switch.status()?;
    // Opening the runtime folder removes the files of killed programs.
    let _ = roxe_provider::runtime_dir();
    Ok(ExitCode::from(status_of(status)))
}

/// Returns the file if the command is a scenario.
fn scenario_of(command: &[OsString]) -> Option<&Path> {
    let [word] = command else { return None };
    Some(Path::new(word)).filter(|file| file.extension().is_some_and(|end| end == "toml"))
}

/// Returns arguments of `roxe run` with `rules` in front of their fault rules.
fn with_rules(run: &[OsString], rules: &str) -> Vec<OsString> {
    let own = run
        .iter()
        .take_while(|word| *word != "--")
        .position(|word| word.as_bytes().starts_with(FAULTS_OPTION.as_bytes()));
    let mut run = run.to_vec();
    match own.and_then(|at| run.get_mut(at)) {
        _ if rules.is_empty() => {}
        Some(word) => {
            let given = OsStr::from_bytes(&word.as_bytes()[FAULTS_OPTION.len()..]);
            *word = OsString::from_iter([OsStr::new(FAULTS_OPTION), OsStr::new(rules), OsStr::new("; "), given]);
        }
        None => run.insert(0, format!("{FAULTS_OPTION}{rules}").into()),
    }
    run
}

/// Limit of the bytes in flight to one receiving process.
const WINDOW: &str = "ROXE_WINDOW";
/// Option of `roxe run` for fault rules.
const FAULTS_OPTION: &str = "--faults=";

/// `roxe lab-switch`: creates the bridge and the hosts, and prints the hosts' output.
pub(crate) fn switch(args: &InnerArgs) -> Result<ExitCode> {
    set_pdeathsig(Signal::SIGKILL)?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
    mount_own_proc()?;
    let net = &args.net;
    if let Err(cause) = show_hosts_file(&net.hosts_file()) {
        eprintln!("roxe lab: hosts have no names in /etc/hosts: {cause}");
    }
    let mtu = net.mtu();
    ip(&format!("link add br0 mtu {mtu} type bridge mcast_snooping 0\nlink set br0 up\n"))?;
    let plan = match &args.scenario {
        Some(file) => scenario::read(file)?,
        None => Scenario { hosts: net.plan(), ..Scenario::default() },
    };
    let links = net.links(&plan.hosts);
    let shaper = shaper(&links, mtu)?;
    let mut hosts = Vec::new();
    for ((number, host), link) in (1..).zip(&plan.hosts).zip(&links) {
        let run = match (&args.scenario, &host.run) {
            (None, _) => args.run.clone(),
            (Some(_), Some(command)) => {
                args.run.iter().cloned().chain(["--", "sh", "-c", command].map(OsString::from)).collect()
            }
            (Some(_), None) => Vec::new(),
        };
        let rules = link.fault_rules(shaper);
        if host.rxe && !rules.is_empty() {
            let name = Net::name(number);
            return Err(format!(
                "cannot impair the link of {name}: this takes the fault rules {rules:?}, which the kernel's rxe does \
                 not have; give {name} another link"
            )
            .into());
        }
        hosts.push(Host::start(net, number, host, &run, link.uplink(shaper, mtu), &rules)?);
    }
    let mut batch = String::new();
    // These files keep the network of a host alive after its command has ended, because its last
    // frames may still be in flight, and other hosts and scheduled events may use its link.
    let mut networks = Vec::new();
    for (number, host) in (1..).zip(&mut hosts) {
        host.await_step()?;
        let process = host.child.id();
        networks.push(File::open(format!("/proc/{process}/ns/net"))?);
        batch += &format!("link add v{number} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {process}\n");
        batch += &format!("link set v{number} master br0 up\n");
    }
    ip(&batch)?;
    for (number, link) in (1..).zip(&links) {
        if let Some(qdisc) = link.qdisc(shaper, mtu) {
            let failed = |cause| format!("cannot impair the link of {}: {cause}", Net::name(number));
            tc(&format!("v{number}"), &qdisc).map_err(failed)?;
        }
    }
    let ends: Vec<_> = (1..=net.hosts()).map(|number| (format!("v{number}"), Net::name(number))).collect();
    let captures = net.captures.as_deref().map(|folder| Captures::start(folder, &ends)).transpose()?;
    // All links are up before the first command starts.
    hosts.iter_mut().try_for_each(Host::proceed)?;
    let namespaces = hosts.iter_mut().map(Host::await_step).collect::<Result<Vec<_>>>()?;
    let status = Director::new(plan, hosts.into_iter().zip(namespaces)).run()?;
    captures.map_or(Ok(()), Captures::end)?;
    drop(networks);
    // When this process ends, the kernel ends the other hosts.
    Ok(ExitCode::from(status))
}

/// `roxe lab-host`: creates the network namespace of a host and becomes `roxe run`.
pub(crate) fn host(args: &InnerArgs) -> Result<ExitCode> {
    let (net, number) = (&args.net, args.number);
    // The seccomp profile of a container engine may refuse either.
    let refused = |what: &str, cause: Errno| {
        format!(
            "cannot {what}: {cause}; in a container, a lab needs --user 0 --cap-add sys_admin --cap-add net_admin \
             --security-opt unmask=all"
        )
    };
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)
        .map_err(|cause| refused("create a network namespace", cause))?;
    sethostname(Net::name(number)).map_err(|cause| refused("set the host's name", cause))?;
    // Without this mount, programs see the interfaces of the machine in /sys, which roxe does not
    // read.
    let _ = mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>);
    let guest = args.rxe.then(|| Guest::prepare(net, number, args.listens, command_of(&args.run))).transpose()?;
    step()?;
    if net.captures.is_some() {
        // Otherwise the capture would contain a batch of packets (UDP_SEGMENT) as one frame.
        ip("link set eth0 gso_max_segs 1\n")?;
    }
    if guest.is_none() {
        let (address, prefix) = (net.address(number), net.prefix());
        let nodad = if net.ipv6 { " nodad" } else { "" };
        ip(&format!("link set lo up\naddr add {address}/{prefix} dev eth0{nodad}\n"))?;
    }
    ip("link set eth0 up\n")?;
    if let Some(uplink) = &args.uplink {
        tc("eth0", &uplink.split(' ').map(str::to_owned).collect::<Vec<_>>())?;
    }
    let guest = guest.map(Guest::boot).transpose()?;
    step()?;
    if let Some(guest) = guest {
        return guest.run();
    }
    if args.run.is_empty() {
        // Waits until the switch ends, because this process keeps the namespaces alive.
        let _ = io::stdin().read(&mut [0]);
        return Ok(ExitCode::SUCCESS);
    }
    let mut run = Command::new(own()?);
    let rules = std::env::var(RULES).unwrap_or_default();
    run.args(["run", "--netdev", "eth0"]).args(with_rules(&args.run, &rules)).stdin(Stdio::null());
    Err(run.envs(net.variables(number)).exec().into())
}

/// Returns the command in arguments of `roxe run`.
fn command_of(run: &[OsString]) -> &[OsString] {
    run.iter().position(|word| word == "--").and_then(|at| run.get(at + 1..)).unwrap_or_default()
}

/// Shows `text` as `/etc/hosts`, in this mount namespace only.
fn show_hosts_file(text: &str) -> io::Result<()> {
    let places = ["/mnt", "/media", "/srv", "/opt"].map(Path::new);
    let place = places.into_iter().find(|place| place.is_dir());
    let place = place.ok_or_else(|| io::Error::other("no folder to mount a file system on"))?;
    mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    let file = place.join("hosts");
    fs::write(&file, text)?;
    mount(Some(&file), "/etc/hosts", None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(umount2(place, MntFlags::MNT_DETACH)?)
}

/// Chooses the mechanism that impairs the links: netem, if the kernel has it.
fn shaper(links: &[Link], mtu: u32) -> Result<Shaper> {
    let Some(wanted) = links.iter().find_map(|link| link.qdisc(Shaper::Netem, mtu)) else { return Ok(Shaper::Netem) };
    ip("link add probe0 type veth peer name probe1\n")?;
    let has_netem = tc("probe0", &wanted).is_ok();
    ip("link del probe0\n")?;
    if has_netem {
        return Ok(Shaper::Netem);
    }
    if links.iter().any(|link| !link.fault_rules(Shaper::Rules).is_empty()) {
        eprintln!("roxe lab: this kernel has no netem: fault rules of roxe delay and lose RoCE packets, and no others");
    }
    Ok(Shaper::Rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_rules_precede_rules_of_the_user() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let run = words(&["--check", "--faults=seed=1; ecn 1%", "--", "prog", "--faults=x"]);
        assert_eq!(with_rules(&run, ""), run);
        let joined = words(&["--check", "--faults=drop rx 1%; seed=1; ecn 1%", "--", "prog", "--faults=x"]);
        assert_eq!(with_rules(&run, "drop rx 1%"), joined);
        let plain = words(&["--", "prog", "--faults=x"]);
        assert_eq!(with_rules(&plain, "drop rx 1%"), words(&["--faults=drop rx 1%", "--", "prog", "--faults=x"]));
    }

    #[test]
    fn lone_toml_file_is_a_scenario() {
        let file = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            scenario_of(&words).map(Path::to_owned)
        };
        assert_eq!(file(&["dir/lab.toml"]), Some("dir/lab.toml".into()));
        assert_eq!((file(&["cat", "lab.toml"]), file(&["./lab"]), file(&[])), (None, None, None));
    }

    #[test]
    fn options_precede_a_scenario() {
        let scenario = Scenario { mtu: Some(9000), hosts: vec![scenario::Host::default(); 3], ..Scenario::default() };
        let mut net = Net::default();
        net.complete(&scenario).unwrap();
        assert_eq!((net.hosts(), net.mtu()), (3, 9000));
        let mut net = Net { mtu: Some(1400), ..Net::default() };
        net.complete(&scenario).unwrap();
        assert_eq!(net.arguments(), ["--hosts=3", "--mtu=1400"]);
        assert!(Net { hosts: Some(2), ..Net::default() }.complete(&scenario).is_err());
        assert!(Net { rxe_hosts: Some(1), ..Net::default() }.complete(&scenario).is_err());
    }

    #[test]
    fn last_hosts_have_the_kernels_rxe() {
        let mut net = Net { hosts: Some(3), rxe_hosts: Some(1), ..Net::default() };
        assert_eq!(net.plan().iter().map(|host| host.rxe).collect::<Vec<_>>(), [false, false, true]);
        assert!(net.check().is_ok());
        net.rxe_hosts = Some(4);
        assert!(net.check().is_err());
    }

    #[test]
    fn command_follows_options_of_run() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(command_of(&words(&["--check", "--", "prog", "--", "x"])), words(&["prog", "--", "x"]));
    }

    #[test]
    fn hosts_have_names_and_addresses() {
        let mut net = Net::default();
        assert!(net.hosts_file().ends_with("10.89.0.1 host1\n10.89.0.2 host2\n"));
        net.ipv6 = true;
        assert!(net.hosts_file().ends_with("fd89::1 host1\nfd89::2 host2\n"));
    }
}
