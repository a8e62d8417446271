//! `roxe drill TARGET FILE...` and `roxe conform TARGET`: options, targets by name, and output.
//! `roxe_drill` runs the scripts.

use crate::child::KillOnDrop;
use crate::output::Result;
use crate::{files, output, progress, token};
use roxe_drill::compare::{self, Comparison, Kind};
use roxe_drill::conform::{self, Progress, Report, Tried};
use roxe_drill::{AgentCard, Deviations, Script, Target, Verdict, VirtualCard, report};
use roxe_peer::client;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _, stdout};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Arguments of every command that has a target.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// The card: `virtual` (roxe's transport in this process, at virtual time), `self` (roxe's
    /// first device on this host, over UDP), or `peer://HOST[:PORT]` (the card of an agent, `roxe
    /// peer`, whose token is in ROXE_PEER_TOKEN).
    pub(crate) target: String,
    /// Read the token of the agent from this file instead of ROXE_PEER_TOKEN.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Address of this host to send from, and a second one for packets of strangers [default: by
    /// the route to the card].
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    near: Vec<IpAddr>,
    /// Write a capture (pcapng) of every case that did not pass to this folder.
    #[arg(long, value_name = "DIR")]
    captures: Option<PathBuf>,
    /// Accept the deviations in this file, one per line: `SCRIPT: REASON`.
    #[arg(long, value_name = "FILE")]
    tolerate: Option<PathBuf>,
}

