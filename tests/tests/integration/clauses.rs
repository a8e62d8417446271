//! Checks that product code cites every clause of `clauses.txt`, and that a test cites it, too.
//!
//! A citation is a comment line `// clause: ID` or `// clause: ID, ID`. In a test it is directly
//! above `#[test]`.

use roxe_tests::files;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;
use std::path::{Path, PathBuf};

/// Prefix of a citation.
const CITATION: &str = "// clause: ";
/// Crates whose sources are read.
const CRATES: [&str; 6] = ["wire", "transport", "provider", "verbs-api", "tests", "fuzz"];
/// This file is skipped, because it quotes citations.
const THIS_FILE: &str = "tests/tests/integration/clauses.rs";

/// A clause of the list with the files that cite it.
#[derive(Debug, Default)]
struct Clause {
    section: String,
    text: String,
    /// Reason why no product code cites it.
    uncited: Option<String>,
    /// Reason why no test cites it.
    untested: Option<String>,
    /// `file:line` of each citation in product code.
    code: Vec<String>,
    /// `file:line` of each citation in a test.
    tests: Vec<String>,
}

impl Clause {
    /// Returns the error of this clause, if there is one.
    fn error(&self) -> Option<String> {
        let Self { uncited, untested, code, tests, .. } = self;
        let lacks_reason = |exception: &Option<String>| exception.as_ref().is_some_and(|reason| reason.is_empty());
        Some(match (uncited, untested, code.first(), tests.first()) {
            _ if self.text.is_empty() => "has no text".into(),
            _ if lacks_reason(uncited) || lacks_reason(untested) => "is excepted without a reason".into(),
            (Some(_), _, Some(at), _) => format!("is excepted as uncited, but {at} cites it"),
            (_, Some(_), _, Some(at)) => format!("is excepted as untested, but {at} tests it"),
            (None, _, None, _) => "is cited by no product code and gives no reason (`uncited: ...`)".into(),
            (None, None, Some(at), None) => {
                format!("is cited at {at}, but by no test, and gives no reason (`untested: ...`)")
            }
            _ => return None,
        })
    }

    fn is_excepted(&self) -> bool {
        self.uncited.is_some() || self.untested.is_some()
    }
}

/// Numbers of clauses: all, cited, tested, excepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    clauses: usize,
    cited: usize,
    tested: usize,
    excepted: usize,
}

impl Count {
    fn add(&mut self, clause: &Clause) {
        self.clauses += 1;
        self.cited += usize::from(!clause.code.is_empty());
        self.tested += usize::from(!clause.tests.is_empty());
        self.excepted += usize::from(clause.is_excepted());
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clauses, cited, tested, excepted } = self;
        write!(f, "{clauses:4} clauses, {cited:3} cited, {tested:3} tested, {excepted:2} excepted")
    }
}

/// The clauses with their citations, and the errors.
#[derive(Debug, Default)]
struct Report {
    clauses: BTreeMap<String, Clause>,
    errors: Vec<String>,
}

impl Report {
    /// Checks `list` against `sources`, the path and text of each source file.
    fn of(list: &str, sources: &[(String, String)]) -> Self {
        let mut report = Self::default();
        report.read_list(list);
        for (path, text) in sources {
            report.read_source(path, text);
        }
        let verdicts = report.clauses.iter().filter_map(|(id, clause)| Some(format!("{id} {}", clause.error()?)));
        let verdicts: Vec<_> = verdicts.collect();
        report.errors.extend(verdicts);
        report
    }

