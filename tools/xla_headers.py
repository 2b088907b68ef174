"""Put XLA's headers, which every wheel of jaxlib has, into a folder: a build that sees no jaxlib can have them too.

    python tools/xla_headers.py build/xla

Where there is no jaxlib for this Python or machine the folder stays empty and JAX runs plain operations.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def fetched(folder: Path) -> bool:
    """Download jaxlib without what it needs and unpack its headers; False where there is none."""
    with tempfile.TemporaryDirectory() as place:
        words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", place]
        if subprocess.run([*words, "jaxlib"], check=False).returncode:
            return False
        with zipfile.ZipFile(next(Path(place).glob("*.whl"))) as wheel:
            names = [name for name in wheel.namelist() if name.startswith("jaxlib/include/xla/ffi/")]
            wheel.extractall(place, names)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(place, "jaxlib", "include"), folder)
    return True


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(f"headers of XLA in {where}" if fetched(where) else "no jaxlib here: JAX will run plain operations")
