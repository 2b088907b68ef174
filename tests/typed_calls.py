"""What a type checker knows of the public functions. Read by mypy (`make lint`), never run.

Each line names the type of a call: an `Any` that creeps into a public signature is an error here.
"""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

import sparsegen as sg
import sparsegen.jax as sgj
import sparsegen.torch as sgt

z, t, x = np.zeros((2, 3)), torch.zeros(2, 3), jnp.zeros((2, 3))
Array = np.ndarray


def maps() -> None:
    assert_type(sg.sparsemax(z), Array)
    assert_type(sg.sparsemax(z, return_info=True), tuple[Array, sg.Info])
    assert_type(sg.sparsegen_lin(z, lam=0.5), Array)
    assert_type(sg.sparsehourglass(z, q=1.0, return_info=True), tuple[Array, sg.Info])
    assert_type(sg.softmax(z, temperature=2.0), Array)
    assert_type(sg.project(z, 2.0), Array)
    assert_type(sgt.sparsemax(t), Tensor)
    assert_type(sgt.sparsemax(t, return_info=True), tuple[Tensor, sgt.Info])
    assert_type(sgt.sparsegen(t, lam=t[:, 0], return_info=True), tuple[Tensor, sgt.Info])
    assert_type(sgt.sparsecone(t, q=1.0), Tensor)
    assert_type(sgt.project(t, 2.0, return_info=True), tuple[Tensor, sgt.Info])


def jax_maps() -> None:
    assert_type(sgj.sparsemax(x), jax.Array)
    assert_type(sgj.sparsegen_lin(x, lam=x[:, 0], where=x > 0, return_info=True), tuple[jax.Array, sgj.Info])
    assert_type(sgj.sparsehourglass(x, q=1.0), jax.Array)
    assert_type(sgj.project(x, 2.0, return_info=True), tuple[jax.Array, sgj.Info])
    assert_type(sgj.sparsegen_hinge_loss(x, x, lam=0.5), jax.Array)
    assert_type(sgj.sparse_attention(x, x, x), jax.Array)
    assert_type(sgj.sparse_attention(x, x, x, return_weights=True, lam=0.5), tuple[jax.Array, jax.Array])
    sgj.sparsehourglass(x)  # type: ignore[call-overload]


def losses() -> None:
    assert_type(sg.softmax_log_loss(z, z, return_grad=True)[1], sg.Gradients)
    assert_type(sgt.sparsegen_hinge_loss(t, t, lam=0.5), Tensor)
    assert_type(sgt.SparsegenHingeLoss(lam=0.5)(t, t), Any)  # as every call of a torch module


def controls() -> None:
    assert_type(sg.lam_for_support(z, 2), float | Array)
    assert_type(sg.lam_for_mean_support(z, 2), float)
    assert_type(sg.calibrate([z], density=0.5), float)
    assert_type(sg.explain(z), sg.Explanation)
    assert_type(sgt.lam_for_support(t, 2), Tensor)
    assert_type(sgt.q_for_support(t, 2), Tensor)
    assert_type(sgt.explain(t), sg.Explanation)


def attention() -> None:
    assert_type(sgt.sparse_attention(t, t, t), Tensor)
    assert_type(sgt.sparse_attention(t, t, t, None, 0.0, True, return_weights=True), tuple[Tensor, Tensor])
    assert_type(sgt.sparse_attention(t, t, t, return_weights="csr"), tuple[Tensor, sgt.SparseWeights])
    assert_type(sgt.make_map("sparsegen_lin", lam=0.5), nn.Module)
    assert_type(sgt.replace_attention(nn.Transformer()), int)
    assert_type(sgt.MultiheadAttention(8, 2).forward(t, t, t), tuple[Tensor, Tensor | None])
    assert_type(sgt.Sparsehourglass(q=1.0).q, Tensor)


def mistakes() -> None:
    sg.sparsemax(z, lam=0.5)  # type: ignore[call-overload]
    sgt.sparsehourglass(t)  # type: ignore[call-overload]
    sgt.sparse_attention(t, t, t, return_weights="dense")  # type: ignore[call-overload]
    sgt.no_such_map  # type: ignore[attr-defined]  # noqa: B018
    sg.no_such_map  # type: ignore[attr-defined]  # noqa: B018
