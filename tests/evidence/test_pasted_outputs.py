"""A text into which somebody pasted several outputs: each is read, with its host and lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabwatch.watchdog.evidence import sections
from fabwatch.watchdog.evidence.reading import Reading, read

IBSTAT = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Disabled\n"
PSI = (
    "some avg10=62.10 avg60=40.00 avg300=9.12 total=91\n"
    "full avg10=41.05 avg60=30.00 avg300=7.01 total=71\n"
)
DMESG = "[  123.456789] NVRM: Xid (PCI:0000:9c:00): 79, pid=230, GPU has fallen off the bus.\n"
DF = (
    "Filesystem      Size  Used Avail Use% Mounted on\n"
    "tmpfs            64M   64M     0 100% /dev/shm\n"
)


def of(tmp_path: Path, text: str) -> Reading:
    (tmp_path / "ticket.txt").write_text(text)
    return read([tmp_path / "ticket.txt"])


def places(one: Reading) -> dict[str, tuple[str | None, str]]:
    """Kind -> host and citation of everything that was measured."""
    return {m.kind: (m.source.host, m.cite()) for m in one.measured}


@pytest.mark.parametrize(
    ("heading", "host"),
    [
        ("root@node7:~# ibstat", "node7"),
        ("[root@node7 ~]# ibstat mlx5_0", "node7"),
        ("(venv) ubuntu@node7:/data/run$ sudo ibstat", "node7"),
        ("node7:~ # ibstat", "node7"),
        ("$ ibstat", None),
        ("+ ibstat", None),
        ("# /usr/sbin/ibstat", None),
        ("$ ssh node7 ibstat", "node7"),
        ("--- node-7 ---", "node-7"),
        ("===== node7: ibstat =====", "node7"),
        ("==> out/ibstat.txt <==", None),
    ],
)
def test_a_prompt_or_rule_starts_an_output_and_tells_its_host(
    tmp_path: Path, heading: str, host: str | None
) -> None:
    one = of(tmp_path, f"{heading}\n{IBSTAT}$ cat /proc/pressure/memory\n{PSI}")
    assert places(one)["rdma-port"] == (host, "ticket.txt:4")
    assert one.measured[1].name == "memory"
    assert one.measured[1].cite("full_avg10") == "ticket.txt:8"
    assert not one.unrecognised and not one.problems


def test_a_host_between_rules_holds_for_what_follows_until_the_next(tmp_path: Path) -> None:
    """The outputs of two hosts in one text stay apart."""
    one = of(tmp_path, f"--- node-3 ---\n$ ibstat\n{IBSTAT}$ df -h\n{DF}--- node-4 ---\n{IBSTAT}")
    assert [(m.kind, m.source.host) for m in one.measured] == [
        ("rdma-port", "node-3"), ("mount", "node-3"), ("rdma-port", "node-4"),
    ]  # fmt: skip


def test_quoted_mail_and_code_fences_are_read_like_the_outputs_in_them(tmp_path: Path) -> None:
    """Nobody who asks for help takes the quotation marks off first."""
    body = f"root@node7:~# ibstat\n{IBSTAT}root@node7:~# dmesg | tail\n{DMESG}"
    quoted = "Hello,\n" + "".join(f"> {line}\n" for line in body.splitlines())
    fenced = f"it hangs on node7:\n```\n{body}```\nany idea?\n"
    for text, first in ((quoted, 5), (fenced, 6)):
        one = of(tmp_path, text)
        assert places(one)["rdma-port"] == ("node7", f"ticket.txt:{first}")
        (event,) = [e for e in one.events if e.kind == "kernel.xid"]
        assert (event.host, event.line) == ("node7", first + 3)


def test_pdsh_output_is_read_host_by_host(tmp_path: Path) -> None:
    """Lines of hosts that interleave."""
    lines = IBSTAT.splitlines()
    text = "".join(f"node{n}: {line}\n" for line in lines for n in (1, 2))
    one = of(tmp_path, text)
    assert [(m.source.host, m.cite("state")) for m in one.measured] == [
        ("node1", "ticket.txt:5"), ("node2", "ticket.txt:6"),
    ]  # fmt: skip


def test_a_name_that_a_program_itself_prints_before_a_colon_is_no_prefix(tmp_path: Path) -> None:
    """NCCL's own lines begin with host:pid:tid, without a blank."""
    line = (
        "node-07:510{n}:510{n} [{n}] NCCL INFO Send: opCount 0 sendbuff 0x7f recvbuff (nil) "
        "count 8 datatype 7 op 0 root {o} comm 0x5{n} [nranks=2] stream 0x9\n"
    )
    text = "".join(line.format(n=n, o=1 - n) for n in (0, 1, 0, 1))
    assert [e.kind for e in of(tmp_path, text).events] == ["nccl-log.call"] * 4


