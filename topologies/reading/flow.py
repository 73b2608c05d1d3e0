"""Which types reach which step: the static check of what flows through a pipeline.

Rules
  1. A plain step takes every item that reaches it: each arm must be covered by its input.
  2. A branch (`accepts`) takes its arms and lets the others pass unchanged; its output joins them. It must be reachable:
     every arm it accepts is among those that reach it. Arms made only further down would need a way back, which is a cycle.
  3. Arms that no branch takes go on; the next plain step, or the output, must take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from topologies.pipeline.payloads import Alternative, PayloadType, PayloadTypeError, shown
from topologies.reading.document import Node, Problems


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTypes:
    """The types of one step as far as they could be read.

    Attributes:
        node: The step's map in the file.
        where: Its dotted path.
        input: None: not readable, noted already.
        is_branch: The step has `accepts`, readable or not.
    """

    node: Node
    where: str
    name: str
    input: PayloadType | None
    output: PayloadType | None
    accepts: PayloadType | None
    is_branch: bool

    def noted_at(self, key: str) -> Node:
        """The node of a key, or of the step when the key is missing."""
        node: Node = self.node.value.get(key, self.node)
        return node


Reaching = dict[Alternative, PayloadType]
"""The arms that may reach a place, each with the payload type that named it."""


def check_flow(steps: Sequence[StepTypes], problems: Problems) -> PayloadType | None:
    """Check every step's types; give the type of what leaves the last step, None when that cannot be told."""
    if not steps:
        return None
    reaching = _arms(steps[0].input)
    taken: dict[Alternative, str] = {}
    for place, step in enumerate(steps):
        if step.is_branch:
            reaching = _through_branch(step, reaching, taken, steps[place:], problems)
        else:
            _refuse_untaken(step, reaching, problems)
            reaching = _arms(step.output)
    return None if reaching is None else _joined(steps[-1], reaching, problems)


def _arms(payload: PayloadType | None) -> Reaching | None:
    return None if payload is None else dict.fromkeys(payload.alternatives, payload)


def _refuse_untaken(step: StepTypes, reaching: Reaching | None, problems: Problems) -> None:
    if step.input is None or reaching is None:
        return
    untaken = [arm for arm in reaching if not step.input.covers(arm)]
    if untaken:
        names = _listed(untaken)
        part = len(untaken) < len(reaching)
        advice = f"add a step with accepts: for {names} before it" if part else f"take {names} as input"
        message = f"{names} from the step before does not fit the input {step.input.name}"
        problems.add(
            step.noted_at("input"), f"{step.where}.input", message, f"{advice}, or change the output of the step before"
        )


def _through_branch(
    step: StepTypes,
    reaching: Reaching | None,
    taken: dict[Alternative, str],
    onward: Sequence[StepTypes],
    problems: Problems,
) -> Reaching | None:
    accepts = step.accepts
    if accepts is None or reaching is None:
        return None
    for arm in accepts.alternatives:
        if not any(PayloadType.covers(accepts, reached) and _is_within(reached, arm) for reached in reaching):
            message, advice = _unreachable(arm, reaching, taken, onward)
            problems.add(step.noted_at("accepts"), f"{step.where}.accepts", message, advice)
    if step.input is not None:
        unfit = [arm for arm in accepts.alternatives if not step.input.covers(arm)]
        if unfit:
            message = f"the input {step.input.name} does not take the accepted {_listed(unfit)}"
            problems.add(
                step.noted_at("input"), f"{step.where}.input", message, "remove input: it is what accepts says"
            )
    if step.output is None:
        return None
    here = [arm for arm in reaching if accepts.covers(arm)]
    taken.update(dict.fromkeys([*here, *accepts.alternatives], step.name))
    passing = {arm: payload for arm, payload in reaching.items() if arm not in here}
    return {**passing, **dict.fromkeys(step.output.alternatives, step.output)}


def _unreachable(
    arm: Alternative, reaching: Reaching, taken: dict[Alternative, str], onward: Sequence[StepTypes]
) -> tuple[str, str]:
    later = next(
        (s.name for s in onward if s.output and any(_is_within(made, arm) for made in s.output.alternatives)), None
    )
    if arm in taken:
        return f"unreachable branch: {shown(arm)} is taken by {taken[arm]!r} before", "remove one of the two steps"
    if later is not None:
        return (
            f"cyclic branch: {shown(arm)} is made only by {later!r}, which comes later",
            f"move the step behind {later!r}",
        )
    return f"unreachable branch: {shown(arm)} never gets here", f"accept one of: {_listed(reaching)}"


def _is_within(arm: Alternative, wider: Alternative) -> bool:
    if arm == wider:
        return True
    return (
        isinstance(arm, type)
        and isinstance(wider, type)
        and not get_args(arm)
        and not get_args(wider)
        and issubclass(arm, wider)
    )


def _joined(last: StepTypes, reaching: Reaching, problems: Problems) -> PayloadType | None:
    origins = set(reaching.values())
    if len(origins) == 1:
        origin = next(iter(origins))
        if set(origin.alternatives) == set(reaching):
            return origin
    try:
        return PayloadType.union(
            PayloadType(name=_arm_name(arm, payload), python_type=arm) for arm, payload in reaching.items()
        )
    except PayloadTypeError as error:
        problems.add(last.node, last.where, f"the outputs that leave the last step: {error}", error.advice)
        return None


def _arm_name(arm: Alternative, payload: PayloadType) -> str:
    if len(payload.alternatives) == 1:
        return payload.name
    return f"{arm.__module__}:{arm.__qualname__}" if isinstance(arm, type) and not get_args(arm) else shown(arm)


def _listed(arms: Iterable[Alternative]) -> str:
    return ", ".join(dict.fromkeys(shown(arm) for arm in arms))
