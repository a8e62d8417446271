//! Tests a root folder that is not a mount point, such as after `chroot`. A view needs one, so
//! programs have no view, and `roxe doctor` and `roxe run` report why. With the same folder as a
//! mount point there is a view.

use roxe_tests::build;
use roxe_tests::guest::link;
use roxe_tests::pair::installed;
use roxe_tests::report::{Check, Verdict};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Script that fills the folder `$1` with the programs of this system and `roxe` from `$2`, without
/// files of this user, and runs the script `$3` in it. `$4` prepares the folder.
const INTO: &str = r#"
root=$1 program=$2 script=$3
eval "$4"
for name in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$name" ]; then
        cp -P "/$name" "$root/$name"
    elif [ -d "/$name" ]; then
        mkdir "$root/$name"; mount --bind "/$name" "$root/$name"
    fi
done
for folder in usr etc dev sys proc; do
    mkdir "$root/$folder"; mount --rbind "/$folder" "$root/$folder"
done
mkdir "$root/home" "$root/tmp" "$root/opt"
touch "$root/opt/roxe"; mount --bind "$program" "$root/opt/roxe"
exec chroot "$root" /usr/bin/env -i PATH=/opt:/usr/sbin:/usr/bin:/sbin:/bin HOME=/home sh -c "$script"
"#;

/// Script that prints what `roxe doctor` reports about views, runs a program that lists its view,
/// and runs a pair.
const CHROOT_SCRIPT: &str =
    "cd /tmp; roxe doctor >doctor || exit 1; awk '/^[a-zA-Z]/ { ours = $2 == \"namespaces\" } ours' doctor
roxe run -- sh -c 'ls /sys/class/infiniband/roxe0/node_type 2>/dev/null || echo no view'
roxe run -- ibv_rc_pingpong -g 0 -n 10 -p 18990 >server 2>&1 & server=$!
until roxe run -- ibv_rc_pingpong -g 0 -n 10 -p 18990 127.0.0.1 >client 2>&1; do kill -0 $server || exit 1; done
wait $server && echo a pair works";

const WHY: &str = "the root folder is not a mount point, as in a chroot; before chroot ROOT, mount --bind ROOT ROOT (most \
                   programs do without)";

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("root folder is not a mount point: doctor and run report why there is no view", says_why),
        Check::new("chroot into a mount point: there is a view", has_a_view),
    ]
}

/// A folder that is removed when this is dropped.
struct Root(PathBuf);

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs [`CHROOT_SCRIPT`] in a new root folder that the script `prepare` has prepared. Returns a
/// skip if this host cannot do that.
fn run_in_chroot(name: &str, prepare: &str) -> Result<Output, Verdict> {
    if !link::is_root() {
        return Err(Verdict::Skipped("needs root".to_owned()));
    }
    if let Some(missing) = ["chroot", "ibv_rc_pingpong"].into_iter().find(|tool| !installed(tool)) {
        return Err(Verdict::not_installed(missing));
    }
    let root = Root(std::env::temp_dir().join(format!("roxe-chroot-{}-{name}", std::process::id())));
    fs::create_dir(&root.0).map_err(|e| Verdict::Failed(format!("{}: {e}", root.0.display())))?;
    let mut command = Command::new("timeout");
    command.args(["100", "unshare", "--mount", "sh", "-ec", INTO, "sh"]).arg(&root.0).arg(build::roxe());
    let output = command.args([CHROOT_SCRIPT, prepare]).stdin(Stdio::null()).output();
    output.map_err(|e| Verdict::Failed(format!("cannot start timeout: {e}")))
}

/// Checks that the exit status is 0, and that the lines of both outputs end with these words.
fn judge(output: Result<Output, Verdict>, stdout: &[&str], stderr: &[&str]) -> Verdict {
    let output = match output {
        Ok(output) => output,
        Err(verdict) => return verdict,
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let all = |text: &str, wanted: &[&str]| {
        let lines: Vec<&str> = text.lines().collect();
        lines.len() == wanted.len() && lines.iter().zip(wanted).all(|(line, words)| line.trim_end().ends_with(words))
    };
    if output.status.success() && all(&out, stdout) && all(&err, stderr) {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{}\n{out}{err}", output.status))
}

fn says_why() -> Verdict {
    judge(run_in_chroot("plain", ""), &[WHY, "no view", "a pair works"], &[WHY])
}

fn has_a_view() -> Verdict {
    let output = run_in_chroot("mounted", "mount --bind \"$root\" \"$root\"");
    let node_type = "/sys/class/infiniband/roxe0/node_type";
    judge(output, &["programs see a /sys/class/infiniband of their own", node_type, "a pair works"], &[])
}
