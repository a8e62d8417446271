//! Attacks of another user of the same host, and of the caller of a set-uid program. Two users
//! without accounts run processes in a network namespace: the attacker repeats attacks that once
//! worked while a pair of the victim moves data, of which none may be lost. Needs root.
//!
//! `ROXE_TEST_ATTACK_SECONDS`: duration of an attack; `ROXE_TEST_SECONDS`: of all in turns.

use crate::common::peer::{MARK, Peer, ROLE, program};
use crate::common::*;
use roxe_provider::wire::{
    Aeth, Bth, Gid, Header, Kind, Msn, NakCode, NetHeader, PathMtu, Psn, Qpn, RKey, Request, Response, Reth, Syndrome,
    icrc,
};
use roxe_provider::{Qp, SendOp, Service, WcStatus, devices};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// First PSN of [`connect`].
const FIRST_PSN: u32 = 77;
/// Set in the network namespace: user ID of the victim.
const INSIDE: &str = "ROXE_TEST_STRANGERS";
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Length of a message in bytes.
const MESSAGE_LEN: usize = 64 << 10;
/// Offset for messages read back.
const BACK: usize = 1 << 20;
/// Offset that forged WRITEs address.
const TARGET: usize = 3 << 20;
/// Duration of a turn, longer than a queue pair waits for a dead peer.
const TURN: Duration = Duration::from_secs(2);

fn seconds() -> u64 {
    seconds_of("ROXE_TEST_ATTACK_SECONDS")
}

fn seconds_of(variable: &str) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// A folder that all users can read and only root can change, with a copy of this program. Removed
/// at the end.
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

    /// Returns the command that runs test `name` of this program as `user`.
    fn command(&self, name: &str, user: u32) -> Command {
        let mut command = Command::new(self.0.join("program"));
        command.args(program(name).get_args()).uid(user).gid(user);
        command.env_remove("XDG_RUNTIME_DIR").current_dir("/");
        command
    }

    /// Starts the attacker in a user namespace where it has the victim's user ID; `None` if that is
    /// not possible here.
    fn masked_attacker(&self) -> Option<Peer> {
        let unshare = |user: u32| {
            let mut command = Command::new("unshare");
            command.args(["--user", &format!("--map-user={}", victim()), "--"]).uid(user).gid(user).current_dir("/");
            command
        };
        if !unshare(attacker()).arg("true").status().is_ok_and(|status| status.success()) {
            return None;
        }
        let (mut command, inner) = (unshare(attacker()), self.command("peer", attacker()));
        command.arg(inner.get_program()).args(inner.get_args()).env_remove("XDG_RUNTIME_DIR");
        Some(Peer::start_as(command, "peer", &[]))
    }

    fn peer(&self, user: u32, link: &str) -> Peer {
        // The default receive buffer, which a flood fills.
        let knobs = [("ROXE_LINK", link), ("ROXE_RCVBUF", "106496")];
        Peer::start_as(self.command("peer", user), "peer", &knobs)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for user in [victim(), attacker()] {
            let _ = candidates(user).map(fs::remove_dir_all);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the runtime folders of a user.
fn candidates(user: u32) -> [String; 3] {
    [format!("/run/user/{user}/roxe"), format!("/tmp/roxe-{user}"), format!("/dev/shm/roxe-{user}")]
}

/// Runs `test` in a network namespace, with two unused users; `name` is the calling test. Skipped
/// without root.
#[track_caller]
fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        test();
        println!("{MARK}done");
        return;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || !Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: only root can be two users in a network namespace");
    }
    let inner = program(name);
    let output = unshare
        .arg(inner.get_program())
        .args(inner.get_args())
        .env(INSIDE, unused_user().to_string())
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains(&format!("{MARK}done")), "{stdout}{stderr}");
    stderr.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| eprintln!("{line}"));
    println!("{stdout}");
}

/// Returns the user ID of the victim. Each test has users of its own, because the runtime folder of
/// a user does not depend on the namespace, and is removed after the test.
fn victim() -> u32 {
    std::env::var(INSIDE).unwrap().parse().unwrap()
}

fn attacker() -> u32 {
    victim() + 1
}

/// Returns an unused user ID; the next one is unused, too.
fn unused_user() -> u32 {
    static TESTS: AtomicU32 = AtomicU32::new(0);
    const PER_PROCESS: u32 = 64;
    1_000_000 + std::process::id() * PER_PROCESS + 2 * TESTS.fetch_add(1, Relaxed)
}

