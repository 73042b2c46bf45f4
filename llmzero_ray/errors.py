"""All errors that this project raises on purpose, as one class hierarchy.

A message says what failed, what was given, what is allowed and what to do. Each class takes exactly one
message, so that it survives pickling between Ray processes. The command line prints that message and exits
with the class's exit code, without a traceback.

To add an error, subclass the closest one (and the standard exception that a caller would expect) and keep the
one-argument constructor. Give it an `exit_code` only if scripts must tell it apart.
"""


class LlmzeroError(Exception):
    """Base class of all errors. `exit_code` is the exit code of a command that ends with the error."""

    exit_code = 1


class ConfigError(LlmzeroError, ValueError):
    """A configuration file, override or argument is wrong."""

    exit_code = 2


class HistoryError(LlmzeroError, ValueError):
    """A history file given to `explain` contradicts itself or the rules."""

    exit_code = 2


class TaskError(LlmzeroError, ValueError):
    """Task data, reward or model directory is missing or malformed."""

    exit_code = 2


class HyperparameterError(LlmzeroError, ValueError):
    """A hyper-parameter is unknown, out of bounds, forbidden or breaks a coupling."""

    exit_code = 2


class ProposalError(LlmzeroError, ValueError):
    """A proposal cannot become a phase. The proposer gets the message."""


class AgentError(LlmzeroError, RuntimeError):
    """An agent's model gave no usable answer. The search continues with the expert or with CONTINUE."""


class OutageError(LlmzeroError, RuntimeError):
    """The language model cannot be reached, and `agents.on_outage` is `wait`, so the call is made later."""


class CapReachedError(LlmzeroError, RuntimeError):
    """The next agent call could cost more than what is left of `budget.dollars`, so it was not made."""

    affordable_output: int = 0
    """Maximum output tokens that the same call could still afford. 0 or less if its prompt alone is too
    expensive."""


class SearchError(LlmzeroError, RuntimeError):
    """A call broke the rules of the search, such as finishing an unknown node. This is a bug of the
    caller."""


class JournalError(LlmzeroError, RuntimeError):
    """The journal cannot be read or written, so the search must not continue."""

    exit_code = 3


class StorageError(LlmzeroError, OSError):
    """The storage of a search is not writable, full or contains something else."""

    exit_code = 3


class SearchBusyError(StorageError):
    """Another process is running the search. It can be followed."""


class HubError(LlmzeroError, RuntimeError):
    """The Hugging Face Hub cannot be reached, or refuses a request."""


class CapacityError(LlmzeroError, RuntimeError):
    """The cluster cannot provide a slot's resources."""

    exit_code = 4


class CoordinatorGoneError(LlmzeroError, RuntimeError):
    """The coordinator of a search has ended without a reason in its journal. The search can be resumed."""


class EngineError(LlmzeroError, RuntimeError):
    """The engine cannot start or continue. This is not a failed phase."""

    exit_code = 5


class EngineVersionError(EngineError):
    """The installed VeRL (or vLLM) is not the one this engine was written against."""


class EngineLostError(EngineError):
    """A process or machine of the engine was lost. The engine starts cold when it is used again."""


class PhaseError(LlmzeroError, RuntimeError):
    """A phase failed. The runner turns the error into a `PhaseFailure`."""


class NonFiniteError(PhaseError):
    """A loss, gradient or reward was NaN or infinite. VeRL skips such updates silently; here the phase
    ends."""


class EffectiveConfigError(PhaseError):
    """The effective configuration of a phase differs from the requested one."""


class RewardError(PhaseError):
    """A reward cannot be started, crashes its process repeatedly, or scores hardly any answer."""
