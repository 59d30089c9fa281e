"""Which items of a data set a limited evaluation takes."""

import random


def choose_items(size: int, limit: int | None, seed: int) -> tuple[int, ...]:
    """Return positions in the data set, rising.

    Without a limit, or with one of at least `size`, all of them. Seed 0 takes the first `limit`, any other
    draws without replacement: the same seed, size and limit give the same items everywhere.
    """
    if limit is None or limit >= size:
        return tuple(range(size))
    if seed == 0:
        return tuple(range(limit))
    return tuple(sorted(random.Random(seed).sample(range(size), limit)))
