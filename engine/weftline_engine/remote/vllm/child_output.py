"""Reads what a vLLM child prints: chooses the lines to show, and finds why a start failed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from weftline_engine.remote.openai.child import MOST_CHARS

# The process that vLLM names before a line, and its log's level, time and place.
_PROCESS = re.compile(r"^\((?P<process>[\w ]+) pid=\d+\) ")
_LOGGED = re.compile(r"^(?P<level>[A-Z]+) \d\d-\d\d [\d:]{8} \[[\w.]+:\d+\] ?")
_ERROR = re.compile(r"^(?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt): \S")
# Error messages of one process of vLLM that only say that another process has failed.
_SECOND_HAND = ("See root cause above", "Worker failed with error", "Failed core proc(s)")
# Lines behind a message that are no part of it.
_BEGINS = re.compile(r"Traceback |During handling |The above exception |\[rank|Exception ignored")
_DETAILS = ("Config", "Args")  # pydantic says "1 validation error for ModelConfig", then what
_BAR = re.compile(r"\d+%\|")


def plain(line: str) -> tuple[str, str]:
    """The level of a line of vLLM's log ("" if it has none), and the text after its prefix."""
    line = _PROCESS.sub("", line)
    found = _LOGGED.match(line)
    return (found["level"], line[found.end() :]) if found else ("", line)


def passed_on(line: str, *, loading: bool) -> str | None:
    """The text to show for a line, or None. Other lines than errors are shown only while `loading`.

    vLLM's banner, which is drawn with blocks, is not shown. Nor are the frames of a traceback
    during loading, because the cause is quoted at the end.
    """
    level, text = plain(line)
    if not any(map(str.isalnum, text)) or ("█" in text and not _BAR.search(text)):
        return None
    if level in ("ERROR", "CRITICAL"):
        is_frame = text.startswith((" ", "Traceback"))
        return None if is_frame and loading else f"vllm: {text}"
    if not loading or (not level and not _BAR.search(text)):
        return None
    return f"vllm: {text[:MOST_CHARS]}"


def cause(lines: Iterable[str]) -> str:
    """The error that ended vLLM: the last error that is not only about another process's error."""
    errors: list[str] = []
    last, level_of_error = "", None
    for line in lines:
        level, text = plain(line)
        if _ERROR.match(text):
            errors.append(text)
            level_of_error = level
        elif level != level_of_error or _BEGINS.match(text):
            level_of_error = None
        else:  # the message goes on
            errors[-1] += f"{':' if errors[-1].endswith(_DETAILS) else ''} {text.strip()}"
        last = text or last
    own = [text for text in errors if not any(words in text for words in _SECOND_HAND)]
    return [last or "it printed nothing", *errors, *own][-1][:MOST_CHARS]
