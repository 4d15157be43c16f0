"""What can go wrong in the engine. Each error carries its data and reaches the client as a Failed event or a raise."""


class EngineError(Exception):
    """Base of the engine's errors."""


class BadRequest(EngineError):
    """The caller asked for something that cannot be done; `param` names the field, in OpenAI's words where it has one."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextTooLong(BadRequest):
    """The prompt (with what it wants to generate) does not fit the context window."""

    def __init__(self, prompt: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {prompt} tokens and this server's context holds {limit}; shorten it or restart with --ctx",
            "messages",
            "context_length_exceeded",
        )
        self.prompt = prompt
        self.limit = limit


class ModelError(EngineError):
    """A model file cannot be found, read or used."""


class DecodeFailed(EngineError):
    """llama_decode refused a batch; the slots it touched are cleared."""


class StateRefused(EngineError):
    """llama.cpp refused to load state or to cut a sequence; the slot is cleared and the prompt is read again."""


class ContextMisuse(EngineError):
    """A caller broke the contract of engine.context (a bug of ours, never of a user); nothing was changed."""


class Cancelled(EngineError):
    """The client went away or the server is closing."""


class QueueFull(EngineError):
    """As many requests wait as the server lets wait; try again later."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests are waiting already; try again later")
        self.limit = limit


class EngineStopped(EngineError):
    """The engine is closing or has stopped; nothing more is taken."""
