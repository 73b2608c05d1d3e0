"""Settings of the command line: environment names, librdkafka properties, and the pipeline file (SURFACE 'Command line').

A flag wins over its environment name `KAWAIT_<FLAG>`, that over the default. For librdkafka properties, `KAWAIT_KAFKA_<PROPERTY>` wins over
`--config FILE`. Secrets stay where they are: nothing here prints a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import PipelineError, UsageError
from topologies.pipeline.model import Pipeline
from topologies.reading.document import Node, Problems, apply_overrides, read_document, walk
from topologies.reading.loading import load_pipeline

ENVIRONMENT_PREFIX = "KAWAIT_"
KAFKA_PREFIX = "KAWAIT_KAFKA_"
BOOTSTRAP_DEFAULT = "localhost:9092"
BOOTSTRAP_PROPERTY = "bootstrap.servers"
PLACEHOLDER = "not-needed-by-this-command"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def environment_name(flag: str) -> str:
    """The environment name of a flag: `--state-dir` -> `KAWAIT_STATE_DIR`."""
    return ENVIRONMENT_PREFIX + flag.lstrip("-").upper().replace("-", "_")


# --- the way to the broker ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A broker and the user's own librdkafka properties for it (they may hold credentials)."""

    bootstrap: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False)


def connection(bootstrap: str | None, config_file: Path | None, environ: Mapping[str, str]) -> Connection:
    """Where the broker is and how to talk to it.

    Raises:
        UsageError: the file cannot be read or holds a line that is no property.
    """
    config = read_properties(config_file) if config_file is not None else {}
    config.update(environment_properties(environ))
    named = config.pop(BOOTSTRAP_PROPERTY, None)
    return Connection(bootstrap=bootstrap or named or BOOTSTRAP_DEFAULT, config=config)


def environment_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment says in librdkafka's names: `KAWAIT_KAFKA_SASL_USERNAME` -> `sasl.username`; two underscores stand for one."""
    return {
        name.removeprefix(KAFKA_PREFIX).lower().replace("__", "\0").replace("_", ".").replace("\0", "_"): value
        for name, value in environ.items()
        if name.startswith(KAFKA_PREFIX) and name != KAFKA_PREFIX
    }


def read_properties(path: Path) -> dict[str, str]:
    """Read `name=value` lines; blank lines and lines that start with `#` or `!` are skipped.

    Raises:
        UsageError: the file cannot be read, or a line is no property; its text is not shown, as it may be a secret.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"the properties file {path} cannot be read: {reason}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"{path}:{number}: not a property; write name=value, for example security.protocol=SASL_SSL"
            )
        found[name.strip()] = value.strip()
    return found


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


__all__ = ["Connection", "PipelineChoice", "PipelineError", "connection", "environment_name", "read_properties"]
