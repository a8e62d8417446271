//! Runs the published examples of the Rust crates `ibverbs`, `sideway` and `rrddmma` from
//! crates.io, unmodified except for the device name in those of rrddmma.
//!
//! `tests/crates` fixes their versions and dependencies. The package is assembled and built in the
//! folder `crates` of the target folder. It is linked with the system's libibverbs and runs with
//! roxe's. Without cmake, libclang or access to the registry the checks are skipped.

use roxe_tests::build;
use roxe_tests::pair::{self, Program};
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(40);
/// First port of the pingpongs, which use one port each. Other suites use other ports.
const FIRST_PORT: u16 = 18_580;

/// Crates, their versions, and those examples that need no connection manager.
const CRATES: [(&str, &str, &[&str]); 3] = [
    ("ibverbs", "0.9.2", &["loopback"]),
    ("sideway", "0.4.3", &["ibv_devinfo", "show_gids", "rc_pingpong", "rc_pingpong_split"]),
    // The other examples need Mellanox's library.
    ("rrddmma", "0.7.3", &["loopback", "local_rc_sendrecv", "local_ud_sendrecv", "wr"]),
];

pub(crate) fn main() -> ExitCode {
    match prepare() {
        Ok(()) => report::main(checks()),
        Err(verdict) => report::main(vec![Check::new("crates", move || verdict.clone())]),
    }
}

/// Builds the examples.
fn prepare() -> Result<(), Verdict> {
    let failed = |e: io::Error| Verdict::Failed(format!("{}: {e}", folder().display()));
    if let Some(tool) = missing_tool() {
        return Err(Verdict::not_installed(tool));
    }
    copy_package().map_err(failed)?;
    let fetched = cargo(&["fetch", "--locked"]).map_err(failed)?;
    if !fetched.status.success() {
        return Err(fetch_failure(&String::from_utf8_lossy(&fetched.stderr)));
    }
    let metadata = cargo(&["metadata", "--locked", "--offline", "--format-version", "1"]).map_err(failed)?;
    copy_examples(&String::from_utf8_lossy(&metadata.stdout)).map_err(failed)?;
    let built = cargo(&["build", "--locked", "--offline", "--quiet"]).map_err(failed)?;
    if built.status.success() {
        Ok(())
    } else {
        Err(Verdict::Failed(String::from_utf8_lossy(&built.stderr).into_owned()))
    }
}

/// Returns a required tool that is missing: two crates need cmake, the third pkg-config, and all of
/// them libclang to generate bindings.
fn missing_tool() -> Option<&'static str> {
    if let Some(tool) = ["cmake", "pkg-config"].into_iter().find(|tool| !pair::installed(tool)) {
        return Some(tool);
    }
    let has_clang = || libraries().any(|name| name.starts_with("libclang-") || name.starts_with("libclang.so"));
    (std::env::var_os("LIBCLANG_PATH").is_none() && !has_clang()).then_some("libclang")
}

/// Returns the names of the files in the library folders of Linux distributions.
fn libraries() -> impl Iterator<Item = String> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let entries = folders.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Returns the folder of the package: in the target folder, unless that path has a space, which
/// rdma-core's cmake files do not support.
fn folder() -> PathBuf {
    let target = build::target_dir();
    let has_space = target.to_string_lossy().contains(char::is_whitespace);
    if has_space { build::shared_dir() } else { target }.join("crates")
}

/// Copies the manifest and lock file of `tests/crates`, and writes the stand-in for cmake.
fn copy_package() -> io::Result<()> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    for name in ["Cargo.toml", "Cargo.lock"] {
        fs::create_dir_all(folder())?;
        fs::copy(from.join(name), folder().join(name))?;
    }
    write_if_changed(CMAKE, &cmake())?;
    fs::set_permissions(cmake(), fs::Permissions::from_mode(0o755))
}

/// Stand-in for cmake that skips a build of `ibverbs-sys`. That crate needs only the headers of its
/// rdma-core, which cmake creates when it configures; the compiled rest is never linked.
const CMAKE: &str = "#!/bin/sh\ncase \"$1 $2\" in \"--build \"*/ibverbs-sys-*) ;; *) exec cmake \"$@\" ;; esac\n";

fn cmake() -> PathBuf {
    folder().join("cmake")
}

fn cargo(args: &[&str]) -> io::Result<Output> {
    let mut command = Command::new(env!("CARGO"));
    command.args(args).current_dir(folder()).env("CARGO_TARGET_DIR", folder().join("target")).env("CMAKE", cmake());
    // These variables apply to the build of roxe, not of the crates.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTDOCFLAGS"] {
        command.env_remove(variable);
    }
    if let Some(include) = compiler_headers() {
        command.env("BINDGEN_EXTRA_CLANG_ARGS", format!("-isystem {include}"));
    }
    command.output()
}

