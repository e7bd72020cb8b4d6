"""Objects in a bucket of S3, Google Cloud Storage or Azure, by obstore. The key of an object is the hex of its hash.

Errors of the service become Unavailable. Their texts can have keys, signatures and addresses in them, so only the
service's error code is kept, or the text without addresses.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from switchyard.errors import Malformed, Unavailable
from switchyard.features.buckets.signed_uploads import INCOMING, VALID_S_MAX, S3Keys, UploadSigner, incoming_key
from switchyard.model.files.files import SignedUpload
from switchyard.storage.object_store import (
    OBJECT_BYTES_MAX,
    ObjectDamaged,
    ObjectMissing,
    StorageOptions,
    StoredObject,
    check_content,
    digest_of_name,
    read_one,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

Bucket = S3Store | GCSStore | AzureStore
Item = TypeVar("Item")
WRITE_THREADS = 16  # of one put_many; the service answers each in tens of milliseconds
READS_AHEAD = 8  # of one get_many: at most 8 objects of 16 MiB are in memory
PROBE = b"switchyard"
ERROR_CODE = re.compile(r"<Code>\s*(\w{1,80})\s*</Code>|\"code\":\s*\"?(\w{1,80})")
TIMED_OUT = re.compile(r"kind: Timeout|TimedOut")  # in the words of obstore's HTTP client
SYSTEM_REASON = re.compile(r'message: "([\w ]{1,80})"')  # of the operating system: Connection refused
ADDRESS = re.compile(r"\S*://\S*")
# A gateway may also answer 404 for an account or a bucket that is not there: only these mean the object.
NO_OBJECT_CODES = frozenset({"", "NoSuchKey", "BlobNotFound"})
NO_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound"})
CLOCK_CODES = frozenset({"RequestTimeTooSkewed"})
DENIED_CODES = frozenset(
    {"AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId", "AuthorizationHeaderMalformed", "ExpiredToken"}
    | {"InvalidToken", "AuthenticationFailed", "AuthorizationFailure", "XAdminUserNotFound"}
)
FULL_CODES = frozenset(
    {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "OverCapacity"}
)
DEFAULT_REGION = "us-east-1"
CONNECT_S = 5.0
BACKOFF_S = 0.1  # before the first retry; it doubles
BACKOFF_S_MAX = 2.0


class BucketStore:
    """A store in a bucket. `signer`: None where the service cannot bind an upload to its content.

    `is_direct`: whether clients and agents get signed addresses at all.
    """

    def __init__(
        self, bucket: Bucket, *, name: str, signer: UploadSigner | None = None, is_direct: bool = True
    ) -> None:
        self._bucket = bucket
        self._name = name
        self._signer = signer
        self._is_direct = is_direct

    def put(self, digest: bytes, data: bytes) -> None:
        check_content(digest, data)
        self._put(digest, data)

    def _put(self, digest: bytes, data: bytes) -> None:
        try:
            with self._translated("write to"):
                obstore.put(self._bucket, digest.hex(), data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            if read_one(self, digest) != data:
                self._overwrite(digest.hex(), data)

    def put_many(self, objects: Iterable[tuple[bytes, bytes]], *, are_checked: bool = False) -> None:
        put = self._put if are_checked else self.put
        self._in_parallel(lambda pair: put(*pair), objects)

    def free_bytes(self) -> None:
        return None

    def get(self, digest: bytes) -> bytes:
        with self._translated("read from"):
            try:
                answer = obstore.get(self._bucket, digest.hex())
                size = answer.meta["size"]
                if size > OBJECT_BYTES_MAX:
                    raise ObjectDamaged(digest, f"it has {size} bytes, more than {OBJECT_BYTES_MAX}")
                data = bytes(answer.bytes())
            except FileNotFoundError as exc:
                if _code(exc) not in NO_OBJECT_CODES:
                    raise
                raise ObjectMissing(digest) from None
        check_content(digest, data)
        return data

    def get_many(self, digests: Iterable[bytes]) -> Iterator[bytes | ObjectMissing | ObjectDamaged]:
        reads: deque[Future[bytes | ObjectMissing | ObjectDamaged]] = deque()
        with ThreadPoolExecutor(READS_AHEAD, thread_name_prefix="read-object") as threads:
            try:
                for digest in digests:
                    if len(reads) == READS_AHEAD:
                        yield reads.popleft().result()
                    reads.append(threads.submit(read_one, self, digest))
                while reads:
                    yield reads.popleft().result()
            finally:
                threads.shutdown(cancel_futures=True)

    def has(self, digests: Iterable[bytes]) -> set[bytes]:
        stored: set[bytes] = set()

        def look(digest: bytes) -> None:
            with self._translated("read from"), contextlib.suppress(FileNotFoundError):
                obstore.head(self._bucket, digest.hex())
                stored.add(digest)

        asked = list(digests)
        self._in_parallel(look, asked)
        if asked and not stored:
            # An answer to HEAD has no text, so "no such bucket" looks like "no such object": a listing tells which.
            next(self.list(), None)
        return stored

    def delete(self, digests: Iterable[bytes]) -> None:
        self._in_parallel(self._remove, [digest.hex() for digest in digests])

    def list(self, after: bytes = b"") -> Iterator[StoredObject]:
        with self._translated("list"):
            pages = iter(obstore.list(self._bucket, offset=after.hex() if after else None))
        while True:
            with self._translated("list"):
                page = next(pages, None)
            if page is None:
                return
            for entry in page:
                digest = digest_of_name(entry["path"])
                if digest is not None and digest > after:
                    yield StoredObject(digest, entry["size"], int(entry["last_modified"].timestamp() * 1_000_000))

    def signed_get(self, digest: bytes, *, valid_s: int) -> str | None:
        if not self._is_direct:
            return None
        with self._translated("sign for"):
            return obstore.sign(self._bucket, "GET", digest.hex(), timedelta(seconds=min(valid_s, VALID_S_MAX)))

    def signed_put(self, sender: str, digest: bytes, size: int, *, valid_s: int) -> SignedUpload | None:
        if self._signer is None or not self._is_direct:
            return None
        return self._signer.sign(incoming_key(sender, digest), digest, size, valid_s=valid_s)

    def accept(self, sender: str, digests: Iterable[bytes]) -> dict[bytes, int]:
        sizes: dict[bytes, int] = {}

        def take(digest: bytes) -> None:
            key = incoming_key(sender, digest)
            with self._translated("read from"):
                try:
                    size = obstore.head(self._bucket, key)["size"]
                    # The service copies it. The bytes need no look: it took none with another hash.
                    obstore.copy(self._bucket, key, digest.hex())
                except FileNotFoundError as exc:
                    if _code(exc) not in NO_OBJECT_CODES:
                        raise
                    return
            sizes[digest] = size

        asked = list(digests)
        self._in_parallel(take, asked)
        if asked and not sizes:
            next(self.list(), None)  # is there a bucket at all?
        return sizes

    def drop_incoming(self, sender: str, digests: Iterable[bytes]) -> None:
        self._in_parallel(self._remove, [incoming_key(sender, digest) for digest in digests])

    def drop_abandoned(self, *, before_us: int, limit: int) -> int:
        with self._translated("list"):
            pages = iter(obstore.list(self._bucket, offset=INCOMING))
        old: list[str] = []
        while len(old) < limit:
            with self._translated("list"):
                page = next(pages, None)
            if page is None:
                break
            uploads = [entry for entry in page if entry["path"].startswith(INCOMING)]
            old += [entry["path"] for entry in uploads if entry["last_modified"].timestamp() * 1_000_000 < before_us]
        self._in_parallel(self._remove, old[:limit])
        return len(old[:limit])

    def check(self) -> None:
        key = f"probe-{secrets.token_hex(8)}"
        self._overwrite(key, PROBE)
        try:
            with self._translated("read from"):
                if bytes(obstore.get(self._bucket, key).bytes()) != PROBE:
                    raise Unavailable("The object store gives back other bytes than were written.")
        finally:
            self._remove(key)

    def _remove(self, key: str) -> None:
        with self._translated("delete from"):
            try:
                obstore.delete(self._bucket, key)
            except FileNotFoundError as exc:
                if _code(exc) not in NO_OBJECT_CODES:
                    raise

    def _overwrite(self, key: str, data: bytes) -> None:
        with self._translated("write to"):
            obstore.put(self._bucket, key, data, use_multipart=False)

    def _in_parallel(self, call: Callable[[Item], None], items: Iterable[Item]) -> None:
        with ThreadPoolExecutor(WRITE_THREADS, thread_name_prefix="object") as threads:
            try:
                for _ in threads.map(call, items):
                    pass
            finally:
                threads.shutdown(cancel_futures=True)

    @contextlib.contextmanager
    def _translated(self, work: str) -> Iterator[None]:
        """Turn what obstore says into Unavailable. That an object is there already is for the caller."""
        try:
            yield
        except AlreadyExistsError:
            raise
        except (BaseError, OSError, ValueError) as exc:
            problem = _unavailable(exc)
            problem.add_note(f"Could not {work} {self._name}: {_reason(exc)}.")
            # Not `from exc`: a traceback would show what obstore said, with keys and addresses.
            raise problem from None


def _unavailable(exc: Exception) -> Unavailable:
    code = _code(exc)
    if code in CLOCK_CODES:
        return Unavailable("The object store says that the clock of the server is wrong.")
    if isinstance(exc, (PermissionDeniedError, UnauthenticatedError)) or code in DENIED_CODES:
        return Unavailable(
            "The object store refuses the credentials of the server.",
            next_step="Ask the operator of the server to correct its `storage` section or its credentials.",
        )
    if code in FULL_CODES:
        return Unavailable("The object store is full; the object was not stored.")
    if isinstance(exc, FileNotFoundError) or code in NO_BUCKET_CODES:
        return Unavailable("The object store has no such bucket.")
    if TIMED_OUT.search(str(exc)):
        return Unavailable("The object store did not answer in time.")
    return Unavailable("The object store cannot be used now.")


def _code(exc: Exception) -> str:
    match = ERROR_CODE.search(str(exc))
    return next((code for code in match.groups() if code), "") if match else ""


def _reason(exc: Exception) -> str:
    """Why it failed, without keys, signatures and addresses."""
    if code := _code(exc):
        return code
    first_line = next((line.strip() for line in str(exc).splitlines() if line.strip()), type(exc).__name__)
    reason = ADDRESS.sub("…", first_line)[:200].rstrip(".")
    system = SYSTEM_REASON.search(str(exc))
    return f"{reason} ({system[1]})" if system else reason


def open_bucket(options: StorageOptions) -> BucketStore:
    """The store of a bucket. No request is sent."""
    try:
        return {"s3": _s3, "gs": _google, "az": _azure}[options.scheme](options)
    except (BaseError, ValueError) as exc:
        # obstore's words can have the credentials in them.
        raise Malformed(
            f"storage: the object store {options.url} cannot be opened ({type(exc).__name__}).",
            next_step="Check the `storage` section of the configuration and the credentials of the server.",
        ) from None


def _s3(options: StorageOptions) -> BucketStore:
    region = options.region or DEFAULT_REGION
    endpoint = _without_default_port(options.endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
    keys = S3Keys(
        options.credentials.get("AWS_ACCESS_KEY_ID", ""),
        options.credentials.get("AWS_SECRET_ACCESS_KEY", ""),
        options.credentials.get("AWS_SESSION_TOKEN", ""),
    )
    # Each address is given, because obstore would also take it from the environment.
    config: S3Config = {
        "region": region,
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "virtual_hosted_style_request": False,
        # The signed header with the SHA-256 binds the content; a signed payload would make the service hash it again.
        "checksum_algorithm": "SHA256",
        "unsigned_payload": True,
    }
    if keys.access_key:  # without keys obstore uses the role of the machine or of its container
        config |= {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key}
    if keys.session_token:
        config["session_token"] = keys.session_token
    bucket = S3Store(
        options.bucket,
        prefix=options.prefix or None,
        config=config,
        client_options=_client(options),
        retry_config=_retries(options),
    )
    base = "/".join(part for part in (endpoint, options.bucket, options.prefix) if part)
    signer = UploadSigner(base, region, keys) if keys.access_key else None
    return BucketStore(bucket, name=options.url, signer=signer, is_direct=options.is_direct)


def _google(options: StorageOptions) -> BucketStore:
    names = {
        "GOOGLE_SERVICE_ACCOUNT": "service_account",
        "GOOGLE_SERVICE_ACCOUNT_KEY": "service_account_key",
        "GOOGLE_APPLICATION_CREDENTIALS": "application_credentials",
    }
    return _open_plain(GCSStore, options, names, endpoint_name="base_url")


def _azure(options: StorageOptions) -> BucketStore:
    names = {"AZURE_STORAGE_ACCOUNT_NAME": "account_name", "AZURE_STORAGE_ACCOUNT_KEY": "account_key"}
    return _open_plain(AzureStore, options, names, endpoint_name="endpoint")


def _open_plain(
    kind: type[GCSStore | AzureStore], options: StorageOptions, names: Mapping[str, str], *, endpoint_name: str
) -> BucketStore:
    """A store without signed uploads. `names`: the service's names for the server's credentials."""
    config = {names[name]: value for name, value in options.credentials.items() if name in names}
    if options.endpoint:
        config[endpoint_name] = options.endpoint
    bucket = kind(
        options.bucket,
        prefix=options.prefix or None,
        config=config,  # type: ignore[arg-type]  # the names are those of the caller's table
        client_options=_client(options),
        retry_config=_retries(options),
    )
    return BucketStore(bucket, name=options.url, is_direct=options.is_direct)


def _without_default_port(url: str) -> str:
    """HTTP clients leave the default port out of the header Host, which is signed."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.removesuffix({'https': ':443', 'http': ':80'}.get(scheme, ' '))}{slash}{path}"


def _client(options: StorageOptions) -> ClientConfig:
    return {
        "allow_http": options.allow_http,
        "connect_timeout": timedelta(seconds=min(CONNECT_S, options.timeout_s)),
        "timeout": timedelta(seconds=options.timeout_s),
    }


def _retries(options: StorageOptions) -> RetryConfig:
    """One call ends within (retries + 1) times the time-out, and the waits between."""
    return {
        "max_retries": options.retries,
        "retry_timeout": timedelta(seconds=options.timeout_s * (options.retries + 1)),
        "backoff": {
            "init_backoff": timedelta(seconds=BACKOFF_S),
            "max_backoff": timedelta(seconds=BACKOFF_S_MAX),
            "base": 2,
        },
    }
