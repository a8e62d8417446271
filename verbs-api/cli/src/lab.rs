//! `roxe lab -- COMMAND`: several hosts on this machine, each with a network stack, a name and a
//! roxe card of its own, and one bridge between them.
//!
//! ```text
//! roxe lab ── makes a user and a process namespace, and waits
//!    └─ roxe lab-switch   process 1 there; the bridge is in its network namespace
//!         ├─ roxe lab-host 1   a network namespace; becomes roxe run -- COMMAND
//!         └─ roxe lab-host 2   ...
//! ```
//!
//! When `lab-switch` ends, the kernel ends every process of its namespace, and with them the
//! network namespaces; it ends with `roxe lab`, also if that is killed. Nothing is written to the
//! host's file system. `ip` and `tc` of iproute2 configure the links.

use crate::output::Result;
use crate::run::Options;
use crate::view::{make_mounts_private, unshare_user};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, sethostname};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;

/// Arguments of `roxe lab`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    net: Net,
    #[command(flatten)]
    options: Options,
    /// The command that every host runs, with its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND [ARGS]",
          value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// The network between the hosts.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Net {
    /// Number of hosts.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    hosts: u8,
    /// MTU of the links.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: u32,
    /// Impair every link: a rate, a delay, a jitter and losses, such as '10gbit 20us jitter 5us
    /// loss 0.1%'.
    #[arg(long, value_name = "WORDS", default_value = "")]
    link: Link,
    /// Give the hosts IPv6 addresses instead of IPv4 ones.
    #[arg(long)]
    ipv6: bool,
}

/// Arguments of the processes that `roxe lab` starts.
#[derive(Debug, clap::Args)]
pub(crate) struct InnerArgs {
    #[command(flatten)]
    net: Net,
    /// Number of this host, from 1.
    #[arg(long, default_value_t = 0)]
    number: u8,
    /// Arguments of `roxe run`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    run: Vec<OsString>,
}

/// Impairments of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Link {
    /// The words, as they were given.
    text: String,
    rate: Option<String>,
    delay: Option<String>,
    jitter: Option<String>,
    loss: Option<String>,
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut link = Self { text: text.to_owned(), ..Self::default() };
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let (place, value) = match word {
                "jitter" => (&mut link.jitter, words.next().filter(|value| is_quantity(value, &["us", "ms", "s"]))),
                "loss" => (&mut link.loss, words.next().filter(|value| is_quantity(value, &["%"]))),
                _ if is_quantity(word, &["kbit", "mbit", "gbit"]) => (&mut link.rate, Some(word)),
                _ if is_quantity(word, &["us", "ms", "s"]) => (&mut link.delay, Some(word)),
                _ => return Err(format!("{word:?} is no rate (10gbit), delay (20us), jitter TIME or loss P%")),
            };
            let value = value.ok_or_else(|| format!("{word} needs a value, such as jitter 5us or loss 0.1%"))?;
            if place.replace(value.to_owned()).is_some() {
                return Err(format!("{value}: given twice"));
            }
        }
        if link.jitter.is_some() && link.delay.is_none() {
            return Err("jitter needs a delay before it, such as 20us jitter 5us".to_owned());
        }
        Ok(link)
    }
}

/// Returns the number and the unit of a word such as `20us` or `0.1%`.
fn quantity(word: &str) -> Option<(f64, &str)> {
    let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
    let value = number.parse().ok().filter(|value| *value >= 0.0)?;
    Some((value, &word[number.len()..]))
}

/// Returns true for a decimal number followed by one of these units.
fn is_quantity(word: &str, units: &[&str]) -> bool {
    quantity(word).is_some_and(|(_, unit)| units.contains(&unit))
}

