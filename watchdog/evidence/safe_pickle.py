"""Load a pickle that is plain data, and nothing else: no globals, no calls, no memory bombs.

The opcodes are walked first. Anything but containers, texts, numbers, constants and memo is
refused with its name and offset, so that nothing that could run code is ever handed to the
unpickler, whose find_class and persistent_load raise all the same.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

WEIGHT_LIMIT = 1 << 20
"""Values that one tuple may hold, shared ones counted as often as they are reached."""

MEMO_LIMIT = 1 << 24
"""The highest memo number that is believed; a higher one would only allocate memory."""


class Refused(ValueError):
    """The pickle holds something that plain data never needs, or is broken."""


class Truncated(ValueError):
    """The pickle ends before its STOP."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a pickle held. ``truncated`` when its end was missing and the rest was recovered."""

    value: Any
    truncated: bool = False


# Opcodes without arguments, those with arguments of fixed length, and short texts by their length:
# one run of them is skipped without coming back to Python.
_TEXTS = b"|".join(
    b"%b[\\s\\S]{%d}" % (re.escape(bytes([length])), length) for length in range(1, 41)
)
_RUN = re.compile(
    rb"(?:[}\])\(Nuesald\x88\x89\x94]"
    rb"|K[\s\S]|h[\s\S]|q[\s\S]|M[\s\S]{2}|J[\s\S]{4}|j[\s\S]{3}\x00|r[\s\S]{3}\x00"
    rb"|G[\s\S]{8}|\x95[\s\S]{8}|\x80[\x00-\x05]"
    rb"|\x8a(?:\x00|\x01[\s\S]|\x02[\s\S]{2}|\x03[\s\S]{3}|\x04[\s\S]{4}|\x05[\s\S]{5}"
    rb"|\x06[\s\S]{6}|\x07[\s\S]{7}|\x08[\s\S]{8}|\x09[\s\S]{9})"
    rb"|\x8c(?:\x00|" + _TEXTS + rb")"
    rb"|X(?:"
    + b"|".join(
        b"%b\x00\x00\x00[\\s\\S]{%d}" % (re.escape(bytes([length])), length)
        for length in range(1, 41)
    )
    + rb"))+"
)
_SHORT = {0x8C: 1, 0x55: 1, 0x43: 1}  # SHORT_BINUNICODE SHORT_BINSTRING SHORT_BINBYTES
_LONG = {0x58: 4, 0x54: 4, 0x42: 4}  # BINUNICODE BINSTRING BINBYTES
_LINES = {0x49, 0x4C, 0x46, 0x56, 0x53, 0x70, 0x67}  # I L F V S p g: text lines of protocol 0
_NAMES = {code.code: code.name for code in pickletools.opcodes}


_TUPLES = {0x85, 0x86, 0x87, 0x74}  # TUPLE1 TUPLE2 TUPLE3 TUPLE
_ENDS_IN_TUPLE = re.compile(rb"[\x85-\x87t](?:q[\s\S]|r[\s\S]{4}|\x94)?\Z")
_PAIRS = 24
_NESTED = re.compile(rb"(?:[\x85-\x87](?:q[\s\S]|r[\s\S]{4}|\x94)?){9}")
"""Tuples in tuples in tuples: hashing them as a key overflows the interpreter's own stack."""


def check(data: bytes) -> int:
    """Walk the opcodes; the offset after STOP. Raises Refused or Truncated.

    DUP, POP and sets are not plain data's either. A tuple that holds another twice, and so on, is
    short to write and takes for ever to hash: wherever tuples may hold tuples, they are weighed.
    """
    at, size = 0, len(data)
    bodies: set[bytes] = set()  # what stands before each pair: dumps hold few different pairs
    nests = False
    nested = _NESTED.search(data)
    if nested:
        raise Refused(f"tuples nested more than 8 deep at byte {nested.start()}")
    while at < size:
        # A bounded slice keeps the regular expression's own bookkeeping small.
        run = _RUN.match(data, at, at + 262144)
        if run:
            at = run.end()
            continue
        code = data[at]
        if code == 0x2E:
            if nests or len(bodies) > _PAIRS:
                _weigh(data)
            return at + 1
        if code in _TUPLES:
            before = data[max(at - 12, 0) : at]
            nests = nests or code != 0x86 or _ENDS_IN_TUPLE.search(before) is not None
            if len(bodies) <= _PAIRS:
                bodies.add(before)
            at += 1
            continue
        if code in _SHORT:
            if at + 2 > size:
                break
            at += 2 + data[at + 1]
        elif code in _LONG:
            if at + 5 > size:
                break
            at += 5 + int(struct.unpack_from("<I", data, at + 1)[0])
        elif code == 0x8D:  # BINUNICODE8
            if at + 9 > size:
                break
            at += 9 + int(struct.unpack_from("<Q", data, at + 1)[0])
        elif code in _LINES:
            end = data.find(b"\n", at)
            if end < 0:
                break
            line = data[at + 1 : end]
            if len(line) > 4000 and code in (0x49, 0x4C):
                raise Refused(f"a number of {len(line)} digits at byte {at}")
            if code in (0x70, 0x67) and not (line.isdigit() and int(line[:12]) < MEMO_LIMIT):
                raise Refused(f"memo number {line[:20]!r} at byte {at}")
            at = end + 1
        elif code in b"jr" and at + 5 <= size:
            raise Refused(f"memo number above {MEMO_LIMIT} at byte {at}")
        elif size - at < 12 and code in b"KhqMJjrG\x95\x80\x8a":
            break
        else:
            name = _NAMES.get(chr(code), f"0x{code:02x}")
            raise Refused(f"opcode {name} at byte {at}, which plain data never needs")
    raise Truncated(f"ends after {size} bytes without its STOP")


