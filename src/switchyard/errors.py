"""The tree of errors. Each knows its HTTP status, its gRPC code, the CLI's exit code, and what to do next.

    YardError                    code             HTTP  gRPC                 exit
    ├── BadRequest               bad-request      400   INVALID_ARGUMENT     2
    │   ├── Malformed            malformed        400
    │   │   └── BadValue         bad-value        400
    │   ├── WrongMedia           wrong-media      415
    │   ├── TooLarge             too-large        413   RESOURCE_EXHAUSTED
    │   ├── TooSlow              too-slow         408   DEADLINE_EXCEEDED
    │   ├── UnknownName          unknown-name     400
    │   └── ConditionMissing     condition-…      428   FAILED_PRECONDITION
    ├── Unauthenticated          unauthenticated  401   UNAUTHENTICATED      4
    ├── Denied                   denied           403   PERMISSION_DENIED    4
    ├── NotFound                 not-found        404   NOT_FOUND            3
    │   ├── NoSuchJob            no-such-job
    │   ├── NoSuchCluster …      no-such-cluster
    │   ├── NoSuchAttribute      no-such-attribute
    │   └── NoSuchPool           no-such-pool
    ├── MethodNotAllowed         method-not-…     405   UNIMPLEMENTED        1
    ├── Conflict                 conflict         409   ALREADY_EXISTS       6
    │   ├── NameTaken            name-taken
    │   ├── KeyReused            key-reused
    │   ├── AgentLives           agent-lives
    │   ├── ProofMissing         proof-missing
    │   ├── JournalRefused       journal-refused
    │   ├── Resync               resync
    │   ├── Unreadable           unreadable
    │   └── Outdated             outdated         412   ABORTED
    ├── Gone                     gone             410   FAILED_PRECONDITION  6
    ├── PolicyRefused            policy-refused   422   FAILED_PRECONDITION  5
    ├── Busy (transient)         busy             429   RESOURCE_EXHAUSTED   1
    │   ├── PlaceAsked           place-asked
    │   └── Throttled            throttled
    ├── LimitReached             limit-reached    429   RESOURCE_EXHAUSTED   6
    ├── Unavailable (transient)  unavailable      503   UNAVAILABLE          69
    │   └── Rebuilding           rebuilding
    ├── TimedOut                 timed-out        504   DEADLINE_EXCEEDED    7
    └── Internal                 internal         500   INTERNAL             1

The docstring is the default message. `next_step` tells the reader what to do about it.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_DENIED = 4
EXIT_REJECTED = 5
EXIT_CONFLICT = 6
EXIT_TIMED_OUT = 7
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h: the server, or something else that is needed, is away


class YardError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    grpc: ClassVar[str] = "UNKNOWN"
    exit_code: ClassVar[int] = EXIT_ERROR
    transient: ClassVar[bool] = False
    default_next: ClassVar[str] = ""

    def __init__(self, detail: str = "", *, next_step: str = "") -> None:
        self.detail = detail or (self.__doc__ or "").strip()
        self.next_step = next_step or self.default_next
        self.limit = ""  # the name of the limit that was reached, where it is one of a user
        self.retry_after_s = 1 if self.transient else None
        super().__init__(self.detail)

    @property
    def inner(self) -> str:
        """The detail, with parts that only operators should read: where a database is, why it refused."""
        return " ".join([self.detail, *getattr(self, "__notes__", [])])

    @property
    def title(self) -> str:
        return (self.__doc__ or "").strip().split("\n")[0]


class BadRequest(YardError):
    """The request cannot be understood or is not allowed as it stands."""

    code = "bad-request"
    status = 400
    grpc = "INVALID_ARGUMENT"
    exit_code = EXIT_USAGE
    default_next = "Correct the request and send it again; nothing was stored."


class Malformed(BadRequest):
    """The body, file or argument is not well-formed."""

    code = "malformed"


class BadValue(Malformed):
    """The request has the right form, but a value is out of range or contradicts another one."""

    code = "bad-value"


class WrongMedia(BadRequest):
    """The body is declared as something other than JSON."""

    code = "wrong-media"
    status = 415
    default_next = "Send the body as JSON, with the header `Content-Type: application/json`."


class UnknownName(BadRequest):
    """The request names something that does not exist."""

    code = "unknown-name"


class ConditionMissing(BadRequest):
    """This write needs a condition: If-Match, or If-None-Match."""

    code = "condition-missing"
    status = 428
    grpc = "FAILED_PRECONDITION"
    default_next = "Send If-Match with the ETag you read, or If-None-Match: * for a first write."


class TooLarge(BadRequest):
    """The body is too large."""

    code = "too-large"
    status = 413
    grpc = "RESOURCE_EXHAUSTED"
    default_next = "Send less in one request."


class TooSlow(BadRequest):
    """The request did not arrive in time."""

    code = "too-slow"
    status = 408
    grpc = "DEADLINE_EXCEEDED"
    default_next = "Send it again without a pause; check the network, and the proxy if there is one."


class Unauthenticated(YardError):
    """The credential is missing, unknown, expired or revoked."""

    code = "unauthenticated"
    status = 401
    grpc = "UNAUTHENTICATED"
    exit_code = EXIT_DENIED
    default_next = "Run `yard login`, or set YARD_TOKEN to a token that holds."


class Denied(YardError):
    """You may not do this."""

    code = "denied"
    status = 403
    grpc = "PERMISSION_DENIED"
    exit_code = EXIT_DENIED
    default_next = "Ask an administrator for the grant named above (`yard grant add`)."


class NotFound(YardError):
    """There is no such thing, or it is not yours to see."""

    code = "not-found"
    status = 404
    grpc = "NOT_FOUND"
    exit_code = EXIT_NOT_FOUND
    default_next = "Check the name or id; the matching list command shows what you may see."


class NoSuchJob(NotFound):
    """There is no such job, or it is not yours to see."""

    code = "no-such-job"
    default_next = "`yard ls --all` lists the jobs you may see."


class NoSuchCluster(NotFound):
    """There is no such cluster, or it is not yours to see."""

    code = "no-such-cluster"
    default_next = "`yard cluster ls` lists the clusters you may see."


class NoSuchAttribute(NotFound):
    """No attribute is set at exactly this scope."""

    code = "no-such-attribute"
    default_next = "`yard explain-policy` shows what holds here and which level gave it."


class NoSuchPool(NotFound):
    """There is no such token pool."""

    code = "no-such-pool"
    default_next = "`yard token-pool ls` lists those there are; an administrator registers one."


class Conflict(YardError):
    """The request conflicts with the present state."""

    code = "conflict"
    status = 409
    grpc = "ALREADY_EXISTS"
    exit_code = EXIT_CONFLICT
    default_next = "Look at what is there, then decide."


class Unreadable(Conflict):
    """The stored row cannot be read."""

    code = "unreadable"
    grpc = "FAILED_PRECONDITION"
    default_next = "An operator has to look at the stored row: docs/how-to/repair-a-row.md."


class NameTaken(Conflict):
    """The name is already taken."""

    code = "name-taken"
    default_next = "Choose another name, or use what is there."


class KeyReused(Conflict):
    """This idempotency key was used for a different request."""

    code = "key-reused"
    default_next = "Use a new key for a new request; the same key belongs to the same body."


class AgentLives(Conflict):
    """Another agent of this name is alive with another journal."""

    code = "agent-lives"
    default_next = "Stop the other agent, or start this one with another --name."


class ProofMissing(Conflict):
    """The join token is for a job, and this agent has not shown that it runs in it."""

    code = "proof-missing"
    default_next = "Start the agent inside of the pilot's job; it shows itself by a line in the job's output."


class JournalRefused(Conflict):
    """Another process already acts as this agent."""

    code = "journal-refused"
    default_next = (
        "One agent, one data folder. If this one is a copy, move its folder away and join as an agent of its own "
        "(`yard cluster invite NAME`, `--name`). If the other is gone for good, or this folder comes from a backup: "
        "docs/how-to/move-an-agent.md."
    )


class Resync(Conflict):
    """This session is over."""

    code = "resync"
    default_next = "Poll again with the whole inventory."


class Outdated(Conflict):
    """It was changed since you read it."""

    code = "outdated"
    status = 412
    grpc = "ABORTED"
    default_next = "Read it again, then decide."


class MethodNotAllowed(YardError):
    """This address does not take this method."""

    code = "method-not-allowed"
    status = 405
    grpc = "UNIMPLEMENTED"
    default_next = "`/v1/openapi.json` lists every address with its methods."


class Gone(YardError):
    """This registration is no longer valid."""

    code = "gone"
    status = 410
    grpc = "FAILED_PRECONDITION"
    exit_code = EXIT_CONFLICT
    default_next = "Join again with a new join token (`yard cluster invite NAME`)."


class PolicyRefused(YardError):
    """A rule refuses the job."""

    code = "policy-refused"
    status = 422
    grpc = "FAILED_PRECONDITION"
    exit_code = EXIT_REJECTED
    default_next = "Ask for less, or ask for the rule named above to be changed."


class Busy(YardError):
    """The server has too many requests waiting."""

    code = "busy"
    status = 429
    grpc = "RESOURCE_EXHAUSTED"
    transient = True
    default_next = "Wait the seconds named in Retry-After and try again."


class PlaceAsked(Busy):
    """Another process acted as this agent a moment ago. The server asks whether that process is alive."""

    code = "place-asked"
    default_next = "Ask again in a second."


class Throttled(Busy):
    """You have reached a limit on open requests, or on how often you may call."""

    code = "throttled"


class LimitReached(YardError):
    """You have reached a limit of live jobs, tasks, or stored bytes."""

    code = "limit-reached"
    status = 429
    grpc = "RESOURCE_EXHAUSTED"
    exit_code = EXIT_CONFLICT
    default_next = "Free what you no longer need, or ask an administrator to raise the limit."


class Unavailable(YardError):
    """The server cannot serve this now."""

    code = "unavailable"
    status = 503
    grpc = "UNAVAILABLE"
    exit_code = EXIT_UNAVAILABLE
    transient = True
    default_next = "Try again in a few seconds; nothing that was accepted is lost."


class Rebuilding(Unavailable):
    """The server does not know yet which tokens of this pool are held."""

    code = "rebuilding"
    default_next = "Wait until the longest lease is over; what is held stays held."


class TimedOut(YardError):
    """The time given ran out."""

    code = "timed-out"
    status = 504
    grpc = "DEADLINE_EXCEEDED"
    exit_code = EXIT_TIMED_OUT
    default_next = "Give more time; what you waited for goes on."


class Internal(YardError):
    """A defect in the server."""

    code = "internal"
    grpc = "INTERNAL"
    default_next = "Look at the server's log for this request, and report it."


class ImpossibleValue(ValueError):
    """A value has the right form and is impossible all the same. HTTP and gRPC answer it as a BadValue."""


def _with_subclasses(base: type[YardError]) -> list[type[YardError]]:
    return [base, *(subclass for child in base.__subclasses__() for subclass in _with_subclasses(child))]


ERRORS_BY_CODE: dict[str, type[YardError]] = {cls.code: cls for cls in _with_subclasses(YardError)}
