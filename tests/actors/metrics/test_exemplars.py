"""Exemplars: the latest traced request of each bucket, and no more of them than there is room for."""

from __future__ import annotations

from actors.metrics.exemplars import MOST_VERSIONS, Exemplar, Exemplars


def exemplar(value: float, seconds: float = 0.0) -> Exemplar:
    return Exemplar(f"{int(value):032x}", "0" * 16, value, seconds)


def test_each_bucket_has_its_latest() -> None:
    exemplars = Exemplars()
    for value, seconds in ((90.0, 1.0), (100.0, 2.0), (40.0, 3.0), (150.0, 0.0), (9000.0, 5.0)):
        exemplars.note("m", 1, exemplar(value, seconds))
    found = exemplars.of("m", 1, (50.0, 100.0, 1000.0, 2000.0))
    assert [None if each is None else each.value for each in found] == [40.0, 100.0, 150.0, None, 9000.0]


def test_a_version_without_any_has_none() -> None:
    exemplars = Exemplars()
    exemplars.note("m", 1, exemplar(1.0))
    assert exemplars.of("m", 2, (1.0,)) == ()


def test_there_are_only_so_many_versions() -> None:
    """Those that were not traced for longest go first, and each has one for a power of two at most."""
    exemplars = Exemplars()
    for version in range(MOST_VERSIONS):
        exemplars.note("m", version, exemplar(1.0))
    exemplars.note("m", 0, exemplar(2.0))
    exemplars.note("other", 1, exemplar(1.0))
    assert exemplars.of("m", 1, (1.0,)) == ()
    assert exemplars.of("m", 0, (1.0,)) != ()
    for value in range(1, 10_000):
        exemplars.note("other", 1, exemplar(float(value)))
    assert len([each for each in exemplars.of("other", 1, tuple(map(float, range(10_000)))) if each]) <= 14
