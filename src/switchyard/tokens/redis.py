"""Token pools in a Redis that many servers and callers share. Each step is one call of one script, `pool.lua`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha1
from importlib.resources import files
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from switchyard.errors import Malformed, Unavailable
from switchyard.model.tokens import (
    EXHAUSTED_BY,
    GRANTED,
    NO_CONSTRAINTS,
    Allocation,
    AllocationStatus,
    LimitedBy,
    ResourceConstraintsSpec,
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
    TokenClaim,
    no_such_pool,
    owner_conflict,
    pool_rebuilding,
    quota_conflict,
    units_conflict,
)
from switchyard.tokens.redis_connections import RedisConnectionPool, encode_word

MANAGER_ID = "redisresourcemanager"
KEY_PREFIX = f"{{{MANAGER_ID}}}"  # all keys in one slot, should the Redis be a cluster
POOL_SCRIPT = files(__package__).joinpath("pool.lua").read_bytes()
EPOCH_SCRIPT = files(__package__).joinpath("epoch.lua").read_bytes()
EVALSHA_WORDS = (
    encode_word(b"EVALSHA"),
    encode_word(sha1(POOL_SCRIPT, usedforsecurity=False).hexdigest().encode()),
    encode_word(b"5"),
)
JOBS_PER_CALL_MAX = 500  # in one call

# What the script answers to a claim.
CODE_OTHER_UNITS = b"5"
CODE_OTHER_OWNER = b"6"
ALLOCATION_BY_CODE = {
    ord("1"): GRANTED,
    ord("2"): EXHAUSTED_BY[LimitedBy.POOL],
    ord("3"): EXHAUSTED_BY[LimitedBy.PROJECT],
    ord("4"): EXHAUSTED_BY[LimitedBy.NAMESPACE],
}


class RedisPools:
    """One Redis. `quota_max` and `lease_s_max` are for all who use it, so give the same ones everywhere."""

    is_enforced = True

    def __init__(self, lines: RedisConnectionPool, *, quota_max: int, lease_s_max: int = LEASE_S_MAX) -> None:
        self._lines = lines
        self._quota_max = quota_max
        self._lease_s_max = lease_s_max
        self._heads: dict[str, bytes] = {}
        self._mine: dict[str, tuple[int, int | None]] = {}  # what was registered from here
        self._term = ""

    def get_id(self) -> str:
        return MANAGER_ID

    def register_resource(self, namespace: str, quota: int, *, per_s: int | None = None) -> None:
        check_quota(quota, self._quota_max)
        found = self._do(namespace, "register", *self._shape(quota, per_s))
        if found[0] == 0 and (found[1], found[2]) != (quota, (per_s or 0) * 1000):
            raise quota_conflict(namespace, found[1], found[2] // 1000 or None)
        self._mine[namespace] = (quota, per_s)

    def settle(self, namespace: str, quota: int, per_s: int | None, *, free_in_s: float | None = None) -> None:
        """What was granted is Redis's own to know: `free_in_s` says nothing here."""
        self._do(namespace, "settle", *self._shape(quota, per_s))

    def set_quota(self, namespace: str, quota: int) -> None:
        check_quota(quota, self._quota_max)
        self._do(namespace, "quota", quota)
        if namespace in self._mine:
            self._mine[namespace] = (quota, self._mine[namespace][1])

    def remove(self, namespace: str) -> bool:
        is_gone = bool(self._do(namespace, "remove")[0])
        if is_gone:
            self._mine.pop(namespace, None)
        return is_gone

    def allocate_resource(
        self,
        namespace: str,
        token: str,
        constraints: ResourceConstraintsSpec = NO_CONSTRAINTS,
        *,
        project: str = "default",
        domain: str = "development",
        units: int = 1,
        lease_s: int | None = None,
        owner: str = "",
    ) -> Allocation:
        check_pool_token(token, project, domain)
        caps = (_cap(constraints.project), _cap(constraints.namespace))
        key = f"{project}/{domain}/{token}"
        _, digits, wait_ms = self._do(namespace, "take", units, owner, self._lease_ms(lease_s), *caps, key)
        if digits == CODE_OTHER_UNITS:
            raise units_conflict(namespace, token, units)
        if digits == CODE_OTHER_OWNER:
            raise owner_conflict(namespace, token)
        return _allocations(digits, wait_ms)[0]

    def allocate_many(self, namespace: str, claims: Sequence[TokenClaim], *, owner: str = "") -> list[Allocation]:
        if not claims:
            return []
        if len(claims) > CLAIMS_MAX:
            raise Malformed(f"{len(claims)} claims in one call; the most is {CLAIMS_MAX}.")
        for claim in claims:
            check_pool_token(claim.token, claim.project, claim.domain)
        found: list[Allocation] = []
        # What claims have in common is sent once: mostly that is one call.
        for (constraints, project, domain, units, lease_s), group in groupby(claims, key=itemgetter(1, 2, 3, 4, 5)):
            some = list(group)
            each = (units, owner, self._lease_ms(lease_s), _cap(constraints.project), _cap(constraints.namespace))
            _, digits, wait_ms = self._do(namespace, "take", *each, *_keys(project, domain, some))
            if CODE_OTHER_UNITS in digits:
                raise units_conflict(namespace, some[digits.index(CODE_OTHER_UNITS)].token, units)
            if CODE_OTHER_OWNER in digits:
                raise owner_conflict(namespace, some[digits.index(CODE_OTHER_OWNER)].token)
            found += _allocations(digits, wait_ms)
        return found

    def renew_resource(
        self,
        namespace: str,
        token: str,
        *,
        project: str = "default",
        domain: str = "development",
        units: int = 1,
        lease_s: int | None = None,
        owner: str = "",
    ) -> bool:
        check_pool_token(token, project, domain)
        return bool(
            self._do(namespace, "renew", f"{project}/{domain}/{token}", units, owner, self._lease_ms(lease_s))[0]
        )

    def release_resource(
        self, namespace: str, token: str, *, project: str = "default", domain: str = "development", owner: str = ""
    ) -> bool:
        given: bytes = self._do(namespace, "give", owner, f"{project}/{domain}/{token}")[1]
        if given == CODE_OTHER_OWNER:
            raise owner_conflict(namespace, token)
        return given == b"1"

    def release_many(self, namespace: str, claims: Iterable[TokenClaim]) -> list[bool]:
        listed = list(claims)
        found = [False] * len(listed)
        places = sorted(range(len(listed)), key=lambda place: listed[place][2:4])
        for (project, domain), group in groupby(places, key=lambda place: listed[place][2:4]):
            while some := list(islice(group, CLAIMS_MAX)):
                given: bytes = self._do(
                    namespace, "give", "", *_keys(project, domain, (listed[each] for each in some))
                )[1]
                for place, answer in zip(some, given, strict=True):
                    found[place] = answer == ord("1")
        return found

    def stand(self, namespace: str) -> PoolStatus:
        _, quota, used, per_ms, jobs, callers, withheld = self._do(namespace, "stand")
        opens_in_s = None if withheld == 0 else max(0, withheld) / 1000
        return PoolStatus(quota, used, per_ms // 1000 or None, jobs, callers, opens_in_s)

    def holders(self, namespace: str, *, after: str = "", limit: int = 100) -> tuple[list[TokenHolder], str]:
        self._do(namespace, "stand")  # what is over is gone, and a pool that is not there is said
        place, cursor, skip = _read_cursor(after)
        following, flat = self._plain("HSCAN", f"{KEY_PREFIX}:{place}:{namespace}", cursor, "COUNT", limit)
        seconds, micros = self._plain("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        held = dict(pairs[skip : skip + limit])
        ends = dict.fromkeys(held, b"")
        if held and place == "callers":
            ends = dict(zip(held, self._plain("ZMSCORE", f"{KEY_PREFIX}:expiry:{namespace}", *held), strict=True))
        found = [_holder(key.decode(), held[key].decode(), ends[key], now_ms, is_job=place == "jobs") for key in held]
        if skip + limit < len(pairs):  # Redis gives more than asked, the whole of a small one
            return found, f"{place}:{cursor}:{skip + limit}"
        if following != b"0":
            return found, f"{place}:{following.decode()}:0"
        return found, "jobs:0:0" if place == "callers" else ""

    def lead(self, term: str) -> None:
        self._plain("HSET", f"{KEY_PREFIX}:epoch", "term", term)
        self._term = term

    def job_take(self, namespace: str, claim: JobToken) -> Allocation:
        found = self._do(namespace, "take-jobs", self._term, claim.units, "", 0, "", "", _job_key(claim))
        # Held with other units: of an earlier try of the same job, which is as good.
        return GRANTED if found[1] == CODE_OTHER_UNITS else _allocations(found[1], found[2])[0]

    def job_restore(self, namespace: str, claims: Iterable[JobToken]) -> None:
        for some in _slices(claims):
            words = [word for claim in some for word in (_job_key(claim), claim.units, "")]
            self._do(namespace, "restore", self._term, *words)

    def job_give(self, namespace: str, claims: Iterable[JobToken]) -> None:
        for _, group in groupby(sorted(claims, key=_project_and_domain), key=_project_and_domain):
            for some in _slices(group):
                self._do(namespace, "give-jobs", self._term, *map(_job_key, some))

    def jobs(self, namespace: str) -> Mapping[str, JobToken]:
        flat = self._plain("HGETALL", f"{KEY_PREFIX}:jobs:{namespace}")
        found = {}
        for key, held in zip(flat[::2], flat[1::2], strict=True):
            project, domain, job = key.decode().split("/", 2)
            found[job] = JobToken(job, int(held.split(b" ")[0]), project, domain)
        return found

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
        tail = b"".join(encode_word(each) for each in flags)
        found: int = self._lines.ask(lambda run: b"*8\r\n" + head + run + tail)
        return found

    def _is_durable(self) -> bool:
        """Whether each write is on disk before it is answered. One that may not be asked counts as not."""
        try:
            said = dict(
                pair
                for name in ("appendonly", "appendfsync")
                for pair in [tuple(self._plain("CONFIG", "GET", name))]
                if len(pair) == 2
            )
        except Unavailable:
            return False
        return said.get(b"appendonly") == b"yes" and said.get(b"appendfsync") == b"always"

    def _lease_ms(self, lease_s: int | None) -> int:
        return checked_lease_s(lease_s, self._lease_s_max) * 1000

    def _shape(self, quota: int, per_s: int | None) -> tuple[int, int, int]:
        per_ms = (per_s or 0) * 1000
        return quota, per_ms, max(self._lease_s_max * 1000, per_ms)

    def _do(self, namespace: str, what: str, *words: str | int) -> list[Any]:
        """One step of the script on one pool: its answer, as `pool.lua` says at its head."""
        head = self._heads.get(namespace)
        if head is None:
            keys = [f"{KEY_PREFIX}:{place}:{namespace}" for place in ("pool", "callers", "jobs", "expiry")]
            head = b"".join([*EVALSHA_WORDS, *(encode_word(key.encode()) for key in (*keys, f"{KEY_PREFIX}:epoch"))])
            self._heads[namespace] = head
        before = b"*%d\r\n%b%b" % (10 + len(words), head, encode_word(what.encode()))
        encoded = [f"{word}".encode() for word in words]
        after = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded])
        found: list[Any] = self._lines.ask(lambda run: before + run + after, scripts=(POOL_SCRIPT,))
        if found[0] < 0:
            self._refuse(namespace, found)
        return found

    def _refuse(self, namespace: str, found: list[int]) -> None:
        if found[0] == -2:
            raise pool_rebuilding(namespace, found[1] / 1000)
        if found[0] == -3:
            raise Unavailable("Another server leads: it takes and gives back for jobs.")
        if namespace not in self._mine:
            raise no_such_pool(namespace)
        self.register_resource(namespace, self._mine[namespace][0], per_s=self._mine[namespace][1])
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


