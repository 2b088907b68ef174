"""What every public name says of itself: each argument, what comes back, and an example; and no stale name."""

import importlib
import inspect
import re

import pytest

import sparsegen as sg
from sparsegen.properties import check

sgt, sgj = pytest.importorskip("sparsegen.torch"), pytest.importorskip("sparsegen.jax")
sgd = pytest.importorskip("sparsegen.torch.distributed")

PLACES = {"sparsegen": sg, "sparsegen.torch": sgt, "sparsegen.torch.distributed": sgd, "sparsegen.jax": sgj}
NAMES = [
    (place, name) for place, module in PLACES.items() for name in module.__all__ if callable(getattr(module, name))
]
RESULTS = ("Explanation", "Gradients", "Info", "SparseWeights", "Traffic")  # made by functions, not by callers


def section(text, title):
    """The lines of a numpydoc section, without its heading."""
    found = re.search(rf"(?m)^{title}\n-{{{len(title)}}}\n((?:.*\n?)*?)(?=^\w+\n-+\n|\Z)", text)
    return found[1] if found else None


def told(text):
    """Names of arguments in a Parameters section; several may share a line."""
    heads = re.findall(r"(?m)^(\*{0,2}\w+(?:, \w+)*)(?: :.*)?$", section(text, "Parameters") or "")
    return {name.strip("* ") for head in heads for name in head.split(",")}


def gaps(thing):
    """What is missing in the docstring of a function or a class."""
    text, options = inspect.getdoc(thing) or "", inspect.signature(thing).parameters
    wanted = {name for name, option in options.items() if not name.startswith("_")}
    if "control" in wanted and isinstance(thing, type):  # **control: lam, q or temperature, by name
        wanted = wanted - {"control"}
    missing = [f"the argument {name}" for name in sorted(wanted - told(text))]
    returns = inspect.signature(thing).return_annotation
    if not isinstance(thing, type) and returns not in (None, "None") and not (section(text, "Returns") or "").strip():
        missing.append("what it returns")
    if ">>>" not in (section(text, "Examples") or ""):
        missing.append("an example")
    return missing


@pytest.mark.parametrize(("place", "name"), NAMES, ids=lambda value: value)
def test_a_public_name_says_what_it_takes_and_gives(place, name):
    thing = getattr(PLACES[place], name)
    if name in RESULTS:
        assert ">>>" in inspect.getdoc(thing)
    else:
        assert gaps(thing) == []


def test_the_walk_notices_what_is_not_told():
    def nothing(scores, *, lam=0.0) -> float:
        """Return something.

        Parameters
        ----------
        scores : array

        Examples
        --------
        Nothing runs here.
        """

    assert gaps(nothing) == ["the argument lam", "what it returns", "an example"]


def test_the_argument_that_names_a_map_is_called_mapping():
    named = {name: inspect.signature(getattr(PLACES[place], name)).parameters for place, name in NAMES}
    having = {name for name, options in named.items() if "mapping" in options and name not in RESULTS}
    assert having >= {"explain", "lipschitz", "make_map", "sparse_attention", "MultiheadAttention", "replace_attention"}
    old = {name: options["map"] for name, options in named.items() if "map" in options}
    assert set(old) == {"explain", "lipschitz"}  # version 0.1 had it there
    assert all(option.default is None for option in old.values())


@pytest.mark.parametrize(
    "f", [lambda **old: sg.lipschitz(n_classes=3, **old), lambda **old: sg.explain([1.0, 0.0], **old)]
)
def test_the_old_name_of_mapping_works_and_warns(f):
    with pytest.warns(DeprecationWarning, match="the argument map is now called mapping"):
        old = f(map="sparsemax")
    assert str(old) == str(f(mapping="sparsemax"))


def test_the_property_lab_takes_the_old_name_too():
    with pytest.warns(DeprecationWarning, match="the argument map is now called mapping"):
        old = check(map=sg.sparsemax, n_classes=(2,))
    assert old.findings.keys() == check(sg.sparsemax, n_classes=(2,)).findings.keys()
    with pytest.raises(TypeError, match="mapping must be callable, got None"):
        check()


@pytest.mark.parametrize("package", ["sparsegen", "sparsegen.torch", "sparsegen.jax"])
@pytest.mark.parametrize("name", ["Nonsense", "nonsense_loss"])
def test_a_name_that_is_not_there_is_missed_in_the_package_that_was_asked(package, name):
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute '{name}'$"):
        getattr(module, name)
