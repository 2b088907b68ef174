"""A call of every front end, as someone would make who has just installed it; each line says what was found.

    python tools/smoke.py [--only numpy,torch,jax,sklearn,transformers,command]

It needs nothing but the installed package: no clone, no compiler.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CHECKS: dict[str, Callable[[], str]] = {}


def check(f: Callable[[], str]) -> Callable[[], str]:
    CHECKS[f.__name__] = f
    return f


def need(true: object, what: str) -> None:
    if not true:
        raise SystemExit(f"smoke test: {what}")


@check
def numpy() -> str:
    import numpy as np

    import sparsegen as sg
    from sparsegen import _core

    need(sg.sparsegen_lin([0.5, 0.25, 0.0], lam=0.5).tolist() == [0.75, 0.25, 0.0], "sparsegen_lin of three scores")
    z = np.random.default_rng(0).normal(size=(200, 300))
    p = sg.sparsegen_lin(z, lam=sg.lam_for_support(z, 5))
    need(((p > 0).sum(axis=-1) == 5).all() and np.abs(p.sum(axis=-1) - 1).max() < 1e-14, "five nonzeros in every row")
    loss, grad = sg.sparsegen_hinge_loss(z, np.arange(200) % 300, return_grad=True)
    need(np.isfinite(loss) and np.isfinite(grad.scores).all(), "a finite loss")
    return f"sparsegen {sg.__version__} on {sys.version.split()[0]}, engines {', '.join(_core.engines())}"


@check
def torch() -> str:
    import torch

    import sparsegen.torch as sgt

    z = torch.randn(64, 50, dtype=torch.float64, requires_grad=True)
    need(torch.autograd.gradcheck(lambda t: sgt.sparsegen_lin(t, lam=0.3), (z[:2].detach().requires_grad_(),)), "grad")
    q, k, v = torch.randn(3, 2, 4, 33, 16)
    out, weights = sgt.sparse_attention(q, k, v, is_causal=True, return_weights=True)
    need(torch.allclose(out, weights @ v, atol=1e-5) and (weights == 0).any(), "attention with zeros")
    return f"torch {torch.__version__}"


@check
def jax() -> str:
    import jax
    import jax.numpy as jnp

    import sparsegen.jax as sgj

    z = jax.random.normal(jax.random.key(0), (8, 20))
    p = jax.jit(lambda t: sgj.sparsegen_lin(t, lam=0.3))(z)
    need((p == 0).any() and jnp.allclose(p.sum(-1), 1, atol=1e-6), "rows that sum to 1")
    need(jnp.isfinite(jax.grad(lambda t: (sgj.sparsemax(t) ** 2).sum())(z)).all(), "a finite gradient")
    from sparsegen.jax import _ffi

    return f"jax {jax.__version__}, {_ffi.MISSING or 'with handlers'}"


@check
def sklearn() -> str:
    import pickle

    import sklearn

    from sparsegen.sklearn import SparseMultilabelClassifier

    X = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.9], [0.9, 0.1], [0.9, 0.9]]
    tags = [("wind",), ("rain",), ("rain", "wind"), ("wind",), ("rain",), ("rain", "wind")]
    model = pickle.loads(pickle.dumps(SparseMultilabelClassifier().fit(X, tags)))
    need(model.predict([[0.1, 1.0], [1.0, 1.0]]) == [("wind",), ("rain", "wind")], "labels of two rows")
    return f"scikit-learn {sklearn.__version__}"


@check
def transformers() -> str:
    import torch
    import transformers

    from sparsegen.transformers import sparsify

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).eval()
    need(len(sparsify(model, "sparsegen_softmax", lam=0.05)) == 1, "one layer switched")
    need(torch.isfinite(model(torch.arange(12)[None]).logits).all(), "finite outputs")
    return f"transformers {transformers.__version__}"


@check
def command() -> str:
    program = Path(sys.executable).with_name("sparsegen")
    need(program.exists(), "the program sparsegen beside Python")
    for line in (["--version"], ["doctor"], ["tour", "--seconds", "0"]):
        done = subprocess.run([program, *line], capture_output=True, text=True, timeout=300, check=False)
        need(done.returncode == 0, f"sparsegen {' '.join(line)} ends with {done.returncode}: {done.stderr[-500:]}")
    return "sparsegen --version, doctor, tour"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(CHECKS), help="front ends, separated by commas")
    parser.add_argument("--no-compiler", action="store_true", help="fail where a compiler is on PATH")
    options = parser.parse_args()
    if options.no_compiler:
        found = [name for name in ("c++", "g++", "clang++", "cc", "gcc", "clang", "cmake") if shutil.which(name)]
        need(not found, f"no compiler was to be on PATH, and there is {', '.join(found)}")
    for name in options.only.split(","):
        print(f"{name}: {CHECKS[name]()}", flush=True)


if __name__ == "__main__":
    main()
