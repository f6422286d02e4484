"""The errors a user can meet. Each message names the thing and the mend."""


class OLMESError(Exception):
    """Base of every error this package raises on purpose."""


class SetupError(OLMESError, ValueError):
    """A wrong argument or an unusable model, tokenizer or suite, found before training starts."""


class DataError(OLMESError):
    """The questions cannot be fetched, verified or cached."""


class RecordError(OLMESError):
    """A run's record cannot be read, written or mixed with another."""


class EvaluationError(OLMESError, RuntimeError):
    """An evaluation could not be finished; the message names the rank, the task and the first cause."""

    out_of_memory = False
    """Whether a rank ran out of device memory, so that smaller forward calls may help."""
