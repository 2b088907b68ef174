"""The texts of the sequence-to-sequence experiments, by name.

The project ships no data: `load_corpus` reads files from a folder. The numbers and dates in words need none, they are
generated. Every line that leaves this module is words separated by single spaces.
"""

from __future__ import annotations

import datetime
import gzip
import html
import itertools
import random
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from sparsegen._table.checks import fail
from sparsegen.experiments.folders import DATA_VARIABLE, places

UNKNOWN = "<unk>"


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


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test texts of one task."""

    name: str
    task: str  # "translation" or "summarization"
    train: Split
    valid: Split
    tests: dict[str, Split]


Pair = tuple[str, tuple[str, ...]]  # source and references
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
        folder named by the environment variable SPARSEGEN_DATA; without that, `data` and then `../shared/data`. Each
        file may be plain or gzipped.
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
        fail(ValueError, "name", "one of " + ", ".join(map(repr, CORPORA)), repr(name))
    _check_count("limit", 1 if limit is None else limit, 1)
    facts = CORPORA[name]
    train, valid, tests = facts.read(_locate(name, facts, folder), limit)
    return Corpus(name, facts.task, train, valid, tests)


def _check_count(name: str, value: object, least: int) -> None:
    """Refuse what is not an integer of at least that size."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        fail(ValueError, name, f"an integer at least {least}", repr(value))


# Files


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
    got = f"no {', no '.join(missing)}. Get it from {facts.origin} (files may be gzipped) and name its folder as"
    got += f" the folder argument or in {DATA_VARIABLE}"
    fail(FileNotFoundError, f"corpus {name!r}", f"in {' or '.join(map(str, tried))}", got)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
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


def _rows(path: Path, n_columns: int) -> Iterator[list[str]]:
    """Rows of a file of tab-separated columns without quoting."""
    for number, line in _lines(path):
        cells = line.split("\t")
        if len(cells) != n_columns:
            fail(ValueError, f"{path}, line {number}", f"{n_columns} columns separated by tabs", len(cells))
        yield cells


def _split(pairs: Iterable[Pair], limit: int | None = None) -> Split:
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
    sides = [[line for _, line in _lines(Path(path))] for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        got = f"{len(sides[1])}: line {min(map(len, sides)) + 1} has no partner"
        fail(ValueError, str(target), f"of as many lines as {source} ({len(sides[0])})", got)
    return _split(((clean(s), (clean(t),)) for s, t in zip(*sides)), limit)


# Words

_ABBREVIATIONS = "mr|mrs|ms|dr|st|jr|sr|inc|corp|co|ltd|vs|etc"
# A combining accent belongs to its word, though Python does not count it among word characters.
_LETTER = r"[\w\u0300-\u036f]"
_SHARED = [
    r"<unk>|#+(?:[.,]#+)*",
    r"\.\.+|--+",  # dots and dashes stay together
    r"(?:[^\W\d_]\.){2,}",  # u.s.
    rf"\b(?:{_ABBREVIATIONS})\.",
    r"\d+(?:[.,:]\d+)*(?![\w-])",  # 1,000 and 3.14 and 10:30
]
_WORD = rf"{_LETTER}+(?:[-&]{_LETTER}+)*"
_REST = r"[^\w\s]|_"
_TOKENS = {
    "en": re.compile(
        "|".join(
            [
                *_SHARED,
                r"'(?:s|re|ve|ll|d|m)\b",
                # Before the word rule: do|n't, but not the n of n't alone.
                rf"{_LETTER}+?(?=n't\b)|n't\b",
                rf"[od]'{_LETTER}+",  # o'clock, d'amato
                _WORD,
                _REST,
            ]
        )
    ),
    "fr": re.compile("|".join([*_SHARED, r"aujourd'hui|prud'hom\w+", rf"{_WORD}'", _WORD, _REST])),
}


def tokenise(line: str, language: str = "en") -> str:
    """Lower-case a line and set its words and marks apart by single spaces.

    A small tokeniser in the manner of the published corpora. English splits `'s`, `'ll`, `n't` and the like off as the
    Penn Treebank does; French splits after the apostrophe of an elision, except in aujourd'hui. Hyphenated words,
    numbers with commas or points, and dotted abbreviations stay whole; every other mark is a word of its own.

    Parameters
    ----------
    line : str
    language : {"en", "fr"}, default "en"

    Examples
    --------
    >>> tokenise("I don't know Tom's U.S. phone-number, $1,000.")
    "i do n't know tom 's u.s. phone-number , $ 1,000 ."
    >>> tokenise("C’est aujourd'hui qu'il vient ?", "fr")
    "c' est aujourd'hui qu' il vient ?"
    """
    if language not in _TOKENS:
        fail(ValueError, "language", "one of " + ", ".join(map(repr, _TOKENS)), repr(language))
    text = unicodedata.normalize("NFC", line).lower().translate(_PLAIN)
    return " ".join(_TOKENS[language].findall(text))


_PLAIN = str.maketrans(dict.fromkeys("\u2018\u2019", "'") | dict.fromkeys("“”«»", '"') | {"…": "..."})
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "UNK": UNKNOWN}


