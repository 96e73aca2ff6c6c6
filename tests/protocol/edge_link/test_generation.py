"""What a core says in shared memory: each part by itself, seen at once."""

from __future__ import annotations

from contextlib import closing

from protocol.edge_link.generation import Generation, SeenGeneration


def test_each_part_moves_by_itself() -> None:
    with closing(Generation()) as generation, closing(SeenGeneration(generation.descriptor)) as seen:

        def found() -> tuple[int, int, bool]:
            return seen.count(), seen.keys(), seen.is_traced()

        assert found() == (0, 0, False)
        generation.bump()
        generation.set_traced(True)
        assert found() == (1, 0, True)
        generation.bump_keys()
        generation.bump_keys()
        generation.set_traced(False)
        assert found() == (1, 2, False)
        assert generation.keys == 2
