"""The fixture `roxe_card`: a card for one test, with the faults and the checker that the test asks for.

    @pytest.mark.roxe(faults="seed=1; drop 2%", check="all")
    def test_pingpong(roxe_card):
        server = roxe_card.start(["ibv_rc_pingpong", "-g", "0"])
        ...

The checker is on unless the mark says `check=None`; errors that it reports fail the test when it ends.
Programs that are still running then are killed.
"""

import json
import subprocess

import pytest

import roxe


class Card:
    """What one test has of roxe: its options, its reports, and the processes that it started."""

    def __init__(self, folder, options):
        self.folder = folder
        self.options = {"check": "all", **options}
        self._report = folder / "roxe-reports.jsonl"
        self._processes = []
        if self.options["check"]:
            self.options["report"] = self._report

    def env(self, base=None):
        """The environment for programs that the test starts by itself."""
        return roxe.env(base, **self.options)

    def start(self, arguments, **keywords):
        """subprocess.Popen on this card."""
        process = roxe.start(arguments, options=self.options, **keywords)
        self._processes.append(process)
        return process

    def run(self, arguments, **keywords):
        """subprocess.run on this card."""
        return subprocess.run(roxe.command(arguments, **self.options), **keywords)

    def reports(self):
        """What the checker has reported so far: dictionaries, as docs/checker.md describes them."""
        if not self._report.exists():
            return []
        return [json.loads(line) for line in self._report.read_text().splitlines()]

    def close(self):
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def roxe_card(request, tmp_path):
    """A card for this test; the mark `roxe` has its options."""
    mark = request.node.get_closest_marker("roxe")
    card = Card(tmp_path, dict(mark.kwargs) if mark else {})
    yield card
    card.close()
    errors = [report for report in card.reports() if report.get("severity") == "error"]
    assert not errors, "roxe's checker: " + json.dumps(errors, indent=1)


def pytest_configure(config):
    config.addinivalue_line("markers", "roxe(**options): options of `roxe run` for the fixture roxe_card")
