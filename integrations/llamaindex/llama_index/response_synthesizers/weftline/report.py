"""The report of a synthesis: the seconds and tokens of each call, and the sources that it read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index.llms.weftline.plan.call_plan import CallPlan

_TIMES = ("queue_s", "fill_s", "generate_s")
_TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens")


class Report(dict[str, Any]):
    """`calls` has the name, seconds and tokens of each call, and `sources` the calls of each node.

    Seconds and tokens are filled in at the end of the answer. `total_s` is the time in seconds from
    the submit of the first call to the end of the last one, in the server.
    """

    def __init__(self, plan: CallPlan, variables: Sequence[str]) -> None:
        self._variables = variables
        super().__init__(calls=[{"name": draft.name} for draft in plan.drafts], sources={})
        self._texts = ["\n".join(text for _, text in draft.messages) for draft in plan.drafts]

    def fill(self, graph: Mapping[str, Any]) -> None:
        """Read the times and the tokens from the session's graph."""
        by_output = {call["outputs"][0]: call for call in graph["calls"]}
        made = [by_output[variable] for variable in self._variables]
        for said, call in zip(self["calls"], made, strict=True):
            said.update({name: call[name] for name in (*_TIMES, *_TOKENS)})
            said["finished_s"] = call["steps"][-1]["finished_s"] - made[0]["submitted_s"]
        self["total_s"] = max(call["finished_s"] for call in self["calls"])

    def of(self, nodes: Sequence[NodeWithScore]) -> None:
        """Note which calls read each of these nodes, in whole or in part."""
        for found in nodes:
            text = found.node.get_content(metadata_mode=MetadataMode.LLM).strip()
            self["sources"][found.node.node_id] = [
                index for index, prompt in enumerate(self._texts) if _shares(text, prompt)
            ]


# A node that was split is in several prompts. A call counts as a reader of a node if its prompt has
# a piece of this many characters of the node.
_PIECE = 80


def _shares(text: str, prompt: str) -> bool:
    pieces = (text[at : at + _PIECE] for at in range(0, max(len(text), 1), _PIECE))
    return (bool(text) and any(piece in prompt for piece in pieces if len(piece) == _PIECE)) or (
        0 < len(text) < 2 * _PIECE and text in prompt
    )
