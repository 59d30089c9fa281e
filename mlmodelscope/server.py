"""Where the API is that a client should talk to."""

from mlmodelscope.directory import DataDirectory
from schemas.settings import Settings


def find_server(settings: Settings) -> str:
    """Return the URL of the API: as set, else as a stack in the data directory says, else the default."""
    if settings.api_url:
        return settings.api_url
    announced = DataDirectory(settings.data_dir).announced("api")
    if announced and "url" in announced:
        return str(announced["url"])
    host = "127.0.0.1" if settings.api_host in ("0.0.0.0", "::") else settings.api_host
    return f"http://{host}:{settings.api_port or 8265}"
