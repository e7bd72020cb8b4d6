"""Asks Fluxion's program `resource-query` whether a job fits: one process for each question.

It is for comparing answers: it starts a program for each question, and gives no number of slots.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from switchyard.errors import Internal
from switchyard.features.flux.fluxion.questions import NotExpressible, question_of
from switchyard.match.demand import Demand
from switchyard.match.engine import Match, Misfit
from switchyard.model.graph import Graph

PROGRAM = "resource-query"
ANSWER_S = 60.0  # of one question; a graph of 200,000 vertices takes some seconds
YES, NO = "RESOURCES=ALLOCATED", "No matching resources found"


class FluxionEngine:
    """Needs `resource-query` of flux-sched in the PATH."""

    def __init__(self) -> None:
        program = shutil.which(PROGRAM)
        if program is None:
            raise Internal(
                f"The match engine fluxion needs the program {PROGRAM} in the PATH of the server.",
                next_step="Install flux-sched with its utilities, or choose another engine.",
            )
        self._program = program

    def satisfy(self, demand: Demand, graph: Graph) -> Match | Misfit:
        try:
            question = question_of(demand, graph)
        except NotExpressible as exc:
            return Match(undecided=f"Fluxion cannot be asked: {exc}")
        if not question.jobspecs:
            return Match()
        for jobspec in question.jobspecs:  # each in a process of its own: an allocation takes room from the next
            output = self._allocate(question.jgf, jobspec)
            if NO in output:
                return Misfit("fluxion", "Fluxion finds no matching resources")
            if YES not in output:
                return Match(undecided="Fluxion gave no answer")
        return Match()

    def _allocate(self, jgf: dict[str, Any], jobspec: dict[str, Any]) -> str:
        """What Fluxion prints when it allocates the jobspec in the empty graph. Its check of satisfiability alone says
        yes to types that it does not know.
        """
        with tempfile.TemporaryDirectory(prefix="switchyard-fluxion-") as name:
            folder = Path(name)
            (folder / "graph.json").write_text(json.dumps(jgf), encoding="utf-8")
            (folder / "job.json").write_text(json.dumps(jobspec), encoding="utf-8")
            words = [self._program, "-L", "graph.json", "-f", "jgf", "-S", "CA", "-P", "low"]
            try:
                done = subprocess.run(
                    words,
                    cwd=folder,
                    input="match allocate job.json\nquit\n",
                    capture_output=True,
                    text=True,
                    timeout=ANSWER_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return ""
        return done.stdout
