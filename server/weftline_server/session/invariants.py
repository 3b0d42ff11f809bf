"""The invariants of a session's execution, for tests and for the hunt after a bug."""

from __future__ import annotations

from weftline_server.session.execution import Execution
from weftline_server.session.readiness import is_behind, ready_reads
from weftline_server.session.task import UNDER_WAY, RunState
from weftline_server.session.variable import WITHOUT_VALUE, VariableState


def validate(execution: Execution) -> None:
    """Assert the invariants that hold between any two events."""
    for id, run in execution.primitives.items():
        primitive = execution.graph.primitives[id]
        settled = {execution.variables[v].settled for v in primitive.writes}
        assert not run.live or True not in settled, f"{id} lives, an output is settled"
        assert run.live or False not in settled, f"{id} is {run.state}, an output is open"
        if run.state is RunState.WAITING and not run.held:
            ready = ready_reads(primitive, execution.variables)
            waits = is_behind(primitive, execution.primitives) or execution.held.is_unsure(id)
            assert ready < len(primitive.reads) or waits, f"{id} is ready"
            assert run.ready == ready or run.looked_at is not primitive
    for task in execution.tasks.values():
        states = {run.state for run in task.primitives}
        ended = states & {RunState.FAILED, RunState.CANCELLED}
        given_up = ended or RunState.SKIPPED in states
        assert not (given_up and any(run.live for run in task.primitives)), "half a task failed"
        assert bool(ended) == (task.error is not None)
    runs = execution.primitives.values()
    assert execution.work_left == sum(run.work for run in runs if run.live)
    assert execution.output_left == sum(run.output for run in runs if run.live)
    assert execution.under_way == sum(run.state in UNDER_WAY for run in runs)
    for var, variable in execution.variables.items():
        if variable.state is VariableState.STREAMING:
            assert execution.graph.producer.get(var), f"variable {var} streams from nowhere"
        assert (variable.error is not None) == (variable.state in WITHOUT_VALUE)
