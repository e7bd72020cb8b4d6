"""Makes obstore's clients for S3, Google Cloud Storage and Azure: addresses, credentials, time-outs and retries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from switchyard.errors import Malformed
from switchyard.storage.bucket_store import BucketStore
from switchyard.storage.options import StorageOptions
from switchyard.storage.s3_signature import S3Keys
from switchyard.storage.signed_uploads import UploadSigner

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

DEFAULT_REGION = "us-east-1"
CONNECT_S = 5.0
BACKOFF_S = 0.1  # before the first retry; it doubles
BACKOFF_S_MAX = 2.0


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
