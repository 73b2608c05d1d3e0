"""Which pipeline file a command is about, and what it changes in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UsageError
from topologies.pipeline.model import Pipeline
from topologies.reading.document import Node, Problems, apply_overrides, read_document, walk
from topologies.reading.loading import load_pipeline

PLACEHOLDER = "not-needed-by-this-command"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


# --- the pipeline -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PipelineChoice:
    """Which pipeline a command is about, and what it changes in it."""

    path: Path
    app: str | None = None
    overrides: Sequence[str] = ()
    app_dir: Path | None = None

    def load(self, environ: Mapping[str, str]) -> Pipeline:
        """The pipeline, secrets included.

        Raises:
            PipelineError: with every problem.
        """
        return load_pipeline(self.path, environ=environ, app=self.app, overrides=self.overrides, app_dir=self.app_dir)

    def load_without_secrets(self, environ: Mapping[str, str]) -> Pipeline:
        """The pipeline for a command that signs and verifies nothing: its token keys need not be in the environment."""
        return self.load({**dict.fromkeys(self._missing_secrets(environ), PLACEHOLDER), **environ})

    def app_name(self, environ: Mapping[str, str]) -> str:
        """The application's name alone: no module is imported and nothing else is checked.

        Raises:
            PipelineError: the file cannot be read, or names no app.
        """
        if self.app is not None:
            return self.app
        problems = Problems()
        root = self._root(environ, problems)
        node = root.value.get("app") if root is not None else None
        if node is None or not isinstance(node.value, str) or not node.value:
            self.load(environ)  # says what is wrong, with file and line
            raise UsageError(f"{self.path} has no app; name one with --app")
        return node.value

    def _missing_secrets(self, environ: Mapping[str, str]) -> list[str]:
        root = self._root(environ, Problems())
        if root is None:
            return []
        templates = [
            node.template or "" for where, node in walk(root) if where.startswith("tokens.keys.") and node.faults
        ]
        return [name for template in templates for name in _VARIABLE.findall(template)]

    def _root(self, environ: Mapping[str, str], problems: Problems) -> Node | None:
        try:
            text = self.path.read_bytes()
        except OSError:
            return None
        root = read_document(text, file=str(self.path), environ=environ, problems=problems)
        if root is not None:
            apply_overrides(root, self.overrides, environ=environ, problems=problems)
        return root
