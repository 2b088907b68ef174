"""Dropout of attention's weights, decided by a hash of seed, row and key: the CPU kernel's, so that both take the same.

Whoever asks and in whatever order, the answer is the same: nothing is kept for the way back.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def mixed(h, x):
    """One round of splitmix64 over another number."""
    h += x * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * 0x94D049BB133111EB
    return h ^ (h >> 31)


@triton.jit
def spared(SEED, row, key, taken):
    """Which weights of rows (int64) and keys dropout leaves; it takes `taken` of 2^53."""
    seed = tl.load(SEED).to(tl.uint64)
    h = mixed(mixed(seed, row.to(tl.uint64))[:, None], key.to(tl.uint64)[None, :])
    return (h >> 11).to(tl.int64) >= taken
