"""`make bench`: run every measurement and write the tables into bench/RESULTS.md between its marks.

python -m bench                 everything
python -m bench submit start    only these
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import (
    agents,
    black_holes,
    crowd,
    dashboard,
    decide,
    explain,
    files,
    flux,
    kubernetes,
    large_map,
    match,
    memory,
    object_stores,
    pauses,
    policy,
    rainbow,
    scale,
    slurm,
    spread,
    start,
    submit,
    tokens,
    upgrade,
    waits,
    workflows,
)
from bench.table import Table

RESULTS = Path(__file__).with_name("RESULTS.md")
MEASUREMENTS: dict[str, Callable[[Path], list[Table]]] = {
    "submit": submit.measure,
    "policy": policy.measure,
    "start": start.measure,
    "agents": agents.measure,
    "crowd": crowd.measure,
    "scale": scale.measure,
    "dashboard": dashboard.measure,
    "match": match.measure,
    "decide": decide.measure,
    "explain": explain.measure,
    "rainbow": rainbow.measure,
    "tokens": tokens.measure,
    "files": files.measure,
    "object-stores": object_stores.measure,
    "slurm": slurm.measure,
    "flux": flux.measure,
    "kubernetes": kubernetes.measure,
    "pauses": pauses.measure,
    "waits": waits.measure,
    "upgrade": upgrade.measure,
    "memory": memory.measure,
    "spread": spread.measure,
    "black-holes": black_holes.measure,
    "workflows": workflows.measure,
    "large-map": large_map.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; none: all")
    parser.add_argument("--keep", action="store_true", help="print only, leave RESULTS.md as it is")
    options = parser.parse_args()
    unknown = set(options.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name, measure in MEASUREMENTS.items():
        is_left_out = name not in options.names if options.names else name == "flux" and shutil.which("flux") is None
        if is_left_out:
            continue
        with tempfile.TemporaryDirectory(prefix="switchyard-bench-") as folder:
            tables = measure(Path(folder))
        text = "\n\n".join(table.markdown() for table in tables)
        sys.stdout.write(f"{text}\n\n")
        if not options.keep:
            write(name, f"{text}\n\n{conditions(name)}")
    return 0


def write(name: str, text: str) -> None:
    """Replace one measurement's part of RESULTS.md, between its marks."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = RESULTS.read_text() if RESULTS.exists() else "# Results\n"
    if begin not in old:
        old = f"{old.rstrip()}\n\n{begin}\n{end}\n"
    head, _, rest = old.partition(begin)
    _, _, tail = rest.partition(end)
    RESULTS.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def conditions(name: str) -> str:
    """What the figures were taken on, and how to take them again."""
    load = os.getloadavg()[0]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        f"`make bench` or `python -m bench {name}` · {os.cpu_count()} shared cores · "
        f"Python {platform.python_version()} · load {load:.1f} at the end · commit {commit.stdout.strip() or '?'}"
    )


if __name__ == "__main__":
    sys.exit(main())
