"""A planned graph that was sent ahead, and its answers for the requests equal to its calls."""

from __future__ import annotations

from llama_index.llms.weftline.ahead.plan_calls import Numbering, calls_of
from llama_index.llms.weftline.ahead.request_claims import planned
from llama_index.llms.weftline.plan.answer_symbols import Given, Index
from llama_index.llms.weftline.plan.call_plan import CallPlan
from llama_index.llms.weftline.plan.node_search import NodeHits, NodeSearch, SearchGraph
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.kit import Claims, ReadValue, Result, RunFeed
from weftline.sdk.http import OnGraph
from weftline.watching import Failed
from weftline.watching import Value as ValueEvent


class SubmittedGraph:
    """One graph. Its calls are submitted together, and their values arrive as they become ready.

    The calls join the session of `run`, in which the graph's prompts may hold earlier answers. With
    a `finding` its steps stand before the calls, which may read the hits. `parts` asks for texts as
    they are generated. `on_graph` gets the session's graph when the last value is there.
    """

    def __init__(
        self,
        plan: CallPlan,
        run: SessionRun,
        finding: NodeSearch | None = None,
        *,
        parts: bool = False,
        on_graph: OnGraph | None = None,
    ) -> None:
        self.complete = plan.complete
        self.askings = [plan.llm.asking]
        self._plan = plan
        self._fields = fields = plan.llm.parameters()
        self._parts = parts
        first = run.reserve(len(plan.drafts))
        self._search = None if finding is None else SearchGraph.of(finding, first)
        found = None if self._search is None else self._search.read
        self._numbering = Numbering(first, run, found)
        self._calls = calls_of(plan, fields, self._numbering)
        self.found: NodeHits | None = None
        self._on_graph = on_graph
        self._feed = RunFeed(plan.llm.asking.server, self._note, run.alias)
        self._claims: Claims[str] = Claims([])

    def start(self) -> None:
        """Submit the graph."""
        search = self._search
        self._feed.send(
            self._calls,
            [*self.variables, *([] if search is None else search.watch)],
            steps=() if search is None else search.steps(),
            parts=self._parts,
            graph=self._on_graph is not None,
        )
        self._numbering.run.join(self._feed)
        if self._on_graph is not None:
            self._feed.show_graph(self._on_graph)
        results: dict[Index, ReadValue] = {
            at: self._feed.results[name] for at, name in enumerate(self.variables)
        }
        if search is not None:
            results[Given.HITS] = self._feed.results[search.read]
            self.found = search.found(self._feed.results)
        drafts = range(len(self._plan.drafts))
        self._claims = Claims([planned(self._plan, at, self._fields, results) for at in drafts])

    @property
    def variables(self) -> list[str]:
        """The variables that the calls write, in order."""
        return [self._numbering.variable(index) for index in range(len(self._calls))]

    def _note(self, event: ValueEvent | Failed) -> None:
        """Note an answer, so that later prompts of the run that contain it name its variable."""
        if isinstance(event, ValueEvent) and isinstance(event.value, str):
            self._numbering.run.answered(event.variable, event.value)

    def claim(self, key: str) -> Result | None:
        """The result of the first call with this key that no request has claimed."""
        found = self._claims.claim(key)
        return None if found is None else found.result

    def has(self, key: str) -> bool:
        """Whether it has a call with this key that no request has claimed."""
        return self._claims.has(key)

    @property
    def has_left(self) -> bool:
        """Whether there are calls that no request has claimed."""
        return self._claims.has_left

    def leave(self) -> None:
        """Note that no more requests will come.

        The calls that no request has claimed are cancelled, unless a claimed call still runs.
        """
        if not any(one.is_claimed and one.is_running for one in self._claims.planned):
            self._feed.close()
