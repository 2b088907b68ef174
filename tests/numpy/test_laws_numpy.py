"""The laws, for every map of the table in the NumPy front end, and a wrong map that each law catches."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import laws
import oracle
import sparsegen as sg
from sparsegen._table.maps import MAPS

CONTROLS = {"lam": -0.5, "q": 0.5, "temperature": 0.75, "alpha": 1.25}


def numpy_map(m):
    def f(scores, mask=None, **controls):
        chosen = {name: CONTROLS[name] for name in m.controls} | controls
        return getattr(sg, m.name)(scores, mask=mask, **chosen)

    return f


def scores(shape, dtype):
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", MAPS)
def test_map_obeys(law, name):
    for dtype in (np.float16, np.float32, np.float64):
        for shape in ((5, 1), (6, 7), (3, 40), (2, 300)):
            law(numpy_map(MAPS[name]), MAPS[name], laws.inside(MAPS[name], scores(shape, dtype)))


def right(scores, mask=None, **controls):
    """A slow sparsemax with every control of the family, true to every law."""
    z = np.where(True if mask is None else mask, scores, -math.inf).astype(np.float64)
    radius = 1 - controls.get("lam", 0.0)
    return oracle.project_bisect(z, radius).astype(scores.dtype)


def reversed_order(scores, mask=None, **controls):
    return right(-scores, mask, **controls)


def by_position(scores, mask=None, **controls):
    return right(scores + np.arange(scores.shape[-1]) / 8, mask, **controls)


def zero_is_minus_a_million(scores, mask=None, **controls):
    """The sentinel that libraries use for a mask, which lets masked entries count in the mean."""
    z = scores if mask is None else np.where(mask, scores, -1e6)
    z = np.where(z == -math.inf, -1e6, z)
    return right(z - 0.5 * z.mean(-1, keepdims=True) / z.max(-1, keepdims=True) * z, **controls).astype(scores.dtype)


def spoils_its_neighbours(scores, mask=None, **controls):
    return right(scores, mask, **controls) + 0 * scores.sum(dtype=np.float64).astype(scores.dtype)


def writes_its_input(scores, mask=None, **controls):
    p = right(scores, mask, **controls)
    scores[...] = 0
    return p


def shared_by_the_batch(scores, mask=None, **controls):
    return right(scores - scores.min() * scores, mask, **controls)


def first_wins(scores, mask=None, **controls):
    return np.eye(scores.shape[-1], dtype=scores.dtype)[np.argmax(scores, axis=-1)]


WRONG = {
    laws.is_on_the_simplex: lambda z, mask=None: 1.001 * right(z),
    laws.keeps_shape_and_dtype: lambda z, mask=None: right(z.astype(np.float64)),
    laws.leaves_the_scores_alone: writes_its_input,
    laws.keeps_order: reversed_order,
    laws.gives_ties_equal_shares: first_wins,
    laws.permutes_with_the_scores: by_position,
    laws.gives_masked_entries_nothing: lambda z, mask=None: right(z),
    laws.masking_is_deleting: zero_is_minus_a_million,
    laws.minus_inf_is_masking: lambda z, mask=None: right(z, None if mask is None else mask & (z > 0)),
    laws.does_not_look_under_the_mask: lambda z, mask=None: right(z) * (True if mask is None else mask),
    laws.gives_zeros_when_nothing_may_be_chosen: lambda z, mask=None: np.nan_to_num(right(z, mask), nan=0.0) + 0.5,
    laws.keeps_nan_and_inf_in_their_row: spoils_its_neighbours,
    laws.maps_a_row_alone_as_in_a_batch: shared_by_the_batch,
    laws.ignores_a_constant_added: lambda z, mask=None: right(z * z),
    laws.ignores_a_positive_factor: right,
    laws.leaves_distributions_alone: lambda z, mask=None: right(2 * z),
    laws.survives_extreme_scores: lambda z, mask=None: z / z.sum(-1, keepdims=True),
    laws.has_the_limits_of_its_control: lambda z, mask=None, lam=0.0: right(z, mask, lam=min(max(lam, -1), 0.5)),
    laws.stays_within_lam_of_its_beginning: lambda z, mask=None, lam=0.0: right(z, mask, lam=lam and 0.9375),
}

EVERYTHING = SimpleNamespace(
    name="wrong",
    transform="lin",
    controls=("lam",),
    domain="",
    true=SimpleNamespace(monotone="yes", translation="yes", scale="yes", idempotent="yes"),
)


def test_every_law_has_a_wrong_map():
    assert set(WRONG) == set(laws.LAWS)


@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.__name__)
def test_a_wrong_map_breaks_the_law(law):
    with pytest.raises(AssertionError):
        law(WRONG[law], EVERYTHING, scores((6, 7), np.float32))


@pytest.mark.parametrize("law", [law for law in laws.LAWS if WRONG[law] is not right], ids=lambda law: law.__name__)
def test_a_right_map_keeps_the_law(law):
    law(right, EVERYTHING, scores((6, 7), np.float32))
