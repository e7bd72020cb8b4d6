"""What a job needs of a site file against what a site file offers."""

from __future__ import annotations

import msgspec
import pytest

from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import JobSpec
from switchyard.model.job.site_needs import (
    DataPrefix,
    SecretNeed,
    SecretOffer,
    SiteAsk,
    SiteNeeds,
    SiteOffer,
    StoreOffer,
    site_refusal,
)

OFFER = SiteOffer(
    folder="/shared/data",
    stores=(StoreOffer("s3://bucket/flyte", ("kit", "team-*")), StoreOffer("gs://open")),
    secrets=(SecretOffer("word", "vault", ("kit",)), SecretOffer("token")),
)


@pytest.mark.parametrize(
    ("needs", "project", "words"),
    [
        (SiteNeeds(data=""), "any", ""),
        (SiteNeeds(data="/shared/data"), "any", ""),
        (SiteNeeds(data="/shared/data/"), "any", ""),
        (SiteNeeds(data="/shared/data/any"), "any", ""),
        (SiteNeeds(data="/shared/data/any/deep"), "any", ""),
        (SiteNeeds(data="/shared/data/other"), "any", "data of the project any goes below /shared/data/any alone"),
        (SiteNeeds(data="/shared/data/anybody/x"), "any", "this goes to /shared/data/anybody/x"),
        (SiteNeeds(data="/shared/database"), "any", "its folder for data is /shared/data"),
        (SiteNeeds(data="s3://bucket/flyte/deep"), "team-1", ""),
        (SiteNeeds(data="s3://bucket/flyte"), "other", "jobs of the project other may not write data"),
        (SiteNeeds(data="s3://bucket/flyteless"), "kit", "names no store"),
        (SiteNeeds(data="s3://bucket"), "kit", "names no store"),
        (SiteNeeds(data="gs://open/x"), "other", ""),
        (SiteNeeds(secrets=(SecretNeed("word", "vault"), SecretNeed("token"))), "kit", ""),
        (SiteNeeds(secrets=(SecretNeed("word", "vault"),)), "other", "may not have the secret vault/word"),
        (SiteNeeds(secrets=(SecretNeed("word"),)), "kit", "does not have the secret word"),
    ],
)
def test_needs_against_an_offer(needs: SiteNeeds, project: str, words: str) -> None:
    said = site_refusal(SiteAsk(project, needs), OFFER)
    assert (words in said) if words else said == ""


def test_a_cluster_that_offers_nothing_takes_no_job_with_needs() -> None:
    assert "neither a place for data nor secrets" in site_refusal(SiteAsk("p", SiteNeeds(data="")), None)
    assert "names no folder" in site_refusal(SiteAsk("p", SiteNeeds(data="")), SiteOffer())


@pytest.mark.parametrize("good", ["s3://b", "s3://b/", "s3://b/x/y", "/a/b", "gs://b/.hidden/x", "abfs://c@a/x", ""])
def test_places_for_data(good: str) -> None:
    assert msgspec.convert(good, DataPrefix) == good


@pytest.mark.parametrize(
    "bad", ["x", "file:///a", "/a/../b", "s3://b/..", "/a//b", "s3://b/a b", "/a\n", "/.", "http://b/x", "s3:///x"]
)
def test_what_is_no_place_for_data(bad: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, DataPrefix)


def test_a_job_with_needs_has_a_folder_for_them() -> None:
    with pytest.raises(ValueError, match="give `files`"):
        JobSpec(["true"], site=SiteNeeds(data=""))
    assert JobSpec(["true"], site=SiteNeeds(data=""), files=JobFiles()).site == SiteNeeds(data="")
