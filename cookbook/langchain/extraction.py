"""Fields of 100 documents: each becomes an object of a pydantic class, and all are one request.

    weftline serve &
    python cookbook/langchain/extraction.py             # 100 invoices that this file makes
    python cookbook/langchain/extraction.py my_folder   # or the .txt files of a folder

The answers are held to the class's JSON schema while they are written. `WEFTLINE_BASE_URL` names
another server.
"""

from __future__ import annotations

import sys
from pathlib import Path

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from openai import LengthFinishReasonError
from pydantic import BaseModel, Field, ValidationError

from langchain_weftline import ChatWeftline, accelerate

NAMES = ("Alder & Sons", "Birch Mills", "Cedar Looms", "Dyeworks Elm")
UNUSABLE = (ValidationError, LengthFinishReasonError)  # no such object; cut by max_tokens
PROMPT = ChatPromptTemplate.from_template("Extract the fields of this invoice.\n\n{text}")


class Invoice(BaseModel):
    """What is wanted of an invoice. A description tells the model what a field means."""

    number: int = Field(description="the number of the invoice")
    seller: str = Field(description="the company that wrote it")
    total: float = Field(description="the amount to pay, in EUR")


def invoices(count: int = 100) -> list[str]:
    """Texts to try the program with."""
    return [
        f"Invoice {number}\n{NAMES[number % len(NAMES)]}\nPlease pay {number * 1.25:.2f} EUR."
        for number in range(1, count + 1)
    ]


def extractor() -> Runnable[list[dict[str, str]], list[Invoice | None]]:
    """From texts to objects. The fallback keeps 99 objects where one answer is none."""
    llm = ChatWeftline(temperature=0, max_tokens=100)
    one = PROMPT | llm.with_structured_output(Invoice)
    nothing = RunnableLambda(lambda _: None)
    return accelerate(one.with_fallbacks([nothing], exceptions_to_handle=UNUSABLE).map())


def main() -> None:
    texts = invoices()
    if sys.argv[1:]:
        texts = [path.read_text() for path in sorted(Path(sys.argv[1]).glob("*.txt"))]
    found = extractor().invoke([{"text": text} for text in texts])
    made = [one for one in found if one is not None]
    for one in made:
        print(one.model_dump_json())
    print(f"{len(made)} of {len(found)} texts, {sum(one.total for one in made):.2f} EUR in all")
    for number, (text, one) in enumerate(zip(texts, found, strict=True), 1):
        if one is None:
            print(f"text {number} gave no invoice: {text[:60]!r}", file=sys.stderr)


if __name__ == "__main__":
    main()
