//! The modules of one target as the compiler would find them, without what only tests see.

use super::tree::Tree;
use std::path::{Path, PathBuf};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Block, Expr, ExprMatch, FieldsNamed, File, ImplItem, Item, ItemImpl, ItemMod, ItemTrait, Lit, Local,
};
use syn::{Meta, Stmt, Token, TraitItem, punctuated::Punctuated};

/// A file of a target, parsed, without what is for tests.
pub(crate) struct Source {
    /// From the root of the workspace.
    pub(crate) path: PathBuf,
    /// Names from the root of the target.
    pub(crate) module: Vec<String>,
    pub(crate) syntax: File,
}

/// The files that belong to the target with this root.
pub(crate) fn sources(tree: &Tree, root: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    add(tree, root, folder(root), Vec::new(), &mut sources);
    sources
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new(""))
}

/// Adds the file at `path`, whose modules lie in `folder`, and what it declares.
fn add(tree: &Tree, path: &Path, folder: &Path, module: Vec<String>, sources: &mut Vec<Source>) {
    let text = tree.text(path).unwrap_or_else(|| panic!("there is no {}", path.display()));
    let mut syntax = syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if syntax.attrs.iter().any(is_for_tests) {
        return;
    }
    Product.visit_file_mut(&mut syntax);
    let declared = declared(&syntax.items, &[]);
    sources.push(Source { path: path.to_owned(), module: module.clone(), syntax });
    for (names, elsewhere) in declared {
        let below: PathBuf = names.iter().collect();
        let (flat, nested) = (folder.join(&below).with_extension("rs"), folder.join(&below).join("mod.rs"));
        let elsewhere = elsewhere.map(|name| self::folder(path).join(name));
        let file = elsewhere.unwrap_or_else(|| if tree.text(&flat).is_some() { flat } else { nested });
        add(tree, &file, &folder.join(below), [module.clone(), names].concat(), sources);
    }
}

/// Modules that are files of their own, by their names from here, and the path that they say they
/// have.
fn declared(items: &[Item], inside: &[String]) -> Vec<(Vec<String>, Option<String>)> {
    let mut found = Vec::new();
    for item in items {
        let Item::Mod(module) = item else { continue };
        let names = [inside, &[module.ident.to_string()]].concat();
        match &module.content {
            Some((_, items)) => found.extend(declared(items, &names)),
            None => found.push((names, module.attrs.iter().find_map(path_attribute))),
        }
    }
    found
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(literal) = &pair.value else { return None };
    let Lit::Str(path) = &literal.lit else { return None };
    pair.path.is_ident("path").then(|| path.value())
}

/// Takes away what only a build for tests has.
struct Product;

/// Returns true if what has these attributes is in the product.
fn keeps(attributes: &[Attribute]) -> bool {
    !attributes.iter().any(is_for_tests)
}

impl VisitMut for Product {
    fn visit_file_mut(&mut self, file: &mut File) {
        file.items.retain(|item| keeps(attributes(item)));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| keeps(attributes(item)));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut ItemImpl) {
        block.items.retain(|item| {
            let attributes: &[Attribute] = match item {
                ImplItem::Const(item) => &item.attrs,
                ImplItem::Fn(item) => &item.attrs,
                ImplItem::Type(item) => &item.attrs,
                ImplItem::Macro(item) => &item.attrs,
                _ => &[],
            };
            keeps(attributes)
        });
        visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_item_trait_mut(&mut self, block: &mut ItemTrait) {
        block.items.retain(|item| {
            let attributes: &[Attribute] = match item {
                TraitItem::Const(item) => &item.attrs,
                TraitItem::Fn(item) => &item.attrs,
                TraitItem::Type(item) => &item.attrs,
                TraitItem::Macro(item) => &item.attrs,
                _ => &[],
            };
            keeps(attributes)
        });
        visit_mut::visit_item_trait_mut(self, block);
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        block.stmts.retain(|statement| {
            let attributes: &[Attribute] = match statement {
                Stmt::Local(Local { attrs, .. }) => attrs,
                Stmt::Item(item) => attributes(item),
                Stmt::Macro(item) => &item.attrs,
                Stmt::Expr(Expr::Block(block), _) => &block.attrs,
                Stmt::Expr(Expr::Call(call), _) => &call.attrs,
                Stmt::Expr(Expr::MethodCall(call), _) => &call.attrs,
                Stmt::Expr(..) => &[],
            };
            keeps(attributes)
        });
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_expr_match_mut(&mut self, choice: &mut ExprMatch) {
        choice.arms.retain(|arm| keeps(&arm.attrs));
        visit_mut::visit_expr_match_mut(self, choice);
    }

    fn visit_fields_named_mut(&mut self, fields: &mut FieldsNamed) {
        let own = std::mem::take(&mut fields.named);
        fields.named = own.into_iter().filter(|field| keeps(&field.attrs)).collect();
        visit_mut::visit_fields_named_mut(self, fields);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an attribute takes its item out of every build that is not for tests.
fn is_for_tests(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|condition| needs_test(&condition))
        }
        _ => false,
    }
}

/// Whether a condition holds in no build but one for tests.
fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default();
            let mut parts = parts.iter().map(needs_test);
            let is_any = list.path.is_ident("any") && parts.len() > 0;
            (list.path.is_ident("all") && parts.any(|needs| needs)) || (is_any && parts.all(|needs| needs))
        }
        Meta::NameValue(_) => false,
    }
}
