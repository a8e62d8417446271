//! Runs a group of cells: one process pair, one condition, one capture.

use super::{Cell, Condition, Direction, Ending, Group, Ip, Judged, Tried, Word, capture, peer_bugs};
use crate::build;
use crate::cc;
use crate::guest::sides::{self, Process, Side};
use crate::guest::{Guest, link};
use crate::pair::Outcome;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Sources of the program both sides run.
const CELLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/cells");

/// What the guest's netem does to RoCEv2 packets of each direction: every 33rd is lost, every 20th
/// overtakes others.
const NETEM: &str = "loss 3% delay 1ms reorder 5% 50%";

/// What roxe's fault rules do in condition [`Condition::Faults`], both directions. Headers stay
/// whole: tshark shall find nothing malformed in a capture, and a packet whose header is damaged is
/// that.
const FAULTS: &str = "drop 1%; duplicate 1%; reorder 2% by=1ms; corrupt payload 0.5%; corrupt icrc 0.5%";

/// The client's options for a link that loses nothing. 1 MiB may wait in front of the emulated
/// processor for longer than the usual acknowledgement timeouts; here it is 0.5 s.
const CLEAN: &str = "--ack-timeout 17";

/// The client's options for a link with losses towards rxe: the timeout is 0.27 s, twice the
/// acknowledgement delay that rxe announces. With half of that its emulated processor, when others
/// keep it waiting, is asked again too often.
const LOSSY_TO_RXE: &str = "--lossy --ack-timeout 16";

/// The same from rxe, which waits for its timer after most losses, so that it must be short: 0.13
/// s.
const LOSSY_FROM_RXE: &str = "--lossy --ack-timeout 15";

/// Longest time for one cell; the test program's own limit.
const CELL_LIMIT: Duration = Duration::from_secs(120);

/// Silence after which a pair is given up.
const SILENCE: Duration = Duration::from_secs(150);

/// Shortest time between two looks at the client.
const LOOK: Duration = Duration::from_millis(200);

/// Where processes run and what every group has in common.
pub struct Runner {
    /// The peer.
    pub guest: Guest,
    /// Of message bytes and fault rules.
    pub seed: u64,
    /// Folder for captures, if the packets shall be judged too.
    pub captures: Option<PathBuf>,
    condition: Condition,
    port: AtomicU16,
    gids: HashMap<(Side, Ip), u32>,
}

impl Runner {
    /// Compiles the test program; both sides run the same file.
    pub fn new(guest: Guest, seed: u64, captures: Option<PathBuf>) -> io::Result<Self> {
        compile(&guest.folder().join("cells"))?;
        Ok(Self {
            guest,
            seed,
            captures,
            condition: Condition::Clean,
            port: AtomicU16::new(18_700),
            gids: HashMap::new(),
        })
    }

    /// A TCP port that nothing else of this run uses.
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

    /// Brings the guest's netem into the state of `condition`.
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

