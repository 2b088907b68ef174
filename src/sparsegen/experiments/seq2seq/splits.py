"""Pairs of lines, and the files they are read from. Every line that leaves here is words separated by single spaces."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsegen._table.checks import fail


@dataclass(frozen=True)
class Split:
    """Lines to read and, for each, the lines that count as right.

    Examples
    --------
    >>> split = Split(("un chat", "un chien"), (("a cat",), ("a dog", "one dog")))
    >>> len(split), split.targets
    (2, ('a cat', 'a dog'))
    """

    sources: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    dropped: int = 0  # pairs left out because a side was empty

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.references):
            counts = f"{len(self.sources)} sources and {len(self.references)} references"
            fail(ValueError, "a split", "of as many sources as references", counts)
        if not all(self.references):
            row = next(i for i, lines in enumerate(self.references) if not lines)
            fail(ValueError, f"references row {row}", "at least one line", "none")

    def __len__(self) -> int:
        return len(self.sources)

    def first(self, n: int | None) -> Split:
        """Return the first `n` lines; all of them where `n` is None."""
        return self if n is None else Split(self.sources[:n], self.references[:n])

    @property
    def targets(self) -> tuple[str, ...]:
        """The first reference of each source."""
        return tuple(lines[0] for lines in self.references)


Pair = tuple[str, tuple[str, ...]]  # source and references


def check_count(name: str, value: object, least: int) -> None:
    """Refuse what is not an integer of at least that size."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        fail(ValueError, name, f"an integer at least {least}", repr(value))


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 file, plain or gzipped, with their numbers from 1."""
    number = 0
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                # Only \n ends a line: text may hold other characters that str.splitlines would break at.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.rstrip("\r\n")
        except UnicodeDecodeError as error:
            fail(ValueError, f"{path}, line {number}", "UTF-8 text", f"{error.reason} at byte {error.start}")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            fail(ValueError, f"{path}, line {number + 1}", "readable gzip data", str(error).rstrip("."))


def rows(path: Path, n_columns: int) -> Iterator[list[str]]:
    """Rows of a file of tab-separated columns without quoting."""
    for number, line in lines(path):
        cells = line.split("\t")
        if len(cells) != n_columns:
            fail(ValueError, f"{path}, line {number}", f"{n_columns} columns separated by tabs", len(cells))
        yield cells


def split_of(pairs: Iterable[Pair], limit: int | None = None) -> Split:
    """A split of the first `limit` pairs that have words on both sides; empty references are left out."""
    kept: list[Pair] = []
    dropped = 0
    for source, references in pairs:
        if limit is not None and len(kept) == limit:
            break
        filled = tuple(line for line in references if line)
        if source and filled:
            kept.append((source, filled))
        else:
            dropped += 1
    return Split(tuple(s for s, _ in kept), tuple(r for _, r in kept), dropped)


def spaced(line: str) -> str:
    """The words of a line separated by single spaces.

    >>> spaced("  a  little\\tgirl ")
    'a little girl'
    """
    return " ".join(line.split())


def read_parallel(
    source: str | Path, target: str | Path, *, clean: Callable[[str], str] = spaced, limit: int | None = None
) -> Split:
    """Read two line-aligned text files, plain or .gz.

    Pairs of which a side is empty are left out, and counted in `dropped`.

    Parameters
    ----------
    source, target : path
    clean : callable, optional
        Applied to every line. The default only makes spaces single.
    limit : int, optional
        Keep only the first `limit` pairs. The files are still read to the end to compare their lengths.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fr, en = Path(folder, "toy.fr"), Path(folder, "toy.en")
    ...     _ = fr.write_text("un chat\\n\\nun chien\\n"), en.write_text("a cat\\nnothing\\na dog\\n")
    ...     read_parallel(fr, en)
    Split(sources=('un chat', 'un chien'), references=(('a cat',), ('a dog',)), dropped=1)
    """
    sides = [[line for _, line in lines(Path(path))] for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        got = f"{len(sides[1])}: line {min(map(len, sides)) + 1} has no partner"
        fail(ValueError, str(target), f"of as many lines as {source} ({len(sides[0])})", got)
    return split_of(((clean(s), (clean(t),)) for s, t in zip(*sides)), limit)
