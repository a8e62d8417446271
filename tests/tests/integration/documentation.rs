//! Checks that the manual matches the code.
//!
//! Parts of pages between `<!-- generated: NAME -->` and `<!-- end -->` are generated from the
//! code: `ROXE_WRITE_DOCS=1 cargo test -p roxe-tests --test integration documentation` rewrites
//! them.

use roxe_check::Rule;
use roxe_provider::Counters;
use roxe_provider::config::KNOBS;
use roxe_provider::profile::{PROFILES, Profile, VendorErrOf};
use roxe_tests::files;
use roxe_transport::wr::{WC_STATUS_TEXTS, WcStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A generated part of a page: its name, the page, and the function that generates it.
type Part = (&'static str, &'static str, fn() -> String);

const GENERATED: &[Part] = &[
    ("knobs", "docs/reference/environment.md", knobs),
    ("profiles", "docs/reference/profiles.md", profiles),
    ("vendor errors", "docs/reference/profiles.md", vendor_errs),
    ("counters", "docs/reference/counters.md", counters),
    ("fault rules", "docs/reference/fault-rules.md", fault_rules),
];

fn knobs() -> String {
    let rows = KNOBS.iter().map(|knob| format!("| `{}` | {} | {} |\n", knob.name, knob.default, knob.help));
    format!("| variable | default | meaning |\n|---|---|---|\n{}", rows.collect::<String>())
}

fn counters() -> String {
    let rows = Counters::legend().into_iter().map(|(name, words)| format!("| `{name}` | {words} |\n"));
    format!("| counter | counts |\n|---|---|\n{}", rows.collect::<String>())
}

fn fault_rules() -> String {
    roxe_transport::fault::LANGUAGE.to_owned()
}

fn profiles() -> String {
    let head = [
        "card",
        "vendor",
        "part",
        "`max_qp`",
        "`max_qp_wr`",
        "`max_sge`",
        "`max_sge_rd`",
        "`max_cq`",
        "`max_cqe`",
        "`max_mr`",
        "`max_pd`",
        "`max_srq`",
        "`max_srq_wr`",
        "`max_srq_sge`",
        "device",
        "source",
    ];
    let number = |limit: Option<u32>| limit.map_or_else(|| "?".to_owned(), |limit| limit.to_string());
    let rows = PROFILES.iter().map(|card| {
        let Profile { name, vendor_id, vendor_part_id, device_name, source, .. } = card;
        let limits = [
            card.max_qp,
            card.max_qp_wr,
            card.max_sge,
            card.max_sge_rd,
            card.max_cq,
            card.max_cqe,
            card.max_mr,
            card.max_pd,
            card.max_srq,
            card.max_srq_wr,
            card.max_srq_sge,
        ];
        let limits = limits.map(number).join(" | ");
        format!("| `{name}` | {vendor_id:#06x} | {vendor_part_id} | {limits} | `{device_name}` | {source} |\n")
    });
    format!("| {} |\n|{}\n{}", head.join(" | "), "---|".repeat(head.len()), rows.collect::<String>())
}

fn vendor_errs() -> String {
    vendor_err_table(PROFILES)
}

fn vendor_err_table(profiles: &[Profile]) -> String {
    let cards = |err: &VendorErrOf| {
        let with = profiles.iter().filter(|card| card.vendor_errs.contains(err));
        with.map(|card| format!("`{}`", card.name)).collect::<Vec<_>>().join(", ")
    };
    let all = profiles.iter().flat_map(|card| card.vendor_errs);
    let known: BTreeMap<_, _> = all.map(|err| ((err.vendor_err, err.is_receive, err.status as usize), err)).collect();
    let row = |err: &VendorErrOf| {
        let VendorErrOf { status, is_receive, vendor_err, source } = err;
        let side = if *is_receive { "receive" } else { "send request" };
        let text = WC_STATUS_TEXTS[*status as usize].to_string_lossy();
        format!("| {vendor_err} ({vendor_err:#x}) | {side} | {text} | {} | {source} |\n", cards(err))
    };
    let rows: String = known.into_values().map(row).collect();
    format!("| `vendor_err` | of a | status | cards | source |\n|---|---|---|---|---|\n{rows}")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn generated_parts_of_pages_match_the_code() {
    let writes = std::env::var_os("ROXE_WRITE_DOCS").is_some();
    let mut stale = Vec::new();
    for (name, page, generate) in GENERATED {
        let path = root().join(page);
        let text = fs::read_to_string(&path).unwrap();
        let start = format!("<!-- generated: {name} -->\n");
        let (before, rest) = text.split_once(&start).expect("find the start of the part");
        let (_, after) = rest.split_once("<!-- end -->").expect("find the end of the part");
        let now = format!("{before}{start}{}\n<!-- end -->{after}", generate().trim_end());
        if writes {
            fs::write(&path, now).unwrap();
        } else if now != text {
            stale.push(*page);
        }
    }
    assert!(stale.is_empty(), "{stale:?}: run this test with ROXE_WRITE_DOCS=1");
}

#[test]
fn equal_vendor_errs_of_two_statuses_have_a_row_each() {
    let entry = |status, is_receive| VendorErrOf { status, is_receive, vendor_err: 0x51, source: "" };
    let errs = [(WcStatus::LocProtErr, false), (WcStatus::LocProtErr, true), (WcStatus::LocLenErr, true)];
    let errs = errs.map(|(status, is_receive)| entry(status, is_receive));
    let table = vendor_err_table(&[Profile { vendor_errs: Vec::from(errs).leak(), ..PROFILES[0] }]);
    assert_eq!(table.lines().filter(|line| line.starts_with("| 81 (0x51) |")).count(), 3, "{table}");
}

/// Returns the pages of the manual.
fn pages() -> Vec<PathBuf> {
    files::below(&root().join("docs"), "md")
}

#[test]
fn packages_that_work_name_their_suites() {
    for page in ["docs/reference/debian.md", "docs/reference/pypi.md"] {
        check_packages(&fs::read_to_string(root().join(page)).unwrap());
    }
}

/// Checks that each row of the table has a result, and the suites or reason that belong to it.
fn check_packages(page: &str) {
    let suites: BTreeSet<String> = files::below(&root().join("tests/tests/suites"), "rs")
        .iter()
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()))
        .collect();
    let rows: Vec<Vec<&str>> =
        page.lines().filter(|line| line.starts_with("| ")).skip(1).map(|line| line.split('|').collect()).collect();
    assert!(rows.len() > 20);
    for row in rows {
        let [_, package, result, reason, _] = row.iter().map(|cell| cell.trim()).collect::<Vec<_>>()[..] else {
            panic!("{row:?} has no three columns");
        };
        // Only the words before the details are names of suites.
        let head = reason.split([':', ';', '(']).next().unwrap_or_default();
        let named: Vec<&str> = head.split('`').skip(1).step_by(2).collect();
        match result {
            "works" | "in part" => {
                assert!(head == "by hand" || !named.is_empty(), "{package}: no suite is named")
            }
            "no" => assert!(!reason.is_empty(), "{package}: no reason is named"),
            _ => assert_eq!((result, reason), ("not tried", ""), "{package}"),
        }
        let unknown = named.iter().find(|name| !suites.contains(**name));
        assert!(
            !matches!(result, "works" | "in part") || unknown.is_none(),
            "{package}: there is no suite {unknown:?}"
        );
    }
}

