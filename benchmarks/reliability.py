"""What the documents quote of the trials: soak, kills, disks, damaged files, and wheels."""

from __future__ import annotations

from typing import Any

from marks import mark, table

Found = dict[str, Any]


def number(n: float) -> str:
    """As one reads it: 480 737."""
    return f"{n:,}".replace(",", " ")


@mark("reliability")
def soak(found: Found) -> str:
    soak = found["soak"]
    ends = ", ".join(f"{n} {end}" for end, n in sorted(soak["workers_by_end"].items()))
    return (
        f"{soak['minutes']:g} minutes, {number(soak['calls'])} calls of {soak['cases']} cases from {soak['threads']} "
        f"threads, {soak['calls_wrong']} with other bits; {soak['workers']} forked workers: {ends}; the process had "
        f"{soak['mib_first_half']:.0f} MiB in the first half, {soak['mib_second_half']:.0f} MiB in the second"
    )


@mark("reliability")
def kills(found: Found) -> str:
    heads = ("command", "killed", "resumed to the end", "the same numbers", "other numbers", "torn files")
    keys = ("kills", "runs resumed", "the same numbers", "other numbers", "torn files")
    commands = found["kill"]["commands"]
    return table(heads, ([f"`{name}`", *(str(got.get(key, 0)) for key in keys)] for name, got in commands.items()))


@mark("reliability")
def disks(found: Found) -> str:
    disk = found["disk"]
    return (
        f"{disk['runs']} runs: {disk['refused in a line']} ended in a line that says why, "
        f"{disk.get('ended well, as there was room', 0)} had room enough, {disk.get('ended otherwise', 0)} ended "
        f"otherwise; {disk['torn files']} torn files"
    )


@mark("reliability")
def damage(found: Found) -> str:
    heads = ("file", "damaged", "refused by name", "read as before", "read with other values", "anything else")
    keys = ("tried", "refused by name", "read as before", "read with other values", "otherwise")
    files = found["damage"]["files"]
    return table(heads, ([kind, *(str(got.get(key, 0)) for key in keys)] for kind, got in files.items()))


@mark("reliability")
def pickles(found: Found) -> str:
    got = found["damage"]["pickles"]
    return f"{got['refused']} of {got['tried']} were refused by name, code was run by {got['code was run']}"


@mark("wheel")
def wheels(found: Found) -> str:
    heads = ("Python", "wheel", "consistent with", "needs", "front ends tried without a compiler", "installed")
    kept = {name.removeprefix("Python "): got for name, got in found.items() if name.startswith("Python ")}
    order = sorted(kept, key=lambda version: [int(part) for part in version.split(".")])
    rows = [
        [version, f"{got['wheel_bytes'] / 1e6:.1f} MB", f"`{got['consistent_with']}`",
         " ".join(f"`{library}`" for library in got["libraries"]),
         ", ".join(line.split(":")[0] for line in got["smoke"]), f"{got['installed_mb']} MB"]
        for version, got in ((version, kept[version]) for version in order)
    ]  # fmt: skip
    return table(heads, rows)


@mark("reliability")
def fresh(found: Found) -> str:
    heads = ("Python", "`make` target", "seconds", "fetched", "longest silence", "environment")
    rows = []
    for name, got in sorted(found.items()):
        if not name.startswith("fresh "):
            continue
        for target, row in got.items():
            if isinstance(row, dict):
                silence = f"{row['longest_silence_seconds']} s"
                size = f"{got['environment_mb']} MB"
                rows.append([name[6:], f"`{target}`", str(row["seconds"]), f"{row['fetched_mb']} MB", silence, size])
    return table(heads, rows)
