//! Runs a group of cells: one pair of agents, one condition, one capture.

use super::{Cell, Condition, Direction, Ending, Group, Ip, Judged, Tried, agents, capture, peer_bugs};
use crate::build;
use crate::guest::sides::Side;
use crate::guest::{Guest, link};
use roxe_peer::check::{CellRun, Check, CheckError, Clients, Conditions, Pair, PairError};
use roxe_peer::client::{Client, ClientError};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Rules of the guest's netem for RoCEv2 packets of each direction.
const NETEM: &str = "loss 3% delay 1ms reorder 5% 50%";

/// Fault rules of roxe in condition [`Condition::Faults`], both directions. Headers stay intact, as
/// tshark must find no malformed packet in a capture.
const FAULTS: &str = "drop 1%; duplicate 1%; reorder 2% by=1ms; corrupt payload 0.5%; corrupt icrc 0.5%";

/// Time within which an agent must end after its controller.
const PARTING: Duration = Duration::from_secs(10);

/// The guest, and settings of all groups.
pub struct Runner {
    /// The peer.
    pub guest: Guest,
    /// Seed of message bytes and fault rules.
    pub seed: u64,
    /// Folder for captures, if packets are to be checked, too.
    pub captures: Option<PathBuf>,
    condition: Condition,
    port: AtomicU16,
    gids: HashMap<(Side, Ip), u32>,
}

impl Runner {
    /// Runs with this guest.
    pub fn new(guest: Guest, seed: u64, captures: Option<PathBuf>) -> Self {
        let (condition, port, gids) = (Condition::Clean, AtomicU16::new(18_700), HashMap::new());
        Self { guest, seed, captures, condition, port, gids }
    }

    /// A TCP port that nothing else in this run uses.
    pub fn fresh_port(&self) -> u16 {
        self.port.fetch_add(1, Ordering::Relaxed)
    }

    /// Index of the GID that is the address of `side`.
    pub fn gid_index(&mut self, side: Side, ip: Ip) -> io::Result<u32> {
        if self.gids.is_empty() {
            let (rxe, roxe) = (rxe_gids(&self.guest)?, roxe_gids()?);
            for ip in Ip::ALL {
                for (side, table) in [(Side::Rxe, &rxe), (Side::Roxe, &roxe)] {
                    let wanted = as_gid(address(side, ip));
                    let entry = table.iter().find(|(_, gid)| Some(*gid) == wanted);
                    let (index, _) =
                        entry.ok_or_else(|| io::Error::other(format!("no GID {wanted:?} in {table:?}")))?;
                    self.gids.insert((side, ip), *index);
                }
            }
        }
        Ok(self.gids[&(side, ip)])
    }

    /// Sets the guest's netem for `condition`.
    pub fn set(&mut self, condition: Condition) -> io::Result<()> {
        if (self.condition == Condition::Netem) != (condition == Condition::Netem) {
            self.guest.netem(if condition == Condition::Netem { NETEM } else { "" })?;
        }
        self.condition = condition;
        Ok(())
    }

    /// The environment of roxe's process for `condition`; `capture` is its capture file.
    pub fn environment(&self, condition: Condition, capture: Option<&Path>) -> Vec<(String, String)> {
        let mut envs = Vec::new();
        if condition == Condition::Faults {
            envs.push(("ROXE_FAULTS".to_owned(), format!("{FAULTS}; seed={}", self.seed)));
        }
        if let Some(file) = capture {
            envs.push(("ROXE_CAPTURE".to_owned(), file.display().to_string()));
        }
        envs
    }

    /// The capture file of a group or check called `name`; removes an older one.
    pub fn capture_file(&self, name: &str) -> io::Result<Option<PathBuf>> {
        let Some(folder) = &self.captures else { return Ok(None) };
        fs::create_dir_all(folder)?;
        let word: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let file = folder.join(word + ".pcapng");
        match fs::remove_file(&file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(Some(file)),
        }
    }

    /// Runs the cells of one group.
    pub fn group(&mut self, group: Group, cells: &[Cell]) -> Judged {
        self.try_group(group, cells).unwrap_or_else(|e| Judged::lost(group, cells, &e.to_string()))
    }

