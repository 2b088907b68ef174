"""Lines as words: a small tokeniser, and the form of the Gigaword files."""

from __future__ import annotations

import itertools
import re
import unicodedata

from sparsegen._table.checks import fail, one_of

UNKNOWN = "<unk>"
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
        fail(ValueError, "language", one_of(_TOKENS), repr(language))
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
