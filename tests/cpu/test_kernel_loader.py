"""Which C kernels an engine gets: by the CPU, by WEFTLINE_ISA, and when something is broken."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.embedded.model.host_model import HostModel
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder
from weftline_kernels.cpu.compiler import compile_library, flags_of, library_for, seal, variant_key
from weftline_kernels.cpu.loader import (
    LibraryOrigin,
    LibrarySearch,
    NoKernels,
    VariantChoice,
    expect,
    load,
)
from weftline_kernels.cpu.variants import (
    VARIANTS,
    Cpu,
    cost,
    emulates_bfloat16,
    order,
    runnable,
    this_machine,
)

X86 = {one.name: Cpu("x86_64", one.needs) for one in VARIANTS if one.architecture == "x86_64"}
OLD = Cpu("x86_64", frozenset({"sse2", "avx"}))
ARM = Cpu("aarch64", frozenset({"asimd"}))
HERE = this_machine()
BEST = runnable(HERE)[0]
KEY = variant_key(BEST, HERE)


@pytest.fixture(scope="module")
def built() -> bytes:
    """The best variant of this machine, compiled and sealed."""
    return library_for(BEST, HERE)


@pytest.fixture
def search(tmp_path: Path) -> LibrarySearch:
    """An empty cache, and a wheel without libraries."""
    (tmp_path / "lib").mkdir()
    return LibrarySearch(tmp_path / "cache", tmp_path / "lib", wanted="", machine=HERE)


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A gcc that runs `script`, with the last argument, its target, in $target."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "gcc"
    program.write_text(f"#!/bin/sh\nfor target; do :; done\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: bytes) -> None:
    """A compiler that takes no time: it copies what the real one made."""
    (tmp_path / "made").write_bytes(built)
    fake_compiler(tmp_path, monkeypatch, f'cp {tmp_path / "made"} "$target"')


def cached(search: LibrarySearch) -> Path:
    return search.cache / f"decoder-{BEST.name}-{KEY}.so"


def found(search: LibrarySearch) -> VariantChoice:
    """What `load` chooses; the library has the one function that the engine calls."""
    library, choice = load(search)
    assert library.weftline_forward
    return choice


@pytest.mark.parametrize(
    ("machine", "wanted", "names", "note"),
    [
        (X86["avx512_bf16"], "", ["avx512_bf16", "avx512", "avx2"], ""),
        (X86["avx512"], "", ["avx512", "avx2"], ""),
        (X86["avx2"], "", ["avx2"], ""),
        (ARM, "", ["neon"], ""),
        (OLD, "", [], ""),
        (Cpu("riscv64", frozenset()), "", [], ""),
        (X86["avx512_bf16"], "avx2", ["avx2", "avx512_bf16", "avx512"], ""),
        (X86["avx512"], "native", ["native", "avx512", "avx2"], ""),
        (X86["avx512"], "avx512_bf16", ["avx512", "avx2"],
         "WEFTLINE_ISA is avx512_bf16, but this CPU lacks avx512_bf16, avx512_vnni."),
        (X86["avx2"], "neon", ["avx2"],
         "WEFTLINE_ISA is neon, but this CPU is x86_64 and not aarch64."),
        (X86["avx2"], "AVX2", ["avx2"],
         "WEFTLINE_ISA is 'AVX2', which is none of avx512_bf16, avx512, avx2, neon, native."),
    ],
)  # fmt: skip
def test_the_cpu_and_the_setting_choose_a_variant(
    machine: Cpu, wanted: str, names: list[str], note: str
) -> None:
    """The best one that the CPU executes, or the one asked for; the others follow."""
    variants, notes = order(wanted, machine)
    assert [one.name for one in variants] == names
    assert notes == ((note,) if note else ())


def test_the_features_are_read_from_the_system(tmp_path: Path) -> None:
    """x86 lists flags and aarch64 Features. A system without a list promises no more than NEON."""
    listed = tmp_path / "cpuinfo"
    for line in ("flags\t\t: fpu avx2 fma", "Features\t: avx2 fma fpu"):
        listed.write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n")
        assert {"avx2", "fma", "fpu"} <= this_machine(listed).features
    bare = this_machine(tmp_path / "missing")
    assert bare.features == ({"asimd"} if bare.architecture == "aarch64" else set())


def test_what_a_variant_costs_is_said() -> None:
    """A narrower variant than the CPU has is told apart from the best one."""
    by_name = {one.name: one for one in VARIANTS}
    assert cost(by_name["avx2"], X86["avx2"]) == "the fastest that this CPU runs"
    said = "8 products in an instruction, where avx512_bf16 makes 32"
    assert cost(by_name["avx2"], X86["avx512_bf16"]) == said


@pytest.mark.usefixtures("no_compiler")
def test_the_wheels_library_needs_no_compiler(search: LibrarySearch, built: bytes) -> None:
    """It is taken first, and nothing is written to the cache."""
    (search.prebuilt / f"{BEST.name}.so").write_bytes(built)
    assert expect(search) == found(search) == VariantChoice(BEST, LibraryOrigin.PREBUILT, HERE, ())
    assert not search.cache.exists()


@pytest.mark.parametrize("harm", ["cut", "changed", "other sources", "empty"])
@pytest.mark.usefixtures("no_compiler")
def test_a_bad_library_of_the_wheel_is_passed_over(
    search: LibrarySearch, built: bytes, harm: str
) -> None:
    """The one in the cache is loaded, and a sentence says why."""
    bad = {
        "cut": built[:-100],
        "changed": built[:5000] + bytes([built[5000] ^ 1]) + built[5001:],
        "other sources": seal(built, "0123456789abcdef"),
        "empty": b"",
    }[harm]
    path = search.prebuilt / f"{BEST.name}.so"
    path.write_bytes(bad)
    search.cache.mkdir()
    cached(search).write_bytes(built)
    says = "was built from other sources" if harm == "other sources" else "is damaged"
    assert found(search) == VariantChoice(BEST, LibraryOrigin.CACHED, HERE, (f"{path} {says}.",))


@pytest.mark.usefixtures("copies")
def test_a_damaged_library_in_the_cache_is_compiled_again(
    search: LibrarySearch, built: bytes
) -> None:
    """The whole one takes its place, so the next start says nothing."""
    search.cache.mkdir()
    cached(search).write_bytes(built[: len(built) // 2])
    assert expect(search).origin is LibraryOrigin.COMPILED
    note = f"{cached(search)} is damaged."
    assert found(search) == VariantChoice(BEST, LibraryOrigin.COMPILED, HERE, (note,))
    assert found(search) == VariantChoice(BEST, LibraryOrigin.CACHED, HERE, ())


@pytest.mark.usefixtures("no_compiler")
def test_a_whole_file_that_the_system_refuses_is_passed_over(search: LibrarySearch) -> None:
    """A sealed file that is no library at all ends in a sentence, too."""
    path = search.prebuilt / f"{BEST.name}.so"
    path.write_bytes(seal(b"no library", KEY))
    with pytest.raises(NoKernels) as caught:
        load(search)
    assert f"{path} does not load: " in str(caught.value)
    assert f"{BEST.name} was not compiled: no gcc or cc in PATH." in str(caught.value)


@pytest.mark.usefixtures("copies")
def test_a_cache_that_cannot_be_written_costs_a_compilation(search: LibrarySearch) -> None:
    """The library is loaded all the same; the sentence names the folder."""
    search.cache.write_text("a file where the folder should be")
    (note,) = found(search).notes
    assert note.startswith(f"The compiled {BEST.name} is not kept: {search.cache}: ")


def test_a_compiler_that_fails_is_quoted(
    search: LibrarySearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves nothing in the cache."""
    fake_compiler(tmp_path, monkeypatch, "echo no such option >&2; exit 1")
    with pytest.raises(NoKernels, match=r"was not compiled: .*gcc failed: no such option"):
        load(search)
    assert not search.cache.exists()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variants are x86's")
