//! Checks that the mutants in `tests/mutants` and `tests/checked` apply, and that the tests which
//! they name exist. `tests/mutants/run` and `tests/checked/run` build and run them.

use roxe_tests::files::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Least number of mutants: with fewer, the folder was not read.
const MIN_MUTANTS: usize = 12;
/// Folder of the card faults that `tests/mutants/outside/run` shows to `roxe conform`.
const OUTSIDE: &str = "tests/mutants/outside";
/// Checkers of `tests/checked/run`.
const CHECKERS: [&str; 3] = ["thread", "address", "miri"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("find the workspace")
}

fn patches(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).expect("list the folder of patches");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("read an entry of the folder").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    files.sort();
    files
}

fn mutants() -> Vec<PathBuf> {
    [patches("tests/mutants"), patches("tests/checked")].concat()
}

/// Checks that this patch applies to the tree alone. [`apply_in_a_copy`] checks that patches apply
/// after each other.
fn check_applies(file: &Path) {
    let check = Command::new("git").args(["apply", "--check", "-C1"]).arg(file).current_dir(root()).output();
    let check = check.expect("run git apply");
    assert!(check.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&check.stderr));
}

/// Returns package, target and path of the tests that catch this mutant.
fn catchers(mutant: &str) -> impl Iterator<Item = [&str; 3]> {
    let lines = mutant.lines().filter_map(|line| line.strip_prefix("Caught by: "));
    lines.map(|line| line.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line}")))
}

#[test]
fn every_mutant_applies() {
    let mutants = mutants();
    assert!(mutants.len() >= MIN_MUTANTS, "{} mutants", mutants.len());
    mutants.iter().for_each(|file| check_applies(file));
    apply_in_a_copy(&patches("tests/mutants"));
}

/// Applies patches one after the other to a copy of the files that they change.
fn apply_in_a_copy(files: &[PathBuf]) {
    let folder = Scratch::new("faults").expect("create a folder");
    for file in files {
        let text = fs::read_to_string(file).expect("read the patch");
        for path in text.lines().filter_map(|line| line.strip_prefix("+++ b/")) {
            let copy = folder.join(path);
            fs::create_dir_all(copy.parent().expect("find the folder of the copy")).expect("create the folder");
            if !copy.exists() {
                fs::copy(root().join(path), copy).unwrap_or_else(|e| panic!("{}: {path}: {e}", file.display()));
            }
        }
        let mut apply = Command::new("git");
        apply.args(["apply", "-C1"]).arg(file).current_dir(&*folder).env("GIT_CEILING_DIRECTORIES", &*folder);
        let applied = apply.output().expect("run git apply");
        assert!(applied.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&applied.stderr));
    }
}

#[test]
fn faults_seen_from_outside_apply_alone_and_together() {
    let faults = patches(OUTSIDE);
    faults.iter().for_each(|file| check_applies(file));
    apply_in_a_copy(&faults);
}

/// Each fault has a description, a date, and a script that finds it, unless packets cannot show it.
#[test]
fn faults_seen_from_outside_are_listed() {
    let list = fs::read_to_string(root().join(OUTSIDE).join("list.txt")).expect("read list.txt");
    let rows = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let rows: Vec<Vec<_>> = rows.map(|line| line.split_whitespace().collect()).collect();
    let named: Vec<_> = rows.iter().map(|row| row[0].to_owned()).collect();
    let stem = |file: &PathBuf| file.file_stem().expect("get the name of the patch").to_string_lossy().into_owned();
    assert_eq!(named, patches(OUTSIDE).iter().map(stem).collect::<Vec<_>>());
    for (row, file) in rows.iter().zip(patches(OUTSIDE)) {
        let [name, day, before, now, ..] = row[..] else { panic!("{row:?}") };
        assert!(day.len() == 10 && day.starts_with("20"), "{name}: the date is missing");
        for script in [before, now].into_iter().filter(|script| !["-", "unseen"].contains(script)) {
            assert!(root().join("tests/conform").join(script).with_extension("drill").exists(), "{name}: {script}");
        }
        let text = fs::read_to_string(file).expect("read the patch");
        assert!(text.lines().next().is_some_and(|line| line.ends_with('.')), "{name}: the description is missing");
    }
}

/// Code with another number would be active with another mutant, and code without a number always.
#[test]
fn every_mutant_asks_for_its_own_number() {
    for file in [patches("tests/mutants"), patches(OUTSIDE)].concat() {
        let mutant = fs::read_to_string(&file).expect("read the mutant");
        let name = file.file_name().and_then(|name| name.to_str()).expect("get the name of the patch");
        let number = name.split('-').next().unwrap_or_default().trim_start_matches('0');
        let added: String = mutant.lines().filter(|line| line.starts_with('+')).collect();
        let numbers: Vec<_> = added.split("::mutant(").skip(1).map(|rest| rest.split(')').next()).collect();
        assert!(!numbers.is_empty() && numbers.iter().all(|found| *found == Some(number)), "{name} tests {numbers:?}");
    }
}

#[test]
fn every_mutant_has_a_description_and_names_existing_tests() {
    for file in mutants() {
        let mutant = fs::read_to_string(&file).expect("read the mutant");
        let name = file.display();
        assert!(mutant.lines().next().is_some_and(|line| line.ends_with('.')), "{name}: the description is missing");
        assert!(catchers(&mutant).next().is_some(), "{name} has no test");
        for [package, target, test] in catchers(&mutant) {
            assert!(exists(package, target, test), "{name}: no test {test} in {target} of {package}");
        }
    }
}

#[test]
fn every_checker_has_a_broken_build_that_it_must_report() {
    let patches = patches("tests/checked");
    let texts: Vec<_> = patches.iter().map(|file| fs::read_to_string(file).expect("read the patch")).collect();
    for checker in CHECKERS {
        let head = format!("Reported by {checker}: ");
        assert!(texts.iter().any(|text| text.lines().any(|line| line.starts_with(&head))), "{checker} has none");
    }
    for (file, text) in patches.iter().zip(&texts) {
        let reports = text.lines().filter_map(|line| line.strip_prefix("Reported by "));
        let reports: Vec<_> = reports.map(|line| line.split_once(": ").expect("CHECKER: WORDS")).collect();
        let are_known = reports.iter().all(|(checker, words)| CHECKERS.contains(checker) && !words.is_empty());
        assert!(are_known && !reports.is_empty(), "{}: {reports:?}", file.display());
        assert_eq!(catchers(text).count(), 1, "{}: one test must catch it", file.display());
    }
}

/// Returns true if a source of the package's target has a test of that name.
fn exists(package: &str, target: &str, test: &str) -> bool {
    let name = package.strip_prefix("roxe-").unwrap_or(package);
    // The package roxe-provider is in the folder provider/device.
    let name = if name == "provider" { "device" } else { name };
    let places = ["", "tests", "verbs-api", "provider"].map(|folder| root().join(folder).join(name));
    let Some(package) = places.into_iter().find(|place| place.is_dir()) else { return false };
    let source = if target == "lib" { package.join("src") } else { package.join("tests").join(target) };
    let function = format!("fn {}(", test.rsplit("::").next().unwrap_or(test));
    contains(&source, &function)
}

/// Returns true if the file, or a file below the folder, contains the text.
fn contains(path: &Path, text: &str) -> bool {
    if path.is_dir() {
        let mut entries = fs::read_dir(path).expect("list a folder of sources");
        entries.any(|entry| contains(&entry.expect("read an entry of the folder").path(), text))
    } else {
        fs::read_to_string(path).is_ok_and(|source| source.contains(text))
    }
}
