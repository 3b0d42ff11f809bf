"""The class that a recipe's programs swap: one request for the whole graph, or one for each part.

    python cookbook/graphs/sub_questions.py

Each recipe has `run(app)`. `OneGraph` gives it variables, and sends all in one request. `OneByOne`
gives it values: each call and each search is a request, and the program decides in the client.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from weftline import Client
from weftline.predicates import holds

STORE = "default"
THREADS = 16
Predicate = dict[str, Any]


class App(Protocol):
    """What a program is written with. A value is a variable of a graph, or the value itself."""

    def call(self, function: Any, *values: Any) -> Any:
        """What the model writes."""
        ...

    def search(self, query: Any, k: int, after: Sequence[Any] = ()) -> Any:
        """The nearest texts of the store."""
        ...

    def ingest(self, texts: Sequence[str]) -> Any:
        """Add texts to the store."""
        ...

    def each(self, items: Any, body: Callable[[Any], Any]) -> Any:
        """What `body` makes of each item."""
        ...

    def branch(
        self, on: Any, when: Predicate, then: Callable[[], Any], other: Callable[[], Any]
    ) -> Any:
        """What one of two sides gives."""
        ...

    def loop(
        self, first: Any, body: Callable[[Any], tuple[Any, Any]], until: Predicate, most: int
    ) -> Any:
        """What `body` makes of a value, again and again."""
        ...


class OneGraph:
    """The program as one graph. Nothing runs before its answer is asked for."""

    def __init__(self, client: Client) -> None:
        self.session = client.session()

    def call(self, function: Any, *values: Any) -> Any:
        return function(*values)

    def search(self, query: Any, k: int, after: Sequence[Any] = ()) -> Any:
        return self.session.search(self.session.embed(query), store=STORE, k=k, after=after)

    def ingest(self, texts: Sequence[str]) -> Any:
        return self.session.ingest(self.session.embed(texts), store=STORE)

    def each(self, items: Any, body: Callable[[Any], Any]) -> Any:
        return self.session.each(items, body)

    def branch(
        self, on: Any, when: Predicate, then: Callable[[], Any], other: Callable[[], Any]
    ) -> Any:
        return self.session.branch(on, [(when, then())], other())

    def loop(
        self, first: Any, body: Callable[[Any], tuple[Any, Any]], until: Predicate, most: int
    ) -> Any:
        return self.session.loop(first, body, until=until, most=most)

    def answer(self, program: Callable[[App], Any]) -> str:
        """Run the program."""
        with self.session:
            return str(program(self).get())


class OneByOne:
    """The program by hand: what does not depend on each other runs in threads."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def call(self, function: Any, *values: Any) -> Any:
        with self.client.session():
            return function(*values).get()

    def search(self, query: Any, k: int, after: Sequence[Any] = ()) -> Any:
        with self.client.session() as session:
            return session.search(session.embed(query), store=STORE, k=k).get()

    def ingest(self, texts: Sequence[str]) -> Any:
        with self.client.session() as session:
            return session.ingest(session.embed(texts), store=STORE).get()

    def each(self, items: Any, body: Callable[[Any], Any]) -> Any:
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(body, items))

    def branch(
        self, on: Any, when: Predicate, then: Callable[[], Any], other: Callable[[], Any]
    ) -> Any:
        return then() if holds(when, on) else other()

    def loop(
        self, first: Any, body: Callable[[Any], tuple[Any, Any]], until: Predicate, most: int
    ) -> Any:
        for _ in range(most):
            first, asked = body(first)
            if holds(until, asked):
                break
        return first

    def answer(self, program: Callable[[App], Any]) -> str:
        """Run the program."""
        return str(program(self))


CLASSES = (OneByOne, OneGraph)


def main(program: Callable[[App], Any]) -> None:
    """Run a program with both classes on a server, and print the answers and the seconds."""
    parser = argparse.ArgumentParser()
    server = os.environ.get("WEFTLINE_BASE_URL", "http://127.0.0.1:8600")
    parser.add_argument("--url", default=server, help="a weftline server")
    url = parser.parse_args().url
    for runner in CLASSES:
        with Client(url) as client:
            began = time.perf_counter()
            answer = runner(client).answer(program)
            print(f"{runner.__name__}: {time.perf_counter() - began:.2f} s\n{answer}\n")
