"""A stand-in for the command `flux`, for the loop that our documentation shows: it runs what is submitted right here.

FLUX_FOLDER=DIR a_flux.py submit [--OPTION=VALUE …] COMMAND …     and job status, jobs, cancel
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FLUX_FOLDER"])


def submit(words: list[str]) -> int:
    options = [word for word in words if word.startswith("--")]
    command = words[len(options) :]
    native = f"f{len(list(FOLDER.glob('*.options')))}"
    (FOLDER / f"{native}.options").write_text("\n".join([*options, *command]))
    if command[0] == "unsatisfiable":
        print("unsatisfiable request", file=sys.stderr)
        return 1
    ended = str(FOLDER / f"{native}.code")
    argv = ["sh", "-c", '"$@"; echo $? > "$0.new"; mv "$0.new" "$0"', ended, *command]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv, start_new_session=True, stdout=quiet, stderr=quiet)
    (FOLDER / f"{native}.pid").write_text(str(process.pid))
    print(native)
    return 0


def main(argv: list[str]) -> int:
    if argv[0] == "submit":
        return submit(argv[1:])
    native = argv[-1]
    ended = FOLDER / f"{native}.code"
    if argv[:2] == ["job", "status"]:
        while not ended.exists():
            time.sleep(0.05)  # between two looks
        return int(ended.read_text())
    if argv[0] == "jobs":
        print("INACTIVE" if ended.exists() else "RUN")
        return 0
    assert argv[0] == "cancel", argv
    os.killpg(int((FOLDER / f"{native}.pid").read_text()), signal.SIGKILL)
    ended.write_text("137")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
