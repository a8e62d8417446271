//! Runs programs in two containers whose networks are connected by a veth pair, like two pods,
//! without a container engine. They emulate hardened containers: own namespaces, an ordinary user
//! without capabilities, a read-only root folder, Docker's default system calls and six device
//! nodes. Their image has the programs of this system, and roxe as docs/how-to/containers.md
//! installs it.

use roxe_tests::build;
use roxe_tests::cc::Compiled;
use roxe_tests::files::Scratch;
use roxe_tests::guest::link;
use roxe_tests::pair::installed;
use roxe_tests::report::{Check, Verdict};
use std::process::{Command, Output, Stdio};

/// Script that runs both containers. Arguments: a folder, `roxe`, this suite, a folder with files
/// for the image, and the scripts of both containers.
const ENGINE: &str = r#"
image=$1 roxe=$2 suite=$3 files=$4 first=$5 second=$6
for name in bin sbin lib lib32 lib64 libx32; do
    [ ! -L "/$name" ] || cp -P "/$name" "$image/$name"
done
mkdir "$image/usr" "$image/etc" "$image/opt" "$image/dev" "$image/sys" "$image/proc" "$image/tmp" "$image/old"
mount --make-rprivate /
mount --bind /usr "$image/usr"
mount --bind /etc "$image/etc"
cp "$roxe" "$image/opt/roxe"
cp "$suite" "$image/opt/suite"
cp -r "$files/." "$image/opt"
"$roxe" install-lib "$image/opt/lib" >/dev/null
mkfifo "$image/ready1" "$image/ready2" "$image/go1" "$image/go2"
container() {
    unshare --net --mount --pid --fork --kill-child --uts --ipc sh -ec '
        image=$1 number=$2 script=$3
        echo >"$image/ready$number"
        read -r _ <"$image/go$number"
        hostname "pod$number"
        ip link set lo up
        ip addr add "10.88.0.$number/24" dev eth0
        ip link set eth0 up
        mount --rbind "$image" "$image"
        cd "$image"
        mount -t proc proc proc
        mount -t sysfs -o ro sysfs sys
        mount -t tmpfs -o mode=755 tmpfs dev
        mkdir dev/shm
        for device in null zero full random urandom tty; do
            touch "dev/$device"
            mount --bind "/dev/$device" "dev/$device"
        done
        mount -t tmpfs -o mode=1777 tmpfs dev/shm
        mount -t tmpfs -o mode=1777 tmpfs tmp
        for folder in . usr etc; do
            mount -o remount,bind,ro "$image/$folder"
        done
        pivot_root . old
        umount -l /old
        cd /tmp
        exec env -i PATH=/opt:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LD_LIBRARY_PATH=/opt/lib ROXE_NETDEV=eth0 \
            setpriv --reuid 47911 --regid 47911 --clear-groups --inh-caps -all --bounding-set -all \
            /opt/suite environment --contained sh -c "$script"
    ' sh "$image" "$1" "$2" &
}
container 1 "$first"
one=$!
container 2 "$second"
two=$!
read -r _ <"$image/ready1"
read -r _ <"$image/ready2"
ip link add eth0 netns "$one" type veth peer name eth0 netns "$two"
echo >"$image/go1"
echo >"$image/go2"
wait "$two"
wait "$one"
"#;

/// Python program that stands in for mpirun's remote shell: with a port it runs the command that a
/// client sends, with an address and a command it is the client.
const SHELL: &str = r#"
import socket, subprocess, sys
if len(sys.argv) == 2:
    listener = socket.create_server(("", int(sys.argv[1])))
    peer, _ = listener.accept()
    subprocess.run(["sh", "-c", peer.makefile().readline()])
else:
    peer = socket.create_connection((sys.argv[1], 7000))
    peer.sendall((" ".join(sys.argv[2:]) + "\n").encode())
    peer.recv(1)
