"""The benchmark of calls reads questions of two wheels, and counts the calls that fit."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bench.micro import tau2_tasks
from bench.micro.calls import Asked, is_valid, questions, row

SIDE = {"type": "dict", "properties": {"x": {"type": "float"}, "y": {"type": "any"}}}
FUNCTION = {
    "name": "area",
    "parameters": {
        "type": "dict",
        "properties": {"sides": {"type": "tuple", "items": SIDE}},
        "required": ["sides"],
    },
}


@pytest.fixture
def functions(tmp_path: Path) -> Any:
    """The functions of a wheel with one question."""
    asked = {"id": "1", "question": [[{"role": "user", "content": "?"}]], "function": [FUNCTION]}
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("bfcl_eval/data/BFCL_v4_multiple.json", json.dumps(asked) + "\n")
    [(messages, functions)] = questions(tmp_path / "w.whl", "multiple")
    assert messages == [{"role": "user", "content": "?"}]
    return functions


@pytest.mark.parametrize(
    ("name", "arguments", "is_one"),
    [
        ("area", '{"sides": [{"x": 1.5, "y": "any"}, {}]}', True),
        ("area", '{"sides": [{"x": "1.5"}]}', False),
        ("area", '{"sides": {}}', False),
        ("area", "{}", False),
        ("area", "{", False),
        ("volume", '{"sides": []}', False),
    ],
)
def test_a_call_satisfies_its_schema(
    functions: Any, name: str, arguments: str, is_one: bool
) -> None:
    """Types of Python are those of JSON. Any is no type."""
    assert is_valid({"name": name, "arguments": arguments}, functions) is is_one


def test_a_row_adds_answers_up() -> None:
    asked = [
        Asked(2, 1, False, 0.5, 300, 100),
        Asked(0, 0, True, 0.1, 100, 100),
        Asked(1, 1, False, 0.2, 100, 50),
    ]
    assert row(asked) == {
        "questions": 3, "called": 2, "cut": 1, "calls": 3, "valid": 2, "ms": 200, "cached": 0.5,
    }  # fmt: skip


MODELS = """
raise SystemExit("no code of the wheel runs")
Cabin = Literal["eco", "business"]
class Base(BaseModel):
    name: str = Field(description="A name")
class Passenger(Base):
    bags: int = Field(description="Bags")
"""
TOOLS = """
raise SystemExit("no code of the wheel runs")
class Tools(ToolKitBase):
    def _private(self) -> None: ...
    @is_tool(ToolType.WRITE)
    def book(self, flight: str, cabin: Cabin, who: List[Passenger | dict], pay: float = 1.0) -> str:
        \"\"\"
        Book a flight.
        Ask first.

        Args:
            flight: Its number: 'A1'.
            cabin: The class.

        Returns:
            flight: No parameter.
        \"\"\"
"""
BOOKED = {"flight": "A1", "cabin": "eco", "who": [{"name": "Ann", "bags": 0}]}


def test_a_task_of_tau2_is_a_question_a_call(tmp_path: Path) -> None:
    """The tools are those of the sources. A turn stands behind the calls before it as they were
    recorded, with the records that their arguments name."""
    told = {"reason_for_call": "Fly!", "known_info": None, "task_instructions": "Be short."}
    actions = [{"action_id": f"0_{at}", "name": "book", "arguments": BOOKED} for at in range(2)]
    task = {"user_scenario": {"instructions": told}, "evaluation_criteria": {"actions": actions}}
    none = {"user_scenario": {"instructions": told}, "evaluation_criteria": {"actions": None}}
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("tau2/domains/air/data_model.py", MODELS)
        wheel.writestr("tau2/domains/air/tools.py", TOOLS)
        files = "tau2/data/tau2/domains/air"
        wheel.writestr(f"{files}/policy.md", "Be kind.")
        wheel.writestr(f"{files}/tasks.json", json.dumps([none, task]))
        wheel.writestr(f"{files}/db.json", json.dumps({"flights": {"A1": {"seats": 3}}}))
    [(first, offered), (second, again)] = tau2_tasks.questions(tmp_path / "w.whl", "air")
    text, passenger = {"type": "string"}, {"name": {"type": "string"}, "bags": {"type": "integer"}}
    who = {"type": "object", "properties": passenger, "required": ["name", "bags"]}
    [book] = offered
    assert offered == again and book == {
        "name": "book",
        "description": "Book a flight.\nAsk first.",
        "parameters": {
            "type": "object",
            "properties": {
                "flight": {**text, "description": "Its number: 'A1'."},
                "cabin": {**text, "enum": ["eco", "business"], "description": "The class."},
                "who": {"type": "array", "items": who},
                "pay": {"type": "number"},
            },
            "required": ["flight", "cabin", "who"],
        },
    }
    assert is_valid({"name": "book", "arguments": json.dumps(BOOKED)}, offered)
    assert first == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Fly!\nBe short."},
    ]
    function = {"name": "book", "arguments": json.dumps(BOOKED)}
    call = {"id": "0_0", "type": "function", "function": function}
    assert second == [
        *first,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "0_0", "content": '[{"seats": 3}]'},
    ]
