"""Figures that stand for a constant name it, `3 ms (`limits.GATHER_S_MAX`)`, and have its value.

A figure with a unit of time or size that names none is a measured or a foreign one, and says so: about, some.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from schemas import limits
from tests.docs.pages import DOCS, PAGES, in_backticks, name_of, prose, rows
from topologies.reading.fields import duration_ms

TIMES = {"ms": 0.001, "s": 1, "min": 60, "h": 3_600, "hours": 3_600, "days": 86_400}
SIZES = {"bytes": 1, "KiB": 1_024, "MiB": 1_024**2, "GiB": 1_024**3}
UNITS = TIMES | SIZES
MEASURED = ("about ", "some ", "about as much as ")

_CONSTANT = r"`(?:limits\.|[\w/]+\.py: )[A-Z][A-Z0-9_]+`"
_NAMED = re.compile(rf"\(({_CONSTANT}(?:, {_CONSTANT})*)\)")
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_FIGURE = re.compile(rf"({_NUMBER})(?: to ({_NUMBER}))?(?: ([A-Za-z]+)(?: [\w-]+){{0,3}})? $|`(P[A-Z0-9.]+)` $")
_WITH_UNIT = re.compile(rf"(?<![\w.,/-])(?:{_NUMBER} to )?{_NUMBER} (?:{'|'.join(UNITS)})\b")


class Figure(NamedTuple):
    """A figure with the constants that it stands for."""

    values: tuple[float, ...]
    unit: str
    names: tuple[str, ...]
    start: int
    end: int


def figures(text: str) -> Iterator[Figure]:
    """Every figure that names a constant; fails where a constant stands without one."""
    for match in _NAMED.finditer(text):
        found = _FIGURE.search(text[: match.start()])
        assert found, f"no figure before {match[0]}"
        low, high, unit, iso = found.groups()
        names = tuple(in_backticks(match[1]))
        if iso is not None:
            values: tuple[float, ...] = ((duration_ms(iso) or 0) / 1000,)
            unit = "s"
        else:
            values = tuple(float(each.replace(",", "")) * UNITS.get(unit, 1) for each in (low, high) if each)
        yield Figure(values, unit or "", names, found.start(), match.end())


def value_of(name: str) -> float:
    """A constant's value: times in seconds, sizes in bytes."""
    module, _, constant = name.rpartition(".") if name.startswith("limits.") else name.rpartition(": ")
    dotted = "schemas.limits" if module == "limits" else module.removesuffix(".py").replace("/", ".")
    value = float(getattr(importlib.import_module(dotted), constant))
    return value / 1000 if "MS" in constant.split("_") else value


def unit_fits(name: str, unit: str) -> bool:
    words = set(name.split("_"))
    if {"MS", "S"} & words:
        return unit in TIMES
    return (unit in SIZES) == ("BYTES" in words)


def misfits(text: str) -> list[str]:
    wrong = []
    for figure in figures(text):
        expected = [value_of(name) for name in figure.names]
        fits = len(expected) == len(figure.values) and all(map(math.isclose, expected, figure.values))
        constants = [re.split(r"[.: ]", name)[-1] for name in figure.names]
        if not fits or not all(unit_fits(name, figure.unit) for name in constants):
            wrong.append(text[figure.start : figure.end])
    return wrong


def unnamed(text: str) -> list[str]:
    """Exact figures with a unit that name no constant."""
    named = [(figure.start, figure.end) for figure in figures(text)]
    return [
        match[0]
        for match in _WITH_UNIT.finditer(text)
        if not text[: match.start()].endswith(MEASURED)
        and not any(start <= match.start() < end for start, end in named)
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_figures_have_the_value_of_the_constant_that_they_name(page: Path) -> None:
    assert misfits(prose(page)) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "limits.md"], ids=name_of)
def test_every_exact_figure_with_a_unit_names_its_constant(page: Path) -> None:
    assert unnamed(prose(page)) == []


def test_the_limits_have_the_value_of_the_code() -> None:
    table = rows(DOCS / "limits.md", "Limits")
    assert len(table) > 15
    text = "\n".join(f"{' '.join(row[1].split()[:2])} (`limits.{row[0].strip('`')}`)" for row in table)
    assert len(list(figures(text))) == len(table)
    assert misfits(text) == []


def test_some_figures_are_compared() -> None:
    assert sum(len(list(figures(prose(page)))) for page in PAGES) > 15


@pytest.mark.parametrize(
    "wrong",
    [
        "10 ms at most (`limits.GATHER_S_MAX`)",
        "3 s (`limits.GATHER_S_MAX`)",
        "3 bytes (`limits.GATHER_S_MAX`)",
        "10 to 50 ms (`streams/author/chunks.py: CHUNK_S_SHORT`, `streams/author/chunks.py: CHUNK_S_LONG`)",
        "`P31D` (`topologies/reading/loading.py: RETENTION_FACTS_DEFAULT_MS`)",
    ],
)
def test_a_figure_that_is_not_its_constant_is_found(wrong: str) -> None:
    assert misfits(f"so it waits {wrong}.") == [wrong]


def test_a_figure_without_its_constant_is_found() -> None:
    assert unnamed("it waits 3 ms, or about 4 ms, and keeps 5 MiB") == ["3 ms", "5 MiB"]
    assert limits.GATHER_S_MAX == 0.003, "the examples above stand for it"