    fn try_group(&mut self, group: Group, cells: &[Cell]) -> io::Result<Judged> {
        self.set(group.condition)?;
        let start = Instant::now();
        let capture = self.capture_file(&group.to_string())?;
        let envs = self.environment(group.condition, capture.as_deref());
        let (guest, to_io) = (&self.guest, |error: ClientError| io::Error::other(error.to_string()));
        let (roxe, near) = agents::start(guest, Side::Roxe, &envs)?;
        let (rxe, far) = agents::start(guest, Side::Rxe, &[])?;
        let (mut near, mut far) = (Client::open(&near).map_err(to_io)?, Client::open(&far).map_err(to_io)?);
        let clients = &mut [&mut near, &mut far];
        let mut pair = Pair::register(clients).map_err(to_io)?;
        let conditions = conditions(group, self.seed);
        let mut tried: Vec<_> = cells.iter().map(|cell| run(&mut pair, clients, group, *cell, &conditions)).collect();
        // A guest that crashed says why.
        if clients.iter().any(|client| client.is_lost())
            && let Some(Ending::Failed(why)) =
                tried.iter_mut().map(|t| &mut t.ending).find(|e| matches!(e, Ending::Failed(_)))
        {
            why.push_str(&format!("\n{}", guest.console()));
        }
        drop((near, far));
        let outcomes = [roxe, rxe].map(|agent| agent.wait(guest, Instant::now() + PARTING));
        let [roxe, rxe] = outcomes;
        let (roxe, rxe) = (roxe?, rxe?);
        if group.condition == Condition::Faults && !roxe.output.contains("roxe: faults: ") {
            return Err(io::Error::other("roxe did not say that it injects faults: is ROXE_BIN an old build?"));
        }
        // Agents that end badly after the last good cell have failed too: that cell reports it.
        let all_passed = tried.iter().all(|t| t.ending == Ending::Passed);
        if let (true, false, Some(last)) = (all_passed, roxe.ok && rxe.ok, tried.last_mut()) {
            last.ending = Ending::Failed(format!("an agent ended badly\n{}\n{}", roxe.output, rxe.output));
        }
        let seconds = start.elapsed().as_secs_f32();
        Ok(Judged { group, tried, seconds, capture: capture.as_deref().map(capture::judge).transpose()? })
    }
}

/// Runs a cell between roxe, which is near, and rxe.
fn run(pair: &mut Pair, clients: &mut Clients<'_>, group: Group, cell: Cell, conditions: &Conditions) -> Tried {
    let (start, is_from_far) = (Instant::now(), group.direction == Direction::RxeToRoxe);
    let ending = match CellRun::run(pair, clients, &Check { cell, family: group.ip, is_from_far }, conditions) {
        Ok(_) => Ending::Passed,
        Err(CheckError::Pair(PairError::Unsupported(why))) => Ending::Skipped(why),
        Err(error) => {
            let seen = error.to_string();
            match peer_bugs::explains(&group, &cell, &seen) {
                Some(name) => Ending::PeerBug(format!("{name} ({seen})")),
                None => Ending::Failed(seen),
            }
        }
    };
    Tried { cell, ending, milliseconds: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX) }
}

/// The circumstances of a group's cells. 1 MiB may wait before the emulated processor for
/// longer than the usual acknowledgement timeouts, so that it is 0.5 s where nothing is lost. Under
/// loss to rxe it is 0.27 s, twice the delay that rxe announces: with half of that its processor,
/// when others keep it waiting, gets too many retransmissions. Under loss from rxe, which waits for
/// its timer after most losses, it is 0.13 s.
fn conditions(group: Group, seed: u64) -> Conditions {
    let is_lossy = group.condition.lossy();
    let ack_timeout = match group.direction {
        _ if !is_lossy => 17,
        Direction::RoxeToRxe => 16,
        Direction::RxeToRoxe => 15,
    };
    Conditions { seed, is_lossy, ack_timeout, timeout_ms: 120_000, ..Conditions::default() }
}

/// The address of `side`.
pub fn address(side: Side, ip: Ip) -> &'static str {
    match (side, ip) {
        (Side::Roxe, Ip::V4) => link::HERE_V4,
        (Side::Roxe, Ip::V6) => link::HERE_V6,
        (Side::Rxe, Ip::V4) => link::GUEST_V4,
        (Side::Rxe, Ip::V6) => link::GUEST_V6,
    }
}

/// An address as a GID: IPv4 mapped into IPv6.
fn as_gid(address: &str) -> Option<Ipv6Addr> {
    match address.parse().ok()? {
        IpAddr::V4(v4) => Some(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => Some(v6),
    }
}

/// The first GIDs of the guest's device.
fn rxe_gids(guest: &Guest) -> io::Result<Vec<(u32, Ipv6Addr)>> {
    let text =
        guest.run("cd /sys/class/infiniband/rxe0/ports/1/gids; for i in 0 1 2 3 4 5; do echo $i $(cat $i); done")?;
    Ok(text.lines().filter_map(|line| line.split_once(' ')).filter_map(gid_entry).collect())
}

/// The GIDs of roxe's device: the last two columns of `roxe devices`.
fn roxe_gids() -> io::Result<Vec<(u32, Ipv6Addr)>> {
    let output = Command::new(build::roxe()).arg("devices").env("ROXE_NETDEV", link::NETDEV).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last_two = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let address = words.next()?.to_owned();
        gid_entry((words.next()?, &address))
    };
    Ok(text.lines().filter_map(last_two).collect())
}

fn gid_entry((index, address): (&str, &str)) -> Option<(u32, Ipv6Addr)> {
    Some((index.parse().ok()?, as_gid(address)?))
}
