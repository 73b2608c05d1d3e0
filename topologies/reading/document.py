"""pipeline.yaml as a tree of nodes that know their line: YAML, `${ENV}`, `--set`.

Rules
  1. Scalars follow the YAML 1.2 core schema: `yes`, `on` and `12:30` are text, not booleans and sexagesimal numbers.
  2. `${NAME}` and `${NAME:-default}` work in every value, never in keys; the default also replaces an empty variable.
     A substituted scalar keeps its template, and that is all that a message may show of it: the value can be a secret.
  3. `--set PATH=VALUE` replaces or adds one value; `steps.<step id>` finds the step by its id or its index. VALUE is YAML when
     it reads as YAML, and text otherwise.
  4. Nothing here raises for what the author wrote: problems are collected, and reading goes on where it can.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import yaml

from schemas.errors import Problem

DEPTH_MAX = 100
"""Deepest nesting of maps and lists (BEHAVIOUR 4.1)."""

NODES_MAX = 100_000
"""Most nodes after aliases are expanded: a small file can name billions."""

SET_FILE = "--set"
"""`Problem.file` of what came from an override."""


@dataclass(slots=True)
class Node:
    """One value of the file.

    Attributes:
        value: None, bool, int, float or str; `list[Node]`; `dict[str, Node]`.
        file: The file as the user named it, or `--set`.
        line: 1-based line of the value, 0 for an override.
        key_lines: For a map: line of each key.
        text: The scalar's own text when its type is open: it came from `${ENV}` or `--set`. None: the type is as written.
        template: The text before substitution; what messages show instead of the value.
        faults: Why the value is missing, each a message and an advice; `note_faults` reports them, readers keep silent.
    """

    value: Any
    file: str
    line: int
    key_lines: dict[str, int] = field(default_factory=dict)
    text: str | None = None
    template: str | None = None
    faults: tuple[tuple[str, str], ...] = ()

    def shown(self) -> str:
        """The value for a message: never a substituted one, never long."""
        if self.template is not None:
            return self.template
        if isinstance(self.value, dict):
            return "a map"
        if isinstance(self.value, list):
            return "a list"
        if self.value is None:
            return "nothing"
        shown = {True: "true", False: "false"}[self.value] if isinstance(self.value, bool) else str(self.value)
        return shown if len(shown) <= 60 else shown[:57] + "..."


HIDDEN_LENGTH_MIN = 8
"""Substituted texts from this length on are hidden everywhere; shorter ones only where the problem is about them."""


class Problems:
    """What is wrong so far, in words that show no substituted value (rule 2)."""

    def __init__(self) -> None:
        """Start with none."""
        self.found: list[Problem] = []
        self._hidden: dict[str, str] = {}

    def hide(self, text: str, template: str) -> None:
        """Show the template wherever a message would show the text."""
        if len(text) >= HIDDEN_LENGTH_MIN:
            self._hidden[text] = template

    def add(self, node: Node, where: str, message: str, advice: str, *, line: int | None = None) -> None:
        """Note a problem at a node, or at a line of the node's file."""
        hidden = dict(self._hidden)
        if node.text and node.template is not None:
            hidden[node.text] = node.template
        shown = (_without(text, hidden) for text in (where, message, advice))
        self.found.append(Problem(node.file, node.line if line is None else line, *shown))


def _without(text: str, hidden: Mapping[str, str]) -> str:
    for secret, template in hidden.items():
        if secret != template:
            text = text.replace(secret, template).replace(repr(secret)[1:-1], template)
    return text


class _Loader(yaml.SafeLoader):
    """The scalars of the YAML 1.2 core schema (rule 1)."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - pyyaml's class attribute


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]{1,18}$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


def scalar(text: str) -> bool | int | float | str | None:
    """A plain scalar's value under the core schema."""
    resolver = _Loader("")
    tag = resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    match str(tag).rpartition(":")[2]:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text)
        case "float":
            return float(text)
        case _:
            return text


