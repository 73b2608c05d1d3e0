"""Functions that are generated from Avro schemas: from an object of a class to its bytes, and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from schemas.declaration import HEADER_BYTES, Schema, header
from schemas.errors import PoisonRecord

# --- what generated code calls -----------------------------------------------------------------------------------------------------


class Longs(dict[int, bytes]):
    """Avro longs by value, behind a fixed prefix; made when first asked for and kept while there is room.

    Lengths, attempts and the times of a batch repeat, so nearly every look-up is a hit.
    """

    ROOM = 8_192

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def __missing__(self, value: int) -> bytes:
        if not -(1 << 63) <= value < 1 << 63:
            raise OverflowError(f"{value} does not fit an Avro long")
        if len(self) >= self.ROOM:
            self.clear()
        self[value] = encoded = self._prefix + _varint((value << 1) ^ (value >> 63))  # zigzag
        return encoded


_FIRST_DIGITS = [bytes((digit | 0x80,)) for digit in range(0x80)]
"""All digits but the last of a number have the high bit set."""


def _varint(number: int) -> bytes:
    """A number of 0 or more in base 128, lowest digit first."""
    return bytes((number,)) if number < 0x80 else _FIRST_DIGITS[number & 0x7F] + _high_digits(number >> 7)


_high_digits = lru_cache(maxsize=8_192)(_varint)
"""The high digits of times and indexes repeat even where the numbers do not."""


class Texts(dict[str, bytes]):
    """Avro strings by text, behind a fixed prefix; made and kept as `Longs` are."""

    ROOM = 8_192

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def __missing__(self, text: str) -> bytes:
        data = text.encode()
        if len(self) >= self.ROOM:
            self.clear()
        self[text] = encoded = self._prefix + _PLAIN[len(data)] + data
        return encoded


_TIME_BYTES = 6
"""As long as the milliseconds of our days are written."""
_TIMES_READ: dict[bytes, int] = {}
"""Times that were read lately, by their bytes: records that were stamped together are read together."""


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read an Avro long; returns it and the place after it.

    Raises:
        IndexError: The data ends first.
        PoisonRecord: More than 64 bits.
    """
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    start = at
    time = _TIMES_READ.get(data[at : at + _TIME_BYTES])
    if time is not None:
        return time, at + _TIME_BYTES
    value = byte & 0x7F
    shift = 7
    while byte > 0x7F:
        if shift > 63:
            raise PoisonRecord("malformed", "a number has more than 64 bits")
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    if value >> 64:
        raise PoisonRecord("malformed", "a number has more than 64 bits")
    value = (value >> 1) ^ -(value & 1)
    at += 1
    if at - start == _TIME_BYTES:
        if len(_TIMES_READ) >= Longs.ROOM:
            _TIMES_READ.clear()
        _TIMES_READ[data[start:at]] = value
    return value, at


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """Read the length of a string or of bytes; returns twice the length, as it is written, and the place after it."""
    length, at = read_long(data, at)
    if length < 0:
        raise bad_length(length)
    return length << 1, at


def read_blocks(data: bytes, at: int) -> tuple[list[bytes], int]:
    """Read an array of strings or bytes; returns the items as bytes and the place after the array.

    Raises:
        IndexError: The data ends first.
        PoisonRecord: A negative length.
    """
    items: list[bytes] = []
    count, at = read_long(data, at)
    while count:
        if count < 0:  # a block that also says its size
            count = -count
            _, at = read_long(data, at)
        for _ in range(count):
            length, at = read_long(data, at)
            if length < 0:
                raise bad_length(length)
            items.append(data[at : at + length])
            at += length
        count, at = read_long(data, at)
    return items, at


def read_longs(data: bytes, at: int) -> tuple[list[int], int]:
    """Read an array of longs; returns them and the place after the array.

    Raises:
        IndexError: The data ends first.
        PoisonRecord: A number of more than 64 bits.
    """
    items: list[int] = []
    count, at = read_long(data, at)
    while count:
        if count < 0:  # a block that also says its size
            count = -count
            _, at = read_long(data, at)
        for _ in range(count):
            item, at = read_long(data, at)
            items.append(item)
        count, at = read_long(data, at)
    return items, at


def bad_length(length: int) -> PoisonRecord:
    """A string or bytes of negative length."""
    return PoisonRecord("malformed", f"a negative length ({length})")


