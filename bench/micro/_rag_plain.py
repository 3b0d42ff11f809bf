"""The applications of `bench rag_graph` written by hand: asyncio, one request for each part.

What does not depend on each other runs at the same time, as a careful programmer would write it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2
import numpy as np

from bench.micro import _rag_apps as apps
from bench.micro import _rag_web
from bench.micro._rag_apps import App, Task

FIXED: dict[str, Any] = {"max_tokens": apps.OUTPUT, "ignore_eos": True}
LISTED: dict[str, Any] = {"max_tokens": 160, "constraint": apps.QUERIES}
PLANNED: dict[str, Any] = {"max_tokens": 220, "constraint": apps.PLANNED}
JUDGED: dict[str, Any] = {"max_tokens": 8, "constraint": apps.VERDICT}


class Parts:
    """The parts of an application, each one request; `seconds` are those that each took.

    Parts that run `alone` wait for each other, so that each one has the machine for itself.
    """

    def __init__(self, http: httpx2.AsyncClient, *, alone: bool = False) -> None:
        self._http = http
        self._room = asyncio.Semaphore(1 if alone else 1000)
        self.seconds: dict[str, float] = {}

    async def ask(self, name: str, prompt: str, options: dict[str, Any] = FIXED) -> str:
        """The model's answer to one message."""
        (answer,) = await self.ask_all(name, [prompt], options)
        return answer

    async def ask_all(
        self, name: str, prompts: Sequence[str], options: dict[str, Any] = FIXED
    ) -> list[str]:
        """The model's answers to several messages at the same time: they are one part."""
        async with self._room:
            began = time.perf_counter()
            answers = await asyncio.gather(*(self._ask(prompt, options) for prompt in prompts))
            self.seconds[name] = time.perf_counter() - began
        return answers

    async def _ask(self, prompt: str, options: dict[str, Any]) -> str:
        body = {"model": "default", "messages": [{"role": "user", "content": prompt}]}
        found = await self._post("/v1/chat/completions", {**body, "temperature": 0, **options})
        return str(found["choices"][0]["message"]["content"])

    async def embed(self, name: str, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Normalised vectors of texts."""
        body = {"model": "minilm", "input": list(texts), "encoding_format": "float"}
        found = await self._alone(name, "/v1/embeddings", body)
        vectors = np.array([one["embedding"] for one in found["data"]], dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    async def rerank(self, name: str, query: str, texts: Sequence[str], top: int) -> list[str]:
        """The best texts."""
        body = {"model": "minilm", "query": query, "documents": list(texts), "top_n": top}
        found = await self._alone(name, "/v1/rerank", body)
        return [texts[one["index"]] for one in found["results"]]

    async def web(self, name: str, question: str) -> list[str]:
        """The texts that the search server finds."""
        async with self._room:
            began = time.perf_counter()
            found = await asyncio.to_thread(_rag_web.search, question)
            self.seconds[name] = time.perf_counter() - began
        return [one["text"] for one in found]

    async def _alone(self, name: str, path: str, body: dict[str, Any]) -> Any:
        async with self._room:
            began = time.perf_counter()
            found = await self._post(path, body)
            self.seconds[name] = time.perf_counter() - began
        return found

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = await self._http.post(path, content=json.dumps(body))
        if response.is_error:
            raise SystemExit(f"weftline bench rag_graph: {path}: {response.text[:400]}")
        return response.json()


def nearest(
    vectors: np.ndarray[Any, Any], queries: np.ndarray[Any, Any], k: int
) -> list[list[int]]:
    """The numbers of the `k` nearest vectors of each query, best first."""
    scores = queries @ vectors.T
    return [list(map(int, row)) for row in np.argsort(-scores, axis=1, kind="stable")[:, :k]]


async def naive(parts: Parts, task: Task) -> str:
    """The leaves run at the same time."""
    vectors, query = await asyncio.gather(
        parts.embed("chunks", task.chunks), parts.embed("query", [task.question])
    )
    (best,) = nearest(vectors, query, apps.TOP)
    question = task.question
    prompts = [apps.SUMMARY.format(context_str=task.chunks[n], query_str=question) for n in best]
    leaves = await parts.ask_all("leaves", prompts)
    joined = "\n\n".join(leaf.strip() for leaf in leaves)
    return await parts.ask(
        "final", apps.SUMMARY.format(context_str=joined, query_str=task.question)
    )


async def advanced(parts: Parts, task: Task) -> str:
    """The chunks are embedded while the model expands the query."""
    vectors, expanded = await asyncio.gather(
        parts.embed("chunks", task.chunks),
        parts.ask("expanded", apps.EXPAND.format(query_str=task.question), LISTED),
    )
    queries = await parts.embed("queries", json.loads(expanded))
    found = dict.fromkeys(at for row in nearest(vectors, queries, apps.HITS) for at in row)
    top = await parts.rerank("top", task.question, [task.chunks[at] for at in found], apps.TOP)
    answer = await parts.ask(
        "answer0", apps.ANSWER.format(context_str=top[0], query_str=task.question)
    )
    for n, text in enumerate(top[1:], 1):
        prompt = apps.REFINE.format(
            query_str=task.question, existing_answer=answer, context_msg=text
        )
        answer = await parts.ask(f"answer{n}" if n + 1 < apps.TOP else "final", prompt)
    return answer


async def search(parts: Parts, task: Task) -> str:
    """The search runs beside the draft and the verdict, because it is needed most of the time."""
    web = asyncio.create_task(parts.web("found", task.question))
    draft = await parts.ask("draft", apps.DRAFT.format(query_str=task.question))
    asked = apps.JUDGE.format(query_str=task.question, draft=draft)
    if apps.NEEDS not in await parts.ask("verdict", asked, JUDGED):
        return draft
    context = "\n\n".join(await web)
    return await parts.ask(
        "searched", apps.ANSWER.format(context_str=context, query_str=task.question)
    )


async def sub_questions(parts: Parts, task: Task) -> str:
    """The chunks are embedded beside the plan, and the four answers are written at once."""
    vectors, planned = await asyncio.gather(
        parts.embed("chunks", task.chunks),
        parts.ask("plan", apps.PLAN.format(query_str=task.question), PLANNED),
    )
    questions = json.loads(planned)
    found = nearest(vectors, await parts.embed("queries", questions), 1)
    prompts = [
        apps.ANSWER.format(context_str=task.chunks[at], query_str=question)
        for question, (at,) in zip(questions, found, strict=True)
    ]
    answers = await parts.ask_all("answers", prompts)
    pairs = zip(questions, answers, strict=True)
    joined = "\n\n".join(apps.PAIR.format(question=q, answer=a).strip() for q, a in pairs)
    return await parts.ask("final", apps.ANSWER.format(context_str=joined, query_str=task.question))


PROGRAMS: dict[App, Callable[[Parts, Task], Awaitable[str]]] = {
    App.NAIVE: naive,
    App.ADVANCED: advanced,
    App.SEARCH: search,
    App.SUB_QUESTIONS: sub_questions,
}


async def run(http: httpx2.AsyncClient, task: Task) -> str:
    """Run the program of a task."""
    return await PROGRAMS[task.app](Parts(http), task)
