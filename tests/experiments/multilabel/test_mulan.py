"""Readers of ARFF files and label lists: what they give, and what they refuse with file and line."""

from __future__ import annotations

import builtins
import gzip
import importlib
import re
import sys

import numpy as np
import pytest
from mulan_files import DENSE, HEADER, LABELS, NAMES, SPARSE, X, Y, write
from scipy import sparse

from sparsegen.experiments.multilabel.mulan import read_arff, read_labels


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_dense_file_is_numbers_and_one_hot_columns(tmp_path, end):
    got_x, got_y, names = read_arff(write(tmp_path / f"toy.arff{end}", HEADER + DENSE), LABELS)
    assert isinstance(got_x, np.ndarray)
    assert got_x.dtype == np.float64
    assert got_x.tolist() == X
    assert got_y.format == "csr"
    assert got_y.dtype == np.int64
    assert got_y.toarray().tolist() == Y
    assert names == NAMES


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_sparse_file_gives_the_same_as_a_dense_one(tmp_path, end):
    got_x, got_y, names = read_arff(write(tmp_path / f"toy.arff{end}", HEADER + SPARSE), LABELS)
    assert got_x.format == "csr"
    # An absent nominal value is the first of its domain: site=a, in the first row and in the empty one.
    assert got_x.toarray().tolist() == [*X, [0, 0, 1, 0, 0, 0]]
    assert got_y.toarray().tolist() == [*Y, [0, 0]]
    assert names == NAMES


@pytest.mark.parametrize("rows", ["1,0\n0,1\n", "{}\n{0 0,1 1}\n"], ids=["dense", "sparse"])
def test_values_count_by_name_and_not_by_their_place_in_the_domain(tmp_path, rows):
    header = "@relation r\n@attribute f {1,0}\n@attribute l {0,1}\n@data\n"
    got_x, got_y, names = read_arff(write(tmp_path / "toy.arff", header + rows), ["l"])
    assert (got_x.toarray() if sparse.issparse(got_x) else got_x).tolist() == [[1], [0]]
    assert got_y.toarray().tolist() == [[0], [1]]
    assert names == ("f",)


def test_a_sparse_label_whose_first_value_is_1_is_on_when_absent(tmp_path):
    header = "@relation r\n@attribute x numeric\n@attribute l {1,0}\n@data\n"
    _, got_y, _ = read_arff(write(tmp_path / "toy.arff", header + "{0 2}\n{1 0}\n"), ["l"])
    assert got_y.toarray().tolist() == [[1], [0]]


def test_zeros_of_a_sparse_file_are_not_stored_and_columns_are_in_order(tmp_path):
    header = "@relation r\n@attribute x numeric\n@attribute y numeric\n@attribute l {0,1}\n@data\n"
    got_x, got_y, _ = read_arff(write(tmp_path / "toy.arff", header + "{0 0,2 0}\n{2 1,1 5,0 4}\n"), ["l"])
    assert (got_x.nnz, got_y.nnz) == (2, 1)
    assert (got_x.indices.tolist(), got_x.data.tolist()) == ([0, 1], [4, 5])


def test_a_comma_inside_quotes_is_part_of_the_value(tmp_path):
    header = "@relation r\n@attribute place {a,'sea, north'}\n@attribute l {0,1}\n@data\n"
    got_x, _, names = read_arff(write(tmp_path / "toy.arff", header + "{0 'sea, north',1 1}\n{1 1}\n"), ["l"])
    assert names == ("place=a", "place=sea, north")
    assert got_x.toarray().tolist() == [[0, 1], [1, 0]]


def test_a_label_with_a_backslash_of_its_own_is_found(tmp_path):
    header = "@relation r\n@attribute x numeric\n@attribute m\\'usica {0,1}\n@attribute dise\\~no {0,1}\n@data\n"
    labels = ["dise\\~no", "m\\'usica"]
    _, got_y, _ = read_arff(write(tmp_path / "toy.arff", header + "3,1,0\n"), labels)
    assert got_y.toarray().tolist() == [[0, 1]]


def test_numeric_labels_integers_tabs_and_windows_line_ends_are_read(tmp_path):
    text = "\ufeff@relation r\r\n@ATTRIBUTE\tx\tinteger\r\n@attribute l numeric\r\n@DATA\r\n1.5,1\r\n2,0.0\r\n"
    path = tmp_path / "toy.arff"
    path.write_bytes(text.encode())
    got_x, got_y, _ = read_arff(path, ["l"])
    assert got_x.tolist() == [[1.5], [2]]
    assert got_y.toarray().tolist() == [[1], [0]]


def test_labels_are_those_of_the_list_nested_ones_included(tmp_path):
    text = '<labels xmlns="u"><label name="a"><label name="b"/></label><label name="c &amp; d"/></labels>'
    assert read_labels(write(tmp_path / "toy.xml", text)) == ("a", "b", "c & d")


