"""Programs whose sessions the page shows."""

from __future__ import annotations

from weftline import Client
from weftline.client import Session
from weftline.protocol import Call, InOut, Placeholder, Sampling


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
