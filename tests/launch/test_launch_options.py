"""Options: command line over environment over file, and bad values are located."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabwatch.watchdog.launch.options import LaunchOptions, OptionsError, options_from


def test_the_defaults(tmp_path):
    want = LaunchOptions(
        out="./fabwatch-runs", stall_after="auto", on_stall="report", grace=10.0, probe=True,
        timing=False, quiet=False, notify=None, signatures=None, keep=None, job_name="",
    )  # fmt: skip
    assert options_from({}, {}, tmp_path) == want == LaunchOptions()
    assert LaunchOptions(stall_after=None).stall_after == "auto"


def test_command_line_over_environment_over_file(tmp_path):
    (tmp_path / "fabwatch.toml").write_text('out = "f"\ngrace = 1\nstall-after = 30\nkeep = 5\n')
    env = {"FABWATCH_OUT": "e", "FABWATCH_GRACE": "2"}
    got = options_from({"out": "c", "grace": None, "keep": None}, env, tmp_path)
    assert (got.out, got.grace, got.stall_after, got.keep) == ("c", 2.0, 30.0, 5)


def test_pyproject_counts_only_without_a_fabwatch_toml(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.fabwatch]\non_stall = "kill"\nno-probe = true\n'
    )
    got = options_from({}, {}, tmp_path)
    assert (got.on_stall, got.probe) == ("kill", False)
    (tmp_path / "fabwatch.toml").write_text("timing = true\n")
    got = options_from({}, {}, tmp_path)
    assert (got.on_stall, got.timing) == ("report", True)


def test_a_file_in_a_folder_above_is_not_read(tmp_path):
    """It may be anybody's, and --notify is a command."""
    (tmp_path / "fabwatch.toml").write_text('notify = "rm"\n')
    below = tmp_path / "below"
    below.mkdir()
    assert options_from({}, {}, below).notify is None


@pytest.mark.parametrize(
    ("value", "probe"), [("1", False), ("true", False), ("0", True), ("", True)]
)
def test_no_probe_as_a_variable(tmp_path, value, probe):
    assert options_from({}, {"FABWATCH_NO_PROBE": value}, tmp_path).probe is probe
    assert options_from({"no_probe": True}, {"FABWATCH_PROBE": "1"}, tmp_path).probe is False


def test_every_bad_value_is_named_with_its_place(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nkeep = 0\n\n[tool.fabwatch]\nkeep = 0\ngrce = 3\n'
        'on-stall = "explode"\nquiet = "perhaps"\n'
    )  # fmt: skip
    env = {"FABWATCH_GRACE": "soon", "FABWATCH_NO_PROBE": "hm"}
    with pytest.raises(OptionsError) as caught:
        options_from({"stall_after": "-1", "out": "s3://b/p", "what": 1}, env, tmp_path)
    text = str(caught.value)
    file = tmp_path / "pyproject.toml"
    for part in (
        f"{file}:5: keep: 0 is not a number of runs",
        f"{file}:6: grce: no such option",
        f"{file}:7: on-stall: 'explode' is neither",
        f"{file}:8: quiet: 'perhaps'",
        "FABWATCH_GRACE: 'soon'",
        "FABWATCH_NO_PROBE: 'hm'",
        "--stall-after: '-1'",
        "--out: s3://b/p",
        "--what: no such option",
    ):
        assert part in text
    assert len(caught.value.problems) == 9


def test_a_file_that_is_no_toml_is_named_and_a_project_that_never_heard_of_us_is_left_alone(
    tmp_path,
):
    (tmp_path / "pyproject.toml").write_text("<<<<<<< HEAD\n")
    assert options_from({}, {}, tmp_path) == LaunchOptions()
    (tmp_path / "pyproject.toml").write_text("<<<<<<< HEAD\n[tool.fabwatch]\n")
    with pytest.raises(OptionsError, match=r"pyproject\.toml: not valid TOML"):
        options_from({}, {}, tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool]\nfabwatch = 3\n")
    with pytest.raises(OptionsError, match="must be a table"):
        options_from({}, {}, tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "fabwatch.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionsError, match="cannot be read"):
        options_from({}, {}, tmp_path)


@given(st.dictionaries(st.sampled_from(list(LaunchOptions.__dataclass_fields__)), st.text()))
def test_any_text_gives_options_or_located_problems(values):
    try:
        got = options_from({}, {f"FABWATCH_{k.upper()}": v for k, v in values.items()}, Path("/"))
    except OptionsError as err:
        assert all(problem.startswith("FABWATCH_") for problem in err.problems)
    else:
        assert isinstance(got, LaunchOptions)
