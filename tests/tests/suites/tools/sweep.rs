//! `roxe sweep` on programs with one mistake on an error path, and on the same programs without it
//! (`tests/clients/sweep`). This suite tries the faults that show the mistake; `sweep_twins` tries
//! all faults on every twin, on both links.

use roxe_tests::build;
use roxe_tests::cc;
use roxe_tests::files::Scratch;
use roxe_tests::guest::link;
use roxe_tests::pair::UNPRIVILEGED;
use roxe_tests::report::{self, Check, Verdict};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::OnceLock;

/// A mistake, the options that show it, its class, and the function that is named with it.
pub(crate) struct Twins {
    pub(crate) name: &'static str,
    options: &'static [&'static str],
    class: &'static str,
    function: &'static str,
}

const fn twins(
    name: &'static str,
    options: &'static [&'static str],
    class: &'static str,
    function: &'static str,
) -> Twins {
    Twins { name, options, class, function }
}

pub(crate) const TWINS: [Twins; 13] = [
    twins("unchecked-null", &["--verbs"], "crash", "unchecked_null"),
    twins("destroyed-twice", &["--verbs"], "misuse", "destroyed_twice"),
    twins("lock-held", &["--verbs"], "hang", "make_under_lock"),
    twins("leak", &["--verbs"], "leak", "leak"),
    twins("failed-post", &["--verbs"], "hang", "failed_post"),
    twins("retry", &["--completions"], "hang", "retry"),
    twins("wc-status", &["--completions"], "unnoticed", "wc_status"),
    twins("order", &["--verbs"], "misuse", "order"),
    twins("unacked", &["--completions"], "hang", "unacked"),
    twins("rejected", &["--events"], "hang", "rejected"),
    twins("early-read", &["--seeds=3"], "fails", ""),
    twins("late-arm", &["--seeds=5"], "hang", "late_arm"),
    twins("port-down", &["--events"], "unread", ""),
];

pub(crate) fn main() -> ExitCode {
    let quick = ["unchecked-null", "wc-status", "early-read"];
    let shown = TWINS.iter().filter(move |twins| quick.contains(&twins.name)).flat_map(|twins| {
        [true, false].map(|wrong| {
            let side = if wrong { "wrong" } else { "right" };
            Check::new(format!("sweep: {}, {side}", twins.name), move || judge(twins, wrong, "auto", twins.options))
        })
    });
    let others = [
        Check::new("sweep: a finding is repeated by its command", repeats),
        Check::new("sweep: an ordinary user", as_ordinary_user),
        Check::new("sweep: findings of the baseline do not fail", baseline),
        Check::new("sweep: a sweep goes on where it stopped", resumes),
        Check::new("sweep: the page of a finding shows its packets", page),
        Check::new("sweep: packets may be lost", packets),
        Check::new("sweep: a program that fails without faults is refused", refuses),
    ];
    report::main(shown.chain(others).collect())
}

/// Compiles the twins.
fn program() -> Result<&'static Path, Verdict> {
    static PROGRAM: OnceLock<Result<cc::Compiled, String>> = OnceLock::new();
    if let Some(why) = cc::missing() {
        return Err(Verdict::Skipped(why));
    }
    let libraries = ["ibverbs", "rdmacm", "pthread"];
    let compiled = PROGRAM.get_or_init(|| {
        let compiled = cc::Compiled::with_flags("gcc", &["-g"], "sweep/sweep.c", &libraries, "sweep")?;
        // An ordinary user runs it, too.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(compiled.folder(), all).map_err(|e| e.to_string())?;
        Ok(compiled)
    });
    compiled.as_ref().map(|compiled| &*compiled.program).map_err(|why| Verdict::Failed(why.clone()))
}

