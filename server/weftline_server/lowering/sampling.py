"""The sampling parameters of an output: the client's wishes, then the model's defaults."""

from __future__ import annotations

from weftline.protocol import Placeholder, Sampling
from weftline_engine import api
from weftline_server.lowering.call import PromptBody
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.tool_format import constraint

DEFAULT_MAX_TOKENS = 512
_NO_WISHES = Sampling()


def asked(output: Placeholder) -> int:
    """The most tokens that an output may have, if the client states a limit."""
    wish = output.sampling.max_tokens if output.sampling else None
    return wish or DEFAULT_MAX_TOKENS


def is_free(output: Placeholder) -> bool:
    """Whether the model ends the output itself. With `ignore_eos` its length is its bound."""
    return output.sampling is None or not output.sampling.ignore_eos


def sampling_params(body: PromptBody, prompt_tokens: int, prompter: Prompter) -> api.SamplingParams:
    """How to decode an output behind a prompt of `prompt_tokens`, within the model's context."""
    description = prompter.description
    wish = body.output.sampling or _NO_WISHES
    room = description.context_limit - prompt_tokens
    model = description.default_sampling
    return api.SamplingParams(
        max_tokens=min(asked(body.output), room),
        min_tokens=min(wish.min_tokens, room),
        temperature=_first(wish.temperature, model.get("temperature"), 1.0),
        top_p=_first(wish.top_p, model.get("top_p"), 1.0),
        top_k=int(_first(wish.top_k, model.get("top_k"), 0)),
        seed=wish.seed,
        stop=wish.stop,
        ignore_eos=wish.ignore_eos,
        min_p=_first(wish.min_p, model.get("min_p"), 0.0),
        presence_penalty=_first(wish.presence_penalty, 0.0),
        frequency_penalty=_first(wish.frequency_penalty, 0.0),
        repetition_penalty=_first(wish.repetition_penalty, model.get("repetition_penalty"), 1.0),
        logprobs=wish.logprobs,
        constraint=constraint(body.call, wish.constraint, prompter.tool_format),
    )


def _first(*values: float | None) -> float:
    for value in values:  # a generator would cost twice as much, seven times for each output
        if value is not None:
            return float(value)
    raise AssertionError("the last value is a default")
