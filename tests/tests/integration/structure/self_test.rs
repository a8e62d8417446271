//! Tests the structure checks on small sources: each check reports violations and accepts correct
//! code.

use super::{Files, cycles, unsafe_elsewhere, upward_dependencies, wide_comments};
use serde_json::json;

fn files(sources: &[(&str, &str)]) -> Files {
    sources.iter().map(|(path, text)| (path.into(), (*text).to_owned())).collect()
}

#[test]
fn upward_dependencies_and_unlisted_packages_are_reported() {
    let package = |folder: &str, uses: &str| json!({"name": folder, "manifest_path": format!("/{folder}/Cargo.toml"), "dependencies": [{"name": uses}, {"name": "libc"}]});
    let tree = json!({"workspace_root": "/", "packages": [package("low", "high"), package("high", "none")]});
    assert_eq!(upward_dependencies(&tree, &["low", "high"]), ["\"low\" depends on \"high\", which is not below it"]);
    assert_eq!(upward_dependencies(&tree, &["high", "low"]), [""; 0]);
    assert_eq!(upward_dependencies(&tree, &["low"]).last().unwrap(), "\"high\" has no place in the order");
}

/// Returns the import cycles of a package with these files in `a/src`, its root first.
fn cycles_of(sources: &[&str]) -> Vec<String> {
    let names = ["a/src/lib.rs", "a/src/one.rs", "a/src/two.rs", "a/src/two/three.rs"];
    cycles::findings(&files(&names.into_iter().zip(sources.iter().copied()).collect::<Vec<_>>()), "a")
}

#[test]
fn circle_is_reported_without_files_that_lead_into_it() {
    let lib = "mod one;\nmod two;\nuse one::A;\nfn f(_: A) {}";
    let found = cycles_of(&[lib, "use crate::two::B;\npub struct A(B);", "use super::one::A;\npub struct B(A);"]);
    let arrows = "\n    src/one.rs:1 -> src/two.rs: crate::two::B\n    src/two.rs:1 -> src/one.rs: super::one::A";
    assert_eq!(found, [format!("a: 2 files import each other:{arrows}")]);
    let around = [
        "use crate::two::B;\npub struct A(B);",
        "mod three;\nuse three::C;\npub struct B(C);",
        "use crate::one::A;\npub struct C(A);",
    ];
    assert!(cycles_of(&[&[lib], &around[..]].concat())[0].starts_with("a: 3 files"));
}

#[test]
fn every_kind_of_path_is_a_dependency() {
    for naming in [
        "use crate::two::{self, B};\npub struct A(B);",
        "use crate::{two::{B as C}};\npub struct A(C);",
        "use crate::two as other;\npub fn a() { other::b(); }",
        "use crate::two::*;\npub struct A(B);",
        "pub struct A(crate::B);",
        "pub fn a() { self::inner::a(); }\nmod inner { pub fn a() { super::super::two::b(); } }",
        "pub fn a() { use crate::two::b; b(); }",
        "macro_rules! a { () => { $crate::two::b() } }",
        "impl crate::two::T for u8 {}",
        "pub fn a(x: u8) -> bool { matches!(x, ..crate::two::LIMIT) }",
    ] {
        let two = "use crate::one;\npub fn b() { one::A; }\npub struct B;\npub trait T {}\npub const LIMIT: u8 = 1;";
        let found = cycles_of(&["mod one;\nmod two;\npub(crate) use two::B;", naming, two]);
        // The root re-exports names, but uses nothing itself.
        assert!(found.len() == 1 && found[0].starts_with("a: 2 files") && !found[0].contains("lib.rs"), "{naming}");
    }
}

#[test]
fn test_imports_and_equal_names_are_not_dependencies() {
    for two in [
        "pub struct B;\n#[cfg(test)]\nmod tests { use crate::one::A; fn f(_: A) {} }",
        "pub struct B;\n#[cfg(test)]\nuse crate::one::A;",
        "pub struct B;\n#[cfg(all(test, unix))]\nfn f(_: crate::one::A) {}",
        "pub struct B { #[cfg(test)] a: crate::one::A, b: u8 }",
        "pub struct B;\nimpl B {\n#[cfg(test)]\nfn f(_: crate::one::A) {}\n}",
        "pub struct B;\n/// [`crate::one::A`] is a link.\nfn f() {}",
        "use std::two::one;\npub struct B { one: u8 }\nfn f<'one>(b: B) -> u8 { let one = b.one; dbg!(b.one, one) }",
    ] {
        let found = cycles_of(&["mod one;\nmod two;", "use crate::two::B;\npub struct A(B);", two]);
        assert_eq!(found, [""; 0], "{two}");
    }
    let with_feature = "pub struct B;\n#[cfg(any(test, feature = \"sim\"))]\nfn f(_: crate::one::A) {}";
    assert_eq!(cycles_of(&["mod one;\nmod two;", "use crate::two::B;\npub struct A(B);", with_feature]).len(), 1);
}

#[test]
fn unlisted_unsafe_code_and_stale_entries_are_reported() {
    let page = "`unsafe` is allowed in `a/src/{one,two}`, `b`, each block with its reason";
    let code = "fn f() { unsafe { g() } }";
    let tree =
        [("a/src/one.rs", code), ("a/src/two/x.rs", code), ("a/src/three.rs", code), ("b/src/lib.rs", "// unsafe {}")];
    let found = ["a/src/three.rs has unsafe code", "b is allowed unsafe code and has none"];
    assert_eq!(unsafe_elsewhere(&files(&tree), page), found);
}

#[test]
fn wide_comments_and_undocumented_modules_are_reported() {
    for (path, source) in [
        ("a.rs", "//! Here.\n    // 1234567890123456\nfn f() {}\n"),
        ("a.c", " * 1234567890123456789\n"),
        ("Cargo.toml", "# 1234567890123456789\n"),
        ("run", "#!/bin/sh\n# 1234567890123456789\n"),
        ("b.rs", "fn f() {}\n"),
    ] {
        assert_eq!(wide_comments(&files(&[(path, source)]), 20).len(), 1, "{path}");
    }
    assert_eq!(wide_comments(&files(&[("a.rs", "//! Here.\n// 12345678901234567\n")]), 20), [""; 0]);
}
