"""A program that connects an agent to a Flux broker. Run by `flux python`, so it imports nothing of ours.

It reads requests from stdin and writes answers and events to stdout, one JSON object a line:

    {"id": 7, "op": "submit", "jobs": [{"name": …, "jobspec": …, "urgency": …}, …]}
    {"id": 7, "result": …}    or    {"id": 7, "error": …, "errno": …}
    {"job": 340711702528, "name": "yard-…", "event": {"name": "start", "timestamp": …, "context": …}}
    {"job": 340711702528, "name": "yard-…", "unknown": "why"}
    {"job": 340711702528, "name": "yard-…", "dropped": "why"}    no more events: ask for them again

The first line is a greeting with the instance's version. Events come by subscription: nothing is polled. Every request
is answered when the broker has answered, so a request of one job never waits for another. The program ends when stdin
or the connection to the broker is closed. It must run on the Python that Flux was built with, from 3.6 on.
"""

import errno
import json
import os
import sys
from typing import Any

READ_BYTES = 1 << 20
LIST_MAX = 10000  # running jobs that one answer names
QUEUE_TOPICS = ("job-manager.queue-list", "job-manager.queue-status")
GONE_ERRORS = (errno.ENOENT,)
# The broker has closed the connection. Flux's library goes on and fails every request.
LOST_ERRORS = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ECONNABORTED)

TASK_EXIT = "shell.task-exit"  # the event of the job shell when a task has ended
SHELL_START = "shell.start"  # the event of the job shell when its tasks have begun
WAIT_STATUS_MAX = 0xFFFF  # an exit code or a signal, in two bytes
UNREADABLE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # of JSON that others wrote


def write_line(message: "dict[str, Any]") -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def error_of(exc: OSError) -> "dict[str, Any]":
    """An error as an answer has it. If the connection is lost, the program ends: the agent starts another one."""
    if exc.errno in LOST_ERRORS:
        write_line({"fatal": f"the connection to the Flux instance is gone: {exc.strerror or exc}"})
        os._exit(1)
    return {"error": exc.strerror or str(exc), "errno": exc.errno or 0}


def node_list(answer: Any) -> str:
    """The nodes in a job's resource set; empty if the set cannot be read."""
    try:
        allotted = json.loads(answer["R"]) if isinstance(answer["R"], str) else answer["R"]
        return ",".join(allotted["execution"]["nodelist"])
    except UNREADABLE_ERRORS:
        return ""


def rank_list(answer: Any) -> Any:
    """What the job had on each rank; None if the resource set cannot be read."""
    try:
        allotted = json.loads(answer["R"]) if isinstance(answer["R"], str) else answer["R"]
        return allotted["execution"]["R_lite"]
    except UNREADABLE_ERRORS:
        return None


def first_task_status(answer: Any) -> Any:
    """The wait status of the first task that ended, from the log that the job's own shell wrote; None if there is none.

    The job can append anything to this log. Entries that cannot be read are skipped.
    """
    log = answer.get("guest.exec.eventlog") if isinstance(answer, dict) else None
    for line in log.splitlines() if isinstance(log, str) else ():
        try:
            entry = json.loads(line)
            status = entry["context"]["wait_status"] if entry["name"] == TASK_EXIT else None
        except UNREADABLE_ERRORS:
            continue
        if isinstance(status, int) and not isinstance(status, bool) and 0 <= status <= WAIT_STATUS_MAX:
            return status
    return None


def submission_of(system: Any) -> Any:
    """Which submission a job is of, by its system attributes; None: they could not be read."""
    return None if isinstance(system, OSError) else system.get("switchyard", {}).get("submission", "")


def has_no_tasks(answer: Any) -> bool:
    """Whether the log of the job's shell can be read and has no sign that a task began."""
    log = answer.get("guest.exec.eventlog") if isinstance(answer, dict) else None
    return isinstance(log, str) and bool(log) and SHELL_START not in log and TASK_EXIT not in log


class Gather:
    """Collects the results of several calls to the broker, and hands them on when all have come."""

    def __init__(self, count: int, on_all: Any) -> None:
        self.results: list[Any] = [None] * count
        self.left = count
        self.on_all = on_all
        if not count:
            self.on_all(self.results)

    def put(self, index: int, result: Any) -> None:
        self.results[index] = result
        self.left -= 1
        if not self.left:
            self.on_all(self.results)


