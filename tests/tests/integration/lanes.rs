//! Checks that `tests/run` runs every suite.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the names of the modules below `tests/tests/suites`, each of which is a suite.
fn suites() -> BTreeSet<String> {
    let groups = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites")).expect("list the suites");
    let folders = groups.map(|entry| entry.expect("read an entry of the folder").path()).filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| fs::read_dir(folder).expect("list a group of suites"));
    let files = files.map(|entry| entry.expect("read an entry of the folder").path()).filter(|path| path.is_file());
    files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
}

#[test]
fn run_names_every_suite() {
    let script = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/run")).expect("tests/run");
    let lists = script.lines().filter(|line| !line.starts_with('#'));
    let words: BTreeSet<&str> =
        lists.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).collect();
    let suites = suites();
    assert!(suites.len() > 20, "{suites:?}");
    let left_out: Vec<_> = suites.iter().filter(|suite| !words.contains(suite.as_str())).collect();
    assert!(left_out.is_empty(), "no lane of tests/run has {left_out:?}");
}
