"""Arming switches evidence on and overrides nothing that the user chose."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabwatch.watchdog.launch.arming import arm, probe_site
from fabwatch.watchdog.launch.options import LaunchOptions
from fabwatch.watchdog.launch.reach import reach_of

RUN, SOCKETS = Path("/runs/job-1"), Path("/tmp/fabwatch-x")
SITE = str(probe_site())

DEFAULTS = {
    "FABWATCH_RUN_DIR": "/runs/job-1",
    "FABWATCH_RUN_ID": "job-1-x",
    "FABWATCH_SOCKETS": "/tmp/fabwatch-x",
    "FABWATCH_OLD_NAMES": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_DUMP_TEMP_FILE": "/runs/job-1/fr/nccl_trace_rank_",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/runs/job-1/fr/nccl_trace_rank_",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/fabwatch-x/fr-pipe-",
    "NCCL_RAS_ADDR": "localhost:23456",
    "NCCL_DEBUG": "WARN",
    "NCCL_DEBUG_FILE": "/runs/job-1/nccl/nccl.%h.%p.log",
    "PYTHONPATH": SITE,
}


def armed(environ=(), argv=("torchrun", "t.py"), conf=(), ras_port=23456, run=RUN, **options):
    chosen = LaunchOptions(**options)
    return arm(dict(environ), run, SOCKETS, chosen, argv=argv, ras_port=ras_port, conf=conf)


def line(got, name):
    (found,) = [entry for entry in got.lines if entry.name == name]
    return found


def test_in_an_empty_environment_everything_is_armed():
    got = armed()
    assert got.environ == DEFAULTS
    assert {entry.name for entry in got.lines if entry.armed} == set(DEFAULTS)
    assert all(entry.armed for entry in got.lines)


@pytest.mark.parametrize(
    ("name", "value", "silent"),
    [
        ("TORCH_FR_BUFFER_SIZE", "77", ["TORCH_NCCL_TRACE_BUFFER_SIZE"]),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "77", ["TORCH_FR_BUFFER_SIZE"]),
        ("TORCH_FR_DUMP_TEMP_FILE", "/u/fr_", ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/u/fr_", ["TORCH_FR_DUMP_TEMP_FILE"]),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", []),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/u/pipe", []),
        ("NCCL_RAS_ADDR", "localhost:1", []),
        ("NCCL_DEBUG", "INFO", ["NCCL_DEBUG_FILE"]),
        ("NCCL_DEBUG_FILE", "/u/nccl.log", ["NCCL_DEBUG"]),
        ("NCCL_DEBUG", "", ["NCCL_DEBUG_FILE"]),
    ],
)
def test_what_the_user_set_under_either_name_stays_and_its_twin_is_not_added(name, value, silent):
    got = armed({name: value})
    want = {k: v for k, v in DEFAULTS.items() if k not in silent}
    if name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        del want["FABWATCH_OLD_NAMES"]  # nothing of ours that could be taken back
    assert got.environ == {**want, name: value}
    for other in (name, *silent):
        entry = line(got, other)
        assert not entry.armed
        assert f"{name} is set by the user" in entry.reason
        assert entry.value == value


@given(
    st.dictionaries(
        st.sampled_from([*DEFAULTS, "TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING", "OTHER"]),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
    ),
    st.booleans(),
    st.booleans(),
)
def test_no_value_of_the_users_is_ever_changed(environ, timing, probe):
    """But PYTHONPATH, which is added to, and our own three names."""
    got = armed(environ, timing=timing, probe=probe)
    for name, value in environ.items():
        if name == "PYTHONPATH":
            assert got.environ[name].endswith(value)
        elif not name.startswith("FABWATCH_"):
            assert got.environ[name] == value
    for entry in got.lines:
        if not entry.armed and entry.name != "PYTHONPATH":
            assert got.environ.get(entry.name) == environ.get(entry.name)


def test_the_input_is_not_touched():
    environ = {"PATH": "/bin"}
    armed(environ)
    assert environ == {"PATH": "/bin"}


def test_the_probes_folder_comes_first_and_the_users_path_after_it():
    assert armed({"PYTHONPATH": "/u/a:/u/b"}).environ["PYTHONPATH"] == f"{SITE}:/u/a:/u/b"
    assert armed({"PYTHONPATH": ""}).environ["PYTHONPATH"] == SITE
    assert SITE.endswith("probe/site")


def test_no_probe_leaves_pythonpath_alone():
    got = armed({"PYTHONPATH": "/u"}, probe=False)
    assert got.environ["PYTHONPATH"] == "/u"
    assert line(got, "PYTHONPATH") == type(line(got, "PYTHONPATH"))(
        "PYTHONPATH", False, "--no-probe"
    )
    assert "PYTHONPATH" not in armed(probe=False).environ


def test_timing_only_when_asked_and_not_over_the_users_old_or_new_name():
    assert "TORCH_NCCL_ENABLE_TIMING" not in armed().environ
    assert armed(timing=True).environ["TORCH_NCCL_ENABLE_TIMING"] == "1"
    for name in ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING"):
        got = armed({name: "0"}, timing=True)
        assert got.environ[name] == "0"
        assert not line(got, "TORCH_NCCL_ENABLE_TIMING").armed
        assert ("TORCH_NCCL_ENABLE_TIMING" in got.environ) == (name == "TORCH_NCCL_ENABLE_TIMING")


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_recorder_that_the_user_switched_off_gets_no_dump_variables(name):
    got = armed({name: "0"})
    for other in ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"):
        assert other not in got.environ
        assert "switches the flight recorder off" in line(got, other).reason


def test_only_the_new_size_name_means_no_pipe_in_some_versions_and_the_ledger_says_so():
    name = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
    assert "2.8 to 2.10" in line(armed({"TORCH_FR_BUFFER_SIZE": "500"}), name).reason
    assert line(armed(), name).reason == ""


def test_nccls_configuration_file_counts_as_the_user():
    """A variable would override the file."""
    got = armed(conf=["NCCL_DEBUG"])
    assert "NCCL_DEBUG" not in got.environ
    assert "NCCL_DEBUG_FILE" not in got.environ
    assert "nccl.conf" in line(got, "NCCL_DEBUG").reason


def test_without_a_port_or_with_ras_off_there_is_no_ras_address():
    assert "NCCL_RAS_ADDR" not in armed(ras_port=None).environ
    got = armed({"NCCL_RAS_ENABLE": "0"})
    assert "NCCL_RAS_ADDR" not in got.environ
    assert "NCCL_RAS_ENABLE=0" in line(got, "NCCL_RAS_ADDR").reason


def test_a_percent_sign_in_the_path_is_not_nccls_pattern():
    got = armed(run=Path("/runs/100%pure"))
    assert got.environ["NCCL_DEBUG_FILE"] == "/runs/100%%pure/nccl/nccl.%h.%p.log"


@pytest.mark.parametrize(
    "argv",
    [
        ["docker", "run", "--gpus", "all", "img", "python", "t.py"],
        ["/usr/bin/podman", "--log-level=error", "run", "img"],
        ["docker", "exec", "box", "torchrun"],
        ["srun", "--export=NONE", "python", "t.py"],
        ["srun", "-N2", "--export", "NONE", "python", "t.py"],
        ["srun", "--export=FOO,BAR=1", "t"],
        ["env", "-i", "python", "t.py"],
        ["sudo", "python", "t.py"],
        ["ssh", "node1", "torchrun", "t.py"],
    ],
)
def test_what_no_variable_can_reach_is_not_armed_with_a_reason(argv):
    got = armed(argv=argv)
    assert not any(entry.armed for entry in got.lines)
    assert all(entry.reason for entry in got.lines)


@pytest.mark.parametrize(
    "argv",
    [
        ["docker-compose-like", "run"],
        ["srun", "--export=ALL", "t"],
        ["srun", "--export=ALL,FOO=1", "t"],
        ["srun", "python", "t.py", "--", "--export=NONE"],
        ["env", "A=1", "python", "t.py"],
        ["sudo", "-E", "python", "t.py"],
        ["torchrun", "train.py", "--host", "ssh"],
        ["python", "train.py", "-I"],
        ["python", "-u", "-m", "torch.distributed.run", "-E"],
        ["python", "-W", "ignore", "t.py"],
        ["python", "-X", "dev", "t.py", "-S"],
        ["python", "-c", "print(1)", "-I"],
    ],
)
def test_what_variables_do_reach_is_armed(argv):
    assert all(entry.armed for entry in armed(argv=argv).lines)


@pytest.mark.parametrize("name", ["SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV"])
def test_sruns_export_variables_count_and_its_option_wins(name):
    assert reach_of(["srun", "t"], {name: "NONE"}).nothing
    assert not reach_of(["srun", "--export=ALL", "t"], {name: "NONE"}).nothing
    assert not reach_of(["torchrun", "t"], {name: "NONE"}).nothing


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "-I", "t.py"],
        ["/opt/py/bin/python3.12", "-uE", "-m", "x"],
        ["pypy3", "-S", "t.py"],
        ["torchrun", "--no-python", "python3", "-I", "t.py"],
        ["python", "-Wignore", "-I", "t.py"],
        ["python", "-X", "dev", "-S", "t.py"],
    ],
)
def test_an_isolated_python_gets_the_variables_and_no_probe(argv):
    got = armed(argv=argv)
    assert [entry.name for entry in got.lines if not entry.armed] == ["PYTHONPATH"]
    assert "sitecustomize" in line(got, "PYTHONPATH").reason


def test_launchers_over_several_hosts_are_armed_with_a_caution():
    for argv in (["srun", "-N2", "t"], ["mpirun", "-np", "8", "t"]):
        entry = line(armed(argv=argv), "NCCL_DEBUG_FILE")
        assert entry.armed
        assert "hosts" in entry.reason


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_command_line_can_be_looked_at(words):
    assert isinstance(reach_of(words, {}).nothing, str)
