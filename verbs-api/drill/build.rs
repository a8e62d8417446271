//! Lists the scripts in `conform` for `src/conform.rs`, which embeds them. The folder is a link to
//! `tests/conform`, because Cargo packages no file outside the crate's folder.

use std::path::PathBuf;
use std::{env, fs, io};

const FOLDER: &str = "conform";

fn main() -> io::Result<()> {
    let root = fs::canonicalize(FOLDER)?;
    println!("cargo::rerun-if-changed={}", root.display());
    let (mut scripts, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "drill") {
                let name = path.strip_prefix(&root).unwrap_or(&path).with_extension("");
                scripts.push(format!("({name:?}, include_str!({path:?})),\n"));
            }
        }
    }
    scripts.sort_unstable();
    let list = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("cases.rs");
    fs::write(list, format!("&[\n{}]\n", scripts.concat()))
}
