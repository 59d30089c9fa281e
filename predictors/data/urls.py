"""Addresses as text: their scheme, their file's name, and how they may be shown."""

import re
from urllib.parse import unquote, urlsplit, urlunsplit

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")


def scheme(address: str) -> str:
    """Return the scheme in lower case, or '' for a plain path (a single letter is a drive)."""
    found = _SCHEME.match(address)
    return found.group(1).lower() if found else ""


def shown(address: str) -> str:
    """Return the address fit for messages and records: no user, no password, no query (signatures live there)."""
    try:
        parts = urlsplit(address)
    except ValueError:  # not an address; where a password would be in it, nobody knows
        return f"{scheme(address)}:..."
    if not parts.netloc:
        return address
    query = "..." if parts.query else ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def file_name(address: str) -> str:
    """Return the last part of the address's path: what a person calls the file."""
    try:
        path = urlsplit(address).path
    except ValueError:
        path = address
    return unquote(path.rstrip("/").rpartition("/")[2]) or shown(address)
