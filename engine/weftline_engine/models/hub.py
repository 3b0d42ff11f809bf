"""Downloads a model from the Hugging Face Hub: safetensors, config and tokenizer, but no code."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from weftline_engine.models.cache import Cache
from weftline_engine.models.name import HubModel, ModelUnavailable
from weftline_engine.models.progress import StageDisplay

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_WANTED = frozenset(
    {
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    }
)


def wanted(name: str) -> bool:
    """Return whether to download the file `name` of a repository.

    Sub-folders hold other formats, and consolidated.* holds the same weights again.
    """
    if "/" in name or name.startswith("consolidated"):
        return False
    return name in _WANTED or name.endswith(".safetensors")


def fetch(model: HubModel, target: Path, cache: Cache, progress: StageDisplay) -> str:
    """Download `model` into the empty directory `target`, and return the commit.

    Raises ModelUnavailable: no network, no such repository, no access, no space, a wrong hash.
    """
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    failures: tuple[type[Exception], ...] = (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        *_network_errors(),
    )
    try:
        return _download(model, target, cache, progress)
    except failures as error:
        raise _explain(model, error) from error


def _download(model: HubModel, target: Path, cache: Cache, progress: StageDisplay) -> str:
    from huggingface_hub import HfApi

    name, hub = f"{model.owner}/{model.name}", HfApi()
    info = hub.model_info(name, revision=model.revision, files_metadata=True)
    files = [file for file in info.siblings or [] if wanted(file.rfilename)]
    if not any(file.rfilename.endswith(".safetensors") for file in files):
        raise ModelUnavailable(f"hf:{name} has no safetensors: choose a model that has them")
    cache.need(sum(file.size or 0 for file in files), f"hf:{name}")
    assert info.sha is not None, "model_info always has the commit"
    with progress.stage(f"download hf:{name}", len(files), "files") as meter:
        for done, file in enumerate(files):
            hub.hf_hub_download(name, file.rfilename, revision=info.sha, local_dir=target)
            _check_hash(file, target)
            meter.at(done + 1)
    return info.sha


def _explain(model: HubModel, error: Exception) -> ModelUnavailable:
    """Return one sentence for an error of the Hub or of the network."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"{model.owner}/{model.name}"
    match error:
        case GatedRepoError():
            return ModelUnavailable(
                f"hf:{name} requires you to accept its terms: do so on the Hub and set HF_TOKEN"
            )
        case RevisionNotFoundError():
            return ModelUnavailable(f"hf:{name} has no revision {model.revision!r}: check it")
        case RepositoryNotFoundError():
            return ModelUnavailable(
                f"the Hub has no model {name}, or it is private: check the name, or set HF_TOKEN"
            )
    return ModelUnavailable(
        f"hf:{name} cannot be downloaded from the Hugging Face Hub ({type(error).__name__}): "
        "check the network, or give the path of a model directory"
    )


def _network_errors() -> tuple[type[Exception], ...]:
    """Return the base errors of httpx (huggingface_hub up to 1) and httpx2 (later versions)."""
    found = [name for name in ("httpx", "httpx2") if importlib.util.find_spec(name)]
    return tuple(importlib.import_module(name).HTTPError for name in found)


def _check_hash(file: RepoSibling, target: Path) -> None:
    path = target / file.rfilename
    if not path.is_file():
        raise ModelUnavailable(f"{file.rfilename} did not arrive from the Hub: try again")
    if file.lfs is None:
        return
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != file.lfs.sha256:
        raise ModelUnavailable(f"{file.rfilename} does not match the Hub's hash: try again")