def _keys(project: str, domain: str, claims: Iterable[TokenClaim]) -> list[str]:
    return [f"{project}/{domain}/{claim[0]}" for claim in claims]


def _job_key(claim: JobToken) -> str:
    return f"{claim.project}/{claim.domain}/{claim.job}"


def _project_and_domain(claim: JobToken) -> tuple[str, str]:
    return claim.project, claim.domain


def _read_cursor(after: str) -> tuple[str, str, int]:
    """Where a walk goes on: among whom, Redis's own cursor, and how many of that step were shown."""
    place, _, rest = after.partition(":")
    cursor, _, skip = rest.partition(":")
    is_sound = place in ("callers", "jobs") and all(
        each.isascii() and each.isdigit() and len(each) < 20 for each in (cursor, skip)
    )
    return (place, cursor, int(skip)) if is_sound and len(after) < 60 else ("callers", "0", 0)


def _slices(claims: Iterable[JobToken]) -> Iterator[list[JobToken]]:
    each = iter(claims)
    while some := list(islice(each, JOBS_PER_CALL_MAX)):
        yield some


def _holder(key: str, held: str, ends_ms: bytes | None, now_ms: int, *, is_job: bool) -> TokenHolder:
    project, domain, token = key.split("/", 2)
    units, since_ms, owner = held.split(" ", 2)
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
