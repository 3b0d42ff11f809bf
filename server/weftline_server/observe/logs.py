"""The server's log: lines of text or of JSON, one of them for each call that has ended.

No line holds text of a prompt or of an answer unless the operator asks for it.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from weftline.contract.errors import WeftlineError
from weftline_engine import api
from weftline_server.lowering.kinds.prompt import outputs_of
from weftline_server.runtime.prompts import body_of, parts_before
from weftline_server.session.origin import ORIGIN
from weftline_server.session.session import ServerSession
from weftline_server.session.task import TaskRun

log = logging.getLogger("weftline.calls")

FIELDS = "weftline_fields"


class LogFormat(StrEnum):
    """The form of a line. Calls have lines in JSON always, in text from level `info` on."""

    TEXT = "text"
    JSON = "json"


class TextFormatter(logging.Formatter):
    """`TIME LEVEL logger: message key=value …`, the time in UTC."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, FIELDS, {})
        words = [super().formatMessage(record)]
        if (request := ORIGIN.get().request_id) and "request" not in fields:
            words.append(f"request={request}")
        for key, value in fields.items():
            if value is not None:
                words.append(f"{key}={json.dumps(value)}")
        return " ".join(words)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time in UTC, level, logger, message, and the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if (request := ORIGIN.get().request_id) and "request" not in line:
            line["request"] = request
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(form: LogFormat, level: str) -> None:
    """Send the lines of every logger to standard error, in `form`, from `level` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    log.setLevel(logging.INFO if form is LogFormat.JSON else logging.NOTSET)


class CallLog:
    """Writes a line for each call that has ended; with `prompts` also its prompt and outputs."""

    def __init__(self, prompts: bool) -> None:
        self._prompts = prompts

    def task_ended(self, session: ServerSession, run: TaskRun) -> None:
        """Log `run`, unless its lines are switched off."""
        if not log.isEnabledFor(logging.INFO):
            return
        fields = _fields(session, run)
        if self._prompts and run.task.call is not None:
            fields |= _texts(session, run)
        what = "step" if run.task.call is None else "call"
        log.info("%s %s", what, run.state.value, extra={FIELDS: fields})

    def session_closed(self, session: ServerSession) -> None:
        """Nothing: a line is of a call."""


def _fields(session: ServerSession, run: TaskRun) -> dict[str, Any]:
    """The call's ids, its seconds in each phase, its tokens and its error."""
    phases = [step.phases for step in run.steps if step.phases is not None]
    usages = [step.usage for step in run.steps if step.usage is not None]
    return {
        "session": session.id,
        "call": run.task.id,
        "request": run.origin.request_id or None,
        "name": run.task.name,
        "tenant": session.tenant,
        "state": run.state.value,
        "model": run.task.resource,
        "engine": run.steps[-1].engine if run.steps else None,
        **{
            f"{name}_s": round(sum(phase[name] for phase in phases), 6)
            for name in ("queue", "fill", "generate", "transform")
        },
        **{name: sum(getattr(usage, name) for usage in usages) for name in api.COUNTS},
        "error": None if run.error is None else run.error.type,
        "failed_first": None if run.error is None else run.error.call,
    }


def _texts(session: ServerSession, run: TaskRun) -> dict[str, Any]:
    """The prompt before the last output that was begun, if any, and the text of every output."""
    prompt: Any = None
    if run.steps:  # a call without a step never got its inputs
        last = run.task.primitives[len(run.steps) - 1]
        try:
            parts = parts_before(session, body_of(last))
            values = parts.values_now()
            before = None if values is None else parts.prompt(values)
            if before is None:
                prompt = "(too long for the log)"
            elif before.messages is None:
                prompt = before.text
            else:
                prompt = [(one.role, one.content) for one in before.messages]
        except WeftlineError:  # a transform of an input failed; the field `error` has its message
            prompt = None
    outputs = zip(outputs_of(run.task), run.task.writes, strict=True)
    return {
        "prompt": prompt,
        "outputs": {output.name: session.variables[var].text for output, var in outputs},
    }
