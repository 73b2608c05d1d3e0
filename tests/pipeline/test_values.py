"""What is sent is what the author's value means, or a refusal that names the field: random payloads over many types of fields."""

from __future__ import annotations

import json
import math
import random
import string
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FutureDate,
    HttpUrl,
    JsonValue,
    PlainSerializer,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    create_model,
)

from topologies.pipeline.payloads import Misfit, PayloadType, PayloadTypeError

PAYLOADS = 10_000
Draw = Callable[[random.Random], Any]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Inner(BaseModel):
    amount: Decimal
    rate: float = 0.0
    tags: set[str] = set()


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    weight: Decimal


class Point(NamedTuple):
    x: int
    y: Decimal


@dataclass
class Span:
    first: date
    days: float


class Frozen(BaseModel, frozen=True):
    id: UUID
    amount: Decimal


class OpenModel(BaseModel, extra="allow"):
    id: int


# --- what is drawn -----------------------------------------------------------------------------------------------------------------------


def text(rng: random.Random) -> str:
    alphabet = string.ascii_letters + ' "\\\n\t{}[],:é€😀\u2028\x00'
    if rng.random() < 0.02:
        return "a\ud800b"
    if rng.random() < 0.1:
        return rng.choice(["1.50", "null", "NaN", "1e999", ": 1.5", "true", "2024-01-01", ""])
    return "".join(rng.choices(alphabet, k=rng.randrange(9)))


def number(rng: random.Random) -> float:
    if rng.random() < 0.1:
        return rng.choice([math.nan, math.inf, -math.inf])
    return rng.choice(
        [rng.uniform(-1e3, 1e3), rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300), 0.1, -0.0, 5e-324]
    )


def decimal(rng: random.Random) -> Decimal:
    digits = rng.randrange(10 ** rng.choice([1, 3, 12, 20, 40]))
    return Decimal(digits).scaleb(-rng.randrange(30)) * rng.choice([1, -1])


def integer(rng: random.Random) -> int:
    return rng.choice([1, -1]) * rng.randrange(2 ** rng.choice([1, 8, 53, 54, 64, 200]))


def day(rng: random.Random) -> date:
    return date.fromordinal(rng.randrange(1, date.max.toordinal()))


def moment(rng: random.Random) -> datetime:
    zone = rng.choice(
        [UTC, timezone(timedelta(hours=2)), timezone(timedelta(minutes=-330)), timezone(timedelta(seconds=3601))]
    )
    return datetime(rng.randrange(2, 9998), 2, 3, rng.randrange(24), 5, 6, rng.randrange(1_000_000), tzinfo=zone)


def clock(rng: random.Random) -> time:
    return time(
        rng.randrange(24),
        1,
        2,
        rng.randrange(1_000_000),
        tzinfo=rng.choice([None, UTC, timezone(timedelta(seconds=61))]),
    )


def some(draw: Draw, most: int = 4) -> Draw:
    return lambda rng: [draw(rng) for _ in range(rng.randrange(most))]


def keyed(draw: Draw) -> Draw:
    return lambda rng: {text(rng): draw(rng) for _ in range(rng.randrange(3))}


def maybe(draw: Draw) -> Draw:
    return lambda rng: None if rng.random() < 0.3 else draw(rng)


def one_of(*draws: Draw) -> Draw:
    return lambda rng: rng.choice(draws)(rng)


def uuid(rng: random.Random) -> UUID:
    return UUID(int=rng.getrandbits(128))


def blob(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(6)) if rng.random() < 0.5 else b"plain"


def inner(rng: random.Random) -> Inner:
    return Inner(amount=decimal(rng), rate=number(rng), tags=set(some(text)(rng)))


def animal(rng: random.Random) -> Cat | Dog:
    return Cat(lives=integer(rng)) if rng.random() < 0.5 else Dog(weight=decimal(rng))


def any_json(rng: random.Random) -> Any:
    plain = one_of(text, number, integer, lambda _: None, lambda _: True)
    return one_of(plain, some(plain), keyed(plain))(rng)


BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

