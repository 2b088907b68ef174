"""results/reliability.json: what each of the trials has counted, a part each."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from sparsegen.experiments.store import versions, write_text

ROOT = Path(__file__).resolve().parents[1]
PATH = ROOT / "results" / "reliability.json"


def keep(part: str, found: dict[str, Any], path: str | Path = PATH) -> None:
    """Put a part into the file in place of what it said before; trials may end at the same time."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        whole = json.loads(path.read_text()) if path.exists() else {}
        whole[part] = found
        whole["versions"] = versions()
        write_text(path, json.dumps(whole, indent=1, sort_keys=True) + "\n")
    finally:
        os.close(folder)
