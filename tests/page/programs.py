"""Programs whose sessions the page shows."""

from __future__ import annotations

from typing import Any

from weftline import Client, Input, Output, semantic_function
from weftline.contract.protocol import Call, InOut, Placeholder, Sampling
from weftline.sdk.client import Session


def ask(name: str, prompt: str, out: str, *reads: str, tokens: int = 20) -> Call:
    """A call that writes variable `out`. Each of `reads` stands in its prompt by its own name."""
    prompt += "".join(f" {{{{input:{read}}}}}" for read in reads) + f" {{{{output:{out}}}}}"
    inputs = [Placeholder(name=r, in_out=InOut.IN, semantic_var_id=r) for r in reads]
    sampling = Sampling(max_tokens=tokens)
    output = Placeholder(name=out, in_out=InOut.OUT, semantic_var_id=out, sampling=sampling)
    return Call(name=name, prompt=prompt, placeholders=(*inputs, output))


def map_reduce(client: Client, parts: int, *, tokens: int = 20) -> Session:
    """A session in which `parts` summaries are joined. Part 1 takes twice as long as the others."""
    session = client.session()
    maps = [
        ask(f"map {n}", f"Summarise part {n}.", f"s{n}", tokens=tokens * (2 if n == 1 else 1))
        for n in range(parts)
    ]
    session.submit(
        [*maps, ask("reduce", "Join these.", "summary", *(f"s{n}" for n in range(parts)))]
    )
    return session


TEXTS = Input(transforms=[{"op": "texts"}])
SHORT, MIDDLE, LONG = Output(max_tokens=12), Output(max_tokens=60), Output(max_tokens=600)


@semantic_function
def query(question: Any, angle: Any, text: Any = SHORT) -> Any:
    """Write a search query for {{input:question}} on {{input:angle}}: {{output:text}}"""


@semantic_function
def note(hits: Any = TEXTS, about: Any = "", text: Any = MIDDLE) -> Any:
    """From {{input:hits}} note what matters about {{input:about}}: {{output:text}}"""


@semantic_function
def answer(question: Any, a: Any, b: Any, c: Any, text: Any = LONG) -> Any:
    """Answer {{input:question}} from {{input:a}} {{input:b}} {{input:c}}: {{output:text}}"""


def rag(session: Session) -> None:
    """Index texts, write three queries, search with each, note what was found, and answer.

    It is called inside of the session.
    """
    texts = ["The shuttle carries the weft.", "The warp is held under tension.", "A heddle lifts."]
    indexed = session.ingest(session.embed(texts), store="docs")
    question, angles = "How does a loom work?", ("the weft", "the warp", "the heddles")
    found = [
        session.search(session.embed(query(question, angle)), store="docs", k=2, after=[indexed])
        for angle in angles
    ]
    notes = [note(hits, angle) for hits, angle in zip(found, angles, strict=True)]
    answer(question, *notes)
    session.flush()
