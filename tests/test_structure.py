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
HEAVY = ("torch", "jax", "scipy", "sklearn", "matplotlib", "typer", "rich", "entmax", "pandas", "transformers")

# From the ground up; a module may import what stands on its own step or below.
STEPS = [
    {"_table", "_core", "_jax_ffi"},
    {"numpy", "properties", "__init__"},
    {"torch", "jax"},
    {"sklearn", "transformers"},
    {"experiments"},
    {"explore", "bench"},
    {"report"},
    {"cli", "__main__"},
]
BASE = STEPS[0] | STEPS[1]

# The upper folders, and which of each other they may import: sideways edges are held like upward ones.
FOLDERS = {
    "torch._triton": set(),
    "torch.attention": set(),
    "torch.distributed": set(),
    "transformers": {"torch.attention"},
    "explore": set(),
    "experiments": set(),
    "experiments.multilabel": {"experiments"},
    "experiments.labels": {"experiments", "torch.distributed"},
    "experiments.seq2seq": {"experiments"},
    "experiments.table1": {"experiments"},
    "bench": {"experiments", "experiments.multilabel", "torch._triton"},
    "report": {"experiments"},
    "cli": {
        "explore", "experiments", "experiments.labels", "experiments.seq2seq", "bench", "report", "torch.distributed",
    },
}  # fmt: skip


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
    tops = {top for top, _ in modules()} | {"_core", "_jax_ffi"}
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
    for name in ("checks", "controls", "forms", "losses", "maps", "plain", "prose", "radius", "recipe", "rows"):
        outside = {i.split(".")[0] for i in imports(ROOT / "_table" / f"{name}.py")} - {"sparsegen"}
        assert outside <= set(sys.stdlib_module_names), f"{name} imports {sorted(outside)}"


def test_the_jax_front_end_knows_no_other_framework():
    for path in (ROOT / "jax").glob("*.py"):
        assert own_imports(path) <= {"_table", "_core", "_jax_ffi", "numpy", "jax"}, path.name
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "jaxlib"}, path.name
        assert "jax._src" not in path.read_text(), path.name


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


def folder_of(name):
    """The upper folder that a dotted name of the package is in, if it is in one."""
    parts = name.removeprefix("sparsegen.").split(".")
    known = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((folder for folder in known if folder in FOLDERS), None)


def upper_files():
    """Folder and path of each file in the upper folders."""
    for _, path in modules():
        folder = folder_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if folder is not None:
            yield folder, path


def test_folders_import_each_other_in_one_direction():
    for folder, path in upper_files():
        names = {name for name in imports(path) if name.startswith("sparsegen.")}
        others = {folder_of(name) for name in names} - {None, folder, *FOLDERS[folder]}
        assert not others, f"{path.relative_to(ROOT)} imports {sorted(others)}"


def test_the_directions_of_folders_have_no_circle():
    def above(folder):
        return {folder}.union(*(above(other) for other in FOLDERS[folder]))

    assert all(folder not in above(other) for folder, others in FOLDERS.items() for other in others)


def test_every_upper_folder_is_there_and_every_folder_has_its_directions():
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.rglob("__init__.py")}
    upper = {name for name in folders if name.split(".")[0] in {folder.split(".")[0] for folder in FOLDERS}}
    assert upper - {"torch"} == set(FOLDERS)


def test_attention_stands_on_the_maps_of_torch():
    """Of torch's modules only those that gather names, watch attention or forward old imports stand above it."""
    roof = {"__init__", "control", "multihead", "probes"}
    for path in (ROOT / "torch").glob("*.py"):
        if path.stem not in roof:
            assert not [name for name in imports(path) if name.startswith("sparsegen.torch.attention")], path.name
    above = {f"sparsegen.torch.{name}" for name in roof}
    for path in (ROOT / "torch" / "attention").glob("*.py"):
        assert not above & set(imports(path)), path.name


def test_the_page_to_play_with_knows_only_the_table():
    assert own_imports(ROOT / "explore" / "__init__.py") <= STEPS[0]


def test_no_private_name_of_another_folder_is_imported():
    for folder, path in upper_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and folder_of(node.module or "") not in (None, folder):
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not private, f"{path.relative_to(ROOT)} imports {private} of {node.module}"


def test_files_are_short():
    long = {path.name: n for _, path in modules() if (n := len(path.read_text().splitlines())) > 450}
    assert not long


def test_the_tests_stand_where_the_modules_do():
    """The kernel's and the tables' folders without their underscore."""
    tests = ROOT.parents[1] / "tests"
    found = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}
    folders = {path.parent.relative_to(ROOT).as_posix().removeprefix("_") for path in ROOT.rglob("*.py")}
    assert {folder for folder in folders if folder != "."} <= found
    assert not list(tests.rglob("__init__.py"))  # a folder called torch would hide torch
