"""Bindings of several ages, chosen by FAKE_TORCH: now, ancient, stubborn, wordy."""

import json
import os
import time

age = os.environ.get("FAKE_TORCH", "now")
calls = []


def _status(extra=None):
    marks = {"last_enqueued_collective": "7", "last_started_collective": "-1"}
    marks["last_completed_collective"] = "6"
    return json.dumps({"version": "2.10", "pg_status": {"0": marks}, **(extra or {})}).encode()


if age == "now":

    def _dump_fr_trace_json(collectives, active):
        calls.append(time.monotonic())
        return _status()


if age == "stubborn":

    def _dump_fr_trace_json():
        return _status()


if age == "wordy":

    def _dump_fr_trace_json(collectives, active):
        calls.append(time.monotonic())
        time.sleep(0.02)
        return _status({"entries": ["x" * 100] * 1000})
