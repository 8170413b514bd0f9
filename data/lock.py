"""A folder or a file that one process at a time may write."""
import fcntl
import os


def lock_file(path, subject, doing):
    """Lock the file at `path` until this process ends, however it ends, and return the open file, which the caller must keep.
    Raise ValueError if another process holds the lock; the message says that `subject` is in use, and what that process is
    `doing`. On a disk without locks, lock nothing."""
    file = open(path, 'a+')
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read()
        file.close()
        raise ValueError(f'{subject} is in use: process {holder} is {doing} there; wait for it, or end it') from None
    except OSError:                                     # some network disks have no locks
        pass
    file.truncate(0)
    file.write(f'{os.getpid()} on {os.uname().nodename}')
    file.flush()
    return file


def lock_folder(folder, doing):
    """Lock a folder by the file .lock in it, see lock_file."""
    return lock_file(os.path.join(folder, '.lock'), folder, doing)


def is_locked(folder):
    """Return whether a process holds the lock of lock_folder; False on a disk without locks."""
    try:
        with open(os.path.join(folder, '.lock')) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
