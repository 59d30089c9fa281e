"""Why a task cannot be done. Each class knows the failure code its user sees."""

from schemas.failure import Failure, FailureCode


class PredictorError(Exception):
    """Root of what this package raises. `hint` says what to do, `detail` holds the evidence."""

    code: FailureCode = "predictor_failed"

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def failure(self) -> Failure:
        """Return this error as it travels."""
        return Failure(code=self.code, message=self.message, hint=self.hint, detail=self.detail)


class FrameworkUnavailableError(PredictorError):
    """The framework does not import here."""

    code: FailureCode = "no_predictor"


class DeviceUnavailableError(PredictorError):
    """The device asked for is not here."""

    code: FailureCode = "no_predictor"


class ModelRefusedError(PredictorError):
    """The framework does not accept the model's files."""

    code: FailureCode = "model_refused"


class UntrustedModelError(ModelRefusedError):
    """Loading the file would execute code, and its author is not trusted."""


class UnknownOptionError(PredictorError):
    """The request has an option that the predictor does not know."""

    code: FailureCode = "option_unknown"


class PredictError(PredictorError):
    """The framework failed on a batch."""


class PipelineError(PredictorError):
    """A declared step cannot be executed on what it is given."""

    code: FailureCode = "pipeline_failed"


class DatasetError(PredictorError):
    """The data set's files are not what its manifest says."""

    code: FailureCode = "dataset_invalid"


class ItemUnreadableError(PredictorError):
    """One item cannot be read. It is counted and reported; the evaluation goes on."""

    code: FailureCode = "input_invalid"


class AssetNotFoundError(PredictorError):
    """No address has the asset."""

    code: FailureCode = "asset_not_found"


class AssetUnreachableError(PredictorError):
    """The asset's address did not answer. Transient."""

    code: FailureCode = "asset_unreachable"


class AssetDigestError(PredictorError):
    """The bytes are not those the manifest names; the message has file, expected and found."""

    code: FailureCode = "asset_digest_mismatch"


class AssetRefusedError(PredictorError):
    """The asset is too large, or an archive that would write outside its directory."""

    code: FailureCode = "asset_refused"


class DiskFullError(PredictorError):
    """The cache's disk is full."""

    code: FailureCode = "disk_full"


class CancelledError(PredictorError):
    """The evaluation was cancelled."""

    code: FailureCode = "cancelled"


class WorkerCrashedError(PredictorError):
    """The worker process died."""

    code: FailureCode = "worker_crashed"


class WorkerOutOfMemoryError(PredictorError):
    """The worker process was killed for memory, or an allocation failed."""

    code: FailureCode = "worker_out_of_memory"


class DeadlineExceededError(PredictorError):
    """The task worked for longer than its deadline; its worker was killed."""

    code: FailureCode = "deadline_exceeded"