def test_an_old_compiler_makes_the_next_variant(
    search: LibrarySearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: bytes
) -> None:
    """The CPU has AVX-512, and the compiler does not know it."""
    (tmp_path / "made").write_bytes(built)
    script = (
        f'case "$*" in *x86-64-v4*) echo unknown >&2; exit 1;; esac; cp {tmp_path}/made "$target"'
    )
    fake_compiler(tmp_path, monkeypatch, script)
    able = LibrarySearch(search.cache, search.prebuilt, wanted="", machine=X86["avx512"])
    choice = found(able)
    assert (choice.variant.name, choice.origin) == ("avx2", LibraryOrigin.COMPILED)
    (note,) = choice.notes
    assert note.startswith("avx512 was not compiled: ") and note.endswith("gcc failed: unknown.")


@pytest.mark.usefixtures("no_compiler")
def test_without_any_way_the_reasons_are_given(search: LibrarySearch) -> None:
    """`doctor` and the engine say the same."""
    with pytest.raises(NoKernels, match=r"^No gcc or cc in PATH.$"):
        expect(search)
    with pytest.raises(NoKernels, match="no gcc or cc in PATH"):
        load(search)
    old = LibrarySearch(search.cache, search.prebuilt, wanted="", machine=OLD)
    for way in (expect, load):
        with pytest.raises(NoKernels, match=r"^This CPU lacks abm, avx2, bmi1, .*, movbe.$"):
            way(old)


