"""What each error code means, what usually causes it and what to do: for `yard explain CODE` and the reference page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    """`causes`: the most usual first. `steps`: in the order to try them."""

    means: str
    causes: tuple[str, ...]
    steps: tuple[str, ...]


ERROR_MEANINGS: dict[str, ErrorMeaning] = {
    "error": ErrorMeaning(
        "The command failed on this machine, before or after it called the server.",
        (
            "a file or folder that cannot be read or written",
            "something answered at the URL that is not a Switchyard server",
            "a part of the program that is not installed here",
        ),
        ("Read the line after `next:`; it names the file, the URL or the package.",),
    ),
    "bad-request": ErrorMeaning(
        "The request is understood, but cannot be done as it stands. Nothing was stored.",
        (
            "options that do not go together",
            "a job that waits for itself, or jobs that wait for each other in a cycle",
            "an index or a stream that the job does not have",
            "an abbreviated id that stands for more than one job",
        ),
        ("Correct what the message names and send it again.", "`yard COMMAND --help` has the options and examples."),
    ),
    "malformed": ErrorMeaning(
        "A body, file or argument is not well-formed: a wrong type, an unknown field, a value out of its bounds.",
        (
            "a misspelt field: the message names the closest one",
            "a missing body: send at least `{}`",
            "YAML that reads a text as a number: put quotes around it",
            "JSON with the same key twice",
        ),
        (
            "Go to the place that the message names: field, line or column.",
            "`yard submit --help` shows every field of a job file; `/v1/openapi.json` has all types.",
        ),
    ),
    "bad-value": ErrorMeaning(
        "Every field has the right form, but a value is out of range, or two of them contradict each other.",
        (
            "more nodes than tasks, or a limit below the request",
            "an array range that goes backwards, or names an index twice",
            "an amount or a time that is absurdly large",
        ),
        ("The message names the values that do not go together: change one of them.",),
    ),
    "wrong-media": ErrorMeaning(
        "The body is declared as something other than JSON, by its Content-Type. Nothing was stored.",
        ("a Content-Type such as `text/plain`; what `curl -d` declares by itself, a form, is taken as JSON",),
        ("Send the header `Content-Type: application/json`.",),
    ),
    "unknown-name": ErrorMeaning(
        "The request names a project, domain, cluster or job that does not exist, or that you may not see.",
        ("a typing error", "a project that nobody has made yet", "a job given to --after that was never accepted"),
        (
            "`yard project ls`, `yard cluster ls` or `yard ls --all` list what you may name.",
            "`yard project create NAME` makes a project, if you may.",
        ),
    ),
    "too-large": ErrorMeaning(
        "A body or an answer is too large. Nothing was stored.",
        (
            "a job of over 8 MiB or 65,536 values, a bulk request of over 64 MiB",
            "a pool, label, queue or attribute of over 1 MiB, any other request of over 256 KiB",
            "data passed as arguments or environment of a job",
        ),
        ("Send less in one request: `yard submit --bulk FILE --batch 200`.", "Put data into files that the job reads."),
    ),
    "too-slow": ErrorMeaning(
        "The server gave up waiting for the rest of a request, and closed the connection. Nothing was stored.",
        ("a network or a proxy that stalls", "a program that opens a request and does not finish it"),
        (
            "Send the request again in one go.",
            "On a very slow line, the operator can raise `head_s` and `body_s` (`connections` in the server's file).",
        ),
    ),
    "unauthenticated": ErrorMeaning(
        "The server does not know who you are: the token is missing, unknown, expired or revoked.",
        (
            "no `yard login` on this machine yet, or for another URL",
            "YARD_TOKEN holds an old token, and wins over the stored one",
            "the token expired (`yard token ls` shows when), or the user was disabled",
        ),
        (
            "`yard login` stores a token for the server; `yard whoami` shows your user and grants.",
            "Lost the administrator's token? It was printed at the server's first start and stored for its user.",
        ),
    ),
    "denied": ErrorMeaning(
        "The server knows you, and you may not do this: a grant is missing.",
        (
            "submit needs the role submit on the project and on a cluster",
            "acting on others' jobs needs the role operate on their project",
            "users, tokens of others and grants need the role admin on the platform",
        ),
        (
            "`yard whoami` lists your grants; the message names the role that is missing.",
            "Ask an administrator for it: `yard grant add`.",
        ),
    ),
    "not-found": ErrorMeaning(
        "The object does not exist, or you may not see it. The answer does not say which of the two, on purpose.",
        ("a typing error", "it was removed", "it belongs to a project you may not view"),
        ("The matching list command shows what you may see: `yard user ls`, `yard token ls`, `yard agent ls` …",),
    ),
    "no-such-job": ErrorMeaning(
        "There is no such job, or it is not yours to see.",
        (
            "a typing error; six characters or more of an id's start are enough if no other job has them",
            "the job ended long ago and was deleted (`retention` in the server's config file)",
            "it is another server's: compare `yard version`",
        ),
        ("`yard ls --all` lists the jobs you may see.",),
    ),
    "no-such-cluster": ErrorMeaning(
        "There is no such cluster, or it is not yours to see.",
        ("a typing error", "it was removed", "it is private, and you have no grant on it"),
        ("`yard cluster ls` lists the clusters you may see.", "`yard cluster invite NAME` brings a new one in."),
    ),
    "no-such-attribute": ErrorMeaning(
        "No attribute of this kind is set at exactly this scope. A level above may still set it.",
        ("a domain, project or workflow that only inherits", "a row that was removed"),
        (
            "`yard explain-policy -p P -d D` shows the effective value, and the level that sets it.",
            "`yard get KIND` lists the rows of a kind, `yard history KIND` the changes of one.",
        ),
    ),
    "no-such-pool": ErrorMeaning(
        "There is no token pool of this namespace.",
        ("a misspelt namespace", "a pool that nobody registered yet, or that was removed"),
        (
            "`yard token-pool ls` lists the pools.",
            "An administrator makes one: `yard token-pool register POOL QUOTA`.",
        ),
    ),
    "method-not-allowed": ErrorMeaning(
        "The address exists, but does not take this method.",
        ("a program that calls the API with the wrong verb", "a client of another version"),
        ("`/v1/openapi.json` lists every address with its methods.", "Compare versions with `yard version`."),
    ),
    "conflict": ErrorMeaning(
        "The request conflicts with the present state of the job, cluster or user.",
        (
            "a retry of a job that is not over yet",
            "hold or priority for a job that is over, or that a cluster already has",
            "a cluster or user that is still in use",
        ),
        ("Look at the present state (`yard show`, `yard explain`), then decide.",),
    ),
    "unreadable": ErrorMeaning(
        "The stored row of this job is damaged, or was written by a version that this server does not know.",
        (
            "a disk that lost or changed bytes",
            "a row that somebody changed by hand",
            "an older server on a newer database",
        ),
        (
            "`yard show` names the column. `yard cancel` ends the job.",
            "An operator repairs the row, then `yard release` lets the job go on: docs/how-to/repair-a-row.md.",
        ),
    ),
    "name-taken": ErrorMeaning(
        "The name is already in use. Nothing was changed.",
        ("it was created before, perhaps by a script that ran twice",),
        ("Choose another name, or use the existing one.",),
    ),
    "key-reused": ErrorMeaning(
        "This idempotency key was used before, for another request. A key may be repeated only with the same body.",
        (
            "a script with a fixed --key whose job has changed since",
            "a bulk file that was edited between two tries with one --key",
        ),
        ("Use a new key for a new request.", "To see the job that the key created, submit the same request again."),
    ),
    "agent-lives": ErrorMeaning(
        "Another agent of this name is alive, with another journal. Two agents of one name would run jobs twice.",
        (
            "the agent was started on two machines with one name",
            "its data folder was lost or moved while the first one still runs",
        ),
        (
            "Stop the other agent; `yard agent ls` shows where it was seen.",
            "Or give this one a name of its own: `yard agent --name`.",
        ),
    ),
    "proof-missing": ErrorMeaning(
        "The join token is that of a pilot. Only an agent inside of the pilot's job joins with it.",
        (
            "the token was used outside of the job, such as by hand",
            "the output of the job has not reached the server yet: the agent asks again by itself",
            "the owner of the job has reached the limit of stored bytes, so its output is dropped",
        ),
        (
            "Start the agent by `yard pilot`, or make a plain token with `yard cluster invite NAME --ephemeral`.",
            "Look at the output of the pilot's job (`yard logs JOB`): it has a line with the agent's proof.",
        ),
    ),
    "journal-refused": ErrorMeaning(
        "Two processes use the credential of one agent. The server accepted one of them and refused this one.",
        (
            "the agent's data folder, or its credential, was copied and a second process started on the copy",
            "the data folder comes from a backup and lacks the leases that the agent got since",
            "the agent could not reach the server for a while, and a copy of it took its place",
        ),
        (
            "`yard agent show ID` names the accepted and the refused process.",
            "A copy: move its data folder away and join with a token and a name of its own.",
            "A backup, or a move to another machine: docs/how-to/move-an-agent.md.",
        ),
    ),
    "resync": ErrorMeaning(
        "The agent's session is over: another process of the agent, or another server, began a new session.",
        ("the agent was restarted while its last poll was on its way", "a server was restarted"),
        ("Nothing: the agent syncs by itself. No job is lost or runs twice.",),
    ),
    "outdated": ErrorMeaning(
        "The object was changed since you read it. Nothing was written, so the other change is not lost.",
        ("two people, or a person and a script, changed one attribute at the same time",),
        ("Read it again (`yard get`), look at the changes (`yard history`), and write again.",),
    ),
    "condition-missing": ErrorMeaning(
        "A write of an attribute must name the version that it replaces, so that no change of others is lost.",
        ("a program that calls the API without If-Match and without If-None-Match",),
        (
            "Send If-Match with the ETag of the row that was read, or `If-None-Match: *` for a first one.",
            "`yard update`, `yard delete` and the SDK do it by themselves.",
        ),
    ),
    "gone": ErrorMeaning(
        "This registration is no longer valid: the agent or its cluster was removed, or registered anew.",
        ("`yard agent rm` or `yard cluster rm`", "the cluster's name was registered again: that is another cluster"),
        ("Join again: `yard cluster invite NAME`, then start the agent with the new join token.",),
    ),
    "policy-refused": ErrorMeaning(
        "A rule refuses the job. Nothing was stored.",
        ("it asks for more than a limit of its project or domain allows",),
        ("Ask for less, or ask for the rule that the message names to be changed.",),
    ),
    "place-asked": ErrorMeaning(
        "Another process of this agent called a moment ago. The server asks it whether it is still alive.",
        ("an agent was restarted at once", "a copy of an agent was started beside it"),
        ("Nothing: the agent asks again by itself, and is accepted or refused within seconds.",),
    ),
    "busy": ErrorMeaning(
        "The server's queue of requests is full. Try again in a moment.",
        ("a burst of submits, one request each", "a database that is slow at the moment"),
        (
            "The command line and the SDK wait and try again by themselves.",
            "Send many jobs in one request (`yard submit --bulk`), or as an array.",
        ),
    ),
    "throttled": ErrorMeaning(
        "You have reached a limit on open requests, or on how often one user may call. The message names the limit.",
        (
            "a script that asks for each job in a loop, or follows each in a process of its own",
            "followers that nobody reads any more",
        ),
        (
            "The command line and the SDK wait and try again by themselves.",
            "Send many jobs in one request (`yard submit --bulk`); follow all jobs in one stream (`yard watch`).",
            "An administrator can raise the limit for you: `limits.users` in the server's config file.",
        ),
    ),
    "limit-reached": ErrorMeaning(
        "You have reached the limit of live jobs, tasks or stored bytes of one user. The message names the limit.",
        (
            "a script that submits faster than clusters run",
            "jobs that wait for something that never comes",
            "jobs that print very much",
        ),
        (
            "`yard ls` lists your live jobs; `yard cancel` ends those you do not need.",
            "Stored bytes go with old jobs and their output (`retention` in the server's config file).",
            "An administrator can raise the limit for you: `limits.users` in the server's config file.",
        ),
    ),
    "rebuilding": ErrorMeaning(
        "The server does not know yet which tokens of the pool are held. It grants none until it knows.",
        (
            "the Redis of the token pools was restarted, and does not write each change to disk (appendfsync always)",
            "the server that keeps its pools in memory was restarted",
        ),
        (
            "`yard token-pool show POOL` says when it opens: once the longest lease is over.",
            "Callers that hold tokens keep them, and renew them as before.",
        ),
    ),
    "unavailable": ErrorMeaning(
        "The server cannot be reached, or cannot serve this now. What was accepted is not lost.",
        (
            "no server runs at the URL: `--server`, YARD_URL or the url in your file is wrong",
            "it is starting or stopping, or its database is away, read-only, or out of disk",
            "TLS: the certificate does not hold, or one side speaks plain HTTP",
        ),
        (
            "`yard version` shows which URL is asked, and what answers.",
            "Try again in a few seconds; running jobs go on meanwhile.",
        ),
    ),
    "timed-out": ErrorMeaning(
        "The time that you gave ran out. The job that you waited for goes on.",
        ("--timeout was shorter than the job, or than its wait for a cluster",),
        ("Give more time, or wait again: `yard wait ID`.", "`yard explain ID` says what a job waits for."),
    ),
    "internal": ErrorMeaning(
        "A defect in the server. The request was not done, or its success is not confirmed.",
        ("a bug",),
        ("Look at the server's log for this request, and report it with that line.",),
    ),
}
