"""The bytes of a progress page: packed by the probe, unpacked by whoever reads it.

Layout in docs/interfaces.md. The probe writes a page with one system call, so that it can never
be left half-written by a thread that lost the GIL in between; the checksum tells a reader who
came in the middle of that call.
"""

from __future__ import annotations

import binascii
import struct
from typing import NamedTuple

MAGIC = b"FABWPG1\0"
SIZE = 65536
PAYLOAD = 64  # offset of the payload
ROOM = SIZE - PAYLOAD  # bytes a payload may have
TICK_S = 1.0
STALE_TICKS = 3.0

_HEADER = struct.Struct("<8sIIQQQ")
_CHECK = struct.Struct("<I")


class Raw(NamedTuple):
    """One consistent page. Times in nanoseconds; ``payload`` is the JSON text as bytes."""

    sequence: int
    monotonic_ns: int
    epoch_ns: int
    tick: int
    payload: bytes


def _checksum(header: bytes, payload: bytes) -> int:
    """CRC-32 of both; never 0, because 0 says that the writer gave none."""
    return binascii.crc32(payload, binascii.crc32(header)) & 0xFFFFFFFF or 1


def pack(raw: Raw) -> bytes:
    """The page as bytes, header and payload, without the unused rest; ValueError if too big."""
    if len(raw.payload) > ROOM:
        raise ValueError(f"payload of {len(raw.payload)} bytes; {ROOM} fit")
    header = _HEADER.pack(
        MAGIC,
        raw.sequence & 0xFFFFFFFE,
        len(raw.payload),
        raw.monotonic_ns,
        raw.epoch_ns,
        raw.tick,
    )
    check = _CHECK.pack(_checksum(header, raw.payload))
    return b"".join((header, check, bytes(PAYLOAD - len(header) - len(check)), raw.payload))


def unpack(data: bytes) -> Raw | None:
    """The page in ``data``, or None while it is being written, truncated, or no page at all."""
    if len(data) < PAYLOAD:
        return None
    magic, sequence, length, monotonic_ns, epoch_ns, tick = _HEADER.unpack_from(data)
    if magic != MAGIC or sequence & 1 or length > ROOM or PAYLOAD + length > len(data):
        return None
    payload = bytes(data[PAYLOAD : PAYLOAD + length])
    (check,) = _CHECK.unpack_from(data, _HEADER.size)
    if check and check != _checksum(bytes(data[: _HEADER.size]), payload):
        return None
    return Raw(sequence, monotonic_ns, epoch_ns, tick, payload)