#[test]
fn readme_is_short_and_narrow() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 100);
    let is_table = |line: &&str| line.starts_with('|');
    let long: Vec<&str> = readme.lines().filter(|line| line.chars().count() > 120 && !is_table(line)).collect();
    assert!(long.is_empty(), "{long:?}");
}

/// Returns the anchor of a heading, as mdBook and GitHub make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for page in pages().into_iter().chain([root().join("README.md"), root().join("SECURITY.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let Ok(linked) =
                fs::read_to_string(&file).or_else(|e| if file.exists() { Ok(String::new()) } else { Err(e) })
            else {
                broken.push(format!("{}: {target}", page.display()));
                continue;
            };
            let mut headings = linked.lines().filter(|line| line.starts_with('#'));
            let is_found = headings.any(|line| anchor(line.trim_start_matches('#')) == heading);
            if !heading.is_empty() && file.extension().is_some_and(|e| e == "md") && !is_found {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn summary_lists_every_page_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<PathBuf> =
        summary.split("](").skip(1).filter_map(|rest| Some(docs.join(rest.split_once(')')?.0))).collect();
    let pages: BTreeSet<PathBuf> = pages().into_iter().filter(|page| !page.ends_with("SUMMARY.md")).collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), pages);
    assert_eq!(listed.len(), pages.len());
}

