//! Checks that the dependencies satisfy tests/deny.toml: licences, sources, and no C in the
//! product.
//!
//! `cargo deny` checks more, such as known vulnerabilities, but needs a network for that.

use std::process::Command;

const POLICY: &str = include_str!("../../deny.toml");
const LOCK: &str = include_str!("../../../Cargo.lock");

/// The packages that users install.
const PRODUCT: [&str; 4] = ["roxe-capi", "roxe-cli", "roxe-preload", "roxe"];

/// Returns the quoted strings between `begin` and the next line `]` of the policy.
fn list(begin: &str) -> Vec<&'static str> {
    let (_, rest) = POLICY.split_once(begin).expect("find the list in deny.toml");
    let (list, _) = rest.split_once("\n]").expect("find the end of the list");
    list.split('"').skip(1).step_by(2).collect()
}

/// Returns the lines of `cargo tree` with these arguments, one package a line.
fn tree(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--locked", "--prefix", "none", "--target", "all"]).args(arguments);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo can be started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Returns true if an SPDX expression can be satisfied by allowed licences. Old crates write `/`
/// for `OR`.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let flat = expression.replace(['(', ')'], "").replace('/', " OR ");
    // In the expressions of all dependencies, AND joins a choice in brackets and one licence.
    flat.split(" AND ").all(|part| part.split(" OR ").any(|licence| allowed.contains(&licence.trim())))
}

#[test]
fn licence_expression_is_allowed_if_each_part_is() {
    let allowed = ["MIT", "Unicode-3.0"];
    for (expression, expected) in [
        ("MIT", true),
        ("MIT/Apache-2.0", true),
        ("Apache-2.0 OR MIT", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0", false),
        ("GPL-3.0", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

#[test]
fn every_dependency_has_a_licence_that_the_policy_allows() {
    let allowed = list("\nallow = [");
    assert!(allowed.contains(&"MIT"), "the policy was read: {allowed:?}");
    let packages = tree(&["--workspace", "--edges", "normal,build,dev", "--format", "{p}|{l}"]);
    assert!(packages.len() > 50, "the tree was read: {packages:?}");
    let refused: Vec<_> = packages
        .iter()
        .filter(|line| line.split_once('|').is_none_or(|(_, licence)| !is_allowed(licence, &allowed)))
        .collect();
    assert!(refused.is_empty(), "not allowed by tests/deny.toml: {refused:?}");
}

#[test]
fn every_dependency_comes_from_the_registry() {
    let sources: Vec<_> = LOCK.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    assert!(sources.len() > 50, "the lock file was read");
    assert!(sources.iter().all(|source| source.contains("rust-lang/crates.io-index")), "{sources:?}");
}

#[test]
fn product_compiles_and_links_no_c() {
    let banned = list("\ndeny = [");
    assert!(banned.contains(&"cc"), "the policy was read: {banned:?}");
    for product in PRODUCT {
        let packages = tree(&["--package", product, "--edges", "normal,build", "--format", "{p}"]);
        let names: Vec<_> = packages.iter().filter_map(|line| line.split(' ').next()).collect();
        assert!(names.contains(&"libc"), "the tree of {product} was read: {names:?}");
        let found: Vec<_> = names.iter().filter(|name| banned.contains(name) && **name != "generator").collect();
        assert!(found.is_empty(), "{product} depends on {found:?}");
    }
}
