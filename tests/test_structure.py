"""The shape of the package: imports go down only, nothing heavy is loaded, every public name is explained."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sparsegen as sg
from sparsegen._table.maps import MAPS

ROOT = Path(__file__).parents[1] / "src" / "sparsegen"
HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "typer", "rich", "entmax", "pandas")

# From the ground up; a module may import what stands on its own step or below.
STEPS = [
    {"_table", "_core"},
    {"numpy", "properties", "__init__"},
    {"torch"},
    {"sklearn", "_solver", "_label_sets"},
    {"experiments"},
    {"explore", "bench"},
    {"report"},
    {"cli", "__main__"},
]
BASE = STEPS[0] | STEPS[1]


def modules():
    """Top-level name and path of each Python file of the package."""
    return [(path.relative_to(ROOT).parts[0].removesuffix(".py"), path) for path in sorted(ROOT.rglob("*.py"))]


def imports(path):
    """Absolute names a file imports, relative ones resolved; `from a import b` gives a and a.b."""
    package = ["sparsegen", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*start, *([node.module] if node.module else [])])
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def own_imports(path):
    """Top-level modules of the package that a file imports."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("sparsegen.")}
    tops = {top for top, _ in modules()} | {"_core"}
    return names & tops


def step_of(top):
    found = [i for i, step in enumerate(STEPS) if top in step]
    assert found, f"sparsegen.{top} has no step yet: give it one in STEPS"
    return found[0]


def test_imports_go_down_only():
    for top, path in modules():
        above = {name for name in own_imports(path) if step_of(name) > step_of(top)}
        assert not above, f"{path.name} imports {sorted(above)}, which stand above it"


def test_the_tables_stand_on_the_ground():
    for path in (ROOT / "_table").glob("*.py"):
        assert own_imports(path) <= {"_table"}, path.name


def test_the_numpy_front_end_knows_only_the_tables_and_the_kernel():
    for path in (ROOT / "numpy").glob("*.py"):
        assert own_imports(path) <= {"_table", "_core", "numpy"}, path.name


def test_the_recipe_knows_no_framework():
    for name in ("checks", "controls", "losses", "maps", "plain", "prose", "radius", "recipe", "rows"):
        outside = {i.split(".")[0] for i in imports(ROOT / "_table" / f"{name}.py")} - {"sparsegen"}
        assert outside <= set(sys.stdlib_module_names), f"{name} imports {sorted(outside)}"


def test_private_names_of_torch_are_asked_in_one_place():
    for path in (ROOT / "torch").rglob("*.py"):
        if path.name not in ("_route.py", "_cpu.py"):  # where a copy that torch puts off is told from others
            assert "torch._C" not in path.read_text(), path.name


def test_the_base_package_imports_numpy_and_nothing_heavier():
    for top, path in modules():
        if top in BASE:
            outside = {i.split(".")[0] for i in imports(path)} - set(sys.stdlib_module_names)
            assert outside <= {"numpy", "sparsegen"}, f"{path.name} imports {sorted(outside)}"


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, sparsegen; print(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "numpy" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("name", sg.__all__)
def test_public_name_is_explained_with_an_example(name):
    text = inspect.getdoc(getattr(sg, name)) or ""
    assert ">>>" in text


def test_every_name_promised_exists():
    assert sorted(sg.__all__) == list(sg.__all__)
    assert all(hasattr(sg, name) for name in sg.__all__)
    assert sg.__version__.count(".") == 2


@pytest.mark.parametrize("name", MAPS)
def test_every_map_is_a_public_function_with_its_controls(name):
    assert name in sg.__all__
    options = inspect.signature(getattr(sg, name)).parameters
    assert next(iter(options)) == "scores"
    assert set(options) == {"scores", "axis", "mask", "return_info", *MAPS[name].controls}
    assert all(o.kind is o.KEYWORD_ONLY for o in list(options.values())[1:])


@pytest.mark.parametrize("name", MAPS)
def test_every_row_of_the_table_is_filled_in(name):
    m = MAPS[name]
    assert m.equation.startswith("project(")
    assert m.true is not None
    assert {m.true.monotone, m.true.scale, m.true.translation, m.true.idempotent} <= {"yes", "no", "some"}
    assert (m.true.full_domain == "no") == bool(m.domain) or name == "sum_normalization_plus"
