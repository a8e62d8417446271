//! Runs the shell steps of the recipes for CI services (`verbs-api/packaging`) in the order and
//! environment of the service.
//!
//! A stand-in for `cargo` rejects unknown arguments and installs the built program. The suite's
//! option `--all` tests the real `cargo install`.

use super::{Root, all_succeed};
use roxe_tests::build;
use roxe_tests::pair::installed;
use roxe_tests::report::Verdict;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Options with quotes and spaces.
const OPTIONS: &str = "--check --faults 'seed=1; drop 1%'";
const URL: &str = "https://gitlab.example/group/roxe.git";
/// Input that an attacker may add by a pull request, and that a shell would run.
const INJECTION: &str = "$(touch planted)";
/// Script that prints the card, the options, and the path of `roxe` in a job.
const PRINT_SETUP: &str = "ibv_devices | grep -o roxe0; echo \"$ROXE_CHECK, $ROXE_FAULTS\"; command -v roxe";

/// Returns the folder of the recipes.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../verbs-api/packaging")
}

/// Returns the text of the recipe in the file `name`.
fn recipe(name: &str) -> String {
    let path = folder().join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Creates an empty folder in which `cargo` is the stand-in.
fn root(name: &str) -> Result<Root, Verdict> {
    if let Some(missing) = ["bash", "ibv_devices"].into_iter().find(|tool| !installed(tool)) {
        return Err(Verdict::not_installed(missing));
    }
    let root = Root::new(name);
    let stand_in = format!(
        "#!/bin/sh -e
        test \"$1\" = install; shift; root=$HOME/.cargo
        while [ $# -gt 0 ]; do
            case $1 in
                --quiet | --locked | roxe-cli) ;;
                --path) grep -q '^name = \"roxe-cli\"' \"$2/Cargo.toml\"; shift ;;
                --git) test \"$2\" = {URL}; shift ;;
                --root) root=$2; shift ;;
                *) echo \"cargo: $1 was not expected\" >&2; exit 1 ;;
            esac
            shift
        done
        mkdir -p \"$root/bin\"; cp {} \"$root/bin/roxe\"\n",
        build::roxe().display()
    );
    let path = root.0.join("bin/cargo");
    fs::write(&path, stand_in).expect("write the stand-in");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("change the mode of the stand-in");
    Ok(root)
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the steps of an action: the environment variables, whose expressions `value` evaluates,
/// and the script after `run: |`.
fn steps(text: &str, value: &dyn Fn(&str) -> Option<String>) -> Vec<(Vec<String>, String)> {
    let (mut steps, mut variables): (Vec<(Vec<String>, String)>, _) = (Vec::new(), Vec::new());
    let mut lines = text.lines().skip_while(|line| line.trim() != "steps:").peekable();
    while let Some(line) = lines.next() {
        if let Some((name, rest)) = line.trim().split_once(": ${{ ") {
            let expression = rest.trim_end_matches(" }}");
            let value = value(expression).unwrap_or_else(|| panic!("the action has no {expression}"));
            variables.push(format!("{name}={value}"));
        } else if line.trim() == "run: |" {
            let deeper = |next: &&str| next.is_empty() || indentation(next) > indentation(line);
            let script: Vec<&str> = std::iter::from_fn(|| lines.next_if(deeper)).map(str::trim_start).collect();
            steps.push((std::mem::take(&mut variables), script.join("\n")));
        }
    }
    steps
}

/// Runs a job like GitHub Actions: each step in its own bash, then a job with the environment
/// variables and the PATH that the steps have written to two files.
pub(crate) fn github() -> Verdict {
    let root = match root("github") {
        Ok(root) => root,
        Err(verdict) => return verdict,
    };
    let run = |options: &str| {
        let steps = steps(&recipe("action.yml"), &|expression| match expression {
            "github.action_path" => Some(folder().display().to_string()),
            "inputs.options" => Some(options.to_owned()),
            _ => None,
        });
        let mut script = "export RUNNER_TEMP=$PWD/temp GITHUB_ENV=$PWD/env GITHUB_PATH=$PWD/path; rm -rf temp env path
            mkdir temp; touch env path\n"
            .to_owned();
        for (index, (variables, text)) in steps.iter().enumerate() {
            fs::write(root.0.join(format!("work/{index}.sh")), text).expect("write the script");
            let variables: Vec<String> = variables.iter().map(|word| quoted(word)).collect();
            script +=
                &format!("env {} bash --noprofile --norc -eo pipefail {index}.sh >{index}.log\n", variables.join(" "));
        }
        script += "while IFS= read -r line; do export \"$line\"; done <env; PATH=$(cat path):$PATH\n";
        (steps.len(), root.run(&(script + PRINT_SETUP)))
    };
    let (count, good) = run(OPTIONS);
    let program = root.0.join("work/temp/roxe/bin/roxe");
    let seen = format!("roxe0\non, seed=1; drop 1%\n{}\n", program.display());
    let succeeded = count == 2 && good.status.success() && String::from_utf8_lossy(&good.stdout) == seen;
    // A mistake in the options ends the job.
    let (_, wrong) = run("--faults 'drop 1'");
    let refused = !wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("drop 1");
    let (_, foreign) = run(&format!("{OPTIONS} {INJECTION}"));
    let ran_nothing = !foreign.status.success() && !root.0.join("work/planted").exists();
    all_succeed(&[(succeeded, good), (refused, wrong), (ran_nothing, foreign)])
}

/// Runs a job like GitLab: the lines before the job and the lines of the job are one script.
pub(crate) fn gitlab() -> Verdict {
    let root = match root("gitlab") {
        Ok(root) => root,
        Err(verdict) => return verdict,
    };
    let text = recipe("gitlab.yml");
    let lines: Vec<&str> = text.lines().skip_while(|line| line.trim() != "before_script:").skip(1).collect();
    let lines: Vec<&str> = lines.iter().map_while(|line| line.trim().strip_prefix("- ")).collect();
    let script = format!("set -eo pipefail\n{}\n{PRINT_SETUP}\n", lines.join("\n"));
    fs::write(root.0.join("work/job.sh"), script).expect("write the script");
    // The image has Cargo's program folder in PATH.
    let run = |options: &str| {
        let variables = format!("ROXE_SOURCE={URL} ROXE_OPTIONS={}", quoted(options));
        root.run(&format!("export {variables} PATH=$HOME/.cargo/bin:$PATH; bash job.sh"))
    };
    let output = run(OPTIONS);
    let program = root.0.join("home/.cargo/bin/roxe");
    let seen = format!("roxe0\non, seed=1; drop 1%\n{}\n", program.display());
    let succeeded =
        lines.len() > 2 && output.status.success() && String::from_utf8_lossy(&output.stdout).ends_with(&seen);
    let foreign = run(&format!("{OPTIONS} {INJECTION}"));
    let ran_nothing = !foreign.status.success() && !root.0.join("work/planted").exists();
    all_succeed(&[(succeeded, output), (ran_nothing, foreign)])
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
