"""The kernel's headers compile for instruction sets that a compiler may be asked for and that we do not build."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

KERNEL = Path(__file__).parents[2] / "src" / "sparsegen" / "_kernel"
FUZZ = KERNEL.parents[2] / "fuzz"
BUILDS = [("g++", "-mfma"), ("g++", "-mavx -mfma"), ("clang++", ""), ("clang++-14", ""), ("aarch64-linux-gnu-g++", "")]


@pytest.mark.parametrize(("compiler", "flags"), [build for build in BUILDS if shutil.which(build[0])])
def test_the_plain_engine_compiles(compiler, flags):
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-fsyntax-only", *flags.split(), KERNEL / "isa_plain.cpp"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


X86 = platform.machine() in ("x86_64", "AMD64") and shutil.which("g++")


@pytest.mark.skipif(not X86, reason="needs g++ for x86")
def test_the_avx512_engine_compiles_for_machines_without_it(tmp_path):
    """The fuzz driver runs it through emulate512.hpp there, which must know every instruction that the kernel names."""
    flags = ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mpopcnt", "-Wno-psabi", "-Wno-ignored-attributes"]
    emulated = ["-include", FUZZ / "emulate512.hpp", KERNEL / "isa_avx512.cpp", "-o", tmp_path / "made.s"]
    command = ["g++", "-std=c++17", "-O0", "-S", *flags, *emulated]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_every_feature_the_build_may_use_is_asked_for():
    flags = (KERNEL.parents[2] / "CMakeLists.txt").read_text()
    asked = (KERNEL / "module.cpp").read_text()
    named = [word for line in flags.splitlines() if line.strip().startswith("set(avx") for word in line.split()]
    features = {word.strip(")").removeprefix("-m") for word in named if word.startswith("-m") and "=" not in word}
    assert features >= {"avx2", "bmi2", "avx512f"}
    for feature in features - {"f16c"}:  # which older compilers do not know by name
        assert f'__builtin_cpu_supports("{feature}")' in asked
    assert "has_f16c()" in asked