def gigaword_form(line: str) -> str:
    """Write words that are already set apart as the Gigaword files do.

    Digits become #, round brackets -lrb- and -rrb-, straight quotes `` and '' in turn, and UNK becomes <unk>.

    >>> gigaword_form('the " big 3 " ( UNK ) lost 12.5 percent')
    "the `` big # '' -lrb- <unk> -rrb- lost ##.# percent"
    """
    quotes = itertools.cycle(("``", "''"))
    words = (next(quotes) if word == '"' else _BRACKETS.get(word, word) for word in line.split())
    return re.sub(r"\d", "#", " ".join(words))


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
    splits = [_split(map(pair, parts[part]), limit if part == "train" else None) for part in PARTS]
    return splits[0], splits[1], {"tatoeba": splits[2]}


PARTS = ("train", "valid", "test")


def _parts(path: Path, n_columns: int) -> dict[str, list[list[str]]]:
    """Rows of a file whose first column names the part, without that column."""
    parts: dict[str, list[list[str]]] = {part: [] for part in PARTS}
    for number, (part, *cells) in enumerate(_rows(path, n_columns), 1):
        if part not in parts:
            fail(ValueError, f"{path}, line {number}", "of " + " or ".join(PARTS), repr(part))
        parts[part].append(cells)
    return parts


def _headlines(path: Path, limit: int | None = None) -> Split:
    """Pairs of sentence and headline in Gigaword's own form."""
    return _split(((gigaword_form(s), (gigaword_form(t),)) for s, t in _rows(path, 2)), limit)


def _duc(path: Path) -> Split:
    """Sentences with four summaries, which the file has as they were written."""
    rows = _rows(path, 5)
    return _split((gigaword_form(s), tuple(gigaword_form(tokenise(t)) for t in refs)) for s, *refs in rows)


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
    train, valid, test = (_split(pairs[part], limit if part == "train" else None) for part in PARTS)
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


# Numbers and dates in words

NUMBERS_SIZES = (20000, 500, 1000)
NUMBERS_SEED = 0
YEARS = (1583, 2099)  # the Gregorian calendar, as far as years are read in pairs of digits


def numbers_and_dates(n: int, seed: int = 0, pair: str = "fr-en") -> Split:
    """Pairs of French and English numbers, dates, times and prices in words.

    Each source has one target and each target one source: what a phrase means is never in doubt, so a perfect
    translation exists, and the languages differ in order (le trois mars, march the third), in length (quatre vingt
    quatorze, ninety four) and in form (moins vingt, twenty to). All pairs differ.

    Parameters
    ----------
    n : int
        How many pairs, at most 200000.
    seed : int, default 0
    pair : {"fr-en", "en-fr"}, default "fr-en"
        Language of the sources and of the targets.

    Examples
    --------
    >>> split = numbers_and_dates(1000, seed=0)
    >>> len(split), len(set(split.sources)), len(set(split.targets))
    (1000, 1000, 1000)
    >>> numbers_and_dates(1000, seed=0, pair="en-fr").sources == split.targets
    True
    """
    _check_count("n", n, 1)
    _check_count("seed", seed, 0)
    if n > 200000:
        fail(ValueError, "n", "at most 200000", n)
    if pair not in ("fr-en", "en-fr"):
        fail(ValueError, "pair", "'fr-en' or 'en-fr'", repr(pair))
    rng = random.Random(seed)
    phrases, weights = list(_PHRASES), list(_PHRASES.values())
    found: dict[tuple[str, str], None] = {}
    while len(found) < n:
        found[rng.choices(phrases, weights)[0](rng)] = None
    sides = list(zip(*found))
    french, english = sides if pair == "fr-en" else sides[::-1]
    return Split(tuple(french), tuple((line,) for line in english))


