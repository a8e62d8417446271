//! Finds import cycles between the files of a package.
//!
//! A file uses another if it imports something that is defined there, or uses it by its path. A
//! re-export is not a use: an import of its name uses the file where the name is defined.

use super::Files;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Returns the import cycles of the package in `folder`, each with the lines that close it.
pub(super) fn findings(files: &Files, folder: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for root in ["src/lib.rs", "src/main.rs"].map(|root| Path::new(folder).join(root)) {
        if files.contains_key(&root) {
            let mut target = Target::default();
            target.read_file(files, &root, &Path::new(folder).join("src"), "");
            findings.extend(target.cycles(folder));
        }
    }
    findings
}

/// Maximum number of re-exports between a use and the definition.
const MAX_REEXPORTS: usize = 9;

/// A library or program. Modules and items are identified by their paths (`::module::Item`); the
/// path of the root is empty.
#[derive(Default)]
struct Target {
    files: Vec<PathBuf>,
    /// Index in `files` of each module's file.
    modules: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// Imported path by the path of the name that stands for it in its module.
    imports: BTreeMap<String, String>,
    /// Pairs of a module and a path whose items it imports by `*`.
    globs: Vec<(String, String)>,
    /// Each use: the module, the path that it imports or names, and the line.
    uses: Vec<(String, String, usize)>,
}

impl Target {
    /// Reads the file of `module` and those of the modules that it declares, which are in `folder`.
    fn read_file(&mut self, texts: &Files, path: &Path, folder: &Path, module: &str) {
        let text = texts.get(path).unwrap_or_else(|| panic!("there is no {}", path.display()));
        self.modules.insert(module.to_owned(), self.files.len());
        self.files.push(path.to_owned());
        let tokens = text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.read_tokens(texts, tokens, folder, module, true);
    }

