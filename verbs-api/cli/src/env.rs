//! `roxe env`: prints the variables of `roxe run` for shells, GitHub Actions, ctest and IDEs.
//!
//! Programs started with these variables have no view: it is a namespace, which only `roxe run`
//! creates.

use crate::files::base_folder;
use crate::library::link_folder;
use crate::output::Result;
use crate::run::{Options, set_variables};
use roxe_base::private_dir;
use serde_json::{Map, Value};
use std::io::{Write, stdout};
use std::path::Path;
use std::process::Command;

/// Arguments of `roxe env`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Format: sh (for eval), github (for $GITHUB_ENV), cmake (for include() and
    /// TEST_INCLUDE_FILES) or json.
    #[arg(long, value_enum, default_value = "sh")]
    format: Format,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Sh,
    Github,
    Cmake,
    Json,
}

pub(crate) fn run(args: &Args) -> Result {
    // The command only collects the variables; it is not started.
    let mut command = Command::new("");
    let library = set_variables(&args.options, &mut command)?;
    match check_outlives_restart(&link_folder(&library)?) {
        Err(why) if matches!(args.format, Format::Cmake | Format::Json) => return Err(why.into()),
        Err(why) => eprintln!("roxe env: warning: {why}"),
        Ok(()) => {}
    }
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let pairs = set.map(|(name, value)| match (name.to_str(), value.to_str()) {
        (Some(name), Some(value)) => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("cannot print {}: it is not UTF-8", name.display())),
    });
    let text = format(args.format, &pairs.collect::<Result<Vec<_>, _>>()?);
    Ok(stdout().write_all(text.as_bytes())?)
}

/// Fails if another user can create `folder` after the system has removed it. CMake and JSON texts
/// are kept in files and outlive a restart; shells and jobs of GitHub do not.
fn check_outlives_restart(folder: &Path) -> Result<(), String> {
    let is_runs_folder = base_folder().is_ok_and(|base| folder.starts_with(base));
    if is_runs_folder && private_dir::check(folder).is_ok_and(|folder| folder.is_in_shared) {
        return Err(format!(
            "the libraries are in {}, which other users can create after a restart has removed it; set HOME or \
             XDG_CACHE_HOME to a folder that only you can write",
            folder.display()
        ));
    }
    Ok(())
}

fn format(format: Format, pairs: &[(String, String)]) -> String {
    if format == Format::Json {
        let map: Map<String, Value> = pairs.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        return format!("{:#}\n", Value::from(map));
    }
    pairs.iter().map(|(name, value)| line(format, name, value)).collect()
}

fn line(format: Format, name: &str, value: &str) -> String {
    match format {
        Format::Github if value.contains('\n') => {
            let mut end = "END".to_owned();
            while value.contains(&end) {
                end.push('_');
            }
            format!("{name}<<{end}\n{value}\n{end}\n")
        }
        Format::Github => format!("{name}={value}\n"),
        Format::Cmake => cmake(name, value, std::env::var(name).ok().as_deref()),
        _ => format!("export {name}='{}'\n", value.replace('\'', "'\\''")),
    }
}

/// Variables that hold lists, and their separators.
const LISTS: [(&str, &str); 6] = [
    ("PATH", ":"),
    ("LD_LIBRARY_PATH", ":"),
    ("LD_PRELOAD", ":"),
    ("VALGRIND_OPTS", " "),
    ("TSAN_OPTIONS", ":"),
    ("ASAN_OPTIONS", ":"),
];

/// Returns commands that set a variable when CMake or ctest reads them. `value` ends with this
/// process's own list `old`, which the commands leave out. They prepend the rest once to the list
/// of the process that reads them.
fn cmake(name: &str, value: &str, old: Option<&str>) -> String {
    let old = old.unwrap_or_default();
    let list = LISTS.iter().find(|(list, _)| *list == name).and_then(|(_, separator)| {
        let own = if old.is_empty() { Some(value) } else { value.strip_suffix(old)?.strip_suffix(separator) };
        Some((own?, separator))
    });
    let Some((own, separator)) = list else { return format!("set(ENV{{{name}}} {})\n", bracketed(value)) };
    format!(
        "set(roxe_own {})\n\
         string(FIND \"$ENV{{{name}}}\" \"${{roxe_own}}\" roxe_at)\n\
         if(\"$ENV{{{name}}}\" STREQUAL \"\")\n  \
         set(ENV{{{name}}} \"${{roxe_own}}\")\n\
         elseif(roxe_at EQUAL -1)\n  \
         set(ENV{{{name}}} \"${{roxe_own}}{separator}$ENV{{{name}}}\")\n\
         endif()\n",
        bracketed(own)
    )
}

/// Returns a bracket argument, in which CMake evaluates nothing.
fn bracketed(value: &str) -> String {
    let mut equals = "==".to_owned();
    while format!("{value}]").contains(&format!("]{equals}]")) {
        equals.push('=');
    }
    format!("[{equals}[{value}]{equals}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(how: Format, value: &str) -> String {
        format(how, &[("NAME".to_owned(), value.to_owned())])
    }

    #[test]
    fn values_are_quoted_for_each_format() {
        assert_eq!(formatted(Format::Sh, "it's $x"), "export NAME='it'\\''s $x'\n");
        assert_eq!(formatted(Format::Github, "a b"), "NAME=a b\n");
        assert_eq!(formatted(Format::Cmake, "a;\"b\""), "set(ENV{NAME} [==[a;\"b\"]==])\n");
        assert_eq!(formatted(Format::Json, "a\"b"), "{\n  \"NAME\": \"a\\\"b\"\n}\n");
    }

    #[test]
    fn github_value_with_newlines_sets_one_variable() {
        assert_eq!(formatted(Format::Github, "a\nEVIL=b"), "NAME<<END\na\nEVIL=b\nEND\n");
        assert_eq!(formatted(Format::Github, "a\nEND\nEVIL=b"), "NAME<<END_\na\nEND\nEVIL=b\nEND_\n");
    }

    #[test]
    fn cmake_bracket_argument_holds_any_value() {
        for (value, argument) in
            [("a", "[==[a]==]"), ("]==]", "[===[]==]]===]"), ("a]==", "[===[a]==]===]"), ("]", "[==[]]==]")]
        {
            assert_eq!(bracketed(value), argument);
        }
    }

    #[test]
    fn cmake_prepends_to_lists_once() {
        if Command::new("cmake").arg("--version").output().is_err() {
            return eprintln!("skipped: cmake is not installed");
        }
        let text = cmake("LD_LIBRARY_PATH", "/ours:/old", Some("/old")) + &cmake("LD_PRELOAD", "/lib]==].so", None);
        let file = std::env::temp_dir().join(format!("roxe-cli-env-{}.cmake", std::process::id()));
        let show = "message(\"$ENV{LD_LIBRARY_PATH} $ENV{LD_PRELOAD}\")\n";
        std::fs::write(&file, text.repeat(2) + show).unwrap();
        let read = |path: &str| {
            let output = Command::new("cmake").arg("-P").arg(&file).env("LD_LIBRARY_PATH", path).output().unwrap();
            String::from_utf8(output.stderr).unwrap()
        };
        assert_eq!([read("/theirs"), read("")], ["/ours:/theirs /lib]==].so\n", "/ours /lib]==].so\n"]);
        std::fs::remove_file(file).unwrap();
    }
}
