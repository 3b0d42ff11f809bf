"""SmolLM2's greedy answers in float32, computed by transformers, which engines must equal."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.contract.target import PREAMBLE
from weftline_engine.api import Description
from weftline_engine.own.detokenizer import ByteDetokenizer
from weftline_engine.own.model_texts import tokenizer_texts
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage

# Their answers have more than 12 tokens. At each token the two best logits are 0.28 or more apart,
# so no order of summation in float32 changes them.
QUESTIONS = (
    "What does a compiler do?",
    "Who was Isaac Newton?",
    "How does a bicycle work?",
    "What is the moon?",
)
TOKENS = 12


def prompter(directory: Path) -> Prompter:
    """Renders chats as an engine that knows the model's template would."""
    texts = tokenizer_texts(directory)
    return Prompter(
        Description(
            model="oracle",
            tokenizer=str(directory / "tokenizer.json"),
            chat_template=texts["chat_template"],
            bos_token=texts["bos_token"],
            eos_token=texts["eos_token"],
        )
    )


def greedy_answers(directory: Path, dtype: torch.dtype = torch.float32) -> dict[str, list[str]]:
    """Each question's answer, the text of a token at a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    render = prompter(directory)
    answers = {}
    for question in QUESTIONS:
        chat = PromptBefore(
            "", (RenderedMessage("system", PREAMBLE), RenderedMessage("user", question))
        )
        prompt = list(render.payload(chat).tokens or ())
        ids = torch.tensor([prompt])
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=2,
        )
        output = found[0, len(prompt) :].tolist()
        assert len(output) == TOKENS, (
            f"the answer to {question!r} is too short: {json.dumps(output)}"
        )
        stream = ByteDetokenizer(tokenizer).stream(prompt)
        answers[question] = [stream.push([token]) for token in output]
    torch.set_num_threads(before)
    return answers