def test_outputs_without_any_heading_are_all_read(tmp_path: Path) -> None:
    """Two tools one after the other: each finds its own lines."""
    one = of(tmp_path, IBSTAT + DF)
    assert {m.kind for m in one.measured} == {"rdma-port", "mount"}


def test_a_log_that_shows_a_tool_s_output_first_is_still_read_as_a_log(tmp_path: Path) -> None:
    """Launch scripts print ibstat before they start the job."""
    log = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "train.py", line 3, in <module>\n[rank0]:     go()\n'
        "[rank0]: RuntimeError: boom\n"
    )
    one = of(tmp_path, IBSTAT + log)
    assert [m.kind for m in one.measured] == ["rdma-port"]
    assert [e.type for e in one.errors] == ["RuntimeError"]


def test_files_of_one_process_stay_together(tmp_path: Path) -> None:
    """Status and wait channel of one pid make one process."""
    one = of(
        tmp_path,
        f"$ ibstat\n{IBSTAT}$ cat /proc/77/status\nName:\tpython\nState:\tT (stopped)\nPid:\t77\n"
        "$ cat /proc/77/wchan\ndo_signal_stop\n",
    )
    (state,) = one.processes
    assert (state.pid, state.state, state.wchan) == (77, "T", "do_signal_stop")


def test_one_output_alone_is_not_taken_apart(tmp_path: Path) -> None:
    """A job log with a few shell lines stays one log, and prose stays prose."""
    log = "+ python train.py\n[rank0]: step 1 loss 2.0\n[rank0]: step 2 loss 1.0\n"
    assert sections.split(log)
    one = of(tmp_path, log)
    assert {s.kind for s in one.looked} == {"job-log"}
    assert of(tmp_path, "--- notes ---\nnothing here\n").unrecognised == ("ticket.txt",)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["$ ibstat", "--- n-1 ---", "```", "> x", "==> a/b <==", "-----", "node-1", "text", "",
             "root@h:~# ls", "a1: b", "$ cat /proc/5/status"]
        ),
        max_size=30,
    )
)  # fmt: skip
def test_parts_keep_the_number_of_every_line(lines: list[str]) -> None:
    """Whatever the headings, a line of a part is the line of the text (less marks and prefixes)."""
    for part in sections.split("\n".join(lines)):
        for number, line in enumerate(part.lines, part.first):
            assert line.strip() == "" or line in lines[number - 1]


def test_a_query_without_its_heading_is_read_by_the_columns_of_its_command(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(
        "$ nvidia-smi --query-gpu=index,utilization.gpu,clocks_throttle_reasons.active "
        "--format=csv,noheader\n0, 99 %, 0x0000000000000000\n1, 98 %, 0x0000000000000084\n"
    )
    found = {m.name: {k: v for k, v, _ in m.values} for m in read([tmp_path]).measured}
    assert found == {
        "gpu0": {"utilisation": 99},
        "gpu1": {"utilisation": 98, "power_cap": "Active", "power_brake": "Active"},
    }


def test_one_command_on_several_hosts_is_read_for_each_of_them(tmp_path: Path) -> None:
    head = "$ pdsh -w n[1-2] nvidia-smi --query-gpu=index,clocks_event_reasons.active "
    rows = "".join(
        f"n{host}: {index}, 0x{0x40 * (host == 2 and index):016x}\n"
        for host in (1, 2) for index in (0, 1)
    )  # fmt: skip
    (tmp_path / "notes.txt").write_text(head + "--format=csv,noheader\n" + rows)
    (hot,) = read([tmp_path]).measured
    assert (hot.source.host, hot.name, hot.get("thermal_hw")) == ("n2", "gpu1", "Active")
    assert hot.cite("thermal_hw") == "notes.txt:5"
