"""The texts of the sequence-to-sequence experiments, by name.

The project ships no data: `load_corpus` reads files from a folder. The numbers and dates in words need none, they are
generated. Every line that leaves this module is words separated by single spaces.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sparsegen._table.checks import fail, one_of
from sparsegen.experiments.folders import DATA_VARIABLE, places
from sparsegen.experiments.seq2seq.numbers import numbers_and_dates
from sparsegen.experiments.seq2seq.splits import Pair, Split, check_count, read_parallel, rows, spaced, split_of
from sparsegen.experiments.seq2seq.tokens import gigaword_form, tokenise


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test texts of one task."""

    name: str
    task: str  # "translation" or "summarization"
    train: Split
    valid: Split
    tests: dict[str, Split]


Reader = Callable[[dict[str, Path], "int | None"], tuple[Split, Split, dict[str, Split]]]


@dataclass(frozen=True)
class Facts:
    """What is known of one corpus: its task, the files it is read from, and where they come from."""

    task: str
    files: tuple[str, ...]
    origin: str
    read: Reader = field(repr=False)


def load_corpus(name: str, folder: str | Path | None = None, *, limit: int | None = None) -> Corpus:
    """Load a corpus.

    Parameters
    ----------
    name : str
        A key of `CORPORA`.
    folder : path, optional
        The folder of the files, or one that contains them in `translation/` or `summarization/`. Without it, the
        folder named by the environment variable SPARSEGEN_DATA; without that, `data`. Each file may be plain or
        gzipped.
    limit : int, optional
        Keep only the first `limit` training pairs.

    Raises
    ------
    FileNotFoundError
        With the names of the missing files, the folders looked in, and where to get them.
    ValueError
        A file is malformed; the message names file and line.

    Examples
    --------
    >>> corpus = load_corpus("numbers-fr-en", limit=3)
    >>> len(corpus.train), len(corpus.valid), len(corpus.tests["numbers"])
    (3, 500, 1000)
    >>> load_corpus("multi30k-fr-en", "nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    FileNotFoundError: sparsegen: corpus 'multi30k-fr-en' must be in nowhere or nowhere/translation, got no ...
    """
    if name not in CORPORA:
        fail(ValueError, "name", one_of(CORPORA), repr(name))
    check_count("limit", 1 if limit is None else limit, 1)
    facts = CORPORA[name]
    train, valid, tests = facts.read(_locate(name, facts, folder), limit)
    return Corpus(name, facts.task, train, valid, tests)


def _locate(name: str, facts: Facts, folder: str | Path | None) -> dict[str, Path]:
    """The path of each file, all from one folder."""
    if not facts.files:
        return {}
    tried = places(folder, facts.task)
    missing: Sequence[str] = facts.files
    for place in tried:
        forms = {file: [p for p in (place / file, place / f"{file}.gz") if p.is_file()] for file in facts.files}
        absent = [file for file, found in forms.items() if not found]
        if not absent:
            return {file: found[0] for file, found in forms.items()}
        missing = min(missing, absent, key=len)
    got = f"no {', no '.join(missing)}. Get it from {facts.origin} (files may be gzipped) and name its folder with"
    got += f" --data DIR or {DATA_VARIABLE}"
    fail(FileNotFoundError, f"corpus {name!r}", f"in {' or '.join(map(str, tried))}", got)


def _unescaped(line: str) -> str:
    """Multi30k's words with its &apos; and the like written as the characters they stand for."""
    return spaced(html.unescape(line))


# Readers of one corpus each: paths and the limit to train, valid and tests


def _read_multi30k(source: str, target: str, paths: dict[str, Path], limit: int | None) -> tuple:
    def read(part: str, limit: int | None = None) -> Split:
        files = [paths[_multi30k_file(part, language)] for language in (source, target)]
        return read_parallel(*files, clean=_unescaped, limit=limit)

    return read("train", limit), read("val"), {part: read(part) for part in MULTI30K_TESTS}


def _read_tatoeba(source: str, target: str, paths: dict[str, Path], limit: int | None) -> tuple:
    def pair(row: Sequence[str]) -> Pair:
        text = {language: tokenise(cell, language) for language, cell in zip(("en", "fr"), row)}
        return text[source], (text[target],)

    parts = _parts(paths["tatoeba.en-fr.tsv"], 3)
    splits = [split_of(map(pair, parts[part]), limit if part == "train" else None) for part in PARTS]
    return splits[0], splits[1], {"tatoeba": splits[2]}


PARTS = ("train", "valid", "test")


def _parts(path: Path, n_columns: int) -> dict[str, list[list[str]]]:
    """Rows of a file whose first column names the part, without that column."""
    parts: dict[str, list[list[str]]] = {part: [] for part in PARTS}
    for number, (part, *cells) in enumerate(rows(path, n_columns), 1):
        if part not in parts:
            fail(ValueError, f"{path}, line {number}", "of " + " or ".join(PARTS), repr(part))
        parts[part].append(cells)
    return parts


