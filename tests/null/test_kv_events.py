"""vLLM's KV events say what its cache holds: read, followed over ZeroMQ, and reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from tests.null.endpoints import Endpoint
from tests.null.test_vllm_engine import answers, generate
from weftline_engine import api
from weftline_engine.api import Residency
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.prefix_cache.event_feed import EventAddresses, EventFeed
from weftline_engine.remote.prefix_cache.held_blocks import HeldBlocks, HeldPart
from weftline_engine.remote.prefix_cache.kv_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    KVEvent,
    TailsStored,
    kv_events,
)
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine

SIZE = 2  # tokens of a block in these tests


def stored(*names: int, parent: int | None = None, tokens: tuple[int, ...], **more: Any) -> Any:
    """A BlockStored as vLLM 0.31 and later write it."""
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*names: int, medium: str = "GPU", **more: Any) -> Any:
    return {"type": "BlockRemoved", "block_hashes": names, "medium": medium, **more}


def payload(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, events, 0])


def test_events_are_read_as_objects_and_as_lists() -> None:
    """vLLM writes objects since 0.30; older ones and SGLang write lists, whose end may be missing.

    Groups of no kind, blocks without their tokens, and kinds of later versions are left out. Of
    states and windows only the names of the blocks count: not all of the tokens have one.
    """
    both = [
        stored(1, 2, tokens=(5, 6, 7, 8), extra_keys=[["salt"], None]),
        ["BlockStored", [b"x"], 2, [9, 9], 2, None],
        stored(3, parent=2, tokens=(1, 1), medium="CPU"),
        removed(1),
        ["BlockRemoved", [b"x"], "CPU"],
        ["AllBlocksCleared"],
        stored(4, tokens=(1, 1), group_idx=1),
        stored(5, tokens=()),
        stored(
            6,
            tokens=(1, 1, 2, 2),
            group_idx=1,
            kv_cache_spec_kind="sliding_window",
            kv_cache_spec_sliding_window=9,
        ),
        stored(7, tokens=(1, 1), group_idx=1, kv_cache_spec_kind="full_attention"),
        stored(8, parent=6, tokens=(1, 1, 2, 2), group_idx=2, kv_cache_spec_kind="mamba"),
        removed(8, group_idx=2),
        {"type": "BlockMoved"},
    ]
    assert kv_events(payload(*both)) == [
        BlocksStored((1, 2), None, ((5, 6), (7, 8)), (("salt",), ())),
        BlocksStored((b"x",), 2, ((9, 9),), ((),)),
        BlocksStored((3,), 2, ((1, 1),), ((),), on_host=True),
        BlocksRemoved((1,)),
        BlocksRemoved((b"x",), on_host=True),
        BlocksCleared(),
        TailsStored((6,), group=1, window=8, size=SIZE),
        BlocksStored((7,), None, ((1, 1),), ((),), group=1),
        TailsStored((8,), group=2),
        BlocksRemoved((8,), group=2),
    ]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b"\xc1", "not MessagePack"),
        (msgspec.msgpack.encode({"events": []}), "a list of a time and a list"),
        (payload("BlockStored"), "an object, or a list"),
        (payload(removed("x")), "numbers or bytes"),  # type: ignore[arg-type]
        (payload(stored(1, tokens=("a", "b"))), "a size and token ids"),  # type: ignore[arg-type]
        (payload(stored(1, tokens=(1, 2)) | {"block_size": 0}), "a size and token ids"),
        (payload(removed(1, group_idx="2")), "numbers its group"),
        (payload(stored(1, tokens=(1, 2), kv_cache_spec_kind="sliding_window")), "the window's"),
        (payload(stored(1, tokens=(1, 2), extra_keys=[])), None),
        (payload(stored(1, tokens=(1, 2), extra_keys=[[], []])), "extra keys for each block"),
    ],
)
def test_what_is_not_such_a_message_is_refused(told: bytes, why: str | None) -> None:
    """Every field is checked before it is used."""
    if why is None:
        assert len(kv_events(told)) == 1
        return
    with pytest.raises(ValueError, match=why):
        kv_events(told)


def states(held: HeldBlocks) -> dict[str, tuple[Residency, int]]:
    told = held.changes(lambda _: False)
    return {context: (found.residency, found.tokens) for context, found in told}


def test_a_context_is_held_up_to_its_first_missing_block() -> None:
    """Blocks are found by the block before them, their tokens and the salt of the first."""
    held = HeldBlocks()
    held.watch("mine", (1, 2, 3, 4, 5, 6, 7), "salt")
    held.watch("plain", (1, 2, 3, 4), None)
    held.apply([BlocksStored((10,), None, ((1, 2),), (("salt",),))])
    assert states(held) == {"mine": (Residency.RESIDENT, 2)}
    held.apply([BlocksStored((11, 12), 10, ((3, 4), (5, 6)), ((), ()))])
    held.apply([BlocksStored((99,), 98, ((3, 4),), ((),))])  # its parent came before we listened
    assert states(held) == {"mine": (Residency.RESIDENT, 6)} and len(held) == 3
    held.apply([BlocksStored((11,), 10, ((3, 4),), ((),), on_host=True), BlocksRemoved((11,))])
    assert states(held) == {"mine": (Residency.HOST, 6)}
    held.apply([BlocksRemoved((11,), on_host=True)])
    assert states(held) == {"mine": (Residency.RESIDENT, 2)}
    held.apply([BlocksStored((11,), 10, ((3, 4),), ((),))])
    assert states(held) == {"mine": (Residency.RESIDENT, 6)}
    held.apply([BlocksCleared()])
    assert states(held) == {"mine": (Residency.DROPPED, 0)} and states(held) == {}


def test_missed_removals_make_room() -> None:
    """A message with removals was lost: the blocks that were stored first are forgotten."""
    held = HeldBlocks(most_blocks=3)
    held.watch("old", (1, 2, 3, 4), None)
    held.apply([BlocksStored((1, 2), None, ((1, 2), (3, 4)), ((), ()))])
    assert states(held) == {"old": (Residency.RESIDENT, 4)}
    held.apply([BlocksStored((3, 4), None, ((5, 5), (6, 6)), ((), ()))])
    assert states(held) == {"old": (Residency.DROPPED, 0)} and len(held) == 3


def places(held: HeldBlocks) -> dict[str, HeldPart]:
    return dict(held.changes(lambda _: False))


def test_a_state_is_needed_where_a_prompt_goes_on() -> None:
    """A context is held up to its last state, whatever blocks are behind it. Two groups of layers
    have states, so one of them is not enough. A state on the host is copied back."""
    held = HeldBlocks(tails=True)
    held.watch("mine", (1, 2, 3, 4, 5, 6, 7), None)
    held.apply([BlocksStored((10, 11, 12), None, ((1, 2), (3, 4), (5, 6)), ((), (), ()), group=1)])
    nothing = HeldPart(Residency.DROPPED, 0, ())
    assert places(held) == {"mine": nothing}
    held.apply([TailsStored((10, 12), group=0)])
    assert places(held) == {"mine": HeldPart(Residency.RESIDENT, 6, (2, 6))}
    held.apply([TailsStored((10,), group=2), TailsStored((12,), 2, on_host=True)])
    assert places(held) == {"mine": HeldPart(Residency.HOST, 6, (2, 6))}
    held.apply([BlocksRemoved((12,), on_host=True, group=2)])
    assert places(held) == {"mine": HeldPart(Residency.RESIDENT, 2, (2,))}
    held.apply([BlocksRemoved((12,), group=5), BlocksRemoved((10,), group=0)])
    assert places(held) == {"mine": nothing}
    held.apply([TailsStored((10, 11), group=0), BlocksRemoved((10,), group=1)])
    assert places(held) == {}, "a state without the blocks before it is none"
    held.apply([BlocksCleared(), BlocksStored((10,), None, ((1, 2),), ((),), group=1)])
    assert places(held) == {} and len(held) == 3


def test_a_model_has_a_state_if_an_event_says_so() -> None:
    """Then what was told of blocks alone is taken back, where no state is."""
    held = HeldBlocks(most_blocks=2)
    held.watch("mine", (1, 2, 3, 4), None)
    held.apply([BlocksStored((10, 11), None, ((1, 2), (3, 4)), ((), ()))])
    assert places(held) == {"mine": HeldPart(Residency.RESIDENT, 4)}
    held.apply([TailsStored((11,), group=1)])
    assert places(held) == {"mine": HeldPart(Residency.RESIDENT, 4, (4,))}
    held.apply([TailsStored((98, 99), group=1)])  # more states than are remembered
    assert places(held) == {"mine": HeldPart(Residency.DROPPED, 0, ())}


def test_a_window_is_needed_where_a_prompt_goes_on() -> None:
    """A group with windows needs the blocks of four tokens before the next one, or all from the
    start. Groups with larger blocks go on behind whole ones of theirs."""
    held = HeldBlocks()
    held.watch("mine", tuple(range(12)), None)
    tokens = tuple((at, at + 1) for at in range(0, 12, 2))
    held.apply([BlocksStored((1, 2, 3, 4, 5, 6), None, tokens, ((),) * 6, group=1)])
    assert places(held) == {"mine": HeldPart(Residency.RESIDENT, 12)}
    held.apply([TailsStored((1, 3, 4, 5), group=0, window=4, size=SIZE)])
    assert places(held) == {"mine": HeldPart(Residency.RESIDENT, 10, (2, 8, 10))}
    held.apply([BlocksRemoved((4,), group=0), TailsStored((4,), 0, True, 4, SIZE)])
    assert places(held) == {"mine": HeldPart(Residency.HOST, 10, (2, 8, 10))}
    held.apply([TailsStored((2, 4), group=2, window=3, size=2 * SIZE)])
    assert places(held) == {"mine": HeldPart(Residency.HOST, 8, (8,))}
    held.apply([BlocksRemoved((2,), group=2)])
    assert places(held) == {}, "it is longer than three tokens before the last place"
    held.apply([BlocksRemoved((4,), group=2)])
    assert places(held) == {"mine": HeldPart(Residency.DROPPED, 0, ())}


Prompt = st.lists(st.sampled_from((1, 2)), max_size=7).map(tuple)
Kinds = st.sampled_from(("store", "host", "remove", "unhost", "clear", "keep", "lose"))
Step = st.tuples(Kinds, Prompt)


@given(
    st.lists(Prompt, max_size=4, unique=True),
    st.lists(Prompt, max_size=3),
    st.lists(Step),
    st.booleans(),
)
def test_what_is_told_is_what_a_cache_has(
    early: list[tuple[int, ...]], late: list[tuple[int, ...]], steps: list[Any], stateful: bool
) -> None:
    """A cache stores, offloads and removes whole prompts' blocks in any order, and keeps and loses
    states. Whoever adds up the changes knows of each context how many tokens from its start are
    somewhere, up to its last state if the model has one."""
    names: dict[tuple[int, ...], int] = {}
    device: set[tuple[int, ...]] = set()
    host: set[tuple[int, ...]] = set()
    kept: set[tuple[int, ...]] = set()
    held = HeldBlocks(tails=stateful)
    known: dict[str, tuple[Residency, int]] = {}
    for prompt in early:
        held.watch(str(prompt), prompt, None)
    for kind, prompt in steps:
        blocks = [prompt[:end] for end in range(SIZE, len(prompt) + 1, SIZE)]
        if kind in ("keep", "lose"):
            held.apply(_kept(kind, blocks[-1:], names, kept) if stateful else [])
            continue
        held.apply(_made(kind, blocks, names, device, host))
        if kind == "clear":
            kept.clear()
        known.update(states(held))
    for prompt in late:
        held.watch(str(prompt), prompt, None)
    known.update(states(held))
    for prompt in (*early, *late):
        found, where = (Residency.DROPPED, 0), Residency.RESIDENT
        for end in range(SIZE, len(prompt) + 1, SIZE):
            if prompt[:end] not in device | host:
                break
            where = where if prompt[:end] in device else Residency.HOST
            if not stateful or prompt[:end] in kept:
                found = where, end
        assert known.get(str(prompt), (Residency.DROPPED, 0)) == found


def _kept(
    kind: str,
    blocks: list[tuple[int, ...]],
    names: dict[tuple[int, ...], int],
    kept: set[tuple[int, ...]],
) -> list[KVEvent]:
    """The events of a state that is kept or lost, which is also noted in the set."""
    ids = tuple(names.setdefault(one, len(names)) for one in blocks)
    if kind == "keep":
        kept |= set(blocks)
        return [TailsStored(ids, group=1)]
    kept -= set(blocks)
    return [BlocksRemoved(ids, group=1)]


def _made(
    kind: str,
    blocks: list[tuple[int, ...]],
    names: dict[tuple[int, ...], int],
    device: set[tuple[int, ...]],
    host: set[tuple[int, ...]],
) -> list[KVEvent]:
    """The events of one step, which is also made in the sets."""
    if kind == "clear":
        device.clear()
        host.clear()
        return [BlocksCleared()]
    on_host = kind in ("host", "unhost")
    place = host if on_host else device
    if kind in ("store", "host"):
        ids = [names.setdefault(one, len(names)) for one in blocks]
        place |= set(blocks)
        own = tuple(one[-SIZE:] for one in blocks)
        return [BlocksStored(tuple(ids), None, own, tuple(() for _ in own), on_host)] if ids else []
    gone = [one for one in blocks[-1:] if one in place]
    place -= set(gone)
    return [BlocksRemoved(tuple(names[one] for one in gone), on_host)]


class Publisher:
    """What vLLM's publisher does: it numbers messages, and sends those again that one asks for."""

    def __init__(self, folder: Path) -> None:
        self.addresses = EventAddresses(f"ipc://{folder / 'events'}", f"ipc://{folder / 'replay'}")
        self._context = zmq.asyncio.Context()
        self._publishes = self._context.socket(zmq.XPUB)
        self._publishes.bind(self.addresses.events)
        self._replays = self._context.socket(zmq.ROUTER)
        self._replays.bind(str(self.addresses.replay))
        self._sent: list[bytes] = []
        self._answering = asyncio.create_task(self._answer())

    async def listened(self) -> None:
        """Wait until somebody listens."""
        assert await self._publishes.recv() == b"\x01"

    async def publish(self, *events: Any, lost: bool = False) -> None:
        self._sent.append(payload(*events))
        if not lost:
            number = (len(self._sent) - 1).to_bytes(8, "big")
            await self._publishes.send_multipart((b"", number, self._sent[-1]))

    async def send(self, *parts: bytes) -> None:
        await self._publishes.send_multipart(parts)

    def start_again(self) -> None:
        self._sent.clear()

    def close(self) -> None:
        self._answering.cancel()
        self._context.destroy(linger=0)

    async def _answer(self) -> None:
        while True:
            who, _, first = await self._replays.recv_multipart()
            for number, sent in enumerate(self._sent):
                if number >= int.from_bytes(first, "big"):
                    message = (who, b"", b"", number.to_bytes(8, "big"), sent)
                    await self._replays.send_multipart(message)
            end = (-1).to_bytes(8, "big", signed=True)
            await self._replays.send_multipart((who, b"", b"", end, b""))


