//! Comments: how wide they are, and that every module of Rust begins with one.

use super::tree::Tree;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::path::Path;

/// Comments with more than `columns`, and modules without a description at their top.
pub(crate) fn findings(tree: &Tree, columns: usize) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        let name = path.display();
        let is_rust = path.extension().is_some_and(|ending| ending == "rs");
        if is_rust && !text.starts_with("//!") {
            findings.push(format!("{name} does not begin with //! and what lives there"));
        }
        let quoted = if is_rust { lines_in_strings(path, text) } else { BTreeSet::new() };
        for (number, line) in (1..).zip(text.lines()).filter(|(number, _)| !quoted.contains(number)) {
            let width = line.chars().count();
            if width > columns && is_comment(path, line.trim_start()) {
                findings.push(format!("{name}:{number}: a comment of {width} columns"));
            }
        }
    }
    println!("{} files", tree.files().count());
    findings
}

/// Whether a line that begins like this is a comment in a file of this name.
fn is_comment(path: &Path, line: &str) -> bool {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("rs" | "c" | "h") => ["//", "/*", "* "].iter().any(|begin| line.starts_with(begin)),
        _ => line.starts_with('#'),
    }
}

/// The lines of Rust, after the first, that a string goes on in.
fn lines_in_strings(path: &Path, text: &str) -> BTreeSet<usize> {
    fn collect(tokens: TokenStream, lines: &[&str], inside: &mut BTreeSet<usize>) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => collect(group.stream(), lines, inside),
                TokenTree::Literal(literal) => {
                    let (begin, end) = (literal.span().start(), literal.span().end());
                    // A comment that documents something is a literal to the parser.
                    let line = lines.get(begin.line - 1).copied().unwrap_or_default();
                    if !line.chars().skip(begin.column).collect::<String>().starts_with('/') {
                        inside.extend(begin.line + 1..=end.line);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
    let tokens: TokenStream = text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut inside = BTreeSet::new();
    collect(tokens, &text.lines().collect::<Vec<_>>(), &mut inside);
    inside
}