def bad_branch(branch: int) -> PoisonRecord:
    """A nullable field that is neither null nor a value, or a boolean that is neither."""
    return PoisonRecord("malformed", f"{branch} where only two choices exist")


_PLAIN = Longs(b"")
_PRESENT = Longs(b"\x02")
"""For nullable fields: branch 1, then the long."""
_TEXT = Texts(b"")
_PRESENT_TEXT = Texts(b"\x02")

_REPEATED = frozenset(
    {"execution_id", "input_type", "output_type", "pipeline", "projector", "step_id", "tenant_id", "unit_id"}
)
"""String fields that many records have in common; the bytes of others are not kept."""


# --- generation --------------------------------------------------------------------------------------------------------------------


class Later:
    """Stands for a function until it is first called, so that starting does not pay for classes that never come."""

    def __init__(
        self,
        source: Callable[[type[msgspec.Struct], Schema], str],
        cls: type[msgspec.Struct],
        schema: Schema,
        home: dict[Any, Any],
        key: Any,
    ) -> None:
        self._parts = (source, cls, schema)
        self._home = home
        self._key = key

    def __call__(self, argument: Any) -> Any:
        """Make the function, let it stand in this one's place from now on, and call it."""
        source, cls, schema = self._parts
        function = compiled(source(cls, schema), cls, schema)
        self._home[self._key] = function
        return function(argument)


def compiled(source: str, cls: type[msgspec.Struct], schema: Schema) -> Callable[[Any], Any]:
    """Run generated source, which defines `function`. The source holds names of our own classes and fields only."""
    names: dict[str, Any] = {
        "HEADER": header(schema),
        "LONG": _PLAIN,
        "PRESENT": _PRESENT,
        "TEXT": _TEXT,
        "PRESENT_TEXT": _PRESENT_TEXT,
        "Poison": PoisonRecord,
        "cls": cls,
        "read_long": read_long,
        "read_length": read_length,
        "read_blocks": read_blocks,
        "read_longs": read_longs,
        "bad_length": bad_length,
        "bad_branch": bad_branch,
    }
    exec(compile(source, f"<avro {cls.__name__}>", "exec"), names)  # noqa: S102
    function: Callable[[Any], Any] = names["function"]
    return function


def encoder_source(cls: type[msgspec.Struct], schema: Schema) -> str:
    """Source of a function from an object of `cls` to its bytes.

    Each field puts a statement or two before one join and its pieces into it.
    """
    before: list[str] = []
    pieces = ["HEADER"]
    for name, field in zip(cls.__struct_fields__, schema["fields"], strict=True):
        statements, expressions = _WRITERS[_kind(field["type"])](name)
        before += statements
        pieces += expressions
    body = "\n    ".join([*before, f'return b"".join(({", ".join(pieces)},))'])
    return f"def function(obj):\n    {body}\n"


_Written = tuple[list[str], list[str]]


def _write_string(name: str) -> _Written:
    if name in _REPEATED:
        return [], [f"TEXT[obj.{name}]"]
    return [f"{name} = obj.{name}.encode()"], [f"LONG[len({name})]", name]


def _write_nullable_string(name: str) -> _Written:
    if name in _REPEATED:
        return [f"{name} = obj.{name}"], [f'b"\\0" if {name} is None else PRESENT_TEXT[{name}]']
    return _write_nullable(name, f"{name}.encode()")


def _write_array(name: str, item: str) -> _Written:
    lines = [
        f"{name} = obj.{name}",
        f"if {name}:",
        f"    parts = [LONG[len({name})]]",
        f"    for item in {name}:",
        f"        item = {item}",
        "        parts.append(LONG[len(item)]); parts.append(item)",
        '    parts.append(b"\\0")',
        f'    {name} = b"".join(parts)',
        "else:",
        f'    {name} = b"\\0"',
    ]
    return lines, [name]


def _write_longs(name: str) -> _Written:
    items = f'b"".join([LONG[len({name})], *map(LONG.__getitem__, {name}), b"\\0"])'
    return [f"{name} = obj.{name}", f'{name} = {items} if {name} else b"\\0"'], [name]


