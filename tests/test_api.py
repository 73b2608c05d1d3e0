"""`kawait`, the Python API: what it offers, to programs and to type checkers alike, and what importing it costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import kawait
from schemas import errors

SOURCE = Path(kawait.__file__).read_text()


def typed_names() -> dict[str, str]:
    """Name -> module, as a type checker sees them."""
    branches = [node for node in ast.parse(SOURCE).body if isinstance(node, ast.If)]
    (typed,) = [node for node in branches if ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_a_type_checker_sees_the_names_that_there_are() -> None:
    assert sorted(typed_names()) == kawait.__all__
    assert set(kawait.__all__) <= set(dir(kawait))


@pytest.mark.parametrize("name", kawait.__all__)
def test_a_name_is_what_the_type_checker_takes_it_for(name: str) -> None:
    assert getattr(kawait, name) is getattr(importlib.import_module(typed_names()[name]), name)


@pytest.mark.parametrize("name", kawait.__all__)
def test_each_name_is_explained_at_the_top(name: str) -> None:
    assert name in (kawait.__doc__ or "")


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="module 'kawait' has no attribute 'StepError'"):
        kawait.StepError  # type: ignore[attr-defined]  # noqa: B018


def test_every_error_of_it_is_a_kawait_error() -> None:
    offered = [getattr(kawait, name) for name in kawait.__all__ if hasattr(errors, name)]
    assert len(offered) == 5
    assert all(issubclass(error, kawait.KawaitError) for error in offered)


def test_a_module_of_steps_pays_for_no_kafka_client() -> None:
    script = "import sys; from kawait import Projector; print([n for n in ('confluent_kafka', 'rocksdict') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
