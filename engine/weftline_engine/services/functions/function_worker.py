"""The process of a function: a line of JSON with its arguments in, a line with its result out.

What the function prints goes to standard error, so it cannot be taken for a result.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any

MAX_ERROR_CHARS = 4000


def main(target: str, *, in_sandbox: bool = False) -> None:
    """Import the function, say so, and run it for every line of standard input."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        if isinstance(sys.stdout, io.TextIOWrapper):  # a run that is killed has said its lines
            sys.stdout.reconfigure(line_buffering=True)
        module_name, _, name = target.partition(":")
        module = importlib.import_module(module_name)
        if getattr(module, "NEEDS_SANDBOX", False) and not in_sandbox:
            reason = f"{module_name} runs code of clients: set sandbox = true"
            print(json.dumps({"error": reason}), file=out, flush=True)
            return
        function = getattr(module, name)
        print(json.dumps({"ready": True}), file=out, flush=True)
        for line in sys.stdin:
            print(answered(function, json.loads(line)), file=out, flush=True)


def answered(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    try:
        value = function(**arguments)
        if value is None:
            raise ValueError("it returned None: return a JSON value")
        return json.dumps({"value": value}, allow_nan=False)
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]})


if __name__ == "__main__":
    main(sys.argv[1])