def _words(text: str) -> str:
    """Words without the hyphens and commas that grammars disagree on."""
    return spaced(text.replace("-", " ").replace(",", " "))


@cache
def _spoken(n: int, language: str, to: str = "cardinal") -> str:
    """A number below 1000 in words."""
    try:
        from num2words import num2words
    except ImportError as error:
        raise ImportError(_needs("num2words")) from error
    return _words(num2words(n, lang=language, to=to))


@cache
def _calendar(language: str, kind: str) -> tuple[str, ...]:
    """Names of the months from January, or of the weekdays from Monday."""
    try:
        from babel import dates
    except ImportError as error:
        raise ImportError(_needs("babel")) from error
    names = dates.get_month_names("wide", locale=language) if kind == "months" else None
    found = names or dates.get_day_names("wide", locale=language)
    return tuple(str(found[key]).lower() for key in sorted(found))


def _needs(module: str) -> str:
    return (
        f"sparsegen: generating numbers and dates needs {module}, which is not installed: "
        "pip install 'sparsegen[experiments]'."
    )


def _groups(n: int) -> tuple[int, int, int]:
    """Millions, thousands and the rest."""
    return n // 10**6, n // 1000 % 1000, n % 1000


def _en(n: int, to: str = "cardinal") -> str:
    """A number below a billion in English words."""
    millions, thousands, rest = _groups(n)
    words = [
        f"{_spoken(count, 'en')} {unit}" for count, unit in ((millions, "million"), (thousands, "thousand")) if count
    ]
    if rest or not words:
        link = "and " if words and rest < 100 else ""
        words.append(link + _spoken(rest, "en", to))
    elif to == "ordinal":
        words[-1] += "th"
    return " ".join(words)


def _bare(n: int) -> str:
    """A French number below 1000 without the plural s of vingts and cents, as it is before another number word."""
    words = _spoken(n, "fr")
    return words.removesuffix("s") if n > 79 and words.endswith(("vingts", "cents")) else words


def _fr(n: int) -> str:
    """A number below a billion in French words."""
    millions, thousands, rest = _groups(n)
    words = []
    if millions:
        words.append(f"{_spoken(millions, 'fr')} million{'s' if millions > 1 else ''}")
    if thousands:
        words.append("mille" if thousands == 1 else f"{_bare(thousands)} mille")
    if rest or not words:
        words.append(_spoken(rest, "fr"))
    return " ".join(words)


def _fr_feminine(n: int) -> str:
    words = _fr(n)
    return words + "e" if words == "un" or words.endswith(" un") else words


def _fr_ordinal(n: int, feminine: bool = False) -> str:
    """A French ordinal; num2words has quatre-vingtsième where it should be quatre-vingtième."""
    if n == 1:
        return "première" if feminine else "premier"
    thousands, rest = divmod(n, 1000)
    head = _fr(thousands * 1000) if thousands else ""
    if not rest:
        return head.removesuffix("e") + "ième"
    tail = "unième" if rest == 1 else _spoken(rest, "fr", "ordinal")
    if rest % 100 in (0, 80):
        tail = tail.replace("sième", "ième")
    return f"{head} {tail}".strip()


def _en_ordinal(n: int) -> str:
    return _en(n, "ordinal")


def _en_year(year: int) -> str:
    """A year as it is read: nineteen ninety four, nineteen oh five, two thousand and five."""
    century, rest = divmod(year, 100)
    if century == 20 and rest < 10:
        return _en(year)
    tail = "hundred" if rest == 0 else f"oh {_en(rest)}" if rest < 10 else _en(rest)
    return f"{_en(century)} {tail}"


def _fr_day(day: int) -> str:
    return "premier" if day == 1 else _fr(day)


