"""Parts joined in slices."""

from __future__ import annotations

from protocol.sync.joined import join


def test_parts_are_joined_in_pieces() -> None:
    given = [b"a" * 300_000, b"", b"b", bytes(range(256)) * 2000]
    parts, steps = [*given], 0
    work = join(parts)
    while True:
        try:
            next(work)
        except StopIteration as done:
            whole = done.value
            break
        steps += 1
    assert bytes(whole) == b"".join(given)
    assert steps >= sum(map(len, given)) // (1 << 17)
    assert not parts, "none is kept"