def test_a_cpu_without_avx2_computes_in_float32(
    tiny_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch would emulate bfloat16 there, so it gets float32, and the first log line says so."""
    model = load_decoder(tiny_directory, "bfloat16", 16, tmp_path, machine=OLD)
    assert isinstance(model, HostModel) and model.network.dtype is torch.float32
    said = capsys.readouterr().err
    assert said.startswith("engine: torch, in float32 because this CPU has no bfloat16 products")
    assert "This CPU lacks abm, avx2, bmi1" in said


@pytest.mark.usefixtures("copies")
def test_the_first_log_line_names_the_kernels(
    tiny_directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A setting that cannot be followed is said in the same line."""
    monkeypatch.setenv("WEFTLINE_ISA", "sse9")
    assert isinstance(load_decoder(tiny_directory, "bfloat16", 16, tmp_path / "c"), NativeDecoder)
    said = capsys.readouterr().err
    kernels = f"engine: {BEST.name} kernels, compiled now: the fastest that this CPU runs."
    assert said.startswith(f"{kernels} WEFTLINE_ISA is 'sse9', which is none of ")
    assert said.count("\n") == 1


def test_bfloat16_is_emulated_where_no_product_of_it_exists() -> None:
    """AVX-512 alone is not enough; AMX and ARM's BF16 are."""
    assert emulates_bfloat16(X86["avx512"]) and emulates_bfloat16(ARM)
    assert not emulates_bfloat16(X86["avx512_bf16"])
    for feature in ("amx_bf16", "bf16"):
        assert not emulates_bfloat16(Cpu("any", frozenset({feature})))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variants are x86's")
def test_loading_a_variant_executes_none_of_its_instructions(tmp_path: Path) -> None:
    """The widest variant loads on every CPU: it has no initialisers. Only calling it would fail."""
    widest = VARIANTS[0]
    path = tmp_path / "widest.so"
    path.write_bytes(compile_library((*flags_of(widest), "-O1"), KEY))
    code = (
        "from weftline_kernels.cpu import loader; loader._share_openmp();"
        f"import ctypes; print(ctypes.CDLL({str(path)!r}).weftline_forward)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:8]) == (0, "<_FuncPt"), done.stderr
