"""The bounds that the simulator moves are read where they are used: a value that was taken at import would never be small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import limits
from streams.simulation.scenario import PROJECT, bounded, draw

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path for package in ("connectors", "state", "streams", "topologies") for path in (ROOT / package).rglob("*.py")
)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return set(draw(1, PROJECT, tmp_path_factory.mktemp("out")).bounds)


def test_a_run_has_its_own_bounds_and_the_next_one_finds_the_products() -> None:
    before = limits.BATCH_RECORDS_MAX
    with bounded({"BATCH_RECORDS_MAX": 2}):
        assert limits.BATCH_RECORDS_MAX == 2
    assert before == limits.BATCH_RECORDS_MAX


def test_no_module_keeps_a_bound_that_the_simulator_moves(moved: set[str]) -> None:
    kept = [f"{path.relative_to(ROOT)}: {name}" for path in MODULES for name in at_import(path) if name in moved]
    assert kept == []


def at_import(path: Path) -> Iterator[str]:
    """Names of limits that a module reads when it is imported: in its body, a class's, or a default of an argument."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                waiting += [node.args, *getattr(node, "decorator_list", [])]
                continue
            case ast.ImportFrom(module="schemas.limits"):
                yield from (alias.name for alias in node.names)
            case ast.Attribute(value=ast.Name(id="limits")):
                yield node.attr
            case _:
                pass
        waiting += ast.iter_child_nodes(node)
