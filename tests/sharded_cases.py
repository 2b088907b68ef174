"""What the ranks do in the tests of sparsegen.torch.distributed. Each function runs on every rank."""

from __future__ import annotations

import torch

import sparsegen.torch.distributed as sgd


def part(t, edges, rank, dim=-1):
    """This rank's classes of a tensor, as one of its own."""
    if t is None or t.shape[dim] == 1:
        return t
    return t.narrow(dim, edges[rank], edges[rank + 1] - edges[rank]).clone()


def even_edges(n, size):
    return [n * i // size for i in range(size + 1)]


def with_grad(controls):
    return {k: c.clone().requires_grad_() if isinstance(c, torch.Tensor) else c for k, c in controls.items()}


def map_case(rank, size, name, z, v=None, edges=None, mask=None, dim=-1, controls=None, info=False):
    """Values, gradients and traffic of a map."""
    edges = edges or even_edges(z.shape[dim], size)
    x = part(z, edges, rank, dim).requires_grad_(v is not None)
    controls = with_grad(controls or {})
    given = {} if name == "project" else controls
    args = (x, *controls.values()) if name == "project" else (x,)
    with sgd.traffic() as forward:
        p = getattr(sgd, name)(*args, dim=dim, mask=part(mask, edges, rank, dim), return_info=info, **given)
    p, found = p if info else (p, None)
    with sgd.traffic() as backward:
        if v is not None:
            p.backward(part(v, edges, rank, dim))
    grads = {k: c.grad for k, c in controls.items() if isinstance(c, torch.Tensor)}
    sent = forward.rounds, forward.bytes, backward.rounds, backward.bytes
    return p.detach(), x.grad, grads, found and tuple(found), sent


def loss_case(rank, size, name, z, target, edges=None, control=None, target_part=False, sparse=False, **options):
    """Value, gradients and traffic of a loss."""
    edges = edges or even_edges(z.shape[-1], size)
    x = part(z, edges, rank).requires_grad_()
    control = with_grad(control or {})
    if "mask" in options:
        options["mask"] = part(options["mask"], edges, rank)
    target = part(target, edges, rank) if target_part else target
    with sgd.traffic() as forward:
        loss = getattr(sgd, name)(x, target, sparse_grad=sparse, **control, **options)
    with sgd.traffic() as backward:
        loss.sum().backward()
    grad = x.grad.to_dense() if x.grad.is_sparse else x.grad
    grads = {k: c.grad for k, c in control.items() if isinstance(c, torch.Tensor)}
    sent = forward.rounds, forward.bytes, backward.rounds, backward.bytes
    return loss.detach(), grad, grads, x.grad.is_sparse, sent


def curvature_case(rank, size, name, z, c, target=None, controls=None):
    """The gradient of (c . gradient), in scores and controls: derivatives of derivatives."""
    edges = even_edges(z.shape[-1], size)
    x, c = part(z, edges, rank).requires_grad_(), part(c, edges, rank)
    controls = with_grad(controls or {})
    f = getattr(sgd, name)
    found = (f(x, **controls).sin() * c).sum() if target is None else f(x, target, reduction="sum", **controls)
    (grad,) = torch.autograd.grad(found, x, create_graph=True)
    return torch.autograd.grad((grad * c).sum(), [x, *controls.values()])


def call(rank, size, name, args, options=None):
    """Call a function with arguments of each rank: `args[rank]`, `options[rank]`."""
    return getattr(sgd, name)(*args[rank], **(options[rank] if options else {}))


def sabotaged(rank, size, name, z, at, error):
    """The kernel fails on one rank, in the midst of a call."""
    from sparsegen.torch import _cpu

    kept = _cpu.project

    def broken(*args):
        raise error

    if rank == at:
        _cpu.project = broken
    try:
        return call(rank, size, name, [(z,)] * size)
    finally:
        _cpu.project = kept


def other_group(rank, size, z):
    """A group of rank 0 alone, which rank 1 is not in."""
    import torch.distributed as dist

    group = dist.new_group([0])
    return sgd.sparsemax(z, group=group)


def same_on_all(rank, size):
    """Does the group still work?"""
    return sgd.sparsemax(torch.tensor([0.25, 1.0, 0.5][rank : rank + 1])).tolist()


def last_words(rank, size, z):
    """Rank 1 dies before the call."""
    import os

    if rank == 1:
        os._exit(0)
    return sgd.sparsemax(z)


class Sparsely(torch.autograd.Function):
    """Nothing; but the gradient is handed on as a sparse tensor."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, v):
        return v.to_sparse()


def linear_case(rank, size, hidden, v, sparse=False):
    """Scores and gradients of a ShardedLinear."""
    layer = sgd.ShardedLinear(hidden.shape[1], v.shape[1], seed=3)
    h = hidden.clone().requires_grad_()
    z = layer(h)
    (Sparsely.apply(z) if sparse else z).backward(v[:, layer.first : layer.last])
    grads = [g.to_dense() if g.is_sparse else g for g in (layer.weight.grad, layer.bias.grad)]
    return z.detach(), h.grad, *grads, layer.weight.detach(), layer.weight.grad.is_sparse


def save_case(rank, size, folder, classes):
    """A layer with an optimizer that has made a step, written to a folder."""
    layer = sgd.ShardedLinear(4, classes, seed=1)
    optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    sgd.save(folder, layer, optimizer, step=1)
    return layer.weight.detach().clone(), optimizer.state[layer.weight]["sum"].clone()


def load_case(rank, size, folder, classes):
    """The same, read."""
    layer = sgd.ShardedLinear(4, classes, seed=2)
    optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.1)
    extra = sgd.load(folder, layer, optimizer)
    return layer.weight.detach(), optimizer.state[layer.weight]["sum"], extra


def train_case(rank, size, out, sizes, options, stop_after=None, predict=False):
    """Train a model of label sets; its losses, or its label sets."""
    from pathlib import Path

    from sparsegen.experiments.labels import documents, training

    trainer = training.LabelTrainer(documents.drawn(*sizes), training.LabelConfig(**options), Path(out))
    lines = trainer.fit(stop_after=stop_after)
    found = training.predict(trainer.model, trainer.docs.X, trainer.config) if predict else None
    return [line["loss"] for line in lines], trainer.step, trainer.model.out.weight.detach(), found


def _mesh(size, shape=None):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape or (size,))


def dtensor_map_case(rank, size, name, z, v, controls=None, dim=-1, mask=None, rows_split=False):
    """Values, gradients and info of a map on a DTensor, whole again."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = _mesh(size, (1, size) if rows_split else None)
    dim = dim % z.dim()
    placements = [Shard(0), Shard(dim)] if rows_split else [Shard(dim)]
    x = distribute_tensor(z, mesh, placements).requires_grad_()
    everywhere = [Replicate()] * mesh.ndim
    controls = {k: distribute_tensor(c, mesh, everywhere).requires_grad_() for k, c in (controls or {}).items()}
    hidden = None if mask is None else distribute_tensor(mask, mesh, everywhere)
    p, info = getattr(sgd, name)(x, dim=dim, mask=hidden, return_info=True, **controls)
    assert p.placements == tuple(placements)
    assert p.shape == z.shape
    p.backward(distribute_tensor(v, mesh, placements))
    grads = {k: c.grad.full_tensor() for k, c in controls.items()}
    return p.full_tensor().detach(), x.grad.full_tensor(), grads, tuple(t.full_tensor() for t in info)


def dtensor_loss_case(rank, size, name, z, target, control=None, dense=False):
    """Value and gradients of a loss on a DTensor."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = _mesh(size)
    x = distribute_tensor(z, mesh, [Shard(1)]).requires_grad_()
    control = {k: distribute_tensor(c, mesh, [Replicate()]).requires_grad_() for k, c in (control or {}).items()}
    y = distribute_tensor(target, mesh, [Shard(1)]) if dense else target
    loss = getattr(sgd, name)(x, y, **control)
    loss.backward()
    return loss.full_tensor().detach(), x.grad.full_tensor(), {k: c.grad.full_tensor() for k, c in control.items()}


def dtensor_error_case(rank, size, kind):
    """Calls that are refused."""
    import torch.distributed as dist
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh, z = _mesh(size), torch.randn(4, 6)
    x = distribute_tensor(z, mesh, [Shard(1)])
    if kind == "replicated":
        sgd.sparsemax(distribute_tensor(z, mesh, [Replicate()]))
    elif kind == "by rows":
        sgd.sparsemax(distribute_tensor(z, mesh, [Shard(0)]))
    elif kind == "partial":
        sgd.sparsemax(x.from_local(z, mesh, [Partial()]))
    elif kind == "mask":
        sgd.sparsemax(x, mask=torch.ones(4, 3, dtype=torch.bool))
    elif kind == "group":
        sgd.sparsemax(x, group=dist.group.WORLD)
    elif kind == "loss by rows":
        mesh = _mesh(size, (1, size))
        sgd.sparsemax_huber_loss(distribute_tensor(z, mesh, [Shard(0), Shard(1)]), torch.arange(4))