/// Process of the victim or attacker, started by a test: obeys one command per line.
#[test]
fn peer() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let (mut puppet, mut forgers) = (None, None);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).map_or(0, |word| word.parse::<u64>().unwrap());
        let answer = match words[0] {
            "descriptors" => send_descriptors(number(1)),
            "forge" => {
                let victim = Known { written: number(1) as u32, addr: number(2), rkey: number(3) as u32, writes: 0 };
                forge(&victim)
            }
            "all" => {
                let victims = (1..words.len()).step_by(4).map(|at| Known {
                    writes: number(at) as u32,
                    written: number(at + 1) as u32,
                    addr: number(at + 2),
                    rkey: number(at + 3) as u32,
                });
                do_all(forgers.get_or_insert_with(Forgers::new), &victims.collect::<Vec<_>>())
            }
            "naks" => forge_naks(number(1) as u32),
            "names" => hold_names(),
            _ => puppet.get_or_insert_with(Puppet::new).execute(words[0], number),
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

    fn execute(&mut self, word: &str, number: impl Fn(usize) -> u64) -> String {
        match word {
            "create" => format!("{} {} {}", self.qp.qpn().get(), self.node.addr(0), self.node.mr.rkey().0),
            "connect" => {
                let gid = match number(4) {
                    0 => self.node.context.gid(1, 0).unwrap(),
                    last => Ipv4Addr::new(127, 0, 0, last as u8).into(),
                };
                self.remote = Some(Window { addr: number(2), rkey: RKey(number(3) as u32) });
                connect(&self.qp, self.node.av(0, gid), Qpn::new(number(1) as u32), PathMtu::Mtu4096);
                "1".into()
            }
            "gid" => self.node.context.gid(1, 0).unwrap().0[15].to_string(),
            "write" => self.write(Duration::from_secs(number(1))).to_string(),
            "post" => {
                self.node.fill(0, MESSAGE_LEN, 7);
                self.post();
                "1".into()
            }
            "wait" => self.expect_success(0).to_string(),
            "try" => self.write_until_it_fails(),
            "check" => u8::from(self.node.bytes(0, MESSAGE_LEN) == pattern(MESSAGE_LEN, 7)).to_string(),
            "target" => {
                // Receive arrived packets.
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
        post(&self.qp, 1, SendOp::Write { remote_addr: addr, rkey }, self.node.sge(0, MESSAGE_LEN));
    }

    /// Writes messages with different bytes for `time` and reads each back; returns their number.
    fn write(&self, time: Duration) -> u64 {
        let Window { addr, rkey } = self.remote.unwrap();
        let (start, mut count) = (Instant::now(), 0);
        while count == 0 || start.elapsed() < time {
            let seed = (count % 251) as u8;
            self.node.fill(0, MESSAGE_LEN, seed);
            self.post();
            count = self.expect_success(count);
            post(&self.qp, 2, SendOp::Read { remote_addr: addr, rkey }, self.node.sge(BACK, MESSAGE_LEN));
            self.expect_success(0);
            assert_eq!(self.node.bytes(BACK, MESSAGE_LEN), pattern(MESSAGE_LEN, seed), "message {count}");
        }
        // No completion is duplicated.
        assert_eq!(self.node.cq.poll(1, |_| ()).unwrap(), 0);
        count
    }

    /// Waits for success of the outstanding message; returns `count` + 1.
    fn expect_success(&self, count: u64) -> u64 {
        let status = self.node.wait(1)[0].status;
        assert_eq!(status, WcStatus::Success, "{:?}", self.node.context.counters());
        count + 1
    }

    fn write_until_it_fails(&self) -> String {
        self.node.fill(0, MESSAGE_LEN, 7);
        loop {
            self.post();
            let status = self.node.wait(1)[0].status;
            if status != WcStatus::Success {
                return u8::from(status == WcStatus::RetryExcErr).to_string();
            }
        }
    }
}

/// Returns the abstract socket names of former versions, which any user could bind.
fn open_names() -> impl Iterator<Item = SockAddr> {
    (1..0xfff).map(|slot| SockAddr::unix(format!("\0roxe/1/1/{slot}")).unwrap())
}

/// Sends each mailbox of the victim a socket that takes an hour to close, for `seconds`; returns
/// the number of those received.
fn send_descriptors(seconds: u64) -> String {
    const MAX_SENT: u32 = 4;
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let (start, mut taken) = (Instant::now(), 0);
    while taken < MAX_SENT && start.elapsed() < Duration::from_secs(seconds) {
        taken += send_to_every_name(&[1; 64], || slow_to_close(&listener));
    }
    // The kernel keeps them queued even if this process dies.
    taken.to_string()
}

/// Sends each mailbox of the victim a message with a descriptor; returns the number received.
fn send_to_every_name<F: AsRawFd + Send + 'static>(message: &[u8], make: impl Fn() -> F) -> u32 {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap();
    let in_folders = candidates(victim()).into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let in_folders = in_folders.flatten().filter_map(|entry| SockAddr::unix(entry.path()).ok());
    let found = open_names().chain(in_folders).filter(|name| socket.connect(name).is_ok());
    let send = |_| {
        let made = make();
        let is_taken = send_descriptor(&socket, message, made.as_raw_fd());
        // The last one to close it waits, which may be this process.
        std::thread::spawn(|| drop(made));
        u32::from(is_taken)
    };
    found.map(send).sum()
}

/// Returns the message that offers a ring: kind of frame, format and size of the ring.
fn ring_offer() -> [u8; 48] {
    let mut frame = [0; 48];
    frame[..2].copy_from_slice(&[6, 2]);
    frame[8..12].copy_from_slice(&(1u32 << 19).to_ne_bytes());
    frame
}

fn slow_to_close(listener: &TcpListener) -> TcpStream {
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    SockRef::from(&stream).set_linger(Some(Duration::from_secs(3600))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 65_536]).is_ok() {}
    stream
}

