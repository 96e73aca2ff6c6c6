"""Which changes count, look by look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.lifecycle.poll_policy import Changes, PollPolicy

RESTLESS = Changes(is_restless=True)
NOTHING = Changes()


@pytest.mark.parametrize(
    ("looks", "changes"),
    [
        ([{"a": 1}, {"a": 1}], [NOTHING, NOTHING]),
        ([{"a": 2}, {"a": 2}, {"a": 2}], [RESTLESS, Changes(load=("a",)), NOTHING]),
        ([{"a": 2}, {"a": 3}, {"a": 3}], [RESTLESS, RESTLESS, Changes(load=("a",))]),
        ([{"a": 2}, {"a": 1}, {"a": 1}], [RESTLESS, NOTHING, NOTHING]),
        ([{}, {}, {}], [RESTLESS, Changes(unload=("a",)), NOTHING]),
        ([{}, {"a": 2}, {"a": 2}], [RESTLESS, RESTLESS, Changes(load=("a",))]),
        ([{}, {"a": 1}, {"a": 1}], [RESTLESS, NOTHING, NOTHING]),
        ([{"a": 1, "b": 1}, {"a": 1, "b": 1}], [RESTLESS, Changes(load=("b",))]),
        ([{"b": 1}, {"b": 1}], [RESTLESS, Changes(load=("b",), unload=("a",))]),
        ([{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}], [RESTLESS, Changes(load=("b",), is_restless=True)]),
    ],
    ids=[
        "nothing",
        "changed",
        "changes twice",
        "and back",
        "gone",
        "replaced with a gap",
        "gone for a moment",
        "new",
        "renamed",
        "one at rest beside one that is not",
    ],
)
def test_a_change_counts_when_two_looks_agree(looks: Sequence[Mapping[str, int]], changes: Sequence[Changes]) -> None:
    policy = PollPolicy({"a": 1})
    assert [policy.look(found) for found in looks] == list(changes)


def test_the_changes_of_a_busy_model_wait() -> None:
    policy = PollPolicy({"a": 1})
    assert policy.look({"a": 2}) == RESTLESS
    assert policy.look({"a": 2}) == Changes(load=("a",))
    for found in ({"a": 3}, {"a": 4}, {"a": 4}):
        assert policy.look(found, busy={"a"}) == NOTHING
    assert policy.look({"a": 4}) == Changes(load=("a",))


def test_a_model_that_is_to_be_loaded_again() -> None:
    """Is so once, though nothing of it changes, and not if it has gone meanwhile."""
    policy = PollPolicy({"a": 1, "b": 1})
    policy.load_again("a")
    policy.load_again("never there")
    assert policy.look({"a": 1, "b": 1}, busy={"a"}) == NOTHING
    assert policy.look({"a": 1, "b": 1}) == Changes(load=("a",))
    assert policy.look({"a": 1, "b": 1}) == NOTHING
    policy.load_again("b")
    assert policy.look({"a": 1}) == RESTLESS
    assert policy.look({"a": 1}) == Changes(unload=("b",))
    assert policy.look({"a": 1}) == NOTHING


STATES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3)


@given(STATES, st.lists(STATES, max_size=20))
def test_it_ends_with_what_is_there(taken: Mapping[str, int], looks: Sequence[Mapping[str, int]]) -> None:
    """Nothing is taken that was not found twice in a row, and a state that stays is what is taken in the end."""
    policy = PollPolicy(taken)
    served = dict(taken)
    last = taken
    for found in [*looks, *([looks[-1]] * 2 if looks else [])]:
        changes = policy.look(found)
        for name in changes.load:
            assert found[name] == last.get(name) != served.get(name)
            served[name] = found[name]
        for name in changes.unload:
            assert name not in found
            assert name not in last
            del served[name]
        last = found
    if looks:
        assert served == looks[-1]
        assert policy.look(looks[-1]) == NOTHING
