//! `roxe peer`: options and output; `roxe_peer::server` is the agent.

use crate::output::Result;
use crate::{files, token};
use roxe_peer::protocol::DEFAULT_PORT;
use roxe_peer::server::{Options, Server};
use std::io::{Write as _, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Arguments of `roxe peer`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Listen at this address; port 0 selects a free port.
    ///
    /// Every controller with the token can make this host's card send and receive. The connection
    /// is not encrypted: listen at other addresses than loopback only in networks that you trust.
    #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT))]
    listen: SocketAddr,
    /// Use this device [default: the first].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Use this port of the device.
    #[arg(long, value_name = "N", default_value_t = 1)]
    port: u8,
    /// Write the token to this file, which only this user can read, instead of printing it.
    ///
    /// ROXE_PEER_TOKEN sets the token; then it is not printed.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// End when the first controller disconnects.
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let token = token::from_environment()?;
    let is_known = token.is_some();
    let server = Server::bind(&Options { listen: args.listen, device: args.device.clone(), port: args.port, token })?;
    let (address, mut out) = (server.address()?, stdout());
    if let Some(file) = &args.token_file {
        files::write(file, format!("{}\n", server.token()))?;
        writeln!(out, "listening {address} token-file {}", file.display())?;
    } else if is_known {
        writeln!(out, "listening {address} token-variable {}", token::VARIABLE)?;
    } else {
        writeln!(out, "listening {address} token {}", server.token())?;
    }
    out.flush()?;
    Ok(server.serve(args.once)?)
}