#[test]
fn checker_page_has_an_example_of_every_rule() {
    let page = include_str!("../../../docs/reference/checker.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .filter(|cells: &Vec<&str>| cells.len() == 4)
        .collect();
    let found: Vec<_> = rows.iter().map(|cells| (cells[0].trim_matches('`'), cells[1])).collect();
    let wanted: Vec<_> = Rule::ALL.iter().map(|rule| (rule.name(), rule.severity().to_string())).collect();
    assert!(found.iter().copied().eq(wanted.iter().map(|(name, severity)| (*name, &**severity))), "{found:?}");
    assert!(rows.iter().all(|cells| !cells[2].is_empty() && !cells[3].is_empty()));
    assert!(page.contains(&format!("{} rules", wanted.len())));
}

#[test]
fn paths_named_by_the_architecture_exist() {
    let root = root();
    let (mut folder, mut is_block) = (root.to_owned(), false);
    let (mut named, mut missing) = (0, Vec::new());
    for (number, line) in (1..).zip(include_str!("../../../docs/internals/architecture.md").lines()) {
        is_block ^= line.starts_with("```");
        let texts: Vec<&str> = if is_block { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        for path in texts.iter().flat_map(|text| text.split_whitespace()).filter(|word| is_path(word)) {
            let path = path.trim_end_matches([',', ';', ':', '.', ')']);
            // The folder of the last full path is that of the relative paths after it.
            let start = path.split('{').next().filter(|start| !start.is_empty());
            if let Some(place) = start.and_then(|start| find_path(root, None, start)) {
                folder = if place.is_dir() { place } else { place.parent().unwrap().to_owned() };
            }
            let paths = expand_braces(path);
            named += paths.len();
            let is_missing = |path: &String| find_path(root, Some(&folder), path).is_none();
            missing.extend(paths.iter().filter(|path| is_missing(path)).map(|path| format!("line {number}: {path}")));
        }
    }
    assert!(named > 200, "the test finds only {named} paths in the page");
    assert!(missing.is_empty(), "{} of {named} paths do not exist:\n{}", missing.len(), missing.join("\n"));
}

/// Returns true if a word of the page looks like a path of this repository, braces included.
fn is_path(word: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-./{},;:)".contains(&byte);
    word.bytes().all(fits) && !word.starts_with('/') && (word.contains('/') || word.contains(".rs"))
}

/// Expands braces as a shell does.
fn expand_braces(path: &str) -> Vec<String> {
    let Some((start, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (choices, end) = rest.split_once('}').expect("every brace is closed");
    choices.split(',').flat_map(|choice| expand_braces(&format!("{start}{choice}{end}"))).collect()
}

/// Returns the existing file or folder of a path, which may lack `.rs`. The path begins at the
/// root, or with the folder of a crate and leaves out `src`, or continues `folder`.
fn find_path(root: &Path, folder: Option<&PathBuf>, path: &str) -> Option<PathBuf> {
    let exists = |path: &str| {
        let (name, rest) = path.split_once('/').unwrap_or((path, ""));
        let crates = ["", "provider", "verbs-api"].map(|group| root.join(group).join(name).join("src").join(rest));
        let mut places = [root.join(path)].into_iter().chain(crates).chain(folder.map(|folder| folder.join(path)));
        places.find(|place| place.exists())
    };
    exists(path).or_else(|| exists(&format!("{path}.rs")))
}
