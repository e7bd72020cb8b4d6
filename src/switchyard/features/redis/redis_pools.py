"""Token pools in a Redis that many servers and callers share. Each step is one call of one script, `pool.lua`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha1
from importlib.resources import files
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from switchyard.errors import Unavailable
from switchyard.features.redis.redis_connections import RedisConnectionPool, encode_word
from switchyard.model.rules.tokens import (
    EXHAUSTED_BY,
    GRANTED,
    AllocateRequest,
    Allocation,
    AllocationStatus,
    LimitedBy,
    PoolTokenRequest,
    RenewRequest,
    TokenHolder,
    check_pool_token,
    check_quota,
    checked_lease_s,
)
from switchyard.tokens.pools import (
    CLAIMS_MAX,
    JOB_ID_PREFIX,
    LEASE_S_MAX,
    JobToken,
    PoolStatus,
    TokenPools,
    check_claim_count,
    no_such_pool,
    owner_conflict,
    pool_rebuilding,
    quota_conflict,
    units_conflict,
)

MANAGER_ID = "redisresourcemanager"
KEY_PREFIX = f"{{{MANAGER_ID}}}"  # a hash tag: all keys are in one slot of a Redis cluster
POOL_SCRIPT = files(__package__).joinpath("pool.lua").read_bytes()
EPOCH_SCRIPT = files(__package__).joinpath("epoch.lua").read_bytes()
EVALSHA_WORDS = (
    encode_word(b"EVALSHA"),
    encode_word(sha1(POOL_SCRIPT, usedforsecurity=False).hexdigest().encode()),
    encode_word(b"5"),
)
JOBS_PER_CALL_MAX = 500

# The script's answers to a claim.
CODE_DONE = b"1"
CODE_OTHER_UNITS = b"5"
CODE_OTHER_OWNER = b"6"
ALLOCATION_BY_CODE = {
    ord(CODE_DONE): GRANTED,
    ord("2"): EXHAUSTED_BY[LimitedBy.POOL],
    ord("3"): EXHAUSTED_BY[LimitedBy.PROJECT],
    ord("4"): EXHAUSTED_BY[LimitedBy.NAMESPACE],
}
_sent_once = attrgetter("constraints", "project", "domain", "units", "lease_s")


class RedisPools(TokenPools):
    """Pools in one Redis. All servers that use it must have the same `quota_max` and `lease_s_max`."""

    is_enforced = True

    def __init__(self, lines: RedisConnectionPool, *, quota_max: int, lease_s_max: int = LEASE_S_MAX) -> None:
        self._lines = lines
        self._quota_max = quota_max
        self._lease_s_max = lease_s_max
        self._heads: dict[str, bytes] = {}
        self._registered: dict[str, tuple[int, int | None]] = {}  # quota and per_s of pools registered by this process
        self._term = ""

    def get_id(self) -> str:
        return MANAGER_ID

    def register_resource(self, namespace: str, quota: int, *, per_s: int | None = None) -> None:
        check_quota(quota, self._quota_max)
        answer = self._do(namespace, "register", *self._shape(quota, per_s))
        if answer[0] == 0 and (answer[1], answer[2]) != (quota, (per_s or 0) * 1000):
            raise quota_conflict(namespace, answer[1], answer[2] // 1000 or None)
        self._registered[namespace] = (quota, per_s)

    def settle(self, namespace: str, quota: int, per_s: int | None, *, free_in_s: float | None = None) -> None:
        """`free_in_s` is not used: Redis knows the leases."""
        self._do(namespace, "settle", *self._shape(quota, per_s))

    def set_quota(self, namespace: str, quota: int) -> None:
        check_quota(quota, self._quota_max)
        self._do(namespace, "quota", quota)
        if namespace in self._registered:
            self._registered[namespace] = (quota, self._registered[namespace][1])

    def remove(self, namespace: str) -> bool:
        is_gone = bool(self._do(namespace, "remove")[0])
        if is_gone:
            self._registered.pop(namespace, None)
        return is_gone

    def allocate(self, namespace: str, request: AllocateRequest, *, owner: str = "") -> Allocation:
        check_pool_token(request.token, request.project, request.domain)
        return self._take(namespace, [request], owner)[0]

    def allocate_many(
        self, namespace: str, requests: Sequence[AllocateRequest], *, owner: str = ""
    ) -> list[Allocation]:
        check_claim_count(requests)
        for request in requests:
            check_pool_token(request.token, request.project, request.domain)
        allocations: list[Allocation] = []
        for _, group in groupby(requests, key=_sent_once):
            allocations += self._take(namespace, list(group), owner)
        return allocations

    def _take(self, namespace: str, requests: list[AllocateRequest], owner: str) -> list[Allocation]:
        """Claim tokens in one call. The requests differ only in the token; all other values are sent once."""
        first = requests[0]
        caps = (_cap(first.constraints.project), _cap(first.constraints.namespace))
        common = (first.units, owner, self._lease_ms(first.lease_s), *caps)
        _, codes, wait_ms = self._do(namespace, "take", *common, *map(_token_key, requests))
        if CODE_OTHER_UNITS in codes:
            raise units_conflict(namespace, requests[codes.index(CODE_OTHER_UNITS)].token, first.units)
        if CODE_OTHER_OWNER in codes:
            raise owner_conflict(namespace, requests[codes.index(CODE_OTHER_OWNER)].token)
        return _allocations(codes, wait_ms)

    def renew(self, namespace: str, request: RenewRequest, *, owner: str = "") -> bool:
        check_pool_token(request.token, request.project, request.domain)
        words = (_token_key(request), request.units, owner, self._lease_ms(request.lease_s))
        return bool(self._do(namespace, "renew", *words)[0])

    def release(self, namespace: str, request: PoolTokenRequest, *, owner: str = "") -> bool:
        code: bytes = self._do(namespace, "give", owner, _token_key(request))[1]
        if code == CODE_OTHER_OWNER:
            raise owner_conflict(namespace, request.token)
        return code == CODE_DONE

    def release_many(self, namespace: str, requests: Iterable[PoolTokenRequest]) -> list[bool]:
        listed = list(requests)
        are_released = [False] * len(listed)
        # The script gives back tokens of one project and domain at a time.
        indices = sorted(range(len(listed)), key=lambda index: _project_and_domain(listed[index]))
        for _, group in groupby(indices, key=lambda index: _project_and_domain(listed[index])):
            while batch := list(islice(group, CLAIMS_MAX)):
                codes: bytes = self._do(namespace, "give", "", *(_token_key(listed[index]) for index in batch))[1]
                for index, code in zip(batch, codes, strict=True):
                    are_released[index] = code == ord(CODE_DONE)
        return are_released

    def stand(self, namespace: str) -> PoolStatus:
        _, quota, used, per_ms, jobs, callers, withheld = self._do(namespace, "stand")
        opens_in_s = None if withheld == 0 else max(0, withheld) / 1000
        return PoolStatus(quota, used, per_ms // 1000 or None, jobs, callers, opens_in_s)

    def holders(self, namespace: str, *, after: str = "", limit: int = 100) -> tuple[list[TokenHolder], str]:
        self._do(namespace, "stand")  # drops ended leases, and raises if there is no such pool
        place, cursor, skip = _read_cursor(after)
        following, flat = self._plain("HSCAN", f"{KEY_PREFIX}:{place}:{namespace}", cursor, "COUNT", limit)
        seconds, micros = self._plain("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        holding = dict(pairs[skip : skip + limit])
        ends = dict.fromkeys(holding, b"")
        if holding and place == "callers":
            ends = dict(zip(holding, self._plain("ZMSCORE", f"{KEY_PREFIX}:expiry:{namespace}", *holding), strict=True))
        holders = [
            _holder(key.decode(), holding[key].decode(), ends[key], now_ms, is_job=place == "jobs") for key in holding
        ]
        if skip + limit < len(pairs):  # Redis may return more than asked; of a small hash it returns all
            return holders, f"{place}:{cursor}:{skip + limit}"
        if following != b"0":
            return holders, f"{place}:{following.decode()}:0"
        return holders, "jobs:0:0" if place == "callers" else ""

    def lead(self, term: str) -> None:
        self._plain("HSET", f"{KEY_PREFIX}:epoch", "term", term)
        self._term = term

    def job_take(self, namespace: str, claim: JobToken) -> Allocation:
        answer = self._do(namespace, "take-jobs", self._term, claim.units, "", 0, "", "", _job_key(claim))
        # Other units: an earlier try of the same job holds them, which is enough.
        return GRANTED if answer[1] == CODE_OTHER_UNITS else _allocations(answer[1], answer[2])[0]

    def job_restore(self, namespace: str, claims: Iterable[JobToken]) -> None:
        for batch in _slices(claims):
            words = [word for claim in batch for word in (_job_key(claim), claim.units, "")]
            self._do(namespace, "restore", self._term, *words)

    def job_give(self, namespace: str, claims: Iterable[JobToken]) -> None:
        for _, group in groupby(sorted(claims, key=_project_and_domain), key=_project_and_domain):
            for batch in _slices(group):
                self._do(namespace, "give-jobs", self._term, *map(_job_key, batch))

    def jobs(self, namespace: str) -> Mapping[str, JobToken]:
        flat = self._plain("HGETALL", f"{KEY_PREFIX}:jobs:{namespace}")
        tokens = {}
        for key, holding in zip(flat[::2], flat[1::2], strict=True):
            project, domain, job = key.decode().split("/", 2)
            tokens[job] = JobToken(job, int(holding.split(b" ")[0]), project, domain)
        return tokens

    def recount(self, namespace: str) -> bool:
        return bool(self._do(namespace, "recount")[0])

    def is_whole(self) -> bool:
        return self._epoch(is_first=False, is_look=True) == 1

    def begin(self, *, is_first: bool) -> bool:
        return self._epoch(is_first=is_first, is_look=False) != 3

    def close(self) -> None:
        self._lines.close()

    def _epoch(self, *, is_first: bool, is_look: bool) -> int:
        durable = b"1" if not is_look and self._is_durable() else b"0"
        flags = (durable, b"1" if is_first else b"0", b"1" if is_look else b"0")
        head = (
            encode_word(b"EVAL")
            + encode_word(EPOCH_SCRIPT)
            + encode_word(b"1")
            + encode_word(f"{KEY_PREFIX}:epoch".encode())
        )
        tail = b"".join(encode_word(flag) for flag in flags)
        answer: int = self._lines.ask(lambda run: b"*8\r\n" + head + run + tail)
        return answer

    def _is_durable(self) -> bool:
        """Whether Redis answers a write only after it is on disk. False if Redis does not allow the question."""
        try:
            settings = dict(
                pair
                for name in ("appendonly", "appendfsync")
                for pair in [tuple(self._plain("CONFIG", "GET", name))]
                if len(pair) == 2
            )
        except Unavailable:
            return False
        return settings.get(b"appendonly") == b"yes" and settings.get(b"appendfsync") == b"always"

    def _lease_ms(self, lease_s: int | None) -> int:
        return checked_lease_s(lease_s, self._lease_s_max) * 1000

    def _shape(self, quota: int, per_s: int | None) -> tuple[int, int, int]:
        per_ms = (per_s or 0) * 1000
        return quota, per_ms, max(self._lease_s_max * 1000, per_ms)

    def _do(self, namespace: str, step: str, *words: str | int) -> list[Any]:
        """Run one step of `pool.lua` on one pool and return its answer; the file describes the answers."""
        head = self._heads.get(namespace)
        if head is None:
            keys = [f"{KEY_PREFIX}:{place}:{namespace}" for place in ("pool", "callers", "jobs", "expiry")]
            head = b"".join([*EVALSHA_WORDS, *(encode_word(key.encode()) for key in (*keys, f"{KEY_PREFIX}:epoch"))])
            self._heads[namespace] = head
        before = b"*%d\r\n%b%b" % (10 + len(words), head, encode_word(step.encode()))
        encoded = [f"{word}".encode() for word in words]
        after = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded])
        answer: list[Any] = self._lines.ask(lambda run: before + run + after, scripts=(POOL_SCRIPT,))
        if answer[0] < 0:
            self._refuse(namespace, answer)
        return answer

    def _refuse(self, namespace: str, answer: list[int]) -> None:
        if answer[0] == -2:
            raise pool_rebuilding(namespace, answer[1] / 1000)
        if answer[0] == -3:
            raise Unavailable("Another server leads: it takes and gives back for jobs.")
        if namespace not in self._registered:
            raise no_such_pool(namespace)
        self.register_resource(namespace, self._registered[namespace][0], per_s=self._registered[namespace][1])
        raise pool_rebuilding(namespace, 0)

    def _plain(self, *words: str | int | bytes) -> Any:
        encoded = b"".join(encode_word(word if isinstance(word, bytes) else str(word).encode()) for word in words)
        return self._lines.ask(lambda _: b"*%d\r\n%b" % (len(words), encoded))


def _allocations(digits: bytes, wait_ms: int) -> list[Allocation]:
    if wait_ms and b"2" in digits:
        later = Allocation(AllocationStatus.EXHAUSTED, LimitedBy.POOL, wait_ms / 1000)
        return [later if code == ord("2") else ALLOCATION_BY_CODE[code] for code in digits]
    return [ALLOCATION_BY_CODE[code] for code in digits]


def _cap(cap: int | None) -> str | int:
    return "" if cap is None else cap


def _token_key(request: PoolTokenRequest) -> str:
    return f"{request.project}/{request.domain}/{request.token}"


def _job_key(claim: JobToken) -> str:
    return f"{claim.project}/{claim.domain}/{claim.job}"


def _project_and_domain(claim: JobToken | PoolTokenRequest) -> tuple[str, str]:
    return claim.project, claim.domain


def _read_cursor(after: str) -> tuple[str, str, int]:
    """Split a cursor: the hash, the cursor of Redis, and how many entries of that step were shown."""
    place, _, numbers = after.partition(":")
    cursor, _, skip = numbers.partition(":")
    is_sound = place in ("callers", "jobs") and all(
        number.isascii() and number.isdigit() and len(number) < 20 for number in (cursor, skip)
    )
    return (place, cursor, int(skip)) if is_sound and len(after) < 60 else ("callers", "0", 0)


def _slices(claims: Iterable[JobToken]) -> Iterator[list[JobToken]]:
    remaining = iter(claims)
    while batch := list(islice(remaining, JOBS_PER_CALL_MAX)):
        yield batch


def _holder(key: str, holding: str, ends_ms: bytes | None, now_ms: int, *, is_job: bool) -> TokenHolder:
    project, domain, token = key.split("/", 2)
    units, since_ms, owner = holding.split(" ", 2)
    is_job = is_job or token.startswith(JOB_ID_PREFIX)
    token = token.removeprefix(JOB_ID_PREFIX)
    return TokenHolder(
        token,
        int(units),
        project,
        domain,
        owner,
        job=token if is_job else None,
        held_s=max(0, now_ms - int(since_ms)) / 1000,
        expires_in_s=max(0.0, (float(ends_ms) - now_ms) / 1000) if ends_ms else None,
    )