def _write_nullable(name: str, value: str) -> _Written:
    lines = [
        f"{name} = obj.{name}",
        f"if {name} is None:",
        f'    {name}_head = b"\\0"; {name} = b""',
        "else:",
        f"    {name} = {value}; {name}_head = PRESENT[len({name})]",
    ]
    return lines, [f"{name}_head", name]


_WRITERS: dict[str, Callable[[str], _Written]] = {
    "string": _write_string,
    "bytes": lambda n: ([f"{n} = obj.{n}"], [f"LONG[len({n})]", n]),
    "long": lambda n: ([], [f"LONG[obj.{n}]"]),
    "boolean": lambda n: ([], [f'b"\\1" if obj.{n} else b"\\0"']),
    "null|string": _write_nullable_string,
    "null|bytes": lambda n: _write_nullable(n, n),
    "null|long": lambda n: ([f"{n} = obj.{n}"], [f'b"\\0" if {n} is None else PRESENT[{n}]']),
    "array|string": lambda n: _write_array(n, "item.encode()"),
    "array|bytes": lambda n: _write_array(n, "item"),
    "array|long": _write_longs,
}


def decoder_source(cls: type[msgspec.Struct], schema: Schema) -> str:
    """Source of a function from a whole record, header included, to an object of `cls`.

    A length that reaches past the end moves the place past it: either the next read fails there, or the last line sees it.
    """
    lines = [
        line
        for name, field in zip(cls.__struct_fields__, schema["fields"], strict=True)
        for line in _reader(name, field)
    ]
    label = cls.__name__
    arguments = ", ".join(cls.__struct_fields__)
    body = "\n        ".join([f"at = {HEADER_BYTES}", *lines])
    return (
        "def function(data):\n"
        "    try:\n"
        f"        {body}\n"
        f'    except IndexError:\n        raise Poison("truncated", "{label}: ends within a field") from None\n'
        f'    except UnicodeDecodeError:\n        raise Poison("malformed", "{label}: a string is not UTF-8") from None\n'
        "    if at != len(data):\n"
        f'        if at > len(data):\n            raise Poison("truncated", "{label}: ends within a field")\n'
        f'        raise Poison("trailing-bytes", f"{label}: {{len(data) - at}} bytes after the record")\n'
        f"    return cls({arguments})\n"
    )


def _reader(name: str, field: Schema) -> list[str]:
    """Statements that read one field into a local of its name and move `at` behind it."""
    kind = _kind(field["type"])
    if kind.startswith("null|"):
        inner = _READERS[kind.removeprefix("null|")](name)
        return [
            "branch = data[at]",
            "at += 1",
            f"if branch == 0: {name} = None",
            "elif branch == 2:",
            *(f"    {line}" for line in inner),
            "else: raise bad_branch(branch)",
        ]
    return _READERS[kind](name)


def _read_sized(name: str, value: str) -> list[str]:
    return [
        "size = data[at]",
        "if size < 128: at += 1",
        "else:",
        "    high = data[at + 1]",
        "    if high < 128: size += (high << 7) - 128; at += 2",
        "    else: size, at = read_length(data, at)",
        "if size & 1: raise bad_length(size)",
        "end = at + (size >> 1)",
        f"{name} = {value}",
        "at = end",
    ]


_READERS: dict[str, Callable[[str], list[str]]] = {
    "string": lambda n: _read_sized(n, "data[at:end].decode()"),
    "bytes": lambda n: _read_sized(n, "data[at:end]"),
    "long": lambda n: [
        f"{n} = data[at]",
        f"if {n} & 0x81: {n}, at = read_long(data, at)",
        f"else: {n} >>= 1; at += 1",
    ],
    "boolean": lambda n: [f"{n} = data[at]", "at += 1", f"if {n} > 1: raise bad_branch({n})", f"{n} = {n} == 1"],
    "array|string": lambda n: [f"{n}, at = read_blocks(data, at)", f"{n} = [item.decode() for item in {n}]"],
    "array|bytes": lambda n: [f"{n}, at = read_blocks(data, at)"],
    "array|long": lambda n: [f"{n}, at = read_longs(data, at)"],
}


def _kind(avro: Any) -> str:
    """A field's type as one word: `long`, `null|string`, `array|bytes`."""
    if isinstance(avro, list):
        return "|".join(avro)
    return f"array|{avro['items']}" if isinstance(avro, dict) else str(avro)
