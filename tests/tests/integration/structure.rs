//! Checks rules for the source that the compiler does not: the order of the crates, import cycles
//! between the files of a crate, the files with unsafe code, and the width of comments.
//!
//! There are no exceptions. A test prints all violations, not only the first.

mod cycles;
mod self_test;

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The page that lists the crates in their order, and the files with unsafe code.
const ARCHITECTURE: &str = "docs/internals/architecture.md";
const COMMENT_COLUMNS: usize = 100;
/// Texts of files by their path from the root of the workspace.
type Files = BTreeMap<PathBuf, String>;

#[test]
fn packages_depend_only_on_those_before_them() {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]).output().expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_none(&upward_dependencies(&metadata, &order(&workspace())));
}

#[test]
fn files_of_a_package_have_no_import_cycles() {
    let files = workspace();
    let findings = order(&files).iter().flat_map(|folder| cycles::findings(&files, folder)).collect::<Vec<_>>();
    assert_none(&findings);
}

#[test]
fn unsafe_code_is_only_where_the_architecture_allows_it() {
    let files = workspace();
    assert_none(&unsafe_elsewhere(&files, &files[Path::new(ARCHITECTURE)]));
}

#[test]
fn comments_fit_and_every_module_has_a_description() {
    assert_none(&wide_comments(&workspace(), COMMENT_COLUMNS));
}

fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// Returns the folders of the product's packages, the lowest first: the reverse of their order on
/// the architecture page.
fn order(files: &Files) -> Vec<&str> {
    let list = files[Path::new(ARCHITECTURE)].split("```").nth(1).expect("find the list in architecture.md");
    let folders = list.lines().filter_map(|line| line.split_whitespace().next());
    folders
        .filter(|word| files.contains_key(&Path::new(word).join("Cargo.toml")))
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect()
}

/// Returns every text file of the workspace, without hidden and generated ones.
fn workspace() -> Files {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("find the workspace");
    let (mut files, mut folders) = (Files::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("list a folder of the workspace") {
            let path = entry.expect("read an entry of the folder").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_symlink() || name.starts_with('.') || name == "target" || name == "shared" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                files.insert(path.strip_prefix(&root).expect("below the root").to_owned(), text);
            }
        }
    }
    files
}

/// Returns the packages of the product that `order` lacks, and the dependencies on packages that do
/// not precede their user in it.
fn upward_dependencies(metadata: &Value, order: &[&str]) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let named = |folder: &&str| {
        let manifest = format!("/{folder}/Cargo.toml");
        packages.iter().find(|package| package["manifest_path"].as_str().is_some_and(|path| path.ends_with(&manifest)))
    };
    let names: Vec<&Value> = order.iter().filter_map(named).map(|package| &package["name"]).collect();
    let mut findings = Vec::new();
    for (package, name) in packages.iter().map(|package| (package, &package["name"])) {
        let Some(own) = names.iter().position(|other| *other == name) else {
            findings.extend(package["publish"].is_null().then(|| format!("{name} has no place in the order")));
            continue;
        };
        let folder = package["manifest_path"].as_str().and_then(|path| path.strip_suffix("Cargo.toml"));
        for dependency in list(&package["dependencies"]) {
            let (used, path) = (&dependency["name"], dependency["path"].as_str().unwrap_or_default());
            // Tests may use a package in a subfolder of their own package, which depends on it.
            let is_for_tests = dependency["kind"] == "dev" && folder.is_some_and(|folder| path.starts_with(folder));
            if names[own..].contains(&used) && !is_for_tests {
                findings.push(format!("{name} depends on {used}, which is not below it"));
            }
        }
    }
    findings
}

/// Returns the product's files with unsafe code that the architecture page does not name, and the
/// names on that page without unsafe code.
fn unsafe_elsewhere(files: &Files, page: &str) -> Vec<String> {
    let list = page.split_once("`unsafe` is allowed in").and_then(|(_, rest)| rest.split_once("each block"));
    let names = list.map_or("", |(list, _)| list).split('`').skip(1).step_by(2).flat_map(|name| {
        let (folder, files) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
        files.split(',').map(move |file| PathBuf::from(format!("{folder}{file}")))
    });
    let mut names: BTreeMap<PathBuf, usize> = names.map(|name| (name, 0)).collect();
    let mut findings = Vec::new();
    for (path, text) in files {
        let is_product = path.extension().is_some_and(|ending| ending == "rs")
            && path.iter().any(|part| part == "src")
            && !["tests", "testing"].iter().any(|test| path.with_extension("").iter().any(|part| part == *test));
        let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let is_unsafe = |line: &str| ["{", "impl", "fn"].iter().any(|next| line.contains(&format!("unsafe {next}")));
        if is_product && code.any(is_unsafe) {
            match names.iter_mut().find(|(name, _)| path.starts_with(name) || *path == name.with_extension("rs")) {
                Some((_, uses)) => *uses += 1,
                None => findings.push(format!("{} has unsafe code", path.display())),
            }
        }
    }
    let unused = names.iter().filter(|(_, uses)| **uses == 0);
    findings.extend(unused.map(|(name, _)| format!("{} is allowed unsafe code and has none", name.display())));
    findings
}

/// Returns the comments of more than `columns`, and the Rust modules without a description at their
/// top.
fn wide_comments(files: &Files, columns: usize) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let marks: &[&str] = match path.extension().and_then(|ending| ending.to_str()) {
            Some("rs" | "c" | "h") => &["//", "/*", "* "],
            Some("toml" | "sh") => &["#"],
            None if text.starts_with("#!") => &["#"],
            _ => continue,
        };
        if path.extension().is_some_and(|ending| ending == "rs") && !text.starts_with("//!") {
            findings.push(format!("{} does not begin with a description (//!)", path.display()));
        }
        for (number, line) in (1..).zip(text.lines()) {
            let width = line.chars().count();
            if width > columns && marks.iter().any(|mark| line.trim_start().starts_with(mark)) {
                findings.push(format!("{}:{number}: a comment of {width} columns", path.display()));
            }
        }
    }
    findings
}
