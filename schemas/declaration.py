"""The Avro record schema of a struct class: what its checked-in .avsc file must say.

A class says everything but the version: field order, types, what may be null, defaults and the words in its docstring. The files stay the
format's source for readers in other languages; tests hold files and classes together.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from typing import Any

import msgspec
from fastavro.schema import fingerprint, to_parsing_canonical_form

FORMAT = 2
"""The number of the format of rows, facts and envelopes. A version reads all from 2 on, and none that is newer than itself."""

NAMESPACE = f"kawait.v{FORMAT}"
"""Namespace of every schema; a name of the format, not of a module."""

MARKER = b"\xc3\x01"
"""First two bytes of a single object, version 1."""

HEADER_BYTES = 10
"""Marker and fingerprint."""

Schema = dict[str, Any]
"""A record schema, as its .avsc file holds it."""

AvroType = str | list[Any] | dict[str, Any]

_SCALARS: dict[type, str] = {str: "string", bytes: "bytes", int: "long", bool: "boolean"}


def camel(name: str) -> str:
    """The wire's spelling of a field: `execution_id` is `executionId`."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def avro_type(annotation: Any) -> AvroType:
    """The Avro type of a field's annotation.

    Raises:
        TypeError: The annotation is none of str, bytes, int, bool, a list of one of them, or one of these `| None`.
    """
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is list and arguments[0] in _SCALARS:
        return {"type": "array", "items": _SCALARS[arguments[0]]}
    if isinstance(annotation, types.UnionType) and len(arguments) == 2 and arguments[1] is types.NoneType:
        return ["null", avro_type(arguments[0])]
    raise TypeError(
        f"no Avro type for {annotation!r}; use str, bytes, int, bool, list of these, or one of these | None"
    )


def declaration(cls: type[msgspec.Struct]) -> Schema:
    """The schema of a struct class, as its .avsc file holds it."""
    annotations = typing.get_type_hints(cls)
    return {
        "type": "record",
        "namespace": NAMESPACE,
        "name": cls.__name__,
        "doc": " ".join(re.split(r"\n\s*\n", inspect.cleandoc(cls.__doc__ or ""))[0].split()),
        "fields": [_field(field, annotations[field.name]) for field in msgspec.structs.fields(cls)],
    }


def _field(field: msgspec.structs.FieldInfo, annotation: Any) -> dict[str, Any]:
    """One field; a default of the class is the default that readers of older records get."""
    declared: dict[str, Any] = {"name": camel(field.name), "type": avro_type(annotation)}
    if field.default is not msgspec.NODEFAULT:
        declared["default"] = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        declared["default"] = field.default_factory()
    return declared


def header(schema: Schema) -> bytes:
    """The ten bytes before each record of a schema."""
    # fastavro prints the fingerprint's bytes in the order in which they are sent.
    return MARKER + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