fn send_descriptor(socket: &Socket, message: &[u8], fd: RawFd) -> bool {
    let mut iov = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = [0u64; 3];
    // SAFETY: all-zero is valid; every pointer is to this frame, with the length that is there;
    // room for one descriptor.
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

/// A socket that sends in the name of the victim's peer, from its own port.
struct Forger {
    socket: Socket,
    net: NetHeader,
}

impl Forger {
    /// Binds `address`.
    fn at(address: SocketAddrV4) -> std::io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        let src_port = socket.local_addr()?.as_socket().unwrap().port();
        let gid = Gid::from(LOOPBACK);
        Ok(Self { socket, net: NetHeader { src: gid, dst: gid, src_port, ..NetHeader::default() } })
    }

    /// Binds every kind of port open to an attacker: unused ones, the RoCE port of other addresses,
    /// and the victim's ports at other addresses.
    fn everywhere() -> Vec<Self> {
        let at = |last, port| Self::at(SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), port));
        let any = |port| Self::at(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port));
        let forgers = (0..32).map(|_| at(1, 0)).chain((2..18).map(|last| at(last, 4791))).chain([any(0)]);
        // Not the wildcard address at the RoCE port: if many sockets have a port, the kernel lets
        // another user take it there, and no process of the victim could start.
        let others = udp_ports().into_iter().filter(|port| *port != 4791).flat_map(|port| [at(2, port), any(port)]);
        forgers.chain(others).filter_map(Result::ok).collect()
    }

    /// Sends `bytes` from the victim's own address.
    fn send_bytes(&self, bytes: &[u8]) {
        let mut to = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 4791u16.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(LOOPBACK.octets()) },
            sin_zero: [0; 8],
        };
        let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 4];
        // SAFETY: all-zero is valid; every pointer is to this frame, with the length that is there;
        // room for one `in_pktinfo`.
        unsafe {
            let mut header: libc::msghdr = zeroed();
            (header.msg_name, header.msg_namelen) = ((&raw mut to).cast(), size_of_val(&to) as u32);
            (header.msg_iov, header.msg_iovlen) = (&raw mut iov, 1);
            let len = size_of::<libc::in_pktinfo>() as u32;
            (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), libc::CMSG_SPACE(len) as usize);
            let message = libc::CMSG_FIRSTHDR(&raw const header);
            (*message).cmsg_level = libc::IPPROTO_IP;
            (*message).cmsg_type = libc::IP_PKTINFO;
            (*message).cmsg_len = libc::CMSG_LEN(len) as usize;
            let source = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: to.sin_addr, ipi_addr: to.sin_addr };
            libc::CMSG_DATA(message).cast::<libc::in_pktinfo>().write_unaligned(source);
            libc::sendmsg(self.socket.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT);
        }
    }

    /// Sends a packet with a correct ICRC and `len` bytes of payload.
    fn send(&self, qpn: u32, psn: Psn, kind: Kind, len: usize) {
        let header = Header { bth: Bth::new(Qpn::new(qpn), psn), kind };
        let mut bytes = vec![0; header.padded_len(len) + icrc::LEN];
        let end = bytes.len() - icrc::LEN;
        header.emit(len, &mut bytes[..end]).unwrap().fill(0xee);
        icrc::seal(&self.net, &mut bytes);
        self.send_bytes(&bytes);
    }
}

