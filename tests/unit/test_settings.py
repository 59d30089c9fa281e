"""Settings: from variables over a file over defaults; what is unknown or wrong is refused by name."""

from pathlib import Path

import pytest

from schemas.errors import SettingsError
from schemas.settings import Settings, load_settings, to_environ


def test_variables_win_over_the_file_and_the_file_over_defaults() -> None:
    """The nearest word counts."""
    settings = load_settings({"MLMODELSCOPE_API_PORT": "9000", "HOME": "/x"}, "api_port = 1\nlog_level = 'DEBUG'\n")
    assert (settings.api_port, settings.log_level, settings.heartbeat_s) == (9000, "DEBUG", 1.0)
    assert load_settings({"MLMODELSCOPE_API_PORT": "9000"}, api_port=7, api_host=None).api_port == 7


@pytest.mark.parametrize(
    ("environ", "text", "expected"),
    [
        (
            {"MLMODELSCOPE_API_PROT": "1"},
            "",
            "MLMODELSCOPE_API_PROT is not a setting; did you mean MLMODELSCOPE_API_PORT",
        ),
        ({"MLMODELSCOPE_API_PORT": "many"}, "", "api_port"),
        ({}, "colour = 1", "colour"),
        ({}, "= 1", "not TOML"),
    ],
)
def test_what_is_unknown_or_wrong_is_refused(environ: dict[str, str], text: str, expected: str) -> None:
    """A misspelt setting is not silently without effect."""
    with pytest.raises(SettingsError, match=expected):
        load_settings(environ, text)


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    """An empty token is no token, and not one that nobody can give."""
    assert load_settings({"MLMODELSCOPE_API_TOKEN": "", "MLMODELSCOPE_ASSET_MIRROR": ""}).api_token is None


def test_a_child_process_gets_the_same_settings() -> None:
    """What one process was told, the next one hears."""
    settings = Settings(data_dir=Path("/d"), trusted_authors=("a b", "c"), api_token="t", worker_memory_bytes=5)
    assert load_settings(to_environ(settings)) == settings
