"""What recurrent steps are made of, written so that many small ones are cheap on a processor.

Three things would cost more than the arithmetic of a step: the gradient of a weight matrix, which autograd adds up step
by step though it is one product over all of them; `tanh`, which takes six times as long as `sigmoid` in torch; and
random bits drawn one by one. Products may be rounded to bfloat16, which some processors multiply twice as fast; what is
added up, mapped and kept has the type of the weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

DRAWS = 2**16  # how finely the rate of dropout is cut


class _Product(torch.autograd.Function):
    """x W' where W gets no gradient: what each step needs of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return torch.mm(rounded, weight.t()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        return torch.mm(grad.to(ctx.weight.dtype), ctx.weight).to(grad.dtype), None, None


class _Gathered(torch.autograd.Function):
    """The offsets themselves; by the time their gradient is known, every step's is, and that of the weights follows."""

    @staticmethod
    def forward(ctx: Any, offsets: Tensor, weight: Tensor, seen: list[Tensor]) -> Tensor:
        ctx.seen = seen
        return offsets.view_as(offsets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads  # (steps, batch, outputs)
        x = torch.cat(ctx.seen)
        return grad, torch.mm(grad.flatten(0, 1).to(x.dtype).t(), x).to(grad.dtype), None


class SharedLinear:
    """A linear map that is applied once a step: call number t returns ``x W' + offsets[t]``.

    Parameters
    ----------
    weight : Tensor of shape (outputs, inputs)
    offsets : Tensor of shape (steps, batch, outputs)
        What is known of every step beforehand: a bias, or the part of the inputs that waits for no other step.
    precision : torch.dtype
        What the factors of a product are rounded to.

    Examples
    --------
    >>> step = SharedLinear(torch.eye(2), torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
    >>> step(torch.ones(1, 2)), step(torch.ones(1, 2))
    (tensor([[2., 3.]]), tensor([[4., 5.]]))
    """

    def __init__(self, weight: Tensor, offsets: Tensor, precision: torch.dtype = torch.float32) -> None:
        self._seen: list[Tensor] = []
        self._offsets = iter(_Gathered.apply(offsets, weight, self._seen).unbind(0))
        self._weight = weight.detach().to(precision)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs (batch, outputs) of the next step."""
        rounded = x.detach().to(self._weight.dtype)
        if torch.is_grad_enabled():
            self._seen.append(rounded)
        return next(self._offsets) + _Product.apply(x, rounded, self._weight)


class _Rounded(torch.autograd.Function):
    """x W' for rows of x, both with a gradient, all products rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, precision: torch.dtype) -> Tensor:
        rounded, weights = x.to(precision), weight.to(precision)
        ctx.save_for_backward(rounded, weights)
        return torch.mm(rounded, weights.t()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        rounded = grad.to(x.dtype)
        return torch.mm(rounded, weight).to(grad.dtype), torch.mm(rounded.t(), x).to(grad.dtype), None


def linear(x: Tensor, weight: Tensor, precision: torch.dtype = torch.float32) -> Tensor:
    """Return ``x W'`` over the last axis of x, the factors rounded to a precision."""
    if x.dtype == precision:
        return torch.nn.functional.linear(x, weight)
    return _Rounded.apply(x.flatten(0, -2), weight, precision).unflatten(0, x.shape[:-1])


def tanh(x: Tensor) -> Tensor:
    """Return tanh by way of the sigmoid, to within a rounding of 1."""
    return torch.sigmoid(2 * x) * 2 - 1


class _Cell(torch.autograd.Function):
    """An LSTM cell behind its linear map, as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = gates.chunk(4, dim=1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), tanh(g), torch.sigmoid(o)
        new = torch.addcmul(f * c, i, g)
        shown = tanh(new)
        ctx.save_for_backward(i, f, g, o, c, shown)
        return o * shown, new

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_h, grad_c = grads
        i, f, g, o, c, shown = ctx.saved_tensors
        d = torch.addcmul(grad_c, grad_h * o, 1 - shown * shown)
        slopes = (d * g * i * (1 - i), d * c * f * (1 - f), d * i * (1 - g * g), grad_h * shown * o * (1 - o))
        return torch.cat(slopes, dim=1), d * f


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next h and c of an LSTM whose gates, as torch orders them, have these inputs."""
    return _Cell.apply(gates, c)


def dropped(x: Tensor, rate: float, training: bool) -> Tensor:
    """Return x with a share of its entries set to 0 and the others scaled up; drawn anew from torch's generator."""
    if not training or rate == 0:
        return x
    if x.device.type != "cpu":
        return torch.nn.functional.dropout(x, rate)
    random = np.random.Generator(np.random.SFC64(int(torch.randint(2**62, ()))))
    kept = random.integers(0, DRAWS, x.shape, dtype=np.uint16) >= round(rate * DRAWS)
    return x * (torch.from_numpy(kept).to(x.dtype) / (1 - rate))
