"""Groups of categories, as keys are given them."""

from __future__ import annotations

import pytest

from protocol.access.categories import GROUPS, RESTRICTABLE, Category, group_of

TRITONS = "health metadata inference shared-memory model-config model-repository statistics trace logging"


def test_the_restrictable_categories_are_those_of_tritons_flags() -> None:
    assert sorted(RESTRICTABLE) == sorted(TRITONS.split())


@pytest.mark.parametrize("category", Category)
def test_each_category_is_in_one_group_and_in_all(category: Category) -> None:
    holders = [name for name, members in GROUPS.items() if category in members]
    assert holders == [group_of(category), "all"]
