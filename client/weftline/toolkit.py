"""The public name of what authors of tools use."""

from __future__ import annotations

from weftline.sdk.toolkit import (
    Reject,
    StreamingTool,
    ToolSpec,
    spec_of,
    tool,
    tools_in,
)

__all__ = [
    "Reject",
    "StreamingTool",
    "ToolSpec",
    "spec_of",
    "tool",
    "tools_in",
]
