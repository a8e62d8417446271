//! The checks themselves, on small sources made up for them: each finds what it is for, and lets
//! pass what is right.

use super::tree::Tree;
use super::{circles, layers, packed, text};
use std::fmt::Write as _;

const WORKSPACE: (&str, &str) = ("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\"]\n");
const A: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"low\"\n");
const B: (&str, &str) = ("b/Cargo.toml", "[package]\nname = \"high\"\n");

/// The packages `low` in the folder `a` and `high` in `b`, and these files.
fn tree(files: &[(&str, &str)]) -> Tree {
    Tree::made_up(&[&[WORKSPACE, A, B], files].concat())
}

/// What is found wrong with the order if the manifest of `low` goes on like this.
fn order_with(manifest: &str, order: &[&str]) -> Vec<String> {
    let manifest = format!("{}{manifest}", A.1);
    layers::findings(&Tree::made_up(&[WORKSPACE, ("a/Cargo.toml", &manifest), B]), order)
}

#[test]
fn a_dependency_on_a_package_above_is_found_in_every_kind_of_table() {
    let upward = ["low depends on high, which is not below it"];
    for manifest in [
        "[dependencies]\nhigh.workspace = true\n",
        "[dependencies]\nhigh = { path = \"../b\" }\n",
        "[dependencies.high]\npath = \"../b\"\n",
        "[dependencies]\nother = { path = \"../b\", package = \"high\" }\n",
        "[dev-dependencies]\nhigh.workspace = true\n",
        "[build-dependencies]\nhigh.workspace = true\n",
        "[target.'cfg(unix)'.dependencies]\nhigh.workspace = true\n",
    ] {
        assert_eq!(order_with(manifest, &["a", "b"]), upward, "{manifest}");
        assert!(order_with(manifest, &["b", "a"]).is_empty(), "{manifest}");
    }
    assert!(order_with("[dependencies]\nlibc = \"0.2\"\n", &["a", "b"]).is_empty());
}

#[test]
fn a_package_without_a_place_and_a_place_without_a_package_are_found() {
    assert_eq!(order_with("", &["a"]), ["b has no place in the order"]);
    assert_eq!(order_with("", &["a", "b", "c"]), ["c is in the order, but no member of the workspace"]);
}

/// The circles of a package of these files in `a/src`, its root first.
fn circles_of(sources: &[&str]) -> Vec<String> {
    let names = ["a/src/lib.rs", "a/src/one.rs", "a/src/two.rs", "a/src/three.rs"];
    circles::findings(&tree(&names.into_iter().zip(sources.iter().copied()).collect::<Vec<_>>()))
}

#[test]
fn two_files_that_import_each_other_are_a_circle() {
    let found = circles_of(&[
        "mod one;\nmod two;",
        "use crate::two::B;\npub struct A(B);",
        "use super::one::A;\npub struct B(A);",
    ]);
    let arrows = "\n    src/one.rs:1 -> src/two.rs: crate::two::B\n    src/two.rs:1 -> src/one.rs: super::one::A";
    assert_eq!(found, [format!("a: 2 files import each other:{arrows}")]);
}

#[test]
fn a_circle_through_three_files_is_found_and_an_arrow_into_it_is_no_part_of_it() {
    let found = circles_of(&[
        "mod one;\nmod two;\nmod three;\nuse one::A;\nfn f(_: A) {}",
        "use crate::two::B;\npub struct A(B);",
        "use crate::three::C;\npub struct B(C);",
        "use crate::one::A;\npub struct C(A);",
    ]);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("a: 3 files import each other:") && !found[0].contains("lib.rs"), "{found:?}");
}

#[test]
fn every_way_to_name_something_of_another_file_is_an_arrow() {
    for naming in [
        "use crate::two::{self, B};\npub struct A(B);",
        "use crate::two as other;\npub fn a() { other::b(); }",
        "use crate::two::*;\npub struct A(B);",
        "pub struct A(crate::two::B);",
        "pub fn a() { crate::two::b(); }",
        "pub fn a() { super::two::b(); }",
        "pub fn a() { self::inner::a(); }\nmod inner { pub fn a() { super::super::two::b(); } }",
        "pub fn a() { use crate::two::b; b(); }",
        "pub fn a() { println!(\"{}\", crate::two::b()); }",
        "macro_rules! a { () => { $crate::two::b() } }",
        "impl crate::two::T for u8 {}",
        "pub fn a(x: u8) -> bool { matches!(x, crate::two::LIMIT) }",
    ] {
        let two = "use crate::one;\npub fn b() { one::A; }\npub struct B;\npub trait T {}\npub const LIMIT: u8 = 1;";
        assert_eq!(circles_of(&["mod one;\nmod two;", naming, two]).len(), 1, "{naming}");
    }
}

#[test]
fn a_module_and_one_that_it_declares_are_a_circle_if_both_use_the_other() {
    let used = circles_of(&["mod one;\npub struct Root(one::A);", "use super::Root;\npub struct A(Box<Root>);"]);
    assert_eq!(used.len(), 1);
    assert!(circles_of(&["mod one;\npub struct Root;", "use super::Root;\npub struct A(Root);"]).is_empty());
}

#[test]
fn an_import_of_a_reexport_is_an_arrow_to_where_the_name_is_defined() {
    let by_reexport = |reexport: &str| {
        let root = format!("mod one;\nmod two;\n{reexport}\npub struct Root;");
        circles_of(&[&root, "use crate::B;\npub struct A(B, crate::Root);", "use crate::A;\npub struct B(A);"])
    };
    for reexport in ["pub use one::A;\npub use two::B;", "pub(crate) use one::*;\npub(crate) use two::*;"] {
        let found = by_reexport(reexport);
        assert_eq!(found.len(), 1, "{reexport}");
        // The root lends its names, and uses nothing itself.
        assert!(found[0].starts_with("a: 2 files") && !found[0].contains("lib.rs"), "{found:?}");
    }
}

