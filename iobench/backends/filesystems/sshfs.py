"""sshfs: a folder of another host, by SFTP."""

from __future__ import annotations

from iobench.backends.filesystems._fuse import FuseFilesystem
from iobench.core.members import FilesystemBackend


class Sshfs(FuseFilesystem):
    """Its daemon keeps names and attributes (``dcache_*``), no data beyond an open file's
    read-ahead."""

    locks = "of this host alone: other hosts do not see them"


BACKEND = FilesystemBackend(
    Sshfs, "a folder of another host, by SFTP", fstypes=frozenset({"fuse.sshfs"}),
    magic=frozenset({0x65735546}),
)  # fmt: skip
