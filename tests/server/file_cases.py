"""Who may do what about files: users send theirs, readers of a job read its files, agents those of their attempts."""

from __future__ import annotations

from tests.server.cases import SEES, UNSEEN, USERS, Case, at, foreign, own, send

HASH = "0" * 64
ATTEMPT = f"?job={'0' * 26}&fence=1"
NONE_YET = "401 401 401 404 404 404 404 404 404"  # the job has no such tree
NO_ATTEMPT = "401 401 404 401 401 401 401 401 401"
OBJECTS = send(root=HASH, objects=[HASH])

FILE_CASES = [
    Case("POST /v1/files/missing", "own", USERS, body=send(objects=[HASH])),
    Case("POST /v1/files/room", "own", USERS, body=send(new_bytes=1)),
    Case("GET /v1/agents/files/room", "no attempt", NO_ATTEMPT, lambda *_: f"/v1/agents/files/room{ATTEMPT}"),
    Case("POST /v1/files/objects", "no frames", "401 401 401 415 415 415 415 415 415", body=send()),
    Case("POST /v1/files/trees", "own", USERS, body=send(root=HASH)),
    Case("GET /v1/files/usage", "own", USERS),
    Case(
        "GET /v1/files/usage",
        "of a project",
        "401 401 401 403 200 200 200 200 200",
        lambda *_: "/v1/files/usage?project=own",
    ),
    Case("GET /v1/jobs/{job}/files", "own project", SEES, at("/v1/jobs/{}/files", own("job"))),
    Case("GET /v1/jobs/{job}/files", "foreign project", UNSEEN, at("/v1/jobs/{}/files", foreign("job"))),
    *(
        Case("POST /v1/jobs/{job}/files/objects", what, NONE_YET, at("/v1/jobs/{}/files/objects", make), OBJECTS)
        for what, make in (("own project", own("job")), ("foreign project", foreign("job")))
    ),
    *(
        Case("POST /v1/jobs/{job}/files/live", what, expected, at("/v1/jobs/{}/files/live", make), send(name="x"))
        for what, make, expected in (
            ("own project", own("job"), SEES.replace("200", "400")),  # a job without a folder of its own
            ("foreign project", foreign("job"), UNSEEN.replace("200", "400")),
        )
    ),
    Case(
        "POST /v1/agents/files/views",
        "nobody waits",
        NO_ATTEMPT.replace("404", "200"),
        body=send(id="a-1", state="absent"),
    ),
    *(
        Case(
            f"POST /v1/agents/files/{what}",
            "no attempt",
            NO_ATTEMPT,
            lambda *_, at=what: f"/v1/agents/files/{at}{ATTEMPT}",
            body,
        )
        for what, body in (
            ("missing", send(objects=[HASH])),
            ("objects", send()),
            ("trees", send(root=HASH)),
            ("read", OBJECTS),
        )
    ),
    Case("POST /v1/agents/outputs", "no attempt", NO_ATTEMPT, body=send(job="0" * 26, fence=1, state="uploading")),
]
