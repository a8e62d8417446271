//! The results of a sweep: text, HTML, JUnit XML, SARIF and JSON.

use super::verdict::{Class, Finding, Judged};
use crate::output::{Result, quoted};
use roxe_dissect::escape;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;

/// Inputs of all reports about a sweep.
pub(super) struct Sweep<'a> {
    pub(super) command: &'a [OsString],
    /// Number of faults to try.
    pub(super) planned: usize,
    pub(super) judged: &'a [Judged],
    pub(super) findings: &'a [Finding],
    /// Keys of the findings of the baseline.
    pub(super) known: &'a BTreeSet<String>,
}

/// Returns true for a page of HTML, the only report that shows packets.
pub(super) fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "html")
}

/// Returns the text about one run.
pub(super) fn run_text(judged: &Judged) -> String {
    let Judged { class, what, place, site, details, .. } = judged;
    let mut text = format!("\nroxe sweep: {}: {}", class.name(), class.meaning());
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            _ = write!(text, "\n    {label:<10} {value}");
        }
    };
    line("ending", what);
    line("broke at", place);
    line("fault at", site);
    details.iter().for_each(|detail| line("", detail));
    text
}

impl Sweep<'_> {
    /// Returns the program and its arguments, quoted for a shell.
    fn command(&self) -> String {
        self.command.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    /// Returns the command that reproduces a fault.
    fn repeat(&self, fault: &str) -> String {
        format!("roxe sweep --fault {} -- {}", quoted(fault), self.command())
    }

    /// Returns the table for the terminal.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for finding in self.findings {
            let first = &finding.runs[0];
            let mark = if self.known.contains(&finding.key()) { " (in the baseline)" } else { "" };
            _ = writeln!(text, "{:<12} {}{mark}", finding.class.name(), finding.place);
            let mut line = |label: &str, value: &str| {
                if !value.is_empty() {
                    _ = writeln!(text, "    {label:<10} {value}");
                }
            };
            line("ending", &first.what);
            line("broke at", &first.place);
            line("fault at", &first.site);
            line("cause", &finding.cause);
            line("seen in", &format!("{}, first: {}", runs(finding.runs.len()), finding.fault));
            line("repeat", &self.repeat(&finding.fault));
            text.push('\n');
        }
        let left = self.planned - self.judged.len();
        let counts = self.counts().into_iter().map(|(class, count)| format!("{} {count}", class.name()));
        _ = write!(text, "{}: {}", runs(self.judged.len()), counts.collect::<Vec<_>>().join(", "));
        if left > 0 {
            _ = write!(text, "; {left} not tried");
        }
        let new = self.findings.iter().filter(|finding| !self.known.contains(&finding.key())).count();
        _ = match (self.findings.len(), new) {
            (0, _) => write!(text, "\nNothing found."),
            (1, 0) => write!(text, "\n1 finding, in the baseline."),
            (all, 0) => write!(text, "\n{all} findings, all in the baseline."),
            (1, _) => write!(text, "\n1 finding."),
            (all, new) if all == new => write!(text, "\n{all} findings."),
            (all, new) => write!(text, "\n{all} findings, {new} of them not in the baseline."),
        };
        text
    }

    fn counts(&self) -> Vec<(Class, usize)> {
        let count = |class: Class| (class, self.judged.iter().filter(|run| run.class == class).count());
        Class::all().map(count).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the document in the format of the file's extension.
    pub(super) fn document(&self, path: &Path) -> Result<String> {
        match path.extension().and_then(|end| end.to_str()) {
            _ if is_page(path) => Ok(self.html()),
            Some("xml") => Ok(self.junit()),
            Some("sarif") => Ok(self.sarif().to_string()),
            Some("json") => Ok(self.json().to_string()),
            _ => Err(format!("{}: a report is .html, .xml, .sarif or .json", path.display()).into()),
        }
    }

    fn json(&self) -> Value {
        let run = |run: &Judged| json!({"fault": run.fault, "class": run.class.name(), "what": run.what});
        let finding = |finding: &Finding| {
            let first = &finding.runs[0];
            json!({
                "class": finding.class.name(),
                "meaning": finding.class.meaning(),
                "place": finding.place,
                "key": finding.key(),
                "known": self.known.contains(&finding.key()),
                "ending": first.what,
                "broke_at": first.place,
                "fault_at": first.site,
                "cause": finding.cause,
                "details": first.details,
                "faults": finding.runs.iter().map(|run| &run.fault).collect::<Vec<_>>(),
                "repeat": self.repeat(&finding.fault),
            })
        };
        json!({
            "command": self.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "planned": self.planned,
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
            "runs": self.judged.iter().map(run).collect::<Vec<_>>(),
        })
    }

    /// Returns JUnit XML with one test case for each fault.
    fn junit(&self) -> String {
        let failed = self.judged.iter().filter(|run| run.class.is_finding()).count();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"roxe sweep\" tests=\"{}\" failures=\"{failed}\">\n",
            self.judged.len()
        );
        for run in self.judged {
            let name = escape(&run.fault);
            _ = if run.class.is_finding() {
                let message = escape(&format!("{}: {}", run.class.name(), run.what));
                let body = escape(&format!("{}\n{}\n{}", run.place, run.details.join("\n"), self.repeat(&run.fault)));
                writeln!(text, "<testcase name=\"{name}\"><failure message=\"{message}\">{body}</failure></testcase>")
            } else if run.class == Class::Unreached {
                writeln!(text, "<testcase name=\"{name}\"><skipped message=\"{}\"/></testcase>", run.class.meaning())
            } else {
                writeln!(text, "<testcase name=\"{name}\"/>")
            };
        }
        text + "</testsuite>\n</testsuites>\n"
    }

    fn sarif(&self) -> Value {
        let rules: Vec<_> = Class::all()
            .filter(|class| class.is_finding())
            .map(|class| json!({"id": class.name(), "shortDescription": {"text": class.meaning()}}))
            .collect();
        let result = |finding: &Finding| {
            let text = format!("{}. Repeat: {}", finding.runs[0].what, self.repeat(&finding.fault));
            let mut result = json!({
                "ruleId": finding.class.name(),
                "level": if finding.class < Class::Leak { "error" } else { "warning" },
                "message": {"text": text},
                "partialFingerprints": {"roxeSweep": finding.key()},
            });
            if let Some((file, line)) = location(&finding.place) {
                result["locations"] = json!([{"physicalLocation": {
                    "artifactLocation": {"uri": file}, "region": {"startLine": line},
                }}]);
            }
            result
        };
        json!({
            "version": "2.1.0",
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "runs": [{
                "tool": {"driver": {"name": "roxe sweep", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
                "results": self.findings.iter().map(result).collect::<Vec<_>>(),
            }],
        })
    }

    fn html(&self) -> String {
        let mut body = format!("<h1>roxe sweep</h1><p><code>{}</code></p><table>", escape(&self.command()));
        for (class, count) in self.counts() {
            let kind = if class.is_finding() { "bad" } else { "good" };
            _ = write!(
                body,
                "<tr class=\"{kind}\"><td>{count}</td><th>{}</th><td>{}</td></tr>",
                class.name(),
                class.meaning()
            );
        }
        body += "</table>";
        if self.planned > self.judged.len() {
            _ = write!(body, "<p>{} faults were not tried.</p>", self.planned - self.judged.len());
        }
        for finding in self.findings {
            let first = &finding.runs[0];
            let known = if self.known.contains(&finding.key()) { " (in the baseline)" } else { "" };
            _ = write!(
                body,
                "<section><h2>{}: {}{known}</h2><p>{}</p>",
                finding.class.name(),
                escape(&finding.place),
                escape(&first.what)
            );
            for (label, stack) in [("Broke at", &first.place), ("Fault at", &first.site)] {
                if !stack.is_empty() {
                    let calls: String =
                        stack.split(" < ").map(|call| format!("<li><code>{}</code></li>", escape(call))).collect();
                    _ = write!(body, "<h3>{label}</h3><ol>{calls}</ol>");
                }
            }
            if !finding.cause.is_empty() {
                _ = write!(body, "<p>{}</p>", escape(&finding.cause));
            }
            if !first.details.is_empty() {
                _ = write!(body, "<h3>Explanations</h3><pre>{}</pre>", escape(&first.details.join("\n")));
            }
            if !finding.packets.is_empty() {
                let page = escape(&finding.packets);
                let _ =
                    write!(body, "<details><summary>Packets</summary><iframe srcdoc=\"{page}\"></iframe></details>");
            }
            _ = write!(body, "<h3>Repeat</h3><pre>{}</pre>", escape(&self.repeat(&finding.fault)));
            let faults: String = finding.runs.iter().map(|run| format!("{}\n", escape(&run.fault))).collect();
            _ = write!(
                body,
                "<details><summary>Faults ({})</summary><pre>{faults}</pre></details></section>",
                finding.runs.len()
            );
        }
        let rows: String = self
            .judged
            .iter()
            .map(|run| format!("<tr><td>{}</td><td><code>{}</code></td></tr>", run.class.name(), escape(&run.fault)))
            .collect();
        _ = write!(body, "<details><summary>All runs</summary><table>{rows}</table></details>");
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>roxe sweep</title><style>{STYLE}</style><body>{body}</body></html>\n"
        )
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
    pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.6rem;background:#8882}\
    section{border-left:4px solid #c33;padding-left:1rem;margin:2rem 0}td,th{text-align:left;padding:.1rem .8rem .1rem 0}\
    .bad td:first-child{color:#c33;font-weight:bold}h3{margin:.6rem 0 0;font-size:1em}ol{margin:.2rem 0}\
    iframe{width:100%;height:40rem;border:1px solid #8888}\
    @media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}}";

/// Parses file and line of a call such as `main (a.c:12)`.
fn location(call: &str) -> Option<(&str, u64)> {
    let (_, place) = call.strip_suffix(')')?.rsplit_once('(')?;
    let (file, line) = place.rsplit_once(':')?;
    Some((file, line.parse().ok()?))
}

fn runs(count: usize) -> String {
    if count == 1 { "1 run".to_owned() } else { format!("{count} runs") }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::group;
    use super::*;

    fn run(fault: &str, class: Class, place: &str) -> Judged {
        let (what, site) = ("SIGSEGV".to_owned(), "setup (a.c:4) < main (a.c:40)".to_owned());
        Judged { fault: fault.into(), class, what, place: place.into(), site, details: vec![] }
    }

    fn with_sweep<T>(test: impl FnOnce(&Sweep<'_>) -> T) -> T {
        let judged = [
            run("fail ibv_create_cq errno=ENOMEM nth=1", Class::Crash, "fill<int> (a.c:12) < main (a.c:40)"),
            run("fail ibv_create_cq errno=ENOMEM nth=2", Class::Crash, "fill<int> (a.c:12) < main (a.c:40)"),
            run("fail ibv_reg_mr errno=ENOMEM nth=1", Class::Clean, ""),
            run("fail ibv_reg_mr errno=ENOMEM nth=9", Class::Unreached, ""),
        ];
        let (findings, known, command) = (group(&judged), BTreeSet::new(), ["./p".into(), "a b".into()]);
        test(&Sweep { command: &command, planned: 5, judged: &judged, findings: &findings, known: &known })
    }

    #[test]
    fn runs_that_break_at_one_place_are_one_finding() {
        let text = with_sweep(|sweep| sweep.text());
        assert!(text.starts_with("crash        fill<int> (a.c:12)\n"), "{text}");
        assert!(text.contains("2 runs, first: fail ibv_create_cq errno=ENOMEM nth=1"), "{text}");
        assert!(text.contains("roxe sweep --fault 'fail ibv_create_cq errno=ENOMEM nth=1' -- ./p 'a b'"), "{text}");
        assert!(text.ends_with("4 runs: crash 2, fails cleanly 1, not reached 1; 1 not tried\n1 finding."), "{text}");
    }

    #[test]
    fn documents_cover_each_fault_and_each_finding() {
        let junit = with_sweep(|sweep| sweep.document(Path::new("x.xml")).unwrap());
        assert_eq!((junit.matches("<testcase").count(), junit.matches("<failure").count()), (4, 2));
        assert!(junit.contains("fill&lt;int&gt;") && !junit.contains("fill<int>"), "{junit}");
        let sarif: Value =
            serde_json::from_str(&with_sweep(|sweep| sweep.document(Path::new("x.sarif")).unwrap())).unwrap();
        let result = &sarif["runs"][0]["results"][0];
        assert_eq!(result["ruleId"], "crash");
        assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 12);
        let html = with_sweep(|sweep| sweep.document(Path::new("x.html")).unwrap());
        assert_eq!((html.matches("<section>").count(), html.contains("fill<int>")), (1, false));
        let json: Value =
            serde_json::from_str(&with_sweep(|sweep| sweep.document(Path::new("x.json")).unwrap())).unwrap();
        assert_eq!(json["findings"][0]["faults"].as_array().map(Vec::len), Some(2));
        assert!(with_sweep(|sweep| sweep.document(Path::new("x.txt")).is_err()));
    }

    #[test]
    fn keys_of_findings_survive_moved_lines() {
        let key = |place: &str| group(&[run("drop", Class::Crash, place)])[0].key();
        assert_eq!(key("fill (a.c:12)"), key("fill (a.c:17)"));
        assert_ne!(key("fill (a.c:12)"), key("empty (a.c:12)"));
    }
}
