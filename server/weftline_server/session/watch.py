"""The readers of a session's variables, and the work that ends when the last of them leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weftline.contract.errors import Cancelled, NoProducer, UnknownVariable
from weftline_server.graph.growth import TakesItems
from weftline_server.graph.primitive import Flow
from weftline_server.passes.plan import MOST_EDGES
from weftline_server.session import events as ev
from weftline_server.session.execution import Execution
from weftline_server.session.task import UNDER_WAY, RunState, TaskRun
from weftline_server.session.variable import SessionVariable, VariableState

_IN_PARTS = (Flow.STREAM, Flow.ITEMS)


class Watch:
    """Open gets and streams by variable. Only these count as readers."""

    def __init__(self, execution: Execution) -> None:
        self.readers: dict[str, int] = {}
        self._streamed: set[str] = set()  # the variables that a stream was opened for
        self._whole: set[str] = set()  # the variables whose client waits for the whole value
        self._execution = execution

    def check(self, variable: str, wait: bool) -> None:
        """Raise unless `variable` may be waited for: UnknownVariable, NoProducer without `wait`."""
        if wait:
            return
        found = self._execution.variables.get(variable)
        if found is None:
            raise UnknownVariable(f"the session has no variable {variable[:64]!r}", param=variable)
        if found.settled:
            return
        if (empty := self._source(variable)) is not None:
            waits = "" if empty == variable else f", which {variable!r} waits for,"
            raise NoProducer(
                f"variable {empty!r}{waits} has no value and no call that produces it: "
                "set it, submit its call, or get with wait=true",
                param=empty,
            )

    def open(self, event: ev.ReaderOpened) -> list[ev.Action]:
        """Count a reader. With `wait` it may be the first to name its variable."""
        id = event.variable
        self.check(id, event.wait)
        self._execution.variables.setdefault(id, SessionVariable(id))
        was_streamed = not event.streams or self.reads_tokens(id)
        self.readers[id] = self.readers.get(id, 0) + 1
        if event.streams:
            self._streamed.add(id)
        self._execution.planning.asked(id, event.criteria)
        producer = self._execution.graph.producer.get(id)
        if was_streamed or producer is None:
            return []
        if self._execution.primitives[producer].state not in UNDER_WAY:
            return []
        return [ev.Replan((producer,))]  # its engine sends the text in long parts so far

    def close(self, event: ev.ReaderClosed) -> list[ev.Action]:
        """A reader left; if it was the last one and was not served, cancel its work."""
        id = event.variable
        self.readers[id] -= 1
        if not self.readers[id]:
            del self.readers[id]
        if event.served or id in self.readers:
            return []
        return self._cancel_unwatched(id)

    def take_whole(self, variables: Iterable[str]) -> None:
        """A client takes the whole values of `variables`, and will not stream them."""
        self._whole.update(variables)

    def reads_tokens(self, variable: str) -> bool:
        """Whether a reader may use the text of `variable` token by token while it is generated.

        A value that no request asks for yet may be streamed later. A prompt that reads the text is
        filled in long pieces, and needs no single tokens.
        """
        if variable in self._streamed:
            return True
        graph = self._execution.graph
        producer = graph.producer.get(variable)
        if producer is not None and isinstance(graph.primitives[producer].body, TakesItems):
            return True  # the graph grows while it is generated
        consumers = [graph.primitives[id] for id in graph.consumers.get(variable, ())]
        if not consumers:
            return variable not in self.readers and variable not in self._whole
        return any(
            read.flow in _IN_PARTS and not one.traits.has_prompt
            for one in consumers
            if len(one.reads) <= MOST_EDGES  # the passes gave the edges of a longer one no flow
            for read in one.reads
            if read.variable == variable
        )

    def _source(self, variable: str) -> str | None:
        """An empty variable without producer that `variable` is or depends on, if any."""
        graph = self._execution.graph
        seen = {variable}
        waiting = [variable]
        while waiting:
            var = waiting.pop()
            if self._execution.variables[var].state is not VariableState.EMPTY:
                continue
            producer = graph.producer.get(var)
            if producer is None:
                return var
            for read in self._reads(graph.primitives[producer].task):
                if read not in seen:
                    seen.add(read)
                    waiting.append(read)
        return None

    def _reads(self, task: str) -> Iterator[str]:
        """The variables that the task still waits for; a branch that has decided, for one side."""
        graph = self._execution.graph
        if not graph.tasks[task].tolerates:
            yield from graph.tasks[task].reads
            return
        for primitive in graph.tasks[task].primitives:
            yield from (read.variable for read in graph.primitives[primitive.id].reads)

    def _cancel_unwatched(self, variable: str) -> list[ev.Action]:
        """Cancel the work that only the reader of `variable` needed: its ancestry, up to other
        uses.
        """
        execution = self._execution
        actions: list[ev.Action] = []
        waiting = [execution.producer(variable)]
        while waiting:
            task = waiting.pop()
            if task is None or not task.live or task.detached or self._used(task, variable):
                continue
            gone = Cancelled("its last reader went away")
            actions += execution.fail(task, gone, RunState.CANCELLED)
            above = execution.graph.tasks_above(task.task.id)
            waiting.extend(execution.tasks[id] for id in above)
        return actions

    def _used(self, task: TaskRun, besides: str) -> bool:
        """Whether a reader, a live task or a later get may still want an output of `task`."""

        def users(var: str) -> Iterator[bool]:
            consumers = self._execution.graph.consumers.get(var, ())
            tasks = [self._execution.primitives[id].task for id in consumers]
            others = [one for one in tasks if one is not task]
            yield var in self.readers
            yield any(one.live for one in others)
            yield not others and var != besides  # an output that no get has named so far

        return any(used for var in task.task.writes for used in users(var))
