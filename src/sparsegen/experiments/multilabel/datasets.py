"""The multilabel data sets of the experiments, by name.

The project ships no data. `load` reads Mulan's own train and test files from a folder; `fetch_openml` downloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen._table.checks import fail, one_of
from sparsegen._table.extras import missing
from sparsegen.experiments.folders import DATA_VARIABLE, places
from sparsegen.experiments.multilabel.mulan import Table, read_arff, read_labels, sparse

MULAN = "http://mulan.sourceforge.net/datasets-mlc.html"
MULAN_SPLIT = "Mulan's split"


@dataclass(frozen=True)
class Facts:
    """What Mulan publishes of one set: files, and sizes before rows without labels are dropped."""

    train: str
    test: str
    labels: str
    n_train: int
    n_test: int
    n_columns: int  # of X, nominal attributes one-hot
    n_labels: int
    openml: int | None = None
    # OpenML's scene names one label as its target; the other five have to be asked for.
    openml_labels: tuple[str, ...] | None = None


def _facts(stem: str, n_train: int, n_test: int, n_columns: int, n_labels: int, end: str = "", **more: Any) -> Facts:
    train, test = f"{stem}-train{end}.arff", f"{stem}-test{end}.arff"
    return Facts(train, test, f"{stem}.xml", n_train, n_test, n_columns, n_labels, **more)


SCENE_LABELS = ("Beach", "Sunset", "FallFoliage", "Field", "Mountain", "Urban")
SETS = {
    "scene": _facts("scene", 1211, 1196, 294, 6, openml=312, openml_labels=SCENE_LABELS),
    "emotions": _facts("emotions", 391, 202, 72, 6, openml=40589),
    "birds": _facts("birds", 322, 323, 271, 19, openml=40588),
    "yeast": _facts("yeast", 1500, 917, 103, 14, openml=40597),
    "medical": _facts("medical", 333, 645, 1449, 45),
    "corel5k": _facts("Corel5k", 4500, 500, 499, 374, end="-sparse"),
    "delicious": _facts("delicious", 12920, 3185, 500, 983),
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """A multilabel data set. X is a dense array, or CSR where the file is sparse; Y is a CSR indicator."""

    name: str
    X_train: Any
    Y_train: sparse.csr_array
    X_test: Any
    Y_test: sparse.csr_array
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    dropped_train: int  # rows without a label that were left out
    dropped_test: int
    source: str  # whose split it is

    @property
    def as_published(self) -> bool:
        """Whether split and sizes are those Mulan publishes, so that results compare with others' on the set."""
        facts = SETS[self.name]
        rows = (self.X_train.shape[0] + self.dropped_train, self.X_test.shape[0] + self.dropped_test)
        columns = (self.X_train.shape[1], self.Y_train.shape[1])
        sizes = (*rows, *columns) == (facts.n_train, facts.n_test, facts.n_columns, facts.n_labels)
        return sizes and self.source == MULAN_SPLIT


def load(name: str, folder: str | Path | None = None, *, keep_empty: bool = False) -> Dataset:
    """Load a data set with Mulan's own split.

    Parameters
    ----------
    name : {"scene", "emotions", "birds", "yeast", "medical", "corel5k", "delicious"}
    folder : path, optional
        The folder of the files, or one that contains them in `multilabel/`. Without it, the folder named by the
        environment variable SPARSEGEN_DATA; without that, `data`.
    keep_empty : bool, default False
        Keep rows without labels. The paper leaves them out.

    Returns
    -------
    Dataset

    Raises
    ------
    FileNotFoundError
        With the names of the missing files, the folders looked in, and where to get them.
    ValueError
        A file is malformed; the message names the file, and the line where it has one.

    Examples
    --------
    >>> load("emotions", "nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    FileNotFoundError: sparsegen: data set 'emotions' must be in nowhere or nowhere/multilabel, got no ...
    """
    train, test, labels = _locate(name, _known(name, SETS), folder)
    label_names = read_labels(labels)
    X_train, Y_train, feature_names = read_arff(train, label_names)
    X_test, Y_test, others = read_arff(test, label_names)
    if others != feature_names:
        fail(ValueError, str(test), f"of the same attributes as {train.name}", "others")
    names = {"feature_names": feature_names, "label_names": label_names, "source": MULAN_SPLIT}
    return _dataset(name, [(X_train, Y_train), (X_test, Y_test)], keep_empty, **names)


