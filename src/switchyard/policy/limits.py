"""The limits of one user: what each counts, and the errors for users who exceed them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.errors import LimitReached, Throttled, YardError
from switchyard.model.jobspec.quantity import show_bytes

PER_SERVER, ALL_SERVERS = "each server", "all servers together"
CONFIG_SECTION = "limits"  # section of the server's config file
IMMEDIATE_STARTS = 50  # requests of one user that begin at once; more begin one by one,
PACE_FACTOR = 2  # so many times as fast as the limit `requests` lets them come for long
JOBS_PER_REQUEST = 100  # so many jobs of a bulk submit count as one request
CHANGES_PERIOD_S = 86_400  # in which a user may spend the limit `changes` once
JOB_OVERHEAD_BYTES = 1024  # what a job counts besides its spec: its row, its events, its idempotency key


@dataclass(frozen=True, slots=True)
class UserLimits:
    """The limits of one user. 0: no limit."""

    waits: int = 1000
    streams: int = 50
    calls: int = 2000
    requests: int = 500
    burst: int = 2000
    jobs: int = 200_000
    tasks: int = 10_000_000
    bytes: int = 100 * 2**30
    changes: int = 200_000
    executions: int = 1000


_DEFAULTS = UserLimits()


@dataclass(frozen=True, slots=True)
class Limit:
    """One row of the table. `counted`: over which servers. `retry_s`: when to come back, where time cures it."""

    name: str
    counts: str
    counted: str
    advice: str
    retry_s: int | None = None

    @property
    def default(self) -> int:
        value: int = getattr(_DEFAULTS, self.name)
        return value


LIMITS: dict[str, Limit] = {
    limit.name: limit
    for limit in (
        Limit(
            "waits",
            "requests that wait at once: for a job's end (`yard wait`), for more output (`yard logs -f`), for quotes",
            PER_SERVER,
            "Follow all your jobs in one stream: `yard watch`, `GET /v1/events/stream`.",
            retry_s=2,
        ),
        Limit(
            "streams",
            "streams of events that are open at once (`yard watch`, `GET /v1/events/stream`)",
            PER_SERVER,
            "Close those that nobody reads; one stream can follow all your jobs.",
            retry_s=5,
        ),
        Limit(
            "calls",
            "requests that wait at once for a thread of the server",
            PER_SERVER,
            "Send fewer requests at the same time.",
            retry_s=1,
        ),
        Limit(
            "requests",
            "requests a second, over a longer time; HTTP and gRPC together. "
            f"{JOBS_PER_REQUEST} jobs of a bulk submit are one more",
            PER_SERVER,
            "Send many jobs in one request (`yard submit --bulk`), or wait instead of asking again.",
            retry_s=1,
        ),
        Limit(
            "burst",
            "requests that may come at once before `requests` holds",
            PER_SERVER,
            "Send many jobs in one request (`yard submit --bulk`), or wait instead of asking again.",
            retry_s=1,
        ),
        Limit(
            "jobs",
            "live jobs: not yet over. An array is one",
            ALL_SERVERS,
            "Wait until some end, or `yard cancel` some.",
        ),
        Limit("tasks", "tasks of live arrays", ALL_SERVERS, "Wait until some arrays end, or `yard cancel` some."),
        Limit(
            "bytes",
            f"bytes that are kept for the user's jobs: output, specs with the environment, {JOB_OVERHEAD_BYTES} a job",
            ALL_SERVERS,
            "They go when old jobs and their output are removed (`retention` in the server's config file).",
        ),
        Limit(
            "changes",
            "units of recorded changes, in a day: 1 for each hold, release, other priority or cancel of tasks; 10 for "
            "each change that the audit records, such as tokens, consents and rules, and 10 for each KiB of its values",
            PER_SERVER,
            "Change less often; the units come back over a day.",
            retry_s=30,
        ),
        Limit(
            "executions",
            "live executions of Flyte's tasks and workflows: not yet over. Those that nodes of other executions "
            "started are counted, too",
            ALL_SERVERS,
            "Wait until some end, or terminate some.",
        ),
    )
}


def limit_refusal(name: str, maximum: int, used: int, asked: int = 1) -> YardError:
    """Return the error for a user who would have more than the limit."""
    limit = LIMITS[name]
    show = show_bytes if name == "bytes" else str
    more = f" and ask for {show(asked)} more" if asked > 1 else ""
    kind = Throttled if limit.retry_s is not None else LimitReached
    error = kind(
        f"The limit `{name}` is reached: you have {show(used)}{more}, and one user may have {show(maximum)} on "
        f"{limit.counted}. It counts {limit.counts}. It is set by `{CONFIG_SECTION}.{name}` and "
        f"`{CONFIG_SECTION}.users` in the server's config file.",
        next_step=limit.advice,
    )
    error.limit, error.retry_after_s = name, limit.retry_s
    return error


def exceeds_limit(limit: int, used: int, asked: int) -> bool:
    """Whether `asked` more would exceed the limit. 0: no limit."""
    return 0 < limit < used + asked


@dataclass(slots=True)
class RequestBucket:
    """Requests one user may still send at once; filled again with time. `next_s`: when the next one may begin."""

    left: float
    at_s: float
    next_s: float = 0.0

    def take(self, limits: UserLimits, now_s: float) -> YardError | None:
        """Take one request out of the bucket, or return the refusal."""
        left = min(float(limits.burst), self.left + (now_s - self.at_s) * limits.requests)
        self.at_s = now_s
        if left < 1.0:
            self.left = left
            return _rate_refusal(limits, left)
        self.left = left - 1.0
        return None

    def charge(self, limits: UserLimits, now_s: float, requests: float) -> None:
        """Charge a running request for more. The bucket may become negative: then the next requests are refused."""
        self.left = min(float(limits.burst), self.left + (now_s - self.at_s) * limits.requests) - requests
        self.at_s = now_s

    def delay_s(self, limits: UserLimits, now_s: float) -> float:
        """How long this request should wait before it begins. Hundreds at once would delay others on the event loop."""
        each_s = 1.0 / (PACE_FACTOR * limits.requests)
        self.next_s = max(self.next_s, now_s - IMMEDIATE_STARTS * each_s) + each_s
        return max(0.0, self.next_s - now_s)


def _rate_refusal(limits: UserLimits, left: float) -> YardError:
    error = limit_refusal("requests", limits.requests, limits.requests)
    error.detail = (
        f"The limit `requests` is reached: you have sent {limits.burst} requests at once or more than "
        f"{limits.requests} a second since, and one user may not on {PER_SERVER}. It is set by "
        f"`{CONFIG_SECTION}.requests`, `{CONFIG_SECTION}.burst` and `{CONFIG_SECTION}.users` in the server's "
        "config file."
    )
    error.retry_after_s = max(1, round((1.0 - left) / max(limits.requests, 1)))
    return error
