"""A control group's memory: real groups that read a file which fits in it, or does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iobench.core.cases import Case
from iobench.host import limits, page_cache

MIB = 1 << 20
TWICE = """
import sys
for _ in range(2):
    with open(sys.argv[1], "rb") as file:
        while file.read(1 << 20):
            pass
"""


@pytest.mark.parametrize(("size", "fits"), [(16 * MIB, True), (128 * MIB, False)])
def test_what_a_group_reads_again_for_want_of_memory_is_counted(
    tmp_path: Path, size: int, fits: bool
) -> None:
    if reason := limits.refused(Case(memory_bytes=64 * MIB)):
        pytest.skip(reason)
    path = tmp_path / "read"
    path.write_bytes(bytes(size))
    page_cache.evict([path])  # pages count for the group that reads them first
    with limits.group(0, 64 * MIB, f"iobench-test-{size}") as enter:
        subprocess.run([*enter, sys.executable, "-c", TWICE, str(path)], check=True)
        again = limits.read_again(enter)
        assert limits.killed(enter) == 0
    assert again < MIB if fits else size / 2 < again <= size
    assert limits.read_again([]) == 0
