"""A `commit-msg` hook: the subject is one short line, and a body says why. `commit_message.py FILE` exits 1 if not."""

import re
import sys
from pathlib import Path

MOST = 100  # characters of a subject
# What git writes by itself, or joins with another commit's message later.
GIT_OWN = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
SCISSORS = "# ------------------------ >8 ------------------------"
TRAILER = re.compile(r"[A-Za-z]+(-[A-Za-z]+)+: \S")  # Signed-off-by: …


def fault(message: str) -> str | None:
    """What is wrong with a commit's message, comments and all; None if nothing is."""
    lines = [line.rstrip() for line in message.partition(SCISSORS)[0].splitlines() if not line.startswith("#")]
    while lines and not lines[0]:
        del lines[0]
    if not lines:
        return None  # git refuses it
    subject, *rest = lines
    if subject.startswith(GIT_OWN):
        return None
    if len(subject) > MOST or subject.endswith("."):
        return f"The first line is a subject of at most {MOST} characters, in the imperative, without a full stop."
    if rest and rest[0]:
        return "An empty line stands between subject and body."
    if not any(line and not TRAILER.match(line) for line in rest):
        return "The body says why: what was wrong or missing, and for whom."
    return None


if __name__ == "__main__":
    if (found := fault(Path(sys.argv[1]).read_text(encoding="utf-8"))) is not None:
        sys.exit(found)