@asynccontextmanager
async def publisher(folder: Path) -> AsyncIterator[Publisher]:
    found = Publisher(folder)
    yield found
    found.close()


async def test_missed_messages_are_asked_for(tmp_path: Path) -> None:
    """Two messages are lost, and one is no such message. All events come in their order. A vLLM
    that starts again begins at zero, with an empty cache."""
    heard: asyncio.Queue[KVEvent] = asyncio.Queue()

    def take(events: list[KVEvent]) -> None:
        for one in events:
            heard.put_nowait(one)

    async with publisher(tmp_path) as vllm:
        feed = EventFeed(vllm.addresses, take)
        await vllm.listened()
        await vllm.publish(removed(0))
        await vllm.send(b"", b"short")
        await vllm.publish(removed(1), lost=True)
        await vllm.publish(removed(2), lost=True)
        await vllm.publish(removed(3), removed(4))
        found = [await heard.get() for _ in range(5)]
        assert found == [BlocksRemoved((name,)) for name in range(5)]
        vllm.start_again()
        await vllm.publish(removed(9))
        assert [await heard.get(), await heard.get()] == [BlocksCleared(), BlocksRemoved((9,))]
        feed.close()


async def test_without_replay_later_messages_count(tmp_path: Path) -> None:
    """Nobody sends the lost message again: the next one is taken."""
    heard: asyncio.Queue[list[KVEvent]] = asyncio.Queue()
    async with publisher(tmp_path) as vllm:
        feed = EventFeed(replace(vllm.addresses, replay=None), heard.put_nowait)
        await vllm.listened()
        await vllm.publish(removed(0), lost=True)
        await vllm.publish(removed(1))
        assert await heard.get() == [BlocksRemoved((1,))]
        feed.close()


