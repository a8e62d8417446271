//! Reports as SARIF 2.1.0 (OASIS, `sarif-schema-2.1.0`), for code scanning pages and editors.

use super::SymbolizedReport;
use crate::rule::{Rule, Severity};
use crate::stack::Frame;
use serde_json::{Value, json};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Adds a report to a document, which is empty at first.
pub(super) fn add(text: &str, report: Option<&SymbolizedReport>) -> Option<String> {
    let mut document = if text.is_empty() { empty() } else { serde_json::from_str(text).ok()? };
    let run = document.get_mut("runs")?.get_mut(0)?;
    if run.pointer("/tool/driver/name")? != "roxe" {
        return None;
    }
    run.get_mut("results")?.as_array_mut()?.extend(report.map(result));
    Some(format!("{document:#}\n"))
}

/// Returns a run without results.
fn empty() -> Value {
    let rules: Vec<_> = Rule::ALL.iter().copied().map(rule).collect();
    let driver = json!({
        "name": "roxe",
        "version": env!("CARGO_PKG_VERSION"),
        "informationUri": "https://crates.io/crates/roxe-cli",
        "rules": rules,
    });
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": []}],
    })
}

fn rule(rule: Rule) -> Value {
    json!({
        "id": rule.name(),
        "shortDescription": {"text": rule.summary()},
        "fullDescription": {"text": rule.summary()},
        "help": {"text": format!("{} See {}.", rule.summary(), rule.source())},
        "defaultConfiguration": {"level": level(rule.severity())},
    })
}

const fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Advice => "note",
    }
}

fn result(named: &SymbolizedReport) -> Value {
    let report = &named.report;
    let labelled_values: String = report.labelled_values.iter().fold(String::new(), |mut text, (label, value)| {
        let _ = write!(text, "\n{label}: {value}");
        text
    });
    let place = |(label, frames): &(&str, Vec<Frame>)| Some(location(label, shown_frame(frames)?));
    let stack = |(label, frames): &(&str, Vec<Frame>)| {
        let frames: Vec<_> = frames.iter().map(|frame| json!({"location": location("", frame)})).collect();
        json!({"message": {"text": label}, "frames": frames})
    };
    let (first, others) = named.stacks.split_at(named.stacks.len().min(1));
    json!({
        "ruleId": report.rule.name(),
        "level": level(report.severity),
        "message": {"text": format!("{}{labelled_values}\nWhat to do: {}", report.sentence, report.advice)},
        "locations": first.iter().filter_map(place).collect::<Vec<_>>(),
        "relatedLocations": others.iter().filter_map(place).collect::<Vec<_>>(),
        "stacks": named.stacks.iter().map(stack).collect::<Vec<_>>(),
        "partialFingerprints": {"functions/v1": fingerprint(named)},
        "properties": {"process": std::process::id()},
    })
}

/// Returns the call to show: the innermost in a source below the current folder; else in a file
/// that belongs to no system or package; else the innermost with a known file; else the innermost.
fn shown_frame(frames: &[Frame]) -> Option<&Frame> {
    let here = std::env::current_dir().unwrap_or_default();
    let in_file =
        |matches: &dyn Fn(&Path) -> bool| frames.iter().find(|frame| frame.file.as_deref().is_some_and(matches));
    in_file(&|file| file.starts_with(&here) && !is_foreign(file))
        .or_else(|| in_file(&|file| !is_foreign(file)))
        .or_else(|| in_file(&|_| true))
        .or_else(|| frames.first())
}

/// Returns true for a source of the system, of a compiler or of a package.
fn is_foreign(file: &Path) -> bool {
    const FOLDERS: [&str; 4] = ["/usr/", "/rustc/", "/build/", "/opt/"];
    const INSIDE: [&str; 4] = ["/.cargo/registry/", "/site-packages/", "/dist-packages/", "/rustlib/"];
    let file = file.to_string_lossy();
    FOLDERS.iter().any(|folder| file.starts_with(folder)) || INSIDE.iter().any(|folder| file.contains(folder))
}

fn location(label: &str, frame: &Frame) -> Value {
    let mut location = json!({"logicalLocations": [{"fullyQualifiedName": frame.function, "kind": "function"}]});
    if !label.is_empty() {
        location["message"] = json!({"text": label});
    }
    if let Some(file) = &frame.file {
        location["physicalLocation"] = json!({"artifactLocation": artifact(file)});
        // The compiler gives line 0 to generated code.
        if let Some(line) = frame.line.filter(|line| *line > 0) {
            location["physicalLocation"]["region"] = json!({"startLine": line});
        }
    }
    location
}

