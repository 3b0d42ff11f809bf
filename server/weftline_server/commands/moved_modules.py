"""The modules of weftline that operators name in their files, and where they are now."""

from __future__ import annotations

_NOW = {
    "weftline_engine.tools.interpreter": "weftline_engine.services.tools.interpreter",
    "weftline_engine.functions.native": "weftline_engine.services.functions.native",
}


def present_name(module: str) -> str:
    """The name of the module now, or of `module:name`; another module keeps its name."""
    name, colon, member = module.partition(":")
    return f"{_NOW.get(name, name)}{colon}{member}"
