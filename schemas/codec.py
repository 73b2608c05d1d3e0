"""Structs to Avro and back: single-object encoding, one schema file for each class (DESIGN 2, 4).

A record is the marker C3 01, the CRC-64-AVRO fingerprint of its schema's parsing canonical form (8 bytes, little-endian) and the body.
`avro/<ClassName>.avsc` is the current schema of a class. `avro/<ClassName>.<n>.avsc` are its former versions, oldest first: records of them
are read by Avro's schema resolution, so a field that is new since then gets its default. `avro/FINGERPRINTS` lists them all.

This runs several times for each awaited row, so the current version of each class is written and read by two functions that are generated
from its schema when first used: 3 to 4 times as fast as fastavro's generic ones, and byte for byte the same (a property test compares them).
fastavro reads the former versions.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

import fastavro
import msgspec

from schemas.declaration import HEADER_BYTES, MARKER, Schema, camel, header
from schemas.envelopes import ENVELOPES
from schemas.errors import PoisonRecord
from schemas.facts import FACTS

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], msgspec.Struct]


class Codec:
    """Encodes and decodes the structs of a set of classes.

    Args:
        classes: The struct classes.
        schemas: Schema JSON by file name, `<ClassName>.avsc` and `<ClassName>.<n>.avsc`.

    Raises:
        ValueError: A class has no schema or one with other fields, or a schema belongs to no class.
    """

    def __init__(self, classes: Iterable[type[msgspec.Struct]], schemas: Mapping[str, str]) -> None:
        by_name = {cls.__name__: cls for cls in classes}
        current = {name: _load(schemas, f"{name}.avsc") for name in by_name}
        self._encoders: dict[type, Encode] = {}
        self._decoders: dict[bytes, Decode] = {}
        for file in schemas:
            name = file.split(".", 1)[0]
            if name not in by_name:
                raise ValueError(f"schema {file} belongs to no class; remove it or add the class")
            cls, reader = by_name[name], current[name]
            if file == f"{name}.avsc":
                _check_fields(cls, reader)
                self._encoders[cls] = _Later(encoder_source, cls, reader, self._encoders, cls)
                self._decoders[header(reader)] = _Later(decoder_source, cls, reader, self._decoders, header(reader))
            else:
                writer = _load(schemas, file)
                self._decoders[header(writer)] = _resolving_decoder(cls, writer, reader)

    def encode(self, obj: msgspec.Struct) -> bytes:
        """Encode a fact or an envelope as one Avro single object of its class's current schema.

        Raises:
            KeyError: The class is not of this codec.
            AttributeError, TypeError, OverflowError, UnicodeEncodeError: A field is not what its annotation says.
        """
        return self._encoders[type(obj)](obj)

    def decode(self, data: bytes | None) -> msgspec.Struct:
        """Decode one Avro single object of a current or a former schema; records of a former one get defaults for what is new.

        Raises:
            PoisonRecord: `not-avro` (no marker), `unknown-schema`, `truncated`, `trailing-bytes` or `malformed`.
        """
        try:
            decode = self._decoders[data[:HEADER_BYTES]]  # type: ignore[index]  # None raises, and is judged below
        except (KeyError, TypeError):
            raise _unknown(data) from None
        return decode(data)  # type: ignore[arg-type]  # None has not come so far


def _unknown(data: bytes | None) -> PoisonRecord:
    """Why nothing is known about how to read `data`."""
    if not data or data[:2] != MARKER:
        found = "no value" if data is None else f"starts with {data[:2].hex() or 'nothing'}"
        return PoisonRecord("not-avro", f"not an Avro single object: {found}, expected {MARKER.hex()}")
    if len(data) < HEADER_BYTES:
        return PoisonRecord("truncated", f"ends within the schema fingerprint, after {len(data)} bytes")
    mark = data[2:HEADER_BYTES].hex()
    return PoisonRecord(
        "unknown-schema", f"schema fingerprint {mark} is not known; is the writer newer than this reader?"
    )


def _load(schemas: Mapping[str, str], file: str) -> Schema:
    if file not in schemas:
        raise ValueError(f"avro/{file} is missing; run `PYTHONPATH=. python tests/schemas/declare.py`")
    schema: Schema = json.loads(schemas[file])
    return schema


def _check_fields(cls: type[msgspec.Struct], schema: Schema) -> None:
    expected = [camel(name) for name in cls.__struct_fields__]
    found = [field["name"] for field in schema["fields"]]
    if found != expected:
        raise ValueError(
            f"{cls.__name__}.avsc has fields {found}, the class has {expected}; run `PYTHONPATH=. python tests/schemas/declare.py`"
        )


def _resolving_decoder(cls: type[msgspec.Struct], writer: Schema, reader: Schema) -> Decode:
    """Read records of a former version as the current class, through fastavro's schema resolution."""
    written, wanted = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    names = [field["name"] for field in reader["fields"]]

    def decode(data: bytes) -> msgspec.Struct:
        body = io.BytesIO(data)
        body.seek(HEADER_BYTES)
        try:
            values: Any = fastavro.schemaless_reader(body, written, wanted)
        except EOFError:
            raise PoisonRecord("truncated", f"{cls.__name__}: ends within a field") from None
        except (ValueError, IndexError, OverflowError, TypeError, KeyError, MemoryError) as error:
            raise PoisonRecord("malformed", f"{cls.__name__}: {error}") from None
        if body.tell() != len(data):
            raise PoisonRecord("trailing-bytes", f"{cls.__name__}: {len(data) - body.tell()} bytes after the record")
        return cls(*[values[name] for name in names])  # fastavro keeps the writer's order

    return decode


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


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read an Avro long; returns it and the place after it.

    Raises:
        IndexError: The data ends first.
        PoisonRecord: More than 64 bits.
    """
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
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
    return (value >> 1) ^ -(value & 1), at + 1


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


class _Later:
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
}


def _kind(avro: Any) -> str:
    """A field's type as one word: `long`, `null|string`, `array|bytes`."""
    if isinstance(avro, list):
        return "|".join(avro)
    return f"array|{avro['items']}" if isinstance(avro, dict) else str(avro)


# --- the runtime's own -------------------------------------------------------------------------------------------------------------


def schema_files() -> Iterator[tuple[str, str]]:
    """Name and text of every checked-in schema."""
    for file in resources.files(__spec__.name.rpartition(".")[0]).joinpath("avro").iterdir():
        if file.name.endswith(".avsc"):
            yield file.name, file.read_text(encoding="utf-8")


OWN = Codec((*FACTS, *ENVELOPES), dict(schema_files()))
"""The codec of every fact and envelope."""

encode = OWN.encode
"""`Codec.encode` of every fact and envelope."""

decode = OWN.decode
"""`Codec.decode` of every fact and envelope."""