class Bridge:
    def __init__(self, flux: Any, handle: Any) -> None:
        """`flux`: Flux's bindings, which only its own Python has."""
        self.flux = flux
        self.handle = handle
        self.text = b""
        self.followed: dict[int, str] = {}  # job id → name, of jobs whose events come
        self.verified: dict[int, str] = {}  # job id → name, of jobs whose name was compared or given by us

    # --- requests

    def read(self, _handle: Any, _watcher: Any, number: int, _events: int, _args: Any) -> None:
        data = os.read(number, READ_BYTES)
        if not data:
            self.handle.reactor_stop()
            return
        *lines, self.text = (self.text + data).split(b"\n")
        for line in lines:
            request = json.loads(line.decode("utf-8"))
            try:
                getattr(self, "op_" + request["op"])(request)
            except OSError as exc:
                write_line({"id": request["id"], **error_of(exc)})

    def answer(self, request: "dict[str, Any]", result: Any) -> None:
        write_line({"id": request["id"], "result": result})

    def rpc(self, topic: str, payload: Any, done: Any, nodeid: Any = None) -> None:
        """Call `done` with the answer, or with the OSError."""

        def take(future: Any) -> None:
            try:
                result = future.get()
            except OSError as exc:
                result = exc
            done(result)

        where = {} if nodeid is None else {"nodeid": nodeid}
        self.handle.rpc(topic, payload, **where).then(take)

    def op_submit(self, request: "dict[str, Any]") -> None:
        """Submit all jobs at once. Each result is the job's id, or an error; events of each job follow."""
        jobs = request["jobs"]
        gather = Gather(len(jobs), lambda results: self.answer(request, results))
        for index, job in enumerate(jobs):
            try:
                future = self.flux.job.submit_async(self.handle, json.dumps(job["jobspec"]), urgency=job["urgency"])
            except OSError as exc:
                gather.put(index, error_of(exc))
                continue
            future.then(self.submitted, gather, index, job["name"])

    def submitted(self, future: Any, gather: Gather, index: int, name: str) -> None:
        try:
            job_id = int(future.get_id())
        except OSError as exc:
            gather.put(index, error_of(exc))
            return
        self.verified[job_id] = name
        gather.put(index, job_id)
        self.watch(job_id, name)

    def op_find(self, request: "dict[str, Any]") -> None:
        """The id of the job with this name and of this submission, or None."""

        def listed(jobs: Any) -> None:
            if isinstance(jobs, OSError):
                write_line({"id": request["id"], **error_of(jobs)})
                return
            ids = sorted(job["id"] for job in jobs)
            gather = Gather(len(ids), decide)
            for index, job_id in enumerate(ids):
                self.look_up(job_id, lambda answer, i=index, j=job_id: gather.put(i, (j, answer)))

        def decide(found: "list[Any]") -> None:
            matches = [job_id for job_id, system in found if submission_of(system) == request["submission"]]
            # A job that is not known any more has ended; every other error leaves it open which job this is.
            errors = [one for _, one in found if isinstance(one, OSError) and one.errno not in GONE_ERRORS]
            if errors and not matches:
                write_line({"id": request["id"], **error_of(errors[0])})
            else:
                self.answer(request, matches[0] if matches else None)

        # Only jobs of this account: other users may use the same names.
        constraint = {"and": [{"userid": [os.getuid()]}, {"name": [request["name"]]}]}
        self.list_jobs(constraint, ["name"], listed)

    def op_running(self, request: "dict[str, Any]") -> None:
        """The running jobs of everybody: what they hold, and when they must end."""

        def take(jobs: Any) -> None:
            if isinstance(jobs, OSError):
                write_line({"id": request["id"], **error_of(jobs)})
            else:
                self.answer(request, jobs)

        self.list_jobs({"states": ["run"]}, ["ncores", "expiration", "t_run"], take)

    def list_jobs(self, constraint: "dict[str, Any]", attrs: "list[Any]", done: Any) -> None:
        jobs: list[Any] = []

        def take(future: Any) -> None:
            try:
                answer = future.get()
            except OSError as exc:
                done(jobs if exc.errno == errno.ENODATA else exc)
                return
            jobs.extend(answer["jobs"])
            future.reset()

        payload = {"max_entries": LIST_MAX, "attrs": attrs, "since": 0.0, "constraint": constraint}
        self.handle.rpc("job-list.list", payload, flags=self.flux.constants.FLUX_RPC_STREAMING).then(take)

    def op_follow(self, request: "dict[str, Any]") -> None:
        """Send the events of these jobs, all of them from the first on, and those to come."""
        for job_id, name in request["jobs"]:
            if self.followed.get(job_id) != name:
                self.verify(job_id, name, lambda same, job_id=job_id, name=name: self.follow(same, job_id, name))
        self.answer(request, None)

    def follow(self, same: Any, job_id: int, name: str) -> None:
        if same is True:
            self.watch(job_id, name)
        elif same is False:
            write_line({"job": job_id, "name": name, "unknown": "the job with this id has another name"})
        else:
            self.drop(job_id, name, same)

    def drop(self, job_id: int, name: str, exc: OSError) -> None:
        """Say that no events come any more: the job is unknown, or the broker did not answer."""
        if exc.errno in GONE_ERRORS:
            write_line({"job": job_id, "name": name, "unknown": "Flux does not know a job with this id"})
        else:
            write_line({"job": job_id, "name": name, "dropped": error_of(exc)["error"]})

    def verify(self, job_id: int, name: str, done: Any) -> None:
        """Call `done` with whether the job of this id has this name, or with the OSError."""
        if job_id in self.verified:
            done(self.verified[job_id] == name)
            return

        def take(system: Any) -> None:
            if isinstance(system, OSError):
                done(system)
                return
            real = system.get("job", {}).get("name", "")
            self.verified[job_id] = real
            done(real == name)

        self.look_up(job_id, take)

    def look_up(self, job_id: int, done: Any) -> None:
        """Call `done` with the system attributes of a job, or with the OSError."""

        def take(answer: Any) -> None:
            if isinstance(answer, OSError):
                done(answer)
                return
            jobspec = json.loads(answer["jobspec"]) if isinstance(answer["jobspec"], str) else answer["jobspec"]
            done(jobspec.get("attributes", {}).get("system", {}))

        self.rpc("job-info.lookup", {"id": job_id, "keys": ["jobspec"], "flags": 0}, take)

    def op_cancel(self, request: "dict[str, Any]") -> None:
        """Cancel these jobs. A job that is over, or that is another's, is no error."""
        jobs = request["jobs"]
        gather = Gather(len(jobs), lambda results: self.answer(request, results))
        for index, (job_id, name) in enumerate(jobs):
            self.verify(job_id, name, lambda same, i=index, j=job_id: self.cancel(same, gather, i, j))

    def cancel(self, same: Any, gather: Gather, index: int, job_id: int) -> None:
        if isinstance(same, OSError):
            gather.put(index, None if same.errno in GONE_ERRORS else error_of(same))
            return
        if not same:
            gather.put(index, None)
            return
        payload = {"id": job_id, "type": "cancel", "severity": 0, "note": "cancelled by its owner in Switchyard"}

        def take(answer: Any) -> None:
            is_bad = isinstance(answer, OSError) and answer.errno not in GONE_ERRORS
            gather.put(index, error_of(answer) if is_bad else None)

        self.rpc("job-manager.raise", payload, take)

    def op_cluster(self, request: "dict[str, Any]") -> None:
        """Resource sets, drained ranks, queues, the configuration, and the number of jobs by state."""
        names = ("resources", "status", "config", "stats", "queues")
        gather = Gather(len(names), lambda results: self.answer(request, dict(zip(names, results))))

        def into(index: int, fallback: Any = None) -> Any:
            def take(answer: Any) -> None:
                if isinstance(answer, OSError) and answer.errno == errno.ENOSYS and fallback:
                    self.rpc(fallback, None, into(index), nodeid=0)
                else:
                    gather.put(index, error_of(answer) if isinstance(answer, OSError) else answer)

            return take

        self.rpc("resource.sched-status", None, into(0, "sched.resource-status"), nodeid=0)
        self.rpc("resource.status", None, into(1), nodeid=0)
        self.rpc("config.get", None, into(2))
        self.rpc("job-list.job-stats", None, into(3))
        self.queues(lambda queues: gather.put(4, queues))

    def queues(self, done: Any) -> None:
        """Each queue by name, with whether it takes jobs and starts them. The queue without a name is the only one."""

        def listed(answer: Any) -> None:
            if isinstance(answer, OSError):
                done({})
                return
            names = answer.get("queues", [])
            gather = Gather(len(names) or 1, lambda results: done(dict(zip(names or [""], results))))
            for index, name in enumerate(names or [""]):
                payload = {"name": name} if name else {}

                def take(status: Any, index: int = index) -> None:
                    gather.put(index, {} if isinstance(status, OSError) else status)

                self.rpc(QUEUE_TOPICS[1], payload, take, nodeid=0)

        self.rpc(QUEUE_TOPICS[0], None, listed, nodeid=0)

    def op_feasible(self, request: "dict[str, Any]") -> None:
        """Whether the scheduler could ever run this jobspec; it may have no service for that (ENOSYS)."""
        payload = {"jobspec": request["jobspec"], "userid": os.getuid(), "urgency": 16, "flags": 0}

        def take(answer: Any) -> None:
            if isinstance(answer, OSError):
                write_line({"id": request["id"], **error_of(answer)})
            else:
                self.answer(request, None)

        self.rpc("feasibility.check", payload, take)

    # --- events

    def watch(self, job_id: int, name: str) -> None:
        if job_id in self.followed:
            return
        self.followed[job_id] = name
        self.flux.job.event_watch_async(self.handle, job_id).then(self.event_came, job_id, name, [])

    def event_came(self, future: Any, job_id: int, name: str, phases: "list[Any]") -> None:
        try:
            event = future.get_event()
        except OSError as exc:
            self.followed.pop(job_id, None)
            self.drop(job_id, name, exc)
            return
        if event is None:  # the log is at its end
            self.followed.pop(job_id, None)
            self.verified.pop(job_id, None)
            if "clean" not in phases:
                write_line({"job": job_id, "name": name, "dropped": "the log of events ended early"})
            return
        message = {"name": event.name, "timestamp": event.timestamp, "context": event.context or {}}
        phases.append(event.name)
        if event.name == "clean" and "alloc" in phases:
            self.complete_end(job_id, name, message)
        else:
            write_line({"job": job_id, "name": name, "event": message})

    def complete_end(self, job_id: int, name: str, message: "dict[str, Any]") -> None:
        """Add to the last event on which nodes the job ran, how its first failed task ended, and whether none began."""
        gather = Gather(2, lambda _: write_line({"job": job_id, "name": name, "event": message}))

        def take_nodes(answer: Any) -> None:
            if not isinstance(answer, OSError):
                message["nodes"] = node_list(answer)
                if (ranks := rank_list(answer)) is not None:
                    message["ranks"] = ranks
            gather.put(0, None)

        def take_log(answer: Any) -> None:
            status = None if isinstance(answer, OSError) else first_task_status(answer)
            if status is not None:
                message["task_status"] = status
            if has_no_tasks(answer):
                message["is_taskless"] = True
            gather.put(1, None)

        self.rpc("job-info.lookup", {"id": job_id, "keys": ["R"], "flags": 0}, take_nodes)
        self.rpc("job-info.lookup", {"id": job_id, "keys": ["guest.exec.eventlog"], "flags": 0}, take_log)


def main() -> int:
    import flux
    import flux.constants
    import flux.job

    try:
        handle = flux.Flux()
        version = handle.attr_get("version")
    except OSError as exc:
        write_line({"fatal": f"no connection to the Flux instance: {exc.strerror or exc}"})
        return 1
    write_line({"hello": {"version": version}})
    bridge = Bridge(flux, handle)
    watcher = handle.fd_watcher_create(0, bridge.read, flux.constants.FLUX_POLLIN)
    watcher.start()
    try:
        handle.reactor_run()
    except OSError as exc:
        write_line({"fatal": f"the connection to the Flux instance is gone: {exc.strerror or exc}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
