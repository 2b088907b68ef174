"""The kernel: addresses, sizes and strides in, rows written. See _kernel/module.cpp."""

from typing import Any

def project(x: int, p: int, storage: int, rows: int, K: int, radius: float, threads: int) -> None: ...
def project_strided(
    x: int, p: int, storage: int, outer: int, K: int, inner: int, x_outer: int, x_entry: int, x_inner: int,
    radius: int, radius_per_row: bool, mask: int, mask_row: int, support: int, threshold: int, threads: int,
) -> None: ...  # fmt: skip
def project_vjp(
    p: int, v: int, grad_x: int, storage: int, outer: int, K: int, inner: int, radius: int, radius_per_row: bool,
    grad_radius: int, threads: int,
) -> None: ...  # fmt: skip
def project_vjp_rows(
    p: int, v: int, grad_x: int, storage: int, rows: int, K: int, radius: float, threads: int
) -> None: ...

STREAM_FROM: int

def past_caches() -> bool: ...
def write_past_caches(past: bool) -> None: ...
def foresees() -> bool: ...
def expect_to_foresee(does: bool) -> None: ...

CHUNK: int

def project_words(x: int, p: int, words: int, storage: int, rows: int, K: int, radius: float, threads: int) -> bool: ...
def project_vjp_words(
    words: int, v: int, grad_x: int, storage: int, rows: int, K: int, radius: float, threads: int
) -> None: ...
def map(
    x: int, p: int, storage: int, outer: int, K: int, inner: int, x_outer: int, x_entry: int, x_inner: int,
    transform: int, rule: int, power: bool, radius: float, radius_rows: int, second: float, second_rows: int,
    mask: int, mask_row: int, found: int, base: int, count: int, words: int, threads: int,
) -> bool: ...  # fmt: skip
def know_torch(given: dict[str, Any]) -> None: ...
def idle() -> bool: ...
def tensor_number(t: Any) -> float | None: ...
def tensor_map(x: Any, kind: int, radius: float, second: float, keep: bool, mask: Any) -> Any: ...
def quick_module(module: Any, x: Any) -> Any: ...
def know_forward(forward: Any) -> None: ...
def quick_map(x: Any, kind: int, radius: float, second: float) -> Any: ...
def tensor_map_vjp(
    z: Any, p: Any, v: Any, kind: int, radius: float, second: float, found: Any, want_radius: bool, want_second: bool,
    mask: Any,
) -> Any: ...  # fmt: skip
def tensor_project_vjp(p: Any, v: Any, radius: float, words: Any) -> Any: ...
def map_vjp(
    z: int, p: int, v: int, grad: int, storage: int, outer: int, K: int, inner: int, z_outer: int, z_entry: int,
    z_inner: int, transform: int, rule: int, power: bool, radius: float, radius_rows: int, second: float,
    second_rows: int, mask: int, mask_row: int, found: int, base: int, count: int, words: int, grad_radius: int,
    grad_second: int, threads: int,
) -> None: ...  # fmt: skip
def row_means(
    x: int, storage: int, outer: int, K: int, inner: int, x_outer: int, x_entry: int, x_inner: int, mask: int,
    mask_row: int, mean: int, count: int, threads: int,
) -> None: ...  # fmt: skip
def hinge(
    z: int, storage: int, rows: int, K: int, mask: int, mask_row: int, indptr: int, indices: int,
    radius: int, radius_per_row: bool, smoothing: float, value: int, slope: int, grad: int, threads: int,
) -> None: ...  # fmt: skip

class Dual:
    """The dual variables of a linear model with the huber loss; what it is given by address it borrows."""

    def __init__(
        self, sizes: list[int], x_indptr: int, x_index: int, x: int, share: int, square: int, y_indptr: int,
        y_index: int, eta: int, constant: float, radius: float, W: int,
    ) -> None: ...  # fmt: skip
    def pass_over(self, order: int, alpha: float) -> float: ...
    def values(self, value: int, gap: int, alpha: float, restart: bool, threads: int) -> None: ...
    def weights(self, alpha: float) -> None: ...
    def entries(self) -> float: ...

class Found:
    """The support a forward pass of attention found."""

    def size(self) -> int: ...
    def move_to(self, index: int, value: int) -> None: ...

def attention(
    storage: int, threads: int, weigh: int, temperature: float, scale: float, sizes: list[int], q: list[int],
    k: list[int], v: list[int],
    radius: float, radii: int, causal: bool, rule: int, additive: bool, mask: list[int], mask_key: int,
    dropout: float, seed: int, out: int, radius_out: int, mean_out: int, count_out: int, support_sizes: int,
) -> Found: ...  # fmt: skip
def attention_vjp(
    storage: int, threads: int, weigh: int, scale: float, sizes: list[int], q: list[int], k: list[int], v: list[int],
    radius: float, radii: int, keep: float, indptr: int, index: int, value: int, out_grad: int, value_grad: int,
    slopes: int, q_grad: int, k_grad: int, v_grad: int, radius_grad: int,
) -> None: ...  # fmt: skip
def borrow_openmp(entry: int) -> None: ...
def engines() -> list[str]: ...
def engine() -> str: ...
def engine_address() -> int: ...
def use_engine(name: str) -> None: ...
