//! `roxe drill TARGET FILE...` and `roxe conform TARGET`: options, targets by name, and output.
//! `roxe_drill` runs the scripts.

use crate::child::KillOnDrop;
use crate::output::Result;
use crate::{files, output, progress, token};
use roxe_drill::compare::{self, ChangeKind, Comparison};
use roxe_drill::conform::{self, Lost, Progress, Report};
use roxe_drill::{AgentCard, Deviations, Script, Target, Verdict, VirtualCard, report};
use roxe_peer::client;
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
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
    /// Address of this host to send from, and a second address for packets of strangers [default:
    /// from the route to the card].
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
    /// List the scripts instead of running them.
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
    /// Write a page of HTML: a table by clause, the packets of every case that did not pass, and
    /// plots of figures; for two reports, their changes and figures.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a badge for a README: JSON for an endpoint of shields.io.
    #[arg(long, value_name = "FILE")]
    badge: Option<PathBuf>,
    /// Compare with this older report (roxe help conformance-report). The exit status is 1 if a
    /// case got worse or the agent was lost. If TARGET is a file whose name ends in `.json`,
    /// compare that report and run no case.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

impl ConformArgs {
    /// Returns the name of a given option or argument that has an effect only if cases run.
    fn option_of_runs(&self) -> Option<&'static str> {
        let common = &self.common;
        let given = [
            (!self.only.is_empty(), "a word for names of scripts"),
            (!self.skip.is_empty(), "--skip"),
            (self.list, "--list"),
            (self.verbose, "--verbose"),
            (self.json.is_some(), "--json"),
            (self.junit.is_some(), "--junit"),
            (self.badge.is_some(), "--badge"),
            (common.captures.is_some(), "--captures"),
            (common.tolerate.is_some(), "--tolerate"),
            (common.token_file.is_some(), "--token-file"),
            (!common.near.is_empty(), "--near"),
        ];
        given.iter().find(|(is_given, _)| *is_given).map(|(_, name)| *name)
    }
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
    // An invalid file fails here, before the run, which takes minutes.
    let old = args.compare.as_deref().map(read_report).transpose()?;
    if let Some(new) = args.common.target.strip_suffix(".json").map(|_| Path::new(&args.common.target)) {
        let old = old.ok_or_else(|| format!("{} is a report; --compare FILE compares it", new.display()))?;
        if let Some(option) = args.option_of_runs() {
            return Err(format!("the target {} is a report: {option} needs a run", new.display()).into());
        }
        let new = read_report(new)?;
        let compared = Comparison::of(&old, &new)?;
        if let Some(path) = &args.html {
            files::write(path, report::comparison_page(&old, &new, &compared))?;
        }
        return finish_compared(&compared, None);
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
    let command = std::env::args_os()
        .skip(1)
        .map(|argument| token::without_token(argument.to_string_lossy().into_owned()))
        .collect::<Vec<_>>()
        .join(" ");
    report.run_info.push(("judge".to_owned(), format!("roxe {}", env!("CARGO_PKG_VERSION"))));
    report.run_info.push(("command".to_owned(), format!("roxe {command}")));
    report.run_info.extend(environment().map(|settings| ("environment".to_owned(), settings)));
    let value = report::value(&report);
    let compared = old.as_ref().map(|old| Comparison::of(old, &value)).transpose()?;
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| {
        path.as_ref().map_or(Ok(()), |path| files::write(path, text()))
    };
    write(&args.json, &|| format!("{value:#}\n"))?;
    write(&args.junit, &|| report::junit(&report))?;
    write(&args.html, &|| report::page(&report, compared.as_ref().zip(old.as_ref())))?;
    write(&args.badge, &|| report::badge(&report))?;
    write!(stdout().lock(), "{}", report::text(&report))?;
    match compared {
        Some(compared) => finish_compared(&compared, report.lost.as_ref()),
        None => finish(&report),
    }
}

/// Returns the settings of roxe in the environment, without the token of an agent.
fn environment() -> Option<String> {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let mut settings: Vec<_> = all
        .filter(|(name, _)| name.starts_with("ROXE_") && name != token::VARIABLE)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    settings.sort();
    (!settings.is_empty()).then(|| settings.join(" "))
}

/// Reads a report that `roxe conform --json` wrote.
fn read_report(path: &Path) -> Result<Value> {
    let wrong = |why: String| format!("{} is not a report of `roxe conform --json`: {why}", path.display());
    let value = serde_json::from_str(&files::read_text(path)?).map_err(|error| wrong(error.to_string()))?;
    compare::check(&value).map_err(wrong)?;
    Ok(value)
}

