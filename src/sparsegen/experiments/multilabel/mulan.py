"""Readers of Mulan's form: ARFF files, dense or sparse, plain or gzipped, and an XML list of the labels.

Labels are found by their names in the XML, never by position. Malformed files are refused with file and line.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import numpy as np

from sparsegen._table.checks import fail
from sparsegen._table.extras import missing

try:
    import arff
    from scipy import sparse
except ImportError as error:
    raise missing("reading a data set", error.name, "experiments") from error


def read_labels(path: str | Path) -> tuple[str, ...]:
    """Names of the labels in a Mulan XML file, nested ones included, in the order of the file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "toy.xml")
    ...     _ = path.write_text('<labels><label name="sea"/><label name="sky"/></labels>')
    ...     read_labels(path)
    ('sea', 'sky')
    """
    try:
        tree = ElementTree.parse(path)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        fail(ValueError, str(path), "an XML list of labels", error)
    found = [e.get("name") for e in tree.iter() if e.tag.rsplit("}", 1)[-1] == "label"]
    names = tuple(name for name in found if name)
    if not names or len(names) < len(found):
        fail(ValueError, str(path), "a list of <label name=...>", "a label without a name" if found else "no label")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        fail(ValueError, str(path), "a list of different labels", f"{twice[0]!r} twice")
    return names


def read_arff(path: str | Path, label_names: Sequence[str]) -> tuple[Any, sparse.csr_array, tuple[str, ...]]:
    """Read a dense or sparse ARFF file, plain or .gz, and take the named attributes as labels.

    Numeric attributes and nominal ones with domain {0,1} are one column of X; another nominal attribute is a one-hot
    column for each value of its domain, named `attribute=value`. Missing values are refused.

    Returns
    -------
    X : array or CSR matrix of float64, shape (n, columns)
    Y : CSR matrix of int64, shape (n, labels)
        Columns in the order of `label_names`.
    feature_names : tuple of str

    Examples
    --------
    >>> import tempfile
    >>> header = "@relation r\\n@attribute site {a,b}\\n@attribute sea {0,1}\\n@attribute x numeric\\n@data\\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "toy.arff")
    ...     _ = path.write_text(header + "b,1,0.5\\na,0,2\\n")
    ...     X, Y, names = read_arff(path, ["sea"])
    >>> names, X.tolist(), Y.toarray().tolist()
    (('site=a', 'site=b', 'x'), [[0.0, 1.0, 0.5], [1.0, 0.0, 2.0]], [[1], [0]])
    """
    table = read_table(Path(path))
    where = _find_labels(table, label_names)
    taken = set(where)
    X, names = table.columns([j for j in range(len(table.attributes)) if j not in taken])
    Y = sparse.csr_array(table.columns(where)[0])
    if (wrong := Y.data != 1).any():
        row = int(np.searchsorted(Y.indptr, wrong.argmax(), side="right")) - 1
        fail(ValueError, table.at(row), "a row whose labels are 0 or 1", f"{Y.data[wrong][0]:g}")
    return X, Y.astype(np.int64), names


@dataclass(frozen=True)
class Table:
    """Cells of an ARFF file as numbers: the value itself, or the place of a nominal value in its domain."""

    title: str
    attributes: list[tuple[str, Any]]  # name; domain as a list, or the name of a type
    cells: Any  # array or CSR, (rows, attributes)
    lines: Sequence[int]  # line of each row in the file; empty where there is no file

    def at(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.title}, line {self.lines[row]}" if self.lines else f"{self.title}, row {row}"

    def columns(self, where: Sequence[int]) -> tuple[Any, tuple[str, ...]]:
        """Columns of the attributes at `where`, as many as each needs, and their names."""
        if all(_is_plain(self.attributes[j][1]) for j in where):
            return self.cells[:, where], tuple(self.attributes[j][0] for j in where)
        cells = self.cells.tocsc() if sparse.issparse(self.cells) else self.cells
        blocks, names = zip(*(_block(*self.attributes[j], cells[:, [j]]) for j in where))
        if sparse.issparse(cells):
            joined = sparse.hstack([sparse.csc_array(block) for block in blocks], format="csr")
        else:
            joined = np.hstack(blocks)
        return joined, tuple(name for group in names for name in group)

    def check_finite(self) -> None:
        """Refuse a value that is missing, NaN or infinite."""
        cells = self.cells
        if not (bad := ~np.isfinite(cells.data if sparse.issparse(cells) else cells)).any():
            return
        if sparse.issparse(cells):
            k = int(bad.argmax())
            row, j = int(np.searchsorted(cells.indptr, k, side="right")) - 1, int(cells.indices[k])
        else:
            row, j = (int(i) for i in np.argwhere(bad)[0])
        fail(ValueError, self.at(row), "a row of finite values", f"none for {self.attributes[j][0]!r}")


def _is_plain(kind: Any) -> bool:
    """Whether the cell is the number itself."""
    return isinstance(kind, str) or kind in (["0"], ["0", "1"])


def _block(name: str, kind: Any, column: Any) -> tuple[Any, list[str]]:
    """Columns that one attribute becomes, and their names."""
    if _is_plain(kind):
        return column, [name]
    codes = (column.toarray() if sparse.issparse(column) else column).astype(int)  # (n, 1)
    if set(kind) <= {"0", "1"}:
        return np.array(kind, dtype=float)[codes], [name]
    return (codes == np.arange(len(kind))).astype(float), [f"{name}={value}" for value in kind]


def _find_labels(table: Table, label_names: Sequence[str]) -> list[int]:
    """Places of the labels among the attributes."""
    # The parser leaves the backslash of a quoted 'Swainson\'s Thrush'; a name that stands there as it is goes first.
    places = {re.sub(r"\\(['\"\\])", r"\1", name): j for j, (name, _) in enumerate(table.attributes)}
    places |= {name: j for j, (name, _) in enumerate(table.attributes)}
    if missing := [name for name in label_names if name not in places]:
        got = f"none for {missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        fail(ValueError, table.title, "a file with an attribute for every label of the list", got)
    for name in label_names:
        kind = table.attributes[places[name]][1]
        if not isinstance(kind, str) and not set(kind) <= {"0", "1"}:
            fail(ValueError, f"label {name!r} of {table.title}", "0 or 1", "{" + ",".join(kind) + "}")
    return [places[name] for name in label_names]


class _Lines:
    """Lines that know how far they were read: the parser's rows carry no line number."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self.number += 1
            yield line


