"""What a core says in shared memory: each part by itself, seen at once."""

from __future__ import annotations

from contextlib import closing

from protocol.edge_link.generation import Generation, SeenGeneration


def test_each_part_moves_by_itself() -> None:
    with closing(Generation()) as generation, closing(SeenGeneration(generation.descriptor)) as seen:

        def found() -> tuple[int, int, bool]:
            return seen.of_model("")[0], seen.keys(), seen.is_traced()

        assert found() == (0, 0, False)
        generation.bump()
        generation.set_traced(True)
        assert found() == (1, 0, True)
        generation.bump_keys()
        generation.bump_keys()
        generation.set_traced(False)
        assert found() == (1, 2, False)
        assert generation.keys == 2


def test_a_model_moves_by_itself() -> None:
    with closing(Generation()) as generation, closing(SeenGeneration(generation.descriptor)) as seen:
        names = ["m", "other", "space::m", "ü", "\udcff"]
        before = {name: seen.of_model(name) for name in names}
        generation.bump_model("m")
        assert {name for name in names if seen.of_model(name) != before[name]} == {"m"}
        generation.bump_model("\udcff")
        assert {name for name in names if seen.of_model(name) != before[name]} == {"m", "\udcff"}
        generation.bump()
        assert all(seen.of_model(name) != before[name] for name in names)
        assert seen.of_model("")[0] == 3, "what is known of all models together"
        assert not seen.is_traced()


def test_all_names_have_a_place() -> None:
    with closing(Generation()) as generation, closing(SeenGeneration(generation.descriptor)) as seen:
        for number in range(10_000):
            before = seen.of_model(f"m{number}")
            generation.bump_model(f"m{number}")
            assert seen.of_model(f"m{number}") != before
