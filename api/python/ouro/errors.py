"""Exceptions of ouro. Each says what happened, which rank caused it, and what to do; `reason` is one of the library's reasons.

The failure of a collective is sticky in its group: only `Group.shrink()` and `Group.close()` remain usable. InvalidError and
UnsupportedError are not sticky; the group stays usable.
"""


class Error(RuntimeError):
    """A failure of ouro. Attributes that do not apply are None, "", 0 or empty.

    reason:     the cause, such as "peer-dead", "deadline", "mismatch"
    code:       its class, such as "peer-lost"
    text:       what happened, without rank and place
    rank:       the culprit, as a rank of `group`
    ranks:      all ranks known to be involved: the culprit and the dead ones
    dead:       ranks of the group that are known to be dead
    host, pid:  those of the culprit
    group, generation, op, seq: the group, how often it has been shrunk, the operation and its sequence number
    detector:   the mechanism that detected it, such as "pidfd" or "deadline"
    elapsed:    seconds since the start of the operation
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
    """A wrong argument. Nothing happened; correct the call."""


class UnsupportedError(Error, NotImplementedError):
    """A legal call that this build or version does not support."""


class MismatchError(Error):
    """The ranks differ in a call or in a setting; the text has both values."""


class DeadlineError(Error, TimeoutError):
    """An operation did not end in time; `ranks` lists the late ranks."""


class PeerLostError(Error, ConnectionError):
    """A rank died or cannot be reached."""


class JoinError(Error):
    """Some ranks did not join in time, or a rank was refused."""


class AbortedError(Error):
    """The group or context was closed or aborted, or the other ranks continued without this one."""


class ForkedError(Error):
    """A child of fork() has used an object of its parent; the child must join on its own."""


class ResourceError(Error):
    """No memory, thread, descriptor or file is available; raise the limit named in the text."""


class CorruptError(Error):
    """Data from the network, or memory that ranks share, is damaged."""


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