def read_table(path: Path) -> Table:
    """All cells of an ARFF file."""
    text = _read_lines(path)
    is_sparse = _prepare(text)
    lines = _Lines(text)
    try:
        attributes, rows, numbers = _parse(lines, is_sparse)
    except (arff.ArffException, csv.Error, ValueError, IndexError, KeyError) as error:
        _malformed(f"{path}, line {lines.number}", error, text, lines.number)
    _check_attributes(path, attributes)
    if not rows:
        fail(ValueError, str(path), "a file with rows of data", "none")
    if is_sparse:
        _check_repeats(path, text, rows, numbers)
    cells = _sparse_cells(rows, len(attributes)) if is_sparse else np.array(rows, dtype=float)
    table = Table(str(path), attributes, cells, numbers)
    table.check_finite()
    return table


def _read_lines(path: Path) -> list[str]:
    """Lines of a plain or gzipped text file."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        # All bytes first: what is wrong with the gzip file should not be reported as wrong text.
        with opener(path, "rb") as file:
            content = file.read()
        return list(io.StringIO(content.decode("utf-8-sig"), newline=None))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        fail(ValueError, str(path), "a complete gzip file", f"the error {str(error).rstrip('.')!r}")
    except UnicodeDecodeError as error:
        fail(ValueError, str(path), "UTF-8 text", f"byte {error.object[error.start]:#x}")


def _prepare(text: list[str]) -> bool:
    """Say whether rows are sparse; write the header as the parser wants it."""
    start = next((i for i, line in enumerate(text) if line.lstrip().lower().startswith("@data")), len(text))
    # The parser stumbles over tabs in the header, and would cut the decimals off an attribute of integers.
    text[:start] = [re.sub(r"(?i)\binteger\s*$", "numeric", line.expandtabs(1)) for line in text[:start]]
    body = (line.strip() for line in text[start + 1 :])
    return next((line for line in body if line and not line.startswith("%")), "").startswith("{")


def _parse(lines: _Lines, is_sparse: bool) -> tuple[list[tuple[str, Any]], list[Any], list[int]]:
    """Attributes, rows (lists, or dicts by column) and the line of each row."""
    kind = arff.LOD_GEN if is_sparse else arff.DENSE_GEN
    # Nominal values become places in their domain. In a sparse row an absent one is the first, place 0, by the format.
    parsed = arff.load(lines, encode_nominal=True, return_type=kind)
    rows, numbers = [], []
    for row in parsed["data"]:
        rows.append(row)
        numbers.append(lines.number)
    return parsed["attributes"], rows, numbers


def _malformed(where: str, error: Exception, text: list[str], number: int) -> NoReturn:
    """Refuse the line at which the parser stopped."""
    line = text[number - 1].strip() if text else ""
    short = repr(line if len(line) <= 60 else line[:57] + "...")
    n = sum(other.lstrip().lower().startswith("@attribute") for other in text[:number])
    if isinstance(error, arff.BadNominalValue):
        value = error.message.removeprefix("Data value ").split(" not found")[0]
        fail(ValueError, where, "a row of values declared in the header", repr(value))
    if isinstance(error, arff.BadDataFormat) and line.startswith("{"):
        fail(ValueError, where, f"a row of indices below {n}", short)
    if isinstance(error, arff.BadDataFormat):
        fail(ValueError, where, f"a row of {n} values", line.count(",") + 1)
    if isinstance(error, arff.BadNumericalValue):
        fail(ValueError, where, "a row of numbers where the header says so", short)
    if isinstance(error, arff.BadAttributeName):
        fail(ValueError, where, "an attribute with a name of its own", short)
    fail(ValueError, where, "in the ARFF format", short)


def _check_attributes(path: Path, attributes: list[tuple[str, Any]]) -> None:
    """Refuse attributes that cannot become columns of numbers."""
    for name, kind in attributes:
        if kind == "STRING":
            fail(ValueError, f"attribute {name!r} of {path}", "numeric or nominal", "string")
        if isinstance(kind, list) and len(set(kind)) < len(kind):
            fail(ValueError, f"the domain of {name!r} in {path}", "a list of different values", kind)


def _check_repeats(path: Path, text: list[str], rows: list[dict[int, Any]], numbers: list[int]) -> None:
    """Refuse sparse rows that give an index twice; the parser would keep the last."""
    for row, number in zip(rows, numbers):
        line = text[number - 1]
        # A comma inside quotes separates nothing.
        if row and line.count(",") + 1 > len(row) and not re.search("['\"]", line):
            fail(ValueError, f"{path}, line {number}", "a row of different indices", "one twice")


def _sparse_cells(rows: list[dict[int, Any]], n_attributes: int) -> sparse.csr_array:
    """CSR matrix of rows given as dicts."""
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    indices = np.array([j for row in rows for j in row], dtype=np.int32)
    data = np.array([value for row in rows for value in row.values()], dtype=float)
    cells = sparse.csr_array((data, indices, indptr), shape=(len(rows), n_attributes))
    cells.sort_indices()
    cells.eliminate_zeros()
    return cells
