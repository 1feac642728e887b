"""The command line as a person or a script meets it: real processes, exit codes, streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fabwatch.cli import LATER

HEAVY = ("torch", "numpy", "rich", "msgspec", "psutil", "yaml", "structlog", "fabwatch.signatures")


@pytest.fixture
def fabwatch(tmp_path):
    """Run `python -m fabwatch WORDS` in an empty directory, without variables of ours."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FABWATCH_")}

    def run(*words, env=None, stdin=None, cwd=tmp_path):
        return subprocess.run(
            [sys.executable, "-m", "fabwatch", *map(str, words)],
            cwd=cwd,
            env={**clean, **(env or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# ------------------------------------------------------------------ help


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nsys.argv = ['fabwatch', '--help']\nfrom fabwatch.cli import main\n"
        f"try:\n    main()\nfinally:\n    print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "LAUNCHER ARGS..." in done.stdout


def test_every_command_has_help_and_a_summary(fabwatch):
    top = fabwatch("--help").stdout
    listed = top.split("Commands:")[1].split()
    for name in ("capture", "demo", "match", "playbook", "run", "signatures", "top"):
        assert name in listed
        done = fabwatch(name, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith(f"Usage: fabwatch {name} ")


def test_version(fabwatch):
    assert fabwatch("--version").stdout.startswith("fabwatch ")


def test_without_words_it_shows_the_usage_and_fails(fabwatch):
    done = fabwatch()
    assert done.returncode == 2
    assert "LAUNCHER ARGS..." in done.stdout + done.stderr


# ------------------------------------------------------------------ the first word


def test_the_first_word_that_is_no_command_starts_the_launch(fabwatch):
    done = fabwatch("--grace", "0", "sh", "-c", "echo out; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")


def test_run_says_the_launch_explicitly(fabwatch):
    done = fabwatch("run", "--grace", "0", "--", "sh", "-c", "echo out; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")


def test_options_after_the_launcher_belong_to_the_launcher(fabwatch):
    words = ["--out", "x", "--quiet", "--help", "--", "match", "--version"]
    done = fabwatch("--grace", "0", sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout == f"{words}\n"
    assert done.returncode == 0


def test_options_before_the_launcher_are_ours(fabwatch, tmp_path):
    done = fabwatch("--out", "elsewhere", "--grace", "0", "--job-name", "mine", "true")
    assert done.returncode == 0
    assert [p.name.split("-")[0] for p in (tmp_path / "elsewhere").iterdir()] == ["mine"]
    assert not (tmp_path / "fabwatch-runs").exists()


def test_variables_and_files_give_options_and_the_command_line_wins(fabwatch, tmp_path):
    (tmp_path / "fabwatch.toml").write_text('out = "from-file"\ngrace = 0\n')
    fabwatch("true")
    assert (tmp_path / "from-file").is_dir()
    fabwatch("true", env={"FABWATCH_OUT": "from-variable"})
    assert (tmp_path / "from-variable").is_dir()
    fabwatch("--out", "from-words", "true", env={"FABWATCH_OUT": "from-variable"})
    assert (tmp_path / "from-words").is_dir()


@pytest.mark.parametrize("word", sorted(LATER))
def test_a_command_of_a_later_version_is_refused_and_never_launched(fabwatch, tmp_path, word):
    folder = tmp_path / "bin"
    folder.mkdir()
    script(folder / word, "echo launched")
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = fabwatch(word, env=path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "not in this version" in done.stderr
    assert f"fabwatch run -- {word}" in done.stderr


def test_a_program_named_like_a_command_is_launched_by_run(fabwatch, tmp_path):
    script(tmp_path / "match", "echo launched")
    done = fabwatch("run", "--grace", "0", "--", "match", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (done.returncode, done.stdout) == (0, "launched\n")


def test_a_word_that_is_neither_command_nor_program_ends_as_in_a_shell(fabwatch, tmp_path):
    done = fabwatch("no-such-launcher", "x")
    assert done.returncode == 127
    assert "no-such-launcher" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "file").write_text("x")
    assert fabwatch("./file").returncode == 126


def test_run_without_a_launcher_is_a_usage_error(fabwatch):
    done = fabwatch("run", "--")
    assert done.returncode == 2
    assert "nothing to launch" in done.stderr


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--grace", "soon"], {}, "--grace"),
        (["--on-stall", "panic"], {}, "--on-stall"),
        (["--keep", "0"], {}, "--keep"),
        ([], {"FABWATCH_STALL_AFTER": "-1"}, "FABWATCH_STALL_AFTER"),
    ],
)
def test_a_bad_value_is_a_usage_error_that_names_it_and_nothing_runs(fabwatch, words, env, said):
    done = fabwatch(*words, "echo", "launched", env=env)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_bad_configuration_file_is_named_with_its_line(fabwatch, tmp_path):
    (tmp_path / "fabwatch.toml").write_text('out = "x"\ngrace = "soon"\n')
    done = fabwatch("echo", "launched")
    assert done.returncode == 2
    assert "fabwatch.toml:2: grace" in done.stderr


def test_a_broken_installation_does_not_cost_the_launch():
    """The stub cannot be imported, and the job runs all the same, with its own exit code."""
    code = (
        "import sys\nsys.modules['fabwatch.watchdog.launch.stub'] = None\n"
        "sys.argv = ['fabwatch', 'sh', '-c', 'echo out; exit 7']\n"
        "from fabwatch.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "runs unwatched" in done.stderr


# ------------------------------------------------------------------ errors of other commands


def test_match_without_evidence_is_a_usage_error(fabwatch):
    done = fabwatch("match")
    assert done.returncode == 2
    assert "which evidence?" in done.stderr


@pytest.mark.parametrize("name", ["no-such-path", "empty", "noise"])
def test_match_of_nothing_readable_says_so_and_ends_with_2(fabwatch, tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "x.bin").write_bytes(bytes(range(256)) * 9)
    done = fabwatch("match", name)
    assert done.returncode == 2
    assert "nothing readable" in done.stderr
    assert name in done.stderr
    assert done.stdout == ""


def test_hidden_write_options_are_checked(fabwatch, tmp_path):
    assert fabwatch("match", "--write").returncode == 2
    neither = fabwatch("match", "--write", "--incident", "a", "--run", "b")
    assert neither.returncode == 2
    assert "a: no such directory" in neither.stderr
    assert fabwatch("match", "--incident", "a", "x").returncode == 2
    assert fabwatch("match", "--write", "--incident", tmp_path / "no").returncode == 2


def test_broken_signatures_are_located_and_end_with_2(fabwatch, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "odd.yaml").write_text("schema: 1\nid: odd\nid: odd\n")
    done = fabwatch("signatures", "list", "--signatures", folder)
    assert done.returncode == 2
    assert "odd.yaml:" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_signature_gets_the_nearest_names(fabwatch):
    done = fabwatch("signatures", "show", "process-stopped-sigstp")
    assert done.returncode == 2
    assert "process-stopped-sigstop" in done.stderr


def test_signatures_are_listed_and_shown(fabwatch):
    assert "process-stopped-sigstop" in fabwatch("signatures", "list", "--layer", "host").stdout
    assert "process-stopped-sigstop" not in fabwatch("signatures", "list", "--layer", "gpu").stdout
    shown = fabwatch("signatures", "show", "process-stopped-sigstop").stdout
    for text in ("process.stopped", "undo when", "rank-host-stalled", "kill -CONT"):
        assert text in shown
    assert fabwatch("signatures", "list", "--layer", "attic").returncode == 2


def test_capture_and_top_say_that_nothing_runs(fabwatch, tmp_path):
    for name in ("capture", "top"):
        done = fabwatch(name)
        assert done.returncode == 1
        assert "no running job" in done.stderr
        assert fabwatch(name, "no-such-run").returncode == 2
        (tmp_path / "ended").mkdir(exist_ok=True)
        (tmp_path / "ended" / "launch.json").write_text('{"sockets": "/nonexistent"}')
        assert "the run has ended" in fabwatch(name, "ended").stderr


def test_an_internal_error_is_one_line_and_a_traceback_only_on_request():
    code = (
        "import sys\nsys.argv = ['fabwatch', 'match', 'x']\n"
        "import fabwatch.commands.match as m\n"
        "m._diagnosed = lambda *a: 1 / 0\nfrom fabwatch.cli import main\nmain()"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "internal error" in done.stderr
    assert "Traceback" not in done.stderr
    loud = subprocess.run(
        run, capture_output=True, text=True, timeout=60, env={**os.environ, "FABWATCH_DEBUG": "1"}
    )
    assert "ZeroDivisionError" in loud.stderr
    assert "Traceback" in loud.stderr


@pytest.mark.parametrize(
    "words", [[], ["match"], ["top"], ["capture"], ["signatures", "measure"], ["playbook"]]
)
def test_the_page_about_the_command_line_is_what_help_prints(words):
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    shown = subprocess.run(
        [sys.executable, "-m", "fabwatch", *words, "-h"],
        env={**os.environ, "COLUMNS": "90"}, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    section = page.split(f"## `{' '.join(['fabwatch', *words])}`\n\n```text\n")[1].split("\n```")[0]
    assert [line.rstrip() for line in shown.splitlines()] == section.splitlines()


def test_a_layer_by_its_other_name_is_listed_and_an_unknown_one_is_refused(fabwatch):
    ours = fabwatch("signatures", "list", "--layer", "application")
    assert (
        ours.stdout and fabwatch("signatures", "list", "--layer", "program").stdout == ours.stdout
    )
    done = fabwatch("signatures", "list", "--layer", "bogus")
    assert done.returncode == 2
    assert "no layer 'bogus'; there are application, runtime, fabric" in done.stderr
    none = fabwatch("signatures", "list", "--layer", "numerics", "--symptom", "hang")
    assert (none.returncode, none.stdout) == (0, "")
    assert "leave one of the two out" in none.stderr
