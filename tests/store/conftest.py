"""The prepared databases, for all tests of the store."""

from tests.store.prepared import postgres_url, sqlite_url, store, store_url

__all__ = ["postgres_url", "sqlite_url", "store", "store_url"]
