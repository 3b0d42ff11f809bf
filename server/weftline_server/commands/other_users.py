"""Chat users who use a server beside a program that is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event, Thread

import httpx2

from weftline.contract.errors import EngineUnavailable

# An answer of a chat: about two sentences.
ANSWER_TOKENS = 48
# The prompts of users share no beginning, because the users have nothing to do with each other.
_QUESTION = "User {user}, question {number}: what should I know about the history of weaving?"


@contextmanager
def other_users(url: str, model: str, users: int) -> Iterator[None]:
    """So many users chat without a pause as long as the block runs; it begins with a first answer.

    Raises EngineUnavailable after the block if the server refused a chat.
    """
    if users == 0:
        yield
        return
    began, over = Event(), Event()
    refused: list[str] = []
    thread = Thread(target=lambda: asyncio.run(_chat(url, model, users, began, over, refused)))
    thread.start()
    try:
        began.wait()
        yield
    finally:
        over.set()
        thread.join()
    if refused:
        raise EngineUnavailable(f"a user beside the program got no answer: {refused[0]}")


async def _chat(
    url: str, model: str, users: int, began: Event, over: Event, refused: list[str]
) -> None:
    numbers, answered = count(), asyncio.Event()

    async def user(client: httpx2.AsyncClient, name: int) -> None:
        while not over.is_set():
            question = _QUESTION.format(user=name, number=next(numbers))
            body = {
                "model": model,
                "messages": [{"role": "user", "content": question}],
                "max_tokens": ANSWER_TOKENS,
            }
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
            if answer.status_code != httpx2.codes.OK:
                refused.append(answer.text)
            answered.set()
            if refused:
                return

    async with httpx2.AsyncClient(timeout=600.0) as client:
        chats = [asyncio.create_task(user(client, name)) for name in range(users)]
        first = asyncio.create_task(answered.wait())
        await asyncio.wait([first, *chats], return_when=asyncio.FIRST_COMPLETED)
        began.set()
        await asyncio.to_thread(over.wait)
        for task in (first, *chats):
            task.cancel()
        for ended in await asyncio.gather(first, *chats, return_exceptions=True):
            if isinstance(ended, httpx2.HTTPError):
                refused.append(str(ended))
