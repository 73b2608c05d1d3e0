"""Idempotency keys: made of the declared fields alone, and never the same for two different requests (DECISIONS 7, FAULTS K2)."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tests.decisions.given import EXECUTION, await_step
from topologies.pipeline.items import KEY_CHARS_MAX, Keys, aggregate_key, idempotency_key, repeated_key
from topologies.pipeline.key_fields import key_field_problem
from topologies.pipeline.payloads import PayloadType
from topologies.pipeline.steps import AwaitStep


class Payment(BaseModel):
    """What is asked."""

    a: str | None = None
    b: str | None = None
    rate: Decimal = Field(default=Decimal(1), alias="rate:%<in>")


PAYMENT = PayloadType(name="bank:Payment", python_type=Payment)


def step_of(*fields: str) -> AwaitStep:
    return await_step(input=PAYMENT, idempotency_key_fields=fields)


STEP = step_of("a", "b")
NO_FIELDS = step_of()


def key(a: str | None, b: str | None) -> str:
    return Keys(STEP).of(Payment(a=a, b=b))


values = st.one_of(st.none(), st.text(alphabet=":\\<>nul=b%x", max_size=12), st.text(max_size=12))
pairs = st.tuples(values, values)


@given(pairs, pairs)
@example(("Ann:b=7", "8"), ("Ann", "7:b=8"))
@example((None, "x"), ("<null>", "x"))
@example(("\\<null>", "x"), ("<null>", "x"))
@example(("x\\", ":b=y"), ("x\\:b=", "y"))
def test_two_different_requests_have_two_keys(
    left: tuple[str | None, str | None], right: tuple[str | None, str | None]
) -> None:
    assert (key(*left) == key(*right)) == (left == right)


@given(pairs, st.integers(2, 9))
def test_a_repeated_key_is_no_first_key(pair: tuple[str | None, str | None], number: int) -> None:
    assert repeated_key(key(*pair), number) != key(pair[0], f"{pair[1] or ''}:n={number}")


def test_a_value_without_separators_is_written_as_it_is() -> None:
    assert key("Ann % Co", "7=8") == "await-1:a=Ann % Co:b=7=8"
    assert key("12:30", "C:\\x") == "await-1:a=12\\:30:b=C\\:\\\\x"
    assert key(None, "<null>") == "await-1:a=<null>:b=\\<null>"


def test_a_long_value_is_hashed_and_no_short_one_can_be_written_like_the_hash() -> None:
    long = key("x" * KEY_CHARS_MAX, "y")
    assert long.startswith("await-1:sha256:")
    assert len(long) < 100
    hashed = long.removeprefix("await-1:sha256:")
    assert Keys(step_of("a")).of(Payment(a=hashed)) == f"await-1:a={hashed}"
    assert repeated_key(long, 2) == f"{long}:n=2"


def test_a_field_may_have_any_name() -> None:
    assert Keys(step_of("rate:%<in>")).of(PAYMENT.validate({"rate:%<in>": "1.50"})) == "await-1:rate:%<in>=1.5"


@pytest.mark.parametrize("fields", [(), ("a",)])
def test_the_scalar_key_and_the_first_items_key_are_made_alike(fields: tuple[str, ...]) -> None:
    step, value = step_of(*fields), Payment(a="x")
    expected = "await-1:a=x" if fields else f"{EXECUTION}:await-1"
    assert idempotency_key(step, EXECUTION, value, None) == expected


def test_without_fields_a_key_names_the_execution_and_the_item() -> None:
    assert idempotency_key(NO_FIELDS, EXECUTION, Payment(), 7) == f"{EXECUTION}:await-1:item=7"


def test_the_key_of_an_aggregate_is_of_all_items_in_their_order() -> None:
    one, two = Payment(a="1"), Payment(a="2")
    keys = [aggregate_key(STEP, EXECUTION, items) for items in ([], [one], [one, two], [two, one], [one, one])]
    assert len(set(keys)) == len(keys)
    assert all(made.startswith("await-1:all:sha256:") for made in keys)
    assert aggregate_key(STEP, "another execution", [Payment(a="1"), two]) == keys[2]


def test_two_items_never_hash_like_one() -> None:
    apart = aggregate_key(step_of("a"), EXECUTION, [Payment(a="1"), Payment(a="2")])
    assert apart != aggregate_key(step_of("a"), EXECUTION, [Payment(a="1await-1:a=2")])


def test_without_fields_an_aggregates_key_names_the_execution() -> None:
    assert aggregate_key(NO_FIELDS, EXECUTION, [Payment()]) == f"{EXECUTION}:await-1"


# --- which fields make a key -------------------------------------------------------------------------------------------------------------


class Color(Enum):
    """Text in JSON."""

    RED = "red"


class Inner(BaseModel):
    """Holds fields one level down."""

    number: int
    either: int | str


class Many(BaseModel):
    """A field of each kind."""

    text: str
    maybe: Annotated[str, Field(min_length=1)] | None = None
    number: int | float | Decimal
    color: Color
    day: date
    literal: Literal["a", "b"]
    names: list[str]
    inner: Inner
    either: int | str
    mixed: Literal["a", 1]
    listed: list[str] | str


MANY = PayloadType(name="bank:Many", python_type=Many)


@pytest.mark.parametrize(
    "path", ["text", "maybe", "number", "color", "day", "literal", "names", "inner.number", "inner"]
)
def test_a_field_of_one_kind_makes_a_key(path: str) -> None:
    assert key_field_problem(MANY, path) is None


@pytest.mark.parametrize("path", ["either", "mixed", "listed", "inner.either"])
def test_a_field_of_which_a_text_and_another_value_are_written_alike_makes_none(path: str) -> None:
    problem = key_field_problem(MANY, path)
    assert problem is not None
    assert f"{path} may be text or something else" in problem[0]


def test_arms_of_a_union_are_looked_at_together() -> None:
    class Left(BaseModel):
        kind: Literal["left"]
        id: str

    class Right(BaseModel):
        kind: Literal["right"]
        id: int

    both = PayloadType(name="bank:Both", python_type=Left | Right)
    assert key_field_problem(both, "kind") is None
    assert key_field_problem(both, "id") is not None
