"""A toy data set in Mulan's form, for the tests of its readers and loaders."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from sparsegen.experiments.multilabel.datasets import SETS

HEADER = """% a comment
@relation 'toy: -C 2'

@attribute x numeric
@attribute flag {0,1}
@attribute 'sea' {0,1}
@attribute site {a,'b c',7}
@attribute y REAL
@attribute 'Swainson\\'s Thrush' {0,1}

@data
"""
DENSE = "0.5,1,1,a,-2e1,0\n% a comment between rows\n\n1,0,0,'b c',0,1\n.25, 1, 0, 7, 3, 0\n"
SPARSE = "{0 0.5,1 1,2 1,4 -2e1}\n% a comment between rows\n\n{0 1,3 'b c',5 1}\n{ 0 .25,1 1,3 7,4 3 }\n{}\n"
LABELS = ("Swainson's Thrush", "sea")  # not the order of the file, nor its last attributes
NAMES = ("x", "flag", "site=a", "site=b c", "site=7", "y")
X = [[0.5, 1, 1, 0, 0, -20], [1, 0, 0, 1, 0, 0], [0.25, 1, 0, 0, 1, 3]]
Y = [[0, 1], [1, 0], [0, 0]]


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def label_list(names) -> str:
    inside = "".join(f'<label name="{name}"></label>\n' for name in names)
    return f'<?xml version="1.0" encoding="utf-8"?>\n<labels xmlns="http://mulan.sourceforge.net/labels">\n{inside}</labels>'


def write_set(folder: Path, name="emotions", train=HEADER + DENSE, test=HEADER + DENSE, labels=LABELS, end="") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    facts = SETS[name]
    write(folder / (facts.train + end), train)
    write(folder / (facts.test + end), test)
    write(folder / facts.labels, label_list(labels))
    return folder


def toy_set(folder, rows=60):
    """Two features, two labels that follow their signs, in the form of the set `emotions`."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * rows, 2))
    Y = (X > 0).astype(int)
    header = ["@relation toy", *(f"@attribute {name} numeric" for name in "ab")]
    header += [f"@attribute {name} {{0,1}}" for name in ("sun", "rain")]
    lines = [f"{a:.6f},{b:.6f},{s},{r}" for (a, b), (s, r) in zip(X, Y)]
    text = ["\n".join([*header, "@data", *part]) + "\n" for part in (lines[:rows], lines[rows:])]
    return write_set(folder / "multilabel", train=text[0], test=text[1], labels=("sun", "rain"))
