"""`fabwatch match` with standard streams that are closed or full, and with noise on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOG = b"""[rank1]: Traceback (most recent call last):
[rank1]:   File "/a/train.py", line 3, in <module>
[rank1]: ValueError: boom
"""


def shell(line: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run ``line`` with $FW as the command; at most a minute."""
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_closed_standard_input_is_a_located_error() -> None:
    """No input at all is nothing readable, not a bug of ours."""
    done = shell('"$1" -m fabwatch match - <&-')
    assert done.returncode == 2
    assert b"stdin: is closed" in done.stderr
    assert b"internal error" not in done.stderr


def test_closed_standard_output_keeps_the_exit_code(tmp_path: Path) -> None:
    """A script that only wants the exit code may close the output."""
    log = tmp_path / "train.log"
    log.write_bytes(LOG)
    open_, closed = (shell(f'"$1" -m fabwatch match {log} {end}') for end in ("", ">&-"))
    assert open_.stdout
    assert closed.returncode == open_.returncode
    assert b"internal error" not in closed.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_output_is_said_as_such(tmp_path: Path) -> None:
    """A full disk is the reader's to mend."""
    log = tmp_path / "train.log"
    log.write_bytes(LOG)
    done = shell(f'"$1" -m fabwatch match {log} > /dev/full')
    assert done.returncode == 2
    assert b"cannot write: No space left" in done.stderr
    assert b"internal error" not in done.stderr


def test_noise_on_standard_input_is_nothing_readable() -> None:
    """Bytes of every value are no log in which nothing is wrong."""
    noise = bytes(i * i * 31 % 251 ^ i % 256 for i in range(100_000))
    done = shell('"$1" -m fabwatch match -', noise)
    assert done.returncode == 2
    assert b"nothing readable" in done.stderr


def test_a_log_with_holes_and_a_progress_bar_is_still_read() -> None:
    """NULs of a truncated log and backspaces of a bar do not make it binary."""
    done = shell('"$1" -m fabwatch match -', b"\0" * 50 + b"10%\b\b\b20%\n" * 5 + LOG)
    assert done.returncode in (0, 3)
    assert b"train.py:3" in done.stdout


def test_a_log_that_shows_no_exit_code_does_not_deny_one() -> None:
    """One rank's own output holds its exception, and cannot show how its process ended."""
    done = shell('"$1" -m fabwatch match -', LOG)
    assert done.returncode == 0
    assert b"rank-exception-peers-wait" in done.stdout
