//! `roxe peer`: the agent beside a card under test. Here: its options, and what it prints.

use roxe_peer::protocol::DEFAULT_PORT;
use roxe_peer::server::{Options, Server};
use std::error::Error;
use std::io::{Write as _, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// What `roxe peer` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to wait for a controller; port 0 takes any that is free.
    ///
    /// Whoever connects there and shows the token makes this host's card send and receive. The
    /// connection is not encrypted: listen beyond loopback only where nobody else listens in.
    #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT))]
    listen: SocketAddr,
    /// The device [default: the first one].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The port of the device.
    #[arg(long, value_name = "N", default_value_t = 1)]
    port: u8,
    /// End when the first controller has gone.
    #[arg(long)]
    once: bool,
}

/// Listens, says where, and serves.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&Options { listen: args.listen, device: args.device.clone(), port: args.port })?;
    let mut out = stdout();
    writeln!(out, "listening {} token {}", server.address()?, server.token())?;
    out.flush()?;
    Ok(server.serve(args.once)?)
}
