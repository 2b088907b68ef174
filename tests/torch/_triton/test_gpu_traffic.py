"""What the kernels read and write, counted by the interpreter: forwards the bytes of a copy."""

import pytest
import torch

from sparsegen.torch import _triton

interpreter = pytest.importorskip("triton.runtime.interpreter")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU does not count its bytes here")


@pytest.fixture
def traffic(monkeypatch):
    """Bytes read and written by kernels."""
    builder, bytes_ = interpreter.InterpreterBuilder, {"read": 0, "written": 0}
    load, store = builder.create_masked_load, builder.create_masked_store

    def counted_load(self, ptrs, mask, other, *rest):
        bytes_["read"] += int(mask.data.sum()) * ptrs.get_element_ty().primitive_bitwidth // 8
        return load(self, ptrs, mask, other, *rest)

    def counted_store(self, ptrs, value, mask, *rest):
        bytes_["written"] += int(mask.data.sum()) * ptrs.get_element_ty().primitive_bitwidth // 8
        return store(self, ptrs, value, mask, *rest)

    monkeypatch.setattr(builder, "create_masked_load", counted_load)
    monkeypatch.setattr(builder, "create_masked_store", counted_store)
    return bytes_


ONE = torch.tensor(1.0, dtype=torch.float64)


@pytest.mark.parametrize(("n", "dtype"), [(1000, torch.bfloat16), (4096, torch.float32), (16384, torch.bfloat16)])
def test_rows_in_registers_are_read_once_and_written_once(n, dtype, traffic):
    x = torch.randn(2, n).to(dtype)
    _triton.project(x, ONE, -1, None)
    whole = x.numel() * x.element_size()
    assert traffic == {"read": whole + 2 * 8, "written": whole}  # and the radius of each row


def test_backwards_reads_the_upstream_gradient_of_the_support_only(traffic):
    x = torch.randn(2, 4096)
    p = _triton.project(x, ONE, -1, None)
    traffic.update(read=0, written=0)
    _triton.project_vjp(p, torch.randn(2, 4096), ONE, -1, True)
    whole, support = x.numel() * 4, int((p > 0).sum()) * 4
    assert traffic == {"read": whole + support + 2 * 8, "written": whole + 2 * 8}


def test_long_rows_are_read_little_more_than_once(traffic):
    x = torch.randn(1, 40000)
    _triton.project(x, ONE, -1, None)
    whole = x.numel() * 4
    assert traffic["written"] <= 1.04 * whole
    assert traffic["read"] <= 1.6 * whole
