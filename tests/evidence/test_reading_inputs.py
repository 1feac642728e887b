"""Where evidence may come from: folders, archives, streams, links, and what is not followed."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fabwatch.watchdog.evidence import reading
from fabwatch.watchdog.evidence.inputs import BOMB_BYTES
from fabwatch.watchdog.evidence.ledger import Evidence, Ledger, Status
from fabwatch.watchdog.evidence.reading import Reading, incidents_of, read


def sample(samples: Path, name: str, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(samples / f"{name}.in", to)
    return to


@pytest.fixture
def folder(tmp_path: Path, samples: Path) -> Path:
    """A hand-saved folder with one dump, one stack and one process, nested."""
    root = tmp_path / "saved"
    sample(samples, "flight_recorder--nccl_trace_rank_0", root / "fr" / "nccl_trace_rank_0")
    sample(samples, "py_spy--pyspy_rank_0.txt", root / "node-1" / "deep" / "pyspy_rank_0.txt")
    sample(samples, "process_facts--proc_rank_1.txt", root / "proc_rank_1.txt")
    return root


def found(one: Reading) -> tuple[int, int, int]:
    return len(one.traces), len(one.stacks), len(one.processes)


def test_a_nested_folder_is_read_with_labels_relative_to_it(folder: Path) -> None:
    """Citations name the file as seen from what was given."""
    one = read([folder])
    assert found(one) == (1, 1, 1)
    assert one.stacks[0].source.path == "node-1/deep/pyspy_rank_0.txt"
    assert one.processes[0].state == "T"
    assert not one.problems


def test_several_paths_are_told_apart_by_prefix(folder: Path) -> None:
    """Two folders of one name do not mix up their labels."""
    one = read([folder / "fr", folder / "node-1"])
    assert {s.path for s in one.looked} == {
        "fr/nccl_trace_rank_0", "node-1/deep/pyspy_rank_0.txt",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_reads_as_its_folder(folder: Path, tmp_path: Path, kind: str) -> None:
    """Packed or not makes no difference."""
    target = tmp_path / "all.tar"
    with tarfile.open(target, kind) as archive:  # type: ignore[call-overload]
        archive.add(folder, "saved")
    assert found(read([target])) == (1, 1, 1)


def test_a_zip_and_a_gz_read_as_what_they_pack(folder: Path, tmp_path: Path) -> None:
    """Also a .gz inside a folder, whose name still tells the rank."""
    target = tmp_path / "all.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.rglob("*"):
            if path.is_file():
                archive.write(path, str(path.relative_to(folder)))
    assert found(read([target])) == (1, 1, 1)
    dump = folder / "fr" / "nccl_trace_rank_0"
    (folder / "fr" / "nccl_trace_rank_0.gz").write_bytes(gzip.compress(dump.read_bytes()))
    dump.unlink()
    one = read([folder])
    assert [t.rank for t in one.traces] == [0]


def test_standard_input_is_read_once(samples: Path) -> None:
    """``match -`` works in a pipe."""
    code = (
        "from fabwatch.watchdog.evidence.reading import read\n"
        "r = read(['-']); print(len(r.exits), r.errors[0].type, r.errors[0].cite)"
    )
    data = (samples / "job_log--torchrun.log.in").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", code], input=data, capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode().split() == ["2", "ValueError", "stdin:11"]


def test_members_that_lead_out_of_an_archive_are_not_read(tmp_path: Path, samples: Path) -> None:
    """Path traversal, absolute names and links are named as problems."""
    data = (samples / "py_spy--pyspy_rank_0.txt.in").read_bytes()
    target = tmp_path / "bad.tar"
    with tarfile.open(target, "w") as archive:
        for name in ("../pyspy_rank_0.txt", "/etc/pyspy_rank_1.txt", "ok/pyspy_rank_2.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("ok/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    one = read([target])
    assert [s.rank for s in one.stacks] == [2]
    assert len(one.problems) == 3
    assert {p.name for p in tmp_path.iterdir()} == {"bad.tar"}


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    """A few kilobytes that unpack to a gigabyte stop at a bound, and say so."""
    target = tmp_path / "bomb.log.gz"
    line = b"[rank0]: NCCL " + b"x" * 4000 + b"\n"
    with gzip.open(target, "wb") as out:
        for _ in range(4 * BOMB_BYTES // len(line)):
            out.write(line)
    one = read([target])
    assert any("times its size" in str(p) for p in one.problems)


def test_links_out_of_the_folder_and_loops_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither a loop nor a link to a secret is read; a link inside is."""
    secret = tmp_path / "secret_rank_7.txt"
    secret.write_text('Thread 1 (active): "MainThread"\n    f (a.py:1)\n')
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "self").symlink_to(folder / "self")
    (folder / "out_rank_7.txt").symlink_to(secret)
    (folder / "pyspy_rank_9.txt").symlink_to(folder / "node-1" / "deep" / "pyspy_rank_0.txt")
    one = read([folder])
    assert sorted(s.rank for s in one.stacks if s.rank is not None) == [0, 9]
    assert len(one.problems) == 3