/// Arguments of `roxe drill`.
#[derive(Debug, clap::Args)]
pub(crate) struct DrillArgs {
    #[command(flatten)]
    common: Common,
    /// Scripts to run (roxe help scripts).
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Arguments of `roxe conform`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConformArgs {
    #[command(flatten)]
    common: Common,
    /// Run only scripts whose name contains one of these words.
    only: Vec<String>,
    /// Skip scripts whose name contains this word.
    #[arg(long, value_name = "WORD")]
    skip: Vec<String>,
    /// List the scripts and run none.
    #[arg(long)]
    list: bool,
    /// Print every case before it runs.
    #[arg(long, short)]
    verbose: bool,
    /// Write the report to this file as JSON (roxe help conformance-report).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the cases to this file as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a page of HTML: a table by clause, and the packets of every case that did not pass.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a badge for a README: JSON for an endpoint of shields.io.
    #[arg(long, value_name = "FILE")]
    badge: Option<PathBuf>,
    /// Compare with this older report (roxe help conformance-report). The exit status is 1 if a
    /// case got worse. If the target is a report, too, no case runs.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

pub(crate) fn drill(args: &DrillArgs) -> Result<()> {
    let read = |path: &PathBuf| -> Result<Script> {
        Ok(Script::parse(&path.display().to_string(), &files::read_text(path)?)?)
    };
    let scripts = args.files.iter().map(read).collect::<Result<Vec<_>>>()?;
    let report = run(&args.common, &scripts, |progress, line| {
        // `run` prints the cases that did not pass.
        if let Progress::Ended(tried) = progress
            && tried.outcome.verdict.failure().is_none()
        {
            line.clear();
            output::line(format_args!("{}  {}: {}", tried.outcome.verdict.word(), tried.name(), tried.title));
        }
    })?;
    finish(&report)
}

pub(crate) fn conform(args: &ConformArgs) -> Result<()> {
    // Read first: a run takes minutes.
    let old = args.compare.as_deref().map(read_report).transpose()?;
    if let Some(new) = args.common.target.strip_suffix(".json").map(|_| Path::new(&args.common.target)) {
        let old = old.ok_or_else(|| format!("{} is a report; --compare FILE compares it", new.display()))?;
        return finish_compared(&Comparison::of(&old, &read_report(new)?)?, None);
    }
    let mut scripts = conform::catalogue(&args.only)?;
    scripts.retain(|script| !args.skip.iter().any(|word| script.name().contains(word.as_str())));
    if scripts.is_empty() {
        return Err(format!("no script has one of these words in its name: {}", args.only.join(", ")).into());
    }
    if args.list {
        let mut out = stdout().lock();
        for script in &scripts {
            let cases = script.cases().len();
            writeln!(out, "{:36} {cases:4}  {} ({})", script.name(), script.title(), script.clauses().join(", "))?;
        }
        return Ok(());
    }
    let mut report = run(&args.common, &scripts, |progress, line| {
        if let (Progress::Begins(script, parameters), true) = (progress, args.verbose) {
            line.clear();
            output::line(format_args!("{} [{parameters}]", script.name()));
        }
    })?;
    let command = std::env::args().skip(1).map(token::without_token).collect::<Vec<_>>().join(" ");
    report.facts.push(("judge".to_owned(), format!("roxe {}", env!("CARGO_PKG_VERSION"))));
    report.facts.push(("command".to_owned(), format!("roxe {command}")));
    let value = report::value(&report);
    let compared = old.map(|old| Comparison::of(&old, &value)).transpose()?;
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| {
        path.as_ref().map_or(Ok(()), |path| files::write(path, text()))
    };
    write(&args.json, &|| format!("{value:#}\n"))?;
    write(&args.junit, &|| report::junit(&report))?;
    write(&args.html, &|| report::page(&report, compared.as_ref()))?;
    write(&args.badge, &|| report::badge(&report))?;
    write!(stdout().lock(), "{}", report::text(&report))?;
    match compared {
        Some(compared) => finish_compared(&compared, report.lost()),
        None => finish(&report),
    }
}

/// Reads a report that was kept.
fn read_report(path: &Path) -> Result<Value> {
    let wrong = |why: String| format!("{} is no report of roxe conform --json: {why}", path.display());
    let value = serde_json::from_str(&files::read_text(path)?).map_err(|error| wrong(error.to_string()))?;
    compare::check(&value).map_err(wrong)?;
    Ok(value)
}

/// Prints a comparison. Fails if a case got worse or the agent was lost.
fn finish_compared(compared: &Comparison, lost: Option<String>) -> Result<()> {
    write!(stdout().lock(), "\n{}", compared.text())?;
    match (compared.count(Kind::Worse), lost) {
        (0, None) => Ok(()),
        (0, Some(lost)) => Err(lost.into()),
        (worse, lost) => {
            let lost = lost.map(|lost| format!("; {lost}")).unwrap_or_default();
            Err(format!("{worse} cases got worse{lost}").into())
        }
    }
}

/// Fails if a case failed.
fn finish(report: &Report) -> Result<()> {
    if report.is_good() {
        return Ok(());
    }
    let [failed, unknown] = ["FAIL", "inconclusive"].map(|word| report.count(word));
    let lost = report.lost().map(|lost| format!("; {lost}")).unwrap_or_default();
    Err(format!("{failed} of {} cases failed, {unknown} are inconclusive{lost}", report.tried.len()).into())
}

fn run(
    common: &Common,
    scripts: &[Script],
    mut progress: impl FnMut(&Progress<'_>, &mut progress::Progress),
) -> Result<Report> {
    let deviations = match &common.tolerate {
        None => Deviations::default(),
        Some(path) => Deviations::parse(&files::read_text(path)?)
            .map_err(|error| format!("wrong --tolerate: {}: {error}", path.display()))?,
    };
    common.captures.as_deref().map(files::create_folder).transpose()?;
    let mut target = open(common)?;
    let mut trouble = None;
    let mut line = progress::Progress::new(scripts.iter().map(|script| script.cases().len()).sum());
    let report = conform::run(scripts, &mut *target.card, &deviations, |told| {
        progress(&told, &mut line);
        if let Progress::Again(tried) = told {
            line.clear();
            let word = tried.outcome.verdict.word();
            output::line(format_args!("{word} {}: tried again, because packets are lost on the way", tried.name()));
        }
        let Progress::Ended(tried) = told else { return };
        if let Verdict::Fail(failure) | Verdict::Inconclusive(failure) = &tried.outcome.verdict {
            line.clear();
            output::line(format_args!(
                "{} {}: {}\n{failure}\n",
                tried.outcome.verdict.word(),
                tried.name(),
                tried.title
            ));
        }
        if let (Some(folder), Some(_), None) = (&common.captures, tried.outcome.verdict.failure(), &trouble) {
            trouble = write_capture(folder, tried).err();
        }
        line.step(&tried.name());
    });
    drop(line);
    trouble.map_or(Ok(report), |error| Err(error.into()))
}

fn write_capture(folder: &Path, tried: &Tried) -> Result<(), String> {
    let name: String = tried.name().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    files::write(&folder.join(format!("{}.pcapng", name.trim_matches('-'))), tried.outcome.log.to_pcapng())
}

/// A target, and the agent that this process started for it.
pub(crate) struct Opened {
    /// Declared first: the agent must end before the connection, whose end it would report.
    _agent: Option<KillOnDrop>,
    pub(crate) card: Box<dyn Target>,
}

pub(crate) fn open(common: &Common) -> Result<Opened> {
    match common.target.as_str() {
        "virtual" => Ok(Opened { card: Box::new(VirtualCard::default()), _agent: None }),
        "self" => {
            let (agent, target) = start_agent()?;
            Ok(Opened { card: Box::new(connect(&target, common)?), _agent: Some(agent) })
        }
        other if !["://", ".", ":", "@"].iter().any(|part| other.contains(part)) => {
            Err(format!("no target is called {other}; write virtual, self, or peer://HOST[:PORT]").into())
        }
        other => {
            let target = token::complete(&other.parse()?, common.token_file.as_deref())?;
            Ok(Opened { card: Box::new(connect(&target, common)?), _agent: None })
        }
    }
}

fn connect(target: &client::Target, common: &Common) -> Result<AgentCard> {
    let refused = |why| format!("cannot use the agent {}: {why}", target.address);
    Ok(AgentCard::connect(target, &common.near).map_err(refused)?)
}

/// Starts `roxe peer` on roxe's devices, without the shared memory link.
fn start_agent() -> Result<(KillOnDrop, client::Target)> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.args(["run", "--"]).arg(&program).args(["peer", "--once", "--listen", "127.0.0.1:0"]);
    command.env("ROXE_LINK", "udp").env_remove(token::VARIABLE).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut agent = KillOnDrop(command.spawn()?);
    let mut line = String::new();
    if let Some(output) = agent.0.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let words: Vec<_> = line.split_whitespace().collect();
    let ["listening", address, "token", token] = words[..] else {
        return Err(format!("roxe peer did not start: {line}").into());
    };
    Ok((agent, client::Target { token: token.to_owned(), address: address.to_owned() }))
}
