"""summary.md: the same story as the screen, unabridged, for tickets and chats."""

from __future__ import annotations

import re

from fabwatch.signatures.report.roles import ROLES, advice
from fabwatch.signatures.report.story import Line, tell
from fabwatch.signatures.verdict import Verdict

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def summary(verdict: Verdict, place: str = "", now: float | None = None) -> str:
    """Markdown; nothing that comes from evidence can become markup."""
    story = tell(verdict, place, now)
    out = [f"# {_safe(story.headline)}", "", f"**{_safe(story.badge)}**"]
    if story.below:
        out[-1] += f" — {_safe(story.below)}"
    for section in story.sections:
        out += ["", f"## {section.label.capitalize()}", ""]
        out += [f"- {_line(line)}" for line in section.lines]
    if verdict.outcome != "healthy":
        out += ["", "## Who does what", ""]
        for role, who in ROLES.items():
            told = [_safe(text) for text in advice(verdict, role)]
            out += [f"- **{who.capitalize()}**: {' '.join(told)}"] if told else []
    best = verdict.best
    if verdict.outcome == "diagnosed" and best is not None:
        if best.summary:
            out += ["", "## What this failure is", "", _safe(" ".join(best.summary.split()))]
        for step in best.mitigations[1:]:
            facts = (("risk", step.risk), ("check", step.check), ("undo", step.undo))
            out += ["", f"## Further: {_safe(step.id)}", "", f"- {_safe(step.do)}"]
            out += [f"- {name}: {_safe(text)}" for name, text in facts if text]
            if step.undo_when:
                out.append(f"- undo when: {_safe(step.undo_when)}")
        if best.references:
            out += ["", "## References", ""]
            out += [f"- <{url}>" for url in best.references if re.match(r"https?://\S+$", url)]
    return "\n".join(out) + "\n"


def _line(line: Line) -> str:
    sign = f"{_safe(line.sign)}: " if line.sign else ""
    text = f"**{_safe(line.text)}**" if line.loud else _safe(line.text)
    return f"{sign}{text}" + (f" ({_safe(line.aside)})" if line.aside else "")


def _safe(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
