"""The house: how long a chain of imports may be, that none closes, and how long a module may be.

Each folder's sentence stands in its `__init__`; which may import which stands in pyproject.toml and is held by import-linter.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("connectors", "schemas", "state", "streams", "topologies")
CHAIN_MAX = 17
LINES_MAX = 450


@cache
def modules() -> dict[str, Path]:
    """Module -> its file; an `__init__` holds a sentence only and is none."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py")
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of ours that a module imports, those for type checking among them."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
    return frozenset(named & modules().keys()) - {module}


def longest_chain() -> tuple[str, ...]:
    """The longest chain of modules that import one another; fails on a circle."""
    open_: list[str] = []
    known: dict[str, tuple[str, ...]] = {}

    def chain(module: str) -> tuple[str, ...]:
        assert module not in open_, f"modules import each other in a circle: {' > '.join([*open_, module])}"
        if module not in known:
            open_.append(module)
            known[module] = (module, *max((chain(each) for each in imports(module)), key=len, default=()))
            open_.pop()
        return known[module]

    return max((chain(module) for module in modules()), key=len)


def test_no_chain_of_imports_is_long_and_none_closes() -> None:
    found = longest_chain()
    assert len(found) <= CHAIN_MAX, " > ".join(found)


def test_decisions_are_asked_for_by_roles_and_the_simulator_only() -> None:
    asking = {
        module
        for module in modules()
        if any(each.startswith("topologies.decisions.") for each in imports(module))
        and not module.startswith("topologies.decisions.")
    }
    assert [
        module for module in sorted(asking) if not module.startswith(("streams.roles.", "streams.simulation."))
    ] == []


def test_no_module_is_long() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in modules().items()}
    assert {module: length for module, length in lengths.items() if length > LINES_MAX} == {}


def test_every_rule_that_ruff_leaves_out_for_a_file_names_a_file_that_is_there() -> None:
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    assert [pattern for pattern in ruff if not any(ROOT.glob(pattern))] == []