impl Link {
    /// Returns the arguments of `tc qdisc add dev DEV root netem`.
    fn netem(&self) -> Vec<String> {
        let words = [("rate", &self.rate), ("delay", &self.delay), ("", &self.jitter), ("loss", &self.loss)];
        let given = words.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value.clone()?]));
        given.flatten().filter(|word| !word.is_empty()).collect()
    }

    /// Returns fault rules that do the same to packets that a host receives.
    fn fault_rules(&self) -> Result<String, &'static str> {
        if self.rate.is_some() {
            return Err(
                "this kernel has no netem (sch_netem), and fault rules cannot limit a rate; leave the rate out",
            );
        }
        let delay = match (&self.delay, &self.jitter) {
            (Some(delay), Some(jitter)) => Some(format!("delay rx by={delay}..{}", sum(delay, jitter))),
            (Some(delay), None) => Some(format!("delay rx by={delay}")),
            (None, _) => None,
        };
        let loss = self.loss.as_ref().map(|loss| format!("drop rx {loss}"));
        Ok([loss, delay].into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// Adds two times; fault rules take whole microseconds.
fn sum(a: &str, b: &str) -> String {
    let micros = |text: &str| {
        let (value, unit) = quantity(text).unwrap_or_default();
        let scale = match unit {
            "us" => 1.0,
            "ms" => 1e3,
            _ => 1e6,
        };
        (value * scale) as u64
    };
    format!("{}us", micros(a) + micros(b))
}

impl Net {
    fn name(number: u8) -> String {
        format!("host{number}")
    }

    fn address(&self, number: u8) -> String {
        if self.ipv6 { format!("fd89::{number:x}") } else { format!("10.89.0.{number}") }
    }

    fn prefix(&self) -> u8 {
        if self.ipv6 { 64 } else { 24 }
    }

    /// Returns these arguments as words of a command line.
    fn words(&self) -> Vec<String> {
        let (hosts, mtu) = (format!("--hosts={}", self.hosts), format!("--mtu={}", self.mtu));
        let ipv6 = self.ipv6.then(|| "--ipv6".to_owned());
        [hosts, mtu, format!("--link={}", self.link.text)].into_iter().chain(ipv6).collect()
    }

    /// Returns the lines of `/etc/hosts` for all hosts.
    fn hosts_file(&self) -> String {
        let lines = (1..=self.hosts).map(|number| format!("{} {}\n", self.address(number), Self::name(number)));
        format!("127.0.0.1 localhost\n::1 localhost\n{}", lines.collect::<String>())
    }
}

/// Runs the lab; returns the exit status of the first host that failed.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Root may do without a user namespace.
    if !(Uid::effective().is_root() && unshare(CloneFlags::CLONE_NEWPID).is_ok()) {
        unshare_user(CloneFlags::CLONE_NEWPID, Uid::from_raw(0), Gid::from_raw(0)).map_err(|cause| {
            format!("this system grants no user namespace: {cause}; run as root, or allow unprivileged user namespaces")
        })?;
    }
    let mut switch = Command::new(own()?);
    switch.arg("lab-switch").args(args.net.words()).arg("--");
    switch.args(args.options.words()).arg("--").args(&args.command);
    // The first child after `unshare` is process 1 of the namespace.
    Ok(ExitCode::from(status_of(switch.status()?)))
}

fn own() -> Result<std::path::PathBuf> {
    Ok(crate::library::own_program().ok_or("roxe lab needs /proc: mount -t proc proc /proc")?)
}

/// A host and the ends of its streams.
struct Host {
    name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Host {
    fn start(args: &InnerArgs, number: u8, rules: &str) -> Result<Self> {
        let mut command = Command::new(own()?);
        command.arg("lab-host").args(args.net.words()).arg(format!("--number={number}")).arg("--");
        command.args(with_rules(&args.run, rules)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a host has no streams".into());
        };
        Ok(Self { name: Net::name(number), child, input, output: BufReader::new(output) })
    }

    /// Waits until the host reports that a step is done.
    fn await_step(&mut self) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line == DONE {
            return Ok(());
        }
        let mut said = String::new();
        self.child.stderr.take().map(|mut stream| stream.read_to_string(&mut said)).transpose()?;
        Err(format!("{} did not start: {}", self.name, said.trim().trim_start_matches("roxe lab-host: ")).into())
    }

    fn go_on(&mut self) -> Result<()> {
        Ok(self.input.write_all(DONE.as_bytes())?)
    }
}

