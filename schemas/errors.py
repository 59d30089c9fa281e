"""The errors of the schemas: text or bytes that do not say what a schema asks for."""


class SchemaError(Exception):
    """Root of everything this package raises."""


class UndecodableError(SchemaError):
    """Bytes that are no envelope, or an envelope whose type, version or data is unknown or wrong.

    It is poison: the same bytes fail the same way for ever, so a consumer dead-letters them.
    """


class ManifestError(SchemaError):
    """A manifest that cannot be used; the message names the file, the line and the field."""


class VersionError(SchemaError, ValueError):
    """A version or a version range that does not parse. A ValueError, so that pydantic says where it stood."""


class SettingsError(SchemaError):
    """A setting that is unknown or wrong; the message names the variable or the key."""