    /// Parses the list: `## ` begins a section, `ID (sources)` a clause, and indented lines contain
    /// its text.
    fn read_list(&mut self, list: &str) {
        let (mut section, mut open) = ("", None);
        for line in list.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                section = title;
            } else if let Some(text) = line.strip_prefix("    ") {
                if let Some(clause) = open.as_ref().and_then(|id| self.clauses.get_mut(id)) {
                    add_line(clause, text.trim_start());
                }
            } else if !line.is_empty() && !line.starts_with('#') {
                open = self.open_clause(line, section);
            }
        }
    }

    fn open_clause(&mut self, line: &str, section: &str) -> Option<String> {
        let parts = line.strip_suffix(')').and_then(|line| line.split_once(" ("));
        let Some((id, _)) = parts.filter(|(id, sources)| is_id(id) && !sources.is_empty()) else {
            self.errors.push(format!("clauses.txt: not a clause with its sources in parentheses: {line}"));
            return None;
        };
        let clause = Clause { section: section.into(), ..Clause::default() };
        if self.clauses.insert(id.into(), clause).is_some() {
            self.errors.push(format!("clauses.txt lists {id} twice"));
        }
        Some(id.into())
    }

    fn read_source(&mut self, path: &str, text: &str) {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let tests_from = first_test_line(path, &lines);
        for (index, line) in lines.iter().enumerate() {
            let at = format!("{path}:{}", index + 1);
            let Some(ids) = line.strip_prefix(CITATION) else {
                if looks_like_citation(line) {
                    self.errors.push(format!("{at}: a citation has a line of its own, `{CITATION}ID`: {line}"));
                }
                continue;
            };
            let is_test = index >= tests_from;
            if is_test && !stands_above_test(&lines[index..]) {
                self.errors.push(format!("{at}: a citation in test code stands directly above `#[test]`"));
            }
            ids.split(", ").for_each(|id| self.cite(id, &at, is_test));
        }
    }

    fn cite(&mut self, id: &str, at: &str, is_test: bool) {
        match self.clauses.get_mut(id) {
            Some(clause) if is_test => clause.tests.push(at.into()),
            Some(clause) => clause.code.push(at.into()),
            None => self.errors.push(format!("{at} cites {id}, which clauses.txt does not list")),
        }
    }

    /// Counts all clauses.
    fn count(&self) -> Count {
        let mut count = Count::default();
        self.clauses.values().for_each(|clause| count.add(clause));
        count
    }

    /// Returns a line for each section, a line for each exception, and a line with the total.
    fn table(&self) -> String {
        let mut sections = BTreeMap::<_, Count>::new();
        self.clauses.values().for_each(|clause| sections.entry(clause.section.as_str()).or_default().add(clause));
        let mut table = String::new();
        for (section, count) in &sections {
            writeln!(table, "{section:38} {count}").expect("write to a String");
        }
        for (id, clause) in self.clauses.iter().filter(|(_, clause)| clause.is_excepted()) {
            let reason = clause.uncited.as_ref().or(clause.untested.as_ref()).map_or("", String::as_str);
            writeln!(table, "excepted: {id}: {reason}").expect("write to a String");
        }
        writeln!(table, "{:38} {}", "all", self.count()).expect("write to a String");
        table
    }
}

/// Adds a line of the list to the clause's text or exception.
fn add_line(clause: &mut Clause, text: &str) {
    if let Some(reason) = text.strip_prefix("uncited:") {
        clause.uncited = Some(reason.trim().into());
    } else if let Some(reason) = text.strip_prefix("untested:") {
        clause.untested = Some(reason.trim().into());
    } else {
        let open = clause.untested.as_mut().or(clause.uncited.as_mut()).unwrap_or(&mut clause.text);
        if !open.is_empty() {
            open.push(' ');
        }
        open.push_str(text);
    }
}

/// Returns true if `text` is at least two words of capital letters and digits, joined by `-`.
fn is_id(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    text.contains('-') && text.split('-').all(is_word)
}

/// Returns true if a line is a citation in a wrong form.
fn looks_like_citation(line: &str) -> bool {
    let Some((_, comment)) = line.split_once("//") else { return false };
    let comment = comment.trim_start_matches(['/', '!', ' ']).to_ascii_lowercase();
    ["clause:", "clauses:", "clause ("].iter().any(|start| comment.starts_with(start)) || comment.contains("(clause")
}

/// Returns true if the citation in the first of `lines` is directly above a test.
fn stands_above_test(lines: &[&str]) -> bool {
    lines.iter().find(|line| !line.starts_with(CITATION)) == Some(&"#[test]")
}

/// Returns the index of the first line of test code: 0 in files with tests only.
fn first_test_line(path: &str, lines: &[&str]) -> usize {
    let is_test_file = path.contains("/tests/") || path.ends_with("/tests.rs") || path.starts_with("tests/");
    if is_test_file || path.starts_with("fuzz/") || path.starts_with("transport/sim/") {
        return 0;
    }
    let opens = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    lines.windows(2).position(opens).unwrap_or(lines.len())
}

/// Returns path (from the root of the project) and text of all sources except this file.
fn sources(root: &Path) -> Vec<(String, String)> {
    let files = CRATES.iter().flat_map(|folder| files::below(&root.join(folder), "rs"));
    let name = |path: &Path| path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
    let read = |path: PathBuf| (name(&path), fs::read_to_string(&path).expect("read a source file"));
    files.map(read).filter(|(path, _)| path != THIS_FILE).collect()
}

