"""Scaffold a new member: python tools/new.py collector|parser|signature|playbook NAME.

What it writes fails its conformance test until it is filled in; nothing is overwritten.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

COLLECTOR = '''"""TODO: what this saves, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, failed


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """Save raw bytes; interpret nothing; let every failure be an outcome with a reason."""
    try:
        data = procfs.read("/proc/TODO")
    except OSError as err:
        yield failed(f"not readable: {{err.strerror}}")
        return
    yield target.save(out / "{name}.txt", data)


COLLECTOR = Collector(
    name="{name}", scope="host", tier=2, source="TODO", deadline_s=1.0, collect=collect
)
'''

PARSER = '''"""Read TODO.

Example::

    TODO: a real sample, as short as it goes
"""

from __future__ import annotations

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import Parsed, Source

NAME = "{name}"
MAKES = ("TODO",)


def sniff(head: bytes, name: str) -> int:
    """How sure it is, 0 to 100, by content; a name decides only between equals."""
    raise NotImplementedError


def parse(artefact: Artefact) -> Parsed:
    """Typed observations with citations; located errors for what cannot be read; never raises."""
    raise NotImplementedError
'''

SIGNATURE = """schema: 1
id: {name}
title: TODO what is wrong, as the person who reads it at night would say it
layer: {layer}
symptom: hang
status: draft
playbook: TODO
reproduce: ""
applies_to: {{nccl: "", torch: "", arch: ""}}
summary: |
  TODO what happened, in two or three sentences, and who is innocent.
# A line that states it. Leave `shapes` out if every fact exists (docs/facts.md).
shapes:
  - fact: log.{name}
    says: TODO what the line means
    sources: [job-log, nccl-log]
    regex: 'TODO with (?P<rank>\\d{{1,7}}) and bounds such as .{{0,80}}'
    sample: ["TODO with 3 and bounds such as the line that the software writes"]
    never: ["TODO a look-alike line that means something else"]
clues:
  - fact: TODO
    name: blamed
    required: true
    present: 10
    why: TODO what the evidence shows, and why it speaks for this failure.
confusable_with: []
mitigations:
  - id: todo
    do: TODO
    scope: TODO
    risk: TODO
    check: TODO
    undo: TODO
    undo_when: TODO
references: []
tests:
  - name: TODO the failure as it is seen when everything could be looked at
    facts: {{}}
    expect: confirmed
  - name: TODO a look-alike
    facts: {{}}
    expect: ruled-out
  - name: TODO the required fact could not be looked for
    facts: {{}}
    unknown: []
    expect: cannot-tell
"""

PLAYBOOK = """# TODO: the family of failures, in one line

TODO: who is usually innocent, and what not to do first.

## `TODO-signature-id`: TODO what is seen

1. TODO look: one command, and what its answer means.
2. TODO act: the smallest step that may help, its risk, how to undo it and when.
3. TODO check: how to see that it helped.
"""


def _module(name: str) -> str:
    return name.replace("-", "_")


PLACES: dict[str, tuple[Callable[[str, str], str], str]] = {
    "collector": (lambda name, layer: f"watchdog/collectors/{_module(name)}.py", COLLECTOR),
    "parser": (lambda name, layer: f"watchdog/evidence/parsers/{_module(name)}.py", PARSER),
    "signature": (lambda name, layer: f"signatures/library/{layer}/{name}.yaml", SIGNATURE),
    "playbook": (lambda name, layer: f"playbooks/{name}.md", PLAYBOOK),
}
"""Kind -> its path below the root, and its text."""

NEXT = {
    "collector": "add its source to the vocabulary if it is new, and a raw sample to tests/",
    "parser": "put a real sample into its docstring, and NAME.in with NAME.facts.yaml into tests/",
    "signature": "fabwatch signatures test {name}; then make docs",
    "playbook": "name it in the signatures that it serves",
}
"""Kind -> what to do after filling it in."""


def main(argv: list[str], root: Path = ROOT) -> int:
    """Write the file; 2 for a name that cannot be used, 1 if the file exists."""
    parser = argparse.ArgumentParser(prog="tools/new.py", description=__doc__)
    parser.add_argument("kind", choices=sorted(PLACES))
    parser.add_argument("name", help="kebab-case; names the problem or the thing, not the deed")
    parser.add_argument("--layer", default="host", help="of a signature (default: host)")
    given = parser.parse_args(argv)
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", given.name):
        parser.error(f"{given.name!r} is not kebab-case")
    layers = sorted(p.name for p in (root / "signatures/library").iterdir() if p.is_dir())
    if given.kind == "signature" and given.layer not in layers:
        parser.error(f"no layer {given.layer!r}; there are {', '.join(layers)}")
    place, text = PLACES[given.kind]
    path = root / place(given.name, given.layer)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.format(name=given.name, layer=given.layer))
    except FileExistsError:
        print(f"{path}: exists already", file=sys.stderr)
        return 1
    print(f"{path.relative_to(root)}: written; fill in every TODO")
    print(f"then: {NEXT[given.kind].format(name=given.name)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
