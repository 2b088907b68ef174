"""Functions that sweeps run in the tests: in a module of their own, which workers can import."""

import os
import time
from pathlib import Path

import numpy as np

import sparsegen as sg
from sparsegen.experiments import folders


def measure(seed, q=1.0):
    scores = np.random.default_rng(seed).normal(size=(20, 5))
    p = sg.sparsehourglass(scores, q=q)
    return {"seed": np.int64(seed), "mean": p.max(axis=-1).mean(), "support": (p > 0).sum(axis=-1), "bad": np.nan}


def looks(seed):
    """Where this worker would look for data and for runs, and which worker it is."""
    return {"seed": seed, "worker": os.getpid(), **folders.chosen()}


def measured(seed, log, wait=0.0, hold=None, fail=False):
    """As `measure`, with a line in a file for each call; waits as long as there is a file `hold`."""
    with open(log, "a") as file:
        file.write(f"{seed} {os.getpid()}\n")
    time.sleep(wait)
    end = time.monotonic() + 60
    while hold and Path(hold).exists() and time.monotonic() < end:
        time.sleep(0.05)
    if fail:
        raise Unpicklable(seed, "broken")
    return measure(seed)


class Unpicklable(Exception):
    def __init__(self, seed, text):
        super().__init__(f"seed {seed} is {text}")


def threads(place):
    import threadpoolctl

    blas = {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}
    return {"place": place, "kernel": sg.get_num_threads(), "blas": sorted(blas), "pid": os.getpid()}


def grow(items):
    items.append(4)
    return {"items": items}


def nothing(x):
    return None


def not_json(x):
    return {"x": {x}}


def witness(place, store):
    """Say whether the cell before is stored while this one still runs."""
    before, end = f'"place": {place - 1},'.encode(), time.monotonic() + 3
    while not (seen := place == 0 or before in (Path(store) / "cells.jsonl").read_bytes()) and time.monotonic() < end:
        time.sleep(0.01)
    return {"seen": seen}


def die(x, wait):
    time.sleep(wait)
    if x == 1:
        os._exit(3)
    return {"x": x}