def _month(month: int) -> tuple[str, str]:
    return _calendar("fr", "months")[month - 1], _calendar("en", "months")[month - 1]


def _weekday(day: int) -> tuple[str, str]:
    return _calendar("fr", "days")[day], _calendar("en", "days")[day]


def _of(noun: str) -> str:
    """French de, or d' before a vowel."""
    return f"d' {noun}" if noun[0] in "aeiouéê" else f"de {noun}"


# One function for each kind of phrase: French and English of a random one


def _any_number(rng: random.Random, digits: int = 9) -> int:
    """A number with a random count of digits, so that short ones occur as well."""
    size = rng.randint(2, digits)
    return rng.randrange(10 ** (size - 1), 10**size)


def _cardinal(rng: random.Random) -> tuple[str, str]:
    n = _any_number(rng, 7)
    return _fr(n), _en(n)


def _ordinal(rng: random.Random) -> tuple[str, str]:
    n = _any_number(rng, 4)
    kinds = (("page", "page", True), ("fois", "time", True), ("jour", "day", False), ("visiteur", "visitor", False))
    french, english, feminine = rng.choice(kinds)
    article = "la" if feminine else "le"
    return f"{article} {_fr_ordinal(n, feminine)} {french}", f"the {_en_ordinal(n)} {english}"


def _a_day(rng: random.Random) -> datetime.date:
    first, last = datetime.date(YEARS[0], 1, 1).toordinal(), datetime.date(YEARS[1], 12, 31).toordinal()
    return datetime.date.fromordinal(rng.randint(first, last))


def _date(rng: random.Random) -> tuple[str, str]:
    """With its weekday the English day comes first, without it the month: the French tells which."""
    date = _a_day(rng)
    (mois, month), (jour, weekday) = _month(date.month), _weekday(date.weekday())
    day, annee, year = _en_ordinal(date.day), _fr(date.year), _en_year(date.year)
    if rng.random() < 0.5:
        return f"{jour} {_fr_day(date.day)} {mois} {annee}", f"{weekday} the {day} of {month} {year}"
    return f"le {_fr_day(date.day)} {mois} {annee}", f"{month} the {day} {year}"


def _days(rng: random.Random) -> tuple[str, str]:
    mois, month = _month(rng.randint(1, 12))
    first, last = sorted(rng.sample(range(1, 29), 2))
    annee, year = _a_year(rng)
    french = f"entre le {_fr_day(first)} et le {_fr_day(last)} {mois} {annee}"
    return french, f"between the {_en_ordinal(first)} and the {_en_ordinal(last)} of {month} {year}"


def _a_year(rng: random.Random) -> tuple[str, str]:
    year = rng.randint(*YEARS)
    return _fr(year), _en_year(year)


def _months(rng: random.Random) -> tuple[str, str]:
    (mois, month), (mois_2, month_2) = (_month(m) for m in sorted(rng.sample(range(1, 13), 2)))
    annee, year = _a_year(rng)
    return f"{_of(mois)} à {mois_2} {annee}", f"from {month} to {month_2} {year}"


def _week(rng: random.Random) -> tuple[str, str]:
    mois, month = _month(rng.randint(1, 12))
    annee, year = _a_year(rng)
    n = rng.randint(1, 4)
    return f"la {_fr_ordinal(n, True)} semaine {_of(mois)} {annee}", f"the {_en_ordinal(n)} week of {month} {year}"


def _life(rng: random.Random) -> tuple[str, str]:
    born = rng.randint(YEARS[0], YEARS[1] - 100)
    died = born + rng.randint(1, 99)
    return f"né en {_fr(born)} et mort en {_fr(died)}", f"born in {_en_year(born)} and died in {_en_year(died)}"


_HALVES = (("du matin", "in the morning"), ("de l' après midi", "in the afternoon"), ("du soir", "in the evening"))


