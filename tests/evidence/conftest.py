"""What the tests of the reading side share: samples, artefacts from bytes, the evidence folder."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.naming import hint_of

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLES = ROOT / "tests" / "samples"
EVIDENCE = Path(os.environ.get("FABWATCH_EVIDENCE", str(ROOT.parent / "shared" / "evidence")))

Maker = Callable[[bytes, str], Artefact]


def artefact_of(data: bytes, path: str) -> Artefact:
    """An artefact that holds ``data`` and is labelled ``path``."""
    name = path.rsplit("/", 1)[-1]
    return Artefact(path, name, lambda: io.BytesIO(data), len(data), None, hint_of(path))


@pytest.fixture
def make_artefact() -> Maker:
    """Make an artefact from bytes and a label."""
    return artefact_of


@pytest.fixture
def samples() -> Path:
    """The folder of raw samples."""
    return SAMPLES


@pytest.fixture
def evidence() -> Path:
    """The folder of real captures; the test is skipped where it does not exist."""
    if not EVIDENCE.is_dir():
        pytest.skip("no real captures here (FABWATCH_EVIDENCE)")
    return EVIDENCE
