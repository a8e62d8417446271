//! `roxe check-peer`: options and the table of results. `roxe_peer::check` runs the checks between
//! the two cards.

use crate::output::Result;
use crate::progress::Progress;
use crate::token;
use roxe_peer::check::{self, CellRun, Check, CheckError, Conditions, Pair, PairError};
use roxe_peer::client::{Client, Target};
use roxe_peer::server::{Options, Server};
use std::io::{self, Write as _, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;

/// Arguments of `roxe check-peer`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent of the other card: HOST[:PORT], as `roxe peer` printed it there. Its token is in
    /// ROXE_PEER_TOKEN.
    #[arg(value_name = "TARGET")]
    far: Target,
    /// Run only checks whose names contain all of these words, such as `RC SEND mtu=1024 ipv4`.
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// Read the token of the agent from this file instead of ROXE_PEER_TOKEN.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Use the card of another agent instead of this host's card.
    #[arg(long, value_name = "TARGET", conflicts_with = "device")]
    near: Option<Target>,
    /// Read the token of the agent of --near from this file instead of ROXE_PEER_TOKEN.
    #[arg(long, value_name = "FILE", requires = "near")]
    near_token_file: Option<PathBuf>,
    /// Use this device of this host [default: the first].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Seed of the message bytes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print every check, not only those that fail.
    #[arg(long)]
    verbose: bool,
}

/// Runs the checks and prints a table. Fails if a check failed, or none ran.
pub(crate) fn run(args: &Args) -> Result {
    let target = token::with_token(&args.far, args.token_file.as_deref())?;
    let (mut near, mut far) = (open_near(args)?, Client::open(&target)?);
    writeln!(stdout(), "near: {}; far: {} at {}", near.name(), far.name(), args.far.address)?;
    let is_selected = |check: &Check| args.words.iter().all(|word| check.to_string().contains(word.as_str()));
    let kinds: Vec<(_, Vec<_>)> =
        check::kinds().map(|kind| (kind, check::checks(kind).filter(is_selected).collect())).collect();
    let mut progress = Progress::new(kinds.iter().map(|(_, checks)| checks.len()).sum());
    let clients = &mut [&mut near, &mut far];
    let mut pair = Pair::register(clients)?;
    let (mut passed, mut failed, mut unsupported) = (0, 0, 0);
    let (mut out, conditions) = (stdout(), Conditions { seed: args.seed, ..Conditions::default() });
    for (kind, checks) in kinds.into_iter().filter(|(_, checks)| !checks.is_empty()) {
        let (passed_before, mut unsupported_reason) = (passed, None);
        for check in &checks {
            let result = CellRun::run(&mut pair, clients, check, &conditions);
            progress.step(&check.to_string());
            if args.verbose || matches!(result, Err(CheckError::Wrong(_))) {
                progress.clear();
            }
            match result {
                Ok(_) => {
                    passed += 1;
                    if args.verbose {
                        writeln!(out, "  passed {check}")?;
                    }
                }
                Err(CheckError::Pair(PairError::Unsupported(text))) => {
                    unsupported += 1;
                    unsupported_reason = Some(text);
                }
                Err(CheckError::Pair(PairError::Agent(error))) if clients.iter().any(|client| client.is_lost()) => {
                    return Err(error.into());
                }
                Err(error) => {
                    failed += 1;
                    writeln!(out, "  FAILED {check}: {error}")?;
                }
            }
        }
        progress.clear();
        let (service, mtu, family) = kind;
        let (passed_here, total) = (passed - passed_before, checks.len());
        write!(out, "{} mtu={mtu:<4} {family}  {passed_here:>3} of {total} passed", service.name())?;
        let note = unsupported_reason.map_or_else(String::new, |reason| format!("; not supported: {reason}"));
        writeln!(out, "{note}")?;
    }
    writeln!(out, "{passed} passed, {failed} failed, {unsupported} not supported (seed {})", args.seed)?;
    match (failed, passed) {
        (0, 0) => Err("no check ran".into()),
        (0, _) => Ok(()),
        _ => Err(format!("{failed} checks failed").into()),
    }
}

/// Connects to the agent of the near card: the agent of `--near`, or one on a thread of this
/// process.
fn open_near(args: &Args) -> Result<Client> {
    if let Some(near) = &args.near {
        return Ok(Client::open(&token::with_token(near, args.near_token_file.as_deref())?)?);
    }
    let listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let options = Options { listen, device: args.device.clone(), port: 1, token: None };
    let server = Server::bind(&options)
        .map_err(|error| io::Error::other(format!("{error}; for roxe's card: roxe run -- roxe check-peer ...")))?;
    let (address, token) = (server.address()?, server.token().to_owned());
    // The agent's thread ends with this process.
    thread::Builder::new().spawn(move || server.serve(false))?;
    Ok(Client::connect(address, &token)?)
}
