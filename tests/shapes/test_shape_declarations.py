"""A signature states its facts by declaring lines, and a bad declaration is refused by place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.signatures.loader import HOME, SHARED, LibraryError, load, read_folders
from fabwatch.signatures.shapes import literals_of
from fabwatch.watchdog.evidence.facts import Fact
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.reading import read
from fabwatch.watchdog.evidence.shapes import Shapes, known
from fabwatch.watchdog.evidence.vocabulary import VOCABULARY

FAMILY = "schema: 1\nfamily: trial\nshapes:\n"


def declared(tmp_path: Path, *shapes: str) -> Path:
    folder = tmp_path / "signatures"
    folder.mkdir(exist_ok=True)
    (folder / "trial.yaml").write_text(FAMILY + "".join(shapes))
    load(folder)
    return folder


def shape(fact: str, regex: str, sample: str, **more: str) -> str:
    extra = "".join(f"    {key}: {value}\n" for key, value in more.items())
    return f"  - fact: {fact}\n    says: x\n    regex: '{regex}'\n    sample: ['{sample}']\n{extra}"


def facts_in(tmp_path: Path, name: str, text: str) -> list[Fact]:
    (tmp_path / "evidence").mkdir(exist_ok=True)
    (tmp_path / "evidence" / name).write_text(text)
    facts = analyse(read([tmp_path / "evidence"])).facts
    return [one for one in facts if one.name.startswith("trial.")]


def test_every_shape_of_the_library_keeps_the_rules() -> None:
    _, problems = read_folders([HOME, SHARED])
    assert problems == []


def test_no_sample_of_one_fact_is_a_counter_sample_of_itself() -> None:
    for one in known().all:
        assert not set(one.samples) & set(one.nevers)


def test_a_declared_line_becomes_a_fact_with_places_details_and_citation(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.link-broke", r"widget (?P<hca>mlx\d{1,2}) of (?P<host>\S{1,40}) broke: "
              r"(?P<code>\d{1,4})", "widget mlx3 of node-9 broke: 17"),
    )  # fmt: skip
    log = "[rank4]: step 1\n[rank4]: widget mlx3 of a-host broke: 12\n"
    (one,) = facts_in(tmp_path, "train.log", log)
    assert (one.where.ranks, one.where.hosts, one.where.links) == ((4,), ("a-host",), ("mlx3",))
    assert (one.get("code"), one.get("count"), one.cites) == ("12", 1, ("train.log:2",))


def test_a_log_without_the_line_denies_the_fact_and_no_log_leaves_it_open(tmp_path: Path) -> None:
    declared(tmp_path, shape("trial.widget-lost", "widget lost for good", "widget lost for good"))
    (tmp_path / "train.log").write_text("[rank0]: step 1\nRuntimeError: other\n")
    assert analyse(read([tmp_path / "train.log"])).facts.known("trial.widget-lost") is Known.NO
    (tmp_path / "dump").write_text("0")
    assert analyse(read([tmp_path / "dump"])).facts.known("trial.widget-lost") is Known.UNKNOWN


def test_a_victims_line_is_never_first_however_early_it_stands(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.peer-gone", "the peer went away", "the peer went away", victim="true"),
        shape("trial.real-cause", "the widget burnt out", "the widget burnt out"),
        shape("trial.second-cause", "the gadget burnt out", "the gadget burnt out"),
    )
    log = "the peer went away\nthe widget burnt out\nthe gadget burnt out\nthe peer went away\n"
    found = {one.name: one for one in facts_in(tmp_path, "train.log", log)}
    assert found["trial.real-cause"].get("first") is True
    assert found["trial.second-cause"].get("order") == 2
    assert found["trial.peer-gone"].get("first") is False
    assert found["trial.peer-gone"].get("count") == 2


def test_time_orders_causes_of_several_files(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.real-cause", "the widget burnt out", "the widget burnt out"),
        shape("trial.second-cause", "the gadget burnt out", "the gadget burnt out"),
    )
    facts_in(tmp_path, "a.log", "2026-01-01T00:00:09Z the gadget burnt out\n")
    both = facts_in(tmp_path, "b.log", "2026-01-01T00:00:02Z the widget burnt out\n")
    found = {one.name: one.get("order") for one in both}
    assert found == {"trial.real-cause": 1, "trial.second-cause": 2}


def test_output_of_any_command_is_searched_and_denies_nothing(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.limit-low", r"widget limit +(?P<kb>\d{1,9})$", "widget limit  64",
              sources="[other-text]"),
    )  # fmt: skip
    (one,) = facts_in(tmp_path, "limits.txt", "file size   unlimited\nwidget limit   64\n")
    assert one.get("kb") == "64"
    (tmp_path / "evidence" / "limits.txt").write_text("file size unlimited\n")
    (tmp_path / "evidence" / "train.log").write_text("RuntimeError: x\n")
    facts = analyse(read([tmp_path / "evidence"])).facts
    assert facts.known("trial.limit-low") is Known.UNKNOWN


def test_a_line_of_another_source_does_not_count_when_only_these_do(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.kernel-only", "widget driver died", "widget driver died",
              sources="[kernel-log]", only="true"),
    )  # fmt: skip
    assert facts_in(tmp_path, "train.log", "RuntimeError: x\nwidget driver died\n") == []
    text = "[12.000001] NVRM: loading\n[12.000002] widget driver died\n"
    (one,) = facts_in(tmp_path, "dmesg.txt", text)
    assert one.cites == ("dmesg.txt:2",)


def test_many_lines_of_one_shape_are_one_fact_with_a_count(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.often", r"widget (?P<path>/\S{1,40}) retried", "widget /a/b retried"),
    )
    log = "".join(f"widget /data/{n} retried\n" for n in range(500))
    (one,) = facts_in(tmp_path, "train.log", log)
    assert one.get("count") == 500


def test_a_version_range_keeps_lines_of_other_versions_out(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.old-bug", "widget slot leaked", "widget slot leaked",
              applies_to='{nccl: "<2.29.3"}'),
    )  # fmt: skip
    line = "h:1:1 [0] NCCL INFO NCCL version {}+cuda13.0\nwidget slot leaked\n"
    assert facts_in(tmp_path, "train.log", line.format("2.30.1")) == []
    assert len(facts_in(tmp_path, "train.log", line.format("2.28.9"))) == 1


@pytest.mark.parametrize(
    ("regex", "what"),
    [
        ("widget (broke", "does not compile"),
        ("(?i)widget broke", "ignores case"),
        ("(widget broke)?", "matches an empty line"),
        (r"widget (\w+\s?)+ broke", "may take for ever"),
        ("widget .*a.*b.*c.*d broke", "unbounded length"),
        (r"\d+ \w+", "give 'literal'"),
        ("widget (?P<count>broke)", "meaning of its own"),
    ],
)
def test_a_regex_that_is_no_good_is_refused_by_file_and_line(
    tmp_path: Path, regex: str, what: str
) -> None:
    with pytest.raises(LibraryError) as caught:
        declared(tmp_path, shape("trial.bad", regex, "widget broke"))
    assert any(what in text and "trial.yaml:4:" in text for text in caught.value.problems)


def test_samples_must_match_and_counter_samples_must_not(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="the sample does not match: 'gadget broke'"):
        declared(tmp_path, shape("trial.bad", "widget broke", "gadget broke"))
    with pytest.raises(LibraryError, match="matches what it must not: 'no widget broke'"):
        declared(tmp_path, shape("trial.bad", "widget broke", "widget broke",
                                 never="['no widget broke']"))  # fmt: skip


def test_a_fact_is_declared_in_one_file_only(tmp_path: Path) -> None:
    folder = declared(tmp_path, shape("trial.twice", "widget broke", "widget broke"))
    (folder / "more.yaml").write_text(FAMILY + shape("trial.twice", "gadget broke", "gadget broke"))
    with pytest.raises(LibraryError, match=r"trial.twice is declared in .*more.yaml"):
        load(folder)


def test_unknown_keys_places_and_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LibraryError) as caught:
        declared(
            tmp_path,
            shape("trial.bad", "(?P<x>widget) broke", "widget broke", sources="[gossip]",
                  where="{x: planet, y: rank}", colour="red"),
        )  # fmt: skip
    text = "\n".join(caught.value.problems)
    for what in ("called 'gossip'", "not 'planet'", "names the group 'y'", "the key 'colour'"):
        assert what in text


def test_derived_facts_stand_in_the_vocabulary_with_their_sources(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.seen-by", "widget seen here", "widget seen here",
              sources="[nccl-log, other-text]"),
    )  # fmt: skip
    entry = VOCABULARY["trial.seen-by"]
    assert entry.seen_by == ("nccl-log", "other-text") and entry.denied_by == ("nccl-log",)


@pytest.mark.parametrize(
    ("regex", "literals"),
    [
        (r"failed to extend /dev/shm/\S+", ("failed to extend /dev/shm/",)),
        (r"(?:first wording|second wording) of \d+", ("first wording", "second wording")),
        (r"(?:one|(?:two)?) long enough", (" long enough",)),
        (r"[Ee]rror \d+", ("rror ",)),
    ],
)
def test_the_literal_is_worked_out_from_the_regex(regex: str, literals: tuple[str, ...]) -> None:
    assert literals_of(regex) == literals


def test_the_sieve_finds_what_a_search_of_every_line_finds(tmp_path: Path) -> None:
    declared(
        tmp_path,
        shape("trial.sieve-a", r"widget 7\d burnt", "widget 73 burnt"),
        shape("trial.sieve-b", "gadget burnt", "gadget burnt"),
    )
    shapes: Shapes = known()
    lines = [f"line {n}: " + (f"widget 7{n % 10} burnt" if n % 7 == 0 else "fine")
             + (" gadget burnt" if n % 11 == 0 else "") for n in range(3000)]  # fmt: skip
    block = "\n".join(lines).encode()
    starts = shapes.sieve().starts(block)
    found = {block[at : block.find(b"\n", at) if b"\n" in block[at:] else None].decode()
             for at in starts}  # fmt: skip
    assert found == {line for line in lines if "burnt" in line}
