"""The store's statements, one a file. Values are bound to `{name:Type}` placeholders, never put into the text.

A line that ends in `-- only with NAME` is left out unless NAME is given: a column that is not wanted, or a condition
with nothing to compare with, which it is cheaper to leave out than to make always true.
"""

import importlib.resources
import re
from collections.abc import Collection
from functools import cache

_OPTIONAL = re.compile(r"^.*-- only with (\w+)\n", re.MULTILINE)


def statement(name: str, given: Collection[str] = ()) -> str:
    """Return the text of `<name>.sql` of this package, with the optional lines of the parameters that are `given`."""
    return _chosen(name, frozenset(given))


@cache
def _chosen(name: str, given: frozenset[str]) -> str:
    text = importlib.resources.files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return _OPTIONAL.sub(lambda line: line[0] if line[1] in given else "", text)
