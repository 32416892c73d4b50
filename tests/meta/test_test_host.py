"""`make test-host`: says each change of the machine before it makes it, and makes it once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.capabilities import need

ROOT = Path(__file__).parents[2]
#: A /dev/fuse of the test's own; it is seen by its processes alone.
CLOSED = (
    "mount -t tmpfs none /mnt && mknod -m 600 /mnt/fuse c 10 229 && "
    "mount --bind /mnt/fuse /dev/fuse && exec sh -c '{}'"
)


def in_namespace(script: str) -> str:
    need("root")
    argv = ["unshare", "--mount", "sh", "-c", CLOSED.format(script)]
    done = subprocess.run(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no mount namespace here: {done.stdout.strip()}")
    return done.stdout


@pytest.mark.slow
def test_a_closed_fuse_is_opened_once_and_said_first() -> None:
    step = "requirements/install.sh test-host"
    out = in_namespace(f"{step}; stat -c %a /dev/fuse; echo again; {step}")
    said, again = out.split("again\n")
    assert "`chmod 666 /dev/fuse`" in said.splitlines()[0]
    assert said.splitlines()[-1] == "666"
    assert "fuse" not in again


@pytest.mark.slow
def test_the_skip_names_the_step() -> None:
    code = "from tests import capabilities as c; print(c._open_fuse())"
    assert "`make test-host`" in in_namespace(f'{sys.executable} -c "{code}"')
