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
            target.file(files, &root, &Path::new(folder).join("src"), "");
            findings.extend(target.cycles(folder));
        }
    }
    findings
}

/// A library or program. Modules and items are identified by their paths (`::module::Item`); the
/// path of the root is empty.
#[derive(Default)]
struct Target {
    files: Vec<PathBuf>,
    /// Index in `files` of each module's file.
    modules: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// Path that each name stands for, by the path of the name.
    imports: BTreeMap<String, String>,
    /// Modules with the paths of their glob imports.
    globs: Vec<(String, String)>,
    /// Modules with the paths that they import or name, and the line.
    uses: Vec<(String, String, usize)>,
}

impl Target {
    /// Reads the file of `module`. Files of modules that it declares are in `folder`.
    fn file(&mut self, texts: &Files, path: &Path, folder: &Path, module: &str) {
        let text = texts.get(path).unwrap_or_else(|| panic!("there is no {}", path.display()));
        self.modules.insert(module.to_owned(), self.files.len());
        self.files.push(path.to_owned());
        let tokens = text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.read(texts, tokens, folder, module, true);
    }

    /// Records the definitions, imports and uses in `tokens`, without those that only test builds
    /// have. Items belong to `module` if `has_items`.
    fn read(&mut self, texts: &Files, tokens: TokenStream, folder: &Path, module: &str, has_items: bool) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let word = |at: usize| match tokens.get(at) {
            Some(TokenTree::Ident(word)) => Some(word.to_string()),
            _ => None,
        };
        let mark = |at: usize| match tokens.get(at) {
            Some(TokenTree::Punct(mark)) => mark.as_char(),
            _ => ' ',
        };
        let group = |at: usize, delimiter| match tokens.get(at) {
            Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group.stream()),
            _ => None,
        };
        let end_of = |from: usize, ends: &[char], ends_with_brace: bool| {
            let is_end =
                |at: usize| ends.contains(&mark(at)) || (ends_with_brace && group(at, Delimiter::Brace).is_some());
            (from..tokens.len()).find(|at| is_end(*at)).unwrap_or(tokens.len())
        };
        let mut next = 0;
        while let Some(token) = tokens.get(next) {
            let at = next;
            next += 1;
            let before = |back: usize| at.checked_sub(back).map_or(' ', mark);
            let first = match token {
                TokenTree::Punct(sign) if sign.as_char() == '#' => {
                    next += usize::from(mark(next) == '!');
                    let attribute = group(next, Delimiter::Bracket).unwrap_or_default().to_string().replace(' ', "");
                    next += 1;
                    if attribute == "test" || attribute == "cfg(test)" || attribute.starts_with("cfg(all(test,") {
                        next = end_of(next, &[';', ','], true) + 1;
                    }
                    continue;
                }
                TokenTree::Group(group) => {
                    let is_extern = at > 1 && word(at - 2).is_some_and(|word| word == "extern");
                    self.read(texts, group.stream(), folder, module, has_items && is_extern);
                    continue;
                }
                TokenTree::Ident(first) => first,
                _ => continue,
            };
            let line = first.span().start().line;
            match first.to_string().as_str() {
                "use" if mark(next) != '<' => {
                    let scope = at.saturating_sub(1);
                    let is_reexport =
                        word(scope).is_some_and(|word| word == "pub") || group(scope, Delimiter::Parenthesis).is_some();
                    next = end_of(next, &[';'], false);
                    for (name, path) in imported(&tokens[at + 1..next], "") {
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
                        self.read(texts, tokens, &below, &child, true);
                    } else {
                        let flat = below.with_extension("rs");
                        let path = if texts.contains_key(&flat) { flat } else { below.join("mod.rs") };
                        self.file(texts, &path, &below, &child);
                    }
                    next += 2;
                }
                "const" if matches!(word(next).as_deref(), Some("fn" | "unsafe")) => {}
                "fn" | "struct" | "enum" | "trait" | "const" | "static" | "type" | "union" | "macro_rules" => {
                    next += usize::from(mark(next) == '!');
                    if let (true, Some(name)) = (has_items, word(next)) {
                        self.items.insert(format!("{module}::{name}"));
                        next += 1;
                    }
                }
                name => {
                    let mut path = name.to_owned();
                    while let (':', ':', Some(part)) = (mark(next), mark(next + 1), word(next + 2)) {
                        path = format!("{path}::{part}");
                        next += 3;
                    }
                    // A path after a type or `$name` is not a name of this module.
                    let is_other = before(1) == ':' && before(2) == ':' || before(1) == '$' && name != "crate";
                    if path != name && !is_other {
                        self.uses.push((module.to_owned(), path, line));
                    }
                }
            }
        }
    }

    /// Returns the file that defines `path` in `module`; none for a module alone and outside of the
    /// target. If `is_sure`, a name without a definition in this file comes from a macro of the
    /// path's last module. Re-exports are followed at most `depth` levels.
    fn find(&self, module: &str, path: &str, is_sure: bool, depth: usize) -> Option<usize> {
        let (mut inside, mut rest) = (module.to_owned(), path);
        while !rest.is_empty() && depth > 0 {
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
                        return self.find(&inside, path.trim_end_matches(':'), is_sure, depth - 1);
                    }
                    let globs = self.globs.iter().filter(|(module, _)| *module == inside);
                    let mut found =
                        globs.map(|(_, glob)| self.find(&inside, &format!("{glob}::{rest}"), false, depth - 1));
                    let home = (is_sure && rest != path).then(|| self.modules[&inside]);
                    return found.find_map(|file| file).or(home);
                }
            }
            rest = after;
        }
        None
    }

    /// Returns a finding for each group of files that use each other, directly or through others.
    fn cycles(&self, folder: &str) -> Vec<String> {
        let mut file_uses = BTreeMap::new();
        for (module, path, line) in &self.uses {
            let from = self.modules[module];
            if let Some(to) = self.find(module, path, true, 9).filter(|to| *to != from) {
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
            let arrows = file_uses.iter().filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to));
            let arrow = |((from, to), (line, path)): (&(_, _), &_)| {
                format!("\n    {}:{line} -> {}: {path}", name(*from), name(*to))
            };
            format!("{folder}: {} files import each other:{}", cycle.len(), arrows.map(arrow).collect::<String>())
        };
        cycles.iter().filter(|cycle| !cycle.is_empty()).map(describe).collect()
    }
}

/// Returns the names that the `tokens` of a `use` import, with their paths, which begin with
/// `before`.
fn imported(tokens: &[TokenTree], before: &str) -> Vec<(String, String)> {
    let trees = tokens.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ','));
    let names = |tree: &[TokenTree]| {
        let (mut path, mut alias) = (before.to_owned(), None);
        for token in tree {
            match (token.to_string().as_str(), token) {
                (_, TokenTree::Group(group)) => {
                    return imported(&group.stream().into_iter().collect::<Vec<_>>(), &path);
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
