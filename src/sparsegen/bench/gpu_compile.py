"""What the GPU kernels take of devices that need not be here: registers, spills, shared memory, found by compiling.

``python -m sparsegen.bench.gpu_compile results/gpu-compile.json`` compiles every case for every target. It needs Triton
with its interpreter off, and no GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
# Shared memory one program may ask for, in bytes: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability"; AMD's CDNA 3 ISA (LDS of a workgroup).
SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
SOURCES = Path(__file__).parents[1] / "torch" / "_triton"


class Case(NamedTuple):
    """One kernel to compile: its name in the table, the function, its types and constants, and its warps."""

    name: str
    kernel: Any
    given: dict[str, Any]  # argument -> a type ("*bf16", "i32") or a constant
    warps: int
    stages: int | None = None


def fingerprint() -> str:
    """A hash of the sources of kernels and launches: results are of this state of them or they are old."""
    text = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.py")) if path.name != "__init__.py")
    return hashlib.sha256(text).hexdigest()[:16]


def _types(case: Case) -> tuple[dict[str, str], dict[str, Any], dict[Any, Any]]:
    """Signature, constants and alignments as a launch with aligned tensors would have them."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: dict[Any, Any] = {}
    for i, name in enumerate(case.kernel.arg_names):
        kind = case.given.get(name, "i32")
        if not isinstance(kind, str) or (name.isupper() and not kind.startswith("*")):
            signature[name], constants[name] = "constexpr", kind
            continue
        signature[name] = kind.removesuffix("!")
        if kind.startswith("*") or kind.endswith("!"):  # "!": divisible by 16
            aligned[(i,)] = [["tt.divisibility", 16]]
    return signature, constants, aligned