    /// The capture file of a group or check called `name`, and an end to an older one.
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
        let [server, client] = self.pair(group, cells, &envs)?;
        let seconds = start.elapsed().as_secs_f32();
        let announced = [&server, &client].iter().any(|o| o.output.contains("roxe: faults: "));
        if group.condition == Condition::Faults && !announced {
            return Err(io::Error::other("roxe did not say that it injects faults: is ROXE_BIN an old build?"));
        }
        let tried = judge(group, cells, &server, &client);
        Ok(Judged { group, tried, seconds, capture: capture.as_deref().map(capture::judge).transpose()? })
    }

    fn pair(&mut self, group: Group, cells: &[Cell], envs: &[(String, String)]) -> io::Result<[Outcome; 2]> {
        let (server_side, client_side) = match group.direction {
            Direction::RoxeToRxe => (Side::Rxe, Side::Roxe),
            Direction::RxeToRoxe => (Side::Roxe, Side::Rxe),
        };
        let port = self.fresh_port();
        let family = if group.ip == Ip::V4 { "-4" } else { "-6" };
        let server = format!("{} server {family} -p {port} --once", self.program(server_side));
        let client = format!(
            "{} client {} {family} -p {port} {} --seed {} --cell-timeout-s {} {}",
            self.program(client_side),
            address(server_side, group.ip),
            choice(cells),
            self.seed,
            CELL_LIMIT.as_secs(),
            match group.direction {
                _ if !group.condition.lossy() => CLEAN,
                Direction::RoxeToRxe => LOSSY_TO_RXE,
                Direction::RxeToRoxe => LOSSY_FROM_RXE,
            }
        );
        let mut first = Process::start(&self.guest, server_side, &server, envs)?;
        sides::await_listener(&self.guest, server_side, port, &mut first)?;
        let mut second = Process::start(&self.guest, client_side, &client, envs)?;
        self.watch(&mut second)?;
        let client = second.wait(&self.guest, Instant::now())?;
        let patience = Duration::from_secs(if client.ok { 10 } else { 1 });
        let server = first.wait(&self.guest, Instant::now() + patience)?;
        Ok([server, client])
    }

    fn program(&self, side: Side) -> String {
        match side {
            Side::Roxe => self.guest.folder().join("cells").display().to_string(),
            Side::Rxe => "/mnt/cells".to_owned(),
        }
    }

    /// Returns when the client has ended or has said nothing for [`SILENCE`].
    fn watch(&mut self, client: &mut Process) -> io::Result<()> {
        let (mut said, mut since) = (0, Instant::now());
        while !client.ended(&self.guest, LOOK)? && since.elapsed() < SILENCE {
            let now = fs::metadata(client.output())?.len();
            if now != said {
                (said, since) = (now, Instant::now());
            }
        }
        Ok(())
    }
}

/// Where `side` can be reached.
pub fn address(side: Side, ip: Ip) -> &'static str {
    match (side, ip) {
        (Side::Roxe, Ip::V4) => link::HERE_V4,
        (Side::Roxe, Ip::V6) => link::HERE_V6,
        (Side::Rxe, Ip::V4) => link::GUEST_V4,
        (Side::Rxe, Ip::V6) => link::GUEST_V6,
    }
}

/// An address as GIDs show it: IPv4 inside IPv6.
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

fn compile(program: &Path) -> io::Result<()> {
    let mut sources: Vec<PathBuf> = fs::read_dir(CELLS)?.map(|e| e.map(|e| e.path())).collect::<io::Result<_>>()?;
    sources.retain(|path| path.extension().is_some_and(|e| e == "c"));
    let compiled = cc::compile("gcc", &[], &sources, &["ibverbs"], program);
    compiled.map_err(|e| io::Error::other(format!("gcc cannot compile {CELLS}:\n{e}")))
}

/// The client's options that choose at least `cells`.
fn choice(cells: &[Cell]) -> String {
    let list = |cells: &[Cell], word: &dyn Fn(&Cell) -> String| {
        let mut words: Vec<String> = Vec::new();
        for word in cells.iter().map(word) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words.join(",")
    };
    let mut choice = format!(
        "--services {} --ops {} --mtus {}",
        list(cells, &|c| c.service.word().to_owned()),
        list(cells, &|c| c.op.word().to_owned()),
        list(cells, &|c| c.mtu.to_string()),
    );
    // Atomics have one size, whatever is asked for.
    let sized: Vec<Cell> = cells.iter().copied().filter(|c| !c.op.is_atomic()).collect();
    if !sized.is_empty() {
        choice += &format!(" --sizes {}", list(&sized, &size_word));
    }
    choice
}

/// A size as the test program takes it: relative to the MTU near it, so that one list serves every
/// MTU.
fn size_word(cell: &Cell) -> String {
    match i64::from(cell.size) - i64::from(cell.mtu) {
        -1 => "mtu-1".to_owned(),
        0 => "mtu".to_owned(),
        1 => "mtu+1".to_owned(),
        _ => cell.size.to_string(),
    }
}

