"""What a process installs: one package, whole and working, beside an author's own `schemas`, `state` and `streams`."""

from __future__ import annotations

import ast
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hatch_build import with_moved_imports
from streams.process.launcher import import_path
from topologies.reading.modules import refused_modules

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "project"
FOLDERS = ("connectors", "schemas", "state", "streams", "topologies")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
DIST_INFO = f"kawait-{VERSION}.dist-info"
CHECKOUT_ONLY = ("state/diagrams.py", "streams/simulation/")
READY_S = 30.0

# --- the build ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as `pip install .` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (built,) = folder.iterdir()
    return built


def pip(command: str, *arguments: object, python: Path | None = None) -> None:
    where = ["--python", str(python)] if python else []
    quiet = ["--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    done_well([sys.executable, "-m", "pip", *where, command, *quiet, "--no-deps", "--no-index", *map(str, arguments)])


def done_well(command: list[str], **more: Any) -> str:
    more |= {"capture_output": True, "text": True, "timeout": 90}
    done: subprocess.CompletedProcess[str] = subprocess.run(command, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def modules(wheel: Path) -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in contents(wheel).items() if name.endswith(".py")}


def checkout_files() -> list[str]:
    """Everything below the folders that belongs to the distribution."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    found = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(str(path) for path in found if ignored.isdisjoint(path.parts))


def test_the_wheel_holds_one_package_and_all_that_belongs_to_it(wheel: Path) -> None:
    names = list(contents(wheel))
    assert {name.split("/")[0] for name in names} == {"kawait", DIST_INFO}
    expected = [f"kawait/{name}" for name in checkout_files() if not name.startswith(CHECKOUT_ONLY)]
    expected += ["kawait/__init__.py", "kawait/__main__.py", "kawait/py.typed"]
    assert sorted(name for name in names if name.startswith("kawait/")) == sorted(expected)
    for data in ("schemas/avro/FINGERPRINTS", "topologies/csv_payments/payments_12.csv"):
        assert f"kawait/{data}" in expected


def test_a_package_index_would_take_its_metadata(wheel: Path) -> None:
    held = contents(wheel)
    metadata = held[f"{DIST_INFO}/METADATA"].decode()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nDescription-Content-Type: text/markdown\n" in metadata
    assert "Private ::" not in metadata
    assert held[f"{DIST_INFO}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert held[f"{DIST_INFO}/entry_points.txt"].split() == b"[console_scripts] kawait = kawait:main".split()


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path), "--target"]
    done_well([*build, "sdist"], cwd=ROOT)
    (archive,) = tmp_path.iterdir()
    done_well(["tar", "-xzf", archive.name], cwd=tmp_path)
    done_well([*build, "wheel"], cwd=tmp_path / archive.name.removesuffix(".tar.gz"))
    assert contents(tmp_path / wheel.name) == contents(wheel)


# --- the imports ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "moved"),
    [
        ("from schemas import codec", "from kawait.schemas import codec"),
        ("from state.keys import (\n    a,\n)", "from kawait.state.keys import (\n    a,\n)"),
        ("def f():\n    from streams.x import y", "def f():\n    from kawait.streams.x import y"),
        ("import os, state.keys as k, schemas as s", "import os, kawait.state.keys as k, kawait.schemas as s"),
        ("é = 'é'; from state import x", "é = 'é'; from kawait.state import x"),
        ("x = 'from state import y'  # import state", None),
        ("import stateful\nfrom statement import state\nfrom domain import Payment", None),
        ("from . import state\nfrom .state import x", None),
    ],
)
def test_imports_of_the_folders_follow_the_move_and_nothing_else_does(written: str, moved: str | None) -> None:
    assert with_moved_imports(written, FOLDERS) == (moved or written)


@pytest.mark.parametrize("written", ["import state", "import os, state.keys", "from  state import x"])
def test_an_import_that_a_prefix_cannot_move_stops_the_build(written: str) -> None:
    with pytest.raises(ValueError, match="line 1: "):
        with_moved_imports(written, FOLDERS)


def test_each_module_is_that_of_the_checkout_but_for_its_imports(wheel: Path) -> None:
    moved = modules(wheel)
    assert ast.unparse(moved.pop("kawait/__main__.py")).endswith("from kawait import main\nmain()")
    for name, module in moved.items():
        source = ROOT / ("kawait.py" if name == "kawait/__init__.py" else name.removeprefix("kawait/"))
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and node.module:
                node.module = node.module.removeprefix("kawait.")
            if isinstance(node, ast.alias):
                node.name = node.name.removeprefix("kawait.")
        assert ast.dump(module) == ast.dump(ast.parse(source.read_text())), name


NO_MODULE_NAMES = {
    "kawait/streams/worker/run.py": {"state"},  # a folder
    "kawait/topologies/reading/loading.py": {"schemas"},  # a key of pipeline.yaml
    "kawait/topologies/reading/modules.py": set(FOLDERS),  # what an author's modules must not be called in a checkout
}
"""Strings that read like a module of ours and are none: for each file, which."""


def test_no_module_of_ours_is_named_in_a_string(wheel: Path) -> None:
    """What starts, finds or imports a module by a text would work in one of the two layouts only."""
    looks_like_one = re.compile(rf"(?<![\w./-])({'|'.join(FOLDERS)})(?:[./]\w|$)")
    found = {
        name: {text for text in strings(module) if looks_like_one.match(text) or names_a_module(text, wheel)}
        for name, module in modules(wheel).items()
    }
    assert {name: texts for name, texts in found.items() if texts} == NO_MODULE_NAMES


def strings(module: ast.Module) -> Iterator[str]:
    """Every constant but docstrings, and but texts that stand alone as attributes' docstrings."""
    alone = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def names_a_module(text: str, wheel: Path) -> bool:
    """Whether a module's dotted name or path stands anywhere in the text."""
    return any(
        (ROOT / word.replace(".", "/")).with_suffix(".py").is_file() or (ROOT / word).is_file()
        for word in re.findall(rf"\b(?:{'|'.join(FOLDERS)})[./][\w./]*\w", text)
    )


# --- in an environment of its own -----------------------------------------------------------------------------------------------------


class Installed:
    """An environment that has the wheel, and of this checkout nothing but its dependencies."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        pip("install", wheel, python=self.bin / "python")
        # A folder that a .pth names is not asked for .pth files in turn, so the editable install there stays without effect.
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.kawait = site / "kawait"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAWAIT_", "PYTHON"))}
        self.environ = {**kept, "KAWAIT_TOKEN_K1": "k" * 32, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def run(self, command: str, *arguments: object, cwd: Path) -> str:
        return done_well([str(self.bin / command), *map(str, arguments)], cwd=cwd, env=self.environ)

    def lines(self, *arguments: object, cwd: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("kawait", *arguments, "--json", cwd=cwd).splitlines()]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An author's project, outside the checkout."""
    return Path(shutil.copytree(PROJECT, tmp_path / "loans", ignore=shutil.ignore_patterns("__pycache__")))


IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import kawait
found = [module.name for module in pkgutil.walk_packages(kawait.__path__, "kawait.")]
for name in found:
    if not name.endswith("__main__"):  # it would run
        importlib.import_module(name)
print(len(found), *sorted({getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}), sep="\\n")
"""


def test_every_module_imports_and_none_comes_from_the_checkout(installed: Installed, tmp_path: Path) -> None:
    count, *files = installed.run("python", "-c", IMPORT_EVERYTHING, cwd=tmp_path).splitlines()
    modules = [path for path in installed.kawait.rglob("*.py") if path.parent.name != "csv_payments"]  # no package
    assert int(count) == len(modules) - 1  # all but kawait itself
    from_here = [file for file in files if file.startswith(f"{ROOT}{os.sep}")]
    assert [file for file in from_here if not file.startswith(sysconfig.get_path("purelib"))] == []


def test_no_other_name_is_taken(installed: Installed, tmp_path: Path) -> None:
    script = f"import kawait, importlib.util as u; print([name for name in {FOLDERS!r} if u.find_spec(name)])"
    assert installed.run("python", "-c", script, cwd=tmp_path) == "[]\n"


def test_the_demo_runs(installed: Installed, project: Path) -> None:
    (found,) = installed.lines("demo", "--output", project / "out", cwd=project)
    assert (found["rows"], found["approved"], found["rejected"], found["failed"]) == (12, 4, 8, 0)
    assert installed.run("python", "-m", "kawait", "--version", cwd=project) == f"kawait {VERSION}\n"


def test_a_type_checker_reads_it(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("from kawait import submit\n\nsubmit('pipeline.yaml', wait='long')\n")
    checking = ["--strict", "--no-color-output", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    python = ["--python-executable", str(installed.bin / "python")]
    mypy = [sys.executable, "-m", "mypy", "--config-file", os.devnull, *python, *checking]
    said = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert said.splitlines()[0].startswith(
        'program.py:3: error: Argument "wait" to "submit" has incompatible type "str"'
    )
    assert said.splitlines()[1].startswith("Found 1 error in 1 file")


def test_a_checkout_takes_those_names_for_its_own() -> None:
    assert {module.name for module in refused_modules(PROJECT)} == set(FOLDERS)


def test_an_authors_packages_may_be_called_like_our_folders(installed: Installed, project: Path) -> None:
    installed.run("kawait", "check", project / "pipeline.yaml", cwd=project)
    said = installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "example.py", cwd=project)
    assert said.splitlines()[-1].startswith("2 passed")


def test_an_authors_module_may_not_be_called_kawait(installed: Installed, project: Path) -> None:
    (project / "kawait.py").touch()
    check = [str(installed.bin / "kawait"), "check", "pipeline.yaml"]
    done = subprocess.run(check, cwd=project, env=installed.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "module 'kawait.py' of the project has the name of one of kawait's own" in " ".join(done.stderr.split())


def test_children_are_shown_our_code_only_where_python_would_not_look(installed: Installed, tmp_path: Path) -> None:
    """Site-packages on the PYTHONPATH would come before the standard library, and `kawait/` there would be five names again."""
    assert import_path({"PYTHONPATH": "theirs"}) == f"{ROOT}{os.pathsep}theirs"
    script = "from kawait.streams.process.launcher import import_path as p; print(p({}), p({'PYTHONPATH': 'theirs'}))"
    assert installed.run("python", "-c", script, cwd=tmp_path).strip() == "theirs"


# --- on Kafka -------------------------------------------------------------------------------------------------------------------------


class Loans:
    """The author's application, run by the installed command line."""

    def __init__(self, installed: Installed, project: Path, bootstrap: str) -> None:
        self.installed = installed
        self.project = project
        self.bootstrap = bootstrap
        self.app = f"loans-{secrets.token_hex(4)}"

    def kawait(self, command: str, *arguments: object) -> list[dict[str, Any]]:
        places = ("--app", self.app, "--bootstrap", self.bootstrap)
        return self.installed.lines(command, *arguments, *places, cwd=self.project)

    @contextmanager
    def worker(self) -> Iterator[int]:
        """A worker that is ready: its process id; ended at the end."""
        places = ["--app", self.app, "--bootstrap", self.bootstrap, "--admin-port", "off", "--instance", "w1"]
        said = self.project / "worker.log"
        with said.open("w") as log:
            command = [str(self.installed.bin / "kawait"), "worker", "pipeline.yaml", *places]
            process = subprocess.Popen(command, cwd=self.project, env=self.installed.environ, stdout=log, stderr=log)
        try:
            wait_for(lambda: "ready worker w1" in said.read_text() or process.poll() is not None, "the worker is ready")
            yield process.pid
            process.terminate()
            assert process.wait(15) == 0, said.read_text()
        finally:
            process.kill()
            process.wait()

    def reply(self, interaction: str, value: object) -> None:
        script = "import sys, json; from kawait import reply; a = sys.argv; reply(a[1], a[2], json.loads(a[3]), bootstrap=a[4], app=a[5])"
        arguments = ("pipeline.yaml", interaction, json.dumps(value), self.bootstrap, self.app)
        self.installed.run("python", "-c", script, *arguments, cwd=self.project)


@pytest.mark.broker
def test_a_worker_runs_an_authors_pipeline_in_its_step_process(
    installed: Installed, project: Path, bootstrap: str
) -> None:
    loans = Loans(installed, project, bootstrap)
    installed.run("kawait", "topics", "pipeline.yaml", "--app", loans.app, "--bootstrap", bootstrap, cwd=project)
    with loans.worker() as pid:
        command, environ = step_process_of(pid)
        assert command[1:4] == ["-P", "-m", "kawait.streams.author.step_server"]
        assert environ.get("PYTHONPATH", "") == ""
        wish = ("pipeline.yaml", "--payload", json.dumps({"name": "Ann", "amount": 70}))
        (submitted,) = loans.kawait("submit", *wish)
        execution = submitted["executionId"]
        wait_for(lambda: loans.kawait("status", execution)[0]["status"] == "WAITING_EXTERNAL", "it asks", pause_s=0.2)
        loans.reply(f"{execution}.1.u", {"yes": True})
        (ended,) = loans.kawait("submit", *wish, "--wait")
    assert (ended["executionId"], ended["status"]) == (execution, "SUCCEEDED")
    assert ended["result"] == {"text": "Dear Ann, yes."}


@pytest.mark.broker
def test_the_demo_runs_on_kafka(installed: Installed, project: Path, bootstrap: str) -> None:
    (found,) = installed.lines("demo", "--bootstrap", bootstrap, "--output", project / "out", cwd=project)
    assert (found["rows"], found["failed"], found["broker"]) == (12, 0, "kafka")


def step_process_of(pid: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a worker's only child."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
    environ = Path(f"/proc/{child}/environ").read_text().split("\0")
    return command, dict(entry.split("=", 1) for entry in environ if "=" in entry)


def wait_for(condition: Callable[[], bool], what: str, *, pause_s: float = 0.05) -> None:
    until_s = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < until_s, f"not within {READY_S} s: {what}"
        time.sleep(pause_s)