@pytest.mark.parametrize("address", ["gpu1:5557", "tcp://a:1,b:2", "http://a:1"])
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not a tcp:// or ipc:// address"):
        EventAddresses.of(address)
    both = EventAddresses("tcp://a:1", "tcp://a:2")
    assert EventAddresses.of("tcp://a:1, tcp://a:2") == both


def test_each_data_parallel_rank_publishes_behind_the_port_of_the_one_before_it() -> None:
    """vLLM counts the ports up. A socket's path has nothing to count."""
    base = EventAddresses("tcp://a:5557", "tcp://a:5600")
    assert base.of_rank(2) == EventAddresses("tcp://a:5559", "tcp://a:5602")
    assert EventAddresses("tcp://a:5557").of_rank(0) == EventAddresses("tcp://a:5557")
    with pytest.raises(ValueError, match="no port for each data-parallel rank"):
        EventAddresses("ipc:///run/events").of_rank(1)


async def test_a_connected_vllm_reports_its_contexts(tmp_path: Path) -> None:
    """The op's context is reported when the op has ended, and again when blocks are evicted."""
    endpoint = Endpoint(answers)
    async with publisher(tmp_path) as vllm, endpoint.on(tmp_path / "e") as socket:
        connect = EndpointConfig(url="http://e/v1", socket=socket)
        config = VLLMConfig(model=tmp_path, connect=connect, kv_events=vllm.addresses)
        engine = VLLMEngine(config)
        description = await engine.start()
        assert api.Capability.REPORTS in description.capabilities
        await vllm.listened()
        op = generate("first")
        assert op.tokens is not None
        first, second = op.tokens[:2], op.tokens[2:4]
        await vllm.publish(stored(7, tokens=first), stored(8, parent=7, tokens=second))
        engine.submit(op)
        moved: list[tuple[str, Residency, int]] = []
        ended = False
        async for events in engine.events():
            for event in events:
                ended |= isinstance(event, api.Finished)
                if isinstance(event, api.ContextMoved):
                    assert ended and event.op == "first"
                    moved.append((event.context, event.residency, event.tokens))
                    if event.tokens == 4:
                        await vllm.publish(removed(8))
            if moved and moved[-1][2] == 2:
                break
        await engine.close()
    resident = ("first", Residency.RESIDENT)
    assert moved[-2:] == [(*resident, 4), (*resident, 2)]
