//! Streams between processes: what is left of a connection when the other process is killed or does
//! not answer.

use crate::common::{Sock, errno};
use libc::{AF_INET, MSG_WAITALL, POLLIN, SOCK_STREAM};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Set in the other process: where to connect to.
const PEER: &str = "ROXE_TEST_PEER";

/// Held by the test that has a peer: packets of other tests could reach a process that is stopped
/// or killed.
static ONE_TEST: Mutex<()> = Mutex::new(());

/// Another process, which is killed at the end at the latest.
struct Peer {
    child: Child,
    _alone: MutexGuard<'static, ()>,
}

impl Peer {
    /// Runs this program again, as a peer that connects to `at` and then lives until it is killed.
    fn start(at: SocketAddr) -> Self {
        let _alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(["--exact", "processes::the_other_process", "--nocapture"]).env(PEER, at.to_string());
        Self { child: command.stdout(Stdio::null()).spawn().unwrap(), _alone }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: what the other process does.
#[test]
fn the_other_process() {
    let Ok(at) = std::env::var(PEER) else { return };
    let sock = Sock::open(AF_INET, SOCK_STREAM);
    sock.connect(at.parse().unwrap()).unwrap();
    sock.send(b"alive", 0).unwrap();
    loop {
        std::thread::park();
    }
}

/// A connection to another process.
fn with_peer() -> (Sock, Peer) {
    let listener = Sock::open(AF_INET, SOCK_STREAM);
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let peer = Peer::start(listener.local_addr().unwrap());
    let (sock, _) = listener.accept().unwrap();
    let mut hello = [0; 5];
    assert_eq!(sock.recv(&mut hello, MSG_WAITALL).unwrap(), 5);
    (sock, peer)
}

/// A connection whose other end is a process that has just been killed.
fn orphan() -> (Sock, Peer) {
    let (sock, mut peer) = with_peer();
    peer.kill();
    (sock, peer)
}

#[test]
fn a_killed_peer_is_noticed_by_who_sends() {
    let (sock, _peer) = orphan();
    // The first call may still find room in the buffers of the two sides.
    let bytes = vec![7; 1 << 20];
    let _ = sock.send(&bytes, 0);
    assert_eq!(errno(sock.send(&bytes, 0)), libc::ECONNRESET);
    assert_ne!(sock.poll(POLLIN) & libc::POLLHUP, 0);
}

#[test]
fn a_killed_peer_is_noticed_by_who_waits() {
    let (sock, _peer) = orphan();
    assert_eq!(sock.recv(&mut [0; 1], 0).unwrap(), 0);
}

// clause: RSOCK-KEEPALIVE
#[test]
fn a_peer_that_does_not_answer_is_noticed_by_keepalives() {
    let (sock, peer) = with_peer();
    let stopped = Command::new("kill").args(["-STOP", &peer.child.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    for (level, name) in [(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), (libc::SOL_SOCKET, libc::SO_KEEPALIVE)] {
        sock.set_option(level, name, &1i32.to_ne_bytes()).unwrap();
    }
    assert_eq!(errno(sock.recv(&mut [0; 1], 0)), libc::ECONNRESET);
    assert_eq!(sock.recv(&mut [0; 1], 0).unwrap(), 0);
}
