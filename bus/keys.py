"""Keys of the KV buckets. A key is made of tokens; what a token may not hold is written as '=' and two hex digits."""

import re

_PLAIN = re.compile(rb"[A-Za-z0-9_-]")


def quote(text: str) -> str:
    """Return `text` as one token of a key: `2.13.0+cpu` becomes `2=2E13=2E0=2Bcpu`. `unquote` undoes it."""
    if not text:
        raise ValueError("a key has no empty token")
    return "".join(chr(byte) if _PLAIN.match(bytes((byte,))) else f"={byte:02X}" for byte in text.encode())


def unquote(token: str) -> str:
    """Return the text that `quote` made `token` of."""
    return re.sub(rb"=([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode()), token.encode()).decode()


def manifest_key(name: str, version: str) -> str:
    """Return the key of a manifest: name and version, a token each."""
    return f"{quote(name)}.{quote(version)}"
