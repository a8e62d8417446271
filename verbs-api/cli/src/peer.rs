//! `roxe peer`: the agent beside a card under test. Here: its options, and what it prints.

use crate::token;
use roxe_base::private_file;
use roxe_peer::protocol::DEFAULT_PORT;
use roxe_peer::server::{Options, Server};
use std::error::Error;
use std::io::{Write as _, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

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
    /// Write the token to this file, which only this user can read, and do not print it.
    ///
    /// With ROXE_PEER_TOKEN in the environment that is the token, and it is not printed either.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// End when the first controller has gone.
    #[arg(long)]
    once: bool,
}

/// Listens, says where, and serves.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let token = token::of_environment()?;
    let is_known = token.is_some();
    let server = Server::bind(&Options { listen: args.listen, device: args.device.clone(), port: args.port, token })?;
    let (address, mut out) = (server.address()?, stdout());
    if let Some(file) = &args.token_file {
        let failed = |cause| format!("cannot write {}: {cause}", file.display());
        private_file::write(file, format!("{}\n", server.token()).as_bytes()).map_err(failed)?;
        writeln!(out, "listening {address} token-file {}", file.display())?;
    } else if is_known {
        writeln!(out, "listening {address} token-variable {}", token::VARIABLE)?;
    } else {
        writeln!(out, "listening {address} token {}", server.token())?;
    }
    out.flush()?;
    Ok(server.serve(args.once)?)
}
