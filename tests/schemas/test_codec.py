"""Every struct class has its schema, our bytes are fastavro's bytes, and what is not ours is poison and nothing worse."""

from __future__ import annotations

import io
import json
import re
import typing
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.codec import OWN, Codec, decode, encode
from schemas.declaration import HEADER_BYTES, MARKER, NAMESPACE, avro_type, camel, declaration, header
from schemas.envelopes import ENVELOPES, ProviderCompletion
from schemas.errors import PoisonRecord
from schemas.facts import FACTS, BoundaryCompletionAdmitted, ContinuationCompleted
from schemas.generated import Longs, Texts, read_long

FOLDER = Path(codec.__file__).parent / "avro"
CLASSES = (*FACTS, *ENVELOPES)
SCHEMAS = dict(codec.schema_files())
each_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)

EXECUTION = "3f0e6a4e-9f6b-5c1a-8a52-0d3c4cf6b7aa"
ADMITTED = BoundaryCompletionAdmitted(
    EXECUTION, 1_764_500_000_000, f"{EXECUTION}.1", 7, b"{}", None, "ann", 1_764_500_000_001
)

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=300),
    "long": st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 20_000),
    "boolean": st.booleans(),
}


def values_of(avro: Any) -> st.SearchStrategy[Any]:
    if isinstance(avro, list):
        return st.none() | SCALARS[avro[1]]
    return st.lists(SCALARS[avro["items"]], max_size=80) if isinstance(avro, dict) else SCALARS[avro]


def objects_of(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.tuples(*(values_of(avro_type(hints[name])) for name in cls.__struct_fields__)).map(
        lambda values: cls(*values)
    )


def by_fastavro(obj: Any) -> bytes:
    schema = json.loads(SCHEMAS[f"{type(obj).__name__}.avsc"])
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {camel(name): getattr(obj, name) for name in obj.__struct_fields__})
    return header(schema) + out.getvalue()


# --- files and classes agree -------------------------------------------------------------------------------------------------------


@each_class
def test_the_schema_file_says_what_the_class_says(cls: type[msgspec.Struct]) -> None:
    """Order, names, types, nullability, defaults and words; `tests/schemas/declare.py` brings a file up to date."""
    assert json.loads(SCHEMAS[f"{cls.__name__}.avsc"]) == declaration(cls)


@each_class
def test_every_class_says_what_it_is_for(cls: type[msgspec.Struct]) -> None:
    schema = json.loads(SCHEMAS[f"{cls.__name__}.avsc"])
    assert schema["doc"].endswith((".", ")"))
    assert (schema["namespace"], schema["name"]) == (NAMESPACE, cls.__name__)


def test_every_schema_file_belongs_to_a_class() -> None:
    assert {name.split(".", 1)[0] for name in SCHEMAS} == {cls.__name__ for cls in CLASSES}


def test_class_names_are_unique() -> None:
    assert len({cls.__name__ for cls in CLASSES}) == len(CLASSES)


def test_the_ledger_lists_every_schema_by_its_fingerprint() -> None:
    """A changed schema changes its fingerprint: the line of the former one then has no file, unless that was kept as `.<n>.avsc`."""
    written = (FOLDER / "FINGERPRINTS").read_text(encoding="utf-8").splitlines()
    found = [f"{header(json.loads(text))[2:].hex()} {name}" for name, text in SCHEMAS.items()]
    assert sorted(written, key=lambda line: line.split()[1]) == sorted(found, key=lambda line: line.split()[1])
    assert len({line.split()[0] for line in written}) == len(written)


def test_schema_files_are_valid_avro() -> None:
    for text in SCHEMAS.values():
        fastavro.parse_schema(json.loads(text))


# --- the header --------------------------------------------------------------------------------------------------------------------


def crc64_avro(data: bytes) -> int:
    """The Avro specification's pseudo code, straight."""
    empty = 0xC15D213AA4D7A795
    table = []
    for index in range(256):
        entry = index
        for _ in range(8):
            entry = (entry >> 1) ^ (empty if entry & 1 else 0)
        table.append(entry)
    result = empty
    for byte in data:
        result = (result >> 8) ^ table[(result ^ byte) & 0xFF]
    return result


def test_the_specifications_check_value() -> None:
    assert crc64_avro(b'"int"') == 0x7275D51A3F395C8F  # as in Avro's own test cases


