"""What the services raise. Transient, poison and permanent are different types and are treated differently."""


class ServiceError(Exception):
    """Root of everything this package raises. The message says what happened and what to do."""


class StoreError(ServiceError):
    """The store refused: a wrong query, a missing table, a data directory in use. The same call fails again."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached, or has no room at the moment. Transient: the same call may succeed later."""


class StoreDataError(StoreError):
    """The store does not take these rows: a value does not fit its column. Poison: they never fit."""


class InvalidCursorError(ServiceError):
    """A cursor that no page of this listing gave."""