/// Names sources below the root of the repository relative to it, as viewers expect, others by
/// absolute path. A build outside the root names files as `../a.c`.
fn artifact(file: &Path) -> Value {
    let root = root();
    let here = std::env::current_dir().unwrap_or_default();
    let file = normalized(&here.join(file));
    match file.strip_prefix(&root) {
        Ok(relative) => json!({"uri": uri(relative), "uriBaseId": "%SRCROOT%"}),
        Err(_) => json!({"uri": format!("file://{}", uri(&file))}),
    }
}

/// Returns the repository of the current folder, else the current folder.
fn root() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    here.ancestors().find(|folder| folder.join(".git").exists()).map_or_else(|| here.clone(), Path::to_owned)
}

/// Returns `path` as an absolute path without `.` and `..`.
fn normalized(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normalized, part| {
        match part {
            Component::CurDir => {}
            Component::ParentDir => _ = normalized.pop(),
            part => normalized.push(part),
        }
        normalized
    })
}

/// Returns a path as part of a URI (RFC 3986).
fn uri(path: &Path) -> String {
    path.as_os_str().as_bytes().iter().fold(String::new(), |mut text, &byte| {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

/// Returns a hash of the rule and the functions of the first stack: stable while lines move and
/// numbers change.
fn fingerprint(named: &SymbolizedReport) -> String {
    let functions = named.stacks.first().into_iter().flat_map(|(_, frames)| frames);
    let words = [named.report.rule.name()].into_iter().chain(functions.map(|frame| frame.function.as_str()));
    let hash = words
        .flat_map(|word| word.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    fn named(line: u32) -> SymbolizedReport {
        let frame = |function: &str, file: Option<PathBuf>| Frame { function: function.into(), file, line: Some(line) };
        let here = root().join("src/a b.c");
        let header = Some("/usr/include/infiniband/verbs.h".into());
        let posted = vec![frame("post", header), frame("send_all", Some(here)), frame("main", None)];
        let freed = vec![frame("stop", Some("/usr/src/b.c".into()))];
        let report = Report::new(Rule::KeyStale, "The key 0x7 is dead.").labelled("key", "0x7").advice("Wait.");
        SymbolizedReport { report, stacks: vec![("posted at", posted), ("deregistered", freed)] }
    }

    #[test]
    fn document_has_required_fields_and_every_rule() {
        let empty: Value = serde_json::from_str(&add("", None).unwrap()).unwrap();
        assert_eq!(empty["version"], "2.1.0");
        let driver = &empty["runs"][0]["tool"]["driver"];
        assert_eq!(driver["name"], "roxe");
        assert_eq!(driver["rules"].as_array().unwrap().len(), Rule::ALL.len());
        let found: Value = serde_json::from_str(&add(&add("", None).unwrap(), Some(&named(3))).unwrap()).unwrap();
        let result = &found["runs"][0]["results"][0];
        assert_eq!((&result["ruleId"], &result["level"]), (&json!("key-stale"), &json!("error")));
        assert!(result["message"]["text"].as_str().unwrap().contains("is dead.\nkey: 0x7\nWhat to do: Wait."));
    }

    #[test]
    fn location_is_innermost_known_line_of_first_stack() {
        let result = result(&named(12));
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"], json!({"uri": "src/a%20b.c", "uriBaseId": "%SRCROOT%"}));
        assert_eq!(place["region"]["startLine"], 12);
        let related = &result["relatedLocations"][0];
        assert_eq!(related["message"]["text"], "deregistered");
        assert_eq!(related["physicalLocation"]["artifactLocation"]["uri"], "file:///usr/src/b.c");
        assert_eq!(result["stacks"][0]["frames"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn file_outside_the_root_has_an_absolute_path() {
        let outside = root().join("../other/x.c");
        let expected = format!("file://{}", uri(&normalized(&outside)));
        assert_eq!(artifact(&outside), json!({"uri": expected}));
        let inside = root().join("build/../src/y.c");
        assert_eq!(artifact(&inside), json!({"uri": "src/y.c", "uriBaseId": "%SRCROOT%"}));
    }

    #[test]
    fn fingerprint_is_independent_of_lines() {
        assert_eq!(fingerprint(&named(1)), fingerprint(&named(2)));
        let other = SymbolizedReport { stacks: vec![], ..named(1) };
        assert_ne!(fingerprint(&named(1)), fingerprint(&other));
    }

    #[test]
    fn foreign_document_is_rejected() {
        let text = r#"{"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "x"}}, "results": []}]}"#;
        assert_eq!(add(text, None), None);
        assert_eq!(add("not JSON", None), None);
    }
}
