"""What only a device can show: `pytest -m gpu`."""

import pytest
import torch
from triton import knobs

import sparsegen.torch as sgt
from sparsegen.torch import _route, _triton

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_kernels_are_compiled_and_tensors_of_the_device_take_them():
    assert not knobs.runtime.interpret
    assert _route.engine(torch.zeros(1, device="cuda")) is _triton


def test_nothing_waits_for_the_device():
    """Forwards and backwards, in rows, in tiles and with split keys."""
    z = torch.randn(8, 64, device="cuda", requires_grad=True)
    q, k, v = (torch.randn(1, 2, n, 64, device="cuda", requires_grad=True) for n in (128, 2048, 2048))
    names = ("sparsemax", "sparsegen_softmax", "entmax15")
    calls = [lambda name=name: getattr(sgt, name)(z).sum().backward() for name in ("sparsemax", "sparsegen_exp")]
    for name in names:
        calls += [
            lambda name=name: sgt.sparse_attention(q, k, v, mapping=name, dropout_p=0.1).sum().backward(),
            lambda name=name: sgt.sparse_attention(*(t.detach() for t in (q[..., :1, :], k, v)), mapping=name),
        ]
    for call in calls:
        call()  # compiles, which may wait
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["sparsemax", "sparsegen_softmax", "entmax15"])
def test_the_same_bits_each_time(name):
    q, k, v = (torch.randn(1, 2, n, 64, device="cuda").bfloat16().requires_grad_() for n in (300, 1000, 1000))
    found = []
    for _ in range(3):
        out = sgt.sparse_attention(q, k, v, mapping=name)
        found.append([out, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))])
    assert all(torch.equal(a, b) for again in found[1:] for a, b in zip(found[0], again))
