"""roxe for Python: an RDMA network card made of software, for programs that tests start.

    import roxe, subprocess
    subprocess.run(["ibv_devinfo"], env=roxe.env())
    roxe.run(["ibv_rc_pingpong", "-g", "0"], faults="drop 1%")

The options are those of `roxe run`: `netdev`, `profile`, `faults`, `capture`, `trace`, `stats`, `explain`,
`check`, `report`, `report_format`, `suppressions`, `weakest`, `preload`, `rsocket`. `True` stands for an option
without a value; all are off by default.
"""

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile

__all__ = ["command", "env", "program", "run", "start", "sweep"]


def program():
    """The path of the program roxe: the one that was installed with this module, else that in PATH."""
    own = os.path.join(sysconfig.get_path("scripts"), "roxe")
    found = own if os.access(own, os.X_OK) else shutil.which("roxe")
    if found is None:
        raise FileNotFoundError("the program roxe is not installed")
    return found


def _words(options):
    for name, value in options.items():
        if value is None or value is False:
            continue
        name = "--" + name.replace("_", "-")
        yield name if value is True else f"{name}={os.fspath(value) if hasattr(value, '__fspath__') else value}"


def command(arguments, **options):
    """The command line that runs `arguments` with roxe as their card."""
    return [program(), "run", *_words(options), "--", *map(os.fspath, arguments)]


def env(base=None, **options):
    """A copy of `base` (os.environ) with what leads programs to roxe."""
    base = dict(os.environ if base is None else base)
    words = [program(), "env", "--format=json", *_words(options)]
    output = subprocess.run(words, env=base, check=True, stdout=subprocess.PIPE).stdout
    return {**base, **json.loads(output)}


def run(arguments, *, netdev=None, profile=None, faults=None, capture=None, trace=None, stats=None, explain=None,
        check_verbs=None, report=None, report_format=None, suppressions=None, weakest=None, preload=None, rsocket=None,
        **keywords):
    """subprocess.run under `roxe run`; `check_verbs` is its `--check`, as `check` is taken here."""
    options = dict(netdev=netdev, profile=profile, faults=faults, capture=capture, trace=trace, stats=stats,
                   explain=explain, check=check_verbs, report=report, report_format=report_format,
                   suppressions=suppressions, weakest=weakest, preload=preload, rsocket=rsocket)
    return subprocess.run(command(arguments, **options), **keywords)


def start(arguments, *, options=None, **keywords):
    """subprocess.Popen under `roxe run` with these options."""
    return subprocess.Popen(command(arguments, **(options or {})), **keywords)


def sweep(arguments, **options):
    """The findings of `roxe sweep`, in dictionaries with `class`, `place`, `ending`, `faults` and `repeat`.

    The options are those of `roxe sweep`: `verbs=True`, `seeds=5`, `timeout="10s"`, `budget="5m"` (`--for`), `jobs`,
    `baseline`, `resume`; findings of the baseline are left out. A program that fails without faults raises
    subprocess.CalledProcessError.
    """
    names = {"budget": "for"}
    options = {names.get(name, name): value for name, value in options.items()}
    jobs = options.pop("jobs", None)
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "sweep.json")
        words = [program(), "sweep", *_words({**options, "report": report}), *([f"-j{jobs}"] if jobs else [])]
        done = subprocess.run([*words, "--", *map(os.fspath, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if not os.path.exists(report):
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        with open(report, encoding="utf-8") as file:
            return [finding for finding in json.load(file)["findings"] if not finding["known"]]
