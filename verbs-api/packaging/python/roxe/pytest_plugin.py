"""The fixture `roxe_card`: a card for one test, with the faults and the checker that the test asks for.

    @pytest.mark.roxe(faults="seed=1; drop 2%", weakest=3)
    def test_pingpong(roxe_card):
        server = roxe_card.start(["ibv_rc_pingpong", "-g", "0"])
        ...

    def test_that_a_stale_key_is_reported(roxe_card):
        roxe_card.expect("key-stale")
        roxe_card.run(["./uses_a_stale_key"])

    def test_error_paths(roxe_card):
        roxe_card.sweep(["./pair.sh"], budget="5m")

Defaults: `check="all"`, `report` a file in `tmp_path`, all other options of `roxe run` off. Errors that the checker
reports fail the test when it ends, unless the test expects them (`roxe_card.expect(rule)`, or `expect=rule` or a
list of rules in the mark); so does an expected report that does not come. Programs keep the exit status that they
have without the checker. With `check=None` in the mark nothing is checked. Processes that are still running when
the test ends are killed, those that its programs started too.
"""

import json
import os
import signal
import subprocess
import uuid

import pytest

import roxe

# Environment variable with the name of the card, by which its processes are found.
MARK = "ROXE_PYTEST_CARD"


class Card:
    """The card of one test: its options, its reports, and the processes that it started."""

    def __init__(self, folder, options):
        options = {"check": "all", **options}
        expected = options.pop("expect", None) or []
        self.folder = folder
        self.options = options
        self._expected = [expected] if isinstance(expected, str) else list(expected)
        self._report = folder / "roxe-reports.jsonl"
        self._processes = []
        self._findings = []
        self._name = uuid.uuid4().hex
        if options["check"]:
            rules = "on" if options["check"] is True else options["check"]
            # Reports fail the test; they do not change the program's exit status.
            options.update(check=f"{rules},warn", report=self._report)

    def env(self, base=None):
        """The environment for programs that the test itself starts."""
        return {**roxe.env(base, **self.options), MARK: self._name}

    def start(self, arguments, **keywords):
        """subprocess.Popen on this card."""
        process = roxe.start(arguments, options=self.options, **self._marked(keywords))
        self._processes.append(process)
        return process

    def run(self, arguments, **keywords):
        """subprocess.run on this card."""
        return subprocess.run(roxe.command(arguments, **self.options), **self._marked(keywords))

    def sweep(self, arguments, **options):
        """Has the test fail with the findings of `roxe sweep`; the options are those of roxe.sweep."""
        for finding in roxe.sweep(arguments, **options):
            self._findings.append(f"{finding['class']}: {finding['place']}: {finding['ending']}\n    {finding['repeat']}")

    def reports(self):
        """What the checker has reported so far: dictionaries, as docs/reference/checker.md describes them."""
        if not self._report.exists():
            return []
        return [json.loads(line) for line in self._report.read_text().splitlines()]

    def expect(self, rule):
        """Has the test fail if the checker does not report this rule, and not fail if it does."""
        self._expected.append(rule)

    def verdict(self):
        """Why the test fails, in words; None if it does not."""
        reports = self.reports()
        found = {report.get("rule") for report in reports}
        wrong = [_words(report) for report in reports
                 if report.get("severity") == "error" and report.get("rule") not in self._expected]
        wrong += [f"no report of {rule}, which the test expects" for rule in self._expected if rule not in found]
        lines = ["roxe's checker: " + "\n".join(wrong)] if wrong else []
        lines += ["roxe sweep: " + "\n".join(self._findings)] if self._findings else []
        return "\n".join(lines) or None

    def close(self):
        """Kills what is still running."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        # A process may start another one while it is killed.
        while left := list(self._left()):
            for process in left:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for process in self._processes:
            process.wait()

    def _marked(self, keywords):
        base = keywords.get("env")
        return {**keywords, "env": {**(os.environ if base is None else base), MARK: self._name}}

    def _left(self):
        mark = f"{MARK}={self._name}".encode()
        for process in filter(str.isdigit, os.listdir("/proc")):
            if int(process) == os.getpid():
                continue
            try:
                with open(f"/proc/{process}/environ", "rb") as environment:
                    if mark in environment.read().split(b"\0"):
                        yield int(process)
            except OSError:
                # It has ended, or belongs to another user.
                pass


def _words(report):
    lines = [f"{report.get('severity')} [{report.get('rule')}]: {report.get('message', '')}"]
    lines += [f"    {label:14} {value}" for label, value in report.get("facts", {}).items()]
    for stack in report.get("stacks", []):
        calls = [f"{call.get('function')} ({call.get('file')}:{call.get('line')})" for call in stack.get("calls", [])]
        lines += [f"    {stack.get('what', ''):14} {calls[0]}"] if calls else []
    if report.get("advice"):
        lines.append(f"    {'what to do':14} {report['advice']}")
    return "\n".join(lines)


@pytest.fixture
def roxe_card(request, tmp_path):
    """A card for this test; the mark `roxe` has its options."""
    mark = request.node.get_closest_marker("roxe")
    card = Card(tmp_path, dict(mark.kwargs) if mark else {})
    yield card
    card.close()
    verdict = card.verdict()
    if verdict:
        pytest.fail(verdict, pytrace=False)


def pytest_configure(config):
    config.addinivalue_line("markers", "roxe(**options): options of `roxe run` for the fixture roxe_card")
