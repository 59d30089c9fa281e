"""The errors of the bus: what was wrong with the connection, the server or the message."""


class BusError(Exception):
    """Root of everything this package raises."""


class BusUnavailableError(BusError):
    """The server did not answer in time. Transient: the same call may succeed later."""


class BusNotReadyError(BusError):
    """The server is there, and a stream or a bucket that is needed is not: `Bus.prepare` makes them."""


class PayloadTooLargeError(BusError):
    """The message is larger than the server takes. The text says its size, the limit and what to do."""

    def __init__(self, subject: str, size: int, limit: int) -> None:
        super().__init__(
            f"a message of {size} bytes for {subject} is above the server's limit of {limit} bytes: send fewer rows "
            "in a message, pass large content by reference (an asset's URL), or raise the server's max_payload"
        )
        self.size = size
        self.limit = limit


class RefusedError(BusError):
    """The server refuses a message, with its error code and reason. The same message is refused again."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class RevisionConflictError(BusError):
    """The entry was changed since it was read. Read it again, then decide again."""


class ServerStartError(BusError):
    """The embedded server did not come up; the text has its own last words."""


class PortTakenError(ServerStartError):
    """Another process listens on the port."""


class DataDirInUseError(ServerStartError):
    """Another server runs on the same data directory."""
