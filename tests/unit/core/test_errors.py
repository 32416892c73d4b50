"""What an error of the system means for the user."""

from __future__ import annotations

import errno
import re

import pytest

from iobench.core.errors import environment, plain


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "/x/y: No space .*free some"),
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), "/x/y: Perm.*--out"),
        (FileNotFoundError(errno.ENOENT, "No such file", "env"), "no program env is on PATH"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/x/y"), "/x/y: No such file; choose"),
        (OSError(errno.ENOTCONN, "not connected", "/x/y"), "/x/y: not connected; .*mounted again"),
        (OSError(errno.ECONNABORTED, "abort"), "a filesystem: abort; .*mounted again"),
    ],
)
def test_the_remedy_is_for_what_is_missing(error: OSError, words: str) -> None:
    assert re.search(words, environment(error))


def test_what_is_none_of_these_is_a_bug() -> None:
    with pytest.raises(OSError, match="Bad file"):
        environment(OSError(errno.EBADF, "Bad file descriptor"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/data/a.jpg"), "/data/a.jpg: No such file"),  # noqa: E501
        (OSError("neither number nor file"), "neither number nor file"),
        (ValueError("a damaged file"), "a damaged file"),
    ],
)  # fmt: skip
def test_plain_words_have_no_number_of_an_error(error: Exception, words: str) -> None:
    assert plain(error) == words
