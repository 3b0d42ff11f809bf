"""The sending side of a compiled run: its calls, and the texts that its own steps make."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from langchain_weftline.lower.choices import choices_of
from langchain_weftline.lower.graph import Draft, Lowered, finish, raw_calls, with_texts
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.maps import EachDraft
from langchain_weftline.lower.program import Event, Job, Lost, Outcome, Program
from langchain_weftline.lower.symbols import Prompt, Ref
from langchain_weftline.model.forms import Form
from langchain_weftline.model.patience import Deadlines
from langchain_weftline.run.callbacks import Telling
from weftline.adapters import Feed, Promises, Result
from weftline.adapters.promises import fail, keep, own_inputs
from weftline.contract.protocol import Call
from weftline.errors import AlreadySet
from weftline.sdk.http import MAX_RETRIES
from weftline.watching import Value

Message = Event | tuple[Job, Outcome]
OnMessage = Callable[[Message], None]


class Submits:
    """The submits of one run. `tell` is called with what the server sends, from any thread."""

    def __init__(
        self, lowering: Lowering, program: Program, telling: Telling, *, graph: bool, name: str
    ) -> None:
        self._graph = graph  # whether the last submit asks for the session's graph
        self._calls = lowering.calls
        self._searches = lowering.searches
        self._program = program
        self._telling = telling
        self._told_of: tuple[str, ...] = ()  # variables that callbacks need
        self._checked: Mapping[str, Form] = {}  # of the last submit
        self._watched: set[str] = set()
        self._promises = Promises()
        self._deadlines = Deadlines()
        self._name = name
        self.feed: Feed | None = None

    @property
    def is_due(self) -> bool:
        """Whether there are calls to submit, or variables to watch."""
        return bool(self._calls.drafts) or not self._watched >= set(self._program.wanted())

    def submit(self, tell: OnMessage) -> None:
        """Submit the calls found so far, and watch the variables that parts of the chain need."""
        drafts, self._calls.drafts = self._calls.drafts, []
        drafts = self._with_texts(drafts)
        self._note_reads(drafts)
        forms = self._forms(drafts)
        needed = dict.fromkeys([*self._program.wanted(), *self._heard(drafts), *forms])
        wanted = [name for name in needed if self._is_to_watch(name)]
        if drafts and not wanted:
            wanted = [draft.var for draft in drafts]
        self._program.forms |= forms
        self._send(raw_calls(drafts), wanted, tell)

    def rest(self, outcome: Outcome) -> Lowered:
        """The calls that are not submitted yet, and the chain's result."""
        drafts = self._with_texts(self._calls.drafts)
        self._note_reads(drafts)
        # What a step of the server reads stays raw, as it is for a step of the client.
        reads = (name for step in self._searches.drafts for name in step.reads)
        wanted = [*self._program.wanted(), *reads]
        return finish(drafts, outcome.get(), self._calls.server, self._client_reads, wanted)

    def _note_reads(self, drafts: Sequence[Draft]) -> None:
        """Note what depends on objects, so that it fails with an object that is not valid."""
        found: dict[str, Sequence[Ref | str]] = {}
        for draft in drafts:
            reads: list[Ref | str] = [hole.ref for hole in Prompt(draft.turns).holes()]
            reads += [guard.on for guard in self._calls.asked[draft.var].guards]
            found[draft.var] = reads
        found |= {step.var: step.reads for step in self._searches.drafts}
        for name, read in found.items():
            error = self._program.readers.add(name, read)
            if error is not None:
                self._program.told(Lost(name, error))

    def last(self, lowered: Lowered, tell: OnMessage, *, parts: bool = False) -> None:
        """Submit the remaining calls, and watch the remaining variables of the result."""
        wanted = self._program.wanted()
        needed = dict.fromkeys([*lowered.variables(), *self._told_of, *wanted, *self._checked])
        watch = [name for name in needed if self._is_to_watch(name)]
        if lowered.calls or watch:
            self._send(lowered.calls, watch, tell, parts=parts, graph=self._graph, close=True)

    def streamed(self, lowered: Lowered, tell: OnMessage) -> Result | None:
        """Submit the calls of a result that is streamed. None where it is not one text."""
        final = lowered.streamable()
        if final is None or final.var in self._program.known:
            return None
        self.last(lowered, tell, parts=True)
        assert self.feed is not None, "an unknown variable is watched"
        return self.feed.results[final.var]

    def keep(self, tell: OnMessage) -> None:
        """Send the texts of the client's steps that submitted calls wait for."""
        known = self._program.known
        for name in self._promises.due(known):
            assert self.feed is not None, "a submitted call waits for the text"
            event = known[name]
            if isinstance(event, Lost):
                fail(self.feed, name, event.error)
                self._lose(name, event.error, self._program.told)
            elif isinstance(event, Value):
                keep(self.feed, name, event.value).add_done_callback(self._kept(name, tell))

    def _kept(self, name: str, tell: OnMessage) -> Callable[[Future[None]], None]:
        """The function to call when the server has responded: it reports a refused text."""

        def answered(keeping: Future[None]) -> None:
            error = None if keeping.cancelled() else keeping.exception()
            # If the response was lost and the text sent again, the text is already set.
            if error is not None and not isinstance(error, AlreadySet):
                self._lose(name, error, tell)

        return answered

    def _lose(self, name: str, error: BaseException, tell: Callable[[Event], None]) -> None:
        for reader in self._promises.readers(name):
            tell(Lost(reader, error))

    def _client_reads(self, drafts: Sequence[Draft]) -> tuple[str, ...]:
        """The answers of `drafts`, the last submit, that the client itself reads as they are."""
        self._checked = self._forms(drafts)
        self._program.forms |= self._checked
        return (*self._heard(drafts), *self._checked)

    def _forms(self, drafts: Sequence[Draft]) -> dict[str, Form]:
        """The forms of answers that were asked for. The client checks these answers."""
        forms = {draft.var: draft.options.form for draft in drafts}
        return {name: form for name, form in forms.items() if form is not None}

    def _heard(self, drafts: Sequence[Draft]) -> tuple[str, ...]:
        """The variables to watch, so that callbacks can be told of `drafts`, the next submit."""
        heard = self._telling.add(drafts, self._calls.asked)
        self._told_of = (*heard, *self._telling.reads())
        return self._told_of

    def _with_texts(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Drafts with the texts of the client's steps that have run."""
        texts = self._program.texts()
        return [with_texts(draft, texts) for draft in drafts] if texts else list(drafts)

    def _is_to_watch(self, name: str) -> bool:
        known = name in self._program.known or name in self._watched
        return not known and not self._program.is_own(name)

    def _send(
        self, calls: Sequence[Call], watch: Sequence[str], tell: OnMessage, **how: bool
    ) -> None:
        self._watched.update(watch)
        if self.feed is None:
            server = self._calls.server or self._searches.server
            assert server is not None, "a variable has a call or a search, which has a server"
            self.feed = Feed(server, tell, run_name=self._name)
        own = [name for name in own_inputs(calls) if self._program.is_own(name)]
        made = self._searches.taken()
        server_steps = [step for draft in made for step in draft.steps()]
        steps = [
            *server_steps,
            *self._promises.owe(calls, own, self._program.origin, server_steps),
        ]
        asked_all, now = self._calls.asked, time.monotonic()
        patience = {name: asked.model.patience for name, asked in asked_all.items()}
        for choice in choices_of(made).values():
            self._deadlines.wait(choice.var, choice.reads)
        for name, asked in asked_all.items():
            if asked.guards:
                self._deadlines.wait(name, [guard.on for guard in asked.guards])
        self._deadlines.submitted(calls, patience, now, later=own)
        bodies = [draft for draft in made if isinstance(draft, EachDraft)]
        for body in bodies:
            self._deadlines.wait(body.item, body.reads)
            self._deadlines.wait(body.var, [body.last])
            self._deadlines.submitted(body.calls, patience, now)
        if bodies:  # what reads their lists
            self._deadlines.submitted(calls, patience, now, later=own)
        all_calls = [*calls, *(call for body in bodies for call in body.calls)]
        outputs = [p.semantic_var_id for call in all_calls for p in call.placeholders]
        retries = [patience[name].retries for name in outputs if name in patience]
        self.feed.send(
            calls,
            watch,
            steps=steps,
            max_retries=max(retries, default=MAX_RETRIES),
            within=self._deadlines.left(watch, now),
            **how,
        )
