"""What keeps a chain's prompts from the KV cache: by its templates, and by the server's count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_weftline.lower.chain_steps import ChainStep
from langchain_weftline.lower.segments import TemplateSegment, segments_of
from langchain_weftline.lower.symbols import name_of
from weftline.kit import BACKGROUND, CLIENTS, Server

# A variable is told if this much constant text stands behind it: 64 tokens, from which on the
# server tells a difference, too.
LEAST_CHARS = 256
CHARS_PER_TOKEN = 4  # of English text
MOST_ROWS = 1000  # that the server sends; those of other programs are among them

Row = Mapping[str, Any]
Segments = Sequence[TemplateSegment]


@dataclass(frozen=True, slots=True)
class Advice:
    """What keeps prompts from the KV cache, and what to change, in the sentence `says`.

    `name` is that of the template, and `lost_tokens` is what each change of the variable costs,
    about. Where the server has counted, `name` is that of the call, `lost_tokens` is what was lost
    so far, and `calls` is the number of calls that were compared.
    """

    name: str
    says: str
    lost_tokens: int
    calls: int | None = None

    def __str__(self) -> str:
        if self.calls is None:
            return f"KV cache: {self.name}: {self.says}."
        return f"KV cache, as the server has counted: {self.name}: {self.says}."


def by_templates(steps: Iterable[ChainStep]) -> list[Advice]:
    """Variables that stand before constant text of the same prompt, the most expensive first.

    `steps` are the chain's steps that are prompt templates.
    """
    unique = {id(step.runnable): step for step in reversed(list(steps))}
    found = [one for step in reversed(unique.values()) for one in _of_template(step)]
    return sorted(found, key=lambda one: -one.lost_tokens)


def by_server(
    servers: Iterable[Server], steps: Sequence[ChainStep], names: Collection[str]
) -> list[Advice]:
    """The rows of GET /v1/advice that are about the chain's calls, the most expensive first.

    `names` are those of the chain's calls, as far as they are known. A row about a variable is the
    chain's if one of its templates has the variable and begins as the row says.
    """
    templates = [(_begins(step.runnable), _variables(step.runnable)) for step in steps]

    def is_own(row: Row) -> bool:
        if not row["variables"]:
            return row["name"] in names
        return any(
            begins.startswith(row["begins"]) and variables.issuperset(row["variables"])
            for begins, variables in templates
        )

    places = {server.place: server for server in servers}
    rows = [row for server in places.values() for row in BACKGROUND.run(_rows(server))]
    own = sorted(filter(is_own, rows), key=lambda row: -int(row["lost_tokens"]))
    return [Advice(row["name"], row["says"], row["lost_tokens"], row["calls"]) for row in own]


async def _rows(server: Server) -> list[dict[str, Any]]:
    return await (await CLIENTS.of(server)).advice(limit=MOST_ROWS)


def _of_template(step: ChainStep) -> Iterator[Advice]:
    """Variables with less than LEAST_CHARS of text between them are told together."""
    name = " ".join([".".join(step.path), name_of(step.runnable)]).strip()
    found = segments_of(step.runnable)
    group: list[TemplateSegment] = []
    seen = set[str]()
    left = chars = sum(len(segment.text) for segment in found)  # behind here, behind the group
    for segment in found:
        left -= len(segment.text)
        if segment.name is None or segment.name in seen:
            continue
        if group and chars - left >= LEAST_CHARS:
            yield _advice(name, group, found, chars)
            group = []
        group, chars = [*group, segment], left
        seen.add(segment.name)
    if group and chars >= LEAST_CHARS:
        yield _advice(name, group, found, chars)


def _advice(name: str, group: Segments, found: Segments, chars: int) -> Advice:
    tokens = round(chars / CHARS_PER_TOKEN)
    it, one = ("it", "it changes") if len(group) == 1 else ("them", "one of them changes")
    cost = f"about {tokens:,} tokens of constant text behind {it} are computed anew whenever {one}"
    says = f"{_where(group)}, {cost}: move {it} {_target(group[-1], found)}"
    return Advice(name, says, tokens)


def _where(group: Segments) -> str:
    """The variables, in the words of the server's advice."""
    *names, last = [f"`{segment.name}`" for segment in group]
    return f"{_role(group[0])} message, " + (
        f"variables {', '.join(names)} and {last}" if names else f"variable {last}"
    )


def _target(variable: TemplateSegment, found: Segments) -> str:
    """Where the variable costs no more than a short text: behind the last long constant text."""
    constants = [index for index, segment in enumerate(found) if segment.text]
    long = [index for index in constants if len(found[index].text) >= LEAST_CHARS]
    behind = [index for index in long or constants if index > found.index(variable)]
    last = behind[-1] if behind else constants[-1]
    if last == len(found) - 1:
        return "to the end of the prompt"
    if found[last + 1].message != found[last].message:
        return f"to the end of the {_role(found[last])} message"
    return "after the text that follows it"


def _role(segment: TemplateSegment) -> str:
    return "system" if segment.role == "developer" else segment.role


def _begins(template: Any) -> str:
    """The template's text, with `{name}` where a variable stands, as the server writes it."""
    return "".join(segment.text or f"{{{segment.name}}}" for segment in segments_of(template))


def _variables(template: Any) -> set[str]:
    return {*template.input_variables, *template.partial_variables, *template.optional_variables}
