"""Typed values beside their JSON: what they mean, where they differ, which digits a number had.

Nothing here runs for a type whose proof (`topologies.pipeline.lossless`) asks for nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, time
from decimal import MAX_PREC, Context, Decimal
from enum import Enum
from functools import partial
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel, JsonValue, RootModel
from pydantic_core import to_json, to_jsonable_python

PLAIN_ZEROS_MAX = 40
"""A decimal with more zeros than that at its end or after its point is written with an exponent."""

_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)
_EXACT = Context(prec=MAX_PREC)


class Unfaithful(ValueError):
    """What JSON says of a value is not what the value means; the message begins with the field."""


# --- what a value means --------------------------------------------------------------------------------------------------------------


def normal_form(value: Any) -> bytes:
    """One text for all values that are equal: decimals without zeros at the end, sets and mappings sorted, moments in UTC."""
    return _text(_normal(value)).encode(errors="surrogatepass")


def decimal_text(value: Decimal) -> str:
    """A decimal as a text that is the same for equal values: 250.0 and 250.00 are `250`."""
    if not value.is_finite():
        return str(value)
    if not value:
        return "0"
    exact = value.normalize(_EXACT)
    exponent = exact.as_tuple().exponent
    assert isinstance(exponent, int)
    return format(exact, "f") if -PLAIN_ZEROS_MAX <= exponent <= PLAIN_ZEROS_MAX else str(exact)


def moment_text(value: datetime) -> str:
    """A date and time as a text that is the same for equal moments."""
    if value.utcoffset() is None:
        return value.isoformat()
    try:
        return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
    except OverflowError:  # the first or last day of time
        return value.isoformat()


def _text(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


def _normal(value: Any) -> Any:
    """A value as what json.dumps can write."""
    kind = type(value)
    if value is None or kind in (str, int, bool):
        return value
    parts = parts_of(value)
    if parts is not None:
        named = {name: _normal(part) for name, part in parts}
        return dict(sorted(named.items())) if isinstance(value, Mapping) else named
    if isinstance(value, _SEQUENCES):
        return [_normal(each) for each in value]
    if isinstance(value, _SETS):
        return sorted((_normal(each) for each in value), key=_text)
    return _normal_scalar(value)


def _normal_scalar(value: Any) -> Any:
    if isinstance(value, RootModel):
        return _normal(value.root)
    if isinstance(value, Enum):
        return _normal(value.value)
    if isinstance(value, float):
        return float(value) or 0.0  # -0.0 is 0.0
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, datetime):
        return moment_text(value)
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return to_jsonable_python(value, fallback=repr, inf_nan_mode="constants")


def parts_of(value: Any) -> Iterable[tuple[str, Any]] | None:
    """The named parts of a model, dataclass or mapping, under their names in JSON; None: it has none."""
    if isinstance(value, BaseModel):
        return None if isinstance(value, RootModel) else _fields_of(value)
    if isinstance(value, Mapping):
        return ((key if isinstance(key, str) else _text(_normal(key)), part) for key, part in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return ((each.name, getattr(value, each.name)) for each in fields(value))
    return None


def _fields_of(value: BaseModel) -> Iterator[tuple[str, Any]]:
    for name, info in type(value).model_fields.items():
        if name in value.__dict__:
            yield info.serialization_alias or name, value.__dict__[name]
    yield from sorted((value.__pydantic_extra__ or {}).items())


# --- where values differ -------------------------------------------------------------------------------------------------------------


def difference(written: Any, read: Any, where: str = "") -> str | None:
    """The first place at which a value differs from what was read back of it; None: they are equal.

    An instance of a subclass may have become the declared model: it is equal if the fields of that are.
    """
    mine, theirs = parts_of(written), parts_of(read)
    if mine is not None and theirs is not None and isinstance(written, type(read)):
        return _different_part(dict(mine), dict(theirs), where, may_have_more=type(written) is not type(read))
    if isinstance(written, _SEQUENCES) and isinstance(read, _SEQUENCES) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        differ = (difference(mine, theirs, _below(where, index)) for index, (mine, theirs) in pairs)
        return next((found for found in differ if found is not None), None)
    is_same = _kind(written) is _kind(read) and normal_form(written) == normal_form(read)
    return None if is_same else where or "value"


def _different_part(mine: dict[str, Any], theirs: dict[str, Any], where: str, *, may_have_more: bool) -> str | None:
    for name, part in theirs.items():
        if name not in mine:
            return _below(where, name)
        found = difference(mine.pop(name), part, _below(where, name))
        if found is not None:
            return found
    return _below(where, next(iter(mine))) if mine and not may_have_more else None


def _kind(value: Any) -> type:
    """What a value is, as far as a reader can tell: a time zone of another class is the same moment."""
    for kind in (bool, int, float, str, Decimal, datetime, bytes, *_SETS, *_SEQUENCES):
        if isinstance(value, kind) and not isinstance(value, Enum):
            return kind
    return type(value)


def _below(where: str, name: object) -> str:
    return ".".join(part for part in (where, str(name)) if part)


def no_number(value: Any, where: str = "") -> str | None:
    """The first place that holds a float which is no number (NaN, an infinity); None: there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else where or "value"
    return next((found for name, part in _children(value) if (found := no_number(part, _below(where, name)))), None)


