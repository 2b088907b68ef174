"""Documents with label sets: drawn, and read from a file."""

import numpy as np
import pytest

from sparsegen.experiments.labels.documents import drawn, read


def test_the_same_seed_draws_the_same_documents():
    one, two, other = drawn(50, 200, 1000, 3), drawn(50, 200, 1000, 3), drawn(50, 200, 1000, 4)
    assert (one.X != two.X).nnz == (one.Y != two.Y).nnz == 0
    assert (one.Y != other.Y).nnz > 0
    np.testing.assert_allclose(np.sqrt(one.X.multiply(one.X).sum(1)), 1, rtol=1e-6)


def test_frequent_labels_are_drawn_more_often():
    counts = np.asarray(drawn(2000, 100, 100_000).Y.sum(0)).ravel()
    assert counts[:10].sum() > 5 * counts[10_000:10_010].sum() + 5
    assert counts[50_000:].sum() > 0


def test_a_file_is_read(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("3 4 5\n1,4 0:3 2:4\n 1:2\n0 3:2\n")
    docs = read(path)
    assert docs.Y.toarray().tolist() == [[0, 1, 0, 0, 1], [1, 0, 0, 0, 0]]
    np.testing.assert_allclose(docs.X.toarray(), [[0.6, 0, 0.8, 0], [0, 0, 0, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("3 4\n", "the first line of train.txt must be the numbers of documents"),
        ("1 4 5\n1,x 0:1\n", "line 2 of train.txt must be labels with commas"),
        ("1 4 5\n1 0;1\n", "line 2 of train.txt must be labels with commas"),
        ("1 4 5\n7 0:1\n", "the labels in train.txt must be from 0 to 4, got 7"),
        ("1 4 5\n1 9:1\n", "the features in train.txt must be from 0 to 3, got 9"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, text, error):
    path = tmp_path / "train.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=error):
        read(path)


def test_a_line_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(b"2 3 5\n1,4 0:1 2:1\n1 1:\xff2\n")
    with pytest.raises(
        ValueError, match=r"sparsegen: line 3 of train.txt must be text in UTF-8, got invalid start byte"
    ):
        read(path)


@pytest.mark.parametrize("text", ["1 3 {n}\n1 0:1\n", "1 {n} 3\n1 0:1\n", "1 3 5\n{n} 0:1\n", "1 3 5\n1 {n}:1\n"])
def test_a_number_beyond_all_bounds_is_refused(tmp_path, text):
    path = tmp_path / "train.txt"
    path.write_text(text.format(n="9" * 40))
    with pytest.raises(
        ValueError, match=r"sparsegen: the numbers in train.txt must be below 2\^63, got one of 40 digits"
    ):
        read(path)


@pytest.mark.parametrize("value", ["1e39", "-1e39", "inf", "nan"])
def test_a_value_that_is_not_finite_is_refused(tmp_path, value):
    path = tmp_path / "train.txt"
    path.write_text(f"1 3 5\n1 0:1 2:{value}\n")
    with pytest.raises(ValueError, match=r"sparsegen: the values in train.txt must be finite in float32, got "):
        read(path)
