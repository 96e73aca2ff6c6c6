"""The public signatures are those that are recorded."""

from __future__ import annotations

import difflib

from tests.public.listing import RECORDED, listing


def test_no_public_signature_has_changed() -> None:
    """Where a change is meant, `make generate` records it, and the changelog tells it."""
    recorded, found = RECORDED.read_text().splitlines(), listing().splitlines()
    changes = "\n".join(difflib.unified_diff(recorded, found, "recorded", "found", lineterm=""))
    assert not changes, f"public signatures differ from {RECORDED.name}; is that meant? Then: make generate\n{changes}"
