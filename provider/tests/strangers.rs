//! What another user of the same host tries against the processes of one user, and a set-uid program against its caller.
//!
//! Processes of two users that exist in no password file, in a network namespace of their own; the attacker does for some
//! seconds what once worked, while a pair of the victim moves data, of which nothing may be lost. Needs root, to be both.
//! `ROXE_TEST_ATTACK_SECONDS` says how long each attack lasts.

mod common;

use common::peer::{MARK, Peer, ROLE, program};
use common::*;
use roxe_provider::wire::{
    Aeth, Bth, Gid, Header, Kind, Msn, NakCode, NetHeader, PathMtu, Psn, Qpn, RKey, Request, Response, Reth, Syndrome,
    icrc,
};
use roxe_provider::{Qp, SendOp, Service, WcStatus, devices};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::mem::zeroed;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

const VICTIM: u32 = 61_001;
const ATTACKER: u32 = 61_002;
/// The first packet sequence number of [`connect`].
const FIRST_PSN: u32 = 77;
/// Set in the network namespace.
const INSIDE: &str = "ROXE_TEST_STRANGERS";
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const MESSAGE: usize = 64 << 10;
/// Where the attacker's bytes would go.
const TARGET: usize = 3 << 20;

fn seconds() -> u64 {
    std::env::var("ROXE_TEST_ATTACK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// A folder that everybody can look into and only root can change, with a copy of this program; removed in the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = PathBuf::from(format!("/tmp/roxe-strangers-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::copy(std::env::current_exe().unwrap(), path.join("program")).unwrap();
        let place = Self(path);
        place.permit("", 0o755);
        place.permit("program", 0o755);
        place
    }

    fn permit(&self, name: &str, mode: u32) {
        fs::set_permissions(self.0.join(name), Permissions::from_mode(mode)).unwrap();
    }

    /// The test `name` of this program as `user`.
    fn command(&self, name: &str, user: u32) -> Command {
        let mut command = Command::new(self.0.join("program"));
        command.args(program(name).get_args()).uid(user).gid(user);
        command.env_remove("XDG_RUNTIME_DIR").current_dir("/");
        command
    }

    fn peer(&self, user: u32, link: &str) -> Peer {
        Peer::start_as(self.command("peer", user), "peer", &[("ROXE_LINK", link)])
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for user in [VICTIM, ATTACKER] {
            let _ = candidates(user).map(fs::remove_dir_all);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where a user's processes may find each other.
fn candidates(user: u32) -> [String; 3] {
    [format!("/run/user/{user}/roxe"), format!("/tmp/roxe-{user}"), format!("/dev/shm/roxe-{user}")]
}

/// Runs the test `inner` in a network namespace of its own, or says why not.
fn run(inner: &str) {
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || !Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: only root can be two users in a network namespace");
    }
    let inner = program(inner);
    let output = unshare.arg(inner.get_program()).args(inner.get_args()).env(INSIDE, "1").output().unwrap();
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&format!("{MARK}done")), "{said}{told}");
    told.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| eprintln!("{line}"));
}

fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn done() {
    println!("{MARK}done");
}

/// Not a test of its own: a process of the victim or of the attacker, which obeys one command per line.
#[test]
fn peer() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let mut puppet = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).map_or(0, |word| word.parse::<u64>().unwrap());
        let answer = match words[0] {
            "descriptors" => send_descriptors(number(1)),
            "forge" => forge(number(1) as u32, number(2), number(3) as u32),
            "naks" => forge_naks(number(1) as u32),
            "names" => hold_names(),
            _ => puppet.get_or_insert_with(Puppet::new).obey(words[0], number),
        };
        println!("\n{MARK}{answer}");
    }
}

/// A process of the victim.
struct Puppet {
    node: Node,
    qp: Arc<Qp>,
    remote: Option<Window>,
}

impl Puppet {
    fn new() -> Self {
        let node = Node::open();
        let qp = node.qp(Service::Rc);
        Self { node, qp, remote: None }
    }

