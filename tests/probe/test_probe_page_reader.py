"""What a reader makes of a page: whole, torn, stale, garbage."""

import json
import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabwatch.watchdog.probe import pageformat
from fabwatch.watchdog.probe.c10d import GroupInfo
from fabwatch.watchdog.probe.core import groups_json
from fabwatch.watchdog.progress.page import decode, read_page

GOOD = {
    "pid": 41,
    "rank": 3,
    "world_size": 4,
    "local_rank": 1,
    "attempt": 2,
    "torch": "2.13.0",
    "python": "3.11.7",
    "initialised": True,
    "rank_from": "group",
    "groups": [{"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3]}],
    "status": {"gloo:0": {"enqueued": 9, "started": -1, "completed": 8}},
    "server": "/tmp/x/w41.sock",
    "control": "/tmp/x/p41.sock",
    "tick_s": 1.0,
    "exiting": False,
}


def page_bytes(payload=None, sequence=8, monotonic_ns=None, tick=5):
    text = json.dumps(GOOD if payload is None else payload).encode()
    now = time.monotonic_ns() if monotonic_ns is None else monotonic_ns
    return pageformat.pack(pageformat.Raw(sequence, now, time.time_ns(), tick, text))


def test_a_whole_page_is_read_with_all_its_fields(tmp_path):
    path = tmp_path / "41.page"
    path.write_bytes(page_bytes().ljust(pageformat.SIZE, b"\0"))
    page = read_page(path)
    assert (page.pid, page.rank, page.world_size, page.local_rank) == (41, 3, 4, 1)
    assert (page.attempt, page.tick, page.torch_version) == (2, 5, "2.13.0")
    assert page.groups[0].ranks == (0, 1, 2, 3)
    assert page.groups[0].desc == "default_pg"
    ((key, marks),) = page.status
    assert (key, marks.enqueued, marks.started, marks.completed) == ("gloo:0", 9, -1, 8)
    assert page.initialised and page.proved and not page.exiting and not page.stale
    assert page.artefact()["stale"] is False and page.artefact()["pid"] == 41


@pytest.mark.parametrize(("age", "stale"), [(0.0, False), (2.9, False), (3.1, True), (900.0, True)])
def test_a_page_is_stale_after_three_ticks(tmp_path, age, stale):
    now = 10**15
    path = tmp_path / "41.page"
    path.write_bytes(page_bytes(monotonic_ns=now - int(age * 1e9)))
    page = read_page(path, now_ns=now)
    assert page.stale is stale
    assert page.age_s == pytest.approx(age)


def test_a_page_from_before_a_reboot_is_aged_by_wall_clock(tmp_path):
    path = tmp_path / "41.page"
    path.write_bytes(page_bytes(monotonic_ns=10**15))
    assert read_page(path, now_ns=10**9).age_s < 60


def test_a_page_that_is_being_written_is_none_and_does_not_wait_for_ever(tmp_path):
    """The sequence is odd while a writer that uses the documented protocol writes."""
    data = bytearray(page_bytes())
    data[8] |= 1
    path = tmp_path / "41.page"
    path.write_bytes(bytes(data))
    assert read_page(path) is None


def test_a_torn_page_is_refused_by_its_checksum(tmp_path):
    old, new = page_bytes(sequence=8), page_bytes({**GOOD, "rank": 2}, sequence=10)
    path = tmp_path / "41.page"
    path.write_bytes(new[:64] + old[64:])
    assert read_page(path) is None
    path.write_bytes(new)
    assert read_page(path).rank == 2


def test_a_page_without_checksum_is_read(tmp_path):
    data = bytearray(page_bytes())
    data[40:44] = bytes(4)
    path = tmp_path / "41.page"
    path.write_bytes(bytes(data))
    assert read_page(path).rank == 3


def test_absent_folder_link_and_fifo_are_none(tmp_path):
    assert read_page(tmp_path / "none.page") is None
    assert read_page(tmp_path) is None
    os.mkfifo(tmp_path / "fifo.page")
    assert read_page(tmp_path / "fifo.page") is None
    (tmp_path / "real.page").write_bytes(page_bytes())
    (tmp_path / "link.page").symlink_to("real.page")
    assert read_page(tmp_path / "link.page") is None


def test_a_reader_beside_a_writer_sees_only_whole_pages(tmp_path):
    """A thousand rewrites of different length: what is read always agrees with itself."""
    path = tmp_path / "41.page"
    path.write_bytes(page_bytes())
    done = threading.Event()

    def write():
        fd = os.open(path, os.O_WRONLY)
        for n in range(1000):
            payload = {**GOOD, "rank": n, "world_size": n, "pad": "x" * (n * 37 % 5000)}
            os.pwrite(fd, page_bytes(payload, sequence=2 * n + 10, tick=n), 0)
        os.close(fd)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not done.is_set():
        page = read_page(path)
        if page is not None:
            seen.append((page.rank, page.world_size))
    writer.join(30)
    assert all(rank == world or (rank, world) == (3, 4) for rank, world in seen)
    assert read_page(path).rank == 999


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_garbage_is_none(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("g", numbered=True) / "1.page"
    path.write_bytes(data)
    assert read_page(path) is None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_gives_none_or_the_page_itself(data):
    """Cut, overwritten or extended anywhere: never another page, never an error."""
    whole = page_bytes(monotonic_ns=10**15)
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            # bytes 40-43 are the checksum: zeroing all four means that none was given
            at = data.draw(st.integers(0, len(damaged) - 1).filter(lambda i: not 40 <= i < 44))
            damaged[at] = data.draw(st.integers(0, 255))
    raw = pageformat.unpack(bytes(damaged))
    if raw is not None:
        assert raw == pageformat.unpack(whole)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "rank_from", "cost_us"]), JSON) | JSON)
def test_any_json_payload_gives_none_or_a_typed_page(payload):
    if isinstance(payload, dict):
        payload = {"pid": 1, **payload}
    raw = pageformat.Raw(2, 0, 0, 1, json.dumps(payload).encode())
    page = decode(raw, "x", 0)
    if page is not None:
        assert isinstance(page.rank, int) and isinstance(page.stale, bool)
        assert all(isinstance(rank, int) for group in page.groups for rank in group.ranks)
        assert all(isinstance(marks.enqueued, int) for _, marks in page.status)
        assert isinstance(page.artefact()["age_s"], float)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 9)), max_size=40))
def test_groups_of_any_size_fit_and_regular_ones_keep_their_ranks(shapes):
    groups = [
        GroupInfo(str(n), "", tuple(range(n, n + size * step, step)))
        for n, (size, step) in enumerate(shapes)
    ]
    text = groups_json(groups, 50_000)
    assert len(text) <= 50_000
    page = decode(pageformat.Raw(2, 0, 0, 1, b'{"pid":1,"groups":%s}' % text.encode()), "x", 0)
    assert [group.ranks for group in page.groups] == [group.ranks for group in groups]


def test_irregular_groups_that_do_not_fit_lose_ranks_but_are_named():
    ranks = tuple((i * i) % 100_003 for i in range(20_000))
    text = groups_json([GroupInfo("0", "d", ranks), GroupInfo("1", "s", (4, 2))], 50_000)
    first, second = json.loads(text)
    assert (first["name"], first["ranks"], first["size"]) == ("0", [], 20_000)
    assert second["ranks"] == [4, 2]


def test_a_payload_that_does_not_fit_is_refused_by_the_writer():
    with pytest.raises(ValueError, match="fit"):
        pageformat.pack(pageformat.Raw(2, 0, 0, 0, b"x" * pageformat.SIZE))
