"""The backend for Kubernetes: an attempt is a Job of batch/v1, followed by watches.

| file | what it does |
|---|---|
| `backend.py` | implements the contract of backends |
| `connection.py`, `api.py`, `api_errors.py` | how the API is reached and asked, and how it fails |
| `reflector.py`, `watcher.py` | a list that a watch keeps up to date; our Jobs, pods and warnings about them |
| `job_submitter.py` | creates a Job, and finds out after any doubt whether it was created |
| `job_remover.py` | deletes Jobs, and finds out whether they are gone |
| `submissions.py` | records of what was submitted, in the agent's folder |
| `log_stream.py`, `logs.py` | output by the log API, in the agent's folder |
| `manifest.py`, `pod_template.py`, `gang.py`, … | the Job of a lease |
| `job_status.py`, `pod_status.py`, `objects.py` | what a Job and its pods mean |
"""
