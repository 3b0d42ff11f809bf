"""The kit that the LangChain and the LlamaIndex adapter share. It imports neither framework.

server      Server: where models are served, and the environment's settings
clients     Clients: the asynchronous client of each server, on the background loop
faults      what readers get for an exception of code that is not weftline's
results     Result: the value of one variable, and the parts of its text
feed        RunFeed: submits a run's calls, and receives their values as the server pushes them
claims      Claims: finds, for a request, the equal call that was sent ahead
early_tools EarlyTurn: starts tools while a model still writes its answer
compaction  asks for a summary behind a live conversation
pieces      Piece: a part of a prompt, with the name of the value that it came from
run_sessions RunSession: the server's session for one run of an application, and its end
placeholders Inputs: the input placeholders of one call
retrieval_requests Retrieval: embeds, adds, finds and reranks, each with one submit
openai      turns values into responses of OpenAI's API
parsers     the transforms that replace LangChain's parsers
"""

from __future__ import annotations

from weftline.kit.claims import Claims, Later, Planned, ReadValue
from weftline.kit.clients import CLIENTS, Clients
from weftline.kit.feed import RunFeed
from weftline.kit.pieces import Piece, Pieces
from weftline.kit.placeholders import OUTPUT, Inputs
from weftline.kit.results import Result
from weftline.kit.retrieval_requests import Retrieval
from weftline.kit.run_sessions import Closer, Closers, Request, RunSession, RunSessions
from weftline.kit.server import Server
from weftline.sdk.background import BACKGROUND, Background, Chain, Relay, awaited

__all__ = [
    "BACKGROUND",
    "CLIENTS",
    "OUTPUT",
    "Background",
    "Chain",
    "Claims",
    "Clients",
    "Closer",
    "Closers",
    "Inputs",
    "Later",
    "Piece",
    "Pieces",
    "Planned",
    "ReadValue",
    "Relay",
    "Request",
    "Result",
    "Retrieval",
    "RunFeed",
    "RunSession",
    "RunSessions",
    "Server",
    "awaited",
]
