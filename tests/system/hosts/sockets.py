# Cuts TCP connections of another process as a firewall or a failing switch would: by an RST to each end. Used by the
# tests of this folder. Needs root and pidfd_getfd (Linux 5.6); no debugger is attached to the process.
import ctypes
import errno
import os
import pathlib
import socket
import struct

PIDFD_GETFD = 438  # the same on all architectures
TCP_USER_TIMEOUT = 18
LIBC = ctypes.CDLL(None, use_errno=True)


def connections(pid):
    """Returns (socket, whether it is a control line, ports) for each established connection to another host. The sockets are
    duplicates, and close with their last reference. A control line has a user timeout and a keepalive idle time of 1 s."""
    all_found = []
    process = os.pidfd_open(pid)
    try:
        for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not os.readlink(path).startswith("socket:"):
                    continue
            except OSError:
                continue
            fd = LIBC.syscall(PIDFD_GETFD, process, int(path.name), 0)
            if fd < 0:
                if ctypes.get_errno() == errno.EBADF:
                    continue
                raise OSError(ctypes.get_errno(), "pidfd_getfd: " + os.strerror(ctypes.get_errno()))
            found = socket.socket(fileno=fd)
            try:
                if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                    raise OSError
                ports = found.getsockname()[1], found.getpeername()[1]
            except OSError:
                found.close()
                continue
            watched = found.getsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT) > 0
            is_control = watched and found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
            all_found.append((found, is_control, ports))
    finally:
        os.close(process)
    return all_found


def reset(pid, control, many=1):
    """Resets up to `many` control lines, or data connections, of a process. Returns their ports."""
    done = []
    for found, is_control, ports in connections(pid):
        with found:
            if is_control == control and len(done) < many:
                done.append(ports)
                # Connecting to AF_UNSPEC disconnects: the kernel sends an RST, and both ends get ECONNRESET.
                name = struct.pack("=H14x", socket.AF_UNSPEC)
                if LIBC.connect(found.fileno(), name, len(name)) != 0:
                    raise OSError(ctypes.get_errno(), "connect: " + os.strerror(ctypes.get_errno()))
    return done