    fn obey(&mut self, word: &str, number: impl Fn(usize) -> u64) -> String {
        match word {
            "create" => format!("{} {} {}", self.qp.qpn().get(), self.node.addr(0), self.node.mr.rkey().0),
            "connect" => {
                let gid = self.node.context.gid(1, 0).unwrap();
                self.remote = Some(Window { addr: number(2), rkey: RKey(number(3) as u32) });
                connect(&self.qp, self.node.av(0, gid), Qpn::new(number(1) as u32), PathMtu::Mtu4096);
                "1".into()
            }
            "write" => self.write(Duration::from_secs(number(1))).to_string(),
            "post" => {
                self.node.fill(0, MESSAGE, 7);
                self.post();
                "1".into()
            }
            "wait" => self.expect_success(0).to_string(),
            "try" => self.write_until_it_fails(),
            "check" => u8::from(self.node.bytes(0, MESSAGE) == pattern(MESSAGE, 7)).to_string(),
            "target" => {
                // What has arrived is taken before anybody looks.
                for _ in 0..1000 {
                    self.node.cq.poll(1, |_| ()).unwrap();
                }
                self.node.bytes(TARGET, 64).iter().map(|byte| u64::from(*byte)).sum::<u64>().to_string()
            }
            "refused" => counter(&self.node.context, "foreign_source_port").to_string(),
            other => panic!("unknown command {other}"),
        }
    }

    fn post(&self) {
        let Window { addr, rkey } = self.remote.unwrap();
        post(&self.qp, 1, SendOp::Write { remote_addr: addr, rkey }, self.node.sge(0, MESSAGE));
    }

    /// Writes one message after the other for so long; how many it were.
    fn write(&self, time: Duration) -> u64 {
        self.node.fill(0, MESSAGE, 7);
        let (start, mut count) = (Instant::now(), 0);
        while count == 0 || start.elapsed() < time {
            self.post();
            count = self.expect_success(count);
        }
        count
    }

    /// The message under way has arrived, behind `count` others; how many these are.
    fn expect_success(&self, count: u64) -> u64 {
        let status = self.node.wait(1)[0].status;
        assert_eq!(status, WcStatus::Success, "{:?}", self.node.context.counters());
        count + 1
    }

    fn write_until_it_fails(&self) -> String {
        self.node.fill(0, MESSAGE, 7);
        loop {
            self.post();
            let status = self.node.wait(1)[0].status;
            if status != WcStatus::Success {
                return u8::from(status == WcStatus::RetryExcErr).to_string();
            }
        }
    }
}

/// Every name that a process of the victim could have had, when names were open to everybody.
fn open_names() -> impl Iterator<Item = SockAddr> {
    (1..0xfff).map(|slot| SockAddr::unix(format!("\0roxe/1/1/{slot}")).unwrap())
}

/// Sends every mailbox of the victim a socket that takes an hour to close, for so many seconds; how many were taken.
fn send_descriptors(seconds: u64) -> String {
    const ENOUGH: u32 = 4;
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let (start, mut taken) = (Instant::now(), 0);
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap();
    while taken < ENOUGH && start.elapsed() < Duration::from_secs(seconds) {
        let in_folders = candidates(VICTIM).into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
        let in_folders = in_folders.flatten().map(|entry| SockAddr::unix(entry.path()).unwrap());
        for name in open_names().chain(in_folders) {
            if socket.connect(&name).is_ok() {
                let slow = slow_to_close(&listener);
                taken += u32::from(send_descriptor(&socket, slow.as_raw_fd()));
            }
        }
    }
    // They come from a queue of the kernel, whether this process lives or not.
    taken.to_string()
}

fn slow_to_close(listener: &TcpListener) -> TcpStream {
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    SockRef::from(&stream).set_linger(Some(Duration::from_secs(3600))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 65_536]).is_ok() {}
    stream
}

fn send_descriptor(socket: &Socket, fd: RawFd) -> bool {
    let mut byte = [1u8; 64];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    let mut control = [0u64; 3];
    // SAFETY: all-zero is valid; every pointer is to this frame, with the length that is there; room for one descriptor.
    unsafe {
        let mut header: libc::msghdr = zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut iov, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_RIGHTS;
        (*message).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(message).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT) > 0
    }
}

