"""The Slurm backend, by Slurm's commands: command lines, parsers, one table of states. No JSON, no REST.

| file | what it does |
|---|---|
| `backend.py` | implements the contract of backends |
| `command_lines.py`, `option_grammars.py` | build every command line; what each word in it may be |
| `script.py`, `script_notes.py` | the script of a job; what the script wrote about its start and end |
| `command_runner.py` | runs a command with a time limit |
| `parse.py`, `states.py` | parse squeue, sacct and sbatch; the table of native states |
| `squeue.py`, `poll_pace.py` | ask squeue for all jobs at once, and how often |
| `accounting.py` | asks sacct, and how far behind it is |
| `job_tracker.py` | follows all jobs, checks their ends, and waits for the usage of those that ended |
| `missing_jobs.py` | asks about jobs that squeue no longer lists, and decides what became of them |
| `evidence.py` | whether an end belongs to this attempt |
| `submitted_scripts.py` | what is recorded of one sbatch |
| `remote_files.py` | files that jobs write, over ssh; here: `shared_files.py` of all backends |
| `cluster.py`, `nodes.py`, `node_systems.py` | what the cluster has, and how busy it is |
| `quotes.py` | quotes from `sbatch --test-only` |
"""
