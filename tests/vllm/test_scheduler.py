"""Our scheduler in a real vLLM: the order of what waits, kept contexts, refused versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.contract.target import Heard, Target
from tests.vllm.conftest import BLOCK, FEW_BLOCKS
from weftline_engine import api
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine
from weftline_engine.remote.vllm.versions import refusal
from weftline_engine.remote.vllm.vllm_settings import SchedulerChoice

# The first test waits for vLLM, which loads for a minute or more.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


def fill(target: Target, name: str, first: int, tokens: int) -> api.Op:
    """A fill of `tokens` tokens that no other prompt begins with."""
    prompt = (first, *range(1000, 1000 + tokens - 1))
    return replace(
        target.op(target.questions[0]),
        id=name,
        context=name,
        kind=api.Kind.FILL,
        tokens=prompt,
        sampling=None,
    )


async def finish(target: Target, op: api.Op) -> api.Finished:
    """Run one op, and leave its context."""
    target.engine.submit(op)
    heard = await target.end(op.id)
    assert heard.finished is not None, heard.failed
    return heard.finished


async def test_hints_change_the_order_of_what_waits(scheduled: Target) -> None:
    """Four calls run. Of two that wait, the later one goes first: its turn is earlier.

    This becomes known only after both were sent.
    """
    question = scheduled.questions[0]
    long = [scheduled.op(question, name=f"long{i}", max_tokens=96 + i) for i in range(3)]
    ops = [*long, scheduled.op(question, name="short", max_tokens=16)]
    much = api.Hints(turn=time.monotonic() + 60.0)
    for one in ("first", "second"):
        hints = replace(much, application=one)
        ops.append(replace(scheduled.op(question, name=one), hints=hints))
    for op in ops:
        scheduled.engine.submit(op)
    little = api.Hints(application="second", turn=much.turn - 50.0)
    scheduled.engine.update("second", little)
    heard = {op.id: await scheduled.end(op.id) for op in ops}
    first, second = heard["first"].finished, heard["second"].finished
    assert first is not None and second is not None
    assert second.usage.filled < first.usage.filled


async def test_a_kept_context_outlives_others(scheduled: Target) -> None:
    """Two contexts of the same size; others then need the whole pool. The one that the server keeps
    is found again, and the other is not."""
    size = 20 * BLOCK
    kept, left = (fill(scheduled, name, 7 + i, size) for i, name in enumerate(("kept", "left")))
    await finish(scheduled, kept)
    scheduled.engine.retain("kept", api.Retention.KEEP)
    await finish(scheduled, left)
    for i in range(FEW_BLOCKS // 20):
        await finish(scheduled, fill(scheduled, f"other{i}", 100 + i, size))
    found = []
    for one in (kept, left):
        again = replace(one, id=f"{one.id} again", context=f"{one.id} again")
        found.append((await finish(scheduled, again)).usage.cached_tokens)
    for context in ("kept", "left", "kept again", "left again"):
        scheduled.engine.free(context)
    assert found == [size - BLOCK, 0]  # vLLM always computes the last token, with its block


async def test_what_is_evicted_is_reported(scheduled: Target) -> None:
    """vLLM's KV events say that the whole blocks of a context are there, and then that others have
    taken them."""
    size = 20 * BLOCK
    await finish(scheduled, fill(scheduled, "seen", 400, size))

    def told(tokens: int) -> Callable[[Heard], bool]:
        def is_last(heard: Heard) -> bool:
            moved = [one for one in heard.events if isinstance(one, api.ContextMoved)]
            return bool(moved) and moved[-1].tokens == tokens

        return is_last

    await scheduled.until("seen", told(size))
    scheduled.engine.free("seen")
    for i in range(FEW_BLOCKS // 20 + 1):
        await finish(scheduled, fill(scheduled, f"taker{i}", 500 + i, size))
        scheduled.engine.free(f"taker{i}")
    heard = await scheduled.until("seen", told(0))
    last = [one for one in heard.events if isinstance(one, api.ContextMoved)][-1]
    assert last.residency is api.Residency.DROPPED


async def test_kept_contexts_give_way(scheduled: Target) -> None:
    """Every block is kept, and the next prompt needs most of them: it runs all the same."""
    size = 20 * BLOCK
    for i in range(FEW_BLOCKS // 20):
        await finish(scheduled, fill(scheduled, f"full{i}", 200 + i, size))
        scheduled.engine.retain(f"full{i}", api.Retention.KEEP)
    await finish(scheduled, fill(scheduled, "next", 300, 31 * BLOCK))
    for i in range(FEW_BLOCKS // 20):
        scheduled.engine.free(f"full{i}")


async def test_an_answer_that_comes_whole_is_the_streamed_one(scheduled: Target) -> None:
    """The same text and counts, in one part without ids, with the phases that vLLM tells; a stop
    string ends it in the same place."""
    question = scheduled.questions[0]
    stop = scheduled.answer(question)[-6:]
    for options in ({"max_tokens": 24, "ignore_eos": True}, {"stop": (stop,)}):
        streamed, whole = (
            replace(scheduled.op(question, **options), hints=api.Hints(unread=unread))
            for unread in (False, True)
        )
        [of_stream], [of_whole] = await scheduled.run(streamed), await scheduled.run(whole)
        assert of_stream.finished is not None and of_whole.finished is not None
        [part] = of_whole.parts
        assert (part.text, part.tokens) == (of_stream.text, ())
        assert of_whole.finished.reason is of_stream.finished.reason
        one, other = of_whole.finished.usage, of_stream.finished.usage
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
        assert one.started < one.filled < of_whole.finished.time


async def test_a_python_without_vllm_is_refused(vllm_config: VLLMConfig) -> None:
    """Our scheduler is demanded, and this interpreter has no vLLM: nothing is started."""
    config = replace(vllm_config, engine_python="python3", vllm_scheduler=SchedulerChoice.WEFTLINE)
    with pytest.raises(api.EngineDied) as error:
        await VLLMEngine(config).start()
    assert str(error.value) == f"the engine did not start: {refusal('')}"
