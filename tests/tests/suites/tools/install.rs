//! Tests an installed roxe: the single program, which contains its libraries, outside its build
//! folder and with an empty environment.
//!
//! `cargo test -p roxe-tests --test suites -- install [--all] [WORD...]`: `--all` also tests `cargo
//! install`, which builds everything again.

use roxe_tests::build;
use roxe_tests::files::Scratch;
use roxe_tests::guest::link;
use roxe_tests::pair::installed;
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

mod recipes;

/// Script that runs a pair under `roxe run`; the client retries until the server listens.
const PAIR: &str = "roxe run -- ibv_rc_pingpong -g 0 -p 18950 >server & for i in $(seq 500); do \
                    roxe run -- ibv_rc_pingpong -g 0 -p 18950 localhost 2>client && break; done; wait";

pub(crate) fn main() -> ExitCode {
    let args: Vec<String> = report::arguments().collect();
    let mut checks = vec![
        Check::new("install: single binary runs the demo and a pair", || alone("pair", runs_programs)),
        Check::new("install: modified unpacked library is not used", || alone("changed", replaces_modified_library)),
        Check::new("install: works without HOME and with a noexec cache", || alone("noexec", tolerates_noexec)),
        Check::new("install: env and install-lib work without roxe run", || alone("env", works_without_roxe_run)),
        Check::new("install: doctor fails where programs would, with advice", || alone("doctor", doctor_reports)),
        Check::new("install: GitHub action makes jobs use roxe", recipes::github),
        Check::new("install: GitLab template makes jobs use roxe", recipes::gitlab),
    ];
    if args.iter().any(|arg| arg == "--all") {
        checks.push(Check::new("install: by cargo install", by_cargo));
    }
    report::run(checks, &args)
}

/// A folder with the program in `bin` and an empty `home`; removed when dropped.
struct Root(Scratch);

impl Root {
    fn new(name: &str) -> Self {
        let root = Scratch::new(&format!("install-{name}")).expect("create a temporary folder");
        for folder in ["bin", "home", "work"] {
            fs::create_dir_all(root.join(folder)).expect("create a folder");
        }
        Self(root)
    }

    /// Runs a script in an empty folder with only PATH and HOME in its environment.
    fn run(&self, script: &str) -> Output {
        let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.0.join("bin").display());
        let mut command = Command::new("timeout");
        command.args(["120", "sh", "-ec", script]).current_dir(self.0.join("work")).stdin(Stdio::null());
        command.env_clear().env("PATH", path).env("HOME", self.0.join("home"));
        command.output().expect("timeout can be started")
    }

    fn libraries(&self) -> PathBuf {
        let cache = self.0.join("home/.cache/roxe");
        fs::read_dir(cache).ok().and_then(|mut found| found.next()?.ok()).map(|entry| entry.path()).unwrap_or_default()
    }
}

fn transcript(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn all_succeed(outputs: &[(bool, Output)]) -> Verdict {
    let wrong: String = outputs.iter().filter(|(good, _)| !good).map(|(_, output)| transcript(output)).collect();
    if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong) }
}

fn alone(name: &str, check: fn(&Root) -> Verdict) -> Verdict {
    if !installed("ibv_rc_pingpong") {
        return Verdict::not_installed("ibv_rc_pingpong");
    }
    let root = Root::new(name);
    fs::copy(build::roxe(), root.0.join("bin/roxe")).expect("copy the program");
    check(&root)
}

fn is_private(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o777 == 0o700)
}

fn runs_programs(root: &Root) -> Verdict {
    let (demo, pair) = (root.run("roxe demo send"), root.run(PAIR));
    let private = is_private(&root.libraries());
    all_succeed(&[(demo.status.success(), demo), (pair.status.success() && private, pair)])
}

fn replaces_modified_library(root: &Root) -> Verdict {
    let devices = "roxe run -- ibv_devices | grep roxe0";
    let first = root.run(devices);
    let library = root.libraries().join("libroxe.so");
    let original = fs::read(&library).unwrap_or_default();
    fs::write(&library, b"planted").expect("overwrite the library");
    let second = root.run(devices);
    let good = fs::read(&library).is_ok_and(|now| now == original && now.len() > 100_000);
    fs::set_permissions(root.libraries(), fs::Permissions::from_mode(0o777)).expect("change the mode of the folder");
    // Now that other users could write to the folder, roxe uses its fallback folder.
    let third = root.run(&format!("{devices}; roxe run -- sh -c 'readlink -f $LD_LIBRARY_PATH/libibverbs.so.1'"));
    let is_own_path = !String::from_utf8_lossy(&third.stdout).contains(&*root.libraries().to_string_lossy());
    all_succeed(&[
        (first.status.success(), first),
        (second.status.success() && good, second),
        (third.status.success() && is_own_path, third),
    ])
}

fn tolerates_noexec(root: &Root) -> Verdict {
    if !link::is_root() {
        return Verdict::Skipped("needs root, to mount".to_owned());
    }
    let homeless = root.run("unset HOME; roxe run -- ibv_devices | grep roxe0");
    let mounted = "mount -t tmpfs -o noexec none \"$HOME\"; roxe run -- ibv_devices | grep roxe0";
    let noexec = root.run(&format!("unshare --mount sh -ec '{mounted}'"));
    all_succeed(&[(homeless.status.success(), homeless), (noexec.status.success(), noexec)])
}

fn works_without_roxe_run(root: &Root) -> Verdict {
    let shell = "eval \"$(roxe env)\"; ibv_devices | grep roxe0";
    let folder = "roxe install-lib lib; LD_LIBRARY_PATH=lib ibv_devices | grep roxe0";
    // The files that a configured CMake project leaves for ctest. TEST_INCLUDE_FILES adds the first
    // line.
    let ctest = "roxe env --format cmake >roxe.cmake; printf 'include(roxe.cmake)\nadd_test(devices ibv_devices)\n' \
                 >CTestTestfile.cmake; ctest --verbose | grep roxe0";
    let json = "roxe env --check=cq-overrun --format json | grep '\"ROXE_CHECK\": \"cq-overrun\"'";
    let pages = "roxe generate-docs pages; grep -q netdev pages/roxe-run.1 pages/roxe.bash pages/_roxe pages/roxe.fish";
    let mut scripts = vec![shell, folder, json, pages];
    scripts.extend(Some(ctest).filter(|_| installed("ctest")));
    let outputs = scripts.iter().map(|script| root.run(script));
    all_succeed(&outputs.map(|output| (output.status.success(), output)).collect::<Vec<_>>())
}

fn doctor_reports(root: &Root) -> Verdict {
    let healthy = root.run("roxe doctor && roxe doctor --json | grep -c '\"grade\": \"ok\"'");
    if !link::is_root() {
        return Verdict::Skipped("needs root, for a network without an interface".to_owned());
    }
    let broken = root.run("unshare --net roxe doctor");
    let is_missing =
        String::from_utf8_lossy(&broken.stdout).lines().any(|line| line.starts_with("MISSING  queue pairs"));
    let has_remedy = is_missing && String::from_utf8_lossy(&broken.stdout).contains("ip link set lo up");
    all_succeed(&[(healthy.status.success(), healthy), (has_remedy && !broken.status.success(), broken)])
}

fn by_cargo() -> Verdict {
    let root = Root::new("cargo");
    let cli = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs-api/cli");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["install", "--quiet", "--offline", "--locked", "--path"]).arg(cli).arg("--root").arg(&*root.0);
    let built = cargo.output().expect("cargo can be started");
    if !built.status.success() {
        return Verdict::Failed(transcript(&built));
    }
    runs_programs(&root)
}