KINDS: dict[str, tuple[Any, ...]] = {
    "float": (float, number),
    "optional float": (float | None, maybe(number)),
    "floats": (list[float], some(number)),
    "floats by name": (dict[str, float], keyed(number)),
    "float of a range": (Annotated[float, Field(ge=-1e301)], number),
    "floats in strings": (float, number, ConfigDict(ser_json_inf_nan="strings")),
    "decimal": (Decimal, decimal),
    "frozen decimal": (Decimal, decimal, ConfigDict(frozen=True)),
    "optional decimal": (Decimal | None, maybe(decimal)),
    "decimals": (list[Decimal], some(decimal)),
    "decimals by name": (dict[str, Decimal], keyed(decimal)),
    "money": (Annotated[Decimal, Field(max_digits=80)], decimal),
    "integer": (int, integer),
    "integers": (list[int], some(integer)),
    "by integer": (dict[int, str], lambda rng: {integer(rng): text(rng)}),
    "boolean": (bool, lambda rng: rng.random() < 0.5),
    "text": (str, text),
    "optional text": (str | None, maybe(text)),
    "bytes": (bytes, blob),
    "bytes in base64": (bytes, blob, BASE64),
    "date": (date, day),
    "moment": (datetime, moment),
    "aware moment": (AwareDatetime, moment),
    "clock": (time, clock),
    "duration": (
        timedelta,
        lambda rng: timedelta(days=rng.randrange(-999, 999), microseconds=rng.randrange(10**9)),
    ),
    "uuid": (UUID, uuid),
    "enum": (Colour, lambda rng: rng.choice(list(Colour))),
    "integer enum": (Level, lambda rng: rng.choice(list(Level))),
    "literal": (Literal["a", "b"], lambda rng: rng.choice("ab")),
    "mixed literal": (Literal["a", 1, True], lambda rng: rng.choice(["a", 1])),
    "set of texts": (set[str], lambda rng: set(some(text)(rng))),
    "set of integers": (set[int], lambda rng: set(some(integer)(rng))),
    "frozen set of decimals": (frozenset[Decimal], lambda rng: frozenset(some(decimal)(rng))),
    "sets": (list[set[UUID]], some(lambda rng: set(some(uuid)(rng)))),
    "set of models": (set[Frozen], lambda rng: {Frozen(id=uuid(rng), amount=decimal(rng)) for _ in range(3)}),
    "pair": (tuple[Decimal, str], lambda rng: (decimal(rng), text(rng))),
    "tuple": (tuple[float, ...], lambda rng: tuple(some(number)(rng))),
    "model": (Inner, inner),
    "optional model": (Inner | None, maybe(inner)),
    "models": (list[Inner], some(inner)),
    "models by name": (dict[str, Inner], keyed(inner)),
    "told apart": (Annotated[Cat | Dog, Field(discriminator="kind")], animal),
    "arms": (Cat | Dog, animal),
    "integer or float": (int | float, one_of(integer, number)),
    "integer or text": (int | str, one_of(integer, text)),
    "integer or decimal": (int | Decimal, one_of(integer, decimal)),
    "named tuple": (Point, lambda rng: Point(integer(rng), decimal(rng))),
    "dataclass": (Span, lambda rng: Span(day(rng), number(rng))),
    "address": (IPv4Address, lambda rng: IPv4Address(rng.getrandbits(32))),
    "url": (HttpUrl, lambda rng: HttpUrl(f"http://example.com/{rng.randrange(9)}")),
    "path": (Path, lambda rng: Path(f"/a/{rng.randrange(9)}")),
    "queue": (deque[Decimal], lambda rng: deque(some(decimal)(rng))),
    "fraction": (Fraction, lambda rng: Fraction(rng.randrange(99), rng.randrange(1, 99))),
    "json": (JsonValue, any_json),
    "open model": (OpenModel, lambda rng: OpenModel.model_validate({"id": 1, "more": number(rng)})),
    "halved by its validator": (Annotated[int, AfterValidator(lambda number: number // 2)], integer),
    "rounded by its serializer": (Annotated[float, PlainSerializer(round, return_type=int)], number),
}
"""Type of a field, how a value of it is drawn, and the configuration of its model."""


def payload_type(name: str) -> PayloadType:
    annotation, _, *configs = KINDS[name]
    config = configs[0] if configs else ConfigDict()
    return PayloadType(
        name="m:T", python_type=create_model("T", __config__=config, note=(str, ""), field=(annotation, ...))
    )


TYPES = {name: payload_type(name) for name in KINDS}


# --- what is meant -----------------------------------------------------------------------------------------------------------------------


def means(value: Any) -> Any:
    """What a value means, as something that `==` compares and that keeps kinds apart; written anew, not as the code does it."""
    if isinstance(value, Enum):
        return type(value).__name__, value.name
    if isinstance(value, bool | int | str | bytes | UUID | IPv4Address | Path | Fraction | HttpUrl) or value is None:
        return type(value).__name__, value
    if isinstance(value, float | Decimal):
        return "number", type(value).__name__, "NaN" if math.isnan(value) else value
    if isinstance(value, datetime | time):
        offset = value.utcoffset()
        return type(value).__name__, value.replace(tzinfo=None), offset
    if isinstance(value, date | timedelta):
        return type(value).__name__, value
    if isinstance(value, BaseModel):
        more = tuple((name, means(part)) for name, part in (value.__pydantic_extra__ or {}).items())
        return (
            type(value).__name__,
            tuple((name, means(getattr(value, name))) for name in type(value).model_fields),
            more,
        )
    if isinstance(value, Span):
        return "Span", means(value.first), means(value.days)
    if isinstance(value, set | frozenset):
        return "set", frozenset(means(each) for each in value)
    if isinstance(value, dict):
        return "dict", frozenset((means(key), means(each)) for key, each in value.items())
    return type(value).__name__, tuple(means(each) for each in value)


def payloads(seed: str, count: int) -> Iterator[tuple[str, random.Random]]:
    rng = random.Random(seed)
    names = list(KINDS)
    for number_of_it in range(count):
        yield names[number_of_it % len(names)], rng


def or_refused(call: Callable[[Any], Any], argument: Any) -> Any:
    """What a call gives; None where it refuses, and names the field."""
    try:
        return call(argument)
    except Misfit as misfit:
        if "field" in str(misfit):
            return None
        raise


def test_what_is_written_is_what_the_value_means_or_is_refused_by_name() -> None:
    refused = written = 0
    for name, rng in payloads("author", PAYLOADS):
        kind, drawn = TYPES[name], KINDS[name][1](rng)
        value = kind.python_type.model_construct(note=rng.choice(["", "x"]), field=drawn)
        data = or_refused(kind.to_json, value)
        if data is None:
            refused += 1
            continue
        read = kind.read(data)
        assert means(read) == means(value), (name, data)
        assert kind.validate_json(data) == read or name == "json"
        assert kind.to_json(read) == data, (name, data)
        assert kind.same(data, kind.to_json(read))
        written += 1
    assert refused > PAYLOADS / 50
    assert written > PAYLOADS / 2
    print(f"{written:,} written, {refused:,} refused, {len(KINDS)} types")


def test_what_is_written_names_no_number_that_is_none() -> None:
    for name, rng in payloads("no numbers", PAYLOADS // 10):
        kind, drawn = TYPES[name], KINDS[name][1](rng)
        data = or_refused(kind.to_json, kind.python_type.model_construct(note="", field=drawn))
        if data is not None:
            json.loads(data, parse_constant=pytest.fail)


def test_nothing_is_admitted_that_cannot_be_read_back() -> None:
    """Whatever comes from outside: what was written for one type is read as another one, which pydantic converts where it can."""
    rng = random.Random("outside")
    texts = [b'{"field": %s}' % json.dumps(any_json(rng)).encode() for _ in range(500)]
    for name, drawing in payloads("written", 1_000):
        kind = TYPES[name]
        data = or_refused(kind.to_json, kind.python_type.model_construct(note="", field=KINDS[name][1](drawing)))
        texts += [data] if data is not None else []
    admitted = 0
    for turn in range(PAYLOADS):
        kind = TYPES[list(KINDS)[turn % len(KINDS)]]
        try:
            value = kind.read(rng.choice(texts))
            data = kind.to_json(value)
        except Misfit:
            continue
        assert means(kind.validate_json(data)) == means(value)
        admitted += 1
    assert admitted > PAYLOADS / 20


# --- what comes from outside -------------------------------------------------------------------------------------------------------------


def digits(rng: random.Random) -> str:
    """A JSON number as any sender may write it."""
    whole = str(rng.randrange(10 ** rng.choice([1, 3, 17, 30])))
    point = f".{rng.randrange(10**12):0{rng.choice([1, 2, 20])}d}" if rng.random() < 0.7 else ""
    exponent = f"{rng.choice('eE')}{rng.choice(['', '+', '-'])}{rng.randrange(30)}" if rng.random() < 0.3 else ""
    return rng.choice(["", "-"]) + whole + point + exponent


def sent(where: str, number_text: str) -> str:
    """The JSON of a payload with a number at some place."""
    return {
        "plain": f'{{"note": ": 1.50, [2e3", "field": {number_text}}}',
        "spaced": f'{{"field"  :\n {number_text} , "note":""}}',
        "list": f'{{"field": [1, {number_text},"7"]}}',
        "name": f'{{"field": {{"a.b": {number_text}, "c": "1.0"}}}}',
        "inner": f'{{"field": {{"amount": {number_text}, "rate": 0.5, "tags": ["1.5"]}}}}',
        "pair": f'{{"field": [{number_text}, "x"]}}',
        "named": f'{{"field": [3, {number_text}]}}',
        "dog": f'{{"field": {{"kind": "dog", "weight": {number_text}}}}}',
    }[where]


PLACES: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("decimal", "plain", lambda value: value),
    ("frozen decimal", "spaced", lambda value: value),
    ("optional decimal", "plain", lambda value: value),
    ("decimals", "list", lambda value: value[1]),
    ("decimals by name", "name", lambda value: value["a.b"]),
    ("model", "inner", lambda value: value.amount),
    ("optional model", "inner", lambda value: value.amount),
    ("pair", "pair", lambda value: value[0]),
    ("told apart", "dog", lambda value: value.weight),
    ("arms", "dog", lambda value: value.weight),
    ("queue", "list", lambda value: value[1]),
    ("named tuple", "named", lambda value: value.y),
]


def test_decimals_that_come_as_numbers_keep_their_digits_or_are_refused_by_name() -> None:
    rng = random.Random("digits")
    refused = 0
    for turn in range(PAYLOADS // 2):
        name, where, taken = PLACES[turn % len(PLACES)]
        number_text = digits(rng)
        value = or_refused(TYPES[name].read, sent(where, number_text).encode())
        if value is None:
            refused += 1
            continue
        assert taken(value.field) == Decimal(number_text), (name, number_text)
        if "e" not in number_text.casefold() and number_text != "-0":
            assert str(taken(value.field)) == str(Decimal(number_text)), "zeros at the end are digits too"
    assert refused < PAYLOADS / 100, "only what no decimal can say"


def test_a_number_that_is_the_whole_payload_keeps_its_digits() -> None:
    kind = PayloadType(name="m:T", python_type=RootModel[Decimal])
    assert kind.read(b"12345678901234567.89").root == Decimal("12345678901234567.89")


def test_a_set_of_decimals_keeps_their_digits() -> None:
    read = TYPES["frozen set of decimals"].read(b'{"field": [12345678901234567.89, 1.5, 1.50]}')
    assert read.field == {Decimal("12345678901234567.89"), Decimal("1.5")}


def test_an_integer_with_a_point_is_that_integer_or_is_refused_by_name() -> None:
    rng = random.Random("integers")
    for _ in range(PAYLOADS // 10):
        number_text = digits(rng)
        value = or_refused(TYPES["integer"].read, sent("plain", number_text).encode())
        assert value is None or value.field == Decimal(number_text)


@pytest.mark.parametrize(
    "number_text", ["1e999", "-1e999", '"nan"', '"inf"', '"-Infinity"', "NaN", "Infinity", "1" * 400]
)
@pytest.mark.parametrize(
    ("name", "where"),
    [("float", "plain"), ("optional float", "spaced"), ("floats", "list"), ("floats by name", "name")],
)
def test_what_is_no_finite_number_is_refused_by_name(name: str, where: str, number_text: str) -> None:
    with pytest.raises(Misfit, match="field"):
        TYPES[name].read(sent(where, number_text).encode())


# --- equal values ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("decimal", '{"field": 250.0}', '{"field": "250.00"}'),
        ("decimal", '{"field": 2.5e2}', '{"note": "", "field": 250}'),
        ("decimal", '{"field": "-0"}', '{"field": "0.00"}'),
        ("float", '{"field": 1}', '{"field": 1.0}'),
        ("optional text", '{"field": null}', '{"field": null, "note": ""}'),
        ("moment", '{"field": "2024-01-01T00:00:00Z"}', '{"field": "2024-01-01T02:00:00+02:00"}'),
        ("set of texts", '{"field": ["a", "b"]}', '{"field": ["b", "a", "b"]}'),
        ("decimals by name", '{"field": {"a": 1, "b": 2}}', '{"field": {"b": "2.0", "a": "1.0"}}'),
        ("model", '{"field": {"amount": "1", "tags": []}}', '{"field": {"rate": 0, "amount": "1.0"}}'),
    ],
)
def test_equal_values_are_the_same_however_they_are_written(name: str, left: str, right: str) -> None:
    assert TYPES[name].same(left.encode(), right.encode())


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("decimal", '{"field": 12345678901234567.89}', '{"field": 12345678901234567.88}'),
        ("integer or text", '{"field": 1}', '{"field": "1"}'),
        ("integers", '{"field": [1, 2]}', '{"field": [2, 1]}'),
        ("optional text", '{"field": null}', '{"field": "null"}'),
    ],
)
def test_other_values_are_others(name: str, left: str, right: str) -> None:
    assert not TYPES[name].same(left.encode(), right.encode())


# --- what is refused at load -------------------------------------------------------------------------------------------------------------


class Tame:
    """A class that pydantic knows nothing of."""


class Left(BaseModel):
    id: str


class Right(BaseModel):
    id: str
    note: str = ""


REFUSED: dict[str, tuple[Any, str]] = {
    "secret text": (SecretStr, "is a secret"),
    "optional secret": (SecretStr | None, "is a secret"),
    "secret bytes": (list[SecretBytes], "is a secret"),
    "secret of a type": (Secret[int], "is a secret"),
    "anything": (Any, "may be anything"),
    "object": (object, "may be anything"),
    "anything by name": (dict[str, Any], "may be anything"),
    "bare list": (list, "may be anything"),
    "function": (Callable[[], int], "no JSON leads back to"),
    "iterator": (Iterator[int], "no JSON leads back to"),
    "class of nobody": (Tame, "no JSON leads back to"),
    "future": (FutureDate, "must be in the future"),
    "decimal or text": (Decimal | str, "is str or decimal"),
    "date or text": (date | str | None, "is str or date"),
    "uuid or text": (list[UUID | str], "is str or uuid"),
    "arms that look alike": (Left | Right, "cannot be told apart"),
    "arms that look alike in a list": (list[Left | Right], "cannot be told apart"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_json_leads_back_to_is_refused_at_load_with_the_field(name: str) -> None:
    annotation, message = REFUSED[name]
    model = create_model("T", __config__=ConfigDict(arbitrary_types_allowed=True), field=(annotation, ...))
    with pytest.raises(PayloadTypeError, match=message) as refused:
        PayloadType(name="m:T", python_type=model)
    assert "T.field" in str(refused.value)
    assert refused.value.advice


def test_bytes_that_are_written_in_another_way_than_they_are_read_are_refused() -> None:
    model = create_model("T", __config__=ConfigDict(ser_json_bytes="base64"), field=(bytes, ...))
    with pytest.raises(PayloadTypeError, match=r"T\.field is written as base64 and read as utf8"):
        PayloadType(name="m:T", python_type=model)


def test_a_nested_field_that_json_lacks_is_refused() -> None:
    hidden: Any = create_model("Hidden", secret=(str, Field(default="", exclude=True)))
    with pytest.raises(PayloadTypeError, match=r"Hidden\.secret is excluded from JSON"):
        PayloadType(name="m:T", python_type=create_model("T", field=(list[hidden], ...)))


# --- what it costs -----------------------------------------------------------------------------------------------------------------------


def test_a_proved_type_is_written_by_the_compiled_serializer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot path is free of checks where nothing has to be checked."""
    kind = PayloadType(
        name="m:T", python_type=create_model("T", __config__=ConfigDict(frozen=True), a=(Decimal, ...), b=(UUID, ...))
    )
    for check in ("_write_checked", "_read_back", "_refuse_no_number"):
        monkeypatch.setattr(PayloadType, check, pytest.fail)
    value = kind.python_type(a=Decimal("1.50"), b=UUID(int=1))
    assert kind.validate_json(kind.to_json(value)) == value
