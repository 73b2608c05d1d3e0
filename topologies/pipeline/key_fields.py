"""Which fields may make an idempotency key: those whose text says which value it is."""

from __future__ import annotations

import types
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import TypeAliasType

from topologies.pipeline.payloads import PayloadType

_NO_TEXT = (bool, int, float, Decimal, list, tuple, dict, set, frozenset, BaseModel)
"""Types whose JSON is no text; of the others it is, or is taken to be."""


def key_field_problem(payload: PayloadType, path: str) -> tuple[str, str] | None:
    """Why a field of the type makes no key, and what to do; None where it does.

    Args:
        payload: The request's type.
        path: A name for which `PayloadType.has_field` holds.
    """
    kinds = [kind for arm in payload.alternatives for kind in _kinds_at(arm, path.split("."))]
    texts = {is_text for kind in kinds for is_text in _is_text(kind)}
    if len(texts) > 1:
        return (
            f"{path} may be text or something else, so that two different values could make one key",
            "give it one type",
        )
    return None


def _kinds_at(holder: Any, path: list[str]) -> Iterator[Any]:
    """The types that a field may have, None left out."""
    if not path:
        yield from (kind for kind in _members(holder) if kind is not type(None))
        return
    for kind in _members(holder):
        if isinstance(kind, type) and not get_args(kind) and issubclass(kind, BaseModel):
            for name, info in kind.model_fields.items():
                if path[0] in (name, info.serialization_alias):
                    yield from _kinds_at(info.annotation, path[1:])


def _members(annotation: Any) -> Iterator[Any]:
    """The arms of a union, or the type itself."""
    bare = annotation
    while isinstance(bare, TypeAliasType) or get_origin(bare) is Annotated:
        bare = bare.__value__ if isinstance(bare, TypeAliasType) else get_args(bare)[0]
    if get_origin(bare) in (Union, types.UnionType):
        for member in get_args(bare):
            yield from _members(member)
    else:
        yield bare


def _is_text(kind: Any) -> set[bool]:
    """Whether values of the type are text in JSON; both where nobody can say."""
    if get_origin(kind) is Literal:
        return {isinstance(value, str) for value in get_args(kind) if value is not None}
    bare = get_origin(kind) or kind
    if not isinstance(bare, type):
        return {True, False}
    if issubclass(bare, Enum):
        return {isinstance(member.value, str) for member in bare}
    return {not issubclass(bare, _NO_TEXT)}
