//! `shared_object!("libroxe.so")`: the bytes of a shared object that Cargo has just built, while
//! the program that carries it is compiled.
//!
//! Cargo cannot yet hand the artifact of one crate to another (its artifact dependencies are
//! unstable), and a build script runs too early: beside the crates that its own crate depends on,
//! not behind them. The compiler of the dependent crate runs behind them, and this macro runs in
//! it. So nothing is built twice. `include_bytes!` would do the same, but fails where there is no
//! object because nothing is linked (`cargo check`).
//!
//! Reads the arguments of the compiler and the folders that they name; writes nothing.
#![forbid(unsafe_code)]

mod strip;

use proc_macro::{Literal, TokenStream, TokenTree};
use std::path::PathBuf;

/// Expands to a byte string with the object of this file name, without what only debuggers read; to
/// an empty one where the compiler links nothing.
#[proc_macro]
pub fn shared_object(input: TokenStream) -> TokenStream {
    let name = input.to_string();
    match bytes(name.trim_matches('"'), &std::env::args().collect::<Vec<_>>()) {
        Ok(bytes) => TokenTree::from(Literal::byte_string(&bytes)).into(),
        Err(text) => format!("compile_error!({text:?})").parse().unwrap_or_default(),
    }
}

/// The object `name` as the compiler that was started with `args` can find it.
fn bytes(name: &str, args: &[String]) -> Result<Vec<u8>, String> {
    if !links(args) {
        return Ok(Vec::new());
    }
    let folders: Vec<PathBuf> = search_path(args).collect();
    let found = folders.iter().find_map(|folder| std::fs::read(folder.join(name)).ok());
    let found = found.ok_or_else(|| format!("Cargo has left no {name} in {folders:?}"))?;
    Ok(strip::stripped(&found).unwrap_or(found))
}

/// The values of an option that stands before its value, or before `=` and the value.
fn values<'a>(args: &'a [String], option: &'a str) -> impl Iterator<Item = &'a str> {
    args.iter().enumerate().filter_map(move |(place, word)| {
        let rest = word.strip_prefix(option)?;
        if rest.is_empty() { args.get(place + 1).map(String::as_str) } else { rest.strip_prefix('=') }
    })
}

fn links(args: &[String]) -> bool {
    values(args, "--emit").any(|kinds| kinds.split(',').any(|kind| kind == "link"))
}

/// Where the compiler looks for the crates that this one depends on.
fn search_path(args: &[String]) -> impl Iterator<Item = PathBuf> {
    values(args, "-L").filter_map(|value| value.strip_prefix("dependency=")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn where_nothing_is_linked_there_is_nothing() {
        for args in ["rustc --emit=dep-info,metadata -L dependency=/nowhere", "rustdoc -L dependency=/nowhere"] {
            assert_eq!(bytes("libx.so", &words(args)), Ok(Vec::new()), "{args}");
        }
    }

    #[test]
    fn an_object_that_is_missing_is_an_error_that_says_where_it_was_looked_for() {
        let error = bytes("libx.so", &words("rustc --emit=dep-info,link -L dependency=/nowhere")).unwrap_err();
        assert!(error.contains("libx.so") && error.contains("/nowhere"), "{error}");
    }

    #[test]
    fn the_object_is_found_where_the_compiler_finds_crates() {
        let folder = std::env::temp_dir().join(format!("roxe-bundle-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libx.so"), b"no object").unwrap();
        let args = words(&format!("rustc --emit dep-info,link -L dependency={}", folder.display()));
        assert_eq!(bytes("libx.so", &args), Ok(b"no object".to_vec()));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
