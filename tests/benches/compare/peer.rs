//! The second process of a measurement within this program: a copy of it in another role.

use crate::network::Site;
use roxe_tests::measure::load;
use roxe_tests::measure::pin::{self, End};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A copy of this program in a role. It prints its port on the first line; killed when dropped.
pub(crate) struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// Port, or another number that the role prints.
    pub(crate) port: u16,
}

/// A peer in the clients' namespace.
pub(crate) struct FarPeer {
    /// Address on which it listens.
    pub(crate) address: SocketAddr,
    /// Kept because it is killed when dropped.
    _peer: Peer,
}

impl FarPeer {
    /// Starts `role` in the clients' namespace of `site`; the address to bind is added as its last
    /// argument.
    pub(crate) fn start(site: &Site, role: &[&str]) -> io::Result<Self> {
        let peer = Peer::start_behind(site.peer_prefix(), &[role, &[site.far]].concat())?;
        let address = SocketAddr::new(site.far.parse().map_err(io::Error::other)?, peer.port);
        Ok(Self { address, _peer: peer })
    }

    /// Returns a socket connected to it.
    pub(crate) fn socket(&self) -> io::Result<UdpSocket> {
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let socket = UdpSocket::bind((any[usize::from(self.address.is_ipv6())], 0))?;
        socket.connect(self.address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

impl Peer {
    /// Starts `role` and waits until it is ready.
    pub(crate) fn start(role: &[&str]) -> io::Result<Self> {
        Self::start_behind(pin::prefix(End::Server), role)
    }

    fn start_behind(mut words: Vec<String>, role: &[&str]) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        words.push(program.to_string_lossy().into_owned());
        let mut child =
            Command::new(&words[0]).args(&words[1..]).args(role).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the peer has no output"))?;
        let mut peer = Self { child, lines: BufReader::new(stdout), port: 0 };
        peer.port = peer.line()?.parse().map_err(io::Error::other)?;
        Ok(peer)
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the peer ended early"));
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        load::record_wait(self.child.id());
        // Fails if the peer has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a line of a role for the parent process.
pub(crate) fn say(word: impl std::fmt::Display) -> io::Result<()> {
    println!("{word}");
    io::stdout().flush()
}
