"""Check the subject of a commit: `area: verb what`, imperative, at most 72 characters. Git's hook commit-msg runs it.

python scripts/commit_message.py FILE    say what is wrong with the message in FILE, and fail
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SUBJECT_CHARS_MAX = 72  # what git and forges show without cutting
AREA = re.compile(r"([A-Za-z0-9_./-]+(?:, [A-Za-z0-9_./-]+)*): (.+)")
NOT_OURS = re.compile(r"(Merge|Revert|fixup!|squash!) ?")  # git writes these subjects
# Words that end like another form of a verb and are none.
IMPERATIVES = frozenset(
    {"bring", "embed", "exceed", "feed", "focus", "need", "ping", "proceed", "seed", "shed", "speed"}
)
NO_VERBS = frozenset(
    {
        "a",
        "all",
        "an",
        "each",
        "every",
        "it",
        "no",
        "one",
        "some",
        "that",
        "the",
        "these",
        "this",
        "those",
        "what",
        "who",
    }
)


def problems(message: str) -> list[str]:
    """What is wrong with the subject of a message."""
    subject, _, body = message.partition("\n")
    if NOT_OURS.match(subject):
        return []
    reasons = []
    if len(subject) > SUBJECT_CHARS_MAX:
        reasons.append(f"it has {len(subject)} characters; at most {SUBJECT_CHARS_MAX}: move the rest into the body")
    if subject.endswith("."):
        reasons.append("it ends with a period")
    if body.partition("\n")[0].strip():
        reasons.append("the second line is not empty")
    parts = AREA.fullmatch(subject)
    if parts is None:
        return [*reasons, "it does not begin with its area, as in `store: claim leases in one statement`"]
    first = parts[2].split()[0].lower().strip(",:`")
    if first in NO_VERBS or (first not in IMPERATIVES and re.search(r"(ing|ed|[^su]s)$", first)):
        reasons.append(f"{first!r} is no imperative: say what the commit does, as in `add`, `refuse`, `rename`")
    return reasons


def main(argv: list[str]) -> int:
    (file,) = argv
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    message = "\n".join(line for line in lines if not line.startswith("#")).strip("\n")
    reasons = problems(message)
    for reason in reasons:
        print(f"subject of the commit: {reason}", file=sys.stderr)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
