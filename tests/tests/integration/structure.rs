//! The order of the source: which crate may know which, modules without import circles, packages
//! that stand alone, comments that fit. Reads the files of the workspace; runs nothing.
//!
//! There is no list of exceptions. What is found is printed as a whole, so that one run tells all
//! that is to be done.

mod circles;
mod layers;
mod made_up;
mod modules;
mod packed;
mod text;
mod tree;

use tree::Tree;

/// The folders of the workspace's packages: each may depend on those before it, and on no other.
pub(crate) const ORDER: &[&str] = &[
    "wire",
    "transport",
    "transport/sim",
    "provider/base",
    "provider/check",
    "provider/memory",
    "provider/net",
    "provider/engine",
    "provider/device",
    "verbs-api/roxe",
    "verbs-api/tokio",
    "verbs-api/rsockets",
    "verbs-api/dissect",
    "verbs-api/abi",
    "verbs-api/peer",
    "verbs-api/capi",
    "verbs-api/preload",
    "verbs-api/bundle",
    "verbs-api/drill",
    "verbs-api/cli",
    "tests/models",
    "tests",
    "fuzz",
];
/// Those of [`ORDER`] that are no product.
pub(crate) const TEST_PACKAGES: &[&str] = &["tests/models", "tests", "fuzz"];
/// Columns of a line that is a comment.
const COMMENT_COLUMNS: usize = 100;

fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn packages_depend_only_on_those_before_them() {
    assert_none(&layers::findings(&Tree::of_the_workspace(), ORDER));
}

#[test]
fn the_files_of_a_package_do_not_import_each_other_in_circles() {
    assert_none(&circles::findings(&Tree::of_the_workspace()));
}

#[test]
fn packages_read_no_file_outside_of_their_folder() {
    assert_none(&packed::findings(&Tree::of_the_workspace()));
}

#[test]
fn comments_fit_and_every_module_begins_with_its_description() {
    assert_none(&text::findings(&Tree::of_the_workspace(), COMMENT_COLUMNS));
}
