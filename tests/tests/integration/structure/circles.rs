//! Which file of a package uses which, and where that goes round in a circle.
//!
//! A file uses another if it imports something that is defined there, or names it by a path. A
//! re-export is no use: whoever imports a name from it uses the file where the name is defined.

use super::modules::{self, Source};
use super::tree::Tree;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, ForeignItem, Item, ItemMod, ItemUse, Macro, UseTree, VisRestricted, Visibility};

/// Every circle, with its arrows, of every package of the product.
pub(crate) fn findings(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for package in tree.products() {
        for root in package.roots(tree) {
            let sources = modules::sources(tree, &root);
            let arrows = arrows(&sources);
            let circles = circles(sources.len(), &arrows);
            println!("{}: {} files, {} arrows, {} circles", root.display(), sources.len(), arrows.len(), circles.len());
            findings.extend(circles.iter().map(|circle| describe(&package.folder, &sources, &arrows, circle)));
        }
    }
    findings
}

/// From one source to another, by their places: the first line that says so, and the path there.
type Arrows = BTreeMap<(usize, usize), (usize, String)>;

/// The sources that reach each other by arrows; each such group is one circle, or several that
/// share a source.
fn circles(sources: usize, arrows: &Arrows) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..sources).map(|from| reached(from, arrows)).collect();
    let mut circles: Vec<Vec<usize>> = Vec::new();
    for from in (0..sources).filter(|from| reached[*from].contains(from)) {
        if !circles.iter().flatten().any(|known| *known == from) {
            circles
                .push((0..sources).filter(|to| reached[from].contains(to) && reached[*to].contains(&from)).collect());
        }
    }
    circles
}

/// What `from` reaches by one arrow or several.
fn reached(from: usize, arrows: &Arrows) -> BTreeSet<usize> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(from) = next.pop() {
        next.extend(
            arrows.range((from, 0)..=(from, usize::MAX)).map(|((_, to), _)| *to).filter(|to| reached.insert(*to)),
        );
    }
    reached
}

fn describe(folder: &Path, sources: &[Source], arrows: &Arrows, circle: &[usize]) -> String {
    let name = |place: usize| sources[place].path.strip_prefix(folder).unwrap_or(&sources[place].path).display();
    let mut text = format!("{}: {} files import each other:", folder.display(), circle.len());
    for ((from, to), (line, path)) in arrows {
        if circle.contains(from) && circle.contains(to) {
            let _ = write!(text, "\n    {}:{line} -> {}: {path}", name(*from), name(*to));
        }
    }
    text
}

fn arrows(sources: &[Source]) -> Arrows {
    let mut names = Names::default();
    for (place, source) in sources.iter().enumerate() {
        let module = names.module(&source.module);
        let mut reader = Reader { names: &mut names, module, file: place };
        reader.names.modules[module].file = place;
        reader.items(&source.syntax.items);
        reader.visit_file(&source.syntax);
    }
    let mut arrows = Arrows::new();
    for (place, module) in names.modules.iter().enumerate() {
        let imports = module.uses.iter().filter(|import| !import.is_reexport).map(|import| (&import.path, import.line));
        for (path, line) in imports.chain(module.mentions.iter().map(|(path, line)| (path, *line))) {
            // Who names a module alone has used nothing in it.
            let Some(Found::Item(other)) = names.find(place, path, &mut BTreeSet::new()) else { continue };
            let (from, to) = (module.file, names.modules[other].file);
            if from != to {
                let entry = arrows.entry((from, to)).or_insert_with(|| (line, path.join("::")));
                *entry = entry.clone().min((line, path.join("::")));
            }
        }
    }
    arrows
}

/// The modules of a target and the names in them.
#[derive(Default)]
struct Names {
    modules: Vec<Module>,
    /// Macros that paths find in the root, and the modules that define them.
    exported: BTreeMap<String, usize>,
}

#[derive(Default)]
struct Module {
    file: usize,
    parent: usize,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    uses: Vec<Import>,
    /// Paths in its code, with their lines.
    mentions: Vec<(Vec<String>, usize)>,
}

/// One name, or all names (`*`), that a `use` brings into a module.
struct Import {
    name: String,
    path: Vec<String>,
    line: usize,
    is_reexport: bool,
}

/// What a path leads to.
#[derive(Clone, Copy)]
enum Found {
    Module(usize),
    /// Something that is defined in this module.
    Item(usize),
}

impl Names {
    /// The module with these names from the root, which comes to be if it is not there.
    fn module(&mut self, names: &[String]) -> usize {
        if self.modules.is_empty() {
            self.modules.push(Module::default());
        }
        names.iter().fold(0, |parent, name| self.child(parent, name))
    }

    fn child(&mut self, parent: usize, name: &str) -> usize {
        if let Some(child) = self.modules[parent].children.get(name) {
            return *child;
        }
        let child = self.modules.len();
        self.modules.push(Module { parent, file: self.modules[parent].file, ..Module::default() });
        self.modules[parent].children.insert(name.to_owned(), child);
        child
    }