#[test]
fn an_exported_macro_is_used_where_it_is_defined_though_it_is_named_in_the_root() {
    let one = "#[macro_export]\nmacro_rules! m { () => {} }\nuse crate::two::B;";
    let found = circles_of(&["mod one;\nmod two;\nuse one::A;\nfn f(_: A) {}", one, "crate::m! {}\npub struct B;"]);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("a: 2 files") && !found[0].contains("lib.rs"), "{found:?}");
}

#[test]
fn imports_of_tests_are_no_arrows() {
    let one = "use crate::two::B;\npub struct A(B);";
    for two in [
        "pub struct B;\n#[cfg(test)]\nmod tests { use crate::one::A; fn f(_: A) {} }",
        "pub struct B;\n#[cfg(test)]\nuse crate::one::A;",
        "pub struct B;\n#[cfg(all(test, unix))]\nfn f(_: crate::one::A) {}",
        "pub struct B { #[cfg(test)] a: crate::one::A }",
        "pub struct B;\nimpl B {\n#[cfg(test)]\nfn f(_: crate::one::A) {}\n}",
        "pub struct B;\n#[test]\nfn f() { crate::one::a(); }",
        "pub struct B;\n/// [`crate::one::A`] is a link.\nfn f() {}",
    ] {
        assert!(circles_of(&["mod one;\nmod two;", one, two]).is_empty(), "{two}");
    }
    let with_feature = "pub struct B;\n#[cfg(any(test, feature = \"sim\"))]\nfn f(_: crate::one::A) {}";
    assert_eq!(circles_of(&["mod one;\nmod two;", one, with_feature]).len(), 1);
}

#[test]
fn names_of_other_crates_fields_and_variables_are_no_arrows() {
    let two = "use std::two::one;\npub struct B { one: u8 }\nimpl B { fn f(&self) -> u8 { let one = self.one; dbg!(self.one, one) } }";
    assert!(circles_of(&["mod one;\nmod two;", "use crate::two::B;\npub struct A(B);", two]).is_empty());
}

#[test]
fn modules_are_found_in_files_folders_inline_modules_and_where_they_say() {
    let files = [
        (
            "a/src/lib.rs",
            "mod flat;\nmod folder;\nmod inline { mod inner; }\n#[path = \"odd.rs\"]\nmod moved;\n#[cfg(test)]\nmod gone;",
        ),
        ("a/src/flat.rs", "mod below;\nuse crate::moved::M;"),
        ("a/src/flat/below.rs", ""),
        ("a/src/folder/mod.rs", "mod below;\nuse crate::flat::below::X;"),
        ("a/src/folder/below.rs", ""),
        ("a/src/inline/inner.rs", "use crate::folder::below::X;"),
        ("a/src/odd.rs", "use crate::inline::inner::X;\nfn f() { super::flat::f(); }"),
        ("a/src/gone.rs", "use crate::flat::F;"),
    ];
    let found = circles::findings(&tree(&files));
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("src/flat.rs:2 -> src/odd.rs: crate::moved::M"), "{found:?}");
    assert!(found[0].starts_with("a: 2 files"), "{found:?}");
}

#[test]
fn wide_comments_and_modules_without_a_description_are_found_in_every_language() {
    let wide = "x".repeat(19);
    let found = |path: &str, source: &str| {
        let findings = text::findings(&Tree::made_up(&[(path, source)]), 20);
        findings.into_iter().map(|finding| finding.replace(path, "")).collect::<Vec<_>>()
    };
    let comment = |path: &str, source: &str| assert_eq!(found(path, source).len(), 1, "{path}: {source}");
    for begin in ["//", "///", "//!", "    //"] {
        comment("a.rs", &format!("//! Here.\n{begin} {wide}\nfn f() {{}}"));
    }
    for begin in ["//", "/*", " *"] {
        comment("a.c", &format!("{begin} {wide} */\n"));
    }
    comment("Cargo.toml", &format!("# {wide}\n"));
    comment("run", &format!("#!/bin/sh\n# {wide}\n"));
    assert_eq!(found("a.rs", "//! Here.\n// 12345678901234567\n"), [""; 0]);
    assert_eq!(found("a.rs", "//! Here.\n// 123456789012345678\n"), [":2: a comment of 21 columns"]);
    assert_eq!(found("a.rs", "fn f() {}\n"), [" does not begin with //! and what lives there"]);
}

#[test]
fn a_line_of_a_string_is_no_comment_even_if_it_looks_like_one() {
    let mut source = String::from("//! Here.\nconst TEXT: &str = \"\n");
    let _ = write!(source, "// {}\n\";\n", "x".repeat(30));
    assert!(text::findings(&Tree::made_up(&[("a.rs", &source)]), 20).is_empty());
}

#[test]
fn files_outside_of_the_package_are_found_in_scripts_and_macros() {
    let found = |path: &str, source: &str| packed::findings(&tree(&[(path, source)])).len();
    let script = "const FOLDER: &str = \"../../tests/conform\";";
    let outside = "const TEXT: &str = include_str!(\"../../text.txt\");";
    let inside = "const TEXT: &str = include_str!(\"../text.txt\");";
    assert_eq!((found("a/build.rs", script), found("a/src/lib.rs", outside), found("a/src/lib.rs", inside)), (1, 1, 0));
    assert_eq!(found("a/src/lib.rs", &format!("#[cfg(test)]\nmod tests {{\n{outside}\n}}")), 0);
    assert_eq!(found("a/src/deep/file.rs", outside), 0, "two folders up is the package");
}
