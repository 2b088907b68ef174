"""Mulan's sets as experiments ask for them: loaded once in a process, and the files they are in."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from sparsegen.experiments.folders import DATA_VARIABLE

if TYPE_CHECKING:
    from sparsegen.experiments.multilabel.datasets import Dataset


def loaded(name: str, openml: bool) -> Dataset:
    """Return a set from the folder of data, or from OpenML."""
    return _loaded(name, openml, os.environ.get(DATA_VARIABLE))


@cache
def _loaded(name: str, openml: bool, folder: str | None) -> Dataset:
    from sparsegen.experiments.multilabel.datasets import fetch_openml, load

    return fetch_openml(name) if openml else load(name, folder)


def files(names: Iterable[str]) -> list[str]:
    """Return the names of the files of some sets."""
    from sparsegen.experiments.multilabel.datasets import SETS

    return [file for name in names for file in (SETS[name].train, SETS[name].test, SETS[name].labels)]
