"""The wheel, as the people who install it use it."""

import itertools
import shutil
import subprocess

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


@pytest.mark.roxe(faults="seed=1; drop 2%")
def test_a_pair_works_while_packets_are_lost(roxe_card):
    assert pingpong(roxe_card)
    assert roxe_card.env()["ROXE_FAULTS"] == "seed=1; drop 2%"


def test_an_error_of_the_checker_fails_the_test(pytester):
    pytester.makepyfile(
        "def test_wrong(roxe_card):\n"
        "    (roxe_card.folder / 'roxe-reports.jsonl').write_text('{\"severity\": \"error\", \"rule\": \"x\"}\\n')\n"
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, errors=1)
    assert "roxe's checker" in result.stdout.str()