/// Returns the ports of all UDP sockets of this network namespace.
fn udp_ports() -> Vec<u16> {
    let table =
        fs::read_to_string("/proc/net/udp").unwrap() + &fs::read_to_string("/proc/net/udp6").unwrap_or_default();
    let ports = table.lines().filter_map(|line| line.split_whitespace().nth(1)?.split_once(':'));
    ports.filter_map(|(_, port)| u16::from_str_radix(port, 16).ok()).collect()
}

/// Facts that the attacker knows of a pair: the QPN of requester and responder, and the responder's
/// memory.
struct Known {
    writes: u32,
    written: u32,
    addr: u64,
    rkey: u32,
}

/// Forges WRITEs with known address, key, QPN and PSN from many addresses and ports; returns their
/// number.
fn forge(victim: &Known) -> String {
    let (mut forgers, start) = (Forgers::new(), Instant::now());
    while forgers.sent < 64 || start.elapsed() < Duration::from_secs(seconds()) {
        forgers.write(victim);
    }
    forgers.sent.to_string()
}

/// Forgers at many ports, which all try a PSN before the next one.
struct Forgers {
    all: Vec<Forger>,
    sent: u32,
}

impl Forgers {
    fn new() -> Self {
        Self { all: Forger::everywhere(), sent: 0 }
    }

    fn write(&mut self, victim: &Known) {
        let (count, reth) =
            (self.all.len() as u32, Reth { va: victim.addr + TARGET as u64, rkey: RKey(victim.rkey), dma_len: 64 });
        let (forger, psn) = (&self.all[(self.sent % count) as usize], Psn::new(FIRST_PSN + self.sent / count));
        forger.send(victim.written, psn, Kind::RcRequest(Request::WriteOnly(reth, None)), 64);
        self.sent += 1;
    }
}

/// Runs one turn of all attacks. Prints 0 once all names are taken. Returns messages received by
/// mailboxes, bytes received at taken names, and packets forged so far.
fn do_all(forgers: &mut Forgers, victims: &[Known]) -> String {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let mut taken = send_to_every_name(&[1; 64], || slow_to_close(&listener));
    taken += send_to_every_name(&ring_offer(), || fs::File::open("/dev/zero").unwrap());
    let (start, mut names, mut received) = (Instant::now(), HeldNames::default(), 0);
    names.take_all();
    println!("\n{MARK}0");
    while start.elapsed() < TURN {
        for victim in victims {
            // The names come after these, of which there are 4,094.
            (0..8192).for_each(|_| forgers.write(victim));
            forge_naks(victim.writes);
        }
        received += names.received();
    }
    format!("{taken} {received} {}", forgers.sent)
}

/// Forges NAKs for the packets of the victim's outstanding message; returns their number.
fn forge_naks(qpn: u32) -> String {
    const PACKETS: u32 = MESSAGE_LEN as u32 / 4096;
    let forgers = Forger::everywhere();
    for psn in (FIRST_PSN..).take(PACKETS as usize) {
        let forger = &forgers[psn as usize % forgers.len()];
        for code in [NakCode::InvalidRequest, NakCode::RemoteAccess, NakCode::RemoteOperation] {
            let aeth = Aeth { syndrome: Syndrome::Nak(code), msn: Msn::new(0) };
            forger.send(qpn, Psn::new(psn), Kind::RcResponse(Response::Ack(aeth)), 0);
        }
    }
    (3 * PACKETS).to_string()
}

/// Takes all free names for `seconds`; returns the number of bytes received there.
fn hold_names() -> String {
    let (start, mut names, mut received, mut is_printed) = (Instant::now(), HeldNames::default(), 0, false);
    while start.elapsed() < Duration::from_secs(seconds() + 5) {
        names.take_all();
        received += names.received();
        if !std::mem::replace(&mut is_printed, true) {
            println!("\n{MARK}0");
        }
    }
    received.to_string()
}