#[test]
fn every_clause_is_cited_and_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("find the workspace");
    let list = fs::read_to_string(root.join("tests/clauses.txt")).expect("read tests/clauses.txt");
    let report = Report::of(&list, &sources(root));
    println!("{}", report.table());
    let errors = &report.errors;
    assert!(errors.is_empty(), "{} errors:\n{}", errors.len(), errors.join("\n"));
    assert!(report.count().clauses > 150, "the list has lost most of its clauses");
}

/// Returns the errors in `list` for product code `code` and test code `test`.
fn errors(list: &str, code: &str, test: &str) -> Vec<String> {
    let file = |path: &str, text: &str| (path.to_string(), text.to_string());
    Report::of(list, &[file("wire/src/a.rs", code), file("wire/tests/b.rs", test)]).errors
}

const LIST: &str = "# A note.\n## Section\nA-B (IBA 9)\n    One\n    sentence.\nC-D (rxe; qib)\n    Another.\n";
const CODE: &str = "    // clause: A-B, C-D\n    let x = 1;\n";
const TEST: &str = "/// Doc.\n// clause: A-B\n// clause: C-D\n#[test]\nfn t() {}\n";

#[test]
fn cited_and_tested_clauses_are_accepted() {
    assert_eq!(errors(LIST, CODE, TEST), [""; 0]);
    let in_module = format!("{CODE}#[cfg(test)]\nmod tests {{\n{TEST}}}\n");
    assert_eq!(errors(LIST, &in_module, ""), [""; 0]);
}

#[test]
fn unlisted_uncited_and_untested_clauses_are_reported() {
    let unlisted = "wire/src/a.rs:3 cites E-F, which clauses.txt does not list";
    assert_eq!(errors(LIST, &format!("{CODE}// clause: E-F\n"), TEST), [unlisted]);
    let uncited = "C-D is cited by no product code and gives no reason (`uncited: ...`)";
    assert_eq!(errors(LIST, "// clause: A-B\n", TEST), [uncited]);
    let untested = "C-D is cited at wire/src/a.rs:1, but by no test, and gives no reason (`untested: ...`)";
    assert_eq!(errors(LIST, CODE, "// clause: A-B\n#[test]\n"), [untested]);
}

#[test]
fn exceptions_without_reason_and_stale_ones_are_reported() {
    let (uncited, untested) =
        (format!("{LIST}    uncited: not\n        offered\n"), format!("{LIST}    untested: hard\n"));
    assert_eq!(errors(&uncited, "// clause: A-B\n", "// clause: A-B\n#[test]\n"), [""; 0]);
    assert_eq!(errors(&untested, CODE, "// clause: A-B\n#[test]\n"), [""; 0]);
    let stale = ["C-D is excepted as uncited, but wire/src/a.rs:1 cites it"];
    assert_eq!(errors(&uncited, CODE, TEST), stale);
    let stale = ["C-D is excepted as untested, but wire/tests/b.rs:3 tests it"];
    assert_eq!(errors(&untested, CODE, TEST), stale);
    let reasonless = format!("{LIST}    untested:\n");
    assert_eq!(errors(&reasonless, CODE, "// clause: A-B\n#[test]\n"), ["C-D is excepted without a reason"]);
}

#[test]
fn malformed_lists_and_citations_are_reported() {
    let no_source = "clauses.txt: not a clause with its sources in parentheses: G-H";
    assert_eq!(errors(&format!("{LIST}G-H\n    Text.\n"), CODE, TEST), [no_source]);
    assert_eq!(errors(&format!("{LIST}A-B (IBA)\n    Again.\n"), CODE, TEST), ["clauses.txt lists A-B twice"]);
    for form in ["let x = 1; // clause: A-B", "/// clause: A-B", "//clause: A-B", "// (clause A-B)"] {
        let found = errors(LIST, &format!("{CODE}{form}\n"), TEST);
        assert!(matches!(&found[..], [one] if one.contains("has a line of its own")), "{form}: {found:?}");
    }
    let floating = errors(LIST, CODE, &format!("{TEST}// clause: A-B\nfn helper() {{}}\n"));
    assert_eq!(floating, ["wire/tests/b.rs:6: a citation in test code stands directly above `#[test]`"]);
}
