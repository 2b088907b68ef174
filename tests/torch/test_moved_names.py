"""Names that stood elsewhere in version 0.1 are found there, with a warning."""

import importlib

import pytest

pytest.importorskip("torch")

OLD = {
    "sparsegen.torch.multihead": ("sparsegen.torch.attention.multihead", ["MultiheadAttention", "replace_attention"]),
    "sparsegen.torch.probes": ("sparsegen.torch.attention.probes", ["AttentionProbe", "Probed"]),
}


@pytest.mark.parametrize("old", OLD)
def test_an_old_place_gives_the_same_thing_and_says_where_it_is_now(old):
    place, names = OLD[old]
    new = importlib.import_module(place)
    for name in names:
        with pytest.warns(DeprecationWarning, match=f"{old}.{name} is now {place}.{name}"):
            assert getattr(importlib.import_module(old), name) is getattr(new, name)
    with pytest.raises(AttributeError):
        _ = importlib.import_module(old).nothing_like_it
