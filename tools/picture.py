"""Draw the screen of a real run as docs/verdict.svg: python tools/picture.py INCIDENT."""

from __future__ import annotations

import io
import sys
from pathlib import Path

# This script's folder holds fabwatch/ without its other halves; the installed package is meant.
HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p).resolve() != HERE]

from rich.console import Console  # noqa: E402

from fabwatch.signatures.diagnose import diagnose  # noqa: E402
from fabwatch.signatures.report.screen import draw  # noqa: E402
from fabwatch.signatures.report.story import tell  # noqa: E402
from fabwatch.watchdog.evidence.reading import read  # noqa: E402


def main(place: str) -> None:
    """Diagnose ``place`` and draw what a terminal would show."""
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    draw(console, tell(diagnose(read([place])), place))
    svg = console.export_svg(title="fabwatch", unique_id="fabwatch")
    text = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    (HERE.parent / "docs" / "verdict.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
