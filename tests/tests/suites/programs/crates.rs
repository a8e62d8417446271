//! The Rust crates `ibverbs`, `sideway` and `rrddmma` from crates.io, unmodified: their published
//! examples run on roxe. Only the device name in those of rrddmma is changed.
//!
//! `tests/crates` fixes their versions and dependencies. The package is assembled and built in
//! `crates` of the target folder, with the system's libibverbs at build time and roxe's at run
//! time. Without cmake, libclang or access to the registry the checks are skipped.

use roxe_tests::build;
use roxe_tests::pair::{self, Outcome, Program};
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(40);
/// Ports of the pingpongs, one for each; other tests use other ports.
const FIRST_PORT: u16 = 18_580;

/// The crates, and those of their examples that need no connection manager.
const CRATES: [(&str, &str, &[&str]); 3] = [
    ("ibverbs", "0.9.2", &["loopback"]),
    ("sideway", "0.4.3", &["ibv_devinfo", "show_gids", "rc_pingpong", "rc_pingpong_split"]),
    // The other examples do nothing with a library other than that of Mellanox.
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
    lay_out().map_err(failed)?;
    let fetched = cargo(&["fetch", "--locked"]).map_err(failed)?;
    if !fetched.status.success() {
        return Err(not_fetched(&String::from_utf8_lossy(&fetched.stderr)));
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

/// Returns the missing tool of the required ones: cmake for two of the crates, pkg-config for the
/// third, libclang for the bindings that they generate.
fn missing_tool() -> Option<&'static str> {
    if let Some(tool) = ["cmake", "pkg-config"].into_iter().find(|tool| !pair::installed(tool)) {
        return Some(tool);
    }
    let has_clang = || libraries().any(|name| name.starts_with("libclang-") || name.starts_with("libclang.so"));
    (std::env::var_os("LIBCLANG_PATH").is_none() && !has_clang()).then_some("libclang")
}

/// The names in the folders where Debian and its relatives keep libraries.
fn libraries() -> impl Iterator<Item = String> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let entries = folders.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// The target folder, unless its path has a blank, at which rdma-core's files for cmake split it.
fn folder() -> PathBuf {
    let target = build::target_dir();
    let has_blank = target.to_string_lossy().contains(char::is_whitespace);
    if has_blank { build::shared_dir() } else { target }.join("crates")
}

/// The package as `tests/crates` has it, without its programs.
fn lay_out() -> io::Result<()> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    for name in ["Cargo.toml", "Cargo.lock"] {
        fs::create_dir_all(folder())?;
        fs::copy(from.join(name), folder().join(name))?;
    }
    write_if_new(CMAKE, &cmake())?;
    fs::set_permissions(cmake(), fs::Permissions::from_mode(0o755))
}

/// Replaces cmake while the crates are built. The crate `ibverbs-sys` needs only the headers of its
/// rdma-core, which cmake lays out while it configures. The rest, most of a minute to compile, is
/// never linked.
const CMAKE: &str = "#!/bin/sh\ncase \"$1 $2\" in \"--build \"*/ibverbs-sys-*) ;; *) exec cmake \"$@\" ;; esac\n";

fn cmake() -> PathBuf {
    folder().join("cmake")
}

fn cargo(args: &[&str]) -> io::Result<Output> {
    let mut command = Command::new(env!("CARGO"));
    command.args(args).current_dir(folder()).env("CARGO_TARGET_DIR", folder().join("target")).env("CMAKE", cmake());
    // These variables are for the build of roxe itself.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTDOCFLAGS"] {
        command.env_remove(variable);
    }
    if let Some(include) = compiler_headers() {
        command.env("BINDGEN_EXTRA_CLANG_ARGS", format!("-isystem {include}"));
    }
    command.output()
}

/// Folder with `stddef.h` of the C compiler: libclang comes without headers.
fn compiler_headers() -> Option<String> {
    let output = Command::new("cc").arg("-print-file-name=include").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|folder| Path::new(folder).is_absolute())
}

/// Copies the examples from where cargo has unpacked the crates: `metadata` names the folders.
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
            write_if_new(&text, &folder().join(krate).join(name))?;
        }
    }
    Ok(())
}

/// Writes only changed files, so that cargo does not rebuild unchanged ones.
fn write_if_new(new: &str, to: &Path) -> io::Result<()> {
    if fs::read(to).is_ok_and(|old| old == new.as_bytes()) { Ok(()) } else { fs::write(to, new) }
}

/// Verdict if `cargo fetch` failed: skipped without a network, failed if the lock file does not
/// fit.
fn not_fetched(output: &str) -> Verdict {
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
        // It asserts that what it has written and read again is right.
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

/// Runs one example alone; it must succeed and print every one of `words`.
fn alone(krate: &'static str, example: &'static str, args: &'static str, words: &'static [&'static str]) -> Check {
    Check::new(format!("{krate}: {example} {args}").trim_end().to_owned(), move || {
        let outcome = match pair::run(&program(example, args), &[], LIMIT) {
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

/// Server and client of an example; both print how long it took.
fn pingpong(example: &str, args: &str, port: u16) -> Verdict {
    let server = program(example, &format!("{args} -p {port}"));
    let client = program(example, &format!("{args} -p {port} 127.0.0.1"));
    match pair::run_pair(&server, &client, port, &[], LIMIT) {
        Err(e) => Verdict::Failed(e.to_string()),
        Ok(ends) if ends.iter().all(|end| end.ok && end.output.contains("iters in")) => Verdict::Passed,
        Ok([s, c]) => Verdict::Failed(format!("{}\n{}", s.transcript(), c.transcript())),
    }
}

