"""The loader is strict, and tells every mistake with its place, all at once."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabwatch.signatures.loader import LibraryError, check_links, load, read_folders, read_text
from fabwatch.signatures.model import Grade
from fabwatch.signatures.strict_yaml import Problems, parse, scalar

GOOD = """\
schema: 1
id: my-failure
title: Something is wrong
layer: host
symptom: hang
playbook: process-stalls
applies_to: {nccl: ">=2.27,<2.29.3"}
summary: What happened.
clues:
  - fact: process.stopped
    name: blamed
    required: true
    present: 20
    why: It is stopped.
  - fact: collective.lagging
    on: blamed
    present: 6
    absent: -2.5
    detail: {lag: 1, group: [a, b]}
    why: It is waited for.
mitigations:
  - {id: m, do: d, scope: s, risk: r, check: c, undo: u, undo_when: w}
references: ["https://example.org"]
tests:
  - name: yes
    facts:
      process.stopped: {ranks: [3], state: T, code: 12, share: 2.50, flag: true, clock: "12"}
      collective.lagging:
        - {ranks: [3], lag: 1}
        - {ranks: [4], hosts: [h1], lag: 2}
    unknown: [process.killed]
    expect: confirmed
    ranks: [3]
"""


def problems_of(text: str) -> list[str]:
    signature, found = read_text(text, "my-failure.yaml")
    assert (signature is None) == bool(found)
    return found


def test_a_good_file_becomes_a_signature_with_every_field() -> None:
    signature, found = read_text(GOOD, "my-failure.yaml")
    assert not found and signature is not None
    assert signature.blamed == "blamed"
    assert signature.applies_to == (("nccl", ">=2.27,<2.29.3"),)
    first, second = signature.clues
    assert (first.required, first.present, first.name) == (True, 20.0, "blamed")
    assert (second.on, second.absent) == ("blamed", -2.5)
    assert second.detail == (("group", ("a", "b")), ("lag", ("1",)))
    case = signature.cases[0]
    assert case.expect is Grade.CONFIRMED and case.where is not None and case.where.ranks == (3,)
    stopped = case.facts[0]
    assert stopped.get("state") == "T" and stopped.get("code") == 12
    assert stopped.get("share") == 2.5 and stopped.get("flag") is True
    assert stopped.get("clock") == "12", "a quoted number stays text"
    assert [f.where.ranks for f in case.facts[1:]] == [(3,), (4,)]
    assert case.unknown == ("process.killed",)


def test_scalars_stay_text_where_yaml_would_guess() -> None:
    problems = Problems("x.yaml")
    tree = parse("a: 12:30:45\nb: 0x1f\nc: 2.20\nd: no\ne: ~\n", problems)
    assert tree is not None and isinstance(tree.value, dict)
    texts = {key: value.value for key, value in tree.value.items()}
    assert texts == {"a": "12:30:45", "b": "0x1f", "c": "2.20", "d": "no", "e": "~"}
    assert scalar(tree.value["b"]) == "0x1f" and scalar(tree.value["d"]) == "no"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("title: Something is wrong\n", "", 1, "needs 'title'"),
        ("layer: host", "layer: cloud", 4, "must be one of"),
        ("symptom: hang", "symptom: hang\nsymptom: crash", 6, "second time"),
        ("schema: 1", "schema: 2", 1, "schema '2' is not known"),
        ("id: my-failure", "id: My_Failure", 1, "kebab-case"),
        ("id: my-failure", "id: other-failure", 1, "must be called other-failure.yaml"),
        ("present: 20", "present: twenty", 13, "must be a number"),
        ("present: 20", "present: 0x14", 13, "must be a number"),
        ("required: true", "required: yes", 12, "must be true or false"),
        ("on: blamed", "on: nobody", 15, "no earlier clue is called 'nobody'"),
        ("    on: blamed", "    on: blamed\n    name: x", 15, "not both"),
        ("fact: process.stopped\n", "fact: process.halted\n", 10, "no fact is called"),
        ("expect: confirmed", "expect: surely", 32, "must be one of"),
        (
            "expect: confirmed\n    ranks: [3]",
            "expect: confirmed\n    ranks: [three]",
            25,
            "'three' is no rank",
        ),
        ('nccl: ">=2.27', 'nccl: "~=2.27', 7, "no version range"),
        ("undo: u, ", "", 22, "needs 'undo'"),
        ("    required: true\n", "", 1, "no clue is required"),
        ("playbook: process-stalls", "playbook: process-stalls\nplaybok: x", 7, "does not know"),
        ("summary: What happened.", "summary: &a !!python/name:os.system x", 8, "not allowed"),
        ("summary: What happened.", "summary: !run x", 8, "not allowed"),
        ("summary: What happened.", "<<: {a: b}", 8, "merge keys"),
        ("summary: What happened.", "summary: [a]", 8, "must be text"),
        ("summary: What happened.", "summary: '  '", 8, "must not be empty"),
        ("    present: 20\n", "    present: 20\n    when: 1\n", 14, "does not know the key 'when'"),
        ("    present: 6\n    absent: -2.5\n", "", 15, "weighs nothing"),
        ("clues:", "clues: {}\nx:", 9, "must be a list"),
        ('references: ["https://example.org"]', "references: []", 23, "must not be empty"),
    ],
)
def test_a_mistake_is_told_with_its_line(old: str, new: str, line: int, says: str) -> None:
    assert old in GOOD
    found = problems_of(GOOD.replace(old, new, 1))
    assert any(says in one for one in found), found
    if line > 1:
        assert any(one.startswith(f"my-failure.yaml:{line}:") and says in one for one in found), (
            found
        )


def test_all_mistakes_are_told_at_once() -> None:
    text = GOOD.replace("layer: host", "layer: x").replace("symptom: hang", "symptom: y")
    found = problems_of(text.replace("present: 20", "present: z"))
    assert len(found) == 3


@pytest.mark.parametrize("text", ["", "a: [", "- 1\n- 2\n", "a: &x [*x]\n", "just text", "\t"])
def test_what_is_no_signature_is_a_located_problem_never_a_crash(text: str) -> None:
    found = problems_of(text)
    assert all(one.startswith("my-failure.yaml:") for one in found)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80), st.integers(0, len(GOOD)))
def test_garbage_in_a_file_never_raises(garbage: str, at: int) -> None:
    signature, found = read_text(GOOD[:at] + garbage + GOOD[at:], "my-failure.yaml")
    assert signature is not None or found


def folder_with(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / f"{name.replace('_', '-')}.yaml").write_text(text)
    return tmp_path


def test_a_users_folder_adds_to_the_library_and_may_replace(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, my_failure=GOOD)
    library = load(folder)
    assert "my-failure" in library.signatures and len(library) == len(load()) + 1
    alone = load(folder, builtin=False)
    assert list(alone.signatures) == ["my-failure"]
    replaced = GOOD.replace("my-failure", "link-throttled").replace("Something is", "Mine is")
    (tmp_path / "link-throttled.yaml").write_text(replaced)
    found = load(folder).signatures["link-throttled"]
    assert found.title == "Mine is wrong"


def test_errors_of_all_files_come_together(tmp_path: Path) -> None:
    folder_with(tmp_path, a="schema: 1\n", b="no: [\n")
    with pytest.raises(LibraryError) as caught:
        load(tmp_path)
    files = {Path(one.split(":")[0]).name for one in caught.value.problems}
    assert files == {"a.yaml", "b.yaml"}
    assert str(caught.value).count("\n") == len(caught.value.problems) - 1


def test_a_missing_folder_is_an_error_and_not_an_empty_library(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="no such folder"):
        load(tmp_path / "nowhere")


def test_one_id_twice_in_the_users_folders_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    folder_with(tmp_path / "one", my_failure=GOOD)
    folder_with(tmp_path / "two", my_failure=GOOD)
    found, problems = read_folders([tmp_path])
    assert list(found) == ["my-failure"]
    assert len(problems) == 1 and "is taken by" in problems[0]


LINKED = GOOD + textwrap.dedent(
    """\
    confusable_with:
      - {id: rank-killed, because: x, tell_apart: process.killed}
    parents: [no-such-parent]
    explains: [my-failure-2]
    """
)


def test_a_look_alike_that_does_not_name_it_in_turn_is_an_error_of_the_library() -> None:
    whole = dict(load().signatures)
    one = next(s for s in whole.values() if s.confusable_with)
    other = one.confusable_with[0].id
    assert not check_links(whole)
    whole[other] = dataclasses.replace(whole[other], confusable_with=())
    assert f"{other} does not name it as a look-alike in turn" in "\n".join(check_links(whole))


def test_links_to_other_signatures_are_checked(tmp_path: Path) -> None:
    with pytest.raises(LibraryError) as caught:
        load(folder_with(tmp_path, my_failure=LINKED))
    text = str(caught.value)
    assert "parents names 'no-such-parent'" in text
    assert "explains names 'my-failure-2'" in text
    assert "in turn" not in text  # a user's look-alike is made mutual; the library's is not
    (tmp_path / "my-failure.yaml").write_text(
        LINKED.replace("id: rank-killed", "id: nobody").replace("no-such-parent", "my-failure")
    )
    with pytest.raises(LibraryError) as again:
        load(tmp_path)
    assert "look-alike 'nobody' does not exist" in str(again.value)
    assert "is its own ancestor" in str(again.value)