def _headlines(path: Path, limit: int | None = None) -> Split:
    """Pairs of sentence and headline in Gigaword's own form."""
    return split_of(((gigaword_form(s), (gigaword_form(t),)) for s, t in rows(path, 2)), limit)


def _duc(path: Path) -> Split:
    """Sentences with four summaries, which the file has as they were written."""
    found = rows(path, 5)
    return split_of((gigaword_form(s), tuple(gigaword_form(tokenise(t)) for t in refs)) for s, *refs in found)


def _headline_tests(paths: dict[str, Path]) -> dict[str, Split]:
    tests = {"gigaword": _headlines(paths[HEADLINE_TESTS[0]])}
    return tests | {file.removesuffix(".tsv"): _duc(paths[file]) for file in HEADLINE_TESTS[1:]}


def _read_gigaword(paths: dict[str, Path], limit: int | None) -> tuple:
    train, valid = (paths[file] for file in GIGAWORD[:2])
    return _headlines(train, limit), _headlines(valid), _headline_tests(paths)


def _read_by_parts(
    name: str, file: str, clean: Callable[[str], str], paths: dict[str, Path], limit: int | None
) -> tuple:
    parts = _parts(paths[file], 4)  # the second column is an id
    pairs = {part: ((clean(s), (clean(t),)) for _, s, t in rows) for part, rows in parts.items()}
    train, valid, test = (split_of(pairs[part], limit if part == "train" else None) for part in PARTS)
    others = _headline_tests(paths) if HEADLINE_TESTS[0] in paths else {}
    return train, valid, {name: test, **others}


def _read_numbers(source: str, target: str, paths: dict[str, Path], limit: int | None) -> tuple:
    everything = numbers_and_dates(sum(NUMBERS_SIZES), NUMBERS_SEED, f"{source}-{target}")
    ends = list(itertools.accumulate(NUMBERS_SIZES))
    starts = [0, *ends[:-1]]
    if limit is not None:
        ends[0] = min(ends[0], limit)
    slices = [slice(start, end) for start, end in zip(starts, ends)]
    train, valid, test = (Split(everything.sources[part], everything.references[part]) for part in slices)
    return train, valid, {"numbers": test}


# The table

NUMBERS_SIZES = (20000, 500, 1000)  # training, validation and test pairs of the generated corpus
NUMBERS_SEED = 0
MULTI30K_TESTS = ("test_2016_flickr", "test_2017_flickr")
HEADLINE_TESTS = ("gigaword.test1951.tsv", "duc2003.tsv", "duc2004.tsv")
GIGAWORD = ("gigaword.train10k.tsv", "gigaword.valid1k.tsv", *HEADLINE_TESTS)
REUTERS = "reuters21578.lead-headline.tsv"
ACL = "acl.keysentence-title.tsv"


def _multi30k_file(part: str, language: str) -> str:
    return f"multi30k.{part}.lc.norm.tok.{language}"


def _translations() -> Iterator[tuple[str, Facts]]:
    files = tuple(_multi30k_file(p, la) for p in ("train", "val", *MULTI30K_TESTS) for la in ("en", "fr"))
    multi30k = "github.com/multi30k/dataset (data/task1/tok, with multi30k. before each name)"
    tatoeba = "manythings.org/anki (fra-eng.zip, as rows of train, valid or test, then English, then French)"
    for sides in (("fr", "en"), ("en", "fr")):
        end = "-".join(sides)
        yield f"multi30k-{end}", Facts("translation", files, multi30k, partial(_read_multi30k, *sides))
        yield f"tatoeba-{end}", Facts("translation", ("tatoeba.en-fr.tsv",), tatoeba, partial(_read_tatoeba, *sides))
        yield f"numbers-{end}", Facts("translation", (), "nowhere: it is generated", partial(_read_numbers, *sides))


def _summaries() -> Iterator[tuple[str, Facts]]:
    tests = "github.com/cbaziotis/seq3 (test sets)"
    gigaword = f"github.com/harvardnlp/sent-summary (train and valid) and {tests}"
    reuters = f"the Reuters-21578 collection (rows of part, id, first paragraph, headline) and {tests}"
    acl = "github.com/acl-org/acl-anthology (rows of part, id, sentence of the abstract, title)"
    yield "gigaword", Facts("summarization", GIGAWORD, gigaword, _read_gigaword)
    read = partial(_read_by_parts, "reuters", REUTERS, gigaword_form)
    yield "reuters", Facts("summarization", (REUTERS, *HEADLINE_TESTS), reuters, read)
    yield "acl", Facts("summarization", (ACL,), acl, partial(_read_by_parts, "acl", ACL, tokenise))


CORPORA: dict[str, Facts] = dict(itertools.chain(_translations(), _summaries()))