    /// Records the definitions, imports and uses in `tokens`, except those that only test builds
    /// have. Records definitions only if `has_items`: those inside a function are no items of
    /// `module`.
    fn read_tokens(&mut self, texts: &Files, tokens: TokenStream, folder: &Path, module: &str, has_items: bool) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let word = |at: usize| match tokens.get(at) {
            Some(TokenTree::Ident(word)) => Some(word.to_string()),
            _ => None,
        };
        let punct = |at: usize| match tokens.get(at) {
            Some(TokenTree::Punct(mark)) => mark.as_char(),
            _ => ' ',
        };
        let group = |at: usize, delimiter| match tokens.get(at) {
            Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group.stream()),
            _ => None,
        };
        let find_end = |from: usize, ends: &[char], ends_with_brace: bool| {
            let is_end =
                |at: usize| ends.contains(&punct(at)) || (ends_with_brace && group(at, Delimiter::Brace).is_some());
            (from..tokens.len()).find(|at| is_end(*at)).unwrap_or(tokens.len())
        };
        let mut next = 0;
        while let Some(token) = tokens.get(next) {
            let at = next;
            next += 1;
            let punct_before = |back: usize| at.checked_sub(back).map_or(' ', punct);
            let first = match token {
                TokenTree::Punct(sign) if sign.as_char() == '#' => {
                    next += usize::from(punct(next) == '!');
                    let attribute = group(next, Delimiter::Bracket).unwrap_or_default().to_string().replace(' ', "");
                    next += 1;
                    if attribute == "test" || attribute == "cfg(test)" || attribute.starts_with("cfg(all(test,") {
                        next = find_end(next, &[';', ','], true) + 1;
                    }
                    continue;
                }
                TokenTree::Group(group) => {
                    let is_extern = at > 1 && word(at - 2).is_some_and(|word| word == "extern");
                    self.read_tokens(texts, group.stream(), folder, module, has_items && is_extern);
                    continue;
                }
                TokenTree::Ident(first) => first,
                _ => continue,
            };
            let line = first.span().start().line;
            match first.to_string().as_str() {
                "use" if punct(next) != '<' => {
                    let scope = at.saturating_sub(1);
                    let is_reexport =
                        word(scope).is_some_and(|word| word == "pub") || group(scope, Delimiter::Parenthesis).is_some();
                    next = find_end(next, &[';'], false);
                    for (name, path) in imported_names(&tokens[at + 1..next], "") {
                        if !is_reexport {
                            self.uses.push((module.to_owned(), path.clone(), line));
                        }
                        match path.strip_suffix("::*") {
                            Some(inside) => self.globs.push((module.to_owned(), inside.to_owned())),
                            None => drop(self.imports.insert(format!("{module}::{name}"), path)),
                        }
                    }
                }
                "mod" => {
                    let name = word(next).expect("parse the name of the module");
                    let (child, below) = (format!("{module}::{name}"), folder.join(&name));
                    if let Some(tokens) = group(next + 1, Delimiter::Brace) {
                        self.modules.insert(child.clone(), self.modules[module]);
                        self.read_tokens(texts, tokens, &below, &child, true);
                    } else {
                        let flat = below.with_extension("rs");
                        let path = if texts.contains_key(&flat) { flat } else { below.join("mod.rs") };
                        self.read_file(texts, &path, &below, &child);
                    }
                    next += 2;
                }
                "const" if matches!(word(next).as_deref(), Some("fn" | "unsafe")) => {}
                "fn" | "struct" | "enum" | "trait" | "const" | "static" | "type" | "union" | "macro_rules" => {
                    next += usize::from(punct(next) == '!');
                    if let (true, Some(name)) = (has_items, word(next)) {
                        self.items.insert(format!("{module}::{name}"));
                        next += 1;
                    }
                }
                name => {
                    let mut path = name.to_owned();
                    while let (':', ':', Some(part)) = (punct(next), punct(next + 1), word(next + 2)) {
                        path = format!("{path}::{part}");
                        next += 3;
                    }
                    // A path after `Type::` or `$` does not begin with a name of this module.
                    let is_foreign =
                        punct_before(1) == ':' && punct_before(2) == ':' || punct_before(1) == '$' && name != "crate";
                    if path != name && !is_foreign {
                        self.uses.push((module.to_owned(), path, line));
                    }
                }
            }
        }
    }

    /// Returns the index of the file that defines the item which `path` names in `module`. Returns
    /// none for the path of a module and for a path outside the target.
    ///
    /// Follows re-exports through at most `max_levels` levels. If `allows_macros`, assumes that a
    /// macro in the last module of the path defines a name that is found nowhere else.
    fn defining_file(&self, module: &str, path: &str, allows_macros: bool, max_levels: usize) -> Option<usize> {
        let (mut inside, mut rest) = (module.to_owned(), path);
        while !rest.is_empty() && max_levels > 0 {
            let (name, after) = rest.split_once("::").unwrap_or((rest, ""));
            let full = format!("{inside}::{name}");
            match name {
                "crate" => inside.clear(),
                "self" => {}
                "*" => return Some(self.modules[&inside]),
                "super" => inside.truncate(inside.rfind("::")?),
                _ if self.modules.contains_key(&full) => inside = full,
                _ if self.items.contains(&full) => return Some(self.modules[&inside]),
                _ => {
                    if let Some(path) = self.imports.get(&full).filter(|path| *path != rest) {
                        let path = format!("{path}::{after}");
                        return self.defining_file(&inside, path.trim_end_matches(':'), allows_macros, max_levels - 1);
                    }
                    let globs = self.globs.iter().filter(|(module, _)| *module == inside);
                    let mut found = globs.map(|(_, glob)| {
                        self.defining_file(&inside, &format!("{glob}::{rest}"), false, max_levels - 1)
                    });
                    let by_macro = (allows_macros && rest != path).then(|| self.modules[&inside]);
                    return found.find_map(|file| file).or(by_macro);
                }
            }
            rest = after;
        }
        None
    }

    /// Returns a finding for each group of files that use each other, directly or through others.
    fn cycles(&self, folder: &str) -> Vec<String> {
        // The first use of each file by another, with its line and path.
        let mut file_uses = BTreeMap::new();
        for (module, path, line) in &self.uses {
            let from = self.modules[module];
            if let Some(to) = self.defining_file(module, path, true, MAX_REEXPORTS).filter(|to| *to != from) {
                file_uses.entry((from, to)).or_insert((*line, path));
            }
        }
        let mut reached: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.files.len()];
        for (from, reached) in reached.iter_mut().enumerate() {
            let mut next = vec![from];
            while let Some(from) = next.pop() {
                let direct = file_uses.range((from, 0)..=(from, usize::MAX)).map(|((_, to), _)| *to);
                next.extend(direct.filter(|to| reached.insert(*to)));
            }
        }
        let cycle = |file: usize| reached[file].iter().copied().filter(|to| reached[*to].contains(&file)).collect();
        let cycles: BTreeSet<Vec<usize>> = (0..reached.len()).map(cycle).collect();
        println!("{folder}: {} files, {} uses", self.files.len(), file_uses.len());
        let name = |file: usize| self.files[file].strip_prefix(folder).expect("find the file in its package").display();
        let describe = |cycle: &Vec<usize>| {
            let edges = file_uses.iter().filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to));
            let edge = |((from, to), (line, path)): (&(_, _), &_)| {
                format!("\n    {}:{line} -> {}: {path}", name(*from), name(*to))
            };
            format!("{folder}: {} files import each other:{}", cycle.len(), edges.map(edge).collect::<String>())
        };
        cycles.iter().filter(|cycle| !cycle.is_empty()).map(describe).collect()
    }
}

/// Returns the names that a `use` imports, each with its path. `tokens` follow the path `before`.
fn imported_names(tokens: &[TokenTree], before: &str) -> Vec<(String, String)> {
    let trees = tokens.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ','));
    let names = |tree: &[TokenTree]| {
        let (mut path, mut alias) = (before.to_owned(), None);
        for token in tree {
            match (token.to_string().as_str(), token) {
                (_, TokenTree::Group(group)) => {
                    return imported_names(&group.stream().into_iter().collect::<Vec<_>>(), &path);
                }
                ("as", _) => alias = Some(String::new()),
                ("*", _) => path.push_str("::*"),
                (word, TokenTree::Ident(_)) if alias.is_some() => alias = Some(word.to_owned()),
                (word, TokenTree::Ident(_)) if path.is_empty() => path = word.to_owned(),
                (word, TokenTree::Ident(_)) if word != "self" => path = format!("{path}::{word}"),
                _ => {}
            }
        }
        let name = alias.unwrap_or_else(|| path.rsplit("::").next().unwrap_or_default().to_owned());
        vec![(name, path)]
    };
    trees.filter(|tree| !tree.is_empty()).flat_map(names).collect()
}
