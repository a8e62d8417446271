//! The documentation says what the code does, where a test can compare the two.

use roxe_check::Rule;
use roxe_provider::config::KNOBS;
use roxe_provider::profile::{PROFILES, Profile};
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../../docs/reference/environment.md");

#[test]
fn the_table_of_knobs_is_the_one_in_the_code() {
    let rows: Vec<&str> = PAGE.lines().filter(|line| line.starts_with("| `ROXE_")).collect();
    let wanted: Vec<String> = KNOBS.iter().map(|k| format!("| `{}` | {} | {} |", k.name, k.default, k.help)).collect();
    assert_eq!(rows, wanted);
}

#[test]
fn the_table_of_cards_is_the_one_in_the_code() {
    let page = include_str!("../../../docs/reference/profiles.md");
    let number = |limit: Option<u32>| limit.map_or_else(|| "?".to_owned(), |limit| limit.to_string());
    let wanted = PROFILES.iter().map(|card| {
        let Profile { name, vendor_id, vendor_part_id, source, .. } = card;
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
        format!("| `{name}` | {vendor_id:#06x} | {vendor_part_id} | {limits} | {source} |")
    });
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows, wanted.collect::<Vec<_>>());
}

/// Returns the pages of the manual.
fn pages(root: &Path) -> Vec<PathBuf> {
    let (mut pages, mut folders) = (Vec::new(), vec![root.join("docs")]);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// A front page is read; a manual is looked up in.
#[test]
fn the_readme_is_short_and_every_link_of_the_documentation_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    assert!(readme.lines().count() <= 150);
    let long: Vec<&str> = readme.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(long.is_empty(), "{long:?}");
    for page in pages(root).into_iter().chain([root.join("README.md"), root.join("SECURITY.md")]) {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_here = target.is_empty() || page.parent().unwrap().join(target).exists();
            assert!(is_here || target.starts_with("http"), "{}: {target}", page.display());
        }
    }
}

/// Who meets a report looks its rule up in the manual.
#[test]
fn the_manual_of_the_checker_has_a_wrong_and_a_right_example_of_every_rule() {
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
fn the_table_of_counters_is_the_one_in_the_code() {
    let page = include_str!("../../../docs/reference/metrics.md");
    let legend = roxe_provider::Counters::legend();
    let wanted: Vec<String> = legend.iter().map(|(name, words)| format!("| `{name}` | {words} |")).collect();
    let (_, table) = page.split_once("| counter | counts |\n|---|---|\n").expect("the page has the table");
    let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with("| `")).collect();
    assert_eq!(rows, wanted);
}

/// The packages hold the folder `docs`, and a published crate nothing but its own folder.
#[test]
fn pages_named_by_help_exist_in_the_manual() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut named = 0;
    for file in std::fs::read_dir(root.join("verbs-api/cli/src")).unwrap().map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        for page in text.split("docs/").skip(1).filter_map(|rest| rest.split_once(".md")).map(|(page, _)| page) {
            assert!(root.join(format!("docs/{page}.md")).exists(), "{}: docs/{page}.md", file.display());
            named += 1;
        }
    }
    assert!(named > 0);
}

#[test]
fn paths_named_by_the_architecture_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut folder, mut is_block) = (root.to_owned(), false);
    let (mut named, mut missing) = (0, Vec::new());
    for (number, line) in (1..).zip(include_str!("../../../docs/internals/architecture.md").lines()) {
        is_block ^= line.starts_with("```");
        let texts: Vec<&str> = if is_block { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        for path in texts.iter().flat_map(|text| text.split_whitespace()).filter(|word| is_path(word)) {
            let path = path.trim_end_matches([',', ';', ':', '.', ')']);
            // The folder of the last full path is that of the relative paths behind it.
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
