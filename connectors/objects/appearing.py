"""Files that appear under a name whole and at once, and never replace what is there."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_NO_HARD_LINKS: Final = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)
"""How file systems without hard links say so."""


def appear(source: Path, target: Path) -> bool:
    """Let a file appear under a second name of the same file system; it keeps the first where there are hard links.

    Returns:
        False when something is there already.
    """
    try:
        os.link(source, target)  # unlike a rename, fails when the target exists
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if target.exists():
            return False
        source.rename(target)
    _sync_folder(target.parent)
    return True


def _sync_folder(folder: Path) -> None:
    """Make a new name durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)