/// Names of the victim's processes held by the attacker.
#[derive(Default)]
struct HeldNames(Vec<UnixDatagram>);

impl HeldNames {
    fn take_all(&mut self) {
        allow_many_descriptors();
        for name in open_names() {
            let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap();
            if socket.bind(&name).is_ok() {
                socket.set_nonblocking(true).unwrap();
                self.0.push(OwnedFd::from(socket).into());
            }
        }
        for folder in candidates(victim()) {
            assert_eq!(fs::write(Path::new(&folder).join("planted"), "x").map_err(|e| is_barred(&e)), Err(true));
        }
    }

    /// Returns the number of bytes received.
    fn received(&self) -> usize {
        let mut bytes = [0; 65_536];
        self.0.iter().filter_map(|socket| socket.recv(&mut bytes).ok()).sum()
    }
}

/// Raises the limit of descriptors: there are 4,094 names.
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

/// Starts two connected processes of the victim; returns them, and the QPN, address
/// and rkey of the responder.
fn pair_of_victims(place: &Place, link: &str) -> (Peer, Peer, Vec<u64>) {
    let (a, b, _, ids_b) = both_victims(place, link);
    (a, b, ids_b)
}

/// Like [`pair_of_victims`]. Returns the QPN, address and rkey of both.
fn both_victims(place: &Place, link: &str) -> (Peer, Peer, Vec<u64>, Vec<u64>) {
    let (mut a, mut b) = (place.peer(victim(), link), place.peer(victim(), link));
    let (ids_a, ids_b) = (a.ask("create"), b.ask("create"));
    let connect = |end: &[u64]| format!("connect {} {} {}", end[0], end[1], end[2]);
    a.ask(&connect(&ids_b));
    b.ask(&connect(&ids_a));
    (a, b, ids_a, ids_b)
}

/// Runs an attack while the pair moves data; returns its result.
fn attack(a: &mut Peer, attacker: &mut Peer, order: &str) -> u64 {
    a.send_line(&format!("write {}", seconds()));
    let reached = attacker.ask(order)[0];
    let written: u64 = a.read_line().parse().unwrap();
    assert!(written > 0);
    assert_eq!(a.ask("write 0"), [1], "the pair still works");
    reached
}

#[test]
fn descriptors_of_other_user_are_not_received() {
    alone("descriptors_of_other_user_are_not_received", || {
        let place = Place::new();
        for link in ["auto", "udp"] {
            let (mut a, _b, _) = pair_of_victims(&place, link);
            let mut attacker = place.peer(attacker(), link);
            let taken = attack(&mut a, &mut attacker, &format!("descriptors {}", seconds()));
            assert_eq!(taken, 0, "link {link}");
        }
    });
}

#[test]
fn forged_writes_of_other_user_are_dropped() {
    alone("forged_writes_of_other_user_are_dropped", || {
        let place = Place::new();
        for link in ["auto", "udp"] {
            let (mut a, mut b, ids_b) = pair_of_victims(&place, link);
            let mut attacker = place.peer(attacker(), link);
            // The attacker knows all that RoCEv2 requires. No other traffic changes the PSN.
            attacker.ask(&format!("forge {} {} {}", ids_b[0], ids_b[1], ids_b[2]));
            assert_eq!(b.ask("target"), [0], "link {link}: memory was written");
            attack(&mut a, &mut attacker, &format!("forge {} {} {}", ids_b[0], ids_b[1], ids_b[2]));
            assert_eq!(b.ask("target"), [0], "link {link}: memory was written");
            assert!(b.ask("refused")[0] > 0);
        }
    });
}

#[test]
fn forged_naks_of_other_user_are_dropped() {
    alone("forged_naks_of_other_user_are_dropped", || {
        let place = Place::new();
        for link in ["auto", "udp"] {
            let (mut a, mut b, ids_a, _) = both_victims(&place, link);
            let mut attacker = place.peer(attacker(), link);
            // The message is outstanding while its receiver is stopped.
            b.stop();
            a.ask("post");
            attacker.ask(&format!("naks {}", ids_a[0]));
            b.signal(libc::SIGCONT);
            assert_eq!(a.ask("wait"), [1], "link {link}: the connection ended");
            assert_eq!(b.ask("check"), [1]);
            assert_eq!(a.ask("write 0"), [1], "link {link}: the connection still works");
            assert!(a.ask("refused")[0] + b.ask("refused")[0] > 0, "link {link}");
        }
    });
}

