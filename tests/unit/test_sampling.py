"""Which items a limited evaluation takes."""

from hypothesis import given
from hypothesis import strategies as st

from predictors.worker.sampling import choose_items


@given(st.integers(0, 300), st.none() | st.integers(1, 400), st.integers(0, 5))
def test_items_are_distinct_rising_and_as_many_as_asked(size: int, limit: int | None, seed: int) -> None:
    """No item twice, none that is not there, all of them when the limit does not bite."""
    chosen = choose_items(size, limit, seed)
    assert list(chosen) == sorted(set(chosen))
    assert set(chosen) <= set(range(size))
    assert len(chosen) == min(size, limit if limit is not None else size)
    assert chosen == choose_items(size, limit, seed)


def test_seed_zero_takes_the_first() -> None:
    """Seed 0 is the head of the data set; another seed is not."""
    assert choose_items(100, 5, 0) == (0, 1, 2, 3, 4)
    assert choose_items(100, 5, 1) != choose_items(100, 5, 2) != choose_items(100, 5, 0)


def test_a_seed_means_the_same_everywhere() -> None:
    """The choice of a seed never changes: evaluations of years apart are compared by it."""
    assert choose_items(1000, 5, 1) == (137, 582, 782, 821, 867)
