"""One word per idea (DESIGN section 1): names in the code use the glossary's words and none of their rivals."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("connectors", "schemas", "state", "streams", "topologies")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PAGE = ROOT / "docs" / "glossary.md"

# Words of DESIGN section 1 that a reader must find explained.
GLOSSARY = (
    "admission",
    "commit",
    "completion",
    "continuation",
    "decision",
    "execution",
    "fact",
    "fallback",
    "hold",
    "interaction",
    "live session",
    "live window",
    "record",
    "resume",
    "segment",
    "unit",
)

# Rival -> the word to use. They are looked for as whole words of module and class names.
RIVALS = {
    "barrier": "unit",
    "callback": "continuation (HTTP callbacks belong to connectors)",
    "common": "the idea the module holds",
    "coordinator": "task, agent or topology",
    "handler": "agent, or the decision's verb",
    "helper": "the idea the module holds",
    "helpers": "the idea the module holds",
    "manager": "task, agent or table",
    "misc": "the idea the module holds",
    "processor": "task or agent",
    "service": "agent",
    "sweeper": "punctuate",
    "util": "the idea the module holds",
    "utils": "the idea the module holds",
    "workflow": "execution or pipeline",
}
# Rivals that have a right meaning in some place.
ALLOWED_IN = {"callback": ("connectors/",), "handler": ("connectors/http", "streams/http", "streams/telemetry/admin")}


def words(name: str) -> list[str]:
    """Split ``LiveWindow`` and ``live_window`` into ``live``, ``window``."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def class_names(path: Path) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_use_no_rival_of_a_glossary_word(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    found = {
        f"{name}: say {RIVALS[word]}, not {word}"
        for name in [path.stem, *class_names(path)]
        for word in words(name)
        if word in RIVALS and not place.startswith(ALLOWED_IN.get(word, ()))
    }
    assert found == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_checkpoint_means_the_checkpoint_handoff(path: Path) -> None:
    """The end of a batch is a *commit*; *checkpoint* is the seeds' handoff to another pipeline."""
    names = [name for name in [path.stem, *class_names(path)] if "checkpoint" in words(name)]
    allowed = {"handoff", "input", "output", "publication", "sink", "source"}
    assert [name for name in names if name != "checkpoint" and not allowed & set(words(name))] == []
    if "checkpoint" in names:
        assert "handoff" in (ast.get_docstring(ast.parse(path.read_text())) or "").lower()


def explained() -> set[str]:
    """Words of the page's first column."""
    firsts = (line.split("|")[1] for line in PAGE.read_text().lower().splitlines() if line.startswith("| "))
    return {word.strip() for first in firsts for word in first.split(",")}


def test_the_glossary_explains_every_word() -> None:
    assert [word for word in GLOSSARY if word not in explained()] == []


def test_the_glossary_says_once_what_a_release_is() -> None:
    """A release is a version of a pipeline; elsewhere the word stands for what is called resume here."""
    assert PAGE.read_text().count("**release**") == 1


def test_words_splits_names_of_both_kinds() -> None:
    assert words("HTTPHandlerUtils") == ["http", "handler", "utils"]
    assert words("live_window2") == ["live", "window", "2"]
