"""The exceptions that reading a damaged stored value raises."""

from __future__ import annotations

import msgspec

UNREADABLE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, msgspec.DecodeError)
