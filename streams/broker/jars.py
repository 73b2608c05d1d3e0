"""Apache Kafka's jars and the tools to get and run them: Java 17+ and Maven, found or, as root on Debian, installed.

The jars come through Maven's ordinary client, configured as the machine configures it, once, into
``$XDG_CACHE_HOME/kawait`` (default ``~/.cache/kawait``), under a file lock, so that processes do not race.
``python -m streams.broker.jars`` does just that, before something with a time limit needs a broker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schemas.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

KAFKA_VERSION: Final = "4.4.0"
JAVA_VERSION_MIN: Final = 17
# slf4j-simple matches the slf4j-api that Kafka brings; without a binding the node would be silent about its failures.
ARTIFACTS: Final = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
TAIL_LINES: Final = 30
OTHERWISE: Final = "or set KAWAIT_BOOTSTRAP=host:port to use a broker that runs already"


class BrokerError(UsageError):
    """The throw-away broker cannot be resolved, started or stopped; the message says what is missing and what to do."""


def silent(_line: str) -> None:
    """Drop a line of progress: the default of every ``report``."""


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines of a text, indented."""
    return "\n".join("  " + line for line in text.strip().splitlines()[-lines:])


def run_tool(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a tool to its end without a terminal; return its exit code and all it printed."""
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout


def _java_version(java: str) -> int:
    """The feature version of ``java`` (17 for "17.0.15", 8 for "1.8.0"), 0 if it does not say."""
    try:
        _code, said = run_tool([java, "-version"])
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else 0


def _find_java() -> str | None:
    """A Java of at least `JAVA_VERSION_MIN`: ``$JAVA_HOME``, PATH, Debian's folder; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home, "bin", "java"))] if home else []
    on_path = shutil.which("java")
    candidates += [on_path] if on_path else []
    candidates += [str(java) for java in sorted(Path("/usr/lib/jvm").glob("*/bin/java"))]
    return next((java for java in candidates if _java_version(java) >= JAVA_VERSION_MIN), None)


def _apt_install(*alternatives: str) -> None:
    """Install the first of the alternative Debian packages that exists.

    Raises:
        BrokerError: apt-get failed for each of them.
    """
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run_tool(["apt-get", "update"], quiet)
    said = ""
    for package in alternatives:
        code, said = run_tool(["apt-get", "install", "-y", "--no-install-recommends", package], quiet)
        if code == 0:
            return
    message = f"apt-get could not install {' or '.join(alternatives)}; install it by hand. It said:\n{tail(said)}"
    raise BrokerError(message)


def _can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def require_java(report: Callable[[str], None] = silent) -> str:
    """The path of a Java 17+, installing one as root on Debian.

    Raises:
        BrokerError: there is none, and it cannot be installed from here.
    """
    java = _find_java()
    if java is None and _can_install():
        report("installing a Java runtime")
        _apt_install("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
        java = _find_java()
    if java is None:
        message = (
            f"Java {JAVA_VERSION_MIN} or newer is needed to run Apache Kafka; none is on PATH or in JAVA_HOME; "
            f"install one (Debian: apt-get install openjdk-17-jre-headless), {OTHERWISE}"
        )
        raise BrokerError(message)
    return java


def require_maven(report: Callable[[str], None] = silent) -> str:
    """The path of Maven, installing it as root on Debian.

    Raises:
        BrokerError: there is none, and it cannot be installed from here.
    """
    maven = shutil.which("mvn")
    if maven is None and _can_install():
        report("installing Maven")
        _apt_install("maven")
        maven = shutil.which("mvn")
    if maven is None:
        message = (
            "Maven is needed once to fetch Apache Kafka, and mvn was not found on PATH; "
            f"install it (Debian: apt-get install maven), {OTHERWISE}"
        )
        raise BrokerError(message)
    return maven


# --- jars -----------------------------------------------------------------------------------------------------------


def cache_directory() -> Path:
    """The directory that holds the resolved jars: ``$XDG_CACHE_HOME/kawait``, by default ``~/.cache/kawait``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kawait"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file between processes; a holder that dies lets go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _pom() -> str:
    """A Maven project whose runtime dependencies are `ARTIFACTS`."""
    rows = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "</dependency>"
        for group, artifact, version in ARTIFACTS
    )
    head = (
        "<modelVersion>4.0.0</modelVersion><groupId>kawait</groupId><artifactId>broker</artifactId><version>1</version>"
    )
    return f"<project>{head}<packaging>pom</packaging><dependencies>{rows}</dependencies></project>\n"


def resolve_kafka(report: Callable[[str], None] = silent) -> list[Path]:
    """Kafka's jars, fetched through Maven the first time.

    Safe between processes: one resolves, the others wait for it. The folder appears by one rename, so a half-fetched
    set is never used.

    Raises:
        BrokerError: Maven is missing or could not fetch the artifacts.
    """
    home = cache_directory() / f"kafka-{KAFKA_VERSION}"
    with _locked(home.with_name(home.name + ".lock")):
        if not home.is_dir():
            maven = require_maven(report)
            report(f"fetching Apache Kafka {KAFKA_VERSION} with Maven (once)")
            _fetch(maven, home)
        return sorted(home.glob("*.jar"))


def _fetch(maven: str, home: Path) -> None:
    """Copy the jars of `ARTIFACTS` and what they need into ``home``."""
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetch-") as scratch:
        pom, jars = Path(scratch, "pom.xml"), Path(scratch, "jars")
        pom.write_text(_pom())
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        code, said = run_tool([maven, "-B", "-q", "-f", str(pom), *goal])
        if code != 0 or not any(jars.glob("kafka_*.jar")):
            message = f"Maven could not fetch Apache Kafka {KAFKA_VERSION} (exit {code}). It said:\n{tail(said)}"
            raise BrokerError(message)
        jars.rename(home)


def main() -> int:
    """Make sure that a broker could be started at once: Java is there, and the jars are in the cache."""
    try:
        for ready in (require_java, resolve_kafka):
            ready(lambda line: print(line, file=sys.stderr))
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
