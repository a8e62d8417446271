//! Starts programs that use libibverbs in different ways: each program gets roxe's library, or one
//! line on standard error reports why not.
//!
//! Runs each way as root and as an unprivileged user. Needs root, gcc and libibverbs-dev.

use roxe_tests::build;
use roxe_tests::cc;
use roxe_tests::files::Scratch;
use roxe_tests::guest::link;
use roxe_tests::pair::UNPRIVILEGED;
use roxe_tests::report::{self, Check, Verdict};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::Arc;

/// Result of a script.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finds {
    /// The program finds roxe0.
    Roxe,
    /// The program does not find roxe0, and a line of `roxe run` contains this word.
    Reported(&'static str),
    /// The program does not find roxe0, and `roxe run` prints nothing.
    Nothing,
}
use Finds::{Nothing, Reported, Roxe};

/// A script for `sh`, which has the paths of `roxe` and of [`Programs`] in variables, and its
/// expected results for root and for an unprivileged user.
struct Way {
    name: &'static str,
    script: &'static str,
    root: Finds,
    user: Finds,
}

const fn way(name: &'static str, script: &'static str, root: Finds, user: Finds) -> Way {
    Way { name, script, root, user }
}

/// Script that keeps `$P` running until the inspecting process of `roxe run` has slept twice,
/// because that process misses programs that end between two checks.
const WATCHED: &str = r#"folder=$(mktemp -d); mkfifo $folder/in $folder/out
    $P wait <$folder/in >$folder/out & exec 3>$folder/in 4<$folder/out
    while read line <&4 && [ "$line" != waits ]; do echo $line; done
    for process in /proc/[0-9]*; do tr "\0" " " <$process/cmdline | grep -q "tell-bypass $$ " && looks=$process; done
    slept() { sed -n "s/^voluntary_ctxt_switches:.//p" $looks/status; }
    until=$(($(slept) + 2)); while [ "$(slept)" -lt $until ]; do :; done
    exec 3>&-; wait; rm -r $folder"#;

/// Command prefix that forbids the program to create namespaces.
const FORBIDDEN: &str = "unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && \
                         exec setpriv --bounding-set -all --inh-caps -all \"$@\"' sh ";

const WAYS: &[Way] = &[
    way("a linked program", "$roxe run -- $linked", Roxe, Roxe),
    way("a script", "$roxe run -- $script", Roxe, Roxe),
    way("a shell in a shell", "$roxe run -- sh -c 'setsid --wait nohup sh -c $linked'", Roxe, Roxe),
    way("roxe run in roxe run", "$roxe run -- $roxe run -- $linked", Roxe, Roxe),
    way("an empty environment", "$roxe run -- env -i $linked", Roxe, Roxe),
    way("another LD_LIBRARY_PATH", "$roxe run -- env LD_LIBRARY_PATH=/nowhere $linked", Roxe, Roxe),
    way(
        "linked and not used",
        "$roxe run -- $idle",
        Reported("no device was opened"),
        Reported("no device was opened"),
    ),
    way(
        "an address without a route",
        "$roxe run -- unshare --user --map-current-user --net rping -c -a 203.0.113.9 -C 1; true",
        Nothing,
        Nothing,
    ),
    way(
        "a report about a program without verbs",
        "$roxe run --check --report=$(mktemp -u).xml -- ls /",
        Reported("was not written: no process opened a device"),
        Reported("was not written: no process opened a device"),
    ),
    way(
        "a report about programs of which one opens a device",
        "$roxe run --check --report=$(mktemp -u) -- sh -c '$linked; ibv_devinfo >/dev/null'",
        Roxe,
        Roxe,
    ),
    way("opened as libibverbs.so.1", "$roxe run -- $opened libibverbs.so.1", Roxe, Roxe),
    way("opened as libibverbs.so", "$roxe run -- $opened libibverbs.so", Roxe, Roxe),
    way("opened by its full path", "$roxe run -- $opened $system", Roxe, Roxe),
    way("a bundled library with RUNPATH", "$roxe run -- $runpath", Roxe, Roxe),
    way("a bundled library with RPATH", "$roxe run -- $rpath", Roxe, Roxe),
    way("RPATH without a view", "$roxe run --no-view -- $rpath", Reported("--preload"), Reported("--preload")),
    way("RPATH without a view, preloaded", "$roxe run --no-view --preload -- $rpath", Roxe, Roxe),
    way("a wheel's library with a hash in its name", "$roxe run -- $python $hashed", Roxe, Roxe),
    way(
        "a wheel's library without a view",
        "$roxe run --no-view -- $python $hashed",
        Reported("--preload"),
        Reported("--preload"),
    ),
    way("another preloaded library", "LD_PRELOAD=libm.so.6 $roxe run -- $linked", Roxe, Roxe),
    way("roxe env instead of roxe run", "eval \"$($roxe env)\"; $linked", Roxe, Roxe),
    way("an empty environment, explained", "$roxe run --explain -- env -i $linked", Roxe, Roxe),
    way("opened, explained", "$roxe run --explain -- $opened", Roxe, Roxe),
    way(
        "a module with rdma-core linked statically",
        "P=\"$holds $module\" $roxe run --explain -- sh -c \"$watched\"",
        Reported("rdma-core is linked into that file"),
        Reported("rdma-core is linked into that file"),
    ),
    way("a program without verbs, explained", "$roxe run --explain -- ls /", Nothing, Nothing),
    way(
        "a program that reads the runtime folder, explained",
        "$roxe run --explain -- ls -R $XDG_RUNTIME_DIR",
        Nothing,
        Nothing,
    ),
    way("a static program without verbs, explained", "$roxe run --explain -- $plain", Nothing, Nothing),
    way(
        "a static program in a script",
        "P=$static $roxe run --explain -- sh -c \"$watched\"",
        Reported("has ended without loading roxe: it is linked statically"),
        Reported("has ended without loading roxe: it is linked statically"),
    ),
    way(
        "a set-uid program in a script without a view",
        "P=$setuid $roxe run --no-view --explain -- sh -c \"$watched\"",
        Reported("rights"),
        Reported("has ended without loading roxe: it gains rights"),
    ),
    way(
        "an empty environment without a view",
        "P=\"env -i $linked\" $roxe run --no-view --explain -- sh -c \"$watched\"",
        Reported("has lost LD_LIBRARY_PATH"),
        Reported("has lost LD_LIBRARY_PATH"),
    ),
    way("a static program", "$roxe run -- $static", Reported("statically"), Reported("statically")),
    way("a set-uid program", "$roxe run -- $setuid", Roxe, Reported("gains rights")),
    way("a program with capabilities", "$roxe run -- $setcap", Roxe, Reported("gains rights")),
    way("a program that becomes another user", "$roxe run -- setpriv --reuid=54322 --clear-groups $linked", Roxe, Roxe),
    way("namespaces are forbidden", "$forbidden $roxe run -- $linked", Roxe, Roxe),
    way(
        "namespaces are forbidden, RPATH",
        "$forbidden $roxe run -- $rpath",
        Reported("--preload"),
        Reported("--preload"),
    ),
    way("without /proc", "unshare --mount sh -c 'mount -t tmpfs none /proc; exec $roxe run -- $linked'", Roxe, Roxe),
    way(
        "a read-only root",
        "unshare --mount sh -c 'mount --bind / /; mount -o remount,ro,bind /; exec $roxe run -- env -i $linked'",
        Roxe,
        Roxe,
    ),
];