def _nvidia(found: Any, log: str) -> dict[str, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    numbers = re.search(r"REG:(\d+) STACK:(\d+)", usage.stdout)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if numbers is None or spills is None:
        raise RuntimeError(f"the compiler's report has another form: {usage.stdout} {log}")
    return {"registers": int(numbers[1]), "spilled": int(spills[1]) + int(spills[2])}


def _amd(found: Any) -> dict[str, int]:
    text = found.asm["amdgcn"]

    def number(key: str) -> int:
        match = re.search(rf"\.{key}:\s*(\d+)", text)
        if match is None:
            raise RuntimeError(f"the assembly does not say its {key}")
        return int(match[1])

    return {"registers": number("vgpr_count"), "spilled": 4 * number("vgpr_spill_count")}


def compile_case(case: Case, target: str) -> dict[str, int]:
    """Compile for a target: registers of a thread, bytes it spills, bytes of shared memory of a program."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True
    signature, constants, aligned = _types(case)
    options = {"num_warps": case.warps, "enable_fp_fusion": False}
    if case.stages is not None:
        options["num_stages"] = case.stages
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=constants, attrs=aligned)
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        found = triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)
    usage = _nvidia(found, log.getvalue()) if "cubin" in found.asm else _amd(found)
    return {**usage, "shared": int(found.metadata.shared), "warps": case.warps}


_MASKS = {"mask_12": "i32", "mask_2": "i32", "m_k": 1}


def row_cases() -> Iterator[Case]:
    """Rows in registers: lengths and types, the rules, the transforms."""
    import triton.language as tl

    from sparsegen.torch._triton import launch, powers, rows
    from sparsegen.torch._triton.layout import BACK, REGISTERS, tile

    def case(kind: str, kernel: Any, dtype: str, n: int, transform: int, rule: int, mask: bool) -> Case:
        size = tile(n, 1 << 20)
        wide, pointer = (tl.float64 if dtype == "fp64" else tl.float32), f"*{dtype}"
        given = {
            **dict.fromkeys(("X", "P", "V", "Z", "GRAD"), pointer),
            **dict.fromkeys(("CONTROL", "HEAT", "KEPT", "ALONG", "WARM"), "*fp64"),
            **dict.fromkeys(("n", "x_b", "p_b", "v_b", "z_b"), "i32!"),
            **dict.fromkeys(("x_k", "p_k", "v_k", "z_k"), 1), **_MASKS,
            "MASK": "*i8", "TRANSFORM": transform, "RULE": rule, "HAS_MASK": mask, "KEEP": rule > 0 or transform > 0,
            "STRIDED": False, "WIDE": wide, "ROWS": size.rows, "BLOCK": size.block,
        }  # fmt: skip
        what = f"{kind} {dtype} {size.rows}x{size.block}"
        return Case(what + " mask" * mask, kernel, given, launch.warps_for(launch.Numbers(transform, rule), size))

    limits = {"project": REGISTERS, "vjp": BACK}
    both = (("project", rows.project_kernel), ("vjp", rows.vjp_kernel))
    for word, kernel in both:
        for dtype in ("bf16", "fp32"):
            for n in (64, 1024, 8192, 16384):
                if n <= limits[word]:
                    yield case(word, kernel, dtype, n, 0, 0, False)
        yield case(word, kernel, "fp64", 4096, 0, 0, False)
        yield case(f"{word} hourglass", kernel, "bf16", 4096, 0, 2, True)
        yield case(f"{word} hourglass", kernel, "bf16", BACK, 0, 2, False)
        for number, transform in enumerate(("exp", "sq", "log"), 1):
            yield case(f"{word} {transform}", kernel, "bf16", 4096, number, 0, False)
        yield case(f"{word} softmax", kernel, "bf16", BACK, 1, 3, False)
    for word, kernel in (("entmax", powers.power_kernel), ("entmax vjp", powers.power_vjp_kernel)):
        for dtype, n in (("bf16", 1024), ("bf16", launch.POWERS), ("fp32", launch.POWERS)):
            yield case(word, kernel, dtype, n, 0, -1, False)


def long_cases() -> Iterator[Case]:
    """Rows that are streamed."""
    import triton.language as tl

    from sparsegen.torch._triton import launch, long_rows

    for dtype in ("bf16", "fp32"):
        given = {
            **dict.fromkeys(("X", "P", "V", "Z", "GRAD"), f"*{dtype}"), "TOPS": "*fp32",
            **dict.fromkeys(("CONTROL", "KEPT", "ALONG", "SUMS", "FOUND"), "*fp64"), "MASK": "*i8",
            **dict.fromkeys(("n", "x_row", "v_row", "z_row"), "i32!"), **dict.fromkeys(("v_k", "z_k"), 1), **_MASKS,
            "MEAN": False, "RULE": 0, "KEEP": False, "HAS_MASK": False, "WIDE": tl.float32,
            "GROUPS": launch.GROUPS, "E": launch.GROUP, "BLOCK": launch.PART,
        }  # fmt: skip
        for name in ("groups", "threshold", "write", "sums", "grad"):
            yield Case(f"long {name} {dtype}", getattr(long_rows, f"{name}_kernel"), given, 8)


_ATTENTION: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("bf16", 16, {}),
    ("bf16", 32, {}),
    ("bf16", 64, {}),
    ("fp16", 64, {}),
    ("bf16", 128, {}),
    ("bf16", 256, {}),
    ("fp32", 64, {}),
    ("bf16", 64, {"CAUSAL": True}),
    ("bf16", 128, {"MASKED": 1, "MASK_ROWS": True}),
    *(("bf16", size, {"WEIGH": weigh}) for weigh in (1, 2) for size in (64, 128)),
    *(("fp32", 64, {"WEIGH": weigh}) for weigh in (1, 2)),
    ("bf16", 64, {"WEIGH": 1, "CAUSAL": True}),
    ("bf16", 128, {"WEIGH": 1, "MASKED": 1, "MASK_ROWS": True}),
    *(("bf16", size, {"DROPS": True}) for size in (64, 128)),
    *(("bf16", size, {"WEIGH": 1, "DROPS": True}) for size in (64, 128)),
    ("bf16", 64, {"WEIGH": 2, "DROPS": True}),
)
_WEIGHS = ("", "shares", "entmax")


def _word(name: str, value: Any) -> str:
    """What the table calls a constant."""
    if name == "WEIGH":
        return _WEIGHS[value]
    return name.lower() if value is True else f"{name.lower()}{value}"


def decode_cases() -> Iterator[Case]:
    """Few queries against keys that several programs share."""
    from sparsegen.torch._triton import attention_launch, decode

    for dtype, size in (("bf16", 64), ("bf16", 128), ("fp32", 64)):
        given = {
            **dict.fromkeys(("Q", "K", "V"), f"*{dtype}"), **dict.fromkeys(("X", "P", "PARTS"), "*fp32"),
            **{f"{name}_{axis}": "i32!" for name in "qkv" for axis in ("b", "h", "row")},
            **dict.fromkeys(("d", "dv", "lk", "mask_b", "mask_h", "mask_q"), "i32!"), "mask_k": 1, "scale": "fp32",
            "MASK": "*i8", "CAUSAL": False, "MASKED": 0, "PRECISION": "ieee", "SPLIT": attention_launch.SPLIT,
            "BM": attention_launch.FEW, "BD": size, "BV": size,
        }  # fmt: skip
        for word, kernel, keys in (
            ("scores", decode.scores_kernel, attention_launch.SCORED),
            ("values", decode.values_kernel, attention_launch.SUMMED),
        ):
            yield Case(f"attention split {word} {dtype} d{size}", kernel, {**given, "BN": keys}, 4)


def attention_cases() -> Iterator[Case]:
    """Types and head sizes, and masks and rules at some of them."""
    import torch

    from sparsegen.torch._triton import attend, attend_back
    from sparsegen.torch._triton.attention_launch import key_options, tiles_for

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    kernels = {
        "bound": (attend.bound_kernel, {}), "output": (attend.output_kernel, {"REFINE": False}),
        "refine": (attend.output_kernel, {"REFINE": True}), "query grad": (attend_back.query_grad_kernel, {}),
        "key grad": (attend_back.key_grad_kernel, {}),
    }  # fmt: skip
    for dtype, size, special in _ATTENTION:
        tiles = tiles_for(dtypes[dtype], size)
        steps = [f"{name}_{axis}" for name in ("q", "k", "v", "o", "g", "gk", "gv") for axis in ("b", "h", "row")]
        given = {
            **dict.fromkeys(("Q", "K", "V", "OUT", "GRAD_OUT", "GRAD_Q", "GRAD_K", "GRAD_V"), f"*{dtype}"),
            **dict.fromkeys(("RADIUS", "MEANS", "ALONG"), "*fp64"), **dict.fromkeys(("FOUND", "DELTA"), "*fp32"),
            **dict.fromkeys(("TILES", "LIST", "NUMBER"), "*i32"), "ACTIVE": "*i8", "scale": "fp32", "mask_k": 1,
            **dict.fromkeys((*steps, "d", "dv", "mask_b", "mask_h", "mask_q"), "i32!"),
            "MASK": "*fp32" if special.get("MASKED") == 2 else "*i8", "PRECISION": "ieee", "RULE": 0, "CAUSAL": False,
            "SEED": "*i64", "heat": "fp32", "taken": "i64", "spare": "fp32", "WEIGH": 0, "DROPS": False, "MASKED": 0,
            "MASK_ROWS": False, "BM": tiles.queries, "BN": tiles.keys, "BD": size, "BV": size, **special,
        }  # fmt: skip
        keys = key_options(tiles, size, given["WEIGH"] == 1 or given["DROPS"])
        words = " ".join(_word(name, value) for name, value in special.items())
        for word, (kernel, more) in kernels.items():
            if word != "bound" or not given["DROPS"]:  # it has nothing to drop
                name = f"attention {word} {dtype} d{size} {words}".strip()
                stages = keys["num_stages"] if word == "key grad" else 2
                yield Case(name, kernel, {**given, **more, "SUB": keys["SUB"]}, tiles.warps, stages)
    lists = {"ACTIVE": "*i8", "LIST": "*i32", "NUMBER": "*i32", "CHUNK": 256}
    yield Case("attention columns", attend_back.columns_kernel, lists, 1)


def cases() -> list[Case]:
    """Every case of the matrix."""
    return [*row_cases(), *long_cases(), *attention_cases(), *decode_cases()]


def run(path: Path, targets: list[str], only: str = "") -> None:
    """Compile the cases and write what was found."""
    import triton

    from sparsegen.experiments.store import versions

    made = {"versions": {**versions(), "triton": triton.__version__}, "sources": fingerprint()}
    found: dict[str, Any] = {**made, "shared": SHARED, "kernels": {}}
    for case in cases():
        if only in case.name:
            found["kernels"][case.name] = {target: compile_case(case, target) for target in targets}
            print(case.name, found["kernels"][case.name], flush=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"
    targets_given = sys.argv[2].split(",") if len(sys.argv) > 2 else list(TARGETS)
    run(Path(sys.argv[1]), targets_given, sys.argv[3] if len(sys.argv) > 3 else "")