/// Returns the C compiler's folder with `stddef.h`, because libclang has no headers of its own.
fn compiler_headers() -> Option<String> {
    let output = Command::new("cc").arg("-print-file-name=include").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|folder| Path::new(folder).is_absolute())
}

/// Copies the examples from the folders in which cargo has unpacked the crates, by `metadata`.
fn copy_examples(metadata: &str) -> io::Result<()> {
    for (krate, version, examples) in CRATES {
        let end = format!("{krate}-{version}/Cargo.toml");
        let manifest = metadata.split('"').find(|text| text.ends_with(&end));
        let source = manifest.and_then(|manifest| Path::new(manifest).parent());
        let source = source.ok_or_else(|| io::Error::other(format!("cargo has no source of {krate} {version}")))?;
        fs::create_dir_all(folder().join(krate))?;
        for example in examples {
            let name = format!("{example}.rs");
            let text = fs::read_to_string(source.join("examples").join(&name))?.replace("\"mlx5_0\"", "\"roxe0\"");
            write_if_changed(&text, &folder().join(krate).join(name))?;
        }
    }
    Ok(())
}

/// Writes a file only if its content changes, so that cargo does not rebuild it.
fn write_if_changed(new: &str, to: &Path) -> io::Result<()> {
    if fs::read(to).is_ok_and(|old| old == new.as_bytes()) { Ok(()) } else { fs::write(to, new) }
}

/// Returns the verdict after a failed `cargo fetch`: a failure if the lock file does not match, a
/// skip if there is no network.
fn fetch_failure(output: &str) -> Verdict {
    if output.contains("--locked") {
        return Verdict::Failed(output.to_owned());
    }
    Verdict::Skipped(format!("cannot fetch the crates: {}", output.lines().last().unwrap_or("no reason given").trim()))
}

fn program(name: &str, args: &str) -> Program {
    let path = folder().join("target/debug").join(name);
    Program { name: path.to_string_lossy().into_owned(), args: args.split_whitespace().map(str::to_owned).collect() }
}

fn checks() -> Vec<Check> {
    let mut checks = vec![
        alone("ibverbs", "loopback", "", &["sent", "received"]),
        alone("sideway", "ibv_devinfo", "", &["roxe0"]),
        alone("sideway", "show_gids", "", &["roxe0", "RoCEv2", "127.0.0.1"]),
        // The example asserts that it reads back what it has written.
        alone("rrddmma", "rrddmma_loopback", "", &["Time elapsed (RDMA)"]),
        alone("rrddmma", "local_rc_sendrecv", "", &["Hello, rrddmma!"]),
        alone("rrddmma", "local_ud_sendrecv", "", &["Hello, rrddmma!"]),
        alone("rrddmma", "wr", "", &["Hello, rrddmma!"]),
    ];
    let pingpongs = [
        ("rc_pingpong", "-g 0"),
        ("rc_pingpong", "-g 1 -s 65536 -n 200"),
        ("rc_pingpong", "-g 0 -t"),
        ("rc_pingpong_split", "-g 0"),
        ("rc_pingpong_split", "-g 1 -m 4096 -s 100000 -n 200"),
    ];
    for (port, (example, args)) in (FIRST_PORT..).zip(pingpongs) {
        checks.push(Check::new(format!("sideway: {example} {args}"), move || pingpong(example, args, port)));
    }
    checks
}

/// Returns a check that an example exits with 0 and prints all of `words`.
fn alone(krate: &'static str, example: &'static str, args: &'static str, words: &'static [&'static str]) -> Check {
    Check::new(format!("{krate}: {example} {args}").trim_end().to_owned(), move || {
        let outcome = match pair::run(&program(example, args), &[], TIME_LIMIT) {
            Ok(outcome) => outcome,
            Err(e) => return Verdict::Failed(e.to_string()),
        };
        if krate == "rrddmma" && outcome.output.contains("roxe run: no /") {
            return Verdict::Skipped(
                "rrddmma reads /sys/class/infiniband, but this user cannot create the namespace that shows it"
                    .to_owned(),
            );
        }
        match words.iter().find(|word| !outcome.output.contains(**word)) {
            None if outcome.ok => Verdict::Passed,
            missing => Verdict::Failed(format!("missing: {missing:?}\n{}", outcome.transcript())),
        }
    })
}

/// Runs server and client of an example; both must print a duration.
fn pingpong(example: &str, args: &str, port: u16) -> Verdict {
    let server = program(example, &format!("{args} -p {port}"));
    let client = program(example, &format!("{args} -p {port} 127.0.0.1"));
    match pair::run_pair(&server, &client, port, &[], TIME_LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(ends) if ends.iter().all(|end| end.ok && end.output.contains("iters in")) => Verdict::Passed,
        Ok([s, c]) => Verdict::Failed(format!("{}\n{}", s.transcript(), c.transcript())),
    }
}
