"""Assets over HTTP, by range."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

from predictors.data.sources import Stream
from predictors.data.urls import shown
from predictors.errors import AssetNotFoundError, AssetUnreachableError

_RANGE = re.compile(r"^bytes (\d+)-\d+/(\d+|\*)$")
_TRANSIENT = frozenset({408, 425, 429})


class HttpSource:
    """An `http:` or `https:` address. Redirects are followed, proxies of the environment are used.

    Bytes are taken as stored (`Accept-Encoding: identity`, nothing decoded): digests are of stored files.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        self.address = shown(url)
        self._url = url
        self._timeout = httpx.Timeout(read_timeout_s, connect=connect_timeout_s)
        self._socket: socket.socket | None = None

    @contextmanager
    def open(self, offset: int) -> Iterator[Stream]:
        """Ask for the bytes from `offset` on; see Source."""
        try:
            with httpx.Client(timeout=self._timeout, follow_redirects=True) as client:
                if offset:
                    with self._get(client, offset) as response:
                        # 416: what is there of an earlier download is no beginning of this file.
                        if response.status_code != 416:
                            yield self._stream(response, offset)
                            return
                with self._get(client, 0) as response:
                    yield self._stream(response, 0)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
            raise AssetNotFoundError(f"{self.address}: {error}") from error
        except httpx.HTTPError as error:
            raise AssetUnreachableError(f"{self.address}: {error or type(error).__name__}") from error
        finally:
            self._socket = None

    def abort(self) -> None:
        """Shut the connection down: a thread that waits for its bytes wakes up."""
        connection = self._socket
        if connection is not None:
            with suppress(OSError):  # it may have ended in the meantime
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _get(self, client: httpx.Client, offset: int) -> Iterator[httpx.Response]:
        headers = {"Accept-Encoding": "identity", "User-Agent": "mlmodelscope"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with client.stream("GET", self._url, headers=headers) as response:
            network = response.extensions.get("network_stream")
            found = network.get_extra_info("socket") if network is not None else None
            self._socket = found if isinstance(found, socket.socket) else None
            yield response

    def _stream(self, response: httpx.Response, offset: int) -> Stream:
        status = response.status_code
        reason = f"{self.address}: HTTP {status} {response.reason_phrase}".rstrip()
        if status >= 500 or status in _TRANSIENT:
            raise AssetUnreachableError(reason)
        if status == 206 and offset:
            found = _RANGE.match(response.headers.get("Content-Range", ""))
            if found is None:
                raise AssetUnreachableError(f"{self.address}: a partial answer that does not say which part")
            return Stream(int(found[1]), None if found[2] == "*" else int(found[2]), response.iter_raw())
        if status != 200:
            raise AssetNotFoundError(reason)
        length = response.headers.get("Content-Length", "")
        return Stream(0, int(length) if length.isdigit() else None, response.iter_raw())
