"""Settings of this process, read once from its environment and the file it names."""

import os
from pathlib import Path
from typing import Any

from schemas.errors import SettingsError
from schemas.settings import CONFIG_VARIABLE, Settings, load_settings

PARENT_VARIABLE = "MLMODELSCOPE_PARENT"
"""Set by a supervisor for its children: the process they must not outlive."""


def read_settings(**overrides: Any) -> Settings:
    """Return the settings; `overrides` that are not None win. Raises SettingsError."""
    environ = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
    path = environ.get(CONFIG_VARIABLE)
    try:
        text = Path(path).read_text() if path else ""
    except OSError as error:
        raise SettingsError(f"{CONFIG_VARIABLE} names {path}, which cannot be read: {error.strerror}") from error
    return load_settings(environ, text, **overrides)
