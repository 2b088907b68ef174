"""What the maps are measured on: random rows, rows that are hard to get right, rows that are hard to be fast on."""

from __future__ import annotations

import torch
from torch import Tensor

import sparsegen.torch as sgt

DENSITIES = ("sparse", "dense")


def scores(rows: int, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """N(0, 1) scores, the same for the same shape.

    >>> scores(2, 3).shape
    torch.Size([2, 3])
    """
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(0)).to(dtype)


def lam_of(x: Tensor, density: str) -> float:
    """Return the lam that leaves five nonzeros per row, or half of the entries.

    >>> x = scores(64, 40)
    >>> round(float((sgt.sparsegen_lin(x, lam=lam_of(x, "dense")) > 0).sum(-1).float().mean()))
    20
    """
    return sgt.lam_for_mean_support(x[:256].float(), 5 if density == "sparse" else x.shape[-1] / 2)


def corners(n: int = 64) -> dict[str, Tensor]:
    """Rows that other libraries have been seen to get wrong: far from 0, with ties, of large magnitude.

    >>> {name: tuple(x.shape) for name, x in corners(8).items()}
    {'offset 1e4': (8, 8), 'ties': (8, 8), 'magnitude 1e8': (8, 8)}
    """
    x = torch.randn(8, n, generator=torch.Generator().manual_seed(1))
    return {"offset 1e4": x + 1e4, "ties": (2 * x).round() / 2, "magnitude 1e8": x * 1e8}


def adversarial_rows(rows: int, n: int) -> dict[str, Tensor]:
    """Rows that make a projection slow if anything does, and random ones.

    >>> sorted(adversarial_rows(2, 4))[:3]
    ['all equal', 'alternating', 'ascending']
    """
    x = scores(rows, n)
    mixed = torch.randperm(n, generator=torch.Generator().manual_seed(2))
    huge = x.clone()
    huge[:, 0] = 1e30
    return {
        "random": x,
        "geometric": -torch.logspace(-30, 30, n, dtype=torch.float64).float()[mixed].repeat(rows, 1),
        "all equal": torch.ones(rows, n),
        "one huge": huge,
        "alternating": (torch.arange(n) % 2 * 2.0 - 1).repeat(rows, 1),
        "ascending": x.sort(-1).values,
        "descending": x.sort(-1, descending=True).values,
        "denormals": x * 1e-40,
    }
