"""The data sets by name: on toy files, from OpenML without the network, and the sets themselves."""

from __future__ import annotations

import gzip
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io.arff
import sklearn.datasets
from mulan_files import DENSE, HEADER, LABELS, NAMES, SPARSE, X, write, write_set
from scipy import sparse

from sparsegen.experiments.multilabel import datasets, mulan
from sparsegen.experiments.multilabel.datasets import SETS, fetch_openml, load


@pytest.mark.parametrize("keep_empty", [False, True])
def test_rows_without_labels_are_dropped_and_counted_unless_kept(tmp_path, keep_empty):
    write_set(tmp_path, test=HEADER + SPARSE.replace("{}\n", "{}\n{}\n"), end="")
    write(tmp_path / SETS["emotions"].train, HEADER + SPARSE)
    data = load("emotions", tmp_path, keep_empty=keep_empty)
    assert (data.dropped_train, data.dropped_test) == ((0, 0) if keep_empty else (2, 3))
    assert data.X_train.shape[0] == data.Y_train.shape[0] == (4 if keep_empty else 2)
    assert data.X_test.shape[0] == data.Y_test.shape[0] == (5 if keep_empty else 2)
    assert (data.Y_train.sum(axis=1) > 0).all() != keep_empty
    assert data.X_train.toarray()[:2].tolist() == X[:2]


def test_a_loaded_set_says_what_it_is(tmp_path):
    data = load("emotions", write_set(tmp_path))
    assert (data.name, data.feature_names, data.label_names) == ("emotions", NAMES, LABELS)
    assert data.source == "Mulan's split"
    assert not data.as_published
    with pytest.raises(AttributeError):
        data.name = "other"


@pytest.mark.parametrize("inside", ["", "multilabel"])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_the_folder_is_the_argument_then_the_variable_then_data(tmp_path, monkeypatch, inside, end):
    here = tmp_path / "here"
    roots = [tmp_path / "asked", tmp_path / "variable", here / "data"]
    for i, root in enumerate(roots):  # each root holds files of its own: the first number tells which
        write_set(root / inside, train=HEADER + DENSE.replace("0.5,", f"{i},", 1), end=end)
    monkeypatch.chdir(here)

    def found(folder=None):
        return int(load("emotions", folder).X_train[0, 0])

    monkeypatch.setenv("SPARSEGEN_DATA", str(roots[1]))
    assert found(str(roots[0])) == 0
    assert found() == 1
    monkeypatch.delenv("SPARSEGEN_DATA")
    assert found() == 2


# What is missing or malformed


def test_a_missing_set_says_which_files_where_it_looked_and_where_to_get_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARSEGEN_DATA", raising=False)
    with pytest.raises(FileNotFoundError) as caught:
        load("corel5k")
    text = str(caught.value)
    for part in (
        "Corel5k-train-sparse.arff",
        "Corel5k-test-sparse.arff",
        "Corel5k.xml",
        "SPARSEGEN_DATA",
        "--data DIR",
    ):
        assert part in text
    assert str(Path("data", "multilabel")) in text
    assert ".." not in text.split(", got")[0]  # nowhere outside the project
    assert "mulan.sourceforge.net/datasets-mlc.html" in text
    assert "--openml" not in text  # it is not on OpenML
    with pytest.raises(FileNotFoundError, match="--openml"):
        load("scene")


@pytest.mark.parametrize("inside", ["", "multilabel"])
def test_only_the_missing_files_are_named(tmp_path, inside):
    write_set(tmp_path / inside, "scene")
    (tmp_path / inside / "scene-test.arff").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load("scene", tmp_path)
    assert "no scene-test.arff. Get" in str(caught.value)
    assert "scene-train.arff" not in str(caught.value)


def test_a_folder_asked_for_is_the_only_one_looked_in(tmp_path, monkeypatch):
    write_set(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="must be in other or"):
        load("emotions", "other")


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"sparsegen: name must be one of 'scene', .*'delicious', got 'mnist'\."):
        load("mnist")


def test_a_label_that_is_not_in_the_file_is_refused(tmp_path):
    folder = write_set(tmp_path, labels=("sea", "river", "lake"))
    with pytest.raises(
        ValueError, match=r"emotions-train.arff must be .* every label .* got none for 'river' and 1 more"
    ):
        load("emotions", folder)


def test_train_and_test_must_have_the_same_attributes(tmp_path):
    write_set(tmp_path, test=HEADER.replace("{a,'b c',7}", "{a,7,'b c'}") + DENSE)
    with pytest.raises(ValueError, match=r"emotions-test.arff must be of the same attributes as emotions-train.arff"):
        load("emotions", tmp_path)


