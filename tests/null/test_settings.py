"""The configuration file: its settings, flags that take precedence, and errors."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import pytest

from weftline.errors import InvalidRequest
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_server.commands import engine_spec
from weftline_server.commands.engine_spec import from_tables, without
from weftline_server.commands.settings import Process, key_of, load
from weftline_server.config import ServerConfig

SERVING = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text()


@pytest.fixture
def write(tmp_path: Path) -> Path:
    return tmp_path / "weftline.toml"


def test_the_file_in_the_documentation_says_the_defaults(write: Path) -> None:
    """Every line of it is valid and states the default."""
    [text] = re.findall(r"```toml\n(.*?)```", SERVING, re.S)
    write.write_text(text)
    settings = load(write, {})
    assert (settings.server, settings.process) == (ServerConfig(), Process())
    assert load(None, {}) == settings


def test_flags_go_before_the_file(write: Path) -> None:
    """Without a flag, the file's value counts. Tables set only the settings that they name."""
    write.write_text(
        'port = 1\nwithout = ["affinity"]\ndrain_s = 2\n[registry]\nidle_s = 5\n'
        "[registry.budget]\ncalls = 7\n[[engine]]\nengine = 'null'\n[[engine]]\nengine = 'torch'\n"
    )
    settings = load(write, {"port": 2, "policy": "request", "host": None})
    assert (settings.server.port, settings.server.policy) == (2, "request")
    assert settings.server.without == {"affinity"}
    assert settings.process.drain_s == 2.0
    assert (settings.server.registry.idle_s, settings.server.registry.budget.calls) == (5.0, 7)
    assert settings.engines == ({"engine": "null"}, {"engine": "torch"})


