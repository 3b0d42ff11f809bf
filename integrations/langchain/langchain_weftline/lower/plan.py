"""Lowers a chain ahead of its run. Planning sends nothing and runs no code of the user.

A value that only the run can know, from a step of the client or from the server, is UNKNOWN here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_weftline.lower.checks import Check
from langchain_weftline.lower.graph import tree_of, variables_of
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.prompts import is_plain
from langchain_weftline.lower.server_parts import made_by
from langchain_weftline.lower.steps import Fetch, Fork, Request, Step, StepRun, Steps
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    CannotCompile,
    Local,
    has_unknown,
    is_symbolic,
)
from langchain_weftline.model.answers import new_variable

log = logging.getLogger(__name__)


@dataclass
class Planned:
    """The results of planning beside the calls: what each step of the client reads."""

    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fetches: int = 0  # values that the client needs before it can go on


def plan(
    lowering: Lowering,
    chain: Runnable[Any, Any],
    input: Any,
    config: RunnableConfig | None = None,
    options: Mapping[str, Any] | None = None,
    planned: Planned | None = None,
) -> Any:
    """Lower `chain`. Returns its result, as far as that is known.

    With `planned`, the outputs of the client's steps on values of the server are promises.
    """
    # The rest of a run's configuration is left out: it has callbacks, which a plan must not call.
    configurable = (config or {}).get("configurable", {})
    step = Step(chain, {"configurable": configurable}, (), options or {})
    return _follow(lowering.step(step, _known_part(input)), planned)


def _follow(part: Steps, planned: Planned | None) -> Any:
    answer: Any = None
    while True:
        try:
            answer = _answer(part.send(answer), planned)
        except StopIteration as done:
            return done.value
        except CannotCompile:
            return UNKNOWN
        except Exception:  # the run raises the error again, and its callbacks see it there
            log.debug("a part of the chain is not sent ahead", exc_info=True)
            return UNKNOWN


def _answer(request: Request, planned: Planned | None) -> Any:
    match request:
        case StepRun(step=Check()):
            return None
        case Fork(parts):
            return [_follow(part, planned) for part in parts]
        case Fetch() if planned is not None:
            planned.fetches += 1
        case StepRun(may_wait=False) if planned is not None and is_symbolic(request.value):
            planned.fetches += 1
        case StepRun() if planned is not None and is_symbolic(request.value):
            promise = Local(new_variable())
            planned.reads[promise.var] = variables_of(tree_of(request.value))
            return promise
        case StepRun(step, value) if not (
            request.options or has_unknown(value) or is_symbolic(value)
        ):
            return made_by(step, value)
    return UNKNOWN


def _known_part(value: Any) -> Any:
    """`value`, with UNKNOWN for the parts whose classes could run code when they are formatted."""
    if is_plain(value) or (type(value) is Document and is_plain(value.metadata)):
        return value
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: _known_part(item) for key, item in value.items()}
    if type(value) is list:
        return [_known_part(item) for item in value]
    return UNKNOWN
