"""What a client of Lustre shows, over a disk of a test's own: its programs, its folder, its mount.

The programs print what liblustreapi prints; a folder's default layout is kept with the folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Dict

from iobench.host import mounts

OUTPUTS = Path(__file__).parents[1] / "unit/backends/filesystem_outputs"
#: Two targets; a folder below one with a layout has that, and says so.
LFS = """#!{python}
import os, sys
from pathlib import Path

KEPT, TARGETS = "user.layout", 2

def layout(path):
    for folder in (path, *path.parents):
        if folder.is_dir() and KEPT in os.listxattr(folder):
            return os.getxattr(folder, KEPT).decode().split(" ")

command, *words = sys.argv[1:]
path = Path(words[-1])
if command == "df":
    print(Path("{outputs}/lustre.df").read_text())
elif command == "setstripe":
    given = dict(zip(words[:-1:2], words[1::2]))
    if given.pop("-p", "flash") != "flash":
        sys.exit("setstripe: cannot access pool")
    os.setxattr(path, KEPT, " ".join((given.pop("-c", "1"), given.pop("-S", "1048576"))).encode())
    assert not given and path.is_dir(), words
elif command == "getstripe" and words[:-1] == ["-y", "-d"] and layout(path):
    count, size = layout(path)
    print(f"stripe_count:  {{count}}\\nstripe_size:   {{size}}\\npattern:       raid0")
    print("stripe_offset: -1")
elif command == "getstripe" and words[:-1] == ["-y"] and layout(path):
    count, size = layout(path)
    count = min(int(count) % 65536, TARGETS)
    print(f"lmm_stripe_count:  {{count}}\\nlmm_stripe_size:   {{size}}\\nlmm_pattern:       raid0")
    print("lmm_layout_gen:    0\\nlmm_stripe_offset: 0\\nlmm_objects:")
    for target in range(count):
        print(f"      - l_ost_idx: {{target}}\\n        l_fid:     0x100000000:0x{{target}}:0x0")
elif command == "getstripe":
    print(Path("{outputs}/lustre.getstripe-plain.yaml").read_text())
else:
    sys.exit(2)
"""
#: The counters of one target; the others were never read.
LCTL = """#!/bin/sh
test "$1 $2 $3" = "get_param -n osc.work-*-osc-ffff8c4d.stats" || exit 2
set -- $(cat /sys/block/{loop}/stat)
echo "snapshot_time 1783960164.279418700 secs.nsecs"
echo "read_bytes $1 samples [bytes] 4096 1048576 $(($3 * 512)) 0"
"""
#: The command, in a process that is shown other tables.
RUN = """
import sys
from pathlib import Path
from iobench.backends.filesystems import lustre
from iobench.host import mounts
mounts.MOUNTINFO, lustre.TREES = Path(sys.argv[1]), (Path(sys.argv[2]),)
from iobench.cli.run import run
sys.exit(run(sys.argv[3:], standalone_mode=False))
"""


def shown(folder: Path, point: Path, loop: str) -> None:
    """Write the mount table, the programs and the client's folder for the disk at ``point``."""
    table = mounts.MOUNTINFO.read_text().splitlines()
    (own,) = (line for line in table if line.split()[4] == str(point))
    as_lustre = own.split(" - ")[0] + " - lustre 10.0.0.1@tcp:/work rw,flock,lazystatfs"
    as_lustre = as_lustre.replace(f" {own.split()[2]} ", " 0:99 ", 1)
    table[table.index(own)] = as_lustre
    (folder / "mountinfo").write_text("\n".join(table) + "\n")
    parameter = folder / "proc/llite/work-ffff8c4d/max_read_ahead_mb"
    parameter.parent.mkdir(parents=True)
    parameter.write_text("64\n")
    programs(folder / "bin", loop)


def programs(folder: Path, loop: str = "/dev/none") -> None:
    """Write `lfs` and `lctl` into a folder."""
    folder.mkdir()
    lfs = LFS.format(python=sys.executable, outputs=OUTPUTS)
    for name, text in (("lfs", lfs), ("lctl", LCTL.replace("{loop}", loop[5:]))):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def environment(folder: Path) -> Dict[str, str]:
    """Return this process's, in which the programs of :func:`shown` are found first."""
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
