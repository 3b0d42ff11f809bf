"""Runs Python code that a client sends, as a function of the operator.

`[[function]] call = "weftline_engine.services.functions.native:run"`, with `sandbox = true`.
Without such a table no server runs code of a client. Each run has a process, a /tmp and a namespace
of its own.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

NEEDS_SANDBOX = True  # the code is the client's
NAME = "<code>"
MOST_CHARS = 65_536


def run(code: str, **arguments: Any) -> Any:
    """The result of the last function that the code defines, called with the arguments."""
    if not isinstance(code, str) or len(code) > MOST_CHARS:
        raise ValueError(f"code is a text of at most {MOST_CHARS:,} characters")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, NAME, "exec"), namespace)  # noqa: S102 - in a sandbox
    own = [
        one
        for one in namespace.values()
        if isinstance(one, FunctionType) and one.__code__.co_filename == NAME
    ]
    if not own:
        raise ValueError("the code defines no function: write one with def")
    return own[-1](**arguments)