/// The ending of each planned cell, from what the two programs printed.
fn judge(group: Group, cells: &[Cell], server: &Outcome, client: &Outcome) -> Vec<Tried> {
    let mut said = HashMap::new();
    for (name, milliseconds, ending) in client.output.lines().filter_map(line) {
        said.entry(name).or_insert((milliseconds, ending));
    }
    let mut tried: Vec<Tried> = cells
        .iter()
        .map(|cell| {
            let (milliseconds, ending) = said.remove(&key(cell)).unwrap_or_else(|| (0, not_reached(server, client)));
            Tried { cell: *cell, ending: excuse(group, cell, ending), milliseconds }
        })
        .collect();
    // A pair that ends badly after its last good cell has failed too: that cell tells.
    let all_passed = tried.iter().all(|t| t.ending == Ending::Passed);
    if let (true, false, Some(last)) = (all_passed, server.ok && client.ok, tried.last_mut()) {
        last.ending = not_reached(server, client);
    }
    tried
}

fn excuse(group: Group, cell: &Cell, ending: Ending) -> Ending {
    match ending {
        Ending::Failed(seen) => match peer_bugs::explains(&group, cell, &seen) {
            Some(name) => Ending::PeerBug(format!("{name} ({seen})")),
            None => Ending::Failed(seen),
        },
        other => other,
    }
}

fn key(cell: &Cell) -> String {
    format!("{}\t{}\t{}\t{}", cell.service.word(), cell.op.word(), cell.size, cell.mtu)
}

/// Reads `cell<TAB>service<TAB>op<TAB>size<TAB>mtu<TAB>verdict<TAB>milliseconds<TAB>detail`.
fn line(line: &str) -> Option<(String, u64, Ending)> {
    let columns: Vec<&str> = line.split('\t').collect();
    let (&["cell", service, op, size, mtu, verdict, milliseconds], detail) = columns.split_at_checked(7)? else {
        return None;
    };
    let detail = detail.join(" ");
    let ending = match verdict {
        "pass" => Ending::Passed,
        "skip" => Ending::Skipped(detail),
        _ => Ending::Failed(detail),
    };
    Some(([service, op, size, mtu].join("\t"), milliseconds.parse().ok()?, ending))
}

fn not_reached(server: &Outcome, client: &Outcome) -> Ending {
    let tail = |outcome: &Outcome| {
        let lines: Vec<&str> = outcome.output.lines().collect();
        format!("$ {}\n{}", outcome.command, lines[lines.len().saturating_sub(6)..].join("\n"))
    };
    Ending::Failed(format!("the pair ended early or badly\n{}\n{}", tail(server), tail(client)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Op, Service};

    const GROUP: Group = Group { direction: Direction::RoxeToRxe, ip: Ip::V4, condition: Condition::Clean };

    fn cells() -> [Cell; 2] {
        [255, 65536].map(|size| Cell { service: Service::Rc, op: Op::SendImm, size, mtu: 256 })
    }

    fn outcome(ok: bool, output: &str) -> Outcome {
        Outcome { command: "cells".into(), ok, output: output.into() }
    }

    #[test]
    fn asks_for_sizes_in_words() {
        assert_eq!(choice(&cells()), "--services rc --ops send_imm --mtus 256 --sizes mtu-1,65536");
    }

    #[test]
    fn a_cell_that_is_not_reported_has_failed() {
        let client = outcome(false, "cell\trc\tsend_imm\t255\t256\tpass\t12\t4 messages\n[ended with 1]");
        let tried = judge(GROUP, &cells(), &outcome(true, ""), &client);
        assert_eq!((&tried[0].ending, tried[0].milliseconds), (&Ending::Passed, 12));
        assert!(matches!(&tried[1].ending, Ending::Failed(why) if why.contains("[ended with 1]")));
    }

    #[test]
    fn a_pair_that_dies_after_its_cells_has_failed() {
        let lines = "cell\trc\tsend_imm\t255\t256\tpass\t1\t\ncell\trc\tsend_imm\t65536\t256\tpass\t1\t\n";
        let good = judge(GROUP, &cells(), &outcome(true, ""), &outcome(true, lines));
        assert!(good.iter().all(|t| t.ending == Ending::Passed));
        let bad = judge(GROUP, &cells(), &outcome(false, "[ended with signal: 11]"), &outcome(true, lines));
        assert!(matches!(&bad[1].ending, Ending::Failed(_)));
    }
}