"#;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("two containers: rping", || {
            pair("rping", "rping -s -a 10.88.0.1 -C 10", "rping -c -a 10.88.0.1 -C 10 -v", "ping data: rdma-ping-9")
        }),
        Check::new("two containers: ib_write_bw", || {
            pair(
                "ib_write_bw",
                "ib_write_bw -F -x 0 -n 500",
                "ib_write_bw -F -x 0 -n 500 10.88.0.1",
                " 65536      500 ",
            )
        }),
        Check::new("two containers: MPI", mpi),
        Check::new("container: roxe run prints one line about the missing view", says_why),
    ]
}

/// Runs a script in each container.
fn run(files: &Scratch, first: &str, second: &str) -> Result<Output, Verdict> {
    if !link::is_root() {
        return Err(Verdict::Skipped("needs root".to_owned()));
    }
    if let Some(missing) = ["unshare", "setpriv", "pivot_root", "ip"].into_iter().find(|tool| !installed(tool)) {
        return Err(Verdict::not_installed(missing));
    }
    let failed = |why: String| Verdict::Failed(why);
    let image = Scratch::new("image").map_err(failed)?;
    let suite = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "--mount", "sh", "-ec", ENGINE, "sh"]);
    command.args([&*image, &*build::roxe(), &*suite, &**files]).args([first, second]);
    command.stdin(Stdio::null()).output().map_err(|e| failed(format!("cannot start timeout: {e}")))
}

fn no_files() -> Result<Scratch, Verdict> {
    Scratch::new("files").map_err(Verdict::Failed)
}

/// Checks that both containers exited with 0 and one printed these words.
fn judge(output: Result<Output, Verdict>, words: &str) -> Verdict {
    match output {
        Ok(output) => {
            let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            if output.status.success() && printed.contains(words) {
                Verdict::Passed
            } else {
                Verdict::Failed(format!("{}\n{printed}", output.status))
            }
        }
        Err(verdict) => verdict,
    }
}

/// Runs a server in the first container and its client, until it succeeds, in the second one.
fn pair(program: &str, server: &str, client: &str, words: &str) -> Verdict {
    if !installed(program) {
        return Verdict::not_installed(program);
    }
    let client = format!("for i in $(seq 100); do {client} && exit 0; sleep 0.1; done; exit 1");
    judge(no_files().and_then(|files| run(&files, &format!("exec {server}"), &client)), words)
}

/// Runs MPI over libfabric, which needs no view.
fn mpi() -> Verdict {
    if let Some(missing) = ["mpicc.openmpi", "mpirun.openmpi", "python3"].into_iter().find(|tool| !installed(tool)) {
        return Verdict::not_installed(missing);
    }
    let exchange = match Compiled::new("mpicc.openmpi", "mpi/exchange.c", &[], "containers") {
        Ok(exchange) => exchange,
        Err(why) => return Verdict::Failed(why),
    };
    let files = match no_files() {
        Ok(files) => files,
        Err(verdict) => return verdict,
    };
    let copied = std::fs::copy(&exchange.program, files.join("exchange"))
        .and_then(|_| std::fs::write(files.join("shell.py"), SHELL));
    if let Err(e) = copied {
        return Verdict::Failed(e.to_string());
    }
    let first = "until python3 -c 'import socket; socket.create_connection((\"10.88.0.2\", 7001))'; do sleep 0.1; done 2>/dev/null
        exec mpirun.openmpi --host 10.88.0.1,10.88.0.2 --mca plm_rsh_agent 'python3 /opt/shell.py' --mca btl ^openib,ofi \
        --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' -x ROXE_NETDEV -x LD_LIBRARY_PATH \
        /opt/exchange";
    let second = "python3 /opt/shell.py 7000 & python3 /opt/shell.py 7001; wait";
    judge(run(&files, first, second), "bytes as expected")
}

fn says_why() -> Verdict {
    // When the second container ends, the kernel removes the link of the first one.
    let first = "while ip link show dev eth0 2>/dev/null | grep -q LOWER_UP; do sleep 0.1; done";
    let second = "roxe run -- sh -c 'ls /sys/class/infiniband 2>/dev/null; echo started'";
    judge(
        no_files().and_then(|files| run(&files, first, second)),
        "started\nroxe run: no /sys/class/infiniband for the program: this system grants no user namespace",
    )
}
