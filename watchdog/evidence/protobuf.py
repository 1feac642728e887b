"""Take a protobuf message apart without its schema, bounded: field numbers and raw values."""

from __future__ import annotations

from collections.abc import Iterator

MAX_FIELDS = 200_000


class Broken(ValueError):
    """These bytes are no message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, number or bytes) of one message. Raises Broken at the first wrong byte.

    >>> list(fields(bytes.fromhex("1805")))
    [(3, 5)]
    """
    at, count = 0, 0
    while at < len(data):
        count += 1
        if count > MAX_FIELDS:
            raise Broken("too many fields")
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise Broken("field 0")
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise Broken(f"wire type {kind}")
        if length > len(data) - at:
            raise Broken("ends too early")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Broken("number without an end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
