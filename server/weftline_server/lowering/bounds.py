"""Checks before any work is done: the counts of a submit, and the transforms and prompts that may
take long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weftline.contract import predicates
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import Call, InOut, SubmitBody
from weftline.contract.steps import StepBase
from weftline.contract.transforms import MAX_SPECS, OPS
from weftline.contract.vectors import Embedded
from weftline_server.lowering.step import Kinds, repeated_body

Spec = Mapping[str, Any]

# The transforms of a longer value take milliseconds, which the event loop does not have.
LARGE_CHARS = 1 << 15
# A value with more parts counts as large. A walk over this many takes 0.2 ms.
MANY_PARTS = 2000
# Each output of a call knows all segments before it, so a call costs segments times outputs. A
# product of 100,000 takes 60 ms.
MAX_SEGMENTS_BY_OUTPUTS = 100_000
MAX_PLACEHOLDERS = 50_000  # of a submit: five for each of the most calls


def costly_specs(submit: SubmitBody, kinds: Kinds) -> list[Spec]:
    """The transforms and predicates of `submit` that must be compiled or may take long.

    Raises InvalidRequest for a list that is too long.
    """
    if sum(len(call.placeholders) for call in submit.calls) > MAX_PLACEHOLDERS:
        raise InvalidRequest(
            f"the calls of a submit have at most {MAX_PLACEHOLDERS:,} placeholders: split it",
            param="calls",
        )
    found: list[Spec] = []
    for specs in _lists(submit.calls, submit.steps, kinds):
        if len(specs) > MAX_SPECS:
            raise InvalidRequest(
                f"at most {MAX_SPECS} transforms in a row, got {len(specs)}", param="transforms"
            )
        found.extend(spec for spec in specs if is_costly(spec))
    for when in _predicates(submit.steps, kinds):
        found.extend(part for part in predicates.parts(when) if _is_costly_part(part))
    return found


def _lists(
    calls: Iterable[Call], steps: Iterable[StepBase], kinds: Kinds
) -> Iterator[Sequence[Spec]]:
    """Every list of transforms, those of the bodies of steps included."""
    for call in calls:
        for holder in call.placeholders:
            if holder.transforms:
                yield holder.transforms
    for step in steps:
        yield from filter(None, kinds.of(step).transforms(step))
        if (body := repeated_body(step)) is not None:
            yield from _lists(body.calls, body.steps, kinds)


def _predicates(steps: Iterable[StepBase], kinds: Kinds) -> Iterator[predicates.Predicate]:
    """Every predicate, those of the bodies of steps included."""
    for step in steps:
        yield from kinds.of(step).predicates(step)
        if (body := repeated_body(step)) is not None:
            yield from _predicates(body.steps, kinds)


def check_size(call: Call, segments: int) -> None:
    """Raise InvalidRequest for a call whose segments and outputs are too many together."""
    outputs = [holder.in_out for holder in call.placeholders].count(InOut.OUT)
    if outputs * segments > MAX_SEGMENTS_BY_OUTPUTS:
        most = MAX_SEGMENTS_BY_OUTPUTS // segments
        raise InvalidRequest(
            f"call {call.name!r} has {outputs} outputs in {segments} segments, and a call of that "
            f"length may have {most}: split it",
            param="prompt",
        )


def is_large(specs: Sequence[Mapping[str, object]], value: object) -> bool:
    """Whether `specs`, or writing `value` as text, may take longer than the event loop has."""
    if not specs and isinstance(value, str):
        return False  # it is the text, however long
    return any(map(is_costly, specs)) or not is_small(value)


def is_costly(spec: Mapping[str, object]) -> bool:
    """Whether the transform may take long even for a short text: a pattern, YAML."""
    op = OPS.get(str(spec.get("op")))
    return op is not None and op.costly


def _is_costly_part(part: predicates.Predicate) -> bool:
    """Whether a predicate runs a pattern, or transforms that may take long."""
    return part["op"] == "matches" or any(map(is_costly, part.get("transforms", ())))


def is_slow(when: predicates.Predicate, value: object) -> bool:
    """Whether it may take longer than the event loop has to tell if `when` holds for `value`."""
    return any(
        _is_costly_part(part) or (bool(part.get("transforms")) and not is_small(value))
        for part in predicates.parts(when)
    )


def is_small(value: object) -> bool:
    """Whether `value` has at most LARGE_CHARS characters and MANY_PARTS parts."""
    chars, parts, waiting = 0, 0, [value]
    while waiting:
        one = waiting.pop()
        parts += 1
        if isinstance(one, str):
            chars += len(one)
        elif isinstance(one, Embedded):
            chars += len(one.vectors.data)
            waiting.append(one.items)
        elif isinstance(one, (list, tuple)):
            parts += len(one)
            waiting += one[:MANY_PARTS]
        elif isinstance(one, dict):
            parts += 2 * len(one)
            if parts <= MANY_PARTS:
                waiting += [*one, *one.values()]
        if chars > LARGE_CHARS or parts > 2 * MANY_PARTS:
            return False
    return True
