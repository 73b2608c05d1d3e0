"""Types side by side: each pair in a union, free JSON, texts made of numbers; what leads back, and what is refused when the pipeline loads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address
from typing import Any, Literal, Union
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Json, JsonValue, RootModel, create_model

from topologies.pipeline.payloads import Misfit, PayloadType, PayloadTypeError

CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Size(Enum):
    FIVE = "5"
    RED = "red"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Rate(Enum):
    HALF = 1.5
    TWO = 2


class Cat(BaseModel):
    lives: int


class Money(BaseModel):
    amount: Decimal


class AnyList(RootModel[list[JsonValue]]):
    pass


VALUES: dict[Any, Sequence[Any]] = {
    int: [0, 1, 5, 2**70],
    str: ["5", "red", "2024-01-01", "true", "1.5", "a"],
    bool: [True, False],
    float: [0.0, 1.0, 1.5],
    Decimal: [Decimal(5), Decimal("1.50"), Decimal("1E+3")],
    date: [date(2024, 1, 1)],
    datetime: [datetime(2024, 1, 1), datetime(2024, 1, 1, 1, tzinfo=UTC)],  # noqa: DTZ001 - without a zone on purpose
    time: [time(1, 2)],
    timedelta: [timedelta(1), timedelta(0, 5)],
    UUID: [UUID(int=5)],
    bytes: [b"abc", b""],
    Size: list(Size),
    Level: list(Level),
    Rate: list(Rate),
    Literal["a", 1]: ["a", 1],
    Literal["5", "red"]: ["5", "red"],
    list[int]: [[], [1]],
    list[str]: [[], ["1"]],
    list[Decimal]: [[Decimal("1.0")]],
    set[int]: [{1}, set()],
    frozenset[str]: [frozenset({"a"})],
    tuple[int, ...]: [(1,), ()],
    dict[str, int]: [{"lives": 1}, {}],
    Cat: [Cat(lives=1)],
    Money: [Money(amount=Decimal("1.50"))],
    JsonValue: [None, 1, 1.5, "a", {"a": 1}, [1.5]],
    IPv4Address: [IPv4Address("1.2.3.4")],
    type(None): [None],
}


def payload(annotation: Any, config: ConfigDict = CONFIG) -> PayloadType:
    return PayloadType(name="m:M", python_type=create_model("M", __config__=config, value=(annotation, ...)))


def meaning(value: Any) -> Any:
    """Every type, digit and member of a value, made independently of the product."""
    if isinstance(value, BaseModel):
        return type(value).__name__, {name: meaning(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {name: meaning(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [meaning(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, map(meaning, value)))
    if isinstance(value, datetime):
        return value.replace(tzinfo=None), value.utcoffset()
    return type(value).__name__, str(value)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_value_of_any_two_types_leads_back_or_is_refused(is_listed: bool) -> None:
    """The member of an enum must not come back as an integer, a boolean or a time: another branch would take it."""
    seen = dict.fromkeys(("back", "refused", "at load"), 0)
    for left, right in itertools.permutations(VALUES, 2):
        both: Any = Union.__getitem__((left, right))
        try:
            kind = payload(list[both] if is_listed else both)
        except PayloadTypeError:
            seen["at load"] += 1
            continue
        for value in (*VALUES[left], *VALUES[right]):
            typed = kind.validate({"value": [value] if is_listed else value})
            try:
                text = kind.to_json(typed)
            except Misfit:
                seen["refused"] += 1
                continue
            seen["back"] += 1
            assert meaning(kind.validate_json(text)) == meaning(typed) == meaning(kind.read(text)), (left, right, text)
    assert min(seen.values()) > 20, seen


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (int | Level, "may be <Level.LOW: 1>, which would be read back as 1"),
        (bool | Level, "would be read back as True"),
        (int | Size, "may be <Size.FIVE: '5'>, which would be read back as 5"),
        (list[Level | float], "would be read back as 1.0"),
        (Literal[b"a"], "may be b'a', which JSON does not lead back to"),
        (Json[Decimal], "is JSON inside a text"),
        (dict[tuple[int, int], int], "has keys of type tuple"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused_at_load(annotation: Any, told: str) -> None:
    with pytest.raises(PayloadTypeError) as refused:
        payload(annotation)
    assert "M.value" in str(refused.value)
    assert told in str(refused.value)
    assert refused.value.advice


@pytest.mark.parametrize("annotation", [Size | None, Size | Level, Level | str, Level | Cat])
def test_constants_that_nothing_else_is_mistaken_for_may_stand_beside_others(annotation: Any) -> None:
    assert payload(annotation).arms


def test_a_tree_of_enums_loads() -> None:
    class Tree(BaseModel):
        value: Level | list[Tree] | None = None

    kind = PayloadType(name="m:Tree", python_type=Tree)
    tree = Tree(value=[Tree(value=Level.HIGH), Tree()])
    assert meaning(kind.validate_json(kind.to_json(tree))) == meaning(tree)


@pytest.mark.parametrize(
    ("annotation", "text", "where"),
    [
        (JsonValue, '{"value": %s}', "value"),
        (JsonValue, '{"value": {"a": [1, %s]}}', "value.a.1"),
        (dict[str, JsonValue], '{"value": {"a": %s}}', "value.a"),
        (AnyList, '{"value": [%s]}', "value.0"),
        (Decimal | float | None, '{"value": %s}', "value"),
        (list[float | Decimal], '{"value": [%s]}', "value.0"),
        (int, '{"value": 1, "other": {"a": %s}}', "other.a"),
    ],
)
def test_a_number_at_which_no_type_is_declared_keeps_its_digits_or_is_refused_by_name(
    annotation: Any, text: str, where: str
) -> None:
    kind = payload(annotation, ConfigDict(extra="allow"))
    for number in ("1.5", "0.1", "-7.25"):
        assert number.encode() in kind.to_json(kind.read((text % number).encode()))
    with pytest.raises(Misfit, match=f"{where}: write 12345678901234567.89 as a text"):
        kind.read((text % "12345678901234567.89").encode())


def test_a_float_beside_free_json_is_a_float() -> None:
    class Mixed(BaseModel):
        rate: float
        free: JsonValue = None

    kind = PayloadType(name="m:Mixed", python_type=Mixed)
    assert kind.read(b'{"rate": 0.123456789012345678901, "free": {"a": 1.5}}').rate == 0.12345678901234568


class Amount(RootModel[Decimal]):
    pass


@pytest.mark.parametrize("annotation", [Amount, Decimal])
def test_a_decimal_with_a_model_of_its_own_keeps_its_digits(annotation: Any) -> None:
    assert payload(annotation).read(b'{"value": 12345678901234567.89}').model_dump_json() == (
        '{"value":"12345678901234567.89"}'
    )


def test_a_text_that_is_made_of_a_number_has_its_digits() -> None:
    kind = payload(str, ConfigDict(coerce_numbers_to_str=True))
    for number in ("12345678901234567.89", "1.10", "1e3"):
        assert kind.read(f'{{"value": {number}}}'.encode()).value == number
