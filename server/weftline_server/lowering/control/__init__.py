"""Steps that decide what runs: branch, each and loop become primitives whose end grows the graph.

The first primitive of such a step decides. The later ones give the step's values: they come after
the first, and are rewired to what it has decided on.
"""

from __future__ import annotations

from weftline.steps import Branch, Each, Loop
from weftline_server.graph.primitive import Task
from weftline_server.lowering.control.base import ControlBody, Question
from weftline_server.lowering.control.body import LowerStep, resolved
from weftline_server.lowering.control.branch import lower_branch
from weftline_server.lowering.control.each import lower_each
from weftline_server.lowering.control.loop import lower_loop

__all__ = ["Control", "ControlBody", "LowerStep", "Question", "lower_control", "resolved"]

Control = Branch | Each | Loop


def lower_control(step: Control, id: str, lower: LowerStep) -> Task:
    """The task of a step that decides; `lower` lowers the steps of its body.

    Raises InvalidRequest and the errors of the graph, for the body, too.
    """
    match step:
        case Branch():
            return lower_branch(step, id)
        case Each():
            return lower_each(step, id, lower)
        case Loop():
            return lower_loop(step, id, lower)
