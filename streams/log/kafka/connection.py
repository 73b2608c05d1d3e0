"""The way to the broker: its address, and the user's own librdkafka properties (SURFACE 'Command line')."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import UsageError

KAFKA_PREFIX = "KAWAIT_KAFKA_"
BOOTSTRAP_DEFAULT = "localhost:9092"
BOOTSTRAP_PROPERTY = "bootstrap.servers"


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
