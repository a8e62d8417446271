//! Runs a group of cells between one pair of agents, under one condition, with one capture file.

use super::{Cell, CellResult, Condition, Direction, Ending, Group, GroupResult, Ip, agents, capture, peer_bugs};
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

/// Fault rules of roxe in condition [`Condition::Faults`], for both directions. They do not corrupt
/// headers, because tshark must find no malformed packet in a capture.
const FAULTS: &str = "drop 1%; duplicate 1%; reorder 2% by=1ms; corrupt payload 0.5%; corrupt icrc 0.5%";

/// Time within which an agent must end after its controller.
const AGENT_END_LIMIT: Duration = Duration::from_secs(10);

/// The guest, with the settings that all groups share.
pub struct Runner {
    /// The guest with rxe.
    pub guest: Guest,
    /// Seed of message bytes and fault rules.
    pub seed: u64,
    /// Folder for captures; `None` to capture no packets.
    pub captures: Option<PathBuf>,
    condition: Condition,
    port: AtomicU16,
    gids: HashMap<(Side, Ip), u32>,
}

impl Runner {
    /// Creates a runner whose network is clean.
    pub fn new(guest: Guest, seed: u64, captures: Option<PathBuf>) -> Self {
        let (condition, port, gids) = (Condition::Clean, AtomicU16::new(18_700), HashMap::new());
        Self { guest, seed, captures, condition, port, gids }
    }

    /// Returns a TCP port that no other program of this run uses.
    pub fn new_port(&self) -> u16 {
        self.port.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the index of the GID that is the address of `side`.
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

    /// Returns the environment variables of roxe's process for `condition` and this capture file.
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

    /// Returns the path of the capture file of the group or check `name`, and removes an older
    /// file; `None` if packets are not captured.
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
    pub fn group(&mut self, group: Group, cells: &[Cell]) -> GroupResult {
        self.try_group(group, cells).unwrap_or_else(|e| GroupResult::failed(group, cells, &e.to_string()))
    }

    fn try_group(&mut self, group: Group, cells: &[Cell]) -> io::Result<GroupResult> {
        self.set(group.condition)?;
        let start = Instant::now();
        let capture = self.capture_file(&group.to_string())?;
        let envs = self.environment(group.condition, capture.as_deref());
        let (guest, to_io) = (&self.guest, |error: ClientError| io::Error::other(error.to_string()));
        let (roxe, near) = agents::start_agent(guest, Side::Roxe, &envs)?;
        let (rxe, far) = agents::start_agent(guest, Side::Rxe, &[])?;
        let (mut near, mut far) = (Client::open(&near).map_err(to_io)?, Client::open(&far).map_err(to_io)?);
        let clients = &mut [&mut near, &mut far];
        let mut pair = Pair::register(clients).map_err(to_io)?;
        let conditions = conditions(group, self.seed);
        let mut cells: Vec<_> = cells.iter().map(|cell| run(&mut pair, clients, group, *cell, &conditions)).collect();
        // The console shows why a guest crashed.
        if clients.iter().any(|client| client.is_lost())
            && let Some(Ending::Failed(why)) =
                cells.iter_mut().map(|t| &mut t.ending).find(|e| matches!(e, Ending::Failed(_)))
        {
            why.push_str(&format!("\n{}", guest.console()));
        }
        drop((near, far));
        let outcomes = [roxe, rxe].map(|agent| agent.wait(guest, Instant::now() + AGENT_END_LIMIT));
        let [roxe, rxe] = outcomes;
        let (roxe, rxe) = (roxe?, rxe?);
        if group.condition == Condition::Faults && !roxe.output.contains("roxe: faults: ") {
            return Err(io::Error::other("roxe reports no faults: is ROXE_BIN an old build?"));
        }
        // If an agent fails after the last cell, that cell reports the failure.
        let all_passed = cells.iter().all(|t| t.ending == Ending::Passed);
        if let (true, false, Some(last)) = (all_passed, roxe.ok && rxe.ok, cells.last_mut()) {
            last.ending = Ending::Failed(format!("an agent ended badly\n{}\n{}", roxe.output, rxe.output));
        }
        let seconds = start.elapsed().as_secs_f32();
        Ok(GroupResult { group, cells, seconds, capture: capture.as_deref().map(capture::judge).transpose()? })
    }
}

/// Runs a cell between roxe, the near side, and rxe, the far side.
fn run(pair: &mut Pair, clients: &mut Clients<'_>, group: Group, cell: Cell, conditions: &Conditions) -> CellResult {
    let (start, is_from_far) = (Instant::now(), group.direction == Direction::RxeToRoxe);
    let ending = match CellRun::run(pair, clients, &Check { cell, family: group.ip, is_from_far }, conditions) {
        Ok(_) => Ending::Passed,
        Err(CheckError::Pair(PairError::Unsupported(why))) => Ending::Skipped(why),
        Err(error) => {
            let why = error.to_string();
            match peer_bugs::known_bug(&group, &cell, &why) {
                Some(name) => Ending::PeerBug(format!("{name} ({why})")),
                None => Ending::Failed(why),
            }
        }
    };
    CellResult { cell, ending, milliseconds: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX) }
}

/// Returns the conditions of a group's cells. The acknowledgement timeout is 0.5 s if nothing is
/// lost, because the emulated processor may take longer than usual timeouts for 1 MiB. Under loss
/// towards rxe it is 0.27 s, twice the acknowledgement delay that rxe announces: at half of that, a
/// guest that waits for a processor gets too many retransmissions. Under loss from rxe it is
/// 0.13 s, because rxe's requester waits for its timer after most losses.
fn conditions(group: Group, seed: u64) -> Conditions {
    let is_lossy = group.condition.lossy();
    let ack_timeout = match group.direction {
        _ if !is_lossy => 17,
        Direction::RoxeToRxe => 16,
        Direction::RxeToRoxe => 15,
    };
    Conditions { seed, is_lossy, ack_timeout, timeout_ms: 120_000, ..Conditions::default() }
}

/// Returns the IP address of `side`.
pub fn address(side: Side, ip: Ip) -> &'static str {
    match (side, ip) {
        (Side::Roxe, Ip::V4) => link::HERE_V4,
        (Side::Roxe, Ip::V6) => link::HERE_V6,
        (Side::Rxe, Ip::V4) => link::GUEST_V4,
        (Side::Rxe, Ip::V6) => link::GUEST_V6,
    }
}

/// Parses an address as a GID: an IPv4 address is mapped into IPv6.
fn as_gid(address: &str) -> Option<Ipv6Addr> {
    match address.parse().ok()? {
        IpAddr::V4(v4) => Some(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => Some(v6),
    }
}

/// Returns the first GIDs of the guest's device, with their indices.
fn rxe_gids(guest: &Guest) -> io::Result<Vec<(u32, Ipv6Addr)>> {
    let text =
        guest.run("cd /sys/class/infiniband/rxe0/ports/1/gids; for i in 0 1 2 3 4 5; do echo $i $(cat $i); done")?;
    Ok(text.lines().filter_map(|line| line.split_once(' ')).filter_map(gid_entry).collect())
}

/// Returns the GIDs of roxe's device, with their indices: the last two columns of `roxe devices`.
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