@each_class
def test_the_header_is_marker_and_little_endian_fingerprint_of_the_canonical_form(cls: type[msgspec.Struct]) -> None:
    schema = json.loads(SCHEMAS[f"{cls.__name__}.avsc"])
    fields = [{"name": field["name"], "type": field["type"]} for field in schema["fields"]]
    canonical = {"name": f"{NAMESPACE}.{cls.__name__}", "type": "record", "fields": fields}
    form = json.dumps(canonical, separators=(",", ":"))
    assert header(schema) == MARKER + crc64_avro(form.encode()).to_bytes(8, "little")


# --- bytes -------------------------------------------------------------------------------------------------------------------------


@each_class
@settings(max_examples=30, deadline=None)  # for each of the classes
@given(data=st.data())
def test_round_trip_and_the_same_bytes_as_fastavro(cls: type[msgspec.Struct], data: st.DataObject) -> None:
    obj = data.draw(objects_of(cls))
    encoded = encode(obj)
    assert encoded == by_fastavro(obj)
    decoded = decode(encoded)
    assert decoded == obj
    assert type(decoded) is cls
    assert [type(getattr(decoded, name)) for name in cls.__struct_fields__] == [
        type(getattr(obj, name)) for name in cls.__struct_fields__
    ]


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_longs(value: int) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, {"type": "long"}, value)
    assert Longs(b"")[value] == out.getvalue()
    assert read_long(out.getvalue() + b"\xff", 0) == (value, len(out.getvalue()))


def test_longs_are_kept_within_bounds() -> None:
    longs = Longs(b"")
    for value in range(3 * Longs.ROOM):
        assert read_long(longs[value], 0)[0] == value
    assert len(longs) <= Longs.ROOM


def test_texts_are_kept_within_bounds() -> None:
    texts = Texts(b"")
    for number in range(3 * Texts.ROOM):
        assert texts[f"{number}ë"] == Longs(b"")[len(f"{number}") + 2] + f"{number}ë".encode()
    assert len(texts) <= Texts.ROOM


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_a_number_that_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(OverflowError, match="does not fit"):
        encode(msgspec.structs.replace(ADMITTED, at_ms=value))


@pytest.mark.parametrize(
    "wrong", [{"execution_id": None}, {"execution_id": b"x"}, {"completion": "text"}, {"at_ms": None}, {"actor": 7}]
)
def test_a_field_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, TypeError)):
        encode(msgspec.structs.replace(ADMITTED, **wrong))


def test_a_class_of_somebody_else_is_refused() -> None:
    class Other(msgspec.Struct):
        pass

    with pytest.raises(KeyError):
        encode(Other())


def test_an_array_in_several_blocks_with_sizes_is_read() -> None:
    """Avro lets a writer cut arrays into blocks and say their sizes; other writers do."""
    fact = ContinuationCompleted("e", 1, "e.1", 0, 1, [b"a", b"bc", b"d"])
    start = encode(fact)[: -len(b"\x06\x02a\x04bc\x02d\x00")]
    assert decode(start + b"\x03\x0a\x02a\x04bc\x02\x02d\x00") == fact


# --- poison ------------------------------------------------------------------------------------------------------------------------


def reason_of(data: bytes | None, reader: Codec = OWN) -> str:
    with pytest.raises(PoisonRecord) as caught:
        reader.decode(data)
    assert re.fullmatch("[a-z]+(-[a-z]+)*", caught.value.reason)
    return caught.value.reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "not-avro"),
        (b"", "not-avro"),
        (b"{}", "not-avro"),
        (b"\x00\x00\x00\x00\x07registry", "not-avro"),
        (MARKER[:1], "not-avro"),
        (MARKER, "truncated"),
        (MARKER + b"1234567", "truncated"),
        (MARKER + b"12345678", "unknown-schema"),
        (MARKER + b"12345678 and more", "unknown-schema"),
    ],
)
def test_what_is_not_ours(data: bytes | None, reason: str) -> None:
    assert reason_of(data) == reason


@each_class
@settings(max_examples=30, deadline=None)  # for each of the classes
@given(data=st.data())
def test_every_cut_is_truncated_and_every_tail_is_trailing(cls: type[msgspec.Struct], data: st.DataObject) -> None:
    encoded = encode(data.draw(objects_of(cls)))
    cut = data.draw(st.integers(HEADER_BYTES, len(encoded) - 1))
    assert reason_of(encoded[:cut]) in {"truncated", "malformed"}  # cut within a character: not UTF-8 any more
    assert reason_of(encoded + data.draw(st.binary(min_size=1, max_size=9))) == "trailing-bytes"