/// Programs that load a libibverbs in different ways, in a folder that every user can read.
struct Programs {
    folder: Scratch,
    /// Folder of the runtime folders. Its path is short, because roxe ignores a runtime folder
    /// whose path is too long for sockets and uses one that all programs of the user share.
    runtime: Scratch,
}

/// Maximum length of the path of a runtime folder, in bytes.
const MAX_RUNTIME_PATH: usize = 33;

impl Programs {
    fn new() -> Result<Self, String> {
        let programs = Self { folder: Scratch::new("ways")?, runtime: Scratch::new("w")? };
        let longest = programs.runtime.join("XXXX/roxe");
        if longest.as_os_str().len() > MAX_RUNTIME_PATH {
            return Err(format!("{} is too long for a runtime folder; set TMPDIR to a short path", longest.display()));
        }
        programs.build().map(|()| programs)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn build(&self) -> Result<(), String> {
        let io = |error: std::io::Error| error.to_string();
        let system = system_library().ok_or("the system has no libibverbs.so.1")?;
        for folder in ["lib", "env/bin", "env/lib/python3.11/site-packages/x.libs"] {
            fs::create_dir_all(self.at(folder)).map_err(io)?;
        }
        fs::set_permissions(&*self.runtime, fs::Permissions::from_mode(0o1777)).map_err(io)?;
        for copy in ["lib/libibverbs.so.1", HASHED] {
            fs::copy(&system, self.at(copy)).map_err(io)?;
        }
        // A copy that unprivileged users can run.
        fs::copy(build::roxe(), self.at("roxe")).map_err(io)?;
        self.compile("linked", "linked", &[])?;
        self.compile("opened", "opened", &[])?;
        self.compile("linked", "idle", &["-DIDLE"])?;
        self.compile("plain", "holds", &["-DHOLDS"])?;
        self.compile("plain", "module", &["-shared", "-fPIC", "-DHAS_VERBS"])?;
        self.compile("plain", "static", &["-static", "-DNAMES_VERBS"])?;
        self.compile("plain", "plain", &["-static"])?;
        self.compile("linked", "runpath", &["-Wl,--enable-new-dtags,-rpath,$ORIGIN/lib"])?;
        self.compile("linked", "rpath", &["-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib"])?;
        fs::copy(self.at("opened"), self.at("env/bin/python3")).map_err(io)?;
        fs::write(self.at("script"), format!("#!/bin/sh\nexec {}\n", self.at("linked").display())).map_err(io)?;
        for name in ["script", "setuid", "setcap"] {
            if name != "script" {
                fs::copy(self.at("linked"), self.at(name)).map_err(io)?;
            }
            fs::set_permissions(self.at(name), fs::Permissions::from_mode(0o755)).map_err(io)?;
        }
        // An unused UID.
        std::os::unix::fs::chown(self.at("setuid"), Some(54_322), None).map_err(io)?;
        fs::set_permissions(self.at("setuid"), fs::Permissions::from_mode(0o4755)).map_err(io)?;
        let status = Command::new("setcap").arg("cap_net_raw+ep").arg(self.at("setcap")).status().map_err(io)?;
        if status.success() { Ok(()) } else { Err("setcap failed".to_owned()) }
    }

    fn compile(&self, source: &str, program: &str, flags: &[&str]) -> Result<(), String> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("clients/ways/{source}.c"));
        let libraries: &[&str] = if source == "linked" { &["ibverbs"] } else { &[] };
        cc::compile("gcc", flags, &[file], libraries, &self.at(program))
    }

    fn run(&self, prefix: &[&str], script: &str) -> Output {
        let mut command = Command::new("timeout");
        command.arg("30").args(prefix).args(["sh", "-c"]).stdin(Stdio::null());
        // Each script has its own runtime folder and cache, because `roxe run` checks there whether
        // the program has opened a device, and whether another process has loaded the library.
        let mut all = format!(
            "export XDG_RUNTIME_DIR=$(mktemp -d {0}/XXXX) XDG_CACHE_HOME={0}/cache-$(id -u); mkdir -p -m 700 \
             $XDG_CACHE_HOME; ",
            self.runtime.display()
        );
        let system = system_library().unwrap_or_default();
        let names = [
            "roxe", "idle", "holds", "module", "linked", "opened", "static", "plain", "runpath", "rpath", "script",
            "setuid", "setcap",
        ];
        let mut words: Vec<(&str, String)> = names.map(|name| (name, self.at(name).display().to_string())).into();
        words.extend([
            ("python", self.at("env/bin/python3").display().to_string()),
            ("hashed", self.at(HASHED).display().to_string()),
            ("system", system.display().to_string()),
            ("watched", WATCHED.to_owned()),
        ]);
        for (name, value) in words {
            all += &format!("export {name}='{value}'; ");
        }
        let script = script.replace("$forbidden ", FORBIDDEN);
        command.arg(all + &script).env_remove("ROXE_BIN").env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME");
        command.output().expect("timeout can be started")
    }
}

