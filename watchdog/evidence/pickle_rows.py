"""Read the long list of alike rows in a pickle at the speed of comparing bytes.

A flight-recorder dump is a small dictionary with one list of thousands of rows that differ in
numbers only. The first row of each kind is taken apart opcode by opcode and leaves a template;
a later row whose bytes are the same outside of its numbers has the same opcodes, so that only its
numbers are read. Nothing is ever handed to an unpickler: a pickle that holds anything but plain
data is left (None) to :mod:`fabwatch.watchdog.evidence.safe_pickle`, which says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from fabwatch.watchdog.evidence.safe_pickle import MEMO_LIMIT

MAX_TEMPLATES = 512
MAX_CONTENTS = 20_000
MAX_ROW = 1 << 20
MAX_STACK = 1 << 20
MAX_OPEN = 32
"""More kinds of rows, longer rows or deeper nesting are read in the ordinary way."""

_TUPLE_ITEMS = 64
_RECENT = (1 << 45) - 1


class _Odd(Exception):
    """Something that this reader leaves to the ordinary one."""


class _Mark:
    """The bottom of an open container on the stack."""


_MARK = _Mark()
_PUT = "memo number"
_NUMBER = "number"


@dataclass(slots=True)
class _Spot:
    """A number of a row: where it stands, how it is written, and the row's key that it is of."""

    at: int
    code: str
    what: str
    key: str = ""


@dataclass(slots=True)
class _Template:
    """What all rows of one kind share, ready to be compared."""

    length: int
    mask: int
    fixed: int
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    content: Callable[[tuple[Any, ...]], Any]
    columns: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    long_columns: bool
    put: int
    highest_get: int
    contents: dict[Any, int] = field(default_factory=dict)


@dataclass(slots=True)
class Rows:
    """``value``: the dictionary around the rows. ``contents``: a whole row of each kind.

    ``rows`` has for each row the number of its content, then its columns in the order asked for;
    None where the row has none. ``truncated``: the pickle ends before its STOP.
    """

    value: dict[Any, Any]
    contents: list[dict[Any, Any]]
    rows: list[tuple[Any, ...]]
    truncated: bool = False


def read(data: bytes, key: str, columns: Sequence[str], ignored: Sequence[str] = ()) -> Rows | None:
    """The rows of the list ``key`` of a pickled dictionary; None: read it in the ordinary way.

    ``columns`` are keys of a row whose numbers differ from row to row, ``ignored`` those whose
    numbers nobody wants; any other number is part of the content that rows share. Never raises.
    Linear; memory is that of the rows' numbers.
    """
    machine = _Machine(data, key, tuple(columns), frozenset(ignored))
    try:
        return machine.run()
    except (_Odd, IndexError, KeyError, TypeError, ValueError, struct.error, OverflowError):
        return None


