"""The paths from which a user imports the client, and an error's name in a traceback."""

from __future__ import annotations

import importlib
import pickle

import pytest

import weftline
import weftline.errors
from weftline.contract import errors


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("weftline", weftline.__all__),
        ("weftline.errors", ["InvalidRequest", "Refusal", "WeftlineError"]),
        ("weftline.predicates", ["check", "holds"]),
        ("weftline.toolkit", ["Reject", "StreamingTool", "tool", "tools_in"]),
        ("weftline.watching", ["Due", "Failed", "Graph", "Part", "Submitted", "Value"]),
        ("weftline.local", ["local_server"]),
        ("weftline.delay", ["delayed", "proxy"]),
        ("weftline.timeline", ["bars", "svg", "text"]),
    ],
)
def test_a_public_path_has_its_names(module: str, names: list[str]) -> None:
    """A program imports each name from the path that the docs and the recipes show."""
    found = importlib.import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []
    assert set(names) <= set(found.__all__)


def test_each_error_is_public_under_one_name() -> None:
    """`weftline.errors` has every error of the tree, and a traceback and a pickle name it there."""
    assert {*errors._BY_NAME, "Refusal"} == set(weftline.errors.__all__)
    for one in errors._BY_NAME.values():
        assert getattr(weftline.errors, one.__name__) is one
        assert one.__module__ == "weftline.errors"
    with pytest.raises(weftline.errors.Timeout):
        raise pickle.loads(pickle.dumps(errors.Timeout("late")))  # noqa: S301
