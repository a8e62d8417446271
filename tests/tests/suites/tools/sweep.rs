//! Runs `roxe sweep` on programs with one mistake on an error path, and on the same programs
//! without it (`tests/clients/sweep`). This suite tries only the faults that show the mistake;
//! `sweep_twins` tries all faults on every pair of programs, on both links.

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

/// A mistake: the options that show it, the class of the finding, and the function that it names.
pub(crate) struct Mistake {
    pub(crate) name: &'static str,
    options: &'static [&'static str],
    class: &'static str,
    function: &'static str,
}

const fn mistake(
    name: &'static str,
    options: &'static [&'static str],
    class: &'static str,
    function: &'static str,
) -> Mistake {
    Mistake { name, options, class, function }
}

pub(crate) const MISTAKES: [Mistake; 13] = [
    mistake("unchecked-null", &["--verbs"], "crash", "unchecked_null"),
    mistake("destroyed-twice", &["--verbs"], "misuse", "destroyed_twice"),
    mistake("lock-held", &["--verbs"], "hang", "make_under_lock"),
    mistake("leak", &["--verbs"], "leak", "leak"),
    mistake("failed-post", &["--verbs"], "hang", "failed_post"),
    mistake("retry", &["--completions"], "hang", "retry"),
    mistake("wc-status", &["--completions"], "unnoticed", "wc_status"),
    mistake("order", &["--verbs"], "misuse", "order"),
    mistake("unacked", &["--completions"], "hang", "unacked"),
    mistake("rejected", &["--events"], "hang", "rejected"),
    mistake("early-read", &["--seeds=3"], "fails", ""),
    mistake("late-arm", &["--seeds=5"], "hang", "late_arm"),
    mistake("port-down", &["--events"], "unread", ""),
];

pub(crate) fn main() -> ExitCode {
    let quick = ["unchecked-null", "wc-status", "early-read"];
    let mistakes = MISTAKES.iter().filter(move |mistake| quick.contains(&mistake.name)).flat_map(|mistake| {
        [true, false].map(|wrong| {
            let side = if wrong { "wrong" } else { "right" };
            Check::new(format!("sweep: {}, {side}", mistake.name), move || {
                judge(mistake, wrong, "auto", mistake.options)
            })
        })
    });
    let others = [
        Check::new("sweep: command of a finding repeats it", repeats),
        Check::new("sweep: works for an ordinary user", as_ordinary_user),
        Check::new("sweep: findings of the baseline do not fail", baseline),
        Check::new("sweep: interrupted sweep continues", resumes),
        Check::new("sweep: page of a finding shows its packets", page),
        Check::new("sweep: correct program tolerates lost packets", packets),
        Check::new("sweep: program that fails without faults is refused", refuses),
    ];
    report::main(mistakes.chain(others).collect())
}

