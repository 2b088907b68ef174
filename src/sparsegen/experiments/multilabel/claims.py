"""What the paper claims of multilabel learning, judged by the numbers of a Result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sparsegen.experiments.ledger import HOLDS, NOT, PARTLY, UNKNOWN, Entry, by_share
from sparsegen.experiments.store import Result

FEW, MANY = 4, 7  # mean numbers of labels called few and many
CLOSE_F1, CLOSE_JSD = 0.02, 0.005  # what counts as near the paper's number, and as good as another method
VISIBLE = {"f1": 0.002, "jsd": 0.001, "support": 0.02}  # smaller differences of means are a tie
HINGES = ("sparsemax+hinge", "sparsehg+hinge")


class Means:
    """The means of a synthetic Result by point and pair."""

    def __init__(self, result: Result) -> None:
        self.means = {
            (row["setting"], row["value"], row["pair"], measure): row[measure][0]
            for row in result.summary["table"]
            for measure in ("f1", "jsd", "support")
        }
        self.points = sorted({key[:2] for key in self.means})

    def gain(self, measure: str, pair: str, other: str, point: tuple[str, int]) -> float:
        """By how much `pair` is ahead of `other`: above in F1, below in the others."""
        difference = self.means[(*point, pair, measure)] - self.means[(*point, other, measure)]
        return difference if measure == "f1" else -difference

    def wins(self, measure: str, pairs: Iterable[str], other: str, points: Iterable[tuple[str, int]]) -> list[bool]:
        """Tell for each point and pair whether it is visibly ahead of `other`."""
        return [self.gain(measure, pair, other, point) > VISIBLE[measure] for point in points for pair in pairs]

    def few(self) -> list[tuple[str, int]]:
        """Return the points with few labels."""
        return [point for point in self.points if point[0] == "mean" and point[1] <= FEW]

    def many(self) -> list[tuple[str, int]]:
        """Return the points with many labels."""
        return [point for point in self.points if point[0] == "mean" and point[1] >= MANY]


def _better_f1(means: Means) -> tuple[str, str]:
    text, verdict = by_share(means.wins("f1", HINGES, "sparsemax+huber", means.points))
    few = means.wins("f1", HINGES, "sparsemax+huber", means.few())
    return f"better {text}; with at most {FEW} labels on average in {sum(few)} of {len(few)}", verdict


def _more_when_sparse(means: Means) -> tuple[str, str]:
    if not means.few() or not means.many():
        return "needs points with few and with many labels", UNKNOWN
    gains = [
        sum(means.gain("f1", pair, "sparsemax+huber", point) for point in points for pair in HINGES)
        / (len(points) * len(HINGES))
        for points in (means.few(), means.many())
    ]
    text = f"F1 gain {gains[0]:+.3f} with few labels, {gains[1]:+.3f} with many"
    return text, HOLDS if gains[0] > max(gains[1], 0) else NOT


def _sparser(means: Means) -> tuple[str, str]:
    mean = [point for point in means.points if point[0] == "mean"]
    text, verdict = by_share(means.wins("support", HINGES, "sparsemax+huber", mean))
    few = means.wins("support", HINGES, "sparsemax+huber", means.few())
    return f"sparser {text}; with at most {FEW} labels on average in {sum(few)} of {len(few)}", verdict


def _hourglass_f1(means: Means) -> tuple[str, str]:
    gains = [means.gain("f1", "sparsehg+hinge", "sparsemax+hinge", point) for point in means.points]
    text, verdict = by_share(means.wins("f1", ["sparsehg+hinge"], "sparsemax+hinge", means.points), most=True)
    average = f"by {sum(gains) / len(gains):+.4f} on average"
    return f"better {text}, {average}: at the optimum of a linear model both are the same (docs/math.md)", verdict


def _jsd_softmax(means: Means) -> tuple[str, str]:
    text, verdict = by_share(means.wins("jsd", HINGES, "softmax+log", means.points))
    return f"lower {text}", verdict


def _jsd_huber(means: Means) -> tuple[str, str]:
    others = ("softmax+log", *HINGES)
    best = [
        all(means.gain("jsd", "sparsemax+huber", pair, point) >= -VISIBLE["jsd"] for pair in others)
        for point in means.points
    ]
    text, verdict = by_share(best, most=True)
    return f"lowest of the four, or level with it, {text}", verdict


def _jsd_few(means: Means) -> tuple[str, str]:
    gains = [means.gain("jsd", pair, "sparsemax+huber", point) for point in means.few() for pair in HINGES]
    if not gains:
        return "needs points with few labels", UNKNOWN
    text, verdict = by_share([gain >= -CLOSE_JSD for gain in gains])
    return f"lower or within {CLOSE_JSD} {text}; gain {sum(gains) / len(gains):+.4f} on average", verdict


def _jsd_order(means: Means) -> tuple[str, str]:
    first = means.wins("jsd", ["sparsehg+hinge"], "sparsemax+hinge", means.points)
    then = means.wins("jsd", ["sparsemax+hinge"], "softmax+log", means.points)
    verdicts = [by_share(wins, most=True)[1] for wins in (first, then)]
    text = f"first step in {sum(first)} of {len(first)} points, second in {sum(then)} of {len(then)}"
    return text, HOLDS if verdicts == [HOLDS, HOLDS] else PARTLY if HOLDS in verdicts else NOT


CLAIMS: list[tuple[str, str, str, Callable[[Means], tuple[str, str]]]] = [
    (
        "Both hinge pairs have a better F-score than sparsemax+huber in all three settings",
        "Sec. 6.1.1",
        "holds if at every point, partly from half of them",
        _better_f1,
    ),
    (
        "... especially where label distributions are sparser",
        "Sec. 6.1.1",
        "holds if the mean gain is positive and larger with few labels",
        _more_when_sparse,
    ),
    (
        "sparsehg+hinge has a better F-score than sparsemax+hinge in most cases",
        "Sec. 6.1.1",
        "holds above half of the points, partly from a quarter",
        _hourglass_f1,
    ),
    (
        "The hinge losses give sparser outputs than huber",
        "Sec. 6.1.1, Fig. sparsity",
        "holds if at every mean number of labels, partly from half",
        _sparser,
    ),
    (
        "The hinge pairs have a better JSD than softmax+log",
        "Sec. 6.1.1",
        "holds if at every point, partly from half",
        _jsd_softmax,
    ),
    (
        "sparsemax+huber has overall the best JSD",
        "App. JSD",
        "holds above half of the points, partly from a quarter",
        _jsd_huber,
    ),
    (
        "With few labels the hinge pairs' JSD is as good as that of sparsemax+huber",
        "App. JSD",
        f"holds if never worse by more than {CLOSE_JSD}",
        _jsd_few,
    ),
    (
        "JSD of sparsehg+hinge is in general better than of sparsemax+hinge, and that than of softmax+log",
        "App. JSD",
        "each step above half of the points; partly if one is",
        _jsd_order,
    ),
]


def _equivalence(result: Result) -> Entry:
    found = result.summary["equivalence"]
    scaled, same = found["equal_scaled_penalty"], found["equal_same_penalty"]
    text = (
        f"{scaled:.2%} of label decisions equal with the penalty scaled by 1/(1 - lam)^2, {same:.2%} with the same one"
    )
    verdict = HOLDS if min(scaled, same) >= 0.999 else PARTLY if max(scaled, same) >= 0.99 else NOT
    claim = "sparsegen-lin with its hinge loss produces the same result as sparsemax+hinge"
    rule = "holds from 99.9 % equal decisions under both penalties, partly from 99 % under one"
    return Entry(claim, "Sec. 6.1", rule, text, verdict)


def synthetic(result: Result) -> list[Entry]:
    """Judge the claims on synthetic documents."""
    means = Means(result)
    found = [Entry(claim, source, rule, *judge(means)) for claim, source, rule, judge in CLAIMS]
    return [*found, _equivalence(result)]


def _cells(table: list[dict[str, Any]]) -> Entry:
    beside = [row for row in table if "paper" in row]
    near = [row for row in beside if row["difference"] >= -CLOSE_F1]
    short = ", ".join(f"{row['name']} {row['pair']} {row['f1']:.3f} (paper {row['paper']:.2f})" for row in beside
                      if row not in near)  # fmt: skip
    text = f"{len(near)} of {len(beside)} cells within {CLOSE_F1} or better" + (f"; short: {short}" if short else "")
    verdict = HOLDS if len(near) == len(beside) else PARTLY if 2 * len(near) >= len(beside) else NOT
    return Entry(
        "F-scores of Table real data", "App. Real Datasets", "holds if every cell is, partly from half", text, verdict
    )


def _spread(table: list[dict[str, Any]]) -> Entry:
    spread: dict[str, float] = {}
    for name in dict.fromkeys(row["name"] for row in table if "paper" in row):
        scores = [row["f1"] for row in table if row["name"] == name]
        spread[name] = max(scores) - min(scores)
    text = "; ".join(f"{name}: best and worst {gap:.3f} apart" for name, gap in spread.items())
    wide = max(spread.values())
    verdict = HOLDS if wide <= 0.05 else PARTLY if min(spread.values()) <= 0.05 else NOT
    rule = "holds if no more than 0.05 apart, partly if so on one set"
    return Entry("All methods give comparable results on the real sets", "Sec. 6.1.2", rule, text, verdict)


def _hinge_or_huber(table: list[dict[str, Any]]) -> Entry:
    scores = {(row["name"], row["pair"]): row["f1"] for row in table}
    names = list(dict.fromkeys(name for name, _ in scores))
    wins = [scores[name, pair] > scores[name, "sparsemax+huber"] for name in names for pair in HINGES]
    text, verdict = by_share(wins)
    rule = "holds if in every comparison, partly from half"
    return Entry("Hinge losses work better than huber losses (real data)", "Sec. 4", rule, f"better F1 {text}", verdict)


def real(result: Result) -> list[Entry]:
    """Judge the claims on real data; those about the paper's table where one of its sets was run."""
    table = result.summary["table"]
    beside = any("paper" in row for row in table)
    return ([_cells(table), _spread(table)] if beside else []) + [_hinge_or_huber(table)]