# OpenML, without the network


def fake_openml(n, *, values=("FALSE", "TRUE"), k=6):
    """Answers as scikit-learn's fetch_openml does with as_frame=False; row i of X starts with i."""
    rng = np.random.default_rng(0)
    on = rng.integers(0, 2, (n, k))
    on[:5] = 0
    asked = {}

    def fetch(**options):
        asked.update(options)
        data = np.column_stack([np.arange(n, dtype=float), np.arange(n) % 2, np.arange(n) % 3])
        return SimpleNamespace(
            data=data,
            target=np.array(values, dtype=object)[on],
            feature_names=["x", "flag", "site"],
            target_names=[f"label {j}" for j in range(k)],
            categories={"flag": ["0", "1"], "site": ["a", "b", "c"]},
        )

    return fetch, on, asked


@pytest.mark.parametrize("values", [("FALSE", "TRUE"), ("0", "1"), ("false", "true")])
def test_openml_gives_mulans_sizes_by_a_seeded_split(monkeypatch, values):
    fetch, on, asked = fake_openml(593, values=values)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    data = fetch_openml("emotions", seed=3, keep_empty=True)
    assert (asked["data_id"], asked["target_column"], asked["as_frame"]) == (40589, "default-target", False)
    assert (data.X_train.shape, data.X_test.shape) == ((391, 5), (202, 5))
    assert data.feature_names == ("x", "flag", "site=a", "site=b", "site=c")
    rows = np.concatenate([data.X_train[:, 0], data.X_test[:, 0]]).astype(int)
    assert sorted(rows) == list(range(593))
    got = sparse.vstack([data.Y_train, data.Y_test]).toarray()
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, on[rows])
    np.testing.assert_array_equal(data.X_test[:, 2:].argmax(axis=1), data.X_test[:, 0] % 3)
    assert data.source == "OpenML 40589, split by seed 3"
    assert not data.as_published


def test_the_openml_split_depends_on_the_seed_alone(monkeypatch):
    fetch, _, _ = fake_openml(593)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    first, again, other = (fetch_openml("emotions", seed=s) for s in (1, 1, 2))
    assert first.dropped_train + first.dropped_test >= 5
    np.testing.assert_array_equal(first.X_train, again.X_train)
    assert not np.array_equal(first.X_train[:50, 0], other.X_train[:50, 0])


def test_all_labels_of_scene_are_asked_of_openml(monkeypatch):
    fetch, _, asked = fake_openml(2407)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    assert fetch_openml("scene").Y_train.shape[1] == 6
    assert asked["data_id"] == 312
    assert asked["target_column"] == ["Beach", "Sunset", "FallFoliage", "Field", "Mountain", "Urban"]


@pytest.mark.parametrize(
    ("n", "k", "values", "message"),
    [
        (592, 6, ("FALSE", "TRUE"), "must be of 593 rows and 6 labels, got 592 and 6"),
        (593, 5, ("FALSE", "TRUE"), "got 593 and 5"),
        (593, 6, ("no", "yes"), "must be TRUE or FALSE, got 'NO'"),
    ],
)
def test_other_data_than_expected_from_openml_is_refused(monkeypatch, n, k, values, message):
    fetch, _, _ = fake_openml(n, values=values, k=k)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    with pytest.raises(ValueError, match=message):
        fetch_openml("emotions")


def test_missing_values_from_openml_are_refused(monkeypatch):
    fetch, _, _ = fake_openml(593)

    def holed(**options):
        bunch = fetch(**options)
        bunch.data[7, 0] = np.nan
        return bunch

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", holed)
    with pytest.raises(
        ValueError, match="OpenML data set 40589, row 7 must be a row of finite values, got none for 'x'"
    ):
        fetch_openml("emotions")


def test_openml_out_of_reach_is_said_so(monkeypatch):
    def fetch(**options):
        raise OSError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    with pytest.raises(ConnectionError, match=r"OpenML must be within reach .* got no route to host"):
        fetch_openml("yeast")


def test_fetching_without_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'sparsegen\[experiments\]'"):
        fetch_openml("yeast")


@pytest.mark.parametrize("seed", [-1, 0.5])
def test_a_bad_seed_of_the_openml_split_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be an integer at least 0"):
        fetch_openml("yeast", seed=seed)


