"""Cross-rank analysis: who waits for whom, and why."""

from __future__ import annotations

from fabwatch.signatures.analysis.analyse import analyse
from fabwatch.signatures.analysis.model import Analysis, Ask, Doubt, HangGraph, Root

__all__ = ["Analysis", "Ask", "Doubt", "HangGraph", "Root", "analyse"]