/// Returns arguments of `roxe run` with `rules` in front of their fault rules.
fn with_rules(run: &[OsString], rules: &str) -> Vec<OsString> {
    let own =
        run.iter().take_while(|word| *word != "--").position(|word| word.as_bytes().starts_with(FAULTS.as_bytes()));
    let mut run = run.to_vec();
    match own.and_then(|at| run.get_mut(at)) {
        _ if rules.is_empty() => {}
        Some(word) => {
            let given = OsStr::from_bytes(&word.as_bytes()[FAULTS.len()..]);
            *word = OsString::from_iter([OsStr::new(FAULTS), OsStr::new(rules), OsStr::new("; "), given]);
        }
        None => run.insert(0, format!("{FAULTS}{rules}").into()),
    }
    run
}

/// Option of `roxe run` for fault rules.
const FAULTS: &str = "--faults=";

/// The line by which a host and the switch tell each other that a step is done.
const DONE: &str = "done\n";

/// `roxe lab-switch`: makes the bridge and the hosts, and prints what they print.
pub(crate) fn switch(args: &InnerArgs) -> Result<ExitCode> {
    set_pdeathsig(Signal::SIGKILL)?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
    make_mounts_private()?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>)
        .map_err(|cause| format!("cannot mount /proc for the lab: {cause}; in a container, unmask its paths"))?;
    if let Err(cause) = show_hosts_file(&args.net.hosts_file()) {
        eprintln!("roxe lab: hosts have no names in /etc/hosts: {cause}");
    }
    let mtu = args.net.mtu;
    ip(&format!("link add br0 mtu {mtu} type bridge mcast_snooping 0\nlink set br0 up\n"))?;
    let rules = impairment(&args.net.link)?;
    let mut hosts = (1..=args.net.hosts).map(|number| Host::start(args, number, &rules)).collect::<Result<Vec<_>>>()?;
    let mut links = String::new();
    for (number, host) in (1..).zip(&mut hosts) {
        host.await_step()?;
        let process = host.child.id();
        links += &format!("link add v{number} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {process}\n");
        links += &format!("link set v{number} master br0 up\n");
    }
    ip(&links)?;
    if !args.net.link.text.is_empty() && rules.is_empty() {
        for number in 1..=args.net.hosts {
            tc(&format!("v{number}"), &args.net.link)?;
        }
    }
    // All links are up before the first command starts.
    hosts.iter_mut().try_for_each(Host::go_on)?;
    hosts.iter_mut().try_for_each(Host::await_step)?;
    hosts.iter_mut().try_for_each(Host::go_on)?;
    let (report, ended) = mpsc::channel();
    let left = hosts.len();
    hosts.into_iter().try_for_each(|host| print(host, report.clone()))?;
    let failed = ended.into_iter().take(left).find(|(_, status)| *status != 0);
    let Some((name, status)) = failed else { return Ok(ExitCode::SUCCESS) };
    // When this process ends, the kernel ends the other hosts.
    eprintln!("roxe lab: {name} failed with exit status {status}; the other hosts are ended");
    Ok(ExitCode::from(status))
}

/// Prints the lines of a host behind its name until it ends, then reports its name and exit status.
fn print(mut host: Host, report: mpsc::Sender<(String, u8)>) -> Result<()> {
    let (name, errors) = (host.name.clone(), host.child.stderr.take());
    let copy_errors = thread::Builder::new().spawn(move || {
        let lines =
            errors.into_iter().flat_map(|stream| BufReader::new(stream).split(b'\n')).map_while(|line| line.ok());
        lines.for_each(|line| eprintln!("{name} | {}", String::from_utf8_lossy(&line)));
    })?;
    thread::Builder::new().spawn(move || {
        let Host { name, mut child, output, .. } = host;
        let lines = output.split(b'\n').map_while(|line| line.ok());
        lines.for_each(|line| println!("{name} | {}", String::from_utf8_lossy(&line)));
        let _ = copy_errors.join();
        // Nothing reads this any more once another host has failed.
        let _ = report.send((name, child.wait().map_or(1, status_of)));
    })?;
    Ok(())
}

