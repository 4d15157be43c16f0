"""What can go wrong in the keeper. Each error carries its data; the server turns it into a reply that says what to do."""


class KeeperError(Exception):
    """Base of the keeper's errors."""


class BadHistory(KeeperError):
    """A message cannot be read; `param` names it as OpenAI does, such as messages[3].content."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class MessageTooLarge(KeeperError):
    """The newest message (or call with its results) does not fit the window beside what must stay, so no view can be made.

    `index` is the largest message of it, `tokens` what the whole would take.
    """

    def __init__(self, index: int, tokens: int, limit: int) -> None:
        super().__init__(
            f"messages[{index}] does not fit the window: with what must stay beside it the view would take {tokens} tokens, and "
            f"{limit} are free; send it in smaller pieces, have the tool return less, or start with a larger --window"
        )
        self.param = f"messages[{index}]"
        self.index = index
        self.tokens = tokens
        self.limit = limit


class WindowTooSmall(KeeperError):
    """What must always stay (system, tools, NOTES) leaves no room. Sizes are tokens."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"system, tools and notes take {tokens} tokens and the window leaves {limit}; "
            "start with a larger --window or send fewer tools"
        )
        self.param = "messages"
        self.tokens = tokens
        self.limit = limit


class UnknownStrategy(KeeperError):
    """A name that is not in the registry."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no strategy is called {name!r}; there are {', '.join(known)}")
        self.name = name
        self.known = known


class UnknownConversation(KeeperError):
    """An id that the archive does not hold."""

    def __init__(self, conversation: str) -> None:
        super().__init__(f"the archive holds no conversation {conversation!r}; `kvalet keeper ls` lists them")
        self.conversation = conversation


class ArchiveFailed(KeeperError):
    """The archive cannot be opened, read or written (damaged, disk full, wrong format); the request is not answered then."""


class UpstreamFailed(KeeperError):
    """A model call did not come back; `status` is its HTTP status where it had one, `body` what it said."""

    def __init__(self, message: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class NotThere(KeeperError):
    """A mark belongs at `place`, behind a message that is only awaited: `length` messages are there."""

    def __init__(self, place: int, length: int) -> None:
        super().__init__(f"a mark at {place} of {length} messages")
        self.place = place
        self.length = length
