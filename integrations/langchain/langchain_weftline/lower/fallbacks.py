"""The steps that choose by a value or a failure: routers, retries and fallbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableWithFallbacks
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.runnables.router import RouterRunnable

from langchain_weftline.lower.chain_steps import ChainStep, Handler, Lowerer
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

    def _router(self, step: ChainStep, value: Any) -> Any:
        """RouterRunnable: the runnable of the value's key, on the value's input."""
        value = self._lowering.opened(step, value)
        if not isinstance(value, dict) or not {"key", "input"} <= value.keys():
            return self._lowering.run(step, value, "it does not get a key and an input")
        key = value["key"]
        if is_symbolic(key):
            return self._lowering.unknown(step, "its key is a value that the server makes")
        if isinstance(key, Unknown) or key not in step.runnable.runnables:
            return self._lowering.run(step, value, "its key is not known")
        return self._lowering.step(step.of(step.runnable.runnables[key]), value["input"])

    def _fallbacks(self, step: ChainStep, value: Any) -> Any:
        """RunnableWithFallbacks: the first alternative. Another one runs if that fails."""
        chain = step.runnable
        if chain.exception_key is not None:
            return self._lowering.run(step, value, "a fallback is given the exception")
        return self._lowering.step(step.of(chain.runnable), value)

    def _retry(self, step: ChainStep, value: Any) -> Any:
        """RunnableRetry: the first attempt."""
        return self._lowering.binding(step, value)
