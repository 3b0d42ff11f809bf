"""What the order of an embedder's batches is worth, in simulated time with MiniLM's costs."""

from __future__ import annotations

from dataclasses import replace

from tests.null.retrieval.timed_embedder import (
    CALLS_S,
    PROFILE,
    by_depth,
    questions_beside_ingest,
)
from weftline_engine import api
from weftline_engine.services.retrieval import descriptions
from weftline_engine.services.retrieval.batching import Share, Slots, Waiting, form
from weftline_engine.services.retrieval.items_host import batches


def test_the_order_of_batches_makes_answers_faster() -> None:
    """A question does not wait for the chunks that were uploaded with it: 1.15 times wanted."""
    assert by_depth(1) > 1.4
    assert by_depth(8) > 1.15


def test_questions_beside_an_ingest() -> None:
    """Answers take little longer beside an ingest of 512 chunks, in the 90th percentile: a question
    waits for the batch that runs, and for no other one.
    """
    found = questions_beside_ingest()
    assert 1.0 < found.p90(CALLS_S) < 1.25
    assert max(found.beside) < 0.30, "one batch, and the question"


def test_a_batch_holds_as_many_tokens_as_are_efficient() -> None:
    """Few long texts, or many short ones. Where the largest measured batch is the fastest, a larger
    one may be faster still, as on a GPU: then the tokens have the usual bound.
    """
    found = replace(descriptions.of_model("m", ("embed",)), batch_profile=PROFILE)
    assert batches(found) == Slots(items=4, tokens=768)
    on_gpu = ((1, 32, 0.01), (32, 1024, 0.01))
    assert batches(replace(found, batch_profile=on_gpu)) == Slots(items=32, tokens=8192)
    assert batches(replace(found, batch_profile=())) == Slots(items=32, tokens=8192)


def test_a_short_urgent_text_shares_no_batch_with_long_ones() -> None:
    """Nor does a later item of an op whose first one is too long; one of like length does."""
    slots = Slots(items=4, tokens=4096)

    def waiting(name: str, *tokens: int, at: float) -> Waiting:
        return Waiting(name, api.Hints(application=name, arrival=at), tokens, queued=at)

    queue = [
        waiting("question", 20, at=0.0),
        waiting("text", 256, 10, at=1.0),
        waiting("other", 40, at=2.0),
    ]
    assert form(queue, slots) == [Share("question", 0, 1), Share("other", 0, 1)]
    assert form(queue[1:], slots) == [Share("text", 0, 2), Share("other", 0, 1)]
