"""Steps whose way depends on a value: maps, branches, routers, retries and fallbacks.

Where the server has the value, the client fetches it, decides, and goes on with variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_weftline.lower.steps import Fetch, Fork, Run, Step, Steps
from langchain_weftline.lower.symbols import UNKNOWN, Unknown, has_unknown, is_symbolic

if TYPE_CHECKING:
    from langchain_weftline.lower.lowering import Lowering


def each(lowering: Lowering, step: Step, value: Any) -> Steps:
    """`.map()`: a part for each item; a list of the server's is fetched to be counted."""
    if not isinstance(value, (list, tuple, Unknown)) and is_symbolic(value):
        lowering.note(step, "how many items there are is known when the list is")
        value = yield from lowering.opened(value)
    *outer, name = step.path or ("map",)
    if isinstance(value, Unknown):
        if lowering.mode.is_ahead:
            return UNKNOWN
        part = Step(step.runnable.bound, step.config, (*outer, f"{name}[…]"))
        return [(yield from lowering.step(part, UNKNOWN))]
    if not isinstance(value, (list, tuple)):
        return (yield from lowering.run(step, value, "it does not get a list"))
    parts = []
    for number, item in enumerate(value):
        path = (*outer, f"{name}[{number}]")
        parts.append(lowering.step(Step(step.runnable.bound, step.config, path), item))
    return (yield Fork(tuple(parts)))


def branch(lowering: Lowering, step: Step, value: Any) -> Steps:
    """RunnableBranch: conditions see the value itself, what is chosen sees the variables."""
    seen = value
    if is_symbolic(value):
        lowering.note(step, "its conditions need a value that the server makes")
        seen = yield Fetch(value)
    for condition, runnable in step.runnable.branches:
        met = yield from lowering.step(step.of(condition), seen)
        if has_unknown(met):
            return (yield from _any_branch(lowering, step, value))
        if is_symbolic(met):
            met = yield Fetch(met)
        if met:
            return (yield from lowering.step(step.of(runnable), value))
    return (yield from lowering.step(step.of(step.runnable.default), value))


def _any_branch(lowering: Lowering, step: Step, value: Any) -> Steps:
    """Planning does not know which branch is taken; an explanation shows them all."""
    if lowering.mode.is_ahead:
        return UNKNOWN
    ways = [runnable for _, runnable in step.runnable.branches]
    for number, runnable in enumerate(ways, 1):
        yield from lowering.step(step.of(runnable, f"branch {number}"), value)
    return (yield from lowering.step(step.of(step.runnable.default, "default"), value))


def router(lowering: Lowering, step: Step, value: Any) -> Steps:
    """RouterRunnable: the runnable of the value's key, on its input."""
    value = yield from lowering.opened(value)
    if not isinstance(value, dict) or not {"key", "input"} <= value.keys():
        return (yield from lowering.run(step, value, "it does not get a key and an input"))
    key = value["key"]
    if is_symbolic(key):
        lowering.note(step, "its key is a value that the server makes")
        key = yield Fetch(key)
    if isinstance(key, Unknown) or key not in step.runnable.runnables:
        return (yield from lowering.run(step, value, "its key is not known"))
    return (yield from lowering.step(step.of(step.runnable.runnables[key]), value["input"]))


def fallbacks(lowering: Lowering, step: Step, value: Any) -> Steps:
    """RunnableWithFallbacks: waits for each alternative, and takes the first that does not fail."""
    chain = step.runnable
    if chain.exception_key is not None:
        return (yield from lowering.run(step, value, "a fallback is given the exception"))
    first: BaseException | None = None
    for runnable in chain.runnables:
        try:
            return (yield from _waited_for(lowering, step, step.of(runnable), value))
        except chain.exceptions_to_handle as error:
            first = first or error
        if is_symbolic(value):
            yield Fetch(value)  # an input that has failed is no failure of this step
    assert first is not None, "LangChain has no fallbacks without a runnable"
    raise first


def retry(lowering: Lowering, step: Step, value: Any) -> Steps:
    """RunnableRetry: the first attempt runs in the server, any further ones as LangChain does."""
    chain = step.runnable
    try:
        return (
            yield from _waited_for(lowering, step, step, value, bound=lowering.binding(step, value))
        )
    except chain.retry_exception_types:
        if chain.max_attempt_number <= 1:
            raise
    if is_symbolic(value):
        value = yield Fetch(value)
    again = chain.model_copy(update={"max_attempt_number": chain.max_attempt_number - 1})
    return (yield Run(again, value, step.config, step.options))


def _waited_for(
    lowering: Lowering, step: Step, part: Step, value: Any, bound: Steps | None = None
) -> Steps:
    """What `part` makes, still as variables, once it is known that it does not fail."""
    made = yield from (lowering.step(part, value) if bound is None else bound)
    if is_symbolic(made):
        lowering.note(step, "whether it fails must be known before what follows")
        yield Fetch(made)
    return made
