"""Samples: one type of field each, read from a file of Python expressions, and told again as text.

Types that kawait refuses stand in `left_out.txt` beside this file; the others are the arms of `Sample`.
"""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import AnyUrl, BaseModel, ByteSize, Field, Json, PlainSerializer, SecretStr, create_model
from typing_extensions import TypedDict


class Batch(BaseModel):
    """A file of samples."""

    path: str


class Told(BaseModel):
    """What a sample says, as it came back."""

    index: int
    text: str


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Inner(BaseModel):
    amount: Decimal
    weights: list[float]
    on: dt.date


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    weight: float


class Corner(TypedDict):
    x: float
    y: float


@dataclass
class Point:
    x: float
    label: str


FIELDS: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "decimal": Decimal,
    "money": Annotated[Decimal, Field(max_digits=38)],
    "date": dt.date,
    "datetime": dt.datetime,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "uuid": uuid.UUID,
    "bytes": bytes,
    "enum": Colour,
    "int_enum": Level,
    "literal": Literal["a", 1, True],
    "list_int": list[int],
    "list_float": list[float],
    "tuple": tuple[int, str, Decimal],
    "set_str": set[str],
    "frozenset_int": frozenset[int],
    "dict_decimal": dict[str, Decimal],
    "dict_int": dict[int, str],
    "dict_date": dict[dt.date, int],
    "maybe_float": float | None,
    "maybe_str": str | None,
    "int_or_str": int | str,
    "float_or_str": float | str,
    "decimal_or_int": Decimal | int,
    "date_or_datetime": dt.date | dt.datetime,
    "inner": Inner,
    "animal": Annotated[Cat | Dog, Field(discriminator="kind")],
    "inners": list[Inner],
    "secret": SecretStr,
    "any": Any,
    "ip": ipaddress.IPv4Address,
    "url": AnyUrl,
    "path": PurePosixPath,
    "excluded": Annotated[int, Field(exclude=True)],
    "rounded": Annotated[Decimal, PlainSerializer(float, return_type=float)],
    "json": Json[list[int]],
    "byte_size": ByteSize,
    "corner": Corner,
    "point": Point,
    "nested": dict[str, list[tuple[Decimal, float | None]]],
}
"""Name -> type; a sample's field is called `f_<name>`."""


def _arm(name: str, annotation: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {"kind": (Literal[name], ...), "index": (int, ...), f"f_{name}": (annotation, ...)}
    return create_model(f"Sample_{name}", **fields)


ARMS = {name: _arm(name, annotation) for name, annotation in FIELDS.items()}
globals().update({arm.__name__: arm for arm in ARMS.values()})

_left_out = Path(__file__).with_name("left_out.txt")
LEFT_OUT = frozenset(_left_out.read_text().split()) if _left_out.exists() else frozenset()
_arms = tuple(arm for name, arm in ARMS.items() if name not in LEFT_OUT)
if TYPE_CHECKING:
    Sample = Any
else:
    Sample = Annotated[Union[_arms], Field(discriminator="kind")]  # noqa: UP007 - made of a tuple


class Submitted(BaseModel):
    """What a person submits."""

    id: str
    f_decimal: Decimal
    f_money: Annotated[Decimal, Field(max_digits=38)]
    f_float: float
    f_int: int
    f_list: list[Decimal]
    f_map: dict[str, Decimal | None]


def made(kind: str, index: int, expression: str) -> BaseModel:
    """The author's value."""
    return ARMS[kind](kind=kind, index=index, **{f"f_{kind}": eval(expression)})


def read(batch: Batch) -> Iterator[Sample]:
    """Each line: kind, index and expression, with tabs."""
    with Path(batch.path).open(encoding="utf-8") as file:
        for line in file:
            kind, index, expression = line.rstrip("\n").split("\t")
            yield made(kind, int(index), expression)


def tell(sample: Sample) -> Told:
    """The sample's text."""
    return Told(index=sample.index, text=said(sample))


def said(value: Any) -> str:
    """What a value means, as text: equal values give equal text, different ones do not."""
    if isinstance(value, BaseModel):
        return f"{type(value).__name__}({said({name: getattr(value, name) for name in type(value).model_fields})})"
    if isinstance(value, SecretStr):
        return f"secret {value.get_secret_value()!r}"
    if isinstance(value, Point):
        return f"Point({said(vars(value))})"
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{said(key)}: {said(each)}" for key, each in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(said, value)))})"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(said, value))})"
    if isinstance(value, Decimal):
        return f"Decimal {_plain(value)}"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return f"at {value.astimezone(dt.UTC).isoformat()}"
    if isinstance(value, dt.datetime | dt.time):
        return f"{type(value).__name__} {value.isoformat()}"
    if isinstance(value, float) and value == 0:
        return "float 0"
    return f"{type(value).__name__} {value!r}"


def _plain(value: Decimal) -> str:
    """Equal amounts, equal text; no digit is lost."""
    if not value.is_finite():
        return str(value)
    if value == 0:
        return "0"
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return f"{'-' if sign else ''}{kept}e{int(exponent) + len(text) - len(kept)}"