# Line 12 of the file is the first of the data.
BAD_ROWS = [
    ("0.5,1,1,a,0\n", "line 12 must be a row of 6 values, got 5"),
    ("0.5,1,1,a,0,0,0\n", "line 12 must be a row of 6 values, got 7"),
    (DENSE + "0.5,1,1,d,0,0\n", "line 17 must be a row of values declared in the header, got 'd'"),
    ("0.5,2,1,a,0,0\n", "line 12 must be a row of values declared in the header, got '2'"),
    ("0.5,1,2,a,0,0\n", "line 12 must be a row of values declared in the header, got '2'"),
    ("0.5,1,1,a,zero,0\n", "line 12 must be a row of numbers"),
    ("0.5,1,1,a,?,0\n", "line 12 must be a row of finite values, got none for 'y'"),
    (DENSE + "nan,1,1,a,0,0\n", "line 17 must be a row of finite values, got none for 'x'"),
    ("0.5,1,1,a,1e999,0\n", "line 12 must be a row of finite values, got none for 'y'"),
    ("0.5,1,1,'a,0,0\n", "line 12 must be in the ARFF format"),
    ("{0 1,6 1}\n", "line 12 must be a row of indices below 6, got '{0 1,6 1}'"),
    (SPARSE + "{0 1,-1 1}\n", "line 18 must be in the ARFF format"),
    ("{0 1,0 2}\n", "line 12 must be a row of different indices"),
    ("{0 1,2 1\n", "line 12 must be in the ARFF format"),
    ("{3 d}\n", "line 12 must be a row of values declared in the header, got 'd'"),
    ("{4 ?}\n", "line 12 must be a row of finite values, got none for 'y'"),
    ("{4 1}\n0.5,1,1,a,0,0\n", "line 13 must be in the ARFF format"),
    ("", "must be a file with rows of data, got none"),
]


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(("rows", "message"), BAD_ROWS)
def test_a_malformed_row_is_refused_with_file_and_line(tmp_path, rows, message, end):
    path = write(tmp_path / f"toy.arff{end}", HEADER + rows)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_arff(path, LABELS)
    assert str(caught.value).startswith(f"sparsegen: {path}")


BAD_HEADERS = [
    ("@relation r\n@attribute a {0,1}\n@attribute a {0,1}\n@data\n1,1\n", "line 3 must be an attribute with a name"),
    ("@relation r\n@attribute a date\n@data\n1\n", "line 2 must be in the ARFF format, got '@attribute a date'"),
    ("@relation r\n@attribute a string\n@data\n1\n", "attribute 'a' of"),
    ("@relation r\n@attribute a {0,0}\n@data\n0\n", "must be a list of different values"),
    ("@relation\n@attribute a {0,1}\n@data\n0\n", "line 1 must be in the ARFF format"),
    ("@relation r\n@attribute a {0,1}\n", "line 2 must be in the ARFF format"),
    ("", "must be in the ARFF format"),
]


@pytest.mark.parametrize(("text", "message"), BAD_HEADERS)
def test_a_malformed_header_is_refused(tmp_path, text, message):
    path = write(tmp_path / "toy.arff", text)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_arff(path, ["a"])
    assert "toy.arff" in str(caught.value)


@pytest.mark.parametrize("row", ["0.5,2", "{0 1}\n{1 2}"])
def test_a_label_that_is_not_0_or_1_is_refused_with_its_line(tmp_path, row):
    text = "@relation r\n@attribute x numeric\n@attribute l numeric\n@data\n" + row
    line = 5 + row.count("\n")
    with pytest.raises(ValueError, match=rf"toy.arff, line {line} must be a row whose labels are 0 or 1, got 2\."):
        read_arff(write(tmp_path / "toy.arff", text), ["l"])


def test_a_label_of_another_domain_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"label 'site' of .*toy.arff must be 0 or 1, got \{a,b c,7\}"):
        read_arff(write(tmp_path / "toy.arff", HEADER + DENSE), ["sea", "site"])


@pytest.mark.parametrize("keep", [10, 40, -4])
def test_a_truncated_gzip_file_is_refused(tmp_path, keep):
    path = write(tmp_path / "toy.arff.gz", HEADER + DENSE)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"toy.arff.gz must be a complete gzip file"):
        read_arff(path, LABELS)


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"x")[:10] + b"\x07" * 40], ids=["text", "bad"])
def test_what_is_not_gzip_is_refused(tmp_path, content):
    path = tmp_path / "toy.arff.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"toy.arff.gz must be a complete gzip file"):
        read_arff(path, LABELS)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "toy.arff"
    path.write_bytes(b"@relation r\n@attribute caf\xe9 {0,1}\n")
    with pytest.raises(ValueError, match=r"toy.arff must be UTF-8 text, got byte 0xe9"):
        read_arff(path, ["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<labels><label name='a'>", "must be an XML list of labels"),
        ("", "must be an XML list of labels"),
        ("<labels/>", "got no label"),
        ("<labels><label name='a'/><label/></labels>", "got a label without a name"),
        ("<labels><label name='a'/><label name='a'/></labels>", "got 'a' twice"),
    ],
)
def test_a_malformed_label_list_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=r"toy\.xml " + f".*{message}|{message}") as caught:
        read_labels(write(tmp_path / "toy.xml", text))
    assert "toy.xml" in str(caught.value)


@pytest.mark.parametrize(("module", "absent"), [("mulan", "arff"), ("mulan", "scipy"), ("metrics", "scipy")])
def test_a_missing_package_names_the_extra(monkeypatch, module, absent):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == absent:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    name = f"sparsegen.experiments.multilabel.{module}"
    before = importlib.import_module(name)
    del sys.modules[name]
    monkeypatch.setattr(builtins, "__import__", without)
    try:
        with pytest.raises(ImportError, match=r"pip install 'sparsegen\[experiments\]'"):
            importlib.import_module(name)
    finally:
        sys.modules[name] = before
        setattr(sys.modules["sparsegen.experiments.multilabel"], module, before)
