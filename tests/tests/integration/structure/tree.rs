//! The files of a workspace, real or made up, and its packages. Touches files to read them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use toml_edit::{Document, Table};

/// Texts by their path from the root of the workspace.
pub(crate) struct Tree(BTreeMap<PathBuf, String>);

/// One member of the workspace.
pub(crate) struct Package {
    /// From the root of the workspace.
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Document<String>,
}

/// Endings of the files that are read.
const ENDINGS: [&str; 5] = ["rs", "toml", "c", "h", "sh"];

impl Tree {
    /// Every source, manifest and script of this workspace.
    pub(crate) fn of_the_workspace() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace");
        let mut files = BTreeMap::new();
        read(&root, &root, &mut files);
        Self(files)
    }

    /// A workspace that is only these texts by their paths.
    pub(crate) fn made_up(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect())
    }

    pub(crate) fn text(&self, path: &Path) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.0.iter().map(|(path, text)| (path.as_path(), text.as_str()))
    }

    fn manifest(&self, folder: &Path) -> Document<String> {
        let path = folder.join("Cargo.toml");
        let text = self.text(&path).unwrap_or_else(|| panic!("there is no {}", path.display()));
        Document::parse(text.to_owned()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The members of the workspace.
    pub(crate) fn packages(&self) -> Vec<Package> {
        let root = self.manifest(Path::new(""));
        let members = root["workspace"]["members"].as_array().expect("the workspace lists its members");
        let folders = members.iter().map(|member| PathBuf::from(member.as_str().expect("a folder")));
        folders.map(|folder| Package { manifest: self.manifest(&folder), folder }).collect()
    }

    /// The packages that are not only for tests.
    pub(crate) fn products(&self) -> impl Iterator<Item = Package> {
        let is_product =
            |package: &Package| !super::TEST_PACKAGES.contains(&package.folder.to_str().unwrap_or_default());
        self.packages().into_iter().filter(is_product)
    }
}

/// Puts the files below `folder` in `files`, by their paths from `root`. What is hidden or built is
/// no source.
fn read(root: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_symlink() || name.starts_with('.') || name == "target" || name == "shared" {
            continue;
        }
        if path.is_dir() {
            read(root, &path, files);
        } else if let Some(text) = source(&path) {
            files.insert(path.strip_prefix(root).expect("a file below the root").to_owned(), text);
        }
    }
}

/// The text of a file that somebody wrote: one with a known ending, or a script, which has none.
fn source(path: &Path) -> Option<String> {
    match path.extension() {
        Some(ending) => {
            ENDINGS.iter().any(|known| ending == *known).then(|| fs::read_to_string(path).expect("a source"))
        }
        None => fs::read_to_string(path).ok().filter(|text| text.starts_with("#!")),
    }
}

impl Package {
    /// The manifest's own name for the package.
    pub(crate) fn name(&self) -> &str {
        self.manifest["package"]["name"].as_str().expect("a package has a name")
    }

    /// The names of all packages that it depends on, for whatever purpose and target.
    pub(crate) fn dependencies(&self) -> Vec<&str> {
        let mut names = dependencies(self.manifest.as_table());
        let targets = self.manifest.get("target").and_then(|item| item.as_table_like());
        for (_, target) in targets.into_iter().flat_map(|targets| targets.iter()) {
            names.extend(target.as_table().map(dependencies).unwrap_or_default());
        }
        names
    }

    /// The first files of its library and programs, from the root of the workspace.
    pub(crate) fn roots(&self, tree: &Tree) -> Vec<PathBuf> {
        let own = |path: &str| self.folder.join(path);
        let lib = self.manifest.get("lib").and_then(|lib| lib.get("path")?.as_str());
        let programs = self.manifest.get("bin").and_then(|item| item.as_array_of_tables());
        let mut roots = vec![own(lib.unwrap_or("src/lib.rs")), own("src/main.rs")];
        roots.extend(programs.into_iter().flatten().filter_map(|program| Some(own(program.get("path")?.as_str()?))));
        roots.extend(
            tree.files().map(|(path, _)| path.to_owned()).filter(|path| path.parent() == Some(&own("src/bin"))),
        );
        roots.retain(|path| tree.text(path).is_some());
        roots.sort();
        roots.dedup();
        roots
    }
}

/// The packages in the tables of dependencies that `table` has itself.
fn dependencies(table: &Table) -> Vec<&str> {
    let tables = ["dependencies", "dev-dependencies", "build-dependencies"].iter().filter_map(|name| table.get(name));
    let entries = tables.filter_map(|item| item.as_table_like()).flat_map(|table| table.iter());
    // A dependency may go by another name than its package has.
    entries.map(|(key, item)| item.get("package").and_then(|name| name.as_str()).unwrap_or(key)).collect()
}
