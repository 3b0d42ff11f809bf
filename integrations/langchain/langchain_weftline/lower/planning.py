"""Lowers a chain ahead of its run. It sends nothing and runs no code of the user.

A value that only the run can know, from a step of the client or from the server, is UNKNOWN here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnablePick

from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.prompts import calls_user_code, is_plain, render
from langchain_weftline.lower.pure import apply_pure
from langchain_weftline.lower.steps import Fork, Request, Run, Step, Steps
from langchain_weftline.lower.symbols import UNKNOWN, CannotCompile, has_unknown, is_symbolic


def plan(
    lowering: Lowering,
    chain: Runnable[Any, Any],
    input: Any,
    config: RunnableConfig | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Lower `chain`. Returns its result, as far as that is known."""
    # The rest of a run's configuration has callbacks, and a plan must not call them.
    configurable = (config or {}).get("configurable", {})
    step = Step(chain, {"configurable": configurable}, (), options or {})
    return _follow(lowering.step(step, _known_part(input)))


def _follow(part: Steps) -> Any:
    answer: Any = None
    while True:
        try:
            answer = _answer(part.send(answer))
        except StopIteration as done:
            return done.value
        except Exception:
            return UNKNOWN  # the run will raise it again, where its callbacks see it


def _answer(request: Request) -> Any:
    match request:
        case Fork(parts):
            return [_follow(part) for part in parts]
        case Run(step, value) if not (request.options or has_unknown(value) or is_symbolic(value)):
            return _made_by(step, value)
    return UNKNOWN


def _made_by(step: Any, value: Any) -> Any:
    """The output of a client's step for a plain value, if it can be found without running it."""
    if isinstance(step, BasePromptTemplate):
        return _prompt(step, value)
    if type(step) is RunnablePick and type(value) is dict:
        if isinstance(step.keys, str):
            return value.get(step.keys)
        return {key: value[key] for key in step.keys if key in value} or None
    is_plain_lambda = type(step) is RunnableLambda and getattr(step, "afunc", None) is None
    function = getattr(step, "func", None) if is_plain_lambda else None
    if isinstance(function, operator.itemgetter):
        return function(value)
    if function is None:
        return UNKNOWN
    try:
        return apply_pure(function, value)
    except CannotCompile:
        return UNKNOWN


def _prompt(template: BasePromptTemplate[Any], value: Any) -> Any:
    if calls_user_code(template):
        return UNKNOWN
    values = value if isinstance(value, dict) else {template.input_variables[0]: value}
    try:
        return render(template, values)
    except CannotCompile:
        return UNKNOWN


def _known_part(value: Any) -> Any:
    """`value`, with UNKNOWN in place of the parts whose classes could run code when shown."""
    if is_plain(value):
        return value
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: _known_part(item) for key, item in value.items()}
    if type(value) is list:
        return [_known_part(item) for item in value]
    return UNKNOWN
