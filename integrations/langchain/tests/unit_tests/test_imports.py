"""The names and the marker that the package exports."""

from __future__ import annotations

from importlib.resources import files

import langchain_weftline


def test_names_and_types() -> None:
    """The public names, and the marker that makes type checkers read the package."""
    public = {"ChatWeftline", "accelerate", "compile_chain"}
    assert public < set(langchain_weftline.__all__)
    assert files(langchain_weftline).joinpath("py.typed").is_file()