/// Prints a comparison. Fails if a case got worse or the agent was lost.
fn finish_compared(compared: &Comparison, lost: Option<&Lost>) -> Result<()> {
    write!(stdout().lock(), "\n{}", compared.text())?;
    let worse = match compared.count(ChangeKind::Worse) {
        0 => None,
        1 => Some("1 case got worse".to_owned()),
        worse => Some(format!("{worse} cases got worse")),
    };
    let unclear = match compared.newly_inconclusive() {
        0 => None,
        1 => Some("1 case is unclear: run it again".to_owned()),
        unclear => Some(format!("{unclear} cases are unclear: run them again")),
    };
    let is_good = worse.is_none() && lost.is_none();
    let message: Vec<_> = worse.into_iter().chain(lost.map(Lost::to_string)).chain(unclear).collect();
    let message = message.join("; ");
    if !is_good {
        return Err(message.into());
    }
    if !message.is_empty() {
        eprintln!("roxe conform: {message}");
    }
    Ok(())
}

/// Fails if a case failed.
fn finish(report: &Report) -> Result<()> {
    if report.is_good() {
        return Ok(());
    }
    let [failed, unknown] = ["FAIL", "inconclusive"].map(|word| report.count(word));
    let lost = report.lost.as_ref().map(|lost| format!("; {lost}")).unwrap_or_default();
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
    let mut capture_error = None;
    let mut line = progress::Progress::new(scripts.iter().map(|script| script.cases().len()).sum());
    let report = conform::run(scripts, &mut *target.card, &deviations, |event| {
        progress(&event, &mut line);
        if let Progress::Again(tried) = event {
            line.clear();
            let word = tried.outcome.verdict.word();
            output::line(format_args!("{word} {}: tried again, because packets are lost on the way", tried.name()));
        }
        if let (Some(folder), None) = (&common.captures, &capture_error) {
            capture_error = keep_capture(folder, &event).err();
        }
        let Progress::Ended(tried) = event else { return };
        if let Verdict::Fail(failure) | Verdict::Inconclusive(failure) = &tried.outcome.verdict {
            line.clear();
            output::line(format_args!(
                "{} {}: {}\n{failure}\n",
                tried.outcome.verdict.word(),
                tried.name(),
                tried.title
            ));
        }
        line.step(&tried.name());
    });
    drop(line);
    capture_error.map_or(Ok(report), |error| Err(error.into()))
}

/// Writes a capture of a case that did not pass; removes it if a later try passes.
fn keep_capture(folder: &Path, progress: &Progress<'_>) -> Result<(), String> {
    let (Progress::Ended(tried) | Progress::Again(tried)) = progress else { return Ok(()) };
    let name: String = tried.name().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = folder.join(format!("{}.pcapng", name.trim_matches('-')));
    if tried.outcome.verdict.failure().is_some() {
        files::write(&path, tried.outcome.log.to_pcapng())
    } else if matches!(progress, Progress::Again(_)) {
        fs::remove_file(&path).map_err(|cause| format!("cannot remove {}: {cause}", path.display()))
    } else {
        Ok(())
    }
}

/// A target with the agent, if this process started one.
pub(crate) struct Opened {
    /// Declared first and therefore dropped first: a running agent would report the connection's
    /// end.
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
            let target = token::with_token(&other.parse()?, common.token_file.as_deref())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::Scratch;

    #[test]
    fn capture_of_a_case_that_passes_later_is_removed() {
        let text = "title t\nclause GAP-NAK\npeer qp q\nsend WRITE_ONLY psn=100 ackreq\nexpect ACK msn=9";
        let script = Script::parse("a/bad", text).unwrap();
        let report = conform::run(&[script], &mut VirtualCard::default(), &Deviations::default(), |_| ());
        let failed = report.tried[0].clone();
        let mut passed = failed.clone();
        passed.outcome.verdict = Verdict::Pass;
        let folder = Scratch::new("captures");
        let file = folder.join("a-bad.pcapng");
        keep_capture(&folder, &Progress::Ended(&failed)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), failed.outcome.log.to_pcapng());
        let mut again = failed.clone();
        again.outcome.log = roxe_drill::Log::default();
        keep_capture(&folder, &Progress::Again(&again)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), again.outcome.log.to_pcapng());
        keep_capture(&folder, &Progress::Again(&passed)).unwrap();
        assert!(!file.exists());
    }
}
