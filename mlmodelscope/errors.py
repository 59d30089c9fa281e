"""What goes wrong for a user of the Python API or the command line."""


class ScopeError(Exception):
    """Root of what this package raises. `hint` says what to do."""

    def __init__(self, message: str, *, hint: str = "", code: str = "", status: int | None = None) -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.code = code
        """The failure code of the platform, where there is one: `unknown_model`."""
        self.status = status
        """The HTTP status, where the API answered with one."""


class ServerUnreachableError(ScopeError):
    """No API answers at the address, or it says that its store or its bus is away."""


class RequestRefusedError(ScopeError):
    """The API refused what was asked."""


class StackError(ScopeError):
    """A stack could not be started, or one of its processes keeps dying."""


class DirectoryInUseError(StackError):
    """Another stack uses the data directory."""