def _weigh(data: bytes) -> None:
    """Refuse tuples that hold more than WEIGHT_LIMIT values; every opcode is looked at."""
    stack: list[int] = []
    memo: dict[int, int] = {}
    marks: list[int] = []
    for code, arg, at in pickletools.genops(data):
        name = code.name
        try:
            if name == "MARK":
                marks.append(len(stack))
            elif name in ("TUPLE", "LIST", "DICT"):
                where = marks.pop()
                weight = sum(stack[where:]) + 1 if name == "TUPLE" else 1
                stack[where:] = [weight]
            elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
                count = int(name[-1])
                stack[-count:] = [sum(stack[-count:]) + 1]
            elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[int(arg or 0)] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET", "GET"):
                stack.append(memo[int(arg or 0)])
            elif name in ("APPENDS", "SETITEMS"):
                del stack[marks.pop() :]
            elif name in ("APPEND", "SETITEM"):
                del stack[-1 if name == "APPEND" else -2 :]
            elif name not in ("PROTO", "FRAME", "STOP"):
                stack.append(1)
        except (IndexError, KeyError):
            raise Refused(f"broken pickle at byte {at}") from None
        if stack and stack[-1] > WEIGHT_LIMIT:
            raise Refused(f"a tuple of more than {WEIGHT_LIMIT} values at byte {at}")


class _Plain(pickle.Unpickler):
    """An unpickler that can look up nothing."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise Refused(f"global {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Refused("a persistent id")


def load(data: bytes) -> Loaded:
    """The value of a pickle of plain data. Raises Refused, never anything else.

    A pickle whose end is missing is folded as far as it goes.
    """
    try:
        check(data)
    except Truncated:
        try:
            _weigh(data)
        except Refused:
            raise
        except Exception:  # genops complains about the cut end: expected here
            pass
        return Loaded(_fold(data), True)
    except Refused:
        raise
    except Exception as err:  # genops: text that is no text, and the like
        raise Refused(f"broken pickle: {type(err).__name__}: {err}") from None
    try:
        return Loaded(_Plain(io.BytesIO(data)).load())
    except Refused:
        raise
    except Exception as err:
        raise Refused(f"broken pickle: {type(err).__name__}: {err}") from None


_MARK = object()


def _fold(data: bytes) -> Any:
    """Run the opcodes of a cut pickle and close whatever is open. Raises Refused."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for code, arg, at in pickletools.genops(data):
            try:
                _step(code.name, arg, stack, memo)
            except (IndexError, KeyError, TypeError, AttributeError, ValueError):
                raise Refused(f"broken pickle at byte {at}") from None
    except Refused:
        raise
    except Exception:  # genops complains about the cut end: expected here
        pass
    unfinished: Any = None
    while len(stack) > 1:
        where = max((i for i, item in enumerate(stack) if item is _MARK), default=-1)
        if where < 1:
            break
        items, below = stack[where + 1 :], stack[where - 1]
        del stack[where:]
        # Half an element of a list would be mistaken for a whole one.
        if isinstance(below, list) and items and items[-1] is unfinished:
            items.pop()
        _merge(below, items)
        unfinished = below
    if not stack or stack[0] is _MARK:
        raise Refused("cut off before any data")
    return stack[0]


def _merge(below: Any, items: list[Any]) -> None:
    """Put the complete items of a cut container into it."""
    if isinstance(below, list):
        below.extend(items)
    elif isinstance(below, dict):
        for key, value in zip(items[0::2], items[1::2], strict=False):
            if isinstance(key, str | int):
                below[key] = value


def _since_mark(stack: list[Any]) -> list[Any]:
    where = max(i for i, item in enumerate(stack) if item is _MARK)
    items = stack[where + 1 :]
    del stack[where:]
    return items


def _step(name: str, arg: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """One opcode of the fold."""
    if name in ("PROTO", "FRAME", "STOP"):
        return
    if name == "MARK":
        stack.append(_MARK)
    elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
        stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[name])
    elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
        stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
    elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
        memo[int(arg or 0)] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET", "GET"):
        stack.append(memo[int(arg or 0)])
    elif name == "SETITEMS":
        items = _since_mark(stack)
        stack[-1].update(zip(items[0::2], items[1::2], strict=True))
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        stack[-1][key] = value
    elif name == "APPENDS":
        items = _since_mark(stack)
        stack[-1].extend(items)
    elif name == "APPEND":
        item = stack.pop()
        stack[-1].append(item)
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        count = int(name[-1])
        items = stack[-count:]
        del stack[-count:]
        stack.append(tuple(items))
    elif name in ("TUPLE", "LIST", "DICT"):
        items = _since_mark(stack)
        if name == "DICT":
            stack.append(dict(zip(items[0::2], items[1::2], strict=True)))
        else:
            stack.append(tuple(items) if name == "TUPLE" else items)
    else:
        stack.append(arg)
