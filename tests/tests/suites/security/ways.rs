//! Ways to start programs that use libibverbs: each program gets roxe's library, or one line on
//! standard error says why not.
//!
//! Each way is tried as root and as a user without privileges. Needs root, gcc and libibverbs-dev.

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
enum Leads {
    /// The program finds roxe0.
    There,
    /// The program does not find roxe0, and a line of `roxe run` contains this word.
    Nowhere(&'static str),
    /// The program does not use verbs, and `roxe run` prints nothing.
    Elsewhere,
}
use Leads::{Elsewhere, Nowhere, There};

/// A script for `sh` with `$roxe` and the programs of [`Programs`] as variables, and its result for
/// root and for a user without capabilities.
struct Way {
    name: &'static str,
    script: &'static str,
    root: Leads,
    user: Leads,
}

const fn way(name: &'static str, script: &'static str, root: Leads, user: Leads) -> Way {
    Way { name, script, root, user }
}

/// Runs `$P` until the process that inspects programs has slept twice, or has ended: it misses a
/// program that ends between two checks.
const WATCHED: &str = r#"folder=$(mktemp -d); mkfifo $folder/in $folder/out
    $P wait <$folder/in >$folder/out & exec 3>$folder/in 4<$folder/out
    while read line <&4 && [ "$line" != waits ]; do echo $line; done
    for process in /proc/[0-9]*; do tr "\0" " " <$process/cmdline | grep -q "tell-bypass $$ " && looks=$process; done
    slept() { sed -n "s/^voluntary_ctxt_switches:.//p" $looks/status; }
    until=$(($(slept) + 2)); while [ "$(slept)" -lt $until ]; do :; done
    exec 3>&-; wait; rm -r $folder"#;

/// Runs the program in a namespace that forbids further namespaces.
const FORBIDDEN: &str = "unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && \
                         exec setpriv --bounding-set -all --inh-caps -all \"$@\"' sh ";

const WAYS: &[Way] = &[
    way("a linked program", "$roxe run -- $linked", There, There),
    way("a script", "$roxe run -- $script", There, There),
    way("a shell in a shell", "$roxe run -- sh -c 'setsid --wait nohup sh -c $linked'", There, There),
    way("roxe run in roxe run", "$roxe run -- $roxe run -- $linked", There, There),
    way("an empty environment", "$roxe run -- env -i $linked", There, There),
    way("another LD_LIBRARY_PATH", "$roxe run -- env LD_LIBRARY_PATH=/nowhere $linked", There, There),
    way("linked and not used", "$roxe run -- $idle", Nowhere("no device was opened"), Nowhere("no device was opened")),
    way(
        "a report about a program without verbs",
        "$roxe run --check --report=$(mktemp -u).xml -- ls /",
        Nowhere("was not written: no process opened a device"),
        Nowhere("was not written: no process opened a device"),
    ),
    way(
        "a report about programs of which one opens a device",
        "$roxe run --check --report=$(mktemp -u) -- sh -c '$linked; ibv_devinfo >/dev/null'",
        There,
        There,
    ),
    way("opened as libibverbs.so.1", "$roxe run -- $opened libibverbs.so.1", There, There),
    way("opened as libibverbs.so", "$roxe run -- $opened libibverbs.so", There, There),
    way("opened by its full path", "$roxe run -- $opened $system", There, There),
    way("a bundle that is looked into last", "$roxe run -- $runpath", There, There),
    way("a bundle that is looked into first", "$roxe run -- $rpath", There, There),
    way("the same without a view", "$roxe run --no-view -- $rpath", Nowhere("--preload"), Nowhere("--preload")),
    way("the same without a view, preloaded", "$roxe run --no-view --preload -- $rpath", There, There),
    way("a copy with a hash in its name, of a wheel", "$roxe run -- $python $hashed", There, There),
    way(
        "the copy of a wheel without a view",
        "$roxe run --no-view -- $python $hashed",
        Nowhere("--preload"),
        Nowhere("--preload"),
    ),
    way("a preloaded library of the user's", "LD_PRELOAD=libm.so.6 $roxe run -- $linked", There, There),
    way("roxe env instead of roxe run", "eval \"$($roxe env)\"; $linked", There, There),
    way("an empty environment, looked at", "$roxe run --explain -- env -i $linked", There, There),
    way("opened, looked at", "$roxe run --explain -- $opened", There, There),
    way(
        "a module with rdma-core inside",
        "P=\"$holds $module\" $roxe run --explain -- sh -c \"$watched\"",
        Nowhere("rdma-core is linked into that file"),
        Nowhere("rdma-core is linked into that file"),
    ),
    way("a program without verbs, looked at", "$roxe run --explain -- ls /", Elsewhere, Elsewhere),
    way(
        "a program that reads the runtime folder, looked at",
        "$roxe run --explain -- ls -R $XDG_RUNTIME_DIR",
        Elsewhere,
        Elsewhere,
    ),
    way("a static program without verbs, looked at", "$roxe run --explain -- $plain", Elsewhere, Elsewhere),
    way(
        "a static program in a script",
        "P=$static $roxe run --explain -- sh -c \"$watched\"",
        Nowhere("has ended without loading roxe: it is linked statically"),
        Nowhere("has ended without loading roxe: it is linked statically"),
    ),
    way(
        "a set-uid program in a script without a view",
        "P=$setuid $roxe run --no-view --explain -- sh -c \"$watched\"",
        Nowhere("rights"),
        Nowhere("has ended without loading roxe: it gains rights"),
    ),
    way(
        "an empty environment without a view",
        "P=\"env -i $linked\" $roxe run --no-view --explain -- sh -c \"$watched\"",
        Nowhere("has lost LD_LIBRARY_PATH"),
        Nowhere("has lost LD_LIBRARY_PATH"),
    ),
    way("a static program", "$roxe run -- $static", Nowhere("statically"), Nowhere("statically")),
    way("a set-uid program", "$roxe run -- $setuid", There, Nowhere("gains rights")),
    way("a program with capabilities", "$roxe run -- $setcap", There, Nowhere("gains rights")),
    way(
        "a program that becomes another user",
        "$roxe run -- setpriv --reuid=54322 --clear-groups $linked",
        There,
        There,
    ),
    way("namespaces are forbidden", "$forbidden $roxe run -- $linked", There, There),
    way(
        "namespaces are forbidden, and a bundle",
        "$forbidden $roxe run -- $rpath",
        Nowhere("--preload"),
        Nowhere("--preload"),
    ),
    way("without /proc", "unshare --mount sh -c 'mount -t tmpfs none /proc; exec $roxe run -- $linked'", There, There),
    way(
        "a read-only root",
        "unshare --mount sh -c 'mount --bind / /; mount -o remount,ro,bind /; exec $roxe run -- env -i $linked'",
        There,
        There,
    ),
];

/// Programs that load a libibverbs in different ways, in a folder that every user may read.
struct Programs {
    folder: Scratch,
    /// A folder for runtime folders. Its path is short: roxe passes over a longer runtime folder,
    /// in which sockets could not have their names, and takes that of all programs of the user.
    runtime: Scratch,
}

/// Maximum length of the path of a runtime folder, in bytes.
const MAX_RUNTIME: usize = 33;

impl Programs {
    fn new() -> Result<Self, String> {
        let programs = Self { folder: Scratch::new("ways")?, runtime: Scratch::new("w")? };
        let longest = programs.runtime.join("XXXX/roxe");
        if longest.as_os_str().len() > MAX_RUNTIME {
            return Err(format!("{} is too long for a runtime folder; set TMPDIR to a short path", longest.display()));
        }
        programs.make().map(|()| programs)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn make(&self) -> Result<(), String> {
        let io = |error: std::io::Error| error.to_string();
        let system = system_library().ok_or("the system has no libibverbs.so.1")?;
        for folder in ["lib", "env/bin", "env/lib/python3.11/site-packages/x.libs"] {
            fs::create_dir_all(self.at(folder)).map_err(io)?;
        }
        fs::set_permissions(&*self.runtime, fs::Permissions::from_mode(0o1777)).map_err(io)?;
        for copy in ["lib/libibverbs.so.1", HASHED] {
            fs::copy(&system, self.at(copy)).map_err(io)?;
        }
        // Users without rights shall run it, too.
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
        // A UID that no other user has.
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
        // A runtime folder for each, as `roxe run` looks there whether the program has opened a
        // device, and a library of this suite, as it asks whether another process has the library.
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
    let made = if link::is_root() { Programs::new() } else { Err("needs root".to_owned()) };
    let checks = match made {
        Ok(programs) => {
            let programs = Arc::new(programs);
            WAYS.iter().flat_map(|way| [check(way, &programs, true), check(way, &programs, false)]).flatten().collect()
        }
        Err(why) => vec![Check::new("ways", move || Verdict::Skipped(why.clone()))],
    };
    report::main(checks)
}

/// Runs as root, or as a user with an unassigned UID, which cannot mount or change its user.
fn check(way: &'static Way, programs: &Arc<Programs>, as_root: bool) -> Option<Check> {
    if !as_root && (way.script.starts_with("unshare --mount") || way.script.contains("--reuid")) {
        return None;
    }
    let (who, prefix, leads): (_, &[&str], _) =
        if as_root { ("root", &[], way.root) } else { ("a user", &UNPRIVILEGED, way.user) };
    let programs = Arc::clone(programs);
    Some(Check::new(format!("{}, as {who}", way.name), move || judge(&programs.run(prefix, way.script), leads)))
}

fn judge(output: &Output, leads: Leads) -> Verdict {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let there = stdout.lines().any(|line| line == "roxe0");
    let reports = |word: &str| stderr.lines().any(|line| line.starts_with("roxe run: ") && line.contains(word));
    let good = match leads {
        There => there && !["has loaded", "without loading", "was not written"].iter().any(|word| reports(word)),
        Elsewhere => output.status.success() && !there && !reports(""),
        Nowhere(word) => !there && reports(word),
    };
    if good { Verdict::Passed } else { Verdict::Failed(format!("{}\n{stdout}{stderr}", output.status)) }
}
