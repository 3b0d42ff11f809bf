"""The edges of a session: which tasks read what another task has written, also through a client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from weftline_server.observe.client_tools import ClientToolRun, client_tools
from weftline_server.observe.snapshot import Seen

NOTED = 1024  # tasks whose edges are looked up between two pauses, in 3 ms


@dataclass(slots=True)
class Links:
    """The tasks that read each variable, the producers of variables, and the client's tools."""

    producer: dict[str, str] = field(default_factory=dict)  # variable → the task that writes it
    readers: dict[str, list[str]] = field(default_factory=dict)  # variable → tasks
    tools: list[ClientToolRun] = field(default_factory=list)
    above: dict[str, dict[str, None]] = field(default_factory=dict)  # task → what it read from

    def views(self) -> Iterator[dict[str, str]]:
        """An edge from the task that writes a variable to each task that reads it."""
        return (
            {"from": self.producer[var], "to": task, "semantic_var_id": var}
            for var, tasks in self.readers.items()
            if var in self.producer
            for task in tasks
        )


def links_of(session: Seen) -> Links:
    """The links at once; see `note_links`."""
    links = Links()
    for _ in note_links(session, links):
        pass
    return links


def note_links(session: Seen, links: Links) -> Iterator[None]:
    """Note the tasks that read each variable, then those whose prompts came with text of it, and
    then those whose prompts have results of tools that it calls. Pause after each part.
    """
    primitives = session.graph.primitives
    links.producer = {var: primitives[id].task for var, id in session.graph.producer.items()}
    tasks = session.graph.tasks
    for number, (id, task) in enumerate(tasks.items(), 1):
        for var in task.reads:
            links.readers.setdefault(var, []).append(id)
        if number % NOTED == 0:
            yield
    for number, (id, task) in enumerate(tasks.items(), 1):
        if number % NOTED == 0:
            yield
        if (call := task.call) is None:
            continue
        named = [*(p.from_var for p in call.placeholders), *(s.from_var for s in call.segments())]
        for var in dict.fromkeys(var for var in named if var is not None):
            _read(links, var, id)
    _join_turns(session, links)


def _join_turns(session: Seen, links: Links) -> None:
    """Note what has results of tools, and then what each task has read from."""
    links.tools = client_tools(session)
    for tool in links.tools:
        if tool.read_by:
            _read(links, tool.variable, tool.read_by)
    for var, readers in links.readers.items():
        if (writer := links.producer.get(var)) is not None:
            for id in readers:
                if id != writer:
                    links.above.setdefault(id, {})[writer] = None


def _read(links: Links, variable: str, task: str) -> None:
    if task not in (known := links.readers.setdefault(variable, [])):
        known.append(task)