# The sets themselves

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("SPARSEGEN_DATA") or ROOT / "data")
PLACE = DATA / "multilabel" if (DATA / "multilabel").is_dir() else DATA

# rows, columns of X, labels, cardinality, rows without a label, sparse; train and test where there are two
PUBLISHED = {
    "scene": ((1211, 1196), 294, 6, (1.062, 1.086), (0, 0), False),
    "emotions": ((391, 202), 72, 6, (1.813, 1.975), (0, 0), False),
    "birds": ((322, 323), 258 + 1 + 12, 19, (1.059, 0.969), (143, 151), False),
    "yeast": ((1500, 917), 103, 14, (4.228, 4.252), (0, 0), False),
    "medical": ((333, 645), 1449, 45, (1.255, 1.240), (0, 0), True),
    "corel5k": ((4500, 500), 499, 374, (3.522, 3.526), (0, 0), True),
    "delicious": ((12920, 3185), 500, 983, (19.047, 18.910), (10, 4), True),
}


def needs(name):
    if not (PLACE / SETS[name].labels).is_file():
        pytest.skip("the data are not here: set SPARSEGEN_DATA to their folder")
    return load(name, DATA)


def test_every_set_has_its_published_facts_checked():
    assert list(PUBLISHED) == list(SETS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_is_as_published(name):
    rows, columns, k, cardinality, empty, is_sparse = PUBLISHED[name]
    data = needs(name)
    assert data.as_published
    assert (data.dropped_train, data.dropped_test) == empty
    for X_, Y_, n, mean, dropped in zip(
        (data.X_train, data.X_test), (data.Y_train, data.Y_test), rows, cardinality, empty
    ):
        assert X_.shape == (n - dropped, columns)
        assert Y_.shape == (n - dropped, k)
        assert round(float(Y_.sum()) / n, 3) == mean
        assert set(np.unique(Y_.data)) == {1}
        assert sparse.issparse(X_) == is_sparse
        assert np.isfinite(X_.data if is_sparse else X_).all()
    assert (len(data.feature_names), len(data.label_names)) == (columns, k)


@pytest.mark.parametrize("name", ["scene", "emotions", "birds", "yeast"])
def test_dense_sets_agree_with_scipys_reader(name):
    needs(name)
    data = load(name, DATA, keep_empty=True)
    with gzip.open(PLACE / f"{name}-test.arff.gz", "rt") as file:
        table, meta = scipy.io.arff.loadarff(file)
    for j, label in enumerate(data.label_names):
        column = table[label.replace("'", "\\'") if label not in meta.names() else label]
        np.testing.assert_array_equal(data.Y_test[:, [j]].toarray()[:, 0], column.astype(int))
    for j, feature in enumerate(data.feature_names):
        attribute, _, value = feature.partition("=")
        expected = table[attribute] == value.encode() if value else table[attribute].astype(float)
        np.testing.assert_array_equal(data.X_test[:, j], expected)


@pytest.mark.parametrize("name", ["medical", "corel5k", "delicious"])
def test_sparse_sets_agree_with_the_lines_of_the_file(name):
    needs(name)
    data = load(name, DATA, keep_empty=True)
    with gzip.open(PLACE / f"{SETS[name].test}.gz", "rt") as file:
        rows = [[int(pair.split()[0]) for pair in line.strip(" {}\n").split(",")] for line in file if line[0] == "{"]
    columns = len(data.feature_names)  # in these files labels come last
    for i in range(0, len(rows), 7):
        assert data.X_test[[i]].indices.tolist() == [j for j in rows[i] if j < columns]
        assert data.Y_test[[i]].nnz == sum(j >= columns for j in rows[i])


@pytest.mark.parametrize(("name", "never"), [("medical", 7), ("corel5k", 3)])
def test_labels_never_seen_in_training_stay_columns(name, never):
    data = needs(name)
    assert (data.Y_train.sum(axis=0) == 0).sum() == never


def test_birds_without_unlabelled_rows_are_the_papers():
    data = needs("birds")
    assert (data.X_train.shape[0], data.X_test.shape[0]) == (179, 172)
    assert (data.X_train[:, -12:].sum(axis=1) == 1).all()
    assert data.feature_names[-13:-11] == ("hasSegments", "location=2")


def test_sizes_that_differ_from_mulans_are_noticed():
    data = needs("emotions")
    assert not replace(data, X_train=data.X_train[1:]).as_published
    assert not replace(data, source="OpenML 40589, split by seed 0").as_published


def test_the_readers_are_offered_where_the_sets_are():
    assert datasets.read_arff is mulan.read_arff
