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
from importlib import resources
from typing import Any

import fastavro
import msgspec

from schemas.declaration import HEADER_BYTES, MARKER, Schema, camel, header
from schemas.envelopes import ENVELOPES
from schemas.errors import PoisonRecord
from schemas.facts import FACTS
from schemas.generated import Later, decoder_source, encoder_source

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
                self._encoders[cls] = Later(encoder_source, cls, reader, self._encoders, cls)
                self._decoders[header(reader)] = Later(decoder_source, cls, reader, self._decoders, header(reader))
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
