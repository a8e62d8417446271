//! What a published package is built from: only files of its own folder, as Cargo packs no others.

use super::tree::Tree;
use std::path::{Component, Path};

/// Build scripts and sources of products that read a file outside of the folder of their package.
pub(crate) fn findings(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for package in tree.products() {
        for (path, text) in tree.files().filter(|(path, _)| path.starts_with(&package.folder)) {
            let inside = path.strip_prefix(&package.folder).unwrap_or(path);
            let is_script = inside == Path::new("build.rs");
            let is_test = path.components().any(|part| part == Component::Normal("tests".as_ref()));
            if !is_script && (!inside.starts_with("src") || is_test || path.ends_with("tests.rs")) {
                continue;
            }
            let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
            // A script runs in the folder of its package, a macro reads from that of its file.
            let depth = if is_script { 0 } else { inside.components().count() - 1 };
            let read = product.split('"').skip(1).step_by(2).filter(|literal| literal.starts_with("../"));
            let outside = read.filter(|literal| literal.split('/').take_while(|part| *part == "..").count() > depth);
            findings.extend(outside.map(|literal| format!("{} reads {literal}, which is not packed", path.display())));
        }
    }
    findings
}