#[test]
fn names_taken_by_other_user_are_not_used() {
    alone("names_taken_by_other_user_are_not_used", || {
        let place = Place::new();
        let (mut a, b, _) = pair_of_victims(&place, "udp");
        let mut attacker = place.peer(attacker(), "udp");
        attacker.send_line("names");
        assert_eq!(attacker.read_line(), "0");
        // New processes find free numbers, and running ones continue.
        let (_c, _d, _) = pair_of_victims(&place, "auto");
        assert_eq!(a.ask("write 1").len(), 1);
        // The survivor of a pair must not send to the attacker instead of the dead process.
        a.send_line("try");
        drop(b);
        assert_eq!(a.read_line(), "1", "the survivor notices the death of its peer");
        assert_eq!(attacker.read_line(), "0", "bytes that were not for the attacker");
    });
}

#[test]
fn repeated_attacks_do_not_disturb_connections() {
    alone("repeated_attacks_do_not_disturb_connections", || {
        let (place, links) = (Place::new(), ["auto", "udp"]);
        let mut pairs = links.map(|link| both_victims(&place, link));
        let known: String = pairs
            .iter()
            .map(|(_, _, ids_a, ids_b)| format!(" {} {} {} {}", ids_a[0], ids_b[0], ids_b[1], ids_b[2]))
            .collect();
        let mut attackers = vec![place.peer(attacker(), "udp")];
        match place.masked_attacker() {
            Some(attacker) => attackers.push(attacker),
            None => eprintln!("skipped: no attacker with the victim's number in a user namespace"),
        }
        let (mut start, time) = (Instant::now(), Duration::from_secs(seconds_of("ROXE_TEST_SECONDS")));
        let (mut turns, mut sent) = (0, vec![0; attackers.len()]);
        // No other traffic in the first turns, so that the attackers' PSNs are right.
        while turns < 2 * attackers.len() || start.elapsed() < time {
            if turns == attackers.len() {
                start = Instant::now();
                pairs.iter_mut().for_each(|(a, ..)| a.send_line(&format!("write {}", time.as_secs())));
            }
            let (which, link) = (turns % attackers.len(), links[turns % links.len()]);
            // A short-lived pair: one dies, and the other must not send to the attacker instead.
            let (mut survivor, dies, _) = pair_of_victims(&place, link);
            attackers[which].send_line(&format!("all{known}"));
            assert_eq!(attackers[which].read_line(), "0");
            survivor.send_line("try");
            drop(dies);
            assert_eq!(survivor.read_line(), "1", "link {link}: the survivor notices the death of its peer");
            let line = attackers[which].read_line();
            let (reached, forged) = line.rsplit_once(' ').unwrap();
            assert_eq!(reached, "0 0", "turn {turns}: messages taken by mailboxes, bytes received at their names");
            sent[which] = forged.parse::<u64>().unwrap();
            turns += 1;
        }
        for (link, (a, b, ..)) in links.into_iter().zip(&mut pairs) {
            let written: u64 = a.read_line().parse().unwrap();
            println!("link {link}: {written} messages of {MESSAGE_LEN} bytes written and read back");
            assert!(written > 0);
            assert_eq!(b.ask("target"), [0], "link {link}: memory was written");
            assert_eq!(a.ask("write 0"), [1], "link {link}: the pair still works");
            println!("link {link}: refused {} and {}", a.ask("refused")[0], b.ask("refused")[0]);
            assert!(b.ask("refused")[0] > 0);
        }
        println!(
            "{turns} turns of {} attackers, {} forged WRITEs, {:.0?}",
            attackers.len(),
            sent.iter().sum::<u64>(),
            start.elapsed()
        );
    });
}

/// Opens the device, creates a queue pair and prints the result, in a process started by a test.
#[test]
fn opens_device() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let open = || {
        let context = devices()?.first().expect("find a device").open()?;
        let cq = context.create_cq(roxe_provider::CqInit { cqe: 16, ..Default::default() })?;
        Node::open_in(context, cq).try_qp(Service::Rc, None).map(drop)
    };
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    println!("\n{MARK}user {user}: {}", open().map_or_else(|e| e.to_string(), |()| "it works".to_owned()));
}

