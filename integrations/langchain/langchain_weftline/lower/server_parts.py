"""Lowers parts of a chain that run in the server alone: such a part does no harm if its values turn
out needless."""

from __future__ import annotations

import operator
from typing import Any

from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePick

from langchain_weftline.lower.prompts import calls_user_code, render
from langchain_weftline.lower.pure import apply_pure
from langchain_weftline.lower.steps import Fork, Request, StepRun, Steps
from langchain_weftline.lower.symbols import UNKNOWN, CannotCompile, has_unknown, is_symbolic


def quietly(part: Steps) -> Any:
    """The output of `part`. Raises CannotCompile if the client runs or awaits some of it."""
    answer: Any = None
    while True:
        try:
            request = part.send(answer)
            answer = _answer(request)
        except StopIteration as done:
            return done.value
        except CannotCompile:
            raise
        except Exception as error:  # the plain chain raises it, if it comes to this part at all
            raise CannotCompile("part", "it fails for these values") from error


def _answer(request: Request) -> Any:
    match request:
        case Fork(parts):
            return [quietly(part) for part in parts]
        case StepRun(step, value) if not (
            request.options or has_unknown(value) or is_symbolic(value)
        ):
            if (made := made_by(step, value)) is not UNKNOWN:
                return made
    raise CannotCompile("part", "the client runs some of it")


def made_by(step: Any, value: Any) -> Any:
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