def _clock(hour: int, minute: int) -> tuple[str, str]:
    """A time on a dial of twelve hours; after the half hour both languages count back from the next hour."""
    if minute > 30:
        hour, minute, back = hour % 24 + 1, 60 - minute, True
    else:
        back = False
    named = {12: ("midi", "noon"), 24: ("minuit", "midnight")}
    twelve = (hour - 1) % 12 + 1
    heure = f"{_fr_feminine(twelve)} heure{'s' if twelve > 1 else ''}"
    french, english = named.get(hour, (heure, _en(twelve)))
    half = _HALVES[0 if hour < 12 else 1 if hour < 18 else 2]
    du, in_the = ("", "") if hour in named else (f" {half[0]}", f" {half[1]}")
    if minute == 0:
        return french + du, english + ("" if hour in named else " o'clock") + in_the
    demi = "demi" if hour in named else "demie"
    fixed = {15: ("le quart" if back else "et quart", "a quarter"), 30: (f"et {demi}", "half")}
    unit = "" if minute % 5 == 0 else " minutes" if minute > 1 else " minute"
    minutes = fixed.get(minute, (_fr_feminine(minute), _en(minute) + unit))
    return (
        f"{french} {'moins ' if back else ''}{minutes[0]}{du}",
        f"{minutes[1]} {'to' if back else 'past'} {english}{in_the}",
    )


def _appointment(rng: random.Random) -> tuple[str, str]:
    heure, time = _clock(rng.randint(1, 24), rng.randrange(60))
    jour, weekday = _weekday(rng.randrange(7))
    if rng.random() < 0.4:
        return f"{jour} à {heure}", f"at {time} on {weekday}"
    mois, month = _month(rng.randint(1, 12))
    day = rng.randint(1, 28)
    return f"{jour} {_fr_day(day)} {mois} à {heure}", f"at {time} on {weekday} the {_en_ordinal(day)} of {month}"


def _price(rng: random.Random) -> tuple[str, str]:
    n = _any_number(rng, 4)
    kind = rng.randrange(3)
    if kind == 0:
        return f"{_fr_feminine(n)} livres", f"{_en(n)} pounds"
    french, english = ("euros", "euros") if kind == 1 else ("dollars", "dollars")
    cents = rng.randint(2, 99)
    if n > 999:
        return f"{_fr(n)} {french}", f"{_en(n)} {english}"
    return f"{_fr(n)} {french} et {_fr(cents)} centimes", f"{_en(n)} {english} and {_en(cents)} cents"


def _sale(rng: random.Random) -> tuple[str, str]:
    french, english = _price(rng)
    if rng.random() < 0.5:
        return f"cela coûte {french}", f"it costs {english}"
    mois, month = _month(rng.randint(1, 12))
    return f"en {mois} il a payé {french}", f"he paid {english} in {month}"


def _sum(rng: random.Random) -> tuple[str, str]:
    a, b = _any_number(rng, 3), rng.randint(2, 99)
    if rng.random() < 0.5:
        return f"{_fr(a)} plus {_fr(b)} font {_fr(a + b)}", f"{_en(a)} plus {_en(b)} is {_en(a + b)}"
    return f"{_fr(a + b)} moins {_fr(b)} font {_fr(a)}", f"{_en(a + b)} minus {_en(b)} is {_en(a)}"


def _decimal(rng: random.Random) -> tuple[str, str]:
    """French reads the decimals as a number, English digit by digit."""
    whole, part = _any_number(rng, 4), rng.randint(1, 99)
    digits = f"{part:02}".rstrip("0")
    zero = "zéro " if digits.startswith("0") else ""
    french = f"{_fr(whole)} virgule {zero}{_fr(int(digits))}"
    english = f"{_en(whole)} point {' '.join(_en(int(d)) for d in digits)}"
    if rng.random() < 0.5:
        return f"{french} pour cent", f"{english} percent"
    return french, english


def _share(rng: random.Random) -> tuple[str, str]:
    whole = _any_number(rng, 4)
    part = rng.randint(2, whole)
    return f"{_fr(part)} sur {_fr(whole)}", f"{_en(part)} out of {_en(whole)}"


_PHRASES: dict[Callable[[random.Random], tuple[str, str]], int] = {
    _cardinal: 4,
    _ordinal: 4,
    _date: 8,
    _days: 1,
    _months: 2,
    _week: 2,
    _life: 1,
    _appointment: 6,
    _sale: 4,
    _sum: 1,
    _decimal: 4,
    _share: 3,
}

# The table

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