def test_pipes_in_a_folder_do_not_block(folder: Path) -> None:
    """A FIFO without a writer would block for ever if it were opened."""
    os.mkfifo(folder / "fifo")
    assert found(read([folder])) == (1, 1, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_a_located_problem(folder: Path) -> None:
    """The rest is read all the same."""
    (folder / "node-1").chmod(0)
    try:
        one = read([folder])
    finally:
        (folder / "node-1").chmod(0o700)
    assert found(one) == (1, 0, 1)
    assert "node-1" in str(one.problems[0])


def test_what_cannot_be_listed_or_opened_is_a_located_problem(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root meets this on dead network mounts; here the system call is made to fail."""
    real = os.scandir

    def refuse(path: object) -> object:
        if str(path).endswith("node-1"):
            raise PermissionError(13, "Permission denied")
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr("fabwatch.watchdog.evidence.inputs.os.scandir", refuse)
    one = read([folder])
    assert found(one) == (1, 0, 1)
    assert "node-1: cannot be listed: Permission denied" in str(one.problems[0])


def test_a_missing_path_is_a_problem_not_an_exception(tmp_path: Path) -> None:
    """The command can then say what was wrong."""
    one = read([tmp_path / "nowhere"])
    assert one.empty
    assert "cannot be read" in str(one.problems[0])


def test_files_that_nobody_knows_are_listed(tmp_path: Path) -> None:
    """Nothing is lost silently, and prose is no log."""
    (tmp_path / "README.md").write_text("Watchdog caught collective operation timeout: example\n")
    (tmp_path / "truth.json").write_text('{"cause": "RuntimeError: x"}')
    (tmp_path / "pip.txt").write_text("torch==2.11.0\nnumpy==2.0\n")
    one = read([tmp_path])
    assert one.empty
    assert set(one.unrecognised) == {"README.md", "truth.json", "pip.txt"}


def test_a_parser_that_fails_costs_only_its_own_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in a parser is a problem with the file's name, never a traceback."""
    from fabwatch.watchdog.evidence.parsers import py_spy

    def broken(_: object) -> None:
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(py_spy, "parse", broken)
    one = read([folder])
    assert found(one) == (1, 0, 1)
    assert "the py-spy parser failed: ZeroDivisionError" in str(one.problems[0])


# ------------------------------------------------------------------ our own runs


@pytest.fixture
def run(tmp_path: Path, samples: Path) -> Path:
    """A run with two incidents, the first resolved."""
    root = tmp_path / "job-20261130T194500Z"
    for number, resolved in (("0001", True), ("0002", False)):
        incident = root / "incidents" / number
        value = json.loads((samples / "watch_files--incident.json.in").read_text())
        value["resolved"] = resolved
        incident.mkdir(parents=True)
        (incident / "incident.json").write_text(json.dumps(value))
        for where in ("ranks/0", "ranks/0/snapshot-2"):
            sample(samples, "py_spy--pyspy_rank_0.txt", incident / where / "pyspy_rank_0.txt")
        ledger = Ledger()
        for snapshot, path in ((1, "ranks/0"), (2, "ranks/0/snapshot-2")):
            ledger.add(
                Evidence(
                    source="python-stack", status=Status.OK, rank=0, pid=4711,
                    path=f"{path}/pyspy_rank_0.txt", started=1796067898.0 + snapshot, took=0.5,
                    snapshot=snapshot,
                ),
                incident / "ledger.jsonl",
            )  # fmt: skip
        with (incident / "ledger.jsonl").open("a") as out:
            out.write('{"source": "proc')
        (incident / "summary.md").write_text("RuntimeError: quoted\n")
    (root / "agent.log").write_text("Traceback (most recent call last)\nValueError: ours\n")
    (root / "manifest.json").write_text(
        json.dumps({"schema": "fabwatch.run/1", "job": "j", "versions": {"torch": "2.13.0"}})
    )
    (root / "exits.jsonl").write_text(
        '{"rank":1,"pid":4712,"code":3,"signal":null,"when":1796067899.0,"order":1,"ours":false}\n'
    )
    return root


def test_a_run_is_read_with_its_current_incident_only(run: Path) -> None:
    """Other incidents are named, and can be read one by one."""
    one = read([run])
    assert [p.name for p in one.incidents] == ["0001", "0002"]
    assert [p.name for p in incidents_of(run)] == ["0001", "0002"]
    assert {s.source.path for s in one.stacks} == {
        "incidents/0002/ranks/0/pyspy_rank_0.txt",
        "incidents/0002/ranks/0/snapshot-2/pyspy_rank_0.txt",
    }
    assert [e.code for e in one.exits] == [3]
    assert not one.errors, "our own summary and log are no evidence"
    assert ("torch", "2.13.0") in {v for s in one.shapes for v in s.versions}


def test_an_incident_has_snapshots_times_and_a_ledger_even_half_written(run: Path) -> None:
    """Numbers come from the folder, times from the ledger; a half line is a located problem."""
    one = read([run / "incidents" / "0002"])
    assert [(s.source.snapshot, s.source.taken) for s in one.stacks] == [
        (1, 1796067899.5), (2, 1796067900.5),
    ]  # fmt: skip
    assert len(one.ledger.lines) == 2
    assert any(p.where == "3" and "ledger" in p.path for p in one.problems)
    assert [e.code for e in one.exits] == [3], "the run's exits belong to its current incident"
    assert one.stalls[0].trigger == "stall"


def test_a_packed_incident_keeps_its_snapshots(run: Path, tmp_path: Path) -> None:
    """Sent by mail, it still says what came first."""
    target = tmp_path / "incident.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        archive.add(run / "incidents" / "0002", "0002")
    one = read([target])
    assert sorted(s.source.snapshot for s in one.stacks) == [1, 2]
    assert len(one.ledger.lines) == 2


# ------------------------------------------------------------------ who and when


def test_a_second_dump_in_a_folder_below_is_another_snapshot_in_order_of_progress(
    tmp_path: Path, samples: Path
) -> None:
    """File times lie after a copy; what the rank had recorded does not."""
    import pickle

    data = (samples / "flight_recorder--nccl_trace_rank_0.in").read_bytes()
    value = pickle.loads(data)
    value["entries"] = value["entries"][:-3]
    (tmp_path / "mid").mkdir()
    (tmp_path / "mid" / "nccl_trace_rank_0").write_bytes(pickle.dumps(value, protocol=2))
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    os.utime(tmp_path / "nccl_trace_rank_0", (1, 1))
    one = read([tmp_path])
    assert [(t.source.path, t.source.snapshot) for t in sorted(
        one.traces, key=lambda t: t.source.snapshot
    )] == [("mid/nccl_trace_rank_0", 1), ("nccl_trace_rank_0", 2)]  # fmt: skip


def test_a_mere_copy_is_no_second_snapshot(tmp_path: Path, samples: Path) -> None:
    """Two equal files of one moment must not prove that nothing moved."""
    for where in ("a", "b"):
        path = sample(
            samples, "flight_recorder--nccl_trace_rank_0", tmp_path / where / "nccl_trace_rank_0"
        )
        os.utime(path, (1796067898, 1796067898))
    one = read([tmp_path])
    assert [t.source.snapshot for t in one.traces] == [1]


def test_a_frozen_rank_dumped_twice_shows_two_snapshots(tmp_path: Path, samples: Path) -> None:
    """Equal files with times apart are what a hang looks like."""
    for where, when in (("a", 1796067898), ("b", 1796067908)):
        path = sample(
            samples, "flight_recorder--nccl_trace_rank_0", tmp_path / where / "nccl_trace_rank_0"
        )
        os.utime(path, (when, when))
    one = read([tmp_path])
    assert sorted(t.source.snapshot for t in one.traces) == [1, 2]


def test_a_stack_without_a_rank_in_its_name_gets_it_from_its_pid(
    tmp_path: Path, samples: Path
) -> None:
    """The job log or NCCL's log of the same pid says who it is."""
    text = (samples / "py_spy--pyspy_rank_0.txt.in").read_text().replace("1384", "949")
    (tmp_path / "stack.txt").write_text(text)
    sample(samples, "job_log--nccl.vm.949.log", tmp_path / "nccl.vm.949.log")
    one = read([tmp_path])
    assert [(s.rank, s.pid) for s in one.stacks] == [(1, 949)]


def test_ranks_of_a_small_communicator_are_not_taken_for_ranks_of_the_job(
    tmp_path: Path,
) -> None:
    """Two pairs of processes, each a communicator of two: nobody knows who is rank 0."""
    lines = [
        f"h:{pid}:{pid} [{dev}] NCCL INFO comm 0x1 rank {rank} nranks 2 cudaDev {dev} busId 10 "
        f"commId 0x{pid // 2} - Init START"
        for pid, rank, dev in ((10, 0, 0), (11, 1, 1), (12, 0, 2), (13, 1, 3))
    ]
    (tmp_path / "nccl.log").write_text("\n".join(lines) + "\n")
    one = read([tmp_path])
    assert all(not shape.ranks for shape in one.shapes)
    assert all(event.rank is None for event in one.events)


def test_reading_module_has_the_documented_entry_points() -> None:
    """Others import these names."""
    assert callable(reading.read) and callable(reading.incidents_of)


def test_what_a_probe_answered_too_late_is_no_exception_of_the_job(tmp_path: Path) -> None:
    """Our own note beside the artefacts of an incident is not read as the job's words."""
    rank = tmp_path / "ranks" / "1"
    rank.mkdir(parents=True)
    (tmp_path / "incident.json").write_text('{"schema": "fabwatch.incident/1", "trigger": "stall"}')
    (rank / "proc_rank_1.txt").write_text(
        "# /proc/7/status\nName:\tpython\nState:\tS (sleeping)\nPid:\t7\n"
    )
    text = "ValueError: this torch has no _dump_nccl_trace\n"
    (rank / "nccl_trace_rank_1.err").write_text(text)
    reading = read([tmp_path])
    assert not reading.errors
    assert not any("_dump_nccl_trace" in event.text for event in reading.events)
    (rank / "stderr.log").write_text(
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/train.py", line 3, in step\n[rank1]:     go()\n'
        f"[rank1]: {text}"
    )
    assert read([tmp_path]).errors


def test_what_would_never_end_is_told_and_not_waited_for(tmp_path: Path) -> None:
    """A pipe without a writer, devices without an end, and an empty name."""
    fifo = tmp_path / "log.fifo"
    os.mkfifo(fifo)
    said = [str(p) for p in read([fifo, "/dev/zero", "/dev/full", ""]).problems]
    assert any("log.fifo" in s and "empty" in s for s in said), said
    for device in ("/dev/zero", "/dev/full"):
        assert any(device in s and "no file, directory or pipe" in s for s in said), said
    assert any("an empty name" in s for s in said), said


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path: Path) -> None:
    fifo = tmp_path / "log.fifo"
    os.mkfifo(fifo)
    code = "import sys; open(sys.argv[1], 'w').write('Traceback (most recent call last):\\n' * 9)"
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # lets the writer open and finish
    try:
        subprocess.run([sys.executable, "-c", code, str(fifo)], check=True, timeout=60)
        reading = read([fifo])
    finally:
        os.close(reader)
    assert reading.looked and not any("empty" in str(p) for p in reading.problems)
