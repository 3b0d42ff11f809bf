"""Runs the parts of a lowering side by side. A program has no I/O, clock or threads.

A part is a generator that yields requests. A step that the client must run becomes a job when its
input is there. A part that needs values of the server waits for them. When no part can continue,
the parts that wait for jobs continue with promises (placeholders for the jobs' outputs), and the
caller submits the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_weftline.lower.checks import Check, Readers
from langchain_weftline.lower.graph import Tree, build, fields_of, tree_of, variables_of
from langchain_weftline.lower.steps import Fetch, Fork, StepRun, Steps
from langchain_weftline.lower.symbols import Local, Make, name_of
from langchain_weftline.model.answers import completion_of, new_variable
from langchain_weftline.model.failures import own_failures
from langchain_weftline.model.forms import Form
from weftline.contract.protocol import Call
from weftline.watching import Failed, Value


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request, a part or a whole chain ended."""

    value: Any = None
    error: BaseException | None = None

    def get(self) -> Any:
        """The value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class Lost:
    """A variable that the client cannot set, because its step or an earlier one raised `error`."""

    variable: str
    error: BaseException


Event = Value | Failed | Lost


@dataclass(eq=False, slots=True)
class ProgramPart:
    """A generator of the lowering. A forked part has its parent and its index among the parts."""

    steps: Steps
    parent: ProgramPart | None = None
    place: int = 0
    ended: list[Outcome | None] = field(default_factory=list)  # of the parts that it forked

    def take(self, place: int, outcome: Outcome) -> Outcome | None:
        """Note that a forked part has ended. Returns the joint outcome after the last one."""
        self.ended[place] = outcome
        done = [end for end in self.ended if end is not None]
        if len(done) < len(self.ended):
            return None
        # As in LangChain's thread pools, all parts run to their end, and the first error is raised.
        failed = next((end for end in done if end.error is not None), None)
        return failed or Outcome([end.value for end in done])


@dataclass(eq=False, slots=True)
class Job:
    """A step that the client has to run, once it has the step's input.

    The outcome goes to `part`. If the part went on with a `promise`, the outcome is kept here.
    """

    run: StepRun
    part: ProgramPart | None
    reads: tuple[str, ...]
    promise: Local | None = None
    outcome: Outcome | None = None
    is_answered_for: bool = False  # a part has received the failure, and handles it


class Program:
    """A running lowering. `known` has the variables that have settled, also the client's own."""

    def __init__(self, root: Steps, mint: Callable[[], str] = new_variable) -> None:
        self._mint = mint
        self._ready: deque[tuple[ProgramPart, Outcome]] = deque([(ProgramPart(root), Outcome())])
        self._waiting: dict[ProgramPart | Job, Tree] = {}
        self._to_run: list[Job] = []
        self._open: dict[Job, None] = {}  # in the order of the chain
        self._promised: dict[str, Job] = {}  # by the promise's variable
        self.known: dict[str, Event] = {}
        # The forms that answers must have. The plain model raises an error for a wrong answer. The
        # server does not: it may repair and parse an answer that was cut off.
        self.forms: dict[str, Form] = {}
        self.readers = Readers()
        self.running = 0
        self.outcome: Outcome | None = None

    def advance(self) -> list[Job]:
        """Run every part as far as it can go. Returns the steps that the client has to run."""
        while self._ready:
            part, outcome = self._ready.popleft()
            try:
                if outcome.error is not None:
                    request = part.steps.throw(outcome.error)
                else:
                    request = part.steps.send(outcome.value)
            except StopIteration as done:
                self._end(part, Outcome(done.value))
            except Exception as error:
                self._end(part, Outcome(error=error))
            else:
                self._take(part, request)
        for job in self._promised.values():
            if job.outcome is not None:
                self._show(job, job.outcome)
        jobs, self._to_run = self._to_run, []
        self.running += len(jobs)
        return jobs

    def _take(self, part: ProgramPart, request: StepRun | Fetch | Fork) -> None:
        match request:
            case StepRun():
                tree = tree_of(request.value)
                job = Job(request, part, variables_of(tree))
                self._open[job] = None
                self._waiting[job] = tree
                self._look(job)
            case Fetch(value):
                self._waiting[part] = tree_of(value)
                self._look(part)
            case Fork(parts):
                part.ended = [None] * len(parts)
                self._ready += [
                    (ProgramPart(steps, part, place), Outcome())
                    for place, steps in enumerate(parts)
                ]
                if not parts:
                    self._ready.append((part, Outcome([])))

    def ran(self, job: Job, outcome: Outcome) -> None:
        """Note that the client has run a step."""
        self.running -= 1
        self._finish(job, outcome)

    def told(self, event: Event) -> None:
        """Note that a variable is ready or has failed."""
        lost = set[str]()
        form = self.forms.get(event.variable)
        if isinstance(event, Value) and form is not None and event.variable not in self.known:
            try:
                form.read(completion_of(event))
            except Exception as error:  # the reader raises it
                event = Lost(event.variable, error)
                lost = self.readers.lose(event.variable, error)
        self.known.setdefault(event.variable, event)
        for waiting in list(self._waiting):
            self._look(waiting)
        if isinstance(event, Lost):
            for name in lost:
                self.told(replace(event, variable=name))

    def promise(self) -> bool:
        """Let the parts that wait for jobs continue with promises. False if there are none."""
        found = [job for job in self._open if job.part is not None and job.run.may_wait]
        for job in found:
            assert job.part is not None, "it was selected by that"
            job.promise = Local(self._mint())
            self._promised[job.promise.var] = job
            self._ready.append((job.part, Outcome(job.promise)))
            job.part = None
        return bool(found)

    @property
    def is_alone(self) -> bool:
        """Whether one step of the client is all that runs now."""
        return self.running == 1 and not self._waiting

    @property
    def can_go_on(self) -> bool:
        """Whether a part can go on without waiting."""
        return bool(self._ready or self._to_run)

    def is_served(self, but: str | None = None) -> bool:
        """Whether every step of the client has run, or cannot run because its input has failed.

        The checks of forms are among these steps, apart from that of the answer `but`.
        """
        return not self._open and self.forms.keys() - {but} <= self.known.keys()

    @property
    def lost(self) -> Outcome | None:
        """The outcome of the first promised step that has failed and whose failure no part handles.

        None while an earlier step still runs, because the plain chain would raise that one's error
        first.
        """
        for job in self._promised.values():  # in the order of the chain
            if job.is_answered_for:
                continue
            if job.outcome is None or job.outcome.error is not None:
                return job.outcome
        return None

    def raised(self, error: BaseException) -> bool:
        """Whether a promised step has raised `error`."""
        ends = (job.outcome for job in self._promised.values())
        return any(end is not None and end.error is error for end in ends)

    def is_own(self, name: str) -> bool:
        """Whether the client itself makes this variable."""
        return name.partition(".")[0] in self._promised

    def texts(self) -> dict[str, Mapping[str, str]]:
        """The texts of steps of the client that have run: sets by variable."""
        sets = {name: event for name, event in self.known.items() if "." in name}
        return {
            name: event.value
            for name, event in sets.items()
            if isinstance(event, Value) and self.is_own(name)
        }

    def origin(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The step that makes one of the client's own variables, and the variables it reads."""
        job = self._promised[name.partition(".")[0]]
        return name_of(job.run.step), tuple(dict.fromkeys(self._reads(job)))

    def _reads(self, job: Job) -> Iterator[str]:
        """The server's variables that a step depends on."""
        for name in job.reads:
            if self.is_own(name):
                yield from self._reads(self._promised[name.partition(".")[0]])
            else:
                yield name

    def wanted(self) -> list[str]:
        """The distinct variables of the server that parts and steps wait for."""
        names = [name for tree in self._waiting.values() for name in variables_of(tree)]
        return [n for n in dict.fromkeys(names) if n not in self.known and not self.is_own(n)]

    def _look(self, waiting: ProgramPart | Job) -> None:
        """Let a part or a step continue if all its variables are ready, or one has failed."""
        tree = self._waiting.get(waiting)
        outcome = None if tree is None else settle(tree, self.known, readers=self.readers)
        if outcome is None:  # it still waits, or another event has let it continue
            return
        del self._waiting[waiting]
        if isinstance(waiting, ProgramPart):
            _answer_for(self._promised.values(), outcome.error)
            self._ready.append((waiting, outcome))
        elif outcome.error is not None:
            self._finish(waiting, outcome)
        else:
            waiting.run = replace(waiting.run, value=outcome.value)
            self._to_run.append(waiting)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        del self._open[job]
        job.outcome = outcome
        if job.part is not None:
            self._ready.append((job.part, outcome))
            return
        assert job.promise is not None, "its part went on with a promise"
        lost = set[str]()
        if outcome.error is not None and isinstance(job.run.step, Check):
            lost = self.readers.fail(job.reads[0], outcome.error)
        self.told(_event(job.promise.var, outcome))
        for name in lost:
            self.told(_event(name, outcome))
        self._show(job, outcome)

    def _show(self, job: Job, outcome: Outcome) -> None:
        """Make the texts of a step's output that stand in prompts."""
        assert job.promise is not None, "only a promise is shown before it is kept"
        shown = job.promise.shown
        for number in range(shown.closed, len(shown.sets)):
            shown.closed += 1
            self.told(_event(f"{job.promise.var}.{number}", _made(shown.sets[number], outcome)))

    def _end(self, part: ProgramPart, outcome: Outcome) -> None:
        if part.parent is None:
            self.outcome = outcome
        elif (all_ended := part.parent.take(part.place, outcome)) is not None:
            self._ready.append((part.parent, all_ended))


def _answer_for(jobs: Iterable[Job], error: BaseException | None) -> None:
    """Note the jobs whose error a part of the program raises."""
    for job in jobs if error is not None else ():
        same = job.outcome is not None and job.outcome.error is error
        job.is_answered_for = job.is_answered_for or same


def _made(texts: Mapping[str, Make], outcome: Outcome) -> Outcome:
    if outcome.error is not None:
        return outcome
    try:
        return Outcome({key: make(outcome.value) for key, make in texts.items()})
    except Exception as error:  # formatting an object calls a method of its class
        return Outcome(error=error)


def _event(variable: str, outcome: Outcome) -> Event:
    if outcome.error is not None:
        return Lost(variable, outcome.error)
    return Value(variable, outcome.value, {})


def settle(
    tree: Tree,
    known: Mapping[str, Event],
    calls: Sequence[Call] = (),
    *,
    streamed: bool = False,
    readers: Readers | None = None,
) -> Outcome | None:
    """The outcome of `tree`, None while it is not known. Failures are LangChain's own exceptions.

    `calls` are the calls whose own transforms may have failed. A field of an object whose check has
    failed, as `readers` know, has that error.
    """
    if readers is not None and (error := readers.error_of(fields_of(tree))) is not None:
        return Outcome(error=error)
    names = variables_of(tree)
    found = [known[name] for name in names if name in known]
    failed = next((event for event in found if isinstance(event, (Failed, Lost))), None)
    if failed is None and len(found) < len(names):
        return None
    values = [event for event in found if isinstance(event, Value)]
    try:
        with own_failures(tree, calls, streamed=streamed):
            if failed is not None:
                raise failed.error
            return Outcome(
                build(
                    tree,
                    {event.variable: event.value for event in values},
                    {event.variable: event for event in values},
                )
            )
    except Exception as error:
        return Outcome(error=error)
