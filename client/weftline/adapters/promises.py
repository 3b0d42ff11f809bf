"""The inputs of submitted calls that the client itself must set, because its own steps make them.

Such an input is called owed until the client has set it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from weftline.adapters.clients import CLIENTS
from weftline.adapters.faults import raising_ours
from weftline.adapters.feed import Feed
from weftline.contract.protocol import Call, InOut, SetVariable
from weftline.contract.steps import MAX_NAME, Branch, ClientStep, Step
from weftline.sdk.background import BACKGROUND, awaited
from weftline.sdk.client_steps import outcome_of

log = logging.getLogger(__name__)

Origin = Callable[[str], tuple[str, tuple[str, ...]]]
"""Returns, for a variable, the name of the step that makes it, and the variables that it reads."""


class Promises:
    """The submitted calls and steps, and those of their inputs that the client must set."""

    def __init__(self) -> None:
        self._work: list[tuple[frozenset[str], tuple[str, ...]]] = []  # inputs and outputs
        self._owed: dict[str, None] = {}
        self._declared: set[str] = set()

    def owe(
        self,
        calls: Sequence[Call],
        own: Iterable[str],
        origin: Origin,
        steps: Sequence[Step] = (),
    ) -> list[ClientStep]:
        """Note `calls` and `steps`, which are about to be submitted. `own` are to be set here.

        Returns the client steps to submit with the calls: one for each variable of `own` for which
        no step was submitted before.
        """
        for call in calls:
            inputs = frozenset(_names(call, InOut.IN))
            self._work.append((inputs, _names(call, InOut.OUT)))
        for step in steps:
            sides = step.sides if isinstance(step, Branch) else ()
            self._work.append((frozenset((*step.variables, *sides)), step.outputs))
        new = [name for name in dict.fromkeys(own) if name not in self._declared]
        self._declared.update(new)
        self._owed |= dict.fromkeys(new)
        return [_step(name, *origin(name)) for name in new]

    def due(self, known: Mapping[str, object]) -> list[str]:
        """The owed variables that have a value in `known`. Each one is returned once."""
        due = [name for name in self._owed if name in known]
        for name in due:
            del self._owed[name]
        return due

    def readers(self, name: str) -> Iterator[str]:
        """The variables that depend on `name`: the outputs of calls and steps that read `name`, and
        so on.

        A branch is among them if one of its sides is: the run fails with the step that failed.
        """
        found, count = {name}, 0
        while len(found) > count:
            count = len(found)
            for inputs, outputs in self._work:
                if inputs & found:
                    yield from (one for one in outputs if one not in found)
                    found.update(outputs)


def keep(feed: Feed, variable: str, value: Any) -> Future[None]:
    """Set the output of a step of the client."""
    return BACKGROUND.start(_set(feed, variable, SetVariable(value=value)))


def fail(feed: Feed, variable: str, error: BaseException) -> Future[None]:
    """Fail the output of a step of the client. The calls that read it fail, too."""
    told = BACKGROUND.start(_set(feed, variable, outcome_of(error)))
    told.add_done_callback(_log)
    return told


def _log(told: Future[None]) -> None:
    """Log why the server was not told of a failure. The run raises the failure itself."""
    if not told.cancelled() and (error := told.exception()) is not None:
        log.debug("the server was not told of a failed step: %s", error, exc_info=error)


async def _set(feed: Feed, variable: str, body: SetVariable) -> None:
    with raising_ours():
        client = await CLIENTS.of(feed.server)
        await client.set(await awaited(feed.session), variable, body)


def own_inputs(calls: Iterable[Call]) -> Iterator[str]:
    return (name for call in calls for name in _names(call, InOut.IN))


def _step(out: str, name: str, reads: tuple[str, ...]) -> ClientStep:
    shown = "".join(char if char.isprintable() else " " for char in name)[:MAX_NAME]
    # The adapter does not know what running the step twice would do, so it runs once.
    return ClientStep(name=shown, reads=reads, out=out, effects="once")


def _names(call: Call, side: InOut) -> tuple[str, ...]:
    found = (p.semantic_var_id for p in call.placeholders if p.in_out is side)
    return tuple(name for name in found if name is not None)
