"""What reading a stored value raises when it is not in the form in which it was written."""

from __future__ import annotations

import msgspec

UNREADABLE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, msgspec.DecodeError)