/// A socket that says it is the victim's peer, and the port that it really has.
struct Forger {
    socket: UdpSocket,
    net: NetHeader,
}

impl Forger {
    fn new() -> Self {
        let socket = UdpSocket::bind((HERE, 0)).unwrap();
        let (gid, src_port) = (Gid::from(HERE), socket.local_addr().unwrap().port());
        Self { socket, net: NetHeader { src: gid, dst: gid, src_port, ..NetHeader::default() } }
    }

    /// Sends a packet with a correct ICRC and `len` bytes of payload.
    fn send(&self, qpn: u32, psn: Psn, kind: Kind, len: usize) {
        let header = Header { bth: Bth::new(Qpn::new(qpn), psn), kind };
        let mut bytes = vec![0; header.padded_len(len) + icrc::LEN];
        let end = bytes.len() - icrc::LEN;
        header.emit(len, &mut bytes[..end]).unwrap().fill(0xee);
        icrc::seal(&self.net, &mut bytes);
        let _ = self.socket.send_to(&bytes, (HERE, 4791));
    }
}

/// Sends WRITEs to memory of the victim whose address and key, queue pair and PSN are known, from many ports; how many.
fn forge(qpn: u32, addr: u64, rkey: u32) -> String {
    let forgers: Vec<_> = (0..64).map(|_| Forger::new()).collect();
    let reth = Reth { va: addr + TARGET as u64, rkey: RKey(rkey), dma_len: 64 };
    let (start, mut count) = (Instant::now(), 0u32);
    while count < 64 || start.elapsed() < Duration::from_secs(seconds()) {
        let kind = Kind::RcRequest(Request::WriteOnly(reth, None));
        forgers[count as usize % forgers.len()].send(qpn, Psn::new(FIRST_PSN + count / 64), kind, 64);
        count += 1;
    }
    count.to_string()
}

/// Says that the packets of one message, which the victim has just sent, cannot be taken; how many times.
fn forge_naks(qpn: u32) -> String {
    const PACKETS: u32 = MESSAGE as u32 / 4096;
    let forger = Forger::new();
    for psn in (FIRST_PSN..).take(PACKETS as usize) {
        for code in [NakCode::InvalidRequest, NakCode::RemoteAccess, NakCode::RemoteOperation] {
            let aeth = Aeth { syndrome: Syndrome::Nak(code), msn: Msn::new(0) };
            forger.send(qpn, Psn::new(psn), Kind::RcResponse(Response::Ack(aeth)), 0);
        }
    }
    (3 * PACKETS).to_string()
}

/// Takes all the names that are free, and looks for `seconds` what is sent to them; how many bytes, all in all.
fn hold_names() -> String {
    let (start, mut held, mut heard, mut is_told) = (Instant::now(), Vec::new(), 0, false);
    allow_many_descriptors();
    while start.elapsed() < Duration::from_secs(seconds() + 5) {
        for name in open_names() {
            let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap();
            if socket.bind(&name).is_ok() {
                socket.set_nonblocking(true).unwrap();
                held.push(std::os::unix::net::UnixDatagram::from(std::os::fd::OwnedFd::from(socket)));
            }
        }
        for folder in candidates(VICTIM) {
            assert_eq!(fs::write(Path::new(&folder).join("planted"), "x").map_err(|e| is_barred(&e)), Err(true));
        }
        let mut bytes = [0; 65_536];
        heard += held.iter().filter_map(|socket| socket.recv(&mut bytes).ok()).sum::<usize>();
        if !std::mem::replace(&mut is_told, true) {
            println!("\n{MARK}0");
        }
    }
    heard.to_string()
}

/// As many as the system lets a process have: there are 4,094 names.
fn allow_many_descriptors() {
    // SAFETY: all-zero is valid; both calls have the limits on this frame.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

fn is_barred(cause: &std::io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound)
}

/// Two connected processes of the victim: who writes and who is written to, and where.
fn pair_of_victims(place: &Place, link: &str) -> (Peer, Peer, Vec<u64>) {
    let (a, b, _, of_b) = both_victims(place, link);
    (a, b, of_b)
}

