"""The tasks of a submit, with the models, engines and stores that its calls and steps mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from weftline.contract.errors import WeftlineError
from weftline.contract.protocol import Call, SubmitBody
from weftline.contract.steps import Step, StepBase
from weftline_server.graph.primitive import Task, Where
from weftline_server.lowering.control.body import resolved, resource_of
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.prompt import lower_call, with_length
from weftline_server.lowering.provenance_check import Sources
from weftline_server.lowering.sampling_defaults import asked, check_served, is_free
from weftline_server.lowering.step import Resolver, kind_name, repeated_body
from weftline_server.runtime.length_clues import clues
from weftline_server.runtime.prompts import body_of
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.schedule.engines.member import efficient_batch
from weftline_server.schedule.lengths import Clues, Expected, Lengths
from weftline_server.session.session import ServerSession


def tasks_of(
    session: ServerSession, submit: SubmitBody, dispatcher: Dispatcher, salt: str = ""
) -> Iterator[Task]:
    """The tasks of all calls and steps, one after the other.

    Raises UnknownModel, UnknownStore and what lowering does, and InvalidRequest for what the call's
    engine does not serve. An error of a step has its name. One of a call has none, also of a call
    in a step's body or of an agent, because no call has begun: as with a chat, the client may send
    it again. The model is decided here, so that the graph names it and equal prompts hash alike.
    Lengths are foreseen for the tenant's `salt`.
    """
    sources = Sources(session)

    def model_of(call: Call) -> str:
        model = dispatcher.catalogue.model(call.model)
        check_served(call, dispatcher.catalogue.prompter(model).description)
        return model

    def named(call: Call) -> Call:
        return replace(sources.verified(call), model=model_of(call))

    resource = partial(_resource, dispatcher)
    resolver = Resolver(named, resource, lambda: dispatcher.catalogue.tools)

    def step_of(step: Step) -> Task:
        if repeated_body(step) is not None:
            step = resolved(step, resolver, KINDS)
        with nullcontext() if KINDS.of(step).is_call else _naming(step):
            step = KINDS.of(step).resolved(step, resolver)
            found = resource(step)
            batch = efficient_batch(dispatcher.members, kind_name(step), found)
            return replace(KINDS.lower_step(step, found, batch=batch), step=step)

    told: dict[tuple[Clues, int], Expected | None] = {}
    for call in submit.calls:
        task = lower_call(sources.verified(call), model_of(call))
        lengths = dispatcher.lengths
        yield task if lengths is None else _foreseen(task, lengths, salt, told)
    yield from map(step_of, submit.steps)


@contextmanager
def _naming(step: StepBase) -> Iterator[None]:
    """Give the errors of the block the step's name."""
    try:
        yield
    except WeftlineError as error:
        raise error.of_call(step.name or step.out or kind_name(step)) from None


def _foreseen(
    task: Task, lengths: Lengths, salt: str, told_before: dict[tuple[Clues, int], Expected | None]
) -> Task:
    """The task with the work of outputs as long as those of calls that are alike, if known."""
    found = []
    for one in task.primitives:
        output = body_of(one).output
        told = None
        if is_free(output):
            # Sizes to within a factor of two, so that most of 10,000 calls ask for the same.
            known = clues(body_of(one), 1 << (one.work - one.output).bit_length())
            key = known, asked(output)
            if key not in told_before:
                told_before[key] = lengths.expect(salt, *key)
            told = told_before[key]
        found.append(one if told is None else with_length(one, told.likely))
    return replace(task, primitives=tuple(found))


def _resource(dispatcher: Dispatcher, step: StepBase) -> str:
    """The name of what runs a step, "" for the server. Raises UnknownModel, UnknownStore."""
    kind = KINDS.of(step)
    if kind.traits.where is not Where.ENGINE:
        return ""
    with _naming(step):
        return dispatcher.catalogue.resource(
            kind_name(step), kind.engine, resource_of(step) or None
        )
