"""The steps that choose by a value or a failure: routers, retries and fallbacks.

If the value is in the server, the client fetches the value and decides. The chosen steps are
lowered as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableWithFallbacks
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.runnables.router import RouterRunnable

from langchain_weftline.lower.steps import Fetch, Handler, Lowerer, Step, StepRun, Steps
from langchain_weftline.lower.symbols import Unknown, is_symbolic


class Control:
    """Lowers the steps that choose which step runs next."""

    def __init__(self, lowering: Lowerer) -> None:
        self._lowering = lowering

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {
            RouterRunnable: self._router,
            RunnableWithFallbacks: self._fallbacks,
            RunnableRetry: self._retry,
        }

    def _router(self, step: Step, value: Any) -> Steps:
        """RouterRunnable: the runnable of the value's key, on the value's input."""
        value = yield from self._lowering.opened(value)
        if not isinstance(value, dict) or not {"key", "input"} <= value.keys():
            return (
                yield from self._lowering.run(step, value, "it does not get a key and an input")
            )
        key = value["key"]
        if is_symbolic(key):
            self._lowering.note(step, "its key is a value that the server makes")
            key = yield Fetch(key)
        if isinstance(key, Unknown) or key not in step.runnable.runnables:
            return (yield from self._lowering.run(step, value, "its key is not known"))
        part = step.of(step.runnable.runnables[key])
        return (yield from self._lowering.step(part, value["input"]))

    def _fallbacks(self, step: Step, value: Any) -> Steps:
        """RunnableWithFallbacks. Wait for each alternative in turn, until one does not fail."""
        chain = step.runnable
        if chain.exception_key is not None:
            return (yield from self._lowering.run(step, value, "a fallback is given the exception"))
        first: BaseException | None = None
        for runnable in chain.runnables:
            try:
                part = self._lowering.step(step.of(runnable), value)
                return (yield from self._waited_for(step, part))
            except chain.exceptions_to_handle as error:
                first = first or error
            if is_symbolic(value):
                yield Fetch(value)  # if the input has failed, this step has not
        assert first is not None, "LangChain has no fallbacks without a runnable"
        raise first

    def _retry(self, step: Step, value: Any) -> Steps:
        """RunnableRetry. The first attempt runs in the server, and LangChain runs the others."""
        chain = step.runnable
        try:
            return (yield from self._waited_for(step, self._lowering.binding(step, value)))
        except chain.retry_exception_types:
            if chain.max_attempt_number <= 1:
                raise
        if is_symbolic(value):
            value = yield Fetch(value)
        again = chain.model_copy(update={"max_attempt_number": chain.max_attempt_number - 1})
        return (yield StepRun(again, value, step.config, step.options))

    def _waited_for(self, step: Step, part: Steps) -> Steps:
        """The output of `part`, still as variables, after waiting until it cannot fail."""
        made = yield from part
        if is_symbolic(made):
            self._lowering.note(step, "whether it fails must be known before what follows")
            yield Fetch(made)
        return made
