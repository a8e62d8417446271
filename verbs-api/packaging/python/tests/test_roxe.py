"""The wheel, as the people who install it use it."""

import itertools
import shutil
import subprocess
import time

import pytest

import roxe

PORTS = itertools.count(18970)


def pingpong(card):
    """Whether a pair comes to its end; the client tries until the server is there."""
    port = str(next(PORTS))
    words = ["ibv_rc_pingpong", "-g", "0", "-n", "100", "-p", port]
    server = card.start(words, stdout=subprocess.DEVNULL)
    for _ in range(300):
        if card.run([*words, "localhost"], capture_output=True).returncode == 0:
            return server.wait(30) == 0
        assert server.poll() is None
    return False


def test_the_program_is_the_one_of_this_environment():
    assert shutil.which("roxe") == roxe.program()
    assert subprocess.check_output([roxe.program(), "--version"]).startswith(b"roxe ")


def test_env_leads_programs_to_roxe():
    assert b"roxe0" in subprocess.check_output(["ibv_devices"], env=roxe.env())


def test_options_become_variables():
    assert roxe.env(faults="drop 3%")["ROXE_FAULTS"] == "drop 3%"
    with pytest.raises(subprocess.CalledProcessError):
        roxe.env(faults="drop 3")


def test_a_pair_works_on_a_card(roxe_card):
    assert pingpong(roxe_card)


# Not acknowledgements: ibv_rc_pingpong fails if the last one is lost.
@pytest.mark.roxe(faults="seed=1; drop 2% op=REQUEST")
def test_a_pair_works_while_packets_are_lost(roxe_card):
    assert pingpong(roxe_card)
    assert roxe_card.env()["ROXE_FAULTS"] == "seed=1; drop 2% op=REQUEST"


@pytest.mark.roxe(weakest=3)
def test_options_may_be_numbers(roxe_card):
    assert roxe_card.env()["ROXE_WEAKEST"] == "3"
    output = roxe.run(["sh", "-c", "echo $ROXE_WEAKEST"], weakest=7, capture_output=True, text=True)
    assert output.stdout == "7\n"


def test_a_sweep_tells_findings(pytester):
    assert roxe.sweep(["ibv_devinfo"], verbs=True, jobs=1) == []
    with pytest.raises(subprocess.CalledProcessError):
        roxe.sweep(["false"])
    # A program that waits forever once a call has failed.
    pytester.makepyfile(
        "def test_careless(roxe_card):\n"
        "    roxe_card.sweep(['sh', '-c', 'ibv_devices || sleep 100'], verbs=True, timeout='5s')\n"
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*roxe sweep: hang: *"])


def test_processes_that_programs_left_behind_are_killed(pytester):
    pytester.makepyfile(
        "def test_leaves(roxe_card):\n"
        "    card = roxe_card\n"
        "    card.run(['sh', '-c', 'setsid sleep 1000 & echo $! >left'], cwd=card.folder)\n"
        "    left = int((card.folder / 'left').read_text())\n"
        "    print(f'LEFT {left}')\n"
    )
    result = pytester.runpytest("-s")
    result.assert_outcomes(passed=1)
    (left,) = [line.split()[-1] for line in result.outlines if "LEFT " in line]
    # A process that is killed needs a moment to end.
    deadline = time.monotonic() + 20
    while is_running(left):
        assert time.monotonic() < deadline, "it runs"


def is_running(process):
    try:
        with open(f"/proc/{process}/stat") as state:
            return state.read().rsplit(")")[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


REPORT = '{"severity": "error", "rule": "key-stale", "message": "The key is dead.", "advice": "Register it."}\\n'


@pytest.mark.parametrize("how", ["mark", "call"])
def test_an_expected_report_fails_no_test_and_a_missing_one_does(pytester, how):
    mark = "@pytest.mark.roxe(expect='key-stale')\n" if how == "mark" else ""
    call = "    roxe_card.expect('key-stale')\n" if how == "call" else ""
    report = f"    (roxe_card.folder / 'roxe-reports.jsonl').write_text('{REPORT}')\n"
    pytester.makepyfile(
        f"import pytest\n{mark}def test_comes(roxe_card):\n{call}{report}"
        f"{mark}def test_misses(roxe_card):\n{call}    pass\n"
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=2, errors=1)
    assert "no report of key-stale, which the test expects" in result.stdout.str()


def test_reports_are_told_in_words(pytester):
    pytester.makepyfile(
        f"def test_wrong(roxe_card):\n    (roxe_card.folder / 'roxe-reports.jsonl').write_text('{REPORT}')\n"
    )
    text = pytester.runpytest().stdout.str()
    assert "roxe's checker: error [key-stale]: The key is dead." in text and "what to do     Register it." in text


def test_programs_keep_their_exit_status_under_the_checker(roxe_card):
    assert "warn" in roxe_card.env()["ROXE_CHECK"].split(",")


def test_an_error_of_the_checker_fails_the_test(pytester):
    pytester.makepyfile(
        "def test_wrong(roxe_card):\n"
        "    (roxe_card.folder / 'roxe-reports.jsonl').write_text('{\"severity\": \"error\", \"rule\": \"x\"}\\n')\n"
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, errors=1)
    assert "roxe's checker" in result.stdout.str()