def test_keys_belong_to_tenants(write: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are in the file or in the environment. A key in a file of its own replaces them all."""
    monkeypatch.setenv("B_KEY", "bbb")
    write.write_text('[keys]\na = "aaa"\nb = "$B_KEY"\n')
    assert load(write, {}).server.keys == {"aaa": "a", "bbb": "b"}
    assert load(write, {"keys": {"x": "default"}}).server.keys == {"x": "default"}


def test_a_flag_sets_one_setting_of_a_table(write: Path) -> None:
    """The other settings of its tables keep the values of the file."""
    write.write_text("[registry]\nidle_s = 5\n[registry.closed]\nkeep_s = 1\nmost = 3\n")
    registry = load(write, {"registry.closed.keep_s": 7.0}).server.registry
    assert (registry.idle_s, registry.closed.keep_s, registry.closed.most) == (5.0, 7.0, 3)
    assert load(None, {"registry.closed.keep_s": 0.0}).server.registry.closed.keep_s == 0.0


def test_a_key_file_holds_one_key(tmp_path: Path) -> None:
    """A key on the command line would be seen by everybody who lists the machine's processes."""
    path = tmp_path / "key"
    path.write_text("secret\n")
    assert (key_of(path), key_of(None)) == ("secret", None)
    for text in ("", "two keys"):
        path.write_text(text)
        with pytest.raises(InvalidRequest, match="must hold one key and nothing else"):
            key_of(path)
    with pytest.raises(InvalidRequest, match=r"cannot read .*absent"):
        key_of(tmp_path / "absent")


WRONG = [
    ("prot = 1", "there is no setting prot: did you mean port"),
    ("[registry]\nidle = 1", "there is no setting registry.idle: did you mean idle_s"),
    ("port = '8600'", "port: Input should be a valid integer, not '8600'"),
    ("port = 99999", "99999 is no port: use 1 to 65535, or 0 for one that is free"),
    ("port = -1", "-1 is no port"),
    ("registry = 3", "registry is a table"),
    ("[registry.budget]\ncalls = 1.5", "registry.budget.calls: Input should be a valid integer"),
    ("price = 3", "price is a table"),
    ("price.m = 3", "price.m is a table"),
    ("price.m.prompt = -1", "a price is at least 0"),
    ("price.m.output = 'much'", "price.m.output: Input should be a valid number, not 'much'"),
    ("log_level = 'loud'", "log_level: Input should be 'debug', 'info' or 'warning', not 'loud'"),
    ("policy = 'best'", "policy 'best' is none of"),
    ("drain_s = -1", "drain_s: Input should be greater than or equal to 0, not -1"),
    ("engine = 1", "engine is a list of tables: write [[engine]]"),
    ("store = 1", "store is a list of tables: write [[store]]"),
    ("[keys]\na = '$NOT_SET_HERE'", "keys.a is neither a key"),
    ("[keys]\na = 'k'\nb = 'k'", "b and a have the same key"),
    ("host = '0.0.0.0'", "needs API keys"),
    ("port = ", "is not TOML"),
]


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_setting_is_named(write: Path, text: str, says: str) -> None:
    """The error is one sentence, with the nearest name if there is one."""
    write.write_text(text)
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        load(write, {})


def test_a_file_that_is_not_there(write: Path) -> None:
    """It ends with a sentence, not with a traceback."""
    with pytest.raises(InvalidRequest, match="cannot read"):
        load(write, {})


def test_engines_get_the_switch_of_tree_attention() -> None:
    """`without` also names engine optimisations, and these reach the engine's child process."""
    names = load(None, {"without": ["tree_attention", "groups"]}).server.without
    tables: list[dict[str, object]] = [{"engine": "null"}, {"engine": "torch", "kv_tokens": 512}]
    specs = without(from_tables(tables), names)
    assert [one.embedded.tree_attention for one in specs] == [False, False]
    assert without(from_tables(tables), frozenset({"groups"})) == from_tables(tables)
    off = specs[1].embedded.tree_attention
    config = EmbeddedConfig(model=Path("m"), tree_attention=off)
    assert config.arguments(3)[-1] == "--no-tree-attention"
    assert "--no-tree-attention" not in EmbeddedConfig(model=Path("m")).arguments(3)


def test_drafting_is_switched_off_in_the_engines() -> None:
    """The server's switch reaches the command line of the engine's process, and nothing else
    does."""
    names = load(None, {"without": ["drafting"]}).server.without
    [spec] = without(from_tables([{"engine": "torch", "kv_tokens": 512}]), names)
    assert (spec.embedded.drafting, spec.embedded.tree_attention) == (False, True)
    config = EmbeddedConfig(model=Path("m"), drafting=spec.embedded.drafting)
    assert config.arguments(3)[-1] == "--no-drafting"
    assert "--no-drafting" not in EmbeddedConfig(model=Path("m")).arguments(3)


def test_an_engine_computes_on_the_cores_of_its_table() -> None:
    """The cores reach the engine's child process. Without any, there is no --cores."""
    here = min(os.sched_getaffinity(0))
    [spec] = from_tables([{"engine": "torch", "cores": [here]}])
    words = EmbeddedConfig(model=Path("m"), cores=spec.embedded.cores).arguments(3)
    assert words[words.index("--cores") + 1] == str(here)
    assert "--cores" not in EmbeddedConfig(model=Path("m")).arguments(3)


BAD_TABLES = [
    ({"cores": 0}, "engine.cores: Input should be a valid array, not 0"),
    ({"cores": ["one"]}, "engine.cores.0: Input should be a valid integer, not 'one'"),
    ({"vllm_arguments": [1]}, "engine.vllm_arguments.0: Input should be a valid string, not 1"),
    ({"name": ["a"]}, "engine.name: Input should be a valid string, not ['a']"),
    ({"kv_tokens": True}, "engine.kv_tokens: Input should be a valid integer, not True"),
    ({"device": 3}, "engine.device: Input should be a valid string, not 3"),
    ({"vllm_scheduler": "fair"},
     "engine.vllm_scheduler: Input should be 'auto', 'weftline' or 'vllm', not 'fair'"),
    ({"core": [0]}, "there is no setting engine.core: did you mean cores?"),
    ({"vllm": {"tensor_parallel": 2}}, "there is no setting engine.vllm"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "says"), BAD_TABLES, ids=[says for _, says in BAD_TABLES])
def test_a_wrong_engine_setting_is_named(table: dict[str, object], says: str) -> None:
    """The error names the setting, the expected type and the value."""
    with pytest.raises(InvalidRequest, match=f"^{re.escape(says)}$"):
        from_tables([table])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--vllm-arguments=--block-size 32 --seed '1'"], ("--block-size", "32", "--seed", "1")),
        (["--vllm-arguments", "one", "two words"], ("one", "two words")),
        ([], ()),
    ],
)
def test_words_for_vllm_may_be_one_text(given: list[str], words: tuple[str, ...]) -> None:
    """As words of their own they would be taken for options of weftline."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    engine_spec.add_arguments(parser)
    args = parser.parse_args(["m", "--engine", "vllm", "--engine-python", "p", *given])
    (spec,) = engine_spec.from_arguments(args)
    assert spec.vllm.vllm_arguments == words
