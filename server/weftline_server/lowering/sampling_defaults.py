"""The sampling parameters of an output: the client's wishes, then the model's defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from weftline.contract.calls import EFFORT
from weftline.contract.constraints import MAX_CONSTRAINT_CHARS, MAX_SCHEMA_CHARS
from weftline.contract.errors import InvalidRequest
from weftline.contract.parameters import COMMON, NUMBERS, CommonSampling
from weftline.contract.protocol import Call, Placeholder, Sampling
from weftline_engine import api
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.lowering.result_values import constraint_of, thinking_of
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.thinking_block import CLOSE_BLOCK, OPEN_BLOCK, Thinking

DEFAULT_MAX_TOKENS = 512
CHARS_OF_TOKEN = 4  # of English, about
_NO_WISHES = Sampling()
# What an engine without Capability.SAMPLING does not take, with the values that change nothing.
_EXTENDED = {
    field.name: (field.default, COMMON[field.name].neutral)
    for field in fields(CommonSampling)
    if not COMMON[field.name].is_openai
}


def asked(output: Placeholder) -> int:
    """The most tokens that an output may have, if the client states a limit."""
    wish = output.sampling.max_tokens if output.sampling else None
    return wish or DEFAULT_MAX_TOKENS


def is_free(output: Placeholder) -> bool:
    """Whether the model ends the output itself. With `ignore_eos` its length is its bound."""
    return output.sampling is None or not output.sampling.ignore_eos


def check_served(call: Call, description: api.Description) -> None:
    """Raise InvalidRequest, naming the field, for a wish that the call's engine would not keep.

    Nothing that changes what may be answered is ignored.
    """
    _check_grammars(call, description)
    for output in call.placeholders:
        wish = output.sampling
        if wish is None:
            continue
        if wish.constraint is not None:
            [kind] = wish.constraint
            if kind not in description.constraints:
                others = ", ".join(description.constraints) or "none"
                raise InvalidRequest(
                    f"the engine of model {description.model!r} cannot hold an output to a {kind}; "
                    f"of the constraints it takes {others}: ask for the form in the text",
                    param="constraint",
                )
            _check_schema(wish.constraint.get("json_schema"), description)
        if wish.logit_bias:
            _check_biases(wish.logit_bias, description)
        _check_known("stop_token_ids", wish.stop_token_ids, description)
        if api.Capability.SAMPLING not in description.capabilities:
            for name, neutral in _EXTENDED.items():
                if getattr(wish, name) not in neutral:
                    raise InvalidRequest(
                        f"the engine of model {description.model!r} takes no {name}: leave it out",
                        param=name,
                    )


def _check_grammars(call: Call, description: api.Description) -> None:
    """An endpoint holds calls itself, by fields that have no grammars."""
    holds = api.Constraint.STRUCTURAL_TAG in description.constraints
    if holds and not description.takes_messages:
        return
    for tool in call.offered_tools:
        if tool.function.grammar is not None:
            raise InvalidRequest(
                f"the engine of model {description.model!r} cannot hold the text of tool "
                f"{tool.function.name!r} to a grammar: leave the grammar out, and describe the "
                "form in the description",
                param="tools",
            )


def _check_schema(schema: object, description: api.Description) -> None:
    """A schema may be as long as a text that fills the model's context, as tools may be."""
    most = max(MAX_CONSTRAINT_CHARS, CHARS_OF_TOKEN * description.context_limit)
    if most < MAX_SCHEMA_CHARS and (size := len(json.dumps(schema))) > most:
        raise InvalidRequest(
            f"the schema has {size:,} characters, and beside a context of "
            f"{description.context_limit:,} tokens it may have {most:,}: shorten it",
            param="constraint",
        )


def _check_biases(biases: dict[str, float], description: api.Description) -> None:
    if api.Capability.LOGIT_BIAS not in description.capabilities:
        raise InvalidRequest(
            f"the engine of model {description.model!r} takes no logit_bias: leave it out",
            param="logit_bias",
        )
    _check_known("logit_bias", map(int, biases), description)


def _check_known(name: str, tokens: Iterable[int], description: api.Description) -> None:
    size, highest = description.vocabulary, max(tokens, default=0)
    if size is not None and highest >= size:
        raise InvalidRequest(
            f"{name} names token {highest}: the ids of model {description.model!r} end at "
            f"{size - 1}",
            param=name,
        )


def sampling_params(body: PromptBody, prompt_tokens: int, prompter: Prompter) -> api.SamplingParams:
    """How to decode an output behind a prompt of `prompt_tokens`, within the model's context."""
    description = prompter.description
    room = description.context_limit - prompt_tokens
    plain = body.output.sampling is None and not body.call.tools
    if plain and not body.call.chat_template_kwargs and room >= DEFAULT_MAX_TOKENS:
        return prompter.without_wishes.get(
            DEFAULT_MAX_TOKENS, lambda: _params(body, room, prompter)
        )
    return _params(body, room, prompter)


def _params(body: PromptBody, room: int, prompter: Prompter) -> api.SamplingParams:
    description = prompter.description
    wish, model = body.output.sampling or _NO_WISHES, description.default_sampling
    return api.SamplingParams(
        max_tokens=min(asked(body.output), room),
        **_numbers(wish, model, room),
        seed=wish.seed,
        stop=wish.stop,
        stop_token_ids=wish.stop_token_ids,
        logprobs=wish.logprobs,
        logit_bias=tuple((int(id), float(x)) for id, x in (wish.logit_bias or {}).items()),
        constraint=constraint_of(body.call, body.output, prompter),
        block=_block(body, prompter) if wish.stop else (),
        effort=_effort(body, description),
    )


def _effort(body: PromptBody, description: api.Description) -> str | None:
    """How much a model is to think whose template runs elsewhere."""
    effort = (body.call.chat_template_kwargs or {}).get(EFFORT)
    return str(effort) if description.takes_messages and effort is not None else None


def _block(body: PromptBody, prompter: Prompter) -> tuple[str, ...]:
    """The marks of the thoughts in which stop strings do not count. A dialect with marks of its own
    is rewritten behind the engine, which does not know them. An endpoint that takes messages looks
    for stop strings itself: only it counts what it has generated."""
    if prompter.dialect is not None or prompter.description.takes_messages:
        return ()
    match thinking_of(body.call, body.output, prompter):
        case Thinking.OPEN:
            return "", CLOSE_BLOCK
        case Thinking.MARKED:
            return OPEN_BLOCK, CLOSE_BLOCK
    return ()


def _numbers(wish: Sampling, model: Mapping[str, float], room: int) -> dict[str, Any]:
    """What the client wants of the numbers and flags, or else the model, or else what is neutral.

    The output has room for `room` tokens.
    """
    found: dict[str, Any] = {}
    for name, one in NUMBERS.items():
        value = getattr(wish, name)
        if value is None and one.of_model:
            value = model.get(name)
        found[name] = one.neutral if value is None else one.typed(value)
    found["min_tokens"] = min(wish.min_tokens, room)
    return found
