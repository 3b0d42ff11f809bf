"""Plans the calls that a synthesizer or an extractor is about to make, as one graph.

A plan uses LlamaIndex's own templates and prompt helper, in LlamaIndex's order. If a prompt depends
on an answer's length, it is planned only if it is the same for the longest answer. Otherwise the
plan ends there, and is not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.indices.prompt_helper import DEFAULT_PADDING
from llama_index.core.output_parsers import PydanticOutputParser
from llama_index.core.prompts.base import BasePromptTemplate
from llama_index.core.prompts.prompt_utils import get_biggest_prompt
from llama_index.core.response_synthesizers import (
    Accumulate,
    CompactAndRefine,
    Refine,
    TreeSummarize,
)
from llama_index.core.response_synthesizers.compact_and_accumulate import CompactAndAccumulate
from llama_index.llms.weftline.model.object_fields import (
    are_asked_in_text,
    as_text_field,
    as_tool_fields,
    wanted,
)
from llama_index.llms.weftline.model.openai_messages import message_body, strip_to_text
from llama_index.llms.weftline.output_parsers import text_of, transforms_of
from llama_index.llms.weftline.plan.answer_symbols import Given, PlannedAnswer, Spec, Symbols
from llama_index.llms.weftline.trace.run_provenance import by_template, runs_code

from weftline.kit import Pieces
from weftline.kit.parsers import NoTransform

# LlamaIndex counts tokens with another tokenizer than the model's, so it may count more than
# max_tokens tokens in an answer: a tenth more for English, a fifth more for code.
LENGTH_MARGIN = 1.25


MOST_CALLS = 16  # on nodes that are not found yet, a call for each
STRIP: Spec = {"op": "strip"}
NODE_TEXTS: Spec = {"op": "node_texts"}
JSON_TEXT: Spec = {"op": "json_text"}
# Of an object that it streams, LlamaIndex uses this field as the text.
STREAMED = "answer"
STREAMED_TEXT: tuple[Spec, ...] = (
    {"op": "json_object"},
    {"op": "path", "keys": [STREAMED]},
    {"op": "str"},
)
ARGUMENTS: Spec = {"op": "path", "keys": ["tool_calls", 0, "function", "arguments"]}


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A planned call: role and text of each message, and the same messages in pieces.

    The texts may contain symbols, which stand for future answers. A text prompt has one message
    with an empty role. `fields` are the request's fields beside those of the LLM.
    """

    name: str
    messages: tuple[tuple[str, str], ...]
    pieces: tuple[Pieces | None, ...]
    fields: Mapping[str, Any]