/// Returns the path of the program with all mistakes; compiles it on first use.
fn program() -> Result<&'static Path, Verdict> {
    static PROGRAM: OnceLock<Result<cc::Compiled, String>> = OnceLock::new();
    if let Some(why) = cc::missing() {
        return Err(Verdict::Skipped(why));
    }
    let libraries = ["ibverbs", "rdmacm", "pthread"];
    let compiled = PROGRAM.get_or_init(|| {
        let compiled = cc::Compiled::with_flags("gcc", &["-g"], "sweep/sweep.c", &libraries, "sweep")?;
        // An ordinary user must be able to run it.
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

/// Sweeps the wrong or the right program: the wrong one must have the finding, the right one none.
pub(crate) fn judge(mistake: &Mistake, wrong: bool, link: &str, options: &[&str]) -> Verdict {
    let folder = match Scratch::new("sweep") {
        Ok(folder) => folder,
        Err(why) => return Verdict::Failed(why),
    };
    let report = folder.join("report.json");
    let named = format!("--report={}", report.display());
    let options: Vec<_> = options.iter().copied().chain([&*named, "--timeout=6s"]).collect();
    let prefix = ["env", &format!("ROXE_LINK={link}")].map(str::to_owned);
    let prefix: Vec<_> = prefix.iter().map(String::as_str).collect();
    let output = match sweep(&prefix, &options, mistake.name, if wrong { "wrong" } else { "right" }) {
        Ok(output) => output,
        Err(verdict) => return verdict,
    };
    judge_report(mistake, wrong, &output, &report).map_err(|why| format!("{why}\n{}", text(&output))).into()
}

fn judge_report(mistake: &Mistake, wrong: bool, output: &Output, report: &Path) -> Result<(), String> {
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
            Err("the right program has a finding".into())
        };
    }
    let names = |finding: &Value| {
        ["broke_at", "fault_at"]
            .iter()
            .any(|stack| finding[*stack].as_str().is_some_and(|text| text.contains(mistake.function)))
    };
    let found = findings.iter().find(|finding| finding["class"] == mistake.class && names(finding));
    let found = found.ok_or_else(|| format!("no finding of class {} names {}", mistake.class, mistake.function))?;
    if output.status.code() != Some(1) {
        return Err("the exit status is not 1".into());
    }
    let cause = found["cause"].as_str().unwrap_or_default();
    let needs_seed = mistake.options.iter().any(|option| option.starts_with("--seeds"));
    if needs_seed && (cause.is_empty() || cause.matches(" (").count() > 2) {
        return Err(format!("the cause is not reduced to two weaknesses at most: {cause:?}"));
    }
    if needs_seed && !cause.contains(", needed for ") {
        return Err(format!("the cause is not reduced to occasions: {cause:?}"));
    }
    Ok(())
}

/// Checks that the command of a finding repeats it ten times.
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
    let check = || {
        let folder = Scratch::new("sweep-baseline").map_err(Verdict::Failed)?;
        let file = format!("--baseline={}", folder.join("known").display());
        let before = run(&["--completions", &file])?;
        let written = run(&["--completions", &file, "--update-baseline"])?;
        let after = run(&["--completions", &file])?;
        let codes = [before, written, after].map(|output| output.status.code());
        Ok(if codes == [Some(1), Some(0), Some(0)] { Verdict::Passed } else { Verdict::Failed(format!("{codes:?}")) })
    };
    check().unwrap_or_else(|verdict| verdict)
}

fn resumes() -> Verdict {
    let run = |options: &[&str]| sweep(&[], options, "wc-status", "right");
    let check = || {
        let folder = Scratch::new("sweep-resume").map_err(Verdict::Failed)?;
        let kept = format!("--resume={}", folder.display());
        let results = || fs::read_to_string(folder.join("results.jsonl")).unwrap_or_default();
        // The first sweep stops after its first run, because its budget is 1 ms.
        let first = run(&["--verbs", &kept, "--for=1ms", "-j1"])?;
        let some = results().lines().count();
        let second = run(&["--verbs", &kept])?;
        let third = run(&["--verbs", &kept])?;
        let all = results().lines().count();
        let other = text(&sweep(&[], &["--verbs", &kept], "wc-status", "wrong")?);
        let printed = text(&first) + &other;
        let continues = some > 0 && some < all && printed.contains("not tried") && second.stdout == third.stdout;
        let is_right = continues && other.contains("results of another program");
        Ok(if is_right { Verdict::Passed } else { Verdict::Failed(format!("{some} and {all} results\n{printed}")) })
    };
    check().unwrap_or_else(|verdict| verdict)
}

/// Checks that the page of a finding shows the program's only message.
fn page() -> Verdict {
    let check = || {
        let folder = Scratch::new("sweep-page").map_err(Verdict::Failed)?;
        let file = folder.join("page.html");
        let output = sweep(&[], &["--completions", &format!("--report={}", file.display())], "wc-status", "wrong")?;
        let page = fs::read_to_string(&file).unwrap_or_default();
        let shown = page.split_once("<iframe srcdoc=").map_or("", |(_, rest)| rest);
        let is_right = shown.contains("SEND_ONLY") || shown.contains("WRITE_ONLY");
        Ok(if is_right { Verdict::Passed } else { Verdict::Failed(text(&output) + &page) })
    };
    check().unwrap_or_else(|verdict| verdict)
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
