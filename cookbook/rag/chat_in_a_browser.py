"""Chat about texts in a browser: retrieval with memory, streamed as server-sent events.

    weftline serve --embedder minilm --store sqlite:chat.db &
    python cookbook/rag/chat_in_a_browser.py        # then open http://127.0.0.1:8000

A question is written anew so that it stands alone, its query finds passages, and the answer is
streamed. `accelerate` sends all of that as one request. `WEFTLINE_BASE_URL` names another server.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query
from fastapi.responses import HTMLResponse, StreamingResponse
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePassthrough

from langchain_weftline import ChatWeftline, WeftlineVectorStore, accelerate

TEXTS = [
    "The weft is the yarn that a shuttle carries across the loom.",
    "The warp is the yarn that the loom holds under tension.",
    "A heddle lifts some yarns of the warp, so that the shuttle can pass.",
]
MOST_CHATS = 1000  # the oldest one is forgotten
MOST_MESSAGES = 12  # of a chat: six questions with their answers
ALONE = ChatPromptTemplate.from_messages(
    [
        MessagesPlaceholder("history"),
        ("human", "{question}\n\nWrite this question so that it can be understood alone."),
    ]
)
ANSWER = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer in short from these passages:\n{passages}"),
        MessagesPlaceholder("history"),
        ("human", "{question}"),
    ]
)
# The answer is text for the page, never HTML.
PAGE = """<!doctype html><title>Chat</title><main id=log></main>
<form><input name=question size=60 maxlength=500 required><button>Ask</button></form>
<script>
const chat = Date.now() + "-" + Math.random(), log = document.getElementById("log");
function line(textContent) {
  return log.appendChild(Object.assign(document.createElement("p"), {textContent}));
}
document.querySelector("form").onsubmit = event => {
  event.preventDefault();
  const question = event.target.question.value, answer = (line("> " + question), line(""));
  const events = new EventSource("/ask?" + new URLSearchParams({chat, question}));
  events.onmessage = piece => { answer.textContent += JSON.parse(piece.data); };
  events.addEventListener("end", () => events.close());
  events.onerror = () => { events.close(); answer.textContent += " (the answer broke off)"; };
  event.target.reset();
};
</script>"""


def chain() -> Runnable[dict[str, Any], str]:
    """From a question and the chat before it to an answer."""
    llm = ChatWeftline(temperature=0, max_tokens=200)
    store = WeftlineVectorStore()
    store.add_texts(TEXTS)  # adding a text again changes nothing
    query = ALONE | llm.bind(max_tokens=40) | StrOutputParser()
    found = query | store.as_retriever(search_kwargs={"k": 2}) | _joined
    return accelerate(RunnablePassthrough.assign(passages=found) | ANSWER | llm | StrOutputParser())


def _joined(documents: list[Document]) -> str:
    return "\n".join(one.page_content for one in documents)


def app() -> FastAPI:
    """The page, and the route that its answers come from."""
    made, answers = FastAPI(), chain()
    chats: OrderedDict[str, deque[BaseMessage]] = OrderedDict()

    @made.get("/")
    def page() -> HTMLResponse:
        return HTMLResponse(PAGE)

    @made.get("/ask")
    async def ask(
        chat: Annotated[str, Query(max_length=64)], question: Annotated[str, Query(max_length=500)]
    ) -> StreamingResponse:
        history = chats.setdefault(chat, deque(maxlen=MOST_MESSAGES))
        chats.move_to_end(chat)
        if len(chats) > MOST_CHATS:
            chats.popitem(last=False)
        return StreamingResponse(events(history, question), media_type="text/event-stream")

    async def events(history: deque[BaseMessage], question: str) -> AsyncIterator[str]:
        answer = ""
        async for piece in answers.astream({"question": question, "history": list(history)}):
            answer += piece
            yield f"data: {json.dumps(piece)}\n\n"
        history.extend([HumanMessage(question), AIMessage(answer)])  # a broken answer is no memory
        yield "event: end\ndata: {}\n\n"

    return made


if __name__ == "__main__":
    uvicorn.run(app(), host="127.0.0.1", port=8000)
