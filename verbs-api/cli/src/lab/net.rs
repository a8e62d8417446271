//! The network of a lab, the names of its hosts, and the commands that configure it.

use super::link::Link;
use super::scenario::{HOSTS, Host, MTUS, Scenario};
use crate::output::Result;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

/// Subcommand that process 1 of a lab runs.
pub(super) const SWITCH: &str = "lab-switch";
/// Environment variable with the number of a host.
pub(super) const HOST_NUMBER: &str = "LAB_HOST";
/// Environment variable with the fault rules that impair the link of a host.
pub(super) const RULES: &str = "LAB_FAULTS";

/// Environment variable that is set on hosts whose card is the kernel's rxe.
pub(super) const RXE: &str = "LAB_RXE";

/// The network between the hosts. Options override the scenario.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Net {
    /// Number of hosts [default: 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(HOSTS))]
    pub(super) hosts: Option<u8>,
    /// MTU of the links [default: 1500].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(MTUS))]
    pub(super) mtu: Option<u32>,
    /// Impair every link: a rate and its queue, a delay and its jitter, losses and congestion
    /// marks, such as '1gbit queue 100 20us jitter 5us loss 0.1% ecn 1%'.
    #[arg(long, value_name = "WORDS")]
    pub(super) link: Option<Link>,
    /// Give the hosts IPv6 addresses instead of IPv4 ones.
    #[arg(long)]
    pub(super) ipv6: bool,
    /// Write a capture of each link to this folder: host1.pcap, host2.pcap, ...
    #[arg(long, value_name = "DIR")]
    pub(super) captures: Option<PathBuf>,
    /// Make the last N hosts guests of QEMU with the kernel's rxe as their card (roxe help
    /// several-hosts).
    #[arg(long, value_name = "N")]
    pub(super) rxe_hosts: Option<u8>,
    /// Folder with boot and lib/modules of the kernel that they boot [default: /].
    #[arg(long, value_name = "DIR")]
    pub(super) kernel: Option<PathBuf>,
}

impl Net {
    pub(super) fn name(number: u8) -> String {
        format!("host{number}")
    }

    pub(super) fn hosts(&self) -> u8 {
        self.hosts.unwrap_or(2)
    }

    pub(super) fn mtu(&self) -> u32 {
        self.mtu.unwrap_or(1500)
    }

    /// Fills the options that are not given from the scenario.
    pub(super) fn complete(&mut self, scenario: &Scenario) -> Result<(), String> {
        let hosts = scenario.hosts.len() as u8;
        if self.hosts.is_some_and(|given| given != hosts) {
            return Err(format!("--hosts: the scenario has {hosts} hosts; change it there"));
        }
        if self.rxe_hosts.is_some() {
            return Err("--rxe-hosts: in a scenario, such a [[host]] has rxe = true".to_owned());
        }
        self.hosts = Some(hosts);
        self.mtu = self.mtu.or(scenario.mtu);
        self.ipv6 |= scenario.ipv6;
        self.captures = self.captures.take().or_else(|| scenario.captures.clone());
        self.kernel = self.kernel.take().or_else(|| scenario.kernel.clone());
        Ok(())
    }

    /// Returns the link of each host.
    pub(super) fn links(&self, hosts: &[Host]) -> Vec<Link> {
        hosts.iter().map(|host| self.link.as_ref().unwrap_or(&host.link).clone()).collect()
    }

    /// Returns the hosts of a lab without a scenario. Each runs the command of the lab.
    pub(super) fn plan(&self) -> Vec<Host> {
        let first = self.hosts().saturating_sub(self.rxe_hosts.unwrap_or_default());
        (0..self.hosts()).map(|at| Host { rxe: at >= first, ..Host::default() }).collect()
    }

    /// Refuses a number of rxe hosts that exceeds the number of hosts.
    pub(super) fn check(&self) -> Result<(), String> {
        let (all, rxe) = (self.hosts(), self.rxe_hosts.unwrap_or_default());
        if rxe <= all { Ok(()) } else { Err(format!("--rxe-hosts {rxe}: the lab has {all} hosts; add --hosts {rxe}")) }
    }

    pub(super) fn address(&self, number: u8) -> String {
        if self.ipv6 { format!("fd89::{number:x}") } else { format!("10.89.0.{number}") }
    }

    pub(super) fn prefix(&self) -> u8 {
        if self.ipv6 { 64 } else { 24 }
    }

    /// Returns the environment variables from which a command learns its role.
    pub(super) fn variables(&self, number: u8) -> [(&'static str, String); 4] {
        let list = |text: &dyn Fn(u8) -> String| (1..=self.hosts()).map(text).collect::<Vec<_>>().join(" ");
        [
            (HOST_NUMBER, number.to_string()),
            ("LAB_HOSTS", self.hosts().to_string()),
            ("LAB_NAMES", list(&Self::name)),
            ("LAB_ADDRS", list(&|number| self.address(number))),
        ]
    }

    /// Returns the command-line arguments that describe this network.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec![format!("--hosts={}", self.hosts()), format!("--mtu={}", self.mtu())];
        arguments.extend(self.ipv6.then(|| "--ipv6".to_owned()));
        arguments.extend(self.link.as_ref().map(|link| format!("--link={}", link.text)));
        arguments.extend(self.rxe_hosts.map(|number| format!("--rxe-hosts={number}")));
        let folders = [("--captures=", &self.captures), ("--kernel=", &self.kernel)];
        let folders = folders.into_iter().filter_map(|(name, folder)| {
            folder.as_ref().map(|folder| OsString::from_iter([OsStr::new(name), folder.as_os_str()]))
        });
        arguments.into_iter().map(OsString::from).chain(folders).collect()
    }

    /// Returns the lines of `/etc/hosts` for all hosts.
    pub(super) fn hosts_file(&self) -> String {
        let lines = (1..=self.hosts()).map(|number| format!("{} {}\n", self.address(number), Self::name(number)));
        format!("127.0.0.1 localhost\n::1 localhost\n{}", lines.collect::<String>())
    }
}

/// Adds a queueing discipline to an interface.
pub(super) fn tc(device: &str, qdisc: &[String]) -> Result<()> {
    let mut command = Command::new("tc");
    command.args(["qdisc", "add", "dev", device, "root"]).args(qdisc);
    let output =
        command.stdin(Stdio::null()).output().map_err(|cause| format!("cannot start tc of iproute2: {cause}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("tc failed: {}", stderr.trim()).into()) }
}

/// Returns the exit status as a shell reports it.
pub(super) fn status_of(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
