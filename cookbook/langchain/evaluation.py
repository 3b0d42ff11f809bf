"""An evaluation for CI: questions, a judge, and exit code 1 if too few answers are right.

    weftline serve qwen3:1.7b-q4 &
    python cookbook/langchain/evaluation.py                   # 80 % have to be right
    python cookbook/langchain/evaluation.py cases.json 0.95   # your questions, and your share

`cases.json` is a list of {"question": ..., "right": ...}. All answers and all judgements are one
request. `WEFTLINE_BASE_URL` names another server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from pydantic import BaseModel

from langchain_weftline import ChatWeftline, accelerate

THRESHOLD = 0.8
CASES = [
    {"question": "Which yarn does a shuttle carry?", "right": "the weft"},
    {"question": "Which yarn does a loom hold under tension?", "right": "the warp"},
    {"question": "What lifts yarns of the warp?", "right": "a heddle"},
]
# Put the prompt, the chain or the agent here that you want to keep from getting worse.
ASK = ChatPromptTemplate.from_template("Answer in one sentence: {question}")
JUDGE = ChatPromptTemplate.from_template(
    "Question: {question}\nRight answer: {right}\nGiven answer: {answer}\n\n"
    "Does the given answer say the same as the right one? Give the reason first."
)


class Verdict(BaseModel):
    """What the judge writes. The reason comes first, so that the judge thinks before it decides."""

    reason: str
    same: bool


def evaluation() -> Runnable[list[dict[str, str]], list[dict[str, Any]]]:
    """From cases to cases with an answer and a verdict."""
    llm = ChatWeftline(temperature=0, max_tokens=100)
    answer = ASK | llm | StrOutputParser()
    verdict = JUDGE | llm.with_structured_output(Verdict)
    one = RunnablePassthrough.assign(answer=answer) | RunnablePassthrough.assign(verdict=verdict)
    return accelerate(one.map())


def main() -> int:
    """Print each case, and return the exit code."""
    cases = json.loads(Path(sys.argv[1]).read_text()) if sys.argv[1:] else CASES
    threshold = float(sys.argv[2]) if sys.argv[2:] else THRESHOLD
    if not cases:
        print("there are no cases: an empty evaluation would pass whatever the model says")
        return 1
    judged = evaluation().invoke(cases)
    for one in judged:
        said = "right" if one["verdict"].same else "WRONG"
        print(f"{said}  {one['question']}  {one['answer'].strip()}  ({one['verdict'].reason})")
    share = sum(one["verdict"].same for one in judged) / len(judged)
    print(f"{share:.0%} are right, and {threshold:.0%} have to be")
    return 0 if share >= threshold else 1


if __name__ == "__main__":
    sys.exit(main())
