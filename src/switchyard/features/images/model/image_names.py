"""The name of an image in a registry: `HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from switchyard.errors import BadValue

DEFAULT_TAG = "latest"
REPOSITORY_CHARS_MAX = 255  # as registries have it
DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class ImageName:
    """`host` as the job writes it, with its port if there is one."""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def reference(self) -> str:
        """What a registry is asked for."""
        return self.digest or self.tag or DEFAULT_TAG

    def pinned(self, digest: str) -> str:
        return f"{self.host}/{self.repository}@{digest}"


def host_of(image: str) -> str:
    """The registry in the name of an image, without a check of the rest; empty: it names none."""
    host, slash, _ = image.partition("/")
    return host if slash else ""


def read_image_name(image: str) -> ImageName:
    """Raises BadValue for what is no name of an image in a registry."""
    host, _, rest = image.partition("/")
    rest, at, digest = rest.partition("@")
    repository, colon, tag = rest.partition(":")
    if at and not DIGEST.match(digest):
        raise _refusal(image, f"{digest[:80]!r} is no digest", "sha256: and 64 digits from 0 to f")
    if colon and not _TAG.match(tag):
        raise _refusal(image, f"{tag[:80]!r} is no tag", "letters, digits and . _ -, at most 128")
    if not _REPOSITORY.match(repository) or len(repository) > REPOSITORY_CHARS_MAX:
        raise _refusal(
            image, f"{repository[:80]!r} is no repository", "small letters, digits and . _ - between slashes"
        )
    return ImageName(host, repository, tag, digest)


def _refusal(image: str, what: str, right: str) -> BadValue:
    return BadValue(f"spec.image: {image[:120]!r}: {what}.", next_step=f"Write HOST/REPOSITORY:TAG; here: {right}.")
