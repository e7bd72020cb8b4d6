"""Slurm by its own commands: builders of words, readers of text, one table of states, one caller. No JSON, no REST.

command.py    the words of every command               script.py    the script of a job
parse.py      what squeue, sacct and sbatch print      states.py    the table of native states
nodes.py      graph and load from scontrol             quoting.py   quotes from `sbatch --test-only`
options.py    which options no job may give            caller.py    runs a command, with an end
handed.py     what is kept of each hand-over           output.py    files that jobs write, here or over ssh
squeue.py     asks squeue for all jobs at once         cluster.py   what there is, and how busy it is
accounting.py asks sacct, and how far behind it is     per_node.py  the systems of its nodes, by srun
following.py  follows all jobs, look by look           backend.py   the contract

A job that squeue no longer lists: missing_jobs.py asks, lost_decision.py decides. An end: evidence.py says whether it
is the job's own, end_checks.py applies that, notes.py reads what the script left, usage_wait.py waits for the usage.
"""