    /// What `path` means in `module`; nothing if it leads out of the target. `seen` are the names
    /// that are being looked for.
    fn find(&self, module: usize, path: &[String], seen: &mut BTreeSet<(usize, String)>) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Found::Module(0),
            "self" => Found::Module(module),
            "super" => Found::Module(self.modules[module].parent),
            name => self.look_up(module, name, seen)?,
        };
        for name in rest {
            let Found::Module(inside) = found else { break };
            found = match name.as_str() {
                "self" => found,
                "super" => Found::Module(self.modules[inside].parent),
                // A name that nothing here defines comes from a macro.
                name => self.look_up(inside, name, seen).unwrap_or(Found::Item(inside)),
            };
        }
        Some(found)
    }

    fn look_up(&self, module: usize, name: &str, seen: &mut BTreeSet<(usize, String)>) -> Option<Found> {
        let own = &self.modules[module];
        if let Some(child) = own.children.get(name) {
            return Some(Found::Module(*child));
        }
        if own.items.contains(name) {
            return Some(Found::Item(module));
        }
        if let (0, Some(home)) = (module, self.exported.get(name)) {
            return Some(Found::Item(*home));
        }
        if !seen.insert((module, name.to_owned())) {
            return None;
        }
        let found =
            own.uses.iter().find(|import| import.name == name).map(|import| self.find(module, &import.path, seen));
        found.flatten().or_else(|| {
            own.uses.iter().filter(|import| import.name == "*").find_map(|import| {
                let Found::Module(from) = self.find(module, &import.path, seen)? else { return None };
                self.look_up(from, name, seen)
            })
        })
    }
}

/// Reads what a file defines, imports and mentions.
struct Reader<'a> {
    names: &'a mut Names,
    module: usize,
    file: usize,
}

impl Reader<'_> {
    fn own(&mut self) -> &mut Module {
        &mut self.names.modules[self.module]
    }

    /// Notes the names that these items define in this module.
    fn items(&mut self, items: &[Item]) {
        for item in items {
            let name = match item {
                Item::Const(item) => &item.ident,
                Item::Enum(item) => &item.ident,
                Item::Fn(item) => &item.sig.ident,
                Item::Static(item) => &item.ident,
                Item::Struct(item) => &item.ident,
                Item::Trait(item) => &item.ident,
                Item::TraitAlias(item) => &item.ident,
                Item::Type(item) => &item.ident,
                Item::Union(item) => &item.ident,
                Item::Macro(item) => {
                    let Some(name) = &item.ident else { continue };
                    if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
                        self.names.exported.insert(name.to_string(), self.module);
                    }
                    name
                }
                Item::ForeignMod(block) => {
                    let names = block.items.iter().filter_map(|item| match item {
                        ForeignItem::Fn(item) => Some(item.sig.ident.to_string()),
                        ForeignItem::Static(item) => Some(item.ident.to_string()),
                        _ => None,
                    });
                    self.own().items.extend(names.collect::<Vec<_>>());
                    continue;
                }
                _ => continue,
            };
            let name = name.to_string();
            self.own().items.insert(name);
        }
    }

    fn import(&mut self, tree: &UseTree, path: &[String], is_reexport: bool) {
        let mut add = |name: String, last: Option<String>, line| {
            let path = path.iter().cloned().chain(last).collect();
            self.own().uses.push(Import { name, path, line, is_reexport });
        };
        match tree {
            UseTree::Path(part) => self.import(&part.tree, &[path, &[part.ident.to_string()]].concat(), is_reexport),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, path, is_reexport)),
            UseTree::Glob(star) => add("*".into(), None, star.star_token.span.start().line),
            UseTree::Name(name) if name.ident == "self" => {
                add(path.last().cloned().unwrap_or_default(), None, name.ident.span().start().line);
            }
            UseTree::Name(name) => {
                let own = name.ident.to_string();
                add(own.clone(), Some(own), name.ident.span().start().line);
            }
            UseTree::Rename(name) => {
                let last = Some(name.ident.to_string()).filter(|name| name != "self");
                add(name.rename.to_string(), last, name.ident.span().start().line);
            }
        }
    }

    /// Finds paths in what a macro is given, or stands for.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        // The path that is being read, and its line; whether what comes next goes on with it.
        let (mut path, mut line, mut goes_on) = (Vec::new(), 0, false);
        let mut last = ' ';
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(name) if goes_on => {
                    path.push(name.to_string());
                    goes_on = false;
                }
                TokenTree::Ident(name) => {
                    self.mention(&mut path, line);
                    // A field, a method, or what a macro puts in the place of `$name`, is no name
                    // of this module.
                    if (last != '.' && last != '$') || name == "crate" {
                        line = name.span().start().line;
                        path.push(name.to_string());
                    }
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() && !goes_on => {
                    goes_on = matches!(tokens.peek(), Some(TokenTree::Punct(mark)) if mark.as_char() == ':');
                    if goes_on {
                        tokens.next();
                    } else {
                        // A field or a type that follows: the name before it is neither.
                        path.clear();
                    }
                }
                TokenTree::Group(group) => {
                    self.mention(&mut path, line);
                    goes_on = false;
                    self.tokens(group.stream());
                }
                TokenTree::Punct(mark) => {
                    self.mention(&mut path, line);
                    goes_on = false;
                    last = mark.as_char();
                    continue;
                }
                TokenTree::Literal(_) => {}
            }
            last = ' ';
        }
        self.mention(&mut path, line);
    }

    fn mention(&mut self, path: &mut Vec<String>, line: usize) {
        if !path.is_empty() {
            self.own().mentions.push((std::mem::take(path), line));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let child = self.names.child(self.module, &module.ident.to_string());
        if let Some((_, items)) = &module.content {
            let outside = std::mem::replace(&mut self.module, child);
            self.own().file = self.file;
            self.items(items);
            visit::visit_item_mod(self, module);
            self.module = outside;
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let (None, Some(first)) = (&path.leading_colon, path.segments.first()) {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.own().mentions.push((names, first.ident.span().start().line));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }

    // Neither says what the code uses.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}
