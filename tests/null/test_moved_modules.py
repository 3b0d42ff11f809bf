"""Old names of weftline's modules in operators' files."""

from __future__ import annotations

import importlib

import pytest

from weftline_server.commands.moved_modules import present_name


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("weftline_engine.tools.interpreter", "weftline_engine.services.tools.interpreter"),
        ("weftline_engine.functions.native:run", "weftline_engine.services.functions.native:run"),
        ("my_tools:price", "my_tools:price"),
        ("my_tools", "my_tools"),
    ],
)
def test_a_module_is_found_by_its_old_name(said: str, found: str) -> None:
    """What docs/tools.md and docs/steps.md said before the modules moved still works."""
    assert present_name(said) == found
    if found.startswith("weftline_engine"):
        importlib.import_module(found.partition(":")[0])