def _children(value: Any) -> Iterable[tuple[object, Any]]:
    parts = parts_of(value)
    if parts is not None:
        yield from parts
        if isinstance(value, Mapping):
            yield from ((f"key {key}", key) for key in value if not isinstance(key, str))
    elif isinstance(value, RootModel):
        yield "root", value.root
    elif isinstance(value, (*_SEQUENCES, *_SETS)):
        yield from enumerate(value)


def why_unwritable(value: Any, error: Exception) -> str:
    """What a serializer could not write, and where; without the value."""
    where = _unwritable(value, "")
    if where is not None:
        return f"{where or 'value'}: a text or bytes that are not UTF-8, or that JSON cannot hold"
    found = re.search(r"field_name='([^']*)'", str(error))
    return f"{found[1] if found else 'value'}: not what the type says (was it changed after it was made?)"


def _unwritable(value: Any, where: str) -> str | None:
    """The innermost place that JSON cannot hold."""
    for name, part in _children(value):
        found = _unwritable(part, _below(where, name))
        if found is not None:
            return found
    return next((_below(where, name) for name, write in _writes(value) if _raises(write)), None)


def _writes(value: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """A value as a whole, or one field of a model at a time, as its serializer may not be what the field's type says."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield name, partial(value.model_dump_json, include={name}, warnings=False)
    yield "", lambda: to_json(value)


def _raises(write: Callable[[], object]) -> bool:
    try:
        write()
    except ValueError:
        return True
    return False


# --- sets ----------------------------------------------------------------------------------------------------------------------------


def sorted_sets(value: Any, tree: Any) -> Any:
    """The JSON of a value, as Python lists and dicts, with each set in one order whatever the process."""
    if isinstance(value, RootModel):
        return sorted_sets(value.root, tree)
    parts = parts_of(value)
    if parts is not None and isinstance(tree, dict):
        if isinstance(value, Mapping):
            pairs = zip(tree.items(), value.values(), strict=False)
            return {name: sorted_sets(part, below) for (name, below), part in pairs}
        named = dict(parts)
        return {name: sorted_sets(named.get(name), below) for name, below in tree.items()}
    if isinstance(value, (*_SEQUENCES, *_SETS)) and isinstance(tree, list) and len(tree) == len(value):
        done = [sorted_sets(part, below) for part, below in zip(value, tree, strict=True)]
        return sorted(done, key=to_json) if isinstance(value, _SETS) else done
    return tree


# --- digits --------------------------------------------------------------------------------------------------------------------------

_DIGITS = b"0123456789+- \t\r\n"
_ALIKE = bytes.maketrans(b"[,E", b"::e")
_FRACTION = re.compile(rb"[:\[,]\s*-?\d+[.eE]").search
_LONG = re.compile(rb"[:\[,]\s*-?(?:\d{16,}\.|\d+(?:\.\d+)?[eE])").search


def may_have_fraction(data: bytes) -> bool:
    """Whether a JSON number with a point or an exponent is in an object or array; may take what looks like one inside a text for one.

    Asked of each answer: without digits such a number is a point or an `e` behind a colon, comma or bracket, which is found in no time.
    """
    outline = data.translate(_ALIKE, _DIGITS)
    return (b":." in outline or b":e" in outline) and _FRACTION(data) is not None


def may_be_long(data: bytes) -> bool:
    """Whether such a number may be an integer that no float holds."""
    return may_have_fraction(data) and _LONG(data) is not None


MAY_BE_NO_NUMBER = re.compile(rb"[nN][aA][nN]|[iI][nN][fF]|[eE]\+?\d\d|\d{300}").search
"""Finds every JSON text that a float reads as NaN or as an infinity; finds others too."""


class _Number(str):
    """A JSON number with a point or an exponent, as it was written."""

    __slots__ = ()

    @property
    def is_lossy(self) -> bool:
        """Whether a float does not hold its digits."""
        return Decimal(self) != Decimal(repr(float(self)))


def with_digits(data: bytes, value: Any, read: Callable[[bytes], Any]) -> Any:
    """The value of a JSON text with the decimals that its numbers say, digit by digit.

    pydantic reads each such number through a float. Where the value holds a decimal the number is put into quotes, and the text read again.

    Args:
        data: The text.
        value: What `read` made of it as it is.
        read: Reads a text as the type says.

    Raises:
        Unfaithful: A decimal or integer would have other digits than the text.
        ValueError: Whatever `read` raises.
    """
    tree = json.loads(data, parse_float=_Number)
    quoted: list[str] = []
    exact = _quoted(tree, value, "", quoted)
    if not quoted:
        return value
    again = read(_text(exact).encode())
    confirmed: list[str] = []
    _quoted(tree, again, "", confirmed)
    for where in quoted:
        if where not in confirmed:
            raise Unfaithful(f"{where}: write the number as a text, to keep its digits")
    return again


def _quoted(tree: Any, value: Any, where: str, quoted: list[str], *, is_free: bool = False) -> Any:
    """The tree with the numbers at decimals as texts, and as floats elsewhere; `is_free`: no type is declared here."""
    if isinstance(value, RootModel):
        is_free = _is_free(type(value).model_fields["root"].annotation)
        return _quoted(tree, value.root, where, quoted, is_free=is_free)
    if isinstance(tree, _Number):
        return _quoted_number(tree, value, where or "value", quoted, is_free=is_free)
    if isinstance(tree, dict):
        named, free = _named(tree, value), tree.keys() if is_free else _free_names(value)
        return {
            name: _quoted(below, named.get(name), _below(where, name), quoted, is_free=name in free)
            for name, below in tree.items()
        }
    if isinstance(tree, list):
        values: Iterable[Any] = (
            value if isinstance(value, _SEQUENCES) and len(value) == len(tree) else [None] * len(tree)
        )
        if isinstance(value, _SETS) and value and all(isinstance(each, Decimal) for each in value):
            values = [next(iter(value))] * len(tree)
        pairs = enumerate(zip(tree, values, strict=True))
        return [_quoted(below, part, _below(where, index), quoted, is_free=is_free) for index, (below, part) in pairs]
    return tree


def _free_names(value: Any) -> Container[str]:
    """The names in JSON at which no type says what a number is: what a model does not declare, pydantic.JsonValue, float or decimal."""
    if not isinstance(value, BaseModel):
        return ()
    kind = type(value)
    fields_ = kind.model_fields
    free = [attribute for attribute, info in fields_.items() if _is_free(info.annotation)]
    return {*(value.__pydantic_extra__ or ()), *(name for each in free for name in readable_names(kind, each))}


def _is_free(annotation: Any) -> bool:
    """Whether a number there may be a float although nobody declared one alone."""
    parts = get_args(annotation)
    return annotation is JsonValue or (float in parts and Decimal in parts) or any(map(_is_free, parts))


def _quoted_number(number: _Number, value: Any, where: str, quoted: list[str], *, is_free: bool) -> Any:
    if isinstance(value, (Decimal, str)):
        quoted.append(where)
        return str(number)
    if isinstance(value, int) and not isinstance(value, bool):
        if Decimal(number) != value:
            raise Unfaithful(
                f"{where}: {number[:40]} is no integer that a JSON number with a point or exponent can say"
            )
    elif (is_free or not isinstance(value, float)) and number.is_lossy:
        raise Unfaithful(f"{where}: write {number[:40]} as a text, to keep its digits")
    return float(number)


def _named(tree: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The parts of a value by their names in the JSON that it was read from."""
    if not isinstance(value, BaseModel):
        return dict(parts_of(value) or ())
    named = dict(value.__pydantic_extra__ or {})
    for attribute in type(value).model_fields:
        for name in readable_names(type(value), attribute):
            if name in tree:
                named[name] = value.__dict__.get(attribute)
    return named


def readable_names(model: type[BaseModel], attribute: str) -> set[str]:
    """The names under which a field is read."""
    alias = model.model_fields[attribute].validation_alias
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    names = {attribute} if alias is None or by_name else set()
    if isinstance(alias, AliasChoices):
        names.update(choice for choice in alias.choices if isinstance(choice, str))
    elif isinstance(alias, str):
        names.add(alias)
    return names
