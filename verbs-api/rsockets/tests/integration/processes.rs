//! Streams between processes, of which one is killed or stopped.

use crate::common::{Sock, errno};
use libc::{AF_INET, MSG_WAITALL, POLLIN, SOCK_STREAM};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Set in the child process: the address to connect to.
const PEER: &str = "ROXE_TEST_PEER";

/// Held by a test with a child: packets of other tests could reach a stopped process.
static ONE_TEST: Mutex<()> = Mutex::new(());

/// A child process, killed on drop.
struct Peer {
    child: Child,
    _alone: MutexGuard<'static, ()>,
}

impl Peer {
    /// Runs this program again as a peer that connects to `at` and waits to be killed.
    fn start(at: SocketAddr) -> Self {
        let _alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(["--exact", "processes::child_process", "--nocapture"]).env(PEER, at.to_string());
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

/// Not a test: runs in the child process.
#[test]
fn child_process() {
    let Ok(at) = std::env::var(PEER) else { return };
    let sock = Sock::open(AF_INET, SOCK_STREAM);
    sock.connect(at.parse().unwrap()).unwrap();
    sock.send(b"alive", 0).unwrap();
    loop {
        std::thread::park();
    }
}

/// Returns a connection to another process.
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

/// Returns a connection whose peer process was just killed.
fn orphan() -> (Sock, Peer) {
    let (sock, mut peer) = with_peer();
    peer.kill();
    (sock, peer)
}

#[test]
fn send_to_killed_peer_fails() {
    let (sock, _peer) = orphan();
    // The first call may still find room in the buffers.
    let bytes = vec![7; 1 << 20];
    let _ = sock.send(&bytes, 0);
    assert_eq!(errno(sock.send(&bytes, 0)), libc::ECONNRESET);
    assert_ne!(sock.poll(POLLIN) & libc::POLLHUP, 0);
}

#[test]
fn recv_from_killed_peer_fails() {
    let (sock, _peer) = orphan();
    assert_eq!(sock.recv(&mut [0; 1], 0).unwrap(), 0);
}

// clause: RSOCK-KEEPALIVE
#[test]
fn keepalive_detects_a_stopped_peer() {
    let (sock, peer) = with_peer();
    let stopped = Command::new("kill").args(["-STOP", &peer.child.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    for (level, name) in [(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), (libc::SOL_SOCKET, libc::SO_KEEPALIVE)] {
        sock.set_option(level, name, &1i32.to_ne_bytes()).unwrap();
    }
    assert_eq!(errno(sock.recv(&mut [0; 1], 0)), libc::ECONNRESET);
    assert_eq!(sock.recv(&mut [0; 1], 0).unwrap(), 0);
}
