//! How long the files and functions of the product are.

use crate::modules::{self, Source};
use crate::tree::Tree;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

/// Files of the product with more lines than `file`, not counting tests, and functions with more
/// than `function`.
pub(crate) fn findings(tree: &Tree, file: usize, function: usize) -> Vec<String> {
    let roots = tree.products().flat_map(|package| package.roots(tree)).collect::<Vec<_>>();
    let sources: Vec<Source> = roots.iter().flat_map(|root| modules::sources(tree, root)).collect();
    let (mut findings, mut count) = (Vec::new(), 0);
    for source in &sources {
        let (name, mut functions) = (source.path.display(), Functions::default());
        functions.visit_file(&source.syntax);
        // A file without functions is a table: it is looked up in, not read.
        if source.lines > file && !functions.0.is_empty() {
            findings.push(format!("{name}: {} lines", source.lines));
        }
        count += functions.0.len();
        for (line, function_name, lines) in functions.0.into_iter().filter(|(.., lines)| *lines > function) {
            findings.push(format!("{name}:{line}: {function_name} has {lines} lines"));
        }
    }
    println!("{} files, {count} functions", sources.len());
    findings
}

/// Where each function begins, its name and its lines.
#[derive(Default)]
struct Functions(Vec<(usize, String, usize)>);

impl Functions {
    fn add(&mut self, signature: &Signature, block: &Block) {
        let (begin, end) = (signature.span().start().line, block.span().end().line);
        self.0.push((begin, signature.ident.to_string(), end - begin + 1));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}