@each_class
@settings(max_examples=30, deadline=None)  # for each of the classes
@given(data=st.data())
def test_any_garbage_behind_a_good_header_is_poison_or_a_record(cls: type[msgspec.Struct], data: st.DataObject) -> None:
    garbage = encode(data.draw(objects_of(cls)))[:HEADER_BYTES] + data.draw(st.binary(max_size=120))
    try:
        decoded = decode(garbage)
    except PoisonRecord as error:
        assert error.reason in {"truncated", "malformed", "trailing-bytes"}  # noqa: PT017 - the other outcome is a record
    else:
        assert decode(encode(decoded)) == decoded


def test_numbers_without_end_are_refused_early() -> None:
    prefix = encode(ADMITTED)[:HEADER_BYTES]
    assert reason_of(prefix + b"\xff" * 4_000_000) == "malformed"
    assert reason_of(prefix + b"\x01" + b"x" * 50) == "malformed"  # a negative length
    assert reason_of(prefix + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"x" * 50) == "truncated"  # a huge one


def test_an_error_names_the_class_but_not_the_content() -> None:
    with pytest.raises(PoisonRecord) as caught:
        decode(encode(ADMITTED) + b"secret")
    assert "BoundaryCompletionAdmitted" in str(caught.value)
    assert "secret" not in str(caught.value)


# --- former versions ---------------------------------------------------------------------------------------------------------------

FORMER = {
    "type": "record",
    "namespace": NAMESPACE,
    "name": "ProviderCompletion",
    "fields": [
        {"name": "executionId", "type": "string"},
        {"name": "interactionId", "type": "string"},
        {"name": "legacyFlag", "type": "boolean"},
        {"name": "payload", "type": "bytes"},
        {"name": "actor", "type": ["null", "string"], "default": None},
    ],
}
"""A version without token, key, tenant and origin, and with a field that is no more."""


@pytest.fixture(scope="module")
def reader() -> Codec:
    return Codec(CLASSES, {**SCHEMAS, "ProviderCompletion.1.avsc": json.dumps(FORMER)})


@pytest.fixture(scope="module")
def former() -> bytes:
    out = io.BytesIO()
    record = {"executionId": "e", "interactionId": "e.1.2", "legacyFlag": True, "payload": b"{}", "actor": "bank"}
    fastavro.schemaless_writer(out, FORMER, record)
    return header(FORMER) + out.getvalue()


def test_a_former_version_is_read_as_the_current_class_with_defaults(reader: Codec, former: bytes) -> None:
    assert reader.decode(former) == ProviderCompletion("e", "e.1.2", b"{}", actor="bank")


def test_current_records_are_read_beside_former_ones(reader: Codec) -> None:
    assert reader.decode(encode(ADMITTED)) == ADMITTED


def test_a_former_version_is_unknown_where_it_was_not_kept(former: bytes) -> None:
    assert reason_of(former) == "unknown-schema"


def test_poison_of_a_former_version(reader: Codec, former: bytes) -> None:
    assert reason_of(former + b"x", reader) == "trailing-bytes"
    for cut in range(HEADER_BYTES, len(former)):
        assert reason_of(former[:cut], reader) in {"truncated", "malformed"}


@settings(deadline=None)
@given(tail=st.binary(max_size=80))
def test_garbage_of_a_former_version(reader: Codec, former: bytes, tail: bytes) -> None:
    try:
        decoded = reader.decode(former[:HEADER_BYTES] + tail)
    except PoisonRecord as error:
        assert error.reason in {"truncated", "malformed", "trailing-bytes"}  # noqa: PT017 - the other outcome is a record
    else:
        assert isinstance(decoded, ProviderCompletion)


# --- what a codec refuses at start -------------------------------------------------------------------------------------------------


def test_a_class_without_schema_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ProviderCompletion\.avsc is missing"):
        Codec([ProviderCompletion], {})


def test_a_schema_without_class_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to no class"):
        Codec([], {"Gone.avsc": "{}"})


def test_a_schema_with_other_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="has fields"):
        Codec([ProviderCompletion], {"ProviderCompletion.avsc": json.dumps(FORMER)})


def test_an_annotation_without_avro_type_is_refused() -> None:
    with pytest.raises(TypeError, match="no Avro type for"):
        avro_type(dict[str, str])
