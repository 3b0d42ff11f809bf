"""The tasks of a submit, with the models, engines and stores that its calls and steps mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from weftline.errors import WeftlineError
from weftline.protocol import Call, Submit
from weftline.steps import Each, Loop, Step
from weftline_server.graph.primitive import Task
from weftline_server.lowering.call import lower_call
from weftline_server.lowering.control import resolved
from weftline_server.lowering.control.body import resource_of
from weftline_server.lowering.provenance import Sources
from weftline_server.lowering.step import NO_ENGINE, lower_step
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.schedule.engines.member import efficient_batch
from weftline_server.session.session import Session


def lowered(session: Session, submit: Submit, dispatcher: Dispatcher) -> Iterator[Task]:
    """The tasks of all calls and steps, one after the other.

    Raises UnknownModel, UnknownStore and what lowering does, with the step's name. The model is
    decided here, so that the graph names it and equal prompts hash alike.
    """
    sources = Sources(session)

    def named(call: Call) -> Call:
        return replace(sources.verified(call), model=dispatcher.model(call.model))

    resource = partial(_resource, dispatcher)

    def step_of(step: Step) -> Task:
        if isinstance(step, Each | Loop):
            step = replace(step, body=resolved(step.body, named, resource))
        found = resource(step)
        batch = efficient_batch(dispatcher.members, step.kind, found)
        return replace(lower_step(step, found, batch=batch), step=step)

    for call in submit.calls:
        yield lower_call(sources.verified(call), dispatcher.model(call.model))
    for step in submit.steps:
        try:
            yield step_of(step)
        except WeftlineError as error:
            raise error.of_call(step.name or step.out or step.kind) from None


def _resource(dispatcher: Dispatcher, step: Step) -> str:
    """The name of what runs a step, "" for the server. Raises UnknownModel, UnknownStore."""
    if step.kind in NO_ENGINE:
        return ""
    return dispatcher.resource(step.kind, resource_of(step) or None)
