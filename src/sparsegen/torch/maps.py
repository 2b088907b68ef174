"""The maps on torch tensors: the names, controls and edge cases of :mod:`sparsegen`, with ``dim`` and gradients.

Differentiable in the scores and in controls given as tensors (``lam``, ``q``, ``temperature``, ``radius``). They
broadcast against the scores without the class axis: one control a row, or a head. float16 and bfloat16 are computed in
float32 and rounded once. What would be an error about values in NumPy would make torch wait for the device, so it is a
NaN row here: a control tensor out of its range, a row outside the domain of ``sparsecone``, ``sparsegen_log``,
``sum_normalization`` or ``spherical_softmax``. Controls given as Python numbers are checked.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sparsegen.torch._apply import apply, apply_project, apply_sparsegen


def project(
    points: Tensor, radius: Any = 1.0, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    """Project onto the simplex of a given radius. See :func:`sparsegen.project`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.project(torch.tensor([0.5, 0.25, 0.0]), 0.5)
    tensor([0.7500, 0.2500, 0.0000])
    """
    return apply_project(points, radius, dim, mask, return_info)


def sparsemax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False) -> Any:
    """Nearest distribution to the scores. See :func:`sparsegen.sparsemax`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsemax(torch.tensor([0.25, 1.0, 0.5]))
    tensor([0.0000, 0.7500, 0.2500])
    """
    return apply("sparsemax", scores, {}, dim, mask, return_info)


def sparsegen(
    scores: Tensor, *, lam: Any = 0.0, transform: Any = "lin", dim: int = -1, mask: Tensor | None = None,
    return_info: bool = False,
) -> Any:  # fmt: skip
    """Sparsemax of transformed scores with a dial. See :func:`sparsegen.sparsegen`.

    A callable ``transform`` maps a tensor to one of the same shape by operations torch can differentiate.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsegen(torch.tensor([0.5, -0.5, 0.25]), transform=torch.abs)
    tensor([0.4167, 0.4167, 0.1667])
    """
    return apply_sparsegen(scores, lam, transform, dim, mask, return_info)


def sparsegen_lin(
    scores: Tensor, *, lam: Any = 0.0, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    """Sparsemax with a dial: sparsemax(z / (1 - lam)). See :func:`sparsegen.sparsegen`.

    >>> import torch, sparsegen.torch as sgt
    >>> lam = torch.tensor([-1.0, 0.5], requires_grad=True)  # one a row
    >>> p = sgt.sparsegen_lin(torch.tensor([[0.5, 0.25, 0.0]]).expand(2, 3), lam=lam)
    >>> (p > 0).sum(-1)
    tensor([3, 2])
    >>> p[:, 0].sum().backward()
    >>> lam.grad
    tensor([0.0625, 0.5000])
    """
    return apply("sparsegen_lin", scores, {"lam": lam}, dim, mask, return_info)


def sparsegen_exp(
    scores: Tensor, *, lam: Any = 0.0, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    """Sparsegen with g(z) = exp(z), free of overflow. See :func:`sparsegen.sparsegen`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsegen_exp(torch.tensor([1000.0, 1000.0, 999.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    return apply("sparsegen_exp", scores, {"lam": lam}, dim, mask, return_info)


def sparsegen_sq(
    scores: Tensor, *, lam: Any = 0.0, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    """Sparsegen with g(z) = z^2. See :func:`sparsegen.sparsegen`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsegen_sq(torch.tensor([1.0, -2.0, 0.5]))
    tensor([0., 1., 0.])
    """
    return apply("sparsegen_sq", scores, {"lam": lam}, dim, mask, return_info)


def sparsegen_log(
    scores: Tensor, *, lam: Any = 0.0, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    """Sparsegen with g(z) = log(z), for positive scores. See :func:`sparsegen.sparsegen`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsegen_log(torch.tensor([2.0, 2.0, 0.25]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    return apply("sparsegen_log", scores, {"lam": lam}, dim, mask, return_info)


def sparsecone(scores: Tensor, *, q: Any, dim: int = -1, mask: Tensor | None = None, return_info: bool = False) -> Any:
    """Between sum normalization (q = 0) and sparsemax (q = inf). See :func:`sparsegen.sparsecone`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsecone(torch.tensor([1.0, 3.0, 4.0]), q=0)
    tensor([0.1250, 0.3750, 0.5000])
    """
    return apply("sparsecone", scores, {"q": q}, dim, mask, return_info)


def sparsehourglass(
    scores: Tensor, *, q: Any, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    """Trades scale invariance (q -> 0) for translation invariance (q -> inf). See :func:`sparsegen.sparsehourglass`.

    Entries with probability 0 still receive a gradient, through the sum in the radius.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsehourglass(torch.tensor([-1.0, -2.0]), q=0)
    tensor([0.6667, 0.3333])
    """
    return apply("sparsehourglass", scores, {"q": q}, dim, mask, return_info)


def sum_normalization(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False) -> Any:
    """Scores over their sum. See :func:`sparsegen.sum_normalization`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sum_normalization(torch.tensor([1.0, 3.0, 4.0]))
    tensor([0.1250, 0.3750, 0.5000])
    """
    return apply("sum_normalization", scores, {}, dim, mask, return_info)


def sum_normalization_plus(
    scores: Tensor, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    """Sum normalization for all scores: sparsehourglass with q = 0. See :func:`sparsegen.sum_normalization_plus`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sum_normalization_plus(torch.tensor([1.0, 1.0, -2.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    return apply("sum_normalization_plus", scores, {}, dim, mask, return_info)


def spherical_softmax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False) -> Any:
    """Squared scores over their sum. See :func:`sparsegen.spherical_softmax`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.spherical_softmax(torch.tensor([1.0, -1.0, 0.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    return apply("spherical_softmax", scores, {}, dim, mask, return_info)


def softmax(
    scores: Tensor, *, temperature: Any = 1.0, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    """Softmax of the scores over a temperature. See :func:`sparsegen.softmax`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.softmax(torch.tensor([0.0, 0.0]), temperature=2.0)
    tensor([0.5000, 0.5000])
    """
    return apply("softmax", scores, {"temperature": temperature}, dim, mask, return_info)


def hardmax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False) -> Any:
    """Uniform on the maximal entries; its gradient is 0. See :func:`sparsegen.hardmax`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.hardmax(torch.tensor([2.0, 0.5, 2.0]))
    tensor([0.5000, 0.0000, 0.5000])
    """
    return apply("hardmax", scores, {}, dim, mask, return_info)
