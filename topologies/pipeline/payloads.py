"""The types that travel between steps and cross to the outside, compiled once.

Rules
  1. A payload type is a pydantic model, a union of models, or a list of these (SURFACE, "pipeline.yaml").
  2. One value has one canonical JSON text: decimals as strings, timestamps as RFC 3339, unions with their discriminator,
     fields in the model's order under the names that validation accepts. What is written can be read back as the same arm;
     a union whose arms cannot be told apart in JSON is therefore refused here, when the pipeline loads.
     So is any type of which no JSON leads back to its values; of one that may not, each value is read back when it was written
     (`topologies.pipeline.lossless`).
  3. A value that has passed `validate` is of exactly one declared arm: an instance of a subclass becomes the declared arm,
     because its JSON would become that after a restart, and both ways must give the same output (DESIGN 7).

Hot path: `validate_json`, `to_json` and `accepts` run for every item; for a type that is proved lossless they are, or call, the compiled ones.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python
from typing_extensions import TypeAliasType, override

from schemas.errors import UsageError
from topologies.pipeline import values
from topologies.pipeline.lossless import Lossy, Proof, prove, refuse_look_alikes, unwrapped

Alternative = Any
"""One arm as the author wrote it: a model class, or a parametrised `list`."""

MISFITS_SHOWN = 5
MISFIT_CHARS_MAX = 500

NULL_TEXT = "<null>"
"""How an absent or null field prints in a key (BEHAVIOUR F6)."""


class PayloadTypeError(UsageError):
    """A name that does not lead to a payload type; the message says why, `advice` what to write.

    Attributes:
        advice: What to write instead.
    """

    def __init__(self, message: str, advice: str) -> None:
        self.advice = advice
        super().__init__(message)


class Misfit(ValueError):
    """A value is not of a payload type: what is wrong and where, without the value itself (nobody should read it in a log)."""

    @classmethod
    def of(cls, type_name: str, error: Exception) -> Misfit:
        """From what a validator raised; a misfit is told as it is."""
        if isinstance(error, cls):
            return error
        if isinstance(error, ValidationError):
            found = error.errors(include_url=False, include_input=False)[:MISFITS_SHOWN]
            told = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in found)
        else:
            told = str(error)
        told = f"not a {type_name}: {told}"[:MISFIT_CHARS_MAX]
        return cls(
            told.encode(errors="backslashreplace").decode()
        )  # a name that is not UTF-8 must not break who tells it


class PayloadType:
    """A compiled payload type.

    Attributes:
        name: As in pipeline.yaml: `module:name`; several joined by ` | ` for a union that the loader put together.
        python_type: The type as the author wrote it.
        alternatives: The union's arms flattened, as written; one entry when it is no union.
        arms: The run-time class of each alternative (`list` for a list), fit for `isinstance`.
        validate_json: Decodes canonical JSON into a typed value; raises pydantic.ValidationError where it is not JSON, or not of this
            type. JSON from outside is for `read`: its numbers may have more digits than pydantic keeps.
        to_json: The canonical JSON of a typed value, UTF-8; raises Misfit where the value is not of this type, or its JSON would be read
            back as another value.
    """

    __slots__ = (
        "_accepted",
        "_exact",
        "_may_lose",
        "_proof",
        "_serialize",
        "_serialize_python",
        "_validate_python",
        "alternatives",
        "arms",
        "name",
        "python_type",
        "to_json",
        "validate_json",
    )

    def __init__(self, *, name: str, python_type: Any) -> None:
        """Compile.

        Raises:
            PayloadTypeError: Not a payload type, or pydantic cannot build it, or its arms look alike in JSON.
        """
        self.name = name
        self.python_type = python_type
        self.alternatives = tuple(_alternatives(python_type, name))
        self.arms: tuple[type, ...] = tuple(dict.fromkeys(_run_time_class(arm) for arm in self.alternatives))
        adapter = _compile(name, python_type)
        self._proof = _proved(name, python_type, self.alternatives, adapter)
        self._exact = frozenset(arm for arm in self.arms if arm is not list)
        self._accepted = dict.fromkeys(self._exact, True)
        self.validate_json: Callable[[bytes | str], Any] = adapter.validator.validate_json
        self._validate_python = adapter.validator.validate_python
        self._serialize = adapter.serializer.to_json
        self._may_lose = _what_may_lose(self._proof, self.arms)
        self._serialize_python = adapter.serializer.to_python
        asks = self._proof.reads_back or self._proof.has_floats or self._proof.has_sets
        self.to_json: Callable[[Any], bytes] = self._write_checked if asks else self._write

    @property
    def has_digits(self) -> bool:
        """Whether a value may hold a decimal or an integer: more digits than a float keeps."""
        return self._proof.has_decimals or self._proof.has_ints

    @classmethod
    def union(cls, members: Iterable[PayloadType]) -> PayloadType:
        """The union of several payload types; the member itself when there is one.

        Raises:
            PayloadTypeError: The arms look alike in JSON.
        """
        unique = {member.name: member for member in members}
        if len(unique) == 1:
            return next(iter(unique.values()))
        python_type: Any = Union[tuple(member.python_type for member in unique.values())]  # noqa: UP007 - built at run time
        return cls(name=" | ".join(unique), python_type=python_type)

    def validate(self, value: Any) -> Any:
        """Turn a Python value (an instance, a dict, a list of these) into the canonical typed value.

        Raises:
            pydantic.ValidationError: Not of this type.
            ValueError: An instance of a subclass whose fields do not fit the declared arm.
        """
        typed = self._validate_python(value)
        if type(typed) in self._exact or (type(typed) is list and self._is_exact_list(typed)):
            return typed
        return self.validate_json(self.to_json(typed))

    def _write(self, value: Any) -> bytes:
        try:
            return self._serialize(value, by_alias=True, round_trip=True, warnings="error")
        except ValueError as error:
            raise self._misfit(values.why_unwritable(value, error)) from error

    def _write_checked(self, value: Any) -> bytes:
        """The same for a type that is not proved lossless."""
        data = self._write(value)
        if self._proof.has_sets:
            tree = self._serialize_python(value, mode="json", by_alias=True, round_trip=True, warnings="error")
            data = to_json(values.sorted_sets(value, tree))
        if self._proof.has_floats and (b"null" in data or b"NaN" in data or b"Infinity" in data):
            self._refuse_no_number(value)
        if self._proof.reads_back:
            self._read_back(value, data)
        return data

    def _refuse_no_number(self, value: Any) -> None:
        where = values.no_number(value)
        if where is not None:
            raise self._misfit(f"{where}: no finite number, which JSON cannot say")

    def _read_back(self, value: Any, data: bytes) -> None:
        try:
            read = self.validate_json(data)
        except ValidationError as error:
            raise Misfit.of(self.name, error) from error
        if read == value and self._write(read) == data:
            return
        where = values.difference(value, read)
        if where is not None:
            raise self._misfit(f"{where}: its JSON would be read back as another value")

    def _misfit(self, told: str) -> Misfit:
        return Misfit.of(self.name, ValueError(told))

    def read(self, data: bytes) -> Any:
        """The typed value of JSON that comes from outside: its decimals have the digits that it says, its floats are numbers.

        Raises:
            Misfit: it is not JSON, not of this type, or says what a value of it cannot hold.
        """
        try:
            value = self.validate_json(data)
            if self._may_lose(data):
                value = values.with_digits(data, value, self.validate_json)
        except (ValueError, RecursionError) as error:
            raise Misfit.of(self.name, error) from error
        if self._proof.has_floats and values.MAY_BE_NO_NUMBER(data):
            self._refuse_no_number(value)
        return value

    def same(self, left: bytes, right: bytes) -> bool:
        """Whether two JSON texts mean the same value: equal bytes, or equal once read (1.0 and 1.00, another order of a set).

        Raises:
            Misfit: One of them is not of this type.
        """
        return left == right or values.normal_form(self.read(left)) == values.normal_form(self.read(right))

    def accepts(self, value: Any) -> bool:
        """Whether a typed value is of one of the arms: the routing test of a branch."""
        kind = type(value)
        accepted = self._accepted.get(kind)
        if accepted is None:
            if issubclass(kind, list):
                return any(_list_matches(value, arm) for arm in self.alternatives if _is_list(arm))
            accepted = self._accepted[kind] = issubclass(kind, self.arms)
        return accepted

    def covers(self, alternative: Alternative) -> bool:
        """Whether every value of the alternative is accepted here: the static twin of `accepts`."""
        return any(_covers(arm, alternative) for arm in self.alternatives)

    def field_names(self) -> tuple[str, ...]:
        """The names a key template may use: those that every arm has, by attribute or by JSON name, sorted."""
        names = [_fields_of(arm).keys() for arm in self.alternatives]
        return tuple(sorted(set(names[0]).intersection(*names[1:]))) if names else ()

    def has_field(self, path: str) -> bool:
        """Whether every arm has the field; dots descend into nested models."""
        return all(_has_path(arm, path.split(".")) for arm in self.alternatives)

    def field_text(self, value: Any, path: str) -> str:
        """The text of a field for keys: strings as they are, others as canonical JSON prints them, `<null>` for none.

        Args:
            value: A typed value of this type.
            path: A name for which `has_field` holds.
        """
        return _text(_value_at(value, path))

    def field_texts(self, value: Any, paths: tuple[str, ...]) -> list[str]:
        """`field_text` of several fields at once; at a third of the cost, as every item of a stream has a key."""
        return [
            part if type(part) is str else _text(part)
            for part in _values_of(cast("Alternative", type(value)), paths)(value)
        ]

    def key_texts(self, value: Any, paths: tuple[str, ...]) -> list[str]:
        """The same for a key that joins them by `:`, written so that different values never give one key."""
        return [_key_text(part) for part in _values_of(cast("Alternative", type(value)), paths)(value)]

    def _is_exact_list(self, value: list[Any]) -> bool:
        models = {
            member for arm in self.alternatives if _is_list(arm) for member in _alternatives(get_args(arm)[0], "")
        }
        return all(type(item) in models for item in value)

    @override
    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PayloadType) and other.name == self.name and bool(other.python_type == self.python_type)
        )

    @override
    def __hash__(self) -> int:
        return hash(self.name)

    @override
    def __repr__(self) -> str:
        return f"PayloadType({self.name!r})"


def _compile(name: str, python_type: Any) -> TypeAdapter[Any]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(python_type)
        adapter.rebuild(raise_errors=True)
    except Exception as error:  # pydantic raises many kinds; each is the author's mistake in this type
        summary = str(error).splitlines()[0]
        raise PayloadTypeError(f"{name} cannot be compiled: {summary}", "correct the type's definition") from error
    return adapter


def _proved(name: str, python_type: Any, alternatives: tuple[Alternative, ...], adapter: TypeAdapter[Any]) -> Proof:
    try:
        if not _has_discriminator(python_type):  # else pydantic itself checks it
            refuse_look_alikes(name, [arm for arm in alternatives if not _is_list(arm)])
        proof = prove(adapter.core_schema)
        for model in proof.models:
            _refuse_lossy_fields(model)
    except Lossy as error:
        raise PayloadTypeError(str(error), error.advice) from error
    return proof


def _refuse_lossy_fields(model: type[BaseModel]) -> None:
    """Refuse a model whose JSON lacks a field, or has it under a name that validation does not read."""
    for attribute, info in model.model_fields.items():
        if info.exclude or getattr(info, "exclude_if", None):
            raise Lossy(
                f"{model.__name__}.{attribute} is excluded from JSON and would be lost", "remove exclude and exclude_if"
            )
        written = info.serialization_alias or attribute
        if written not in values.readable_names(model, attribute):
            message = f"{model.__name__}.{attribute} is written as {written!r}, which validation does not read"
            raise Lossy(message, "use one alias for both: Field(alias=...)")


def _alternatives(python_type: Any, name: str) -> Iterator[Alternative]:
    bare = unwrapped(python_type)
    origin = get_origin(bare)
    if origin in (Union, types.UnionType):
        for member in get_args(bare):
            yield from _alternatives(member, name)
    elif origin is list:
        tuple(_alternatives(get_args(bare)[0], name))
        yield bare
    elif isinstance(bare, type) and issubclass(bare, BaseModel) and bare is not BaseModel:
        yield bare
    else:
        shown = getattr(bare, "__name__", str(bare))
        raise PayloadTypeError(
            f"{name or shown} is not a payload type ({shown})",
            "use a pydantic model, a union of models, or a list of these",
        )


def _is_list(alternative: Alternative) -> bool:
    origin: Any = get_origin(alternative)
    return origin is list


def _run_time_class(alternative: Alternative) -> type:
    return list if _is_list(alternative) else cast("type", alternative)


def _covers(target: Alternative, source: Alternative) -> bool:
    target_is_list, source_is_list = _is_list(target), _is_list(source)
    if target_is_list and source_is_list:
        members = tuple(_alternatives(get_args(target)[0], ""))
        return all(any(_covers(member, item) for member in members) for item in _alternatives(get_args(source)[0], ""))
    return not target_is_list and not source_is_list and issubclass(source, target)


def _list_matches(value: list[Any], arm: Alternative) -> bool:
    members = tuple(_run_time_class(member) for member in _alternatives(get_args(arm)[0], ""))
    return all(isinstance(item, members) for item in value)


def _what_may_lose(proof: Proof, arms: tuple[type, ...]) -> Callable[[bytes], bool]:
    """Finds JSON texts of which pydantic may cut digits; may find others."""
    keeps_all = proof.has_decimals or proof.has_free
    if not (keeps_all or proof.has_ints):
        return lambda _data: False
    if any(issubclass(arm, RootModel) for arm in arms):  # the text may be a number itself
        return lambda _data: True
    return values.may_have_fraction if keeps_all else values.may_be_long


def _has_discriminator(python_type: Any) -> bool:
    while isinstance(python_type, TypeAliasType):
        python_type = python_type.__value__
    metadata = get_args(python_type)[1:] if get_origin(python_type) is Annotated else ()
    return any(getattr(mark, "discriminator", None) is not None for mark in metadata)


@lru_cache(maxsize=1_024)
def _fields_of(alternative: Alternative) -> Mapping[str, str]:
    """Name as written or as in JSON -> attribute. Empty for a list, whose items have no single field."""
    if not (isinstance(alternative, type) and not get_args(alternative) and issubclass(alternative, BaseModel)):
        return {}
    fields = alternative.model_fields
    names = {info.serialization_alias: attribute for attribute, info in fields.items() if info.serialization_alias}
    return {**names, **{attribute: attribute for attribute in fields}}


def _value_at(value: Any, path: str) -> Any:
    """The value at a path; None where the path ends early."""
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, _fields_of(cast("Alternative", type(value)))[name])
    return value


@lru_cache(maxsize=1_024)
def _values_of(model: type, paths: tuple[str, ...]) -> Callable[[Any], Iterable[Any]]:
    """Reads several fields of a model."""
    attributes = [_fields_of(model).get(path) for path in paths]
    known = [attribute for attribute in attributes if attribute is not None]
    if len(known) == len(paths) > 1:
        return attrgetter(*known)
    return lambda value: [_value_at(value, path) for path in paths]


def _has_path(alternative: Alternative, path: list[str]) -> bool:
    attribute = _fields_of(alternative).get(path[0])
    if attribute is None:
        return False
    return len(path) == 1 or all(
        _has_path(arm, path[1:]) for arm in _models_in(alternative.model_fields[attribute].annotation)
    )


def _models_in(annotation: Any) -> Iterator[Alternative]:
    bare = unwrapped(annotation)
    if get_origin(bare) in (Union, types.UnionType):
        for member in get_args(bare):
            yield from _models_in(member)
    elif bare is not type(None):
        yield bare


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return NULL_TEXT
    if isinstance(value, Decimal):
        return values.decimal_text(value)
    if isinstance(value, datetime):
        return values.moment_text(value)
    plain = to_jsonable_python(value)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return str(plain)


def _key_text(value: Any) -> str:
    if value is None:
        return NULL_TEXT
    text = _text(value).replace("\\", "\\\\").replace(":", "\\:")
    return f"\\{text}" if text == NULL_TEXT else text


def shown(alternative: Alternative) -> str:
    """An arm for a message."""
    arguments = get_args(alternative)
    return f"list[{shown(arguments[0])}]" if arguments else str(getattr(alternative, "__name__", alternative))