def read_document(text: bytes, *, file: str, environ: Mapping[str, str], problems: Problems) -> Node | None:
    """The root node; None when the text is no single YAML map, which is then a problem."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        problems.found.append(
            Problem(file, mark.line + 1 if mark else 0, "", f"not valid YAML: {what}", _yaml_advice(what))
        )
        return None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        problems.found.append(
            Problem(file, 1, "", f"not valid YAML: {what}", "save the file as UTF-8 text without control characters")
        )
        return None
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1 if root else 1
        message = "the file holds no map of keys" if root else "the file is empty"
        problems.found.append(Problem(file, line, "", message, "start with `app: my-app` and a list `steps:`"))
        return None
    return _Builder(file=file, environ=environ, problems=problems).build(root, "", 0)


def _yaml_advice(what: str) -> str:
    if "tab" in what or "\\t" in what:
        return "indent with spaces"
    if "single document" in what:
        return "keep one pipeline a file"
    return 'check the indentation, and put values that start with { or contain ": " in quotes, as in topic: "{app}.requests"'


class _Builder:
    """yaml nodes to `Node`s."""

    def __init__(self, *, file: str, environ: Mapping[str, str], problems: Problems) -> None:
        self._file = file
        self._environ = environ
        self._problems = problems
        self._count = 0
        self._above: list[int] = []

    def build(self, raw: yaml.Node, where: str, depth: int) -> Node:
        line = raw.start_mark.line + 1
        self._count += 1
        if isinstance(raw, yaml.ScalarNode):
            return self._scalar(raw, where, line)
        fault = self._fault(raw, depth)
        if fault:
            return Node(None, self._file, line, faults=((fault, "write the value out"),))
        self._above.append(id(raw))
        node = (
            self._sequence(raw, where, depth)
            if isinstance(raw, yaml.SequenceNode)
            else self._mapping(raw, where, depth)
        )
        self._above.pop()
        return node

    def _fault(self, raw: yaml.Node, depth: int) -> str | None:
        if id(raw) in self._above:
            return "the alias is cyclic: it contains itself"
        if depth >= DEPTH_MAX:
            return f"nested deeper than {DEPTH_MAX} levels"
        return f"more than {NODES_MAX} values once aliases are expanded" if self._count > NODES_MAX else None

    def _sequence(self, raw: yaml.SequenceNode, where: str, depth: int) -> Node:
        items = [
            self.build(item, f"{where}.{index}" if where else str(index), depth + 1)
            for index, item in enumerate(raw.value)
        ]
        return Node(items, self._file, raw.start_mark.line + 1)

    def _mapping(self, raw: yaml.Node, where: str, depth: int) -> Node:
        node = Node({}, self._file, raw.start_mark.line + 1)
        merged: list[Node] = []
        for key, value in raw.value:
            name, line = str(key.value), key.start_mark.line + 1
            path = f"{where}.{name}" if where else name
            if key.tag.endswith(":merge"):
                merged.append(self.build(value, path, depth + 1))
            elif not isinstance(key, yaml.ScalarNode):
                self._problems.found.append(
                    Problem(self._file, line, where, "a key is a map or list", "write a name as key")
                )
            elif name in node.value:
                first = node.key_lines[name]
                self._problems.found.append(
                    Problem(self._file, line, path, f"written twice, first on line {first}", "remove one of the two")
                )
            else:
                node.value[name] = self.build(value, path, depth + 1)
                node.key_lines[name] = line
        for source in merged:
            self._merge(node, source, where)
        return node

    def _merge(self, node: Node, source: Node, where: str) -> None:
        parts = source.value if isinstance(source.value, list) else [source]
        for part in parts:
            if not isinstance(part.value, dict):
                self._problems.add(part, where, "`<<` merges maps only", "name an alias of a map")
                continue
            for name, value in part.value.items():
                node.value.setdefault(name, deepcopy(value))  # an override of one place must not reach the other
                node.key_lines.setdefault(name, part.key_lines[name])

    def _scalar(self, raw: yaml.ScalarNode, where: str, line: int) -> Node:
        if "${" in raw.value:
            return self._substituted(raw.value, line)
        kind = raw.tag.rpartition(":")[2]
        if kind in ("null", "bool", "int", "float") and raw.style is None:
            return Node(scalar(raw.value), self._file, line)
        if kind not in ("str", "null", "bool", "int", "float", "merge"):
            self._problems.found.append(
                Problem(self._file, line, where, f"the tag {raw.tag} is not supported", "remove the tag")
            )
        return Node(raw.value, self._file, line)

    def _substituted(self, template: str, line: int) -> Node:
        missing: list[str] = []
        text = _VARIABLE.sub(lambda found: self._variable(found, missing), template)
        faults = [
            (f"the environment variable {name} is not set", f"set {name}, or write ${{{name}:-default}}")
            for name in missing
        ]
        if "${" in _VARIABLE.sub("", template):
            faults.append((f"{template} is no complete ${{NAME}}", "write ${NAME} or ${NAME:-default}"))
        if faults:
            return Node(None, self._file, line, template=template, faults=tuple(faults))
        self._problems.hide(text, template)
        return Node(text, self._file, line, text=text, template=template)

    def _variable(self, found: re.Match[str], missing: list[str]) -> str:
        name, default = found["name"], found["default"]
        value = self._environ.get(name)
        if default is not None:
            return value or default
        if value is None:
            missing.append(name)
        return value or ""


def apply_overrides(root: Node, overrides: Sequence[str], *, environ: Mapping[str, str], problems: Problems) -> None:
    """Write each `PATH=VALUE` into the tree, in order; a path that leads nowhere is a problem."""
    for override in overrides:
        path, equals, text = override.partition("=")
        node = Node(None, SET_FILE, 0)
        if not equals or not all(path.split(".")):
            problems.add(node, path, "an override needs a path and a value", "write --set output.location=/data/out")
            continue
        _write(root, path, _override_value(text, path, environ, problems), problems)


def _override_value(text: str, path: str, environ: Mapping[str, str], problems: Problems) -> Node:
    builder = _Builder(file=SET_FILE, environ=environ, problems=problems)
    try:
        raw = yaml.compose(text, Loader=_Loader) if text else None
    except (yaml.YAMLError, RecursionError):
        raw = None
    if raw is None or isinstance(raw, yaml.ScalarNode):
        plain = yaml.ScalarNode("tag:yaml.org,2002:str", text, *_NO_MARKS, style='"')
        node = builder.build(plain, path, 0)
        if node.template is None:
            node.text, node.template = text, f"the value of --set {path}" if path.startswith("tokens") else text
            problems.hide(text, node.template)
            node.value = raw.value if raw is not None and raw.style else scalar(text)
        return _without_lines(node)
    node = builder.build(raw, path, 0)
    node.text = text  # a template such as {paymentId} reads as a map
    return _without_lines(node)


_NO_MARKS = (yaml.Mark("", 0, -1, 0, None, 0), yaml.Mark("", 0, -1, 0, None, 0))


def _without_lines(node: Node) -> Node:
    for _, part in walk(node):
        part.line = 0
        part.key_lines = dict.fromkeys(part.key_lines, 0)
    return node


def walk(node: Node, where: str = "") -> Iterator[tuple[str, Node]]:
    """The node and everything below it, each with its dotted path."""
    yield where, node
    below: list[tuple[str, Node]] = []
    if isinstance(node.value, list):
        below = [(step_id(part) or str(index), part) for index, part in enumerate(node.value)]
    elif isinstance(node.value, dict):
        below = list(node.value.items())
    for name, part in below:
        yield from walk(part, f"{where}.{name}" if where else name)


def note_faults(root: Node, problems: Problems) -> None:
    """Note every value that could not be made; after the overrides, which may have replaced it."""
    for where, node in walk(root):
        for message, advice in node.faults:
            problems.add(node, where, message, advice)


def _write(root: Node, path: str, value: Node, problems: Problems) -> None:
    node, names = root, path.split(".")
    for depth, name in enumerate(names):
        last = depth == len(names) - 1
        where = ".".join(names[: depth + 1])
        if isinstance(node.value, list):
            index = _item_index(node, name)
            if index is None:
                known = ", ".join(step_id(item) for item in node.value if step_id(item))
                problems.add(
                    value,
                    where,
                    f"there is no {name!r} in the list",
                    f"use one of: {known}" if known else "use an index",
                )
                return
            if last:
                node.value[index] = value
            node = node.value[index]
            continue
        if not isinstance(node.value, dict):
            node.value, node.key_lines = {}, {}  # `live: false` gives way to live.window=...
        if last:
            node.value[name] = value
        else:
            node.value.setdefault(name, Node({}, SET_FILE, 0))
        node.key_lines.setdefault(name, 0)
        node = node.value[name]


def _item_index(node: Node, name: str) -> int | None:
    for index, item in enumerate(node.value):
        if step_id(item) == name:
            return index
    return int(name) if name.isdigit() and int(name) < len(node.value) else None


def step_id(node: Node) -> str:
    """The step id of a step's node: its name in kebab case; empty when it has none."""
    name = node.value.get("name") if isinstance(node.value, dict) else None
    return kebab_case(name.value) if name is not None and isinstance(name.value, str) else ""


def kebab_case(name: str) -> str:
    """`Await Payment Provider` -> `await-payment-provider`; runs of anything but letters and digits become one dash, accents go."""
    bare = "".join(mark for mark in unicodedata.normalize("NFKD", name) if not unicodedata.combining(mark))
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", bare)
    return "-".join(re.findall(r"[a-z0-9]+", spaced.lower()))
