//! `roxe check-peer`: whether two cards understand each other. Here: its options, and the table.

use crate::progress::Progress;
use crate::token;
use roxe_peer::check::{self, Check, Pair, PairError};
use roxe_peer::client::{Client, Target};
use roxe_peer::server::{Options, Server};
use std::error::Error;
use std::io::{self, Write as _, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;

/// What `roxe check-peer` was asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent beside the other card: HOST[:PORT], as `roxe peer` printed it there. Its token is
    /// in ROXE_PEER_TOKEN.
    #[arg(value_name = "TARGET")]
    far: Target,
    /// Only checks whose names have every one of these words, such as `RC SEND mtu=1024 ipv4`.
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// Read the token of the agent from this file instead of ROXE_PEER_TOKEN.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Another agent instead of this host's card.
    #[arg(long, value_name = "TARGET", conflicts_with = "device")]
    near: Option<Target>,
    /// Read the token of the agent of --near from this file instead of ROXE_PEER_TOKEN.
    #[arg(long, value_name = "FILE", requires = "near")]
    near_token_file: Option<PathBuf>,
    /// This host's device [default: the first one].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// What the bytes of messages are drawn from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Name every check, not only those that fail.
    #[arg(long)]
    verbose: bool,
}

/// What became of the checks.
#[derive(Default)]
struct Count {
    passed: usize,
    failed: usize,
    unsupported: usize,
}

/// Does the checks and prints what became of them; an error if one failed, or none was done.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let target = token::complete(&args.far, args.token_file.as_deref())?;
    let (mut near, mut far) = (open_near(args)?, Client::open(&target)?);
    let mut out = stdout();
    writeln!(out, "near: {}; far: {} at {}", near.name(), far.name(), args.far.address)?;
    let wanted = |check: &Check| args.words.iter().all(|word| check.to_string().contains(word.as_str()));
    let pairs: Vec<(_, Vec<_>)> =
        check::pairs().map(|kind| (kind, check::checks(kind).filter(wanted).collect())).collect();
    let mut line = Progress::new(pairs.iter().map(|(_, checks)| checks.len()).sum());
    let mut total = Count::default();
    for (kind, checks) in pairs.into_iter().filter(|(_, checks)| !checks.is_empty()) {
        let count = one_pair(args, (&mut near, &mut far), kind, &checks, &mut line)?;
        total.passed += count.passed;
        total.failed += count.failed;
        total.unsupported += count.unsupported;
    }
    let Count { passed, failed, unsupported } = total;
    writeln!(out, "{passed} passed, {failed} failed, {unsupported} not supported (seed {})", args.seed)?;
    match (failed, passed) {
        (0, 0) => Err("no check was done".into()),
        (0, _) => Ok(()),
        _ => Err(format!("{failed} checks failed").into()),
    }
}

/// Does the checks of one kind of pair, and begins anew with another pair after one that failed.
fn one_pair(
    args: &Args,
    (near, far): (&mut Client, &mut Client),
    kind: (check::Service, u32, check::Family),
    checks: &[Check],
    line: &mut Progress,
) -> Result<Count, Box<dyn Error>> {
    let mut out = stdout();
    let mut count = Count::default();
    let (mut rest, mut why) = (checks, None);
    while !rest.is_empty() && why.is_none() {
        let mut pair = match Pair::connect(near, far, kind) {
            Ok(pair) => pair,
            Err(PairError::Unsupported(text)) => {
                why = Some(text);
                continue;
            }
            Err(PairError::Agent(error)) => return Err(error.into()),
        };
        let mut is_fit = true;
        while let (Some((check, others)), true) = (rest.split_first(), is_fit) {
            let result = check::check(&mut pair, check, args.seed);
            rest = others;
            is_fit = result.is_ok();
            match result {
                Ok(()) => count.passed += 1,
                Err(_) => count.failed += 1,
            }
            line.step(&check.to_string());
            if args.verbose || !is_fit {
                line.clear();
            }
            match result {
                Ok(()) if args.verbose => writeln!(out, "  passed {check}")?,
                Ok(()) => {}
                Err(error) => writeln!(out, "  FAILED {check}: {error}")?,
            }
        }
    }
    count.unsupported = rest.len();
    line.clear();
    let family = if kind.2 == check::Family::V4 { "ipv4" } else { "ipv6" };
    write!(out, "{} mtu={:<4} {family}  {:>3} of {} passed", kind.0.name(), kind.1, count.passed, checks.len())?;
    writeln!(out, "{}", why.map_or_else(String::new, |why| format!("; not supported: {why}")))?;
    Ok(count)
}

/// The card here: an agent in this process, or the one that was named.
fn open_near(args: &Args) -> Result<Client, Box<dyn Error>> {
    if let Some(near) = &args.near {
        return Ok(Client::open(&token::complete(near, args.near_token_file.as_deref())?)?);
    }
    let listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let options = Options { listen, device: args.device.clone(), port: 1, token: None };
    let server = Server::bind(&options).map_err(|refusal| {
        io::Error::other(format!("{refusal}\n  For roxe's card: roxe run -- roxe check-peer ..."))
    })?;
    let (address, token) = (server.address()?, server.token().to_owned());
    // It ends with this process.
    thread::Builder::new().spawn(move || server.serve(false))?;
    Ok(Client::connect(address, &token)?)
}
