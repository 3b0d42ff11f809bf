"""The bookkeeping that engines share, without a model: verbs in, plans and events out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_engine import api
from weftline_engine.bookkeeping.book import Book
from weftline_engine.bookkeeping.kv import contexts as kv_contexts
from weftline_engine.bookkeeping.kv import extents
from weftline_engine.bookkeeping.op_checks import EngineLimits
from weftline_engine.bookkeeping.op_table import Backend
from weftline_engine.bookkeeping.output import Sampled
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.pretend.simulation import Words

SIZE = 4


class Blocks(Backend):
    """A backend that counts the ops it knows and refuses constraints."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def accept(self, op: api.Op) -> None:
        self.known.add(op.id)

    def forget(self, op: str) -> None:
        self.known.remove(op)


@dataclass
class Desk:
    """A book and every event that it has reported. Its output tokens count up from 1."""

    blocks: int = 12
    part_tokens: int = 1
    events: list[api.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = 0.0
        self.backend = Blocks()
        config = SchedulerConfig(blocks=self.blocks, block_size=SIZE, max_running=4, step_tokens=16)
        limits = EngineLimits(context=self.blocks * SIZE, vocabulary=100, eos=(99,))
        self.book = Book(
            config,
            limits,
            Words(),
            self.backend,
            clock=lambda: self.now,
            part_tokens=self.part_tokens,
        )
        self.names: dict[tuple[str, int], api.Op] = {}
        self.tokens: dict[str, list[int]] = {}  # the latest op of each context
        self.told: dict[str, tuple[api.Residency, int]] = {}

    def step(self, *, fails: bool = False) -> list[api.Event]:
        self.now += 0.5
        plan = self.book.plan()
        if fails and plan.chunks:
            self.book.break_off(plan, "it broke")
        else:
            sampling = self.book.apply(plan)
            self.book.record(
                sampling, [[Sampled(live.sequence.output % 3 + 1, {})] for live in sampling]
            )
        events = self.book.end_step(plan)
        for event in events:
            if isinstance(event, api.ContextMoved):
                self.told[event.context] = (event.residency, event.tokens)
        self.events += events
        return events

    def run(self, *ops: api.Op) -> list[api.Event]:
        for op in ops:
            self.book.submit(op)
        before = len(self.events)
        for _ in range(500):
            if not self.book.busy:
                break
            self.step()
        return self.events[before:]

    def of(self, op: str) -> list[str]:
        return [type(event).__name__ for event in self.events if event.op == op]


def generate(name: str, tokens: Sequence[int], **options: Any) -> api.Op:
    words = ("parent", "salt", "open", "attempt", "context", "kind")
    own = {word: options.pop(word) for word in words if word in options}
    sampling = api.SamplingParams(**{"max_tokens": 3, **options})
    made = {"kind": api.Kind.GENERATE, "context": name, **own}
    return api.Op(id=name, tokens=tuple(tokens), sampling=sampling, **made)


def fill(name: str, tokens: Sequence[int], **options: Any) -> api.Op:
    made = {"context": name, **options}
    return api.Op(id=name, kind=api.Kind.FILL, tokens=tuple(tokens), **made)


def test_an_op_reports_its_acceptance_its_output_and_its_end() -> None:
    """Its events have no gap in their numbers, and its context is reported with the computed
    tokens."""
    desk = Desk()
    desk.run(generate("a", range(1, 6)))
    assert desk.of("a") == ["Accepted", "Part", "Part", "Part", "Finished", "ContextMoved"]
    assert [event.sequence for event in desk.events] == [1, 2, 3, 4, 5, 6]
    # The last of the 8 tokens was sampled but not computed.
    assert desk.told == {"a": (api.Residency.RESIDENT, 7)}
    assert desk.backend.known == set()


def test_parts_hold_as_many_tokens_as_they_should() -> None:
    """Five tokens in parts of two; the last part has the rest."""
    desk = Desk(part_tokens=2)
    desk.run(generate("a", [1, 2], max_tokens=5))
    parts = [event for event in desk.events if isinstance(event, api.Part)]
    assert [(part.offset, part.tokens) for part in parts] == [(0, (1, 2)), (2, (3, 1)), (4, (2,))]
    assert "".join(part.text for part in parts) == "w1 w2 w3 w1 w2 "


def test_a_child_of_an_open_parent_is_fed_while_it_waits() -> None:
    """It has two tokens of its own, gets two more, and continues where its parent ended."""
    desk = Desk()
    desk.book.submit(fill("parent", [1, 2, 3], open=True))
    desk.book.submit(generate("child", [4, 5], parent="parent", open=True))
    desk.step()
    desk.book.feed("child", 2, (6, 7), True)
    desk.book.feed("parent", 3, (8, 9), True)
    desk.run()
    usage = {e.op: e.usage for e in desk.events if isinstance(e, api.Finished)}
    assert (usage["child"].prompt_tokens, usage["child"].cached_tokens) == (9, 5)


def test_a_replaced_attempt_leaves_no_child_waiting() -> None:
    """The new attempt is refused, so a child of the old attempt's context fails."""
    desk = Desk()
    desk.run(fill("other", [5, 6]))
    desk.book.submit(generate("a", [1, 2], max_tokens=20))
    desk.book.submit(generate("child", [3], parent="a"))
    desk.book.submit(generate("a", [1, 2], attempt=1, context="other"))
    desk.run()
    assert desk.of("child") == ["Accepted", "Failed"]
    assert len(desk.book.ops) == 0 and desk.backend.known == set()


def test_an_unknown_kind_is_refused() -> None:
    """The message names the kinds that the engine runs."""
    desk = Desk()
    desk.run(replace(fill("a", [1]), kind="embed"))
    (failed,) = desk.events
    assert isinstance(failed, api.Failed) and failed.error == "InvalidRequest"
    assert failed.message == "this engine runs no ops of kind embed, only fill, generate"


def test_a_cancelled_op_reports_the_whole_blocks_that_stay() -> None:
    """Its full blocks stay in the cache, and the next op with the same prefix reuses them."""
    desk = Desk()
    desk.book.submit(generate("a", range(1, 8), max_tokens=20))
    desk.step()
    desk.book.cancel("a")
    desk.step()
    assert desk.of("a") == ["Accepted", "Part", "Failed", "ContextMoved"]
    assert desk.told == {"a": (api.Residency.RESIDENT, 4)}
    desk.book.submit(generate("next", [*range(1, 5), 50]))
    assert next(e.usage for e in desk.run() if isinstance(e, api.Finished)).cached_tokens == 4


def test_a_freed_context_is_reported_until_it_is_gone() -> None:
    """Its last block goes first, block by block, while other ops need the room."""
    desk = Desk(blocks=4)
    desk.run(fill("a", range(1, 15)))
    desk.book.free("a")
    assert [e for e in desk.run() if isinstance(e, api.ContextMoved)] == []
    said = []
    for number, count in enumerate((4, 8, 16)):
        desk.run(fill(f"b{number}", [20 + number] * count))
        desk.book.free(f"b{number}")
        said.append(desk.told["a"])
    resident, dropped = api.Residency.RESIDENT, api.Residency.DROPPED
    assert said == [(resident, 12), (resident, 4), (dropped, 0)]


def test_a_context_in_host_memory_is_reported_there() -> None:
    """It is reported as on the host until it is copied back."""
    desk = Desk(blocks=4)
    desk.run(fill("a", range(1, 10)))
    desk.book.retain("a", api.Retention.SWAP)
    desk.run()
    assert desk.told["a"] == (api.Residency.HOST, 9)
    desk.run(fill("b", [50] * 16))
    assert desk.told["a"] == (api.Residency.HOST, 9)
    desk.book.free("b")
    desk.book.retain("a", api.Retention.KEEP)
    desk.run()
    assert desk.told["a"] == (api.Residency.RESIDENT, 9)
    desk.book.retain("a", api.Retention.SWAP)
    desk.run(fill("c", [60] * 16))
    desk.book.free("a")
    desk.run()
    assert desk.told["a"] == (api.Residency.DROPPED, 0)


class FullMemory(Blocks):
    """A backend that has no memory for copies while `full`."""

    def __init__(self) -> None:
        super().__init__()
        self.full = True

    def save(self, blocks: Sequence[int]) -> object | None:
        return None if self.full else list(blocks)

    def restore(self, saved: object, pairs: Sequence[tuple[int, int]]) -> bool:
        return not self.full


def test_without_memory_for_a_copy_a_context_stays_where_it_is() -> None:
    """It can be evicted then. A copy that cannot come back stays in host memory and takes no block;
    it comes back once there is room."""
    desk = Desk(blocks=4)
    memory = desk.backend = FullMemory()
    desk.book.contexts._storage = memory
    desk.run(fill("a", range(1, 10)))
    desk.book.retain("a", api.Retention.SWAP)
    desk.run()
    assert desk.told["a"] == (api.Residency.RESIDENT, 9)
    assert desk.book.contexts.named["a"].held == []
    memory.full = False
    desk.book.retain("a", api.Retention.KEEP)
    desk.book.retain("a", api.Retention.SWAP)
    desk.run(fill("b", [50] * 16))
    desk.book.free("b")
    assert desk.told["a"] == (api.Residency.HOST, 9)
    memory.full = True
    available = desk.book.scheduler.tree.available
    desk.book.retain("a", api.Retention.KEEP)
    desk.run()
    assert desk.told["a"] == (api.Residency.HOST, 9)
    assert desk.book.scheduler.tree.available == available
    memory.full = False
    desk.book.retain("a", api.Retention.KEEP)
    desk.run()
    assert desk.told["a"] == (api.Residency.RESIDENT, 9)


def test_released_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three released names of one prompt are kept. The oldest are reported as dropped."""
    monkeypatch.setattr(kv_contexts, "MOST_RELEASED", 3)
    desk = Desk()
    for number in range(5):
        desk.run(fill(f"a{number}", [1, 2, 3, 4]))
        desk.book.free(f"a{number}")
    desk.run()
    assert [desk.told[f"a{number}"][1] for number in range(5)] == [0, 0, 4, 4, 4]


def test_one_prefix_has_few_released_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five contexts lose their ends and keep one common block. Only two of their names are kept."""
    monkeypatch.setattr(extents, "MOST_PER_NODE", 2)
    desk = Desk(blocks=6)
    for number in range(5):
        desk.run(fill(f"a{number}", [1, 2, 3, 4, 10 + number]))
        desk.book.free(f"a{number}")
    desk.run(fill("big", [50] * 20))
    assert sorted(told[1] for name, told in desk.told.items() if name != "big") == [0, 0, 0, 4, 4]


def test_an_output_that_calls_a_tool_pauses() -> None:
    """Its text is the same and its context stays. An op with only the new tokens continues it."""
    desk = Desk()
    plain = desk.run(generate("plain", [1, 2], max_tokens=9, stop=("w3",)))
    paused = desk.run(generate("tool", [1, 2], max_tokens=9, stop=("w3",), pause_on=("w9", "w2")))
    texts = ["".join(e.text for e in said if isinstance(e, api.Part)) for said in (plain, paused)]
    assert texts == ["w1 w2 ", "w1 w2 "]
    (end,) = (event for event in paused if isinstance(event, api.Paused))
    assert (end.reason, end.usage.output_tokens) == ("w2", 3)
    assert desk.told["tool"] == (api.Residency.RESIDENT, 4)
    desk.book.update("tool", api.Hints(expected_pause=2.0))
    ended = desk.run(generate("next", [7, 8], parent="tool"))
    (finished,) = (event for event in ended if isinstance(event, api.Finished))
    assert (finished.usage.prompt_tokens, finished.usage.cached_tokens) == (7, 4)


def test_an_output_that_was_cut_off_does_not_pause() -> None:
    """At max_tokens the op ends with LENGTH, although its text contains `pause_on`."""
    desk = Desk()
    said = desk.run(generate("a", [1, 2], max_tokens=2, pause_on=("w2",)))
    assert [e.reason for e in said if isinstance(e, api.Finished)] == [api.FinishReason.LENGTH]


def probe(desk: Desk, tokens: Sequence[int], salt: str) -> int:
    """Count the leading tokens that the tree holds: whole blocks, and the rest if one tree node has
    it.
    """
    tree = desk.book.scheduler.tree
    node, found = tree.root(salt), 0
    while found < len(tokens):
        part = tuple(tokens[found : found + SIZE])
        child = tree.find(node, part)
        if child is None:
            break
        node, found = child, found + len(part)
    return found


def check_reports(desk: Desk) -> None:
    """Check that every reported context whose name is alive is as it was last reported."""
    kept = desk.book.contexts
    alive = {one.id: one for one in (*kept._released.values(), *kept.named.values()) if one.told}
    for name, context in alive.items():
        residency, tokens = desk.told[name]
        assert context.told == (residency, tokens)
        if residency is not api.Residency.HOST:
            computed = context.tokens[: context.computed]
            assert tokens == probe(desk, computed, context.salt), name
            assert (residency is api.Residency.DROPPED) == (tokens == 0)
    gone = {name: told for name, told in desk.told.items() if name not in alive}
    assert set(gone.values()) <= {(api.Residency.DROPPED, 0)}


VERBS = ("fill", "fill", "generate", "step", "step", "run", "free", "free", "retain", "cancel")
letters = st.lists(st.integers(1, 2), min_size=1, max_size=20)


def act(desk: Desk, data: st.DataObject, number: int) -> None:
    """Do one verb, or a few steps."""
    named: Mapping[str, object] = desk.book.contexts.named
    ready = sorted(name for name in named if desk.book.contexts.named[name].ready)
    match data.draw(st.sampled_from((*VERBS, "fail"))):
        case "fill" | "generate" as kind:
            make = fill if kind == "fill" else generate
            parent = data.draw(st.sampled_from([None, None, *ready]))
            salt = data.draw(st.sampled_from(["", "", "tenant"]))
            if parent is not None:
                salt = desk.book.contexts.named[parent].salt
            name = data.draw(st.sampled_from([f"op{number}", "again"]))
            desk.book.submit(make(name, data.draw(letters), parent=parent, salt=salt))
        case "run":
            desk.run()
        case "free" if named:
            desk.book.free(data.draw(st.sampled_from(sorted(named))))
        case "retain" if ready:
            retention = data.draw(st.sampled_from(list(api.Retention)))
            desk.book.retain(data.draw(st.sampled_from(ready)), retention)
        case "cancel" if len(desk.book.ops):
            desk.book.cancel(data.draw(st.sampled_from(sorted(one.op.id for one in desk.book.ops))))
        case "fail":
            desk.step(fails=True)
        case _:
            desk.step()


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(6, 12))
def test_reports_equal_what_the_tree_holds(data: st.DataObject, blocks: int) -> None:
    """The reports agree after each step, whatever happens on a pool that is too small."""
    desk = Desk(blocks=blocks)
    for number in range(data.draw(st.integers(1, 30))):
        act(desk, data, number)
        desk.step()
        check_reports(desk)
    for name in list(desk.book.contexts.named):
        desk.book.free(name)
    desk.run()
    while desk.book.scheduler.tree.evict():
        pass
    desk.step()
    assert set(desk.told.values()) <= {(api.Residency.DROPPED, 0)}
    assert not desk.book.contexts._released and desk.backend.known == set()