def fetch_openml(name: str, *, seed: int = 0, keep_empty: bool = False, data_home: str | Path | None = None) -> Dataset:
    """Download a data set from OpenML by scikit-learn.

    OpenML does not have Mulan's split: rows are dealt by `seed` into parts of the same sizes.

    Parameters
    ----------
    name : {"scene", "emotions", "birds", "yeast"}
    seed : int, default 0
    keep_empty : bool, default False
        Keep rows without labels.
    data_home : path, optional
        Where scikit-learn keeps downloads.

    Examples
    --------
    >>> fetch_openml("delicious")
    Traceback (most recent call last):
        ...
    ValueError: sparsegen: name must be one of 'scene', 'emotions', 'birds', 'yeast', got 'delicious'.
    """
    facts = _known(name, [key for key, value in SETS.items() if value.openml])
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        fail(ValueError, "seed", "an integer at least 0", repr(seed))
    X, Y, feature_names, label_names = _openml_table(facts, data_home)
    if (n := X.shape[0]) != facts.n_train + facts.n_test or Y.shape[1] != facts.n_labels:
        sizes = f"{facts.n_train + facts.n_test} rows and {facts.n_labels} labels"
        fail(ValueError, f"OpenML data set {facts.openml}", f"of {sizes}", f"{n} and {Y.shape[1]}")
    order = np.random.default_rng(seed).permutation(n)
    parts = np.sort(order[: facts.n_train]), np.sort(order[facts.n_train :])
    halves = [(X[rows], Y[rows]) for rows in parts]
    source = f"OpenML {facts.openml}, split by seed {seed}"
    names = {"feature_names": feature_names, "label_names": label_names, "source": source}
    return _dataset(name, halves, keep_empty, **names)


def _dataset(name: str, halves: Sequence[tuple[Any, Any]], keep_empty: bool, **names: Any) -> Dataset:
    """Put the halves together, without the rows that have no label unless they are to be kept."""
    kept: dict[str, Any] = {}
    for half, (X, Y) in zip(("train", "test"), halves):
        rows = np.flatnonzero((np.diff(Y.indptr) > 0) | keep_empty)
        kept |= {f"X_{half}": X[rows], f"Y_{half}": Y[rows], f"dropped_{half}": Y.shape[0] - len(rows)}
    return Dataset(name=name, **kept, **names)


def _known(name: str, names: Iterable[str]) -> Facts:
    """The facts of a set among `names`."""
    if name not in names:
        fail(ValueError, "name", one_of(names), repr(name))
    return SETS[name]


def _locate(name: str, facts: Facts, folder: str | Path | None) -> list[Path]:
    """Paths of the train, test and label files, all in one folder."""
    tried = places(folder, "multilabel")
    files = missing = [facts.train, facts.test, facts.labels]
    for place in tried:
        found = [_find(place, file) for file in files]
        absent = [file for file, path in zip(files, found) if path is None]
        if not absent:
            return [path for path in found if path]
        missing = min(missing, absent, key=len)
    online = ", or fetch it from OpenML with --openml" if facts.openml else ""
    got = f"no {', no '.join(missing)}. Get it from {MULAN} (ARFF files may stay gzipped) and name its folder with"
    got += f" --data DIR or {DATA_VARIABLE}{online}"
    fail(FileNotFoundError, f"data set {name!r}", f"in {' or '.join(map(str, tried))}", got)


def _find(place: Path, file: str) -> Path | None:
    """The file in that folder, or its gzipped form if it is ARFF."""
    forms = [place / file, place / f"{file}.gz"] if file.endswith(".arff") else [place / file]
    return next((path for path in forms if path.is_file()), None)


def _openml_table(facts: Facts, data_home: str | Path | None) -> tuple[Any, Any, tuple[str, ...], tuple[str, ...]]:
    """X, Y and the names of features and labels as OpenML has them."""
    try:
        import sklearn.datasets as datasets
    except ImportError as error:
        raise missing("fetching", "scikit-learn", "experiments") from error
    try:
        bunch = datasets.fetch_openml(
            data_id=facts.openml,
            target_column=list(facts.openml_labels) if facts.openml_labels else "default-target",
            data_home=data_home,
            as_frame=False,
            parser="liac-arff",
        )
    except OSError as error:
        fail(ConnectionError, "OpenML", f"within reach to fetch data set {facts.openml}", error)
    title = f"OpenML data set {facts.openml}"
    attributes = [(name, (bunch.categories or {}).get(name, "NUMERIC")) for name in bunch.feature_names]
    table = Table(title, attributes, bunch.data, ())
    table.check_finite()
    X, names = table.columns(range(len(attributes)))
    return X, _openml_labels(title, bunch.target), names, tuple(bunch.target_names)


def _openml_labels(title: str, target: np.ndarray) -> sparse.csr_array:
    """Indicators of labels that OpenML writes as TRUE and FALSE, or 1 and 0."""
    words = np.char.upper(np.asarray(target).astype(str))
    on = np.isin(words, ("TRUE", "1"))
    if (wrong := ~on & ~np.isin(words, ("FALSE", "0"))).any():
        fail(ValueError, f"labels of {title}", "TRUE or FALSE", repr(str(words[wrong][0])))
    return sparse.csr_array(on.astype(np.int64).reshape(len(words), -1))
