"""The Flux backend, by Flux's own Python: one connection, events instead of polling, one table of states.

| folder | what it holds |
|---|---|
| `backend.py` | implements the contract of backends |
| `broker/` | `bridge_program.py` runs under `flux python`; `connection.py` is the agent's side |
| `cluster/` | `resource_sets.py` reads R; `load.py`, `cluster.py`, `quotes.py` make graph, load, quotes |
| `submit/` | `jobspec.py` and `native_options.py` build the jobspec; `submissions.py` records each submit |
| `submit/` | `start_guard.py` lets the command begin once; `claims.py` tells whether it has begun |
| `follow/` | `job_ids.py`, `events.py` (facts of a job), `states.py` (the table), `job_tracker.py` (all jobs) |
| `follow/` | `checked_ends.py` believes an end only of a command that has begun |
"""
