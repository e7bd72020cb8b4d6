"""How the supervisor of a local job is started, and what it is told to run. What becomes of it is local.py's."""

from __future__ import annotations

import contextlib
import os
import py_compile
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from switchyard.agent.backends import Setting, confine, proctable, supervisor
from switchyard.agent.environment import variables
from switchyard.agent.need import spec_of
from switchyard.agent.umask import site_umask
from switchyard.model.poll import Lease
from switchyard.model.quantity import parse_bytes, parse_duration_s

INHERITED = ("PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR")
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"


def start_words(lease: Lease, path: Path, setting: Setting, further: Iterable[str] = ()) -> list[bytes]:
    """What the supervisor is to run, as the words of its start file. `further`: how it is contained."""
    spec = spec_of(lease)
    words = [f"arg={arg}" for arg in spec.command]
    words += [f"env={key}={value}" for key, value in environment(lease, setting).items()]
    words.append(f"cwd={spec.cwd or path / 'work'}")
    ask = spec.resources
    if ask.time_limit is not None:
        words.append(f"limit_s={parse_duration_s(ask.time_limit)}")
    memory = ask.asked.memory if ask.limits.memory is None else ask.limits.memory
    words.append(f"data_bytes={parse_bytes(memory) * ask.tasks}")
    return [os.fsencode(word) for word in (*words, *further)]


def environment(lease: Lease, setting: Setting) -> dict[str, str]:
    inherited = {key: setting.environment[key] for key in INHERITED if key in setting.environment}
    return {"PATH": PATH_DEFAULT, **inherited, **variables(lease, setting.cluster)}


def compiled(directory: Path) -> Path:
    """The supervisor compiled once: compiling it at each start would be a quarter of the way from spawn to exec."""
    folder, sources = directory / "supervisor", [Path(str(each.__file__)) for each in (supervisor, confine, proctable)]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for source in sources:
            py_compile.compile(str(source), cfile=str(folder / f"{source.stem}.pyc"), doraise=True)
    except (OSError, py_compile.PyCompileError):
        return sources[0]
    return folder / "supervisor.pyc"


def spawn(program: Path, path: Path, setting: Setting, *, seal: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a supervisor for this directory. The number is a pipe: a byte when the command runs, then its end."""
    with contextlib.ExitStack() as stack:
        read_end, write_end = os.pipe()
        stack.callback(os.close, write_end)
        seal_read, seal_write = os.pipe()
        stack.callback(os.close, seal_read)
        with os.fdopen(seal_write, "wb") as file:
            file.write(seal.encode())
        try:
            # Not the agent's own: it outlives the agent, and would hold its terminal or pipe.
            log = os.open(
                path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
            stack.callback(os.close, log)
            words = [sys.executable, "-I", "-S", str(program), str(path), str(write_end), str(seal_read)]
            process = subprocess.Popen(
                words,
                pass_fds=[write_end, seal_read],
                start_new_session=True,  # a signal to the agent's group or terminal does not reach it
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=path,
                env=dict(setting.environment),
                umask=site_umask(),  # the job's
            )
        except OSError:
            os.close(read_end)
            raise
    return process, read_end
