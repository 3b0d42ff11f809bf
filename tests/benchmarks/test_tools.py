"""The benchmark of tools asks for what its tools and the parser understand."""

from __future__ import annotations

from bench.micro import _some_tools
from bench.micro.tools import Row, cases
from weftline.toolkit import tools_in
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.prompt.tool_parser import Called, Sealed, ToolParser


def test_every_call_is_sealed_and_has_its_tool() -> None:
    """Each of the replies is calls of the benchmark's own tools, and nothing else."""
    names = {found.spec.function.name for found in tools_in(_some_tools)}
    listed = list(cases((0.5, 2.0)))
    assert [case.workload for case in listed][::2] == [
        "CodeGen",
        "Planning",
        "Search",
        "Search, equal",
        "Database",
    ]
    for case in listed:
        parser = ToolParser(ToolFormat.HERMES, names, "k")
        deltas = [*parser.feed(case.reply), *parser.end()]
        called = [one.name for one in deltas if isinstance(one, Called)]
        assert called and set(called) <= names
        assert len([one for one in deltas if isinstance(one, Sealed)]) == len(called)


def test_the_bound_is_what_overlapping_can_gain() -> None:
    """With r = 1 the time can halve; with r = 1/2 or 2 it can fall by a third."""
    [half, one, two] = [case for case in cases((0.5, 1.0, 2.0)) if case.workload == "Planning"]
    for case, decode_s, bound in ((half, 2.0, 0.5), (one, 1.0, 1.0), (two, 0.5, 0.5)):
        row = Row(case, decode_s * case.tool_s + case.tool_s, 1.0)
        assert abs(row.bound - bound) < 1e-9


def test_work_cannot_start_before_its_call_is_written() -> None:
    """Of three searches the first takes as long as the reply. It starts when a third is written, so
    the end is at four thirds. Of 24 lines the last still runs when all are written, or the first
    was waited for."""
    [search] = [case for case in cases((1.0,)) if case.workload == "Search"]
    assert abs(search.least_s(1.44) - 4 / 3 * 1.44) < 1e-9
    assert search.least_s(1000.0) == 1000.0 + 0.02
    found = Row(search, 2 * 1.44, 4 / 3 * 1.44)
    assert abs(found.possible - 0.5) < 1e-9 and abs(found.gain - found.possible) < 1e-9
    [plan] = [case for case in cases((1.0,)) if case.workload == "Planning"]
    assert abs(plan.least_s(plan.tool_s) - 25 / 24 * plan.tool_s) < 1e-9
    assert abs(plan.least_s(24.0) - (24.0 + plan.tool_s / 24)) < 1e-9
    assert abs(plan.least_s(0.24) - (0.01 + plan.tool_s)) < 1e-9
