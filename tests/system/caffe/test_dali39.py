"""DALI 1.53 under Caffe's Python 3.9, asked for the same pipelines as 2.4 under the driver's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.members import Installed
from iobench.core.records import VALID
from iobench.data import convert, make
from iobench.run.trial import TrialSettings
from tests.build.attempts import attempted
from tests.capabilities import need

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests/system/caffe/dali_facts.py"

pytestmark = [pytest.mark.system, pytest.mark.breadth]


@pytest.fixture(scope="module")
def caffe() -> Installed:
    need("caffe")
    need("dali")
    stack = registry.installed("caffe")
    look = "import importlib.util as u; raise SystemExit(u.find_spec('nvidia.dali') is None)"
    if stack.own and subprocess.run([stack.python, "-c", look], check=False).returncode:
        pytest.skip("the user's own Caffe has no DALI")
    return stack


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = make.make("smoke", tmp_path_factory.mktemp("set") / "d", samples=16, seed=1)
    for form in ("lmdb", "tar", "hdf5"):
        convert.convert(made, form)
    return made


def test_both_versions_read_the_same_and_cut_windows_of_the_same_images(
    caffe: Installed, smoke: Dataset
) -> None:
    said = []
    for python, env, path in (
        (caffe.python, dict(caffe.env), caffe.python_path),
        (sys.executable, {}, ()),
    ):
        variables = {"PATH": "/usr/bin:/bin", **env, "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            [python, str(SCRIPT), smoke.root],
            env={**variables, "PYTHONPATH": ":".join([str(ROOT), *path])},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    (theirs, *rows), (ours, *others) = said
    assert theirs.startswith("1.") or caffe.own
    assert ours.startswith("2.")
    assert rows == others
    assert len(rows) == 5


@pytest.mark.parametrize("form", ["jpeg", "lmdb"])
def test_a_trial_of_it_is_valid(caffe: Installed, smoke: Dataset, form: str) -> None:
    case = Case(
        format=form, loader="dali", trainer="null", image="caffe", location=smoke.root,
        order="stored", transform="crop224", batch=4,
    )  # fmt: skip
    record = attempted(Trial("t", case, "load", "warm"), smoke, TrialSettings())
    assert (record.status, record.reasons) == (VALID, ())
    assert record.ranks[0].fingerprint["python"].startswith("3.9.") or caffe.own
