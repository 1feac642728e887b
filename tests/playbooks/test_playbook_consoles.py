"""What playbooks show on a console is true: recorded cases are run again and compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fabwatch import playbooks

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console( recorded)?\n(.*?)^```$", re.M | re.S)


def blocks(text: str, recorded: bool) -> list[str]:
    return [m[2] for m in BLOCK.finditer(text) if bool(m[1]) is recorded]


def commands(block: str) -> list[tuple[str, str]]:
    """(command, what it printed) of a block."""
    out: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, printed = part.partition("\n")
        out.append((command, printed))
    return out


def differences(block: str) -> list[str]:
    """Commands of a block that do not print what stands below them, by really running them."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("FABWATCH_")}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
    wrong = []
    for command, printed in commands(block):
        done = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=environ, text=True, timeout=60,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.stdout != printed:
            wrong.append(f"$ {command}\n  shown:   {printed}  printed: {done.stdout}")
    return wrong


@pytest.mark.parametrize("name", playbooks.names())
def test_every_playbook_shows_a_recorded_case(name):
    found = blocks(playbooks.read(name), recorded=True)
    assert sum(len(commands(block)) for block in found) >= 1
    for block in found:
        assert all("fabwatch match" in command and printed for command, printed in commands(block))


@pytest.mark.slow
@pytest.mark.parametrize("name", playbooks.names())
def test_a_recorded_case_still_comes_out_as_the_playbook_shows(name):
    for block in blocks(playbooks.read(name), recorded=True):
        assert differences(block) == []


def test_a_line_that_is_no_longer_true_is_noticed():
    true = "$ echo 'step 1' | fabwatch match --brief - | cut -c1-4\n"
    shown = differences(true + "nonsense\n")
    assert len(shown) == 1 and "nonsense" in shown[0]
    assert differences("$ echo a; exit 3\na\n") == []
    assert differences("$ fabwatch match --brief no/such/file\n") != []


@pytest.mark.parametrize("name", playbooks.names())
def test_every_command_of_a_playbook_is_a_shell_command_that_parses(name):
    text = playbooks.read(name)
    found = [c for kind in (True, False) for b in blocks(text, kind) for c in commands(b)]
    assert found
    script = "\n".join(command for command, _ in found)
    done = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"playbooks/{name}.md: {done.stderr}"


def test_a_command_that_does_not_parse_is_noticed():
    done = subprocess.run(["bash", "-n"], input="for x in; done)", text=True, capture_output=True)
    assert done.returncode != 0


def test_the_terminal_shows_the_section_of_a_signature_and_where_it_belongs():
    done = subprocess.run(
        [sys.executable, "-m", "fabwatch", "playbook", "process-stopped-sigstop"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    for part in ("Symptom", "Confirm", "Tell apart", "Mitigate", "Undo when", "Prevent"):
        assert f"### {part}" in done.stdout
    assert "## process-stopped-sigstop" in done.stdout
    assert "## rank-host-stalled" not in done.stdout
