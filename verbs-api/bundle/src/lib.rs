//! `shared_object!("libroxe.so")`: embeds a shared object that Cargo has just built.
//!
//! Cargo's artifact dependencies are unstable, and a build script runs too early: in parallel with
//! the dependencies of its crate. This macro runs in the compiler of the dependent crate, which
//! starts after the dependencies are built, so nothing is built twice. `include_bytes!` would fail
//! under `cargo check`, which links no object.
#![forbid(unsafe_code)]

mod strip;

use proc_macro::{Literal, TokenStream, TokenTree};
use std::path::PathBuf;

/// Expands to a byte string with the object of this file name, without debug information. If the
/// compiler does not link, the string is empty.
#[proc_macro]
pub fn shared_object(input: TokenStream) -> TokenStream {
    let name = input.to_string();
    match read_object(name.trim_matches('"'), &std::env::args().collect::<Vec<_>>()) {
        Ok(bytes) => TokenTree::from(Literal::byte_string(&bytes)).into(),
        Err(text) => format!("compile_error!({text:?})").parse().unwrap_or_default(),
    }
}

/// Reads the object `name` from the search path in `args`, the arguments of the compiler. Returns
/// no bytes if the compiler does not link.
fn read_object(name: &str, args: &[String]) -> Result<Vec<u8>, String> {
    if !does_link(args) {
        return Ok(Vec::new());
    }
    let folders: Vec<PathBuf> = search_path(args).collect();
    let object = folders.iter().find_map(|folder| std::fs::read(folder.join(name)).ok());
    let object = object.ok_or_else(|| format!("there is no {name} in {folders:?}"))?;
    Ok(strip::stripped(&object).unwrap_or(object))
}

/// Returns the values of `option`, written as `OPTION VALUE` or `OPTION=VALUE`.
fn option_values<'a>(args: &'a [String], option: &'a str) -> impl Iterator<Item = &'a str> {
    args.iter().enumerate().filter_map(move |(index, arg)| {
        let rest = arg.strip_prefix(option)?;
        if rest.is_empty() { args.get(index + 1).map(String::as_str) } else { rest.strip_prefix('=') }
    })
}

fn does_link(args: &[String]) -> bool {
    option_values(args, "--emit").any(|kinds| kinds.split(',').any(|kind| kind == "link"))
}

/// Returns the folders in which the compiler searches for dependencies.
fn search_path(args: &[String]) -> impl Iterator<Item = PathBuf> {
    option_values(args, "-L").filter_map(|value| value.strip_prefix("dependency=")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn compiler_that_does_not_link_embeds_nothing() {
        for args in ["rustc --emit=dep-info,metadata -L dependency=/nowhere", "rustdoc -L dependency=/nowhere"] {
            assert_eq!(read_object("libx.so", &split_args(args)), Ok(Vec::new()), "{args}");
        }
    }

    #[test]
    fn missing_object_is_an_error_with_the_search_path() {
        let error =
            read_object("libx.so", &split_args("rustc --emit=dep-info,link -L dependency=/nowhere")).unwrap_err();
        assert!(error.contains("libx.so") && error.contains("/nowhere"), "{error}");
    }

    #[test]
    fn object_is_found_on_the_search_path() {
        let folder = std::env::temp_dir().join(format!("roxe-bundle-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libx.so"), b"not ELF").unwrap();
        let args = split_args(&format!("rustc --emit dep-info,link -L dependency={}", folder.display()));
        assert_eq!(read_object("libx.so", &args), Ok(b"not ELF".to_vec()));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
