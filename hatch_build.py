"""How the flat folders of the checkout become the one package of the wheel, `kawait`.

    checkout              wheel
    kawait.py             kawait/__init__.py
    streams/clock.py      kawait/streams/clock.py, and so each folder that the wheel target includes

hatchling chooses the files and moves them (`sources` in pyproject.toml). This hook follows with the import statements: each that names one of
the moved folders gets `kawait.` in front, found by syntax tree, so no string, comment or name of an author's module is touched. An editable
install stays flat: nothing moves, and `kawait` is kawait.py.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilderConfig

PACKAGE: Final = "kawait"
STANDARD: Final = "standard"  # the other version of a wheel is "editable"
MAIN: Final = '''"""`python -m kawait`, the same as the console script `kawait`."""

from kawait import main

main()
'''


class OnePackage(BuildHookInterface[WheelBuilderConfig]):
    """Puts what the move changes in place of what stands in the checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the changed modules to a temporary folder and have the wheel take them from there."""
        if version != STANDARD:
            return
        self._written = TemporaryDirectory(prefix="kawait-wheel-")  # goes with the process if the build fails
        for name, text in self._changed():
            file = Path(self._written.name, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            build_data["force_include"][str(file)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        del build_data, artifact_path
        if version == STANDARD:
            self._written.cleanup()

    def _changed(self) -> Iterator[tuple[str, str]]:
        """Name below `kawait/` and text of each file that is not as in the checkout."""
        folders = set(self.build_config.only_include.values())
        for file in self.build_config.builder.recurse_selected_project_files():
            if file.path.endswith(".py"):
                text = Path(file.path).read_text(encoding="utf-8")
                moved = with_moved_imports(text, folders)
                if moved != text:
                    yield file.relative_path, moved
        api = Path(self.root, f"{PACKAGE}.py").read_text(encoding="utf-8")
        yield "__init__.py", with_moved_imports(api, folders)
        yield "__main__.py", MAIN
        yield "py.typed", ""


def with_moved_imports(source: str, folders: Collection[str]) -> str:
    """The module with `kawait.` in front of each imported name that starts with one of the folders; lines keep their numbers.

    Raises:
        ValueError: an import that cannot be moved by a prefix.
    """
    lines = source.encode().splitlines(keepends=True)  # as in a syntax tree: columns count bytes
    prefix = f"{PACKAGE}.".encode()
    for line, column in sorted(_places(source, lines, folders), reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:column] + prefix + text[column:]
    return b"".join(lines).decode()


def _places(source: str, lines: list[bytes], folders: Collection[str]) -> Iterator[tuple[int, int]]:
    """Line and column of each imported name that moves."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _top(node.module) in folders:
            column = node.col_offset + len("from ")
            if not lines[node.lineno - 1].startswith(f"{node.module} import".encode(), column):
                raise ValueError(f"line {node.lineno}: write `from {node.module} import` with single blanks")
            yield node.lineno, column
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _top(alias.name) in folders:
                    if alias.asname is None:
                        raise ValueError(
                            f"line {node.lineno}: `import {alias.name}` binds a name that moves; import from it"
                        )
                    yield alias.lineno, alias.col_offset


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]
