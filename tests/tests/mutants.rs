//! The mutants in `tests/mutants` still apply, and the tests they name exist. `tests/mutants/run` runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fewer would prove too little.
const AT_LEAST: usize = 12;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace")
}

fn mutants() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("tests/mutants")).expect("the folder of mutants");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    files.sort();
    files
}

/// Package, target and path of the tests that catch this mutant.
fn catchers(mutant: &str) -> impl Iterator<Item = [&str; 3]> {
    let lines = mutant.lines().filter_map(|line| line.strip_prefix("Caught by: "));
    lines.map(|line| line.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line}")))
}

#[test]
fn every_mutant_applies() {
    let mutants = mutants();
    assert!(mutants.len() >= AT_LEAST, "{} mutants", mutants.len());
    for file in mutants {
        let check = Command::new("git").args(["apply", "--check", "-C1"]).arg(&file).current_dir(root()).output();
        let check = check.expect("git");
        assert!(check.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&check.stderr));
    }
}

#[test]
fn every_mutant_says_what_it_breaks_and_names_tests_that_exist() {
    for file in mutants() {
        let mutant = fs::read_to_string(&file).expect("a mutant");
        let name = file.display();
        assert!(mutant.lines().next().is_some_and(|line| line.ends_with('.')), "{name}: what is broken?");
        assert!(catchers(&mutant).next().is_some(), "{name} names no test");
        for [package, target, test] in catchers(&mutant) {
            assert!(exists(package, target, test), "{name}: no test {test} in {target} of {package}");
        }
    }
}

/// Whether some source of the package's target has a test function of that name.
fn exists(package: &str, target: &str, test: &str) -> bool {
    let name = package.strip_prefix("roxe-").unwrap_or(package);
    // The models are a package of their own beside the tests.
    let places = ["", "tests"].map(|folder| root().join(folder).join(name));
    let Some(package) = places.into_iter().find(|place| place.is_dir()) else { return false };
    let source = if target == "lib" { package.join("src") } else { package.join("tests").join(format!("{target}.rs")) };
    let function = format!("fn {}(", test.rsplit("::").next().unwrap_or(test));
    holds(&source, &function)
}

fn holds(path: &Path, text: &str) -> bool {
    if path.is_dir() {
        let mut entries = fs::read_dir(path).expect("a folder of sources");
        entries.any(|entry| holds(&entry.expect("an entry").path(), text))
    } else {
        fs::read_to_string(path).is_ok_and(|source| source.contains(text))
    }
}
