"""JSON values with typed access: options of a fault, and the state that its undo needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Union

Json = Union[None, bool, int, float, str, "list[Json]", "dict[str, Json]"]


class Refused(ValueError):
    """Chaos will not do that: the message says why, and what would have to change."""


class Values(Mapping[str, Json]):
    """A read-only JSON object. Every getter raises :class:`Refused` on a missing or wrong value."""

    def __init__(self, values: Mapping[str, Json] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, key: str) -> Json:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Values({self._values!r})"

    def plain(self) -> dict[str, Json]:
        """A copy for json.dumps."""
        return dict(self._values)

    def plus(self, more: Mapping[str, Json]) -> Values:
        """These values with ``more`` over them."""
        return Values({**self._values, **more})

    def text(self, key: str) -> str:
        """A string."""
        value = self._values.get(key)
        if not isinstance(value, str):
            raise Refused(f"{key}: a text is needed, not {value!r}")
        return value

    def number(self, key: str) -> float:
        """A number as float."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Refused(f"{key}: a number is needed, not {value!r}")
        return float(value)

    def whole(self, key: str) -> int:
        """A whole number."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused(f"{key}: a whole number is needed, not {value!r}")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false when absent."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise Refused(f"{key}: true or false is needed, not {value!r}")
        return value

    def items_of(self, key: str) -> list[Values]:
        """A list of objects; [] when absent."""
        value = self._values.get(key, [])
        if not isinstance(value, list):
            raise Refused(f"{key}: a list is needed, not {value!r}")
        return [Values(one) for one in value if isinstance(one, dict)]

    def texts(self, key: str) -> list[str]:
        """A list of strings; [] when absent."""
        value = self._values.get(key, [])
        if not isinstance(value, list):
            raise Refused(f"{key}: a list is needed, not {value!r}")
        return [str(one) for one in value]
