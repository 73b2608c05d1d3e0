"""Typed reading of a map of pipeline.yaml: each reader gives the value, or notes a problem and gives None or the default."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from topologies.reading.document import Node, Problems, scalar

T = TypeVar("T", bound=str)

_DURATION = re.compile(
    r"^P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?(?:T(?=\d)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d{1,3})?)S)?)?$",
    re.ASCII,
)
_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}

DURATION_MAX_MS = 3_660 * 86_400_000
"""Ten years: longer is a slip of the pen, and keeps every sum of times far from any overflow."""


def duration_ms(text: str) -> int | None:
    """An ISO-8601 duration of weeks to seconds in ms; None when it is none. Years and months have no fixed length."""
    found = _DURATION.match(text)
    if found is None or not any(found.groupdict().values()):
        return None
    total = sum(
        float(amount) * _MS[unit] if "." in amount else int(amount) * _MS[unit]
        for unit, amount in found.groupdict().items()
        if amount
    )
    return round(total)


def plain(node: Node) -> Any:
    """The node as ordinary Python values."""
    if isinstance(node.value, dict):
        return {name: plain(value) for name, value in node.value.items()}
    if isinstance(node.value, list):
        return [plain(value) for value in node.value]
    return node.value


class Fields:
    """One map with its readers; `finish` reports the keys that nobody asked for."""

    def __init__(self, node: Node, where: str, problems: Problems) -> None:
        """Read `node`, which must be a map, at the dotted path `where`."""
        self.node = node
        self.where = where
        self.problems = problems
        self._asked: set[str] = set()

    def path(self, key: str) -> str:
        """The dotted path of a key."""
        return f"{self.where}.{key}" if self.where else key

    def has(self, key: str) -> bool:
        """Whether the key is there, with any value."""
        return key in self.node.value

    def get(self, key: str) -> Node | None:
        """The node of a key that holds something; None when it is absent, empty or faulty."""
        self._asked.add(key)
        node: Node | None = self.node.value.get(key)
        return None if node is None or node.value is None else node

    def note(self, key: str, message: str, advice: str) -> None:
        """Note a problem at the key's value, or at the map when the key is missing."""
        self.problems.add(self.node.value.get(key) or self.node, self.path(key), message, advice)

    def note_key(self, key: str, message: str, advice: str) -> None:
        """Note a problem at the key itself."""
        self.problems.add(self.node.value[key], self.path(key), message, advice, line=self.node.key_lines[key])

    def missing(self, key: str, advice: str) -> None:
        """Note that a required key is missing; silent when its value is faulty, which is noted elsewhere."""
        node = self.node.value.get(key)
        if node is None or not node.faults:
            self.note(key, f"{key} is missing" if node is None else f"{key} is empty", advice)

    def text(self, key: str, *, required: str = "", default: str | None = None) -> str | None:
        """A non-blank string. `required` is the advice when it is missing."""
        node = self.get(key)
        if node is None:
            if required:
                self.missing(key, required)
            elif key in self.node.value and not self.node.value[key].faults:
                self.note(key, f"{key} is empty", "write a value or remove the key")
            return default
        return self.text_of(node, self.path(key), default=default)

    def text_of(self, node: Node, where: str, *, default: str | None = None) -> str | None:
        """A non-blank string at any node."""
        if node.faults:
            return default
        if node.text is not None:
            value: Any = node.text
        else:
            value = node.value
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, str):
            self.problems.add(node, where, f"{node.template or 'the value'} is blank", "write a value")
        elif isinstance(value, dict) and len(value) == 1 and next(iter(value.values())).value is None:
            name = next(iter(value))
            self.problems.add(node, where, "must be text, not a map", f'put the template in quotes: "{{{name}}}"')
        else:
            advice = "write one value" if isinstance(value, (dict, list)) else f'put it in quotes: "{node.shown()}"'
            self.problems.add(node, where, f"must be text, not {node.shown()}", advice)
        return default

    def texts(self, key: str) -> list[tuple[str, Node]]:
        """A list of non-blank strings with their nodes; one string counts as a list of one; empty when absent."""
        node = self.get(key)
        if node is None:
            return []
        items = node.value if isinstance(node.value, list) else [node]
        if not isinstance(node.value, list) and not isinstance(node.value, str):
            self.note(key, f"must be a list of names, not {node.shown()}", f"write {key}: [a, b]")
            return []
        read = [(self.text_of(item, f"{self.path(key)}.{place}"), item) for place, item in enumerate(items)]
        return [(text, item) for text, item in read if text is not None]

    def choice(
        self, key: str, choices: Collection[T], *, required: str = "", hints: Mapping[str, str] | None = None
    ) -> T | None:
        """One of a few words; None when absent or unknown. `required` is the advice when it is missing."""
        text = self.text(key, required=required)
        if text is None:
            return None
        for known in choices:
            if text == known:
                return known
        close = get_close_matches(text, list(choices), n=1)
        advice = f"did you mean {close[0]}?" if close else f"write one of: {', '.join(choices)}"
        self.note(key, f"unknown {key} {self.node.value[key].shown()!r}", (hints or {}).get(text, advice))
        return None

    def integer(self, key: str, *, default: int, minimum: int, maximum: int) -> int:
        """A whole number within bounds."""
        node = self.get(key)
        if node is None:
            return default
        value = self._typed(node)
        if isinstance(value, bool) or not isinstance(value, int):
            self.note(key, f"must be a whole number, not {node.shown()}", f"write a number from {minimum} to {maximum}")
            return default
        if not minimum <= value <= maximum:
            self.note(key, f"{node.shown()} is out of bounds", f"write a number from {minimum} to {maximum}")
            return default
        return value

    def number(self, key: str, *, default: float, minimum: float) -> float:
        """A number, at least `minimum`."""
        node = self.get(key)
        if node is None:
            return default
        value = self._typed(node)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= 1e9:
            self.note(
                key, f"must be a number of at least {minimum:g}, not {node.shown()}", f"write a number from {minimum:g}"
            )
            return default
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        node = self.get(key)
        if node is None:
            return default
        value = self._typed(node)
        if isinstance(value, bool):
            return value
        self.note(key, f"must be true or false, not {node.shown()}", "write true or false")
        return default

    def duration(self, key: str, *, required: str = "") -> int | None:
        """A positive ISO-8601 duration in ms; None when absent or wrong. `required` is the advice when it is missing."""
        node = self.get(key)
        if node is None:
            if required:
                self.missing(key, required)
            return None
        text = node.text if node.text is not None else node.value
        value = duration_ms(text) if isinstance(text, str) else None
        if value is None:
            self.note(
                key, f"must be an ISO-8601 duration, not {node.shown()}", "write for example PT30S, PT5M, PT2H or P7D"
            )
        elif not 0 < value <= DURATION_MAX_MS:
            self.note(key, f"{node.shown()} is out of bounds", "write a duration above zero and below ten years")
            return None
        return value

    def below(self, key: str, *, required: str = "") -> Fields | None:
        """The map under a key; None when absent or no map. `required` is the advice when it is missing."""
        node = self.get(key)
        if node is None:
            if required:
                self.missing(key, required)
            return None
        if isinstance(node.value, dict):
            return Fields(node, self.path(key), self.problems)
        self.note(key, f"must be a map of keys, not {node.shown()}", required or f"write {key}: {{...}}")
        return None

    def entries(self) -> Iterator[tuple[str, Node]]:
        """Every key with its node; all of them count as asked for."""
        self._asked.update(self.node.value)
        yield from self.node.value.items()

    def finish(self, hints: Mapping[str, str] | None = None) -> None:
        """Note each key that no reader asked for. `hints` advise on keys that other tools or versions have."""
        for key in self.node.value:
            if key in self._asked:
                continue
            close = get_close_matches(key, sorted(self._asked), n=1)
            known = f"known keys: {', '.join(sorted(self._asked))}"
            advice = (hints or {}).get(key) or (f"did you mean {close[0]}?" if close else known)
            self.note_key(key, f"unknown key {key!r}", advice)

    def _typed(self, node: Node) -> Any:
        return scalar(node.text.strip()) if node.text is not None else node.value