/// `roxe lab-host`: makes the network namespace of a host and becomes `roxe run`.
pub(crate) fn host(args: &InnerArgs) -> Result<ExitCode> {
    let (net, number) = (&args.net, args.number);
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)?;
    sethostname(Net::name(number))?;
    // Without a file system of its own namespace a program sees the interfaces of the machine
    // there; roxe does not look.
    let _ = mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>);
    step()?;
    let (address, prefix) = (net.address(number), net.prefix());
    let nodad = if net.ipv6 { " nodad" } else { "" };
    ip(&format!("link set lo up\naddr add {address}/{prefix} dev eth0{nodad}\nlink set eth0 up\n"))?;
    step()?;
    let list = |of: &dyn Fn(u8) -> String| (1..=net.hosts).map(of).collect::<Vec<_>>().join(" ");
    let mut run = Command::new(own()?);
    run.args(["run", "--netdev", "eth0"]).args(&args.run).stdin(Stdio::null());
    run.env("LAB_HOST", number.to_string()).env("LAB_HOSTS", net.hosts.to_string());
    run.env("LAB_NAMES", list(&|number| Net::name(number))).env("LAB_ADDRS", list(&|number| net.address(number)));
    Err(run.exec().into())
}

/// Tells the switch that a step is done, and waits until it goes on.
fn step() -> Result<()> {
    io::stdout().write_all(DONE.as_bytes())?;
    io::stdout().flush()?;
    let mut line = [0; DONE.len()];
    Ok(io::stdin().read_exact(&mut line)?)
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

/// Returns fault rules that stand in for netem where the kernel lacks it, otherwise nothing.
fn impairment(link: &Link) -> Result<String> {
    if link.text.is_empty() {
        return Ok(String::new());
    }
    ip("link add probe0 type veth peer name probe1\n")?;
    let is_known = tc("probe0", link).is_ok();
    ip("link del probe0\n")?;
    if is_known {
        return Ok(String::new());
    }
    eprintln!("roxe lab: this kernel has no netem; fault rules of roxe impair RoCE packets, and no others");
    Ok(link.fault_rules()?)
}

/// Configures links by the lines of a batch of `ip`.
fn ip(batch: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let missing = |cause| format!("cannot start ip of iproute2: {cause}");
    let mut child = command.spawn().map_err(missing)?;
    child.stdin.take().map(|mut input| input.write_all(batch.as_bytes())).transpose()?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip failed: {}", said.trim()).into()) }
}

fn tc(device: &str, link: &Link) -> Result<()> {
    let mut command = Command::new("tc");
    command.args(["qdisc", "add", "dev", device, "root", "netem"]).args(link.netem());
    let output =
        command.stdin(Stdio::null()).output().map_err(|cause| format!("cannot start tc of iproute2: {cause}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("tc failed: {}", said.trim()).into()) }
}

/// Returns the exit status as a shell reports it.
fn status_of(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_words_become_netem_or_fault_rules() {
        let link: Link = "10gbit 20us jitter 5us loss 0.1%".parse().unwrap();
        assert_eq!(link.netem().join(" "), "rate 10gbit delay 20us 5us loss 0.1%");
        assert!(link.fault_rules().is_err());
        let rules = |text: &str| text.parse::<Link>().unwrap().fault_rules().unwrap();
        assert_eq!(rules("20us jitter 5us loss 0.1%"), "drop rx 0.1%; delay rx by=20us..25us");
        assert_eq!(rules("1ms"), "delay rx by=1ms");
        assert!(rules("20us jitter 5us loss 0.1%").parse::<roxe_transport::fault::Rules>().is_ok());
        assert_eq!(rules(""), "");
    }

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
    fn wrong_link_words_are_refused() {
        for text in ["fast", "loss", "loss 3", "jitter 5us", "1ms 2ms", "10gbit jitter", "-1ms", "loss -1%"] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_have_names_and_addresses() {
        let mut net = Net { hosts: 2, mtu: 1500, link: Link::default(), ipv6: false };
        assert!(net.hosts_file().ends_with("10.89.0.1 host1\n10.89.0.2 host2\n"));
        net.ipv6 = true;
        assert!(net.hosts_file().ends_with("fd89::1 host1\nfd89::2 host2\n"));
    }
}