/// Runs `roxe sweep OPTIONS -- PROGRAM CASE SIDE`.
fn sweep(prefix: &[&str], options: &[&str], case: &str, side: &str) -> Result<Output, Verdict> {
    let (roxe, program) = (build::roxe(), program()?);
    let mut words: Vec<_> = prefix.iter().map(|word| (*word).to_owned()).collect();
    words.push(roxe.display().to_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("sweep").args(options).arg("--").arg(program).args([case, side]);
    let output = command.stdin(Stdio::null()).output().map_err(|e| Verdict::Failed(e.to_string()))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    if printed.contains("grants no user namespace") {
        return Err(Verdict::Skipped(printed.trim().to_owned()));
    }
    Ok(output)
}

fn text(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Sweeps a twin; the wrong one has the finding, the right one has none.
pub(crate) fn judge(twins: &Twins, wrong: bool, link: &str, options: &[&str]) -> Verdict {
    let folder = match Scratch::new("sweep") {
        Ok(folder) => folder,
        Err(why) => return Verdict::Failed(why),
    };
    let report = folder.join("report.json");
    let named = format!("--report={}", report.display());
    let options: Vec<_> = options.iter().copied().chain([&*named, "--timeout=6s"]).collect();
    let prefix = ["env", &format!("ROXE_LINK={link}")].map(str::to_owned);
    let prefix: Vec<_> = prefix.iter().map(String::as_str).collect();
    let output = match sweep(&prefix, &options, twins.name, if wrong { "wrong" } else { "right" }) {
        Ok(output) => output,
        Err(verdict) => return verdict,
    };
    judge_report(twins, wrong, &output, &report).map_err(|why| format!("{why}\n{}", text(&output))).into()
}

fn judge_report(twins: &Twins, wrong: bool, output: &Output, report: &Path) -> Result<(), String> {
    let report = fs::read_to_string(report).map_err(|e| format!("no report: {e}"))?;
    let report: Value = serde_json::from_str(&report).map_err(|e| format!("the report: {e}"))?;
    let findings = report["findings"].as_array().ok_or("the report has no findings")?;
    let runs = report["runs"].as_array().map_or(0, Vec::len);
    if runs < 2 {
        return Err(format!("only {runs} runs"));
    }
    if !wrong {
        return if findings.is_empty() && output.status.success() {
            Ok(())
        } else {
            Err("the right twin has a finding".into())
        };
    }
    let names = |finding: &Value| {
        ["broke_at", "fault_at"]
            .iter()
            .any(|stack| finding[*stack].as_str().is_some_and(|text| text.contains(twins.function)))
    };
    let found = findings.iter().find(|finding| finding["class"] == twins.class && names(finding));
    let found = found.ok_or_else(|| format!("no finding of class {} names {}", twins.class, twins.function))?;
    if output.status.code() != Some(1) {
        return Err("the exit status is not 1".into());
    }
    let cause = found["cause"].as_str().unwrap_or_default();
    let needs_seed = twins.options.iter().any(|option| option.starts_with("--seeds"));
    if needs_seed && (cause.is_empty() || cause.matches(" (").count() > 2) {
        return Err(format!("the cause is not reduced to two weaknesses at most: {cause:?}"));
    }
    if needs_seed && !cause.contains(", needed for ") {
        return Err(format!("the cause is not reduced to occasions: {cause:?}"));
    }
    Ok(())
}

/// The command of a finding gives the same class ten times of ten.
fn repeats() -> Verdict {
    let fault = "fail ibv_reg_mr errno=ENOMEM nth=2";
    for _ in 0..10 {
        let output = match sweep(&[], &["--fault", fault], "unchecked-null", "wrong") {
            Ok(output) => output,
            Err(verdict) => return verdict,
        };
        let printed = text(&output);
        if output.status.code() != Some(1) || !printed.contains("crash") || !printed.contains("SIGSEGV") {
            return Verdict::Failed(printed);
        }
    }
    Verdict::Passed
}

fn as_ordinary_user() -> Verdict {
    if !link::is_root() {
        return Verdict::Skipped("needs root, to become an ordinary user".to_owned());
    }
    match sweep(&UNPRIVILEGED, &["--completions"], "wc-status", "wrong") {
        Ok(output) if text(&output).contains("unnoticed") => Verdict::Passed,
        Ok(output) => Verdict::Failed(text(&output)),
        Err(verdict) => verdict,
    }
}

fn baseline() -> Verdict {
    let run = |options: &[&str]| sweep(&[], options, "wc-status", "wrong");
    let judged = || {
        let folder = Scratch::new("sweep-baseline").map_err(Verdict::Failed)?;
        let file = format!("--baseline={}", folder.join("known").display());
        let before = run(&["--completions", &file])?;
        let written = run(&["--completions", &file, "--update-baseline"])?;
        let after = run(&["--completions", &file])?;
        let codes = [before, written, after].map(|output| output.status.code());
        Ok(if codes == [Some(1), Some(0), Some(0)] { Verdict::Passed } else { Verdict::Failed(format!("{codes:?}")) })
    };
    judged().unwrap_or_else(|verdict| verdict)
}

fn resumes() -> Verdict {
    let run = |options: &[&str]| sweep(&[], options, "wc-status", "right");
    let judged = || {
        let folder = Scratch::new("sweep-resume").map_err(Verdict::Failed)?;
        let kept = format!("--resume={}", folder.display());
        let results = || fs::read_to_string(folder.join("results.jsonl")).unwrap_or_default();
        // The first run is longer than the budget of the others.
        let first = run(&["--verbs", &kept, "--for=1ms", "-j1"])?;
        let some = results().lines().count();
        let second = run(&["--verbs", &kept])?;
        let third = run(&["--verbs", &kept])?;
        let all = results().lines().count();
        let other = text(&sweep(&[], &["--verbs", &kept], "wc-status", "wrong")?);
        let printed = text(&first) + &other;
        let goes_on = some > 0 && some < all && printed.contains("not tried") && second.stdout == third.stdout;
        let is_right = goes_on && other.contains("results of another program");
        Ok(if is_right { Verdict::Passed } else { Verdict::Failed(format!("{some} and {all} results\n{printed}")) })
    };
    judged().unwrap_or_else(|verdict| verdict)
}

/// The page of a finding has a ladder with the only message of the program.
fn page() -> Verdict {
    let judged = || {
        let folder = Scratch::new("sweep-page").map_err(Verdict::Failed)?;
        let file = folder.join("page.html");
        let output = sweep(&[], &["--completions", &format!("--report={}", file.display())], "wc-status", "wrong")?;
        let page = fs::read_to_string(&file).unwrap_or_default();
        let shown = page.split_once("<iframe srcdoc=").map_or("", |(_, rest)| rest);
        let is_right = shown.contains("SEND_ONLY") || shown.contains("WRITE_ONLY");
        Ok(if is_right { Verdict::Passed } else { Verdict::Failed(text(&output) + &page) })
    };
    judged().unwrap_or_else(|verdict| verdict)
}

fn packets() -> Verdict {
    match sweep(&[], &["--packets"], "wc-status", "right") {
        Ok(output) if output.status.success() && text(&output).contains("passes") => Verdict::Passed,
        Ok(output) => Verdict::Failed(text(&output)),
        Err(verdict) => verdict,
    }
}

fn refuses() -> Verdict {
    match sweep(&[], &[], "no-such-case", "right") {
        Ok(output) if text(&output).contains("fails without any fault: exit status 2") => Verdict::Passed,
        Ok(output) => Verdict::Failed(text(&output)),
        Err(verdict) => verdict,
    }
}
