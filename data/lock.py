"""A folder that one process at a time may write."""
import errno
import fcntl
import os

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)        # what some network disks answer


def lock_folder(folder, doing):
    """Locks a folder until this process ends, however it ends. ValueError if another process holds it, with `doing`, what that
    process is doing there. Returns the open lock file, which the caller must keep. On a disk without locks nothing is locked."""
    file = open(os.path.join(folder, '.lock'), 'a+')
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or '?'
        file.close()
        raise ValueError(f'{folder} is in use: process {holder} is {doing} there; wait for it, or end it') from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    file.truncate(0)
    file.write(f'{os.getpid()} on {os.uname().nodename}')
    file.flush()
    return file


def is_locked(folder):
    """Whether a process holds the lock of lock_folder. False on a disk without locks."""
    path = os.path.join(folder, '.lock')
    if not os.path.exists(path):
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in NO_LOCKS
    return False