class _Machine:
    """The stack machine, and the templates that it has learnt."""

    def __init__(
        self, data: bytes, key: str, columns: tuple[str, ...], ignored: frozenset[str]
    ) -> None:
        self.data = data
        self.key = key
        self.columns = columns
        self.ignored = ignored
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.spots: list[_Spot] | None = None
        self.row_at = 0
        self.marks: list[int] = []
        self.gets: list[int] = []
        self.templates: list[_Template] = []
        self.contents: list[dict[Any, Any]] = []
        self.rows: list[tuple[Any, ...]] = []

    def run(self) -> Rows | None:
        """Walk everything."""
        data, size = self.data, len(self.data)
        while self.at < size:
            if data[self.at] == 0x2E:  # STOP
                (value,) = self.stack
                return self._done(value, False)
            try:
                self._step()
            except (IndexError, struct.error):
                if size - self.at > MAX_ROW:
                    raise
                break
            if self.stack and self.stack[-1] is _MARK and self._at_rows() and not self._list():
                break
        value = self.stack[0] if self.stack else None
        open_pairs = self.stack[2:] if len(self.stack) > 1 and self.stack[1] is _MARK else []
        if not isinstance(value, dict) or not self.rows:
            return None
        for name, one in zip(open_pairs[0::2], open_pairs[1::2], strict=False):
            if isinstance(name, str) and one is not _MARK:
                value[name] = one
        return self._done(value, True)

    def _done(self, value: Any, truncated: bool) -> Rows | None:
        if not isinstance(value, dict) or not self.rows:
            return None
        return Rows(value, self.contents, self.rows, truncated)

    def _at_rows(self) -> bool:
        """Whether the stack is [dict, mark, ..., key, [], mark]: rows follow."""
        stack = self.stack
        return (
            len(stack) > 4
            and len(stack) % 2 == 1
            and stack[-3] == self.key
            and stack[-2] == []
            and stack[1] is _MARK
            and isinstance(stack[0], dict)
            and not any(one is _MARK for one in stack[2:-1])
        )

    # -------------------------------------------------------------- rows

    def _list(self) -> bool:
        """Rows until the list ends; False when the data does."""
        data, size = self.data, len(self.data)
        templates, add = self.templates, self.rows.append
        follows: dict[int, int] = {}  # the last few templates -> the one that came after them
        recent = 0
        while True:
            at = self.at
            if at >= size:
                return False
            if data[at] in (0x65, 0x61):  # APPENDS or APPEND: a batch ends, perhaps others follow
                after = data[at + 1 : at + 3]
                if after == b"(}" or after[:1] == b"}":  # keys of the next item are no dicts
                    self.at = at + 1 + (after[:1] == b"(")
                    continue
                self.at = at + 1
                self.stack.pop()
                self.marks.pop()
                return True
            number = self._match(follows.get(recent, 0))
            one = templates[number] if number >= 0 else None
            if one is not None:
                values = one.unpack(data, at)
                if one.put >= 0 and values[one.put] <= one.highest_get:
                    raise _Odd  # what a row refers to may have been replaced
                index = one.contents.get(one.content(values), -1)
                if index >= 0:
                    found = one.columns((*values, None))
                    add((index, *(map(_number, found) if one.long_columns else found)))
                    self.at = at + one.length
            if self.at == at:
                number = self._learn()
                if number < 0:
                    return False
            follows[recent] = number
            recent = (recent << 9 | number) & _RECENT

    def _match(self, guess: int) -> int:
        """The number of the template that the bytes from here on have, -1 for none."""
        data, at, templates = self.data, self.at, self.templates
        for number in range(guess, guess + len(templates)):
            number %= len(templates)
            one = templates[number]
            chunk = data[at : at + one.length]
            same = int.from_bytes(chunk, "little") & one.mask == one.fixed
            if same and len(chunk) == one.length:
                return number
        return -1

    def _learn(self) -> int:
        """Take one row apart; the number of its template, -1 when the data ends in it."""
        data, stack = self.data, self.stack
        start, depth = self.at, len(stack)
        self.spots, self.gets, self.row_at = [], [], start
        try:
            while not (len(stack) == depth + 1 and self._row_ends()):
                self._step()
                if self.at - start > MAX_ROW or len(stack) < depth:
                    raise _Odd
        except (IndexError, struct.error):
            if len(data) - start > MAX_ROW:
                raise _Odd from None
            del stack[depth:]
            return -1
        spots, self.spots = self.spots, None
        row = stack.pop()
        if not isinstance(row, dict):
            raise _Odd
        template = self._template(start, self.at - start, spots)
        values = template.unpack(data, start)
        number = self._same(template)
        if len(self.contents) >= MAX_CONTENTS:
            raise _Odd
        known = self.templates[number]
        index = known.contents[known.content(values)] = len(self.contents)
        self.contents.append(row)
        self.rows.append((index, *map(_number, known.columns((*values, None)))))
        return number

    def _same(self, new: _Template) -> int:
        """The number of the known template that ``new`` is, or of ``new``."""
        for number, one in enumerate(self.templates):
            if one.fixed == new.fixed and one.mask == new.mask and one.length == new.length:
                return number
        if len(self.templates) >= MAX_TEMPLATES:
            raise _Odd
        self.templates.append(new)
        return len(self.templates) - 1

    def _row_ends(self) -> bool:
        """Whether the row on the stack is complete: nothing that may belong to it follows."""
        at = self.at
        return at > self.row_at and self.data[at - 1] == 0x75  # SETITEMS

    def _template(self, start: int, length: int, spots: list[_Spot]) -> _Template:
        data = self.data
        mask = bytearray(b"\xff" * length)
        layout, at = "<", 0
        kept: list[_Spot] = []
        for spot in spots:
            where, size = spot.at - start, struct.calcsize("<" + spot.code)
            mask[where : where + size] = bytes(size)
            first = spot.what == _PUT and not any(one.what == _PUT for one in kept)
            if first or (spot.what != _PUT and spot.key not in self.ignored):
                layout += f"{where - at}x{spot.code}"
                at = where + size
                kept.append(spot)
        whole = int.from_bytes(mask, "little")
        fixed = int.from_bytes(data[start : start + length], "little") & whole
        at_key: dict[str, list[int]] = {}
        for i, one in enumerate(kept):
            at_key.setdefault(one.key, []).append(i)
        columns = [at_key[c][0] if len(at_key.get(c, ())) == 1 else -1 for c in self.columns]
        put = next((i for i, one in enumerate(kept) if one.what == _PUT), -1)
        content = [i for i in range(len(kept)) if i != put and i not in columns]
        return _Template(
            length,
            whole,
            fixed,
            struct.Struct(layout).unpack_from,
            _getter(content),
            _getter(columns),
            any(i >= 0 and kept[i].code.endswith("s") for i in columns),
            put,
            max(self.gets, default=-1),
        )

    # -------------------------------------------------------------- opcodes

    def _row_key(self) -> str:
        """The row's own key whose value is being read; "" deeper inside or elsewhere."""
        stack, marks = self.stack, self.marks
        # Marks of the dictionary around, of its list and of the row; then pairs, then the key.
        if len(marks) != 3 or (len(stack) - marks[2]) % 2:
            return ""
        key = stack[-1]
        return key if isinstance(key, str) and isinstance(stack[marks[2] - 1], dict) else ""

    def _step(self) -> None:
        """One opcode. Raises _Odd for any that plain data in rows does not need."""
        data, at, stack = self.data, self.at, self.stack
        code = data[at]
        if code == 0x68:  # BINGET
            self._get(data[at + 1])
            self.at = at + 2
        elif code == 0x6A:  # LONG_BINGET
            self._get(int(struct.unpack_from("<I", data, at + 1)[0]))
            self.at = at + 5
        elif code == 0x71:  # BINPUT
            self._put(data[at + 1], at + 1, "B")
            self.at = at + 2
        elif code == 0x72:  # LONG_BINPUT
            self._put(int(struct.unpack_from("<I", data, at + 1)[0]), at + 1, "I")
            self.at = at + 5
        elif code == 0x94:  # MEMOIZE
            raise _Odd  # its number is not written down: rows could not be told apart by bytes
        elif code == 0x4B:  # BININT1
            self._number(data[at + 1], at + 1, "B", 2)
        elif code == 0x4D:  # BININT2
            self._number(int(struct.unpack_from("<H", data, at + 1)[0]), at + 1, "H", 3)
        elif code == 0x4A:  # BININT
            self._number(int(struct.unpack_from("<i", data, at + 1)[0]), at + 1, "i", 5)
        elif code == 0x8A:  # LONG1
            size = data[at + 1]
            if not 0 < size <= 8 or at + 2 + size > len(data):
                raise _Odd if size > 8 or not size else IndexError
            number = int.from_bytes(data[at + 2 : at + 2 + size], "little", signed=True)
            self._number(number, at + 2, "q" if size == 8 else f"{size}s", 2 + size)
        elif code == 0x47:  # BINFLOAT
            number = struct.unpack_from(">d", data, at + 1)[0]
            if self.spots is not None and self._row_key() in self.columns:
                raise _Odd
            self._number(number, at + 1, "8s", 9)
        elif code == 0x58:  # BINUNICODE
            size = int(struct.unpack_from("<I", data, at + 1)[0])
            self._text(at + 5, size)
        elif code == 0x8C:  # SHORT_BINUNICODE
            self._text(at + 2, data[at + 1])
        else:
            self.at = at + 1
            self._container(code, stack)
        if len(stack) > MAX_STACK:
            raise _Odd

    def _container(self, code: int, stack: list[Any]) -> None:
        if code == 0x28:
            if len(self.marks) >= MAX_OPEN:
                raise _Odd
            self.marks.append(len(stack))
            stack.append(_MARK)
        elif code == 0x7D:
            stack.append({})
        elif code == 0x5D:
            stack.append([])
        elif code == 0x29:
            stack.append(())
        elif code == 0x4E:
            stack.append(None)
        elif code == 0x88:
            stack.append(True)
        elif code == 0x89:
            stack.append(False)
        elif code == 0x75:  # SETITEMS
            items = self._since_mark()
            names = items[0::2]
            if not all(isinstance(name, str | int) for name in names):
                raise _Odd
            self._into(dict).update(zip(names, items[1::2], strict=True))
        elif code == 0x73:  # SETITEM
            value, name = stack.pop(), stack.pop()
            if not isinstance(name, str | int):
                raise _Odd
            self._into(dict)[name] = value
        elif code == 0x65:  # APPENDS
            items = self._since_mark()
            self._into(list).extend(items)
        elif code == 0x61:  # APPEND
            value = stack.pop()
            self._into(list).append(value)
        elif code in (0x85, 0x86, 0x87, 0x74):
            items = self._since_mark() if code == 0x74 else stack[-(code - 0x84) :]
            if code != 0x74:
                del stack[-(code - 0x84) :]
            plain = all(isinstance(one, str | int | None) for one in items)
            if not plain or len(items) > _TUPLE_ITEMS:
                raise _Odd
            stack.append(tuple(items))
        elif code == 0x80:  # PROTO
            if self.data[self.at] > 5:
                raise _Odd
            self.at += 1
        else:
            raise _Odd

    def _into(self, kind: type) -> Any:
        below = self.stack[-1]
        if type(below) is not kind:
            raise _Odd
        return below

    def _since_mark(self) -> list[Any]:
        stack = self.stack
        where = self.marks.pop()
        items = stack[where + 1 :]
        del stack[where:]
        return items

    def _text(self, start: int, size: int) -> None:
        raw = self.data[start : start + size]
        if len(raw) < size:
            raise IndexError
        self.stack.append(raw.decode("utf-8", "surrogatepass"))
        self.at = start + size

    def _number(self, value: float, at: int, code: str, size: int) -> None:
        if self.spots is not None:
            self.spots.append(_Spot(at, code, _NUMBER, self._row_key()))
        self.stack.append(value)
        self.at += size

    def _get(self, number: int) -> None:
        if self.spots is not None:
            self.gets.append(number)
        self.stack.append(self.memo[number])

    def _put(self, number: int, at: int, code: str) -> None:
        if number >= MEMO_LIMIT or self.stack[-1] is _MARK:
            raise _Odd
        if self.spots is not None:
            self.spots.append(_Spot(at, code, _PUT))
        self.memo[number] = self.stack[-1]


def _number(value: Any) -> Any:
    return int.from_bytes(value, "little", signed=True) if isinstance(value, bytes) else value


def _getter(indexes: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """The values at ``indexes``, always as a tuple."""
    if not indexes:
        return lambda values: ()
    if len(indexes) == 1:
        only = indexes[0]
        return lambda values: (values[only],)
    return itemgetter(*indexes)