@dataclass(slots=True)
class CallPlan:
    """Calls in the order in which LlamaIndex makes them.

    `complete` says that no other call follows.

    With `output_cls` the answers are objects of that class, as structured_predict makes them.
    `chunk_tokens` are the most tokens of a chunk that is a symbol. `reading` has the transforms
    that turn an answer into the text that LlamaIndex puts into later prompts. It is None if no
    transforms can.
    """

    llm: Any
    output_cls: type[BaseModel] | None = None
    symbols: Symbols = field(default_factory=Symbols)
    drafts: list[PlannedCall] = field(default_factory=list)
    complete: bool = True
    chunk_tokens: int = 0
    reading: tuple[Spec, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        self.reading = _reading(self.llm, self.output_cls)

    def predict(
        self, name: str, prompt: BasePromptTemplate, **arguments: Any
    ) -> PlannedAnswer | None:
        """Plan `llm.predict(prompt, **arguments)`, or structured_predict.

        Returns a symbol for the future result, or None if a later prompt cannot contain it.
        """
        fields: dict[str, Any] = {}
        if self.output_cls is not None and are_asked_in_text(self.llm):
            parser = PydanticOutputParser(self.output_cls)
            prompt = prompt.model_copy(update={"output_parser": parser})
            fields = as_text_field(self.output_cls)
        elif self.output_cls is not None:
            fields = as_tool_fields(self.output_cls)
        return self.ask(name, prompt, fields, **arguments)

    def ask(
        self, name: str, prompt: BasePromptTemplate, fields: Mapping[str, Any], **arguments: Any
    ) -> PlannedAnswer | None:
        """Plan one request with these fields."""
        _require(not runs_code(self.llm, prompt), "a template calls functions of the user")
        if self.llm.metadata.is_chat_model:
            bodies = [message_body(m) for m in self.llm._get_messages(prompt, **arguments)]
            messages = strip_to_text(bodies)
            if messages is None:
                raise Unplannable("a prompt has messages that are more than text")
        else:
            messages = (("", self.llm._get_prompt(prompt, **arguments)),)
        texts = [text for _, text in messages]
        _require(all(map(self.symbols.are_whole_in, texts)), "a template changes its arguments")
        pieces: Sequence[Pieces | None] = by_template(self.llm, prompt, arguments, texts) or [
            None
        ] * len(texts)
        fields = fields or wanted(texts)
        self.drafts.append(PlannedCall(name, messages, tuple(pieces), fields))
        return None if self.reading is None else PlannedAnswer(len(self.drafts) - 1, self.reading)

    @property
    def longest_answer(self) -> int:
        """The tokens of the longest answer, as LlamaIndex counts them."""
        return int(self.llm.metadata.num_output * LENGTH_MARGIN)


def _reading(llm: Any, output_cls: type[BaseModel] | None) -> tuple[Spec, ...] | None:
    if output_cls is None:
        return () if llm.output_parser is None else text_of(llm.output_parser)
    as_json = (*transforms_of(PydanticOutputParser(output_cls)), JSON_TEXT)
    return as_json if are_asked_in_text(llm) else (ARGUMENTS, *as_json)


class Unplannable(Exception):
    """The calls that follow depend on answers that do not exist yet, or on unknown settings."""


def tree(plan: CallPlan, synthesizer: Any, query: str, chunks: Sequence[str]) -> None:
    """TreeSummarize: a call for each packed chunk, and one on their answers."""
    prompt = synthesizer._summary_template.partial_format(query_str=query)
    packed, size = _repack(synthesizer, plan.llm, prompt, chunks)
    if len(packed) == 1:
        plan.predict("summary", prompt, context_str=packed[0])
        return
    answers = [plan.predict("summarize", prompt, context_str=chunk) for chunk in packed]
    known = [answer for answer in answers if answer is not None]
    if len(known) < len(answers) or len(answers) * (plan.longest_answer + 1) > size:
        plan.complete = False  # the answers are not texts, or may need packing again
        return
    stripped = (plan.symbols.text(answer.then(STRIP)) for answer in known)
    combined = "\n\n".join(stripped)
    if synthesizer._streaming:  # it streams text, even where it otherwise asks for objects
        plan.ask("combine", prompt, {}, context_str=combined)
    else:
        plan.predict("combine", prompt, context_str=combined)


def refine(plan: CallPlan, synthesizer: Any, query: str, chunks: Sequence[str]) -> None:
    """Refine: a call on the first chunk, then one on each answer and the next chunk."""
    _require(not synthesizer._structured_answer_filtering, "it filters structured answers")
    streams_objects = synthesizer._streaming and plan.output_cls is not None
    if plan.output_cls is not None and streams_objects:
        _require(STREAMED in plan.output_cls.model_fields, f"it streams objects without {STREAMED}")
    first, then = synthesizer._text_qa_template, synthesizer._refine_template
    helper = synthesizer._prompt_helper
    padding = _padding_of(synthesizer)
    biggest = get_biggest_prompt([first, then])
    parts = [
        part
        for chunk in chunks
        for part in _repack(synthesizer, plan.llm, biggest, [chunk], padding)[0]
    ]
    if not parts:
        return
    answer = plan.predict("answer", first.partial_format(query_str=query), context_str=parts[0])
    for part in parts[1:]:
        # LlamaIndex packs the chunk beside the answer so far. Here it must fit beside the longest
        # possible answer.
        empty = then.partial_format(query_str=query, existing_answer="")
        kept, _ = _repack(synthesizer, plan.llm, empty, [part])
        used = max(plan.chunk_tokens, len(helper._token_counter.tokenizer(kept[0])))
        free = helper.model_copy(update={"chunk_size_limit": None})
        size = free.get_text_splitter_given_prompt(empty, llm=plan.llm).chunk_size
        if answer is None or len(kept) > 1 or used + plan.longest_answer > size:
            plan.complete = False
            return
        answer = answer.then(*STREAMED_TEXT) if streams_objects else answer
        prompt = then.partial_format(query_str=query, existing_answer=plan.symbols.text(answer))
        answer = plan.predict("refine", prompt, context_msg=kept[0])


def compact(plan: CallPlan, synthesizer: Any, query: str, chunks: Sequence[str]) -> None:
    """CompactAndRefine: Refine over chunks that were packed first."""
    templates = [synthesizer._text_qa_template, synthesizer._refine_template]
    biggest = get_biggest_prompt([t.partial_format(query_str=query) for t in templates])
    padding = _padding_of(synthesizer)
    packed, _ = _repack(synthesizer, plan.llm, biggest, chunks, padding)
    refine(plan, synthesizer, query, packed)


def accumulate(plan: CallPlan, synthesizer: Any, query: str, chunks: Sequence[str]) -> None:
    """Accumulate: a call for each chunk."""
    prompt = synthesizer._text_qa_template.partial_format(query_str=query)
    for chunk in chunks:
        for part in _repack(synthesizer, plan.llm, prompt, [chunk])[0]:
            plan.predict("answer", prompt, context_str=part)


def compact_accumulate(plan: CallPlan, synthesizer: Any, query: str, chunks: Sequence[str]) -> None:
    """CompactAndAccumulate: Accumulate over chunks that were packed first."""
    prompt = synthesizer._text_qa_template.partial_format(query_str=query)
    accumulate(plan, synthesizer, query, _repack(synthesizer, plan.llm, prompt, chunks)[0])


_Follow = Callable[[CallPlan, Any, str, Sequence[str]], None]

# Only exact classes count, because a subclass may override anything.
_SYNTHESIZERS: Mapping[type, _Follow] = {
    TreeSummarize: tree,
    Refine: refine,
    CompactAndRefine: compact,
    Accumulate: accumulate,
    CompactAndAccumulate: compact_accumulate,
}


def can_plan(synthesizer: object) -> bool:
    """Whether the calls of this synthesizer can be planned."""
    return type(synthesizer) in _SYNTHESIZERS


def plan_synthesis(
    synthesizer: Any, query: str, chunks: Sequence[str], others: Mapping[str, Any]
) -> CallPlan:
    """The calls of `synthesizer.get_response(query, chunks, **others)`. Raises Unplannable."""
    _require(not others, "it was given more than a query and chunks")
    plan = plan_of(synthesizer._llm, synthesizer._output_cls)
    follow(plan, synthesizer, query, chunks)
    return plan


def plan_on_hits(
    synthesizer: Any, query: str, k: int, node_tokens: int, symbols: Symbols | None = None
) -> CallPlan:
    """The calls that `synthesizer` makes on `k` nodes which the server finds.

    Some modes pack all nodes into one prompt. The others make a call for each node. Raises
    Unplannable where other calls may follow. None do if the index's splitter made the nodes, and
    the server finds as many.
    """
    if k == 1 or packs(synthesizer):
        found = PlannedAnswer(Given.HITS, (NODE_TEXTS,))
        tokens = k * (node_tokens + _SEPARATOR_TOKENS)
        return plan_on_one(synthesizer, query, found, tokens, symbols)
    _require(k <= MOST_CALLS, "it makes a call for each of many nodes")
    nodes = (
        PlannedAnswer(Given.HITS, ({"op": "path", "keys": [at]}, NODE_TEXTS)) for at in range(k)
    )
    plan = _plan_on(synthesizer, query, list(nodes), node_tokens, symbols)
    _require(len(plan.drafts) == k, "it makes other calls")
    return plan


def plan_on_one(
    synthesizer: Any, query: str, text: PlannedAnswer, tokens: int, symbols: Symbols | None = None
) -> CallPlan:
    """The one call that `synthesizer` makes on a text that is not known yet.

    `tokens` are the most that the text has, with what `query` has beside its symbols. Raises
    Unplannable where it may make several calls.
    """
    plan = _plan_on(synthesizer, query, [text], tokens, symbols)
    _require(len(plan.drafts) == 1, "it makes several calls")
    return plan


def _plan_on(
    synthesizer: Any,
    query: str,
    texts: Sequence[PlannedAnswer],
    tokens: int,
    symbols: Symbols | None,
) -> CallPlan:
    """The calls on texts that are not known yet, each of at most so many tokens."""
    plan = plan_of(synthesizer._llm, synthesizer._output_cls, symbols)
    plan.chunk_tokens = tokens
    room = min(
        _repack(synthesizer, plan.llm, prompt.partial_format(query_str=query), ["x"], padding)[1]
        for prompt, padding in _prompts(synthesizer)
    )
    _require(tokens <= room, "the texts may need several prompts")
    follow(plan, synthesizer, query, list(map(plan.symbols.text, texts)))
    return plan


def packs(synthesizer: object) -> bool:
    """Whether the synthesizer packs all chunks into as few prompts as it can."""
    return type(synthesizer) in _PACKING


# The modes below pack all chunks into as few prompts as they can.
_PACKING = (TreeSummarize, CompactAndRefine, CompactAndAccumulate)
_SEPARATOR_TOKENS = 2


def _padding_of(synthesizer: Any) -> int:
    """The tokens that LlamaIndex leaves free in a prompt. LlamaIndex 0.14.12 leaves its default."""
    return int(getattr(synthesizer, "_response_padding_size", DEFAULT_PADDING))


def _prompts(synthesizer: Any) -> Iterator[tuple[BasePromptTemplate, int]]:
    """The templates for which a synthesizer packs chunks, and their padding."""
    padding = _padding_of(synthesizer)
    for name in ("_summary_template", "_text_qa_template", "_refine_template"):
        if (prompt := getattr(synthesizer, name, None)) is not None:
            yield prompt, padding


def follow(plan: CallPlan, synthesizer: Any, query: str, chunks: Sequence[str]) -> None:
    """Add the calls of a synthesis to `plan`. Raises Unplannable."""
    _require(not getattr(synthesizer, "_multimodal", False), "it is multimodal")
    can_stream = plan.llm.output_parser is None and not isinstance(synthesizer, Accumulate)
    _require(can_stream or not synthesizer._streaming, "LlamaIndex does not stream it")
    _SYNTHESIZERS[type(synthesizer)](plan, synthesizer, query, chunks)


def plan_of(
    llm: Any, output_cls: type[BaseModel] | None = None, symbols: Symbols | None = None
) -> CallPlan:
    """An empty plan. Raises Unplannable if it is not known how answers enter later prompts."""
    if output_cls is not None:
        _require(llm.is_chat_model, "its objects are asked of a text model")
        _require(llm.output_parser is None, "its objects are parsed twice")
        # LlamaIndex's programs leave the system prompt out where they run by await.
        _require(are_asked_in_text(llm) or not llm.system_prompt, "its tools have a system prompt")
    try:
        return CallPlan(llm, output_cls, symbols or Symbols())
    except NoTransform as reason:
        raise Unplannable(str(reason)) from reason


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Unplannable(otherwise)


def _repack(
    synthesizer: Any,
    llm: Any,
    prompt: BasePromptTemplate,
    chunks: Sequence[str],
    padding: int = DEFAULT_PADDING,
) -> tuple[list[str], int]:
    """The chunks that `prompt_helper.repack` gives, and the number of tokens that fit into one."""
    helper = synthesizer._prompt_helper
    splitter = helper.get_text_splitter_given_prompt(prompt, padding=padding, llm=llm)
    combined = "\n\n".join(chunk.strip() for chunk in chunks if chunk.strip())
    return split(splitter, combined), splitter.chunk_size


def split(splitter: Any, text: str) -> list[str]:
    """The parts of `text` that `splitter.split_text` gives.

    The function calls only methods that LlamaIndex does not report, so that no callback or event
    tells of a splitting that LlamaIndex has not done yet.
    """
    if text == "":
        return [text]
    size = splitter.chunk_size
    parts: list[str] = splitter._merge(splitter._split(text, size), size)
    return parts