/// The same, with what is known of the one who writes in front of what is known of the other.
fn both_victims(place: &Place, link: &str) -> (Peer, Peer, Vec<u64>, Vec<u64>) {
    let (mut a, mut b) = (place.peer(VICTIM, link), place.peer(VICTIM, link));
    let (of_a, of_b) = (a.ask("create"), b.ask("create"));
    let connect = |of: &[u64]| format!("connect {} {} {}", of[0], of[1], of[2]);
    a.ask(&connect(&of_b));
    b.ask(&connect(&of_a));
    (a, b, of_a, of_b)
}

/// The pair moves data while the attacker does as it is told; what both say.
fn attack(a: &mut Peer, b: &mut Peer, attacker: &mut Peer, order: &str) -> u64 {
    a.tell(&format!("write {}", seconds()));
    let reached = attacker.ask(order)[0];
    let written: u64 = a.hear().parse().unwrap();
    assert!(written > 0);
    assert_eq!(a.ask("write 0"), [1], "the pair still works");
    assert_eq!(b.ask("check"), [1], "every byte is there");
    reached
}

#[test]
fn descriptors_of_another_user_reach_nobody() {
    run("sends_descriptors");
}

#[test]
fn sends_descriptors() {
    if !is_inside() {
        return;
    }
    let place = Place::new();
    for link in ["auto", "udp"] {
        let (mut a, mut b, _) = pair_of_victims(&place, link);
        let mut attacker = place.peer(ATTACKER, link);
        let taken = attack(&mut a, &mut b, &mut attacker, &format!("descriptors {}", seconds()));
        assert_eq!(taken, 0, "link {link}");
    }
    done();
}

#[test]
fn packets_of_another_user_from_an_address_of_this_host_change_nothing() {
    run("forges_packets");
}

#[test]
fn forges_packets() {
    if !is_inside() {
        return;
    }
    let place = Place::new();
    for link in ["auto", "udp"] {
        let (mut a, mut b, of_b) = pair_of_victims(&place, link);
        let mut attacker = place.peer(ATTACKER, link);
        // The attacker knows all that RoCEv2 asks for. Nothing else is under way, so its PSNs are right.
        attacker.ask(&format!("forge {} {} {}", of_b[0], of_b[1], of_b[2]));
        assert_eq!(b.ask("target"), [0], "link {link}: memory was written");
        attack(&mut a, &mut b, &mut attacker, &format!("forge {} {} {}", of_b[0], of_b[1], of_b[2]));
        assert_eq!(b.ask("target"), [0], "link {link}: memory was written");
        assert!(b.ask("refused")[0] > 0);
    }
    done();
}

#[test]
fn naks_of_another_user_from_an_address_of_this_host_end_no_connection() {
    run("forges_naks");
}

#[test]
fn forges_naks() {
    if !is_inside() {
        return;
    }
    let place = Place::new();
    for link in ["auto", "udp"] {
        let (mut a, mut b, of_a, _) = both_victims(&place, link);
        let mut attacker = place.peer(ATTACKER, link);
        // The message is under way as long as its receiver stands still.
        b.stop();
        a.ask("post");
        attacker.ask(&format!("naks {}", of_a[0]));
        b.signal(libc::SIGCONT);
        assert_eq!(a.ask("wait"), [1], "link {link}: the connection ended");
        assert_eq!(b.ask("check"), [1]);
        assert_eq!(a.ask("write 0"), [1], "link {link}: the connection still works");
        assert!(a.ask("refused")[0] + b.ask("refused")[0] > 0, "link {link}");
    }
    done();
}

#[test]
fn names_that_another_user_takes_are_in_nobodys_way_and_hear_nothing() {
    run("takes_names");
}

