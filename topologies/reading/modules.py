"""Importing the author's modules: names relative to the pipeline's folder, several pipelines in one process.

Rules
  1. `module:name` is looked up with the app dir first on `sys.path`, as if Python had been started there.
  2. Two pipelines may both have a `domain.py`. Of all modules that come from app dirs only those of the pipeline that was
     loaded last are in `sys.modules`; those of the others are kept aside and come back when their pipeline is loaded again,
     so a pipeline's classes keep their identity. A module that imports at run time, inside a function, sees the last one.
  3. Modules of Python itself and of installed packages are never moved.
  4. A project with a top-level module named like one of ours is refused before anything is imported (DESIGN 3): one of the
     two would hide the other. A folder without Python files is no module. Installed, kawait has one name; in a checkout
     its folders are names too.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from schemas.errors import UsageError

_FLAT = ("connectors", "kawait", "schemas", "state", "streams", "tests", "topologies")
_TOP = __spec__.name.partition(".")[0]
RESERVED = (_TOP,) if _TOP == "kawait" else _FLAT
"""Our own top-level names: those of the checkout's folders, or the one package that holds this module."""

_SETTLED = ("site-packages", "dist-packages")

_lock = threading.RLock()
_set_aside: dict[Path, dict[str, ModuleType]] = {}
_active: list[Path] = []


class UnresolvedReference(UsageError):
    """A `module:name` that leads nowhere.

    Attributes:
        advice: What to write instead.
        is_import: The module itself is missing or fails: every reference into it fails alike.
    """

    def __init__(self, message: str, advice: str, *, is_import: bool = False) -> None:
        self.advice = advice
        self.is_import = is_import
        super().__init__(message)


def refused_modules(app_dir: Path) -> list[Path]:
    """Files and folders of the app dir that are top-level modules named like ours."""
    files = [app_dir / f"{name}.py" for name in RESERVED]
    folders = [app_dir / name for name in RESERVED]
    return [file for file in files if file.is_file()] + [folder for folder in folders if _is_module(folder)]