const HASHED: &str = "env/lib/python3.11/site-packages/x.libs/libibverbs-1a2b3c4d.so.1.14.44.0";

fn system_library() -> Option<PathBuf> {
    let output = Command::new("gcc").arg("-print-file-name=libibverbs.so").output().ok()?;
    Path::new(String::from_utf8_lossy(&output.stdout).trim()).canonicalize().ok().filter(|path| path.is_absolute())
}

pub(crate) fn main() -> ExitCode {
    let programs = if link::is_root() { Programs::new() } else { Err("needs root".to_owned()) };
    let checks = match programs {
        Ok(programs) => {
            let programs = Arc::new(programs);
            WAYS.iter().flat_map(|way| [check(way, &programs, true), check(way, &programs, false)]).flatten().collect()
        }
        Err(why) => vec![Check::new("ways", move || Verdict::Skipped(why.clone()))],
    };
    report::main(checks)
}

/// Returns the check of a way as root or as an unprivileged user; `None` if the way needs root.
fn check(way: &'static Way, programs: &Arc<Programs>, as_root: bool) -> Option<Check> {
    if !as_root && (way.script.starts_with("unshare --mount") || way.script.contains("--reuid")) {
        return None;
    }
    let (user, prefix, expected): (_, &[&str], _) =
        if as_root { ("root", &[], way.root) } else { ("a user", &UNPRIVILEGED, way.user) };
    let programs = Arc::clone(programs);
    Some(Check::new(format!("{}, as {user}", way.name), move || judge(&programs.run(prefix, way.script), expected)))
}

fn judge(output: &Output, expected: Finds) -> Verdict {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let is_found = stdout.lines().any(|line| line == "roxe0");
    let reports = |word: &str| stderr.lines().any(|line| line.starts_with("roxe run: ") && line.contains(word));
    let good = match expected {
        Roxe => is_found && !["has loaded", "without loading", "was not written"].iter().any(|word| reports(word)),
        Nothing => output.status.success() && !is_found && !reports(""),
        Reported(word) => !is_found && reports(word),
    };
    if good { Verdict::Passed } else { Verdict::Failed(format!("{}\n{stdout}{stderr}", output.status)) }
}