/// Returns the output of [`opens_device`].
fn marked_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once(MARK)).map(|(_, text)| text.to_owned());
    line.unwrap_or_else(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn user_namespace_without_mapping_is_refused() {
    alone("user_namespace_without_mapping_is_refused", || {
        let place = Place::new();
        let within = |how: &[&str]| {
            let inner = place.command("opens_device", victim());
            let mut command = Command::new("unshare");
            command.arg("--user").args(how).arg("--").arg(inner.get_program()).args(inner.get_args());
            command.uid(victim()).gid(victim()).env(ROLE, "x").env_remove("XDG_RUNTIME_DIR").current_dir("/");
            marked_line(&command.output().unwrap())
        };
        let mapped = within(&[&format!("--map-user={}", victim())]);
        if mapped.contains("unshare") {
            eprintln!("skipped: no user namespace can be made here: {mapped}");
            return;
        }
        assert_eq!(mapped, format!("user {}: it works", victim()));
        let refused = within(&[]);
        assert!(refused.contains("does not map user 65534") && refused.contains("unshare --map-"), "{refused}");
    });
}

#[test]
fn set_uid_program_ignores_roxe_variables() {
    alone("set_uid_program_ignores_roxe_variables", || {
        const SECRET: &str = "the first line of a file of root";
        let place = Place::new();
        fs::write(place.0.join("secret"), format!("{SECRET}\n")).unwrap();
        place.permit("secret", 0o600);
        place.permit("program", 0o4755);
        let captured = place.0.join("captured");
        let start = |knobs: &[(&str, String)]| {
            let mut command = place.command("opens_device", attacker());
            command.env(ROLE, "x").envs(knobs.iter().map(|(name, value)| (name, value)));
            command.output().unwrap()
        };
        let plain = start(&[]);
        if !marked_line(&plain).starts_with("user 0: ") {
            eprintln!("skipped: set-uid programs have no effect here: {}", marked_line(&plain));
            return;
        }
        let output = start(&[("ROXE_CAPTURE", captured.display().to_string())]);
        assert_eq!((marked_line(&output).as_str(), captured.exists()), ("user 0: it works", false));
        let output = start(&[("ROXE_FAULTS", format!("@{}", place.0.join("secret").display()))]);
        let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        assert!(!String::from_utf8_lossy(&all).contains(SECRET), "{}", marked_line(&output));
        assert_eq!(marked_line(&output), "user 0: it works");
    });
}

#[test]
fn taken_udp_port_is_reported_with_owner() {
    alone("taken_udp_port_is_reported_with_owner", || {
        let place = Place::new();
        // At all addresses, so that no address is left for another user.
        let _taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 4791)).unwrap();
        let taken = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
        taken.set_only_v6(true).unwrap();
        // Fails without IPv6, where it is not needed.
        let _ = taken.bind(&SockAddr::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 4791, 0, 0)));
        let text = marked_line(&place.command("opens_device", victim()).env(ROLE, "x").output().unwrap());
        assert!(text.contains("UDP port 4791 of 127.0.0.1 belongs to user 0; stop"), "{text}");
    });
}

#[test]
fn cards_of_two_users_exchange_data() {
    alone("cards_of_two_users_exchange_data", || {
        let place = Place::new();
        for link in ["auto", "udp"] {
            let users = [victim(), attacker()];
            let mut pairs = users.map(|user| [(); 2].map(|()| place.peer(user, link)));
            let made = pairs.each_mut().map(|pair| pair.each_mut().map(|peer| peer.ask("create")));
            let gids = pairs.each_mut().map(|pair| pair.each_mut().map(|peer| peer.ask("gid")[0]));
            assert_eq!(gids, [[1, 1], [2, 2]], "link {link}: the processes of a user agree on an address");
            // The first peers of each user connect to each other, the second ones across users.
            let connect = |end: &[u64], gid: u64| format!("connect {} {} {} {gid}", end[0], end[1], end[2]);
            let [[a, b], [c, d]] = &mut pairs;
            b.ask(&connect(&made[1][1], 2));
            d.ask(&connect(&made[0][1], 1));
            for peer in [&mut *b, &mut *d] {
                assert!(peer.ask("write 1")[0] > 0, "link {link}: written and read back across users");
                assert_eq!(peer.ask("refused"), [0]);
            }
            // A third process of each user finds the user's address.
            drop((place.peer(users[0], link), a, c));
            let mut late = place.peer(users[1], link);
            late.ask("create");
            assert_eq!(late.ask("gid"), [2], "link {link}");
        }
    });
}
