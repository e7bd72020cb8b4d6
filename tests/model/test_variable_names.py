"""Variables whose names a shell does not take come through it."""

from __future__ import annotations

import os
import subprocess

from switchyard.model.job.variable_names import copied_variables, is_shell_name


def test_a_shell_passes_all_variables_on() -> None:
    variables = {"PLAIN": "1", "A-B": "it's\n$HOME", "a.b": "", "9": "nine", "it's": "x"}
    assert [name for name in variables if is_shell_name(name)] == ["PLAIN"]
    copies, before = copied_variables(variables, prefix="COPY_")
    given = {"PATH": os.environ["PATH"], **variables, **copies}
    words = ["/bin/sh", "-c", f'exec {before}"$@"', "sh", "env", "-0"]
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=True)
    shown = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    assert {name: shown.get(name) for name in variables} == variables
    assert not any(name.startswith("COPY_") for name in shown)


def test_plain_names_need_nothing() -> None:
    assert copied_variables({"A": "1", "_b2": "2"}, prefix="COPY_") == ({}, "")
