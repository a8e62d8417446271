//! `roxe conform`: kept reports, their comparison, and a badge.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("roxe-conform-{}-{name}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn conform(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roxe")).arg("conform").args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json_of(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Runs two cases, and writes their report with another verdict for the first one.
fn older(folder: &Folder, verdict: &str) -> String {
    let path = folder.file("old.json");
    let output = conform(&["virtual", "responder/gap_nak", "--json", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut value = json_of(&path);
    value["cases"][0]["verdict"] = verdict.into();
    fs::write(&path, value.to_string()).unwrap();
    path
}

#[test]
fn comparison_with_a_better_report_exits_with_1() {
    let folder = Folder::new("worse").unwrap();
    let old = older(&folder, "pass");
    let (new, page) = (folder.file("new.json"), folder.file("page.html"));
    let mut value = json_of(&old);
    value["cases"][0]["verdict"] = "fail".into();
    fs::write(&new, value.to_string()).unwrap();
    let output = conform(&[&new, "--compare", &old]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("worse    responder/gap_nak [psn=100]: pass -> fail\n"), "{}", stdout(&output));
    assert_eq!(stderr(&output), "roxe conform: 1 cases got worse\n");
    let output = conform(&["virtual", "responder/gap_nak", "--compare", &new, "--html", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("\nbetter   responder/gap_nak [psn=100]: fail -> pass\n"), "{}", stdout(&output));
    assert!(stdout(&output).ends_with("0 worse, 0 unclear, 1 better, 0 new, 0 gone\n"), "{}", stdout(&output));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<td>better</td><td>responder/gap_nak [psn=100]</td><td>fail -&gt; pass</td>"), "{page}");
}

/// A card that fails as it did before passes.
#[test]
fn comparison_of_equal_reports_exits_with_0() {
    let folder = Folder::new("equal").unwrap();
    let old = older(&folder, "fail");
    let output = conform(&[&old, "--compare", &old]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn file_that_is_no_report_is_refused_before_the_run() {
    let folder = Folder::new("refused").unwrap();
    let [text, other] = ["text.json", "other.json"].map(|name| folder.file(name));
    fs::write(&text, "no JSON").unwrap();
    fs::write(&other, "{\"format\": 2}").unwrap();
    let refusal = |arguments: &[&str]| {
        let output = conform(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(stdout(&output), "", "nothing ran");
        stderr(&output)
    };
    assert!(refusal(&["virtual", "--compare", &text]).contains("text.json is no report of roxe conform --json"));
    assert!(refusal(&[&other, "--compare", &other]).ends_with("json: its format is 2, not 1\n"));
    assert!(refusal(&["virtual", "--compare", &other]).ends_with("json: its format is 2, not 1\n"));
    assert!(refusal(&[&other]).ends_with("other.json is a report; --compare FILE compares it\n"));
}

#[test]
fn badge_names_the_passing_cases() {
    let folder = Folder::new("badge").unwrap();
    let path = folder.file("badge.json");
    let output = conform(&["virtual", "responder/gap_nak", "windows/bound", "--badge", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = json!({
        "schemaVersion": 1, "label": "RoCEv2 conformance", "message": "2 of 2 cases pass", "color": "brightgreen",
    });
    assert_eq!(json_of(&path), expected);
}
