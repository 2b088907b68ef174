"""Numbers and dates in French and English words: a corpus that needs no data, and has one right answer a line."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from functools import cache

from sparsegen._table.checks import fail
from sparsegen._table.extras import missing
from sparsegen.experiments.seq2seq.splits import Split, check_count, spaced

GENERATING = "generating numbers and dates"
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
    check_count("n", n, 1)
    check_count("seed", seed, 0)
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
        raise missing(GENERATING, "num2words", "experiments") from error
    return _words(num2words(n, lang=language, to=to))


@cache
def _calendar(language: str, kind: str) -> tuple[str, ...]:
    """Names of the months from January, or of the weekdays from Monday."""
    try:
        from babel import dates
    except ImportError as error:
        raise missing(GENERATING, "babel", "experiments") from error
    names = dates.get_month_names("wide", locale=language) if kind == "months" else None
    found = names or dates.get_day_names("wide", locale=language)
    return tuple(str(found[key]).lower() for key in sorted(found))


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