#[test]
fn takes_names() {
    if !is_inside() {
        return;
    }
    let place = Place::new();
    let (mut a, mut b, _) = pair_of_victims(&place, "udp");
    let mut attacker = place.peer(ATTACKER, "udp");
    attacker.tell("names");
    assert_eq!(attacker.hear(), "0");
    // Who comes later finds numbers, and who is there goes on.
    let (_c, _d, _) = pair_of_victims(&place, "auto");
    assert_eq!(a.ask("write 1").len(), 1);
    assert_eq!(b.ask("check"), [1]);
    // The survivor of a pair sends to nobody else what was for the dead.
    a.tell("try");
    drop(b);
    assert_eq!(a.hear(), "1", "the survivor hears that its peer is gone");
    assert_eq!(attacker.hear(), "0", "bytes that were not for the attacker");
    done();
}

/// Not a test of its own: opens the device and makes a queue pair, and says what happened.
#[test]
fn opens() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let open = || {
        let context = devices()?.first().expect("a device").open()?;
        let cq = context.create_cq(roxe_provider::CqInit { cqe: 16, ..Default::default() })?;
        Node::open_in(context, cq).try_qp(Service::Rc, None).map(drop)
    };
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    println!("\n{MARK}user {user}: {}", open().map_or_else(|e| e.to_string(), |()| "it works".to_owned()));
}

/// What [`opens`] said.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once(MARK)).map(|(_, said)| said.to_owned());
    line.unwrap_or_else(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_user_namespace_that_maps_nobody_is_refused_with_the_reason() {
    run("maps_nobody");
}

#[test]
fn maps_nobody() {
    if !is_inside() {
        return;
    }
    let place = Place::new();
    let within = |how: &[&str]| {
        let inner = place.command("opens", VICTIM);
        let mut command = Command::new("unshare");
        command.arg("--user").args(how).arg("--").arg(inner.get_program()).args(inner.get_args());
        command.uid(VICTIM).gid(VICTIM).env(ROLE, "x").env_remove("XDG_RUNTIME_DIR").current_dir("/");
        said(&command.output().unwrap())
    };
    let mapped = within(&["--map-user=61001"]);
    if mapped.contains("unshare") {
        eprintln!("skipped: no user namespace can be made here: {mapped}");
        return done();
    }
    assert_eq!(mapped, "user 61001: it works");
    let refused = within(&[]);
    assert!(refused.contains("does not map user 65534") && refused.contains("unshare --map-"), "{refused}");
    done();
}

#[test]
fn a_set_uid_program_reads_no_variable_of_its_caller() {
    run("is_set_uid");
}

#[test]
fn is_set_uid() {
    if !is_inside() {
        return;
    }
    const SECRET: &str = "the first line of a file of root";
    let place = Place::new();
    fs::write(place.0.join("secret"), format!("{SECRET}\n")).unwrap();
    place.permit("secret", 0o600);
    place.permit("program", 0o4755);
    let captured = place.0.join("captured");
    let start = |knobs: &[(&str, String)]| {
        let mut command = place.command("opens", ATTACKER);
        command.env(ROLE, "x").envs(knobs.iter().map(|(name, value)| (name, value)));
        command.output().unwrap()
    };
    let plain = start(&[]);
    if !said(&plain).starts_with("user 0: ") {
        eprintln!("skipped: set-uid programs have no effect here: {}", said(&plain));
        return done();
    }
    let output = start(&[("ROXE_CAPTURE", captured.display().to_string())]);
    assert_eq!((said(&output).as_str(), captured.exists()), ("user 0: it works", false));
    let output = start(&[("ROXE_FAULTS", format!("@{}", place.0.join("secret").display()))]);
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    assert!(!String::from_utf8_lossy(&all).contains(SECRET), "{}", said(&output));
    assert_eq!(said(&output), "user 0: it works");
    done();
}

#[test]
fn who_finds_the_port_taken_hears_by_whom() {
    run("finds_the_port_taken");
}

#[test]
fn finds_the_port_taken() {
    if !is_inside() {
        return;
    }
    let place = Place::new();
    let (_a, _b, _) = pair_of_victims(&place, "auto");
    let text = said(&place.command("opens", ATTACKER).env(ROLE, "x").output().unwrap());
    assert!(text.contains("UDP port 4791 of 127.0.0.1 belongs to user 61001; stop"), "{text}");
    done();
}
