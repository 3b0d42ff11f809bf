"""The state of a process that an adapter must not change: a framework's functions, and settings.

It is compared by identity in a process of its own, which has made nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

DESCRIPTORS = (classmethod, staticmethod, property)


class ProcessState:
    """What the modules below `prefixes` hold, and the settings of Python, at one time."""

    def __init__(self, *prefixes: str) -> None:
        self._prefixes = prefixes
        self._functions = dict(self._found())
        self._settings = dict(_settings())

    def changed(self) -> list[str]:
        """The names of what is another object or value now, or is gone."""
        functions, settings = dict(self._found()), dict(_settings())
        names = [name for name, it in self._functions.items() if functions.get(name) is not it]
        return names + [name for name, it in self._settings.items() if settings.get(name) != it]

    def _found(self) -> Iterator[tuple[str, Any]]:
        for name, module in list(sys.modules.items()):
            if not name.startswith(self._prefixes):
                continue
            for key, value in list(vars(module).items()):
                if callable(value):
                    yield f"{name}.{key}", value
                if isinstance(value, type) and value.__module__ == name:
                    for member, it in list(vars(value).items()):
                        # Pydantic completes a class when its first object is made.
                        known = callable(it) or isinstance(it, DESCRIPTORS)
                        if known and not member.startswith("__pydantic"):
                            yield f"{name}.{key}.{member}", it


def _settings() -> Iterator[tuple[str, Any]]:
    yield "os.environ", dict(os.environ)
    yield "sys.excepthook", sys.excepthook
    yield "sys.meta_path", list(sys.meta_path)
    yield "threading.excepthook", threading.excepthook
    yield "trace and profile", (sys.gettrace(), sys.getprofile(), threading.gettrace())
    yield "event loop policy", type(asyncio.get_event_loop_policy())
    for name in [None, *logging.root.manager.loggerDict]:
        logger = logging.getLogger(name)
        how = (logger.level, logger.propagate, logger.disabled, logger.handlers, logger.filters)
        yield f"logger {name}", (*how[:3], *map(list, how[3:]))
