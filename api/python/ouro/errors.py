"""Exceptions of ouro. Each says what happened, who did it, and what to do; `reason` has the word of the library's list.

What strikes a collective stays with its group: `Group.shrink()` and `Group.close()` are what is left. InvalidError and
UnsupportedError do not; the group goes on.
"""


class Error(RuntimeError):
    """A failure of ouro. Attributes that do not apply are None, "", 0 or empty.

    reason:     why, such as "peer-dead", "deadline", "mismatch"
    code:       its class, such as "peer-lost"
    text:       what happened, without who and where
    rank:       the culprit, as a rank of `group`
    ranks:      all ranks that are known to have a part in it: the culprit, and those that are dead
    dead:       ranks of the group that are known dead
    host, pid:  the culprit's
    group, generation, op, seq: the group, how often it has shrunk, the operation and its number
    detector:   what noticed, such as "pidfd" or "deadline"
    elapsed:    seconds from the start of the operation
    """

    reason = ""
    code = ""
    text = ""
    rank = None
    ranks = ()
    dead = ()
    host = ""
    pid = 0
    group = ""
    generation = 0
    op = ""
    seq = 0
    detector = ""
    elapsed = 0.0

    def __reduce__(self):
        return _make, (self.args[0] if self.args else "", dict(self.__dict__))


class InvalidError(Error, ValueError):
    """A wrong argument. Nothing happened; mend the call."""


class UnsupportedError(Error, NotImplementedError):
    """A legal call that this build or version has not."""


class MismatchError(Error):
    """Ranks differ in a call or in a setting; the text has both."""


class DeadlineError(Error, TimeoutError):
    """An operation was not over in time; `ranks` are late."""


class PeerLostError(Error, ConnectionError):
    """A rank died or cannot be reached."""


class JoinError(Error):
    """Ranks did not join in time, or one was turned away."""


class AbortedError(Error):
    """Closed, aborted, or the others went on without this rank."""


class ForkedError(Error):
    """A child of fork() has used what is its parent's: join anew in the child."""


class ResourceError(Error):
    """No memory, thread, descriptor or file: raise the limit that is named."""


class CorruptError(Error):
    """Damaged data."""


class DeviceError(Error):
    """An error of the GPU or its driver."""


_OF_REASON = {
    "invalid": InvalidError, "unsupported": UnsupportedError, "mismatch": MismatchError, "deadline": DeadlineError,
    "peer-dead": PeerLostError, "peer-unresponsive": PeerLostError, "link-lost": PeerLostError,
    "refused": JoinError, "never-joined": JoinError, "fenced": AbortedError, "no-quorum": AbortedError,
    "revoked": AbortedError, "forked": ForkedError, "resource": ResourceError, "data-corrupt": CorruptError,
    "ring-corrupt": CorruptError, "device": DeviceError,
}


def _make(message, known):
    error = _OF_REASON.get(known.get("reason"), Error)(message)
    error.__dict__.update(known)
    return error
