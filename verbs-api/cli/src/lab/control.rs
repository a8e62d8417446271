//! Acts on a running lab: opens a shell on a host, cuts or heals a link.
//!
//! In /proc, the command line of its process 1 identifies a lab, and a variable with the host's
//! number identifies a host. `nsenter` of util-linux enters their namespaces.

use super::net::{HOST_NUMBER, Net, RULES, RXE, SWITCH, status_of};
use super::scenario;
use crate::child::own;
use crate::output::Result;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Options of `roxe lab` for a lab that runs.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Control {
    /// Run a shell, or COMMAND, on this host of the lab that runs.
    #[arg(long, value_name = "HOST", conflicts_with_all = ["cut", "heal"], value_parser = parse_number)]
    shell: Option<u8>,
    /// Cut the link of this host of the lab that runs.
    #[arg(long, value_name = "HOST", conflicts_with = "heal", value_parser = parse_number)]
    cut: Option<u8>,
    /// Heal the link of this host of the lab that runs.
    #[arg(long, value_name = "HOST", value_parser = parse_number)]
    heal: Option<u8>,
    /// Process id of the roxe lab to act on, if several run.
    #[arg(long, value_name = "PID")]
    lab: Option<u32>,
}

fn parse_number(text: &str) -> Result<u8, String> {
    scenario::parse_host(text).ok_or_else(|| "a host is needed, such as 2 or host2".to_owned())
}

/// A running lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lab {
    /// Process id of `roxe lab`.
    pid: u32,
    /// Process id of the lab's process 1, as this process sees it.
    switch: u32,
}

impl Control {
    pub(super) fn is_given(&self) -> bool {
        self.shell.or(self.cut).or(self.heal).is_some()
    }

    pub(super) fn run(&self, command: &[OsString]) -> Result<ExitCode> {
        let lab = choose(&labs(), self.lab)?;
        match (self.shell, self.cut, self.heal) {
            (Some(host), ..) => Err(shell(lab, host, command)?.exec().into()),
            (None, Some(host), _) => set_link(lab, host, "down"),
            (None, None, host) => set_link(lab, host.unwrap_or_default(), "up"),
        }
    }
}

fn choose(labs: &[Lab], pid: Option<u32>) -> Result<Lab> {
    let fits: Vec<Lab> = labs.iter().filter(|lab| pid.is_none_or(|pid| pid == lab.pid)).copied().collect();
    match fits.as_slice() {
        [lab] => Ok(*lab),
        [] => Err("no lab of this user runs; start one: roxe lab --hosts 2 -- COMMAND".into()),
        _ => {
            let all = fits.iter().map(|lab| lab.pid.to_string()).collect::<Vec<_>>().join(", ");
            Err(format!("several labs run; name one by --lab PID: {all}").into())
        }
    }
}

/// Returns the labs whose processes this user can see.
fn labs() -> Vec<Lab> {
    let is_switch = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(SWITCH.as_bytes())
    };
    let switches = processes().filter(is_switch);
    let mut labs: Vec<Lab> = switches.filter_map(|switch| Some(Lab { pid: parent(switch)?, switch })).collect();
    labs.sort_by_key(|lab| lab.pid);
    labs
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// Returns the first process of a host and the environment of that process.
fn host(lab: Lab, number: u8) -> Result<(u32, BTreeMap<OsString, OsString>)> {
    let wanted = number.to_string();
    let mut children = processes().filter(|pid| parent(*pid) == Some(lab.switch));
    let found = children.find_map(|pid| {
        let variables = environment(&fs::read(format!("/proc/{pid}/environ")).ok()?);
        let is_wanted = variables.get(OsStr::new(HOST_NUMBER)).is_some_and(|value| value == wanted.as_str());
        is_wanted.then_some((pid, variables))
    });
    found.ok_or_else(|| format!("{} does not exist, or its command has ended", Net::name(number)).into())
}

fn environment(bytes: &[u8]) -> BTreeMap<OsString, OsString> {
    let pair = |text: &[u8]| {
        let at = text.iter().position(|byte| *byte == b'=')?;
        let (name, value) = text.split_at(at);
        Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value.get(1..)?.to_vec())))
    };
    bytes.split(|byte| *byte == 0).filter_map(pair).collect()
}

/// Returns a command that enters `namespaces` of process `pid`, and the user namespace if this
/// process is in another one.
fn enter(pid: u32, namespaces: &[&str]) -> Command {
    let user = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let mut command = Command::new("nsenter");
    command.arg("-t").arg(pid.to_string()).args(namespaces);
    if user("self") != user(&pid.to_string()) {
        // The user namespace maps this user; it forbids the change of supplementary groups.
        command.args(["-U", "--preserve-credentials"]);
    }
    command.arg("--");
    command
}

fn set_link(lab: Lab, number: u8, state: &str) -> Result<ExitCode> {
    host(lab, number)?;
    let mut command = enter(lab.switch, &["-n"]);
    command.args(["ip", "link", "set", &format!("v{number}"), state]);
    let status = command.status().map_err(|cause| format!("cannot start nsenter of util-linux: {cause}"))?;
    Ok(ExitCode::from(status_of(status)))
}

/// Returns the command that becomes a shell on a host, or `command`, under `roxe run`.
fn shell(lab: Lab, number: u8, command: &[OsString]) -> Result<Command> {
    let (pid, variables) = host(lab, number)?;
    if variables.contains_key(OsStr::new(RXE)) {
        return Err(format!("{} is a guest, where only its own command runs", Net::name(number)).into());
    }
    let mut shell = enter(pid, &["-n", "-m", "-u", "-i", "-p"]);
    shell.arg(own()?).args(["run", "--netdev", "eth0"]);
    let rules = variables.get(OsStr::new(RULES)).filter(|rules| !rules.is_empty());
    shell.args(rules.map(|rules| OsString::from_iter([OsStr::new("--faults="), rules])));
    shell.arg("--");
    // Entering a mount namespace changes the working folder.
    shell.args(["sh", "-c", "cd \"$1\" 2>/dev/null; shift; exec \"$@\"", "sh"]).arg(std::env::current_dir()?);
    if command.is_empty() {
        shell.arg(std::env::var_os("SHELL").unwrap_or_else(|| "sh".into()));
    } else {
        shell.args(command);
    }
    shell.envs(variables.into_iter().filter(|(name, _)| name.as_bytes().starts_with(b"LAB_")));
    Ok(shell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lab_is_chosen() {
        let labs = [Lab { pid: 7, switch: 8 }, Lab { pid: 9, switch: 10 }];
        assert_eq!(choose(&labs[..1], None).unwrap(), labs[0]);
        assert_eq!(choose(&labs, Some(9)).unwrap(), labs[1]);
        assert!(choose(&labs, None).unwrap_err().to_string().contains("--lab PID: 7, 9"));
        assert!(choose(&labs, Some(8)).unwrap_err().to_string().contains("no lab"));
        assert!(choose(&[], None).is_err());
    }

    #[test]
    fn hosts_are_numbers_or_names() {
        assert_eq!((parse_number("2"), parse_number("host12")), (Ok(2), Ok(12)));
        assert!(parse_number("two").is_err() && parse_number("host").is_err() && parse_number("300").is_err());
    }

    #[test]
    fn environment_of_a_process_is_read() {
        let found = environment(b"LAB_HOST=2\0EMPTY=\0odd\0A=b=c\0");
        let value = |name: &str| found.get(OsStr::new(name)).and_then(|value| value.to_str());
        assert_eq!((value("LAB_HOST"), value("EMPTY"), value("A"), found.len()), (Some("2"), Some(""), Some("b=c"), 3));
    }
}
