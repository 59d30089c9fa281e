"""The store's statements, one a file. Values are bound to `{name:Type}` placeholders."""

import importlib.resources
from functools import cache


@cache
def statement(name: str) -> str:
    """Return the text of `<name>.sql` of this package."""
    return importlib.resources.files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