def _is_module(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    # A folder of tests without __init__.py is how most projects look, and nothing imports it by this name.
    return (folder / "__init__.py").is_file() or (folder.name != "tests" and any(folder.glob("*.py")))


class AuthorModules:
    """The modules of one app dir.

    Use as a context manager: the author's code is imported inside.
    """

    def __init__(self, app_dir: Path) -> None:
        """Nothing is imported yet; `app_dir` is absolute and resolved."""
        self._app_dir = app_dir

    def __enter__(self) -> Self:
        """Make this app dir the one whose modules are in place (rule 2)."""
        _lock.acquire()
        try:
            _activate(self._app_dir)
        except BaseException:
            _lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the modules in place: the author's functions may import when they run."""
        _lock.release()

    def resolve(self, reference: str) -> Any:
        """The object that `module:name` names; dots after the colon descend into attributes.

        Raises:
            UnresolvedReference: The text is no reference, the module cannot be imported, or it has no such name.
        """
        module_name, colon, name = reference.partition(":")
        parts = [*module_name.split("."), *name.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            raise UnresolvedReference(f"{reference!r} is not module:name", "write it as in domain:Payment")
        found: Any = self._import(module_name)
        for part in name.split("."):
            if not hasattr(found, part):
                raise UnresolvedReference(f"{module_name} has no {name!r}", _closest(name, found, module_name))
            found = getattr(found, part)
        return found

    def _import(self, name: str) -> ModuleType:
        top = name.partition(".")[0]
        own = (self._app_dir / f"{top}.py").is_file() or (self._app_dir / top).is_dir()
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                advice = f"create {self._app_dir.name}/{name.replace('.', '/')}.py, or give --app-dir"
                raise UnresolvedReference(
                    f"there is no module {name!r} in the app dir", advice, is_import=True
                ) from error
            message = f"{name} needs the module {error.name!r}, which is missing"
            raise UnresolvedReference(message, f"install {error.name}", is_import=True) from error
        except (Exception, SystemExit) as error:
            message = f"importing {name} fails: {_summary(error, self._app_dir)}"
            raise UnresolvedReference(message, "correct the module", is_import=True) from error
        if own and not _is_below(module, self._app_dir):
            raise UnresolvedReference(
                f"{name} of the app dir is hidden by the module of that name at {_origin(module) or 'Python itself'}",
                "rename yours, or move it into a package of your own",
                is_import=True,
            )
        return module


def _activate(app_dir: Path) -> None:
    for other in [path for path in _active if path != app_dir]:
        _put_aside(other)
        if str(other) in sys.path:
            sys.path.remove(str(other))
        _active.remove(other)
    names = _top_level_names(app_dir)
    for name in [name for name in sys.modules if name.partition(".")[0] in names and _is_foreign(name, app_dir)]:
        sys.modules.pop(name)
    sys.modules.update(_set_aside.pop(app_dir, {}))
    if app_dir not in _active:
        _active.append(app_dir)
    if str(app_dir) in sys.path:
        sys.path.remove(str(app_dir))
    sys.path.insert(0, str(app_dir))
    importlib.invalidate_caches()


def _put_aside(app_dir: Path) -> None:
    """Take out what was imported relative to the app dir; what came through a package above it stays."""
    tops = _top_level_names(app_dir)
    candidates = [name for name in sys.modules if name.partition(".")[0] in tops]
    names = [name for name in candidates if _is_below(sys.modules[name], app_dir)]
    _set_aside[app_dir] = {name: sys.modules.pop(name) for name in names}


def _top_level_names(app_dir: Path) -> frozenset[str]:
    """What `import name` finds in the app dir, less the names that never move (rules 3 and 4); nothing once it was deleted."""
    if not app_dir.is_dir():
        return frozenset()
    files = {file.stem for file in app_dir.glob("*.py")}
    folders = {folder.name for folder in app_dir.iterdir() if folder.is_dir() and folder.name.isidentifier()}
    return frozenset((files | folders) - set(RESERVED) - sys.stdlib_module_names - {"__init__", "__main__"})


def _is_foreign(name: str, app_dir: Path) -> bool:
    """Whether a loaded module belongs to another project; installed packages do not count."""
    origin = _origin(sys.modules[name])
    return (
        origin is not None and not Path(origin).is_relative_to(app_dir) and not any(part in origin for part in _SETTLED)
    )


def _origin(module: ModuleType) -> str | None:
    """The file of a module, the folder of a namespace package, None for a built-in."""
    file = getattr(module, "__file__", None)
    if file:
        return str(Path(file).resolve())
    paths = list(getattr(module, "__path__", []))
    return str(Path(paths[0]).resolve()) if paths else None


def _is_below(module: ModuleType, app_dir: Path) -> bool:
    origin = _origin(module)
    return origin is not None and Path(origin).is_relative_to(app_dir)


def _summary(error: BaseException, app_dir: Path) -> str:
    """Kind and text of an import's failure, with the author's innermost line."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__} in {Path(error.filename).name}:{error.lineno}: {error.msg}"
    place = ""
    trace = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(app_dir):
            place = f" in {file.relative_to(app_dir)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}: {text}"


def _closest(name: str, holder: Any, module_name: str) -> str:
    public = [candidate for candidate in dir(holder) if not candidate.startswith("_")]
    close = get_close_matches(name, public, n=1)
    return f"did you mean {module_name}:{close[0]}?" if close else f"define {name} in {module_name}"


def takes_positional(function: Callable[..., Any], count: int) -> bool:
    """Whether the function can be called with `count` positional arguments and nothing else."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature: only a call can tell
        return True
    return True


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling gives a coroutine; callable objects and partials are looked through."""
    return inspect.iscoroutinefunction(_underlying(function))


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Whether calling gives an iterator or async iterator at once, because the body has a `yield`."""
    bare = _underlying(function)
    return inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare)


def _underlying(function: Callable[..., Any]) -> Any:
    bare: Any = function
    while hasattr(bare, "func"):
        bare = bare.func
    if inspect.isroutine(bare) or inspect.isclass(bare):
        return bare
    return vars(type(bare)).get("__call__", bare)
