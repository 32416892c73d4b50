"""The worker side under Caffe's own Python 3.9: a real process, and the figures of the driver's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import IobenchError
from iobench.core.members import Installed
from iobench.core.records import VALID
from iobench.data import convert, make
from iobench.host import tools
from iobench.run.trial import run_trial
from iobench.run.trial_settings import TrialSettings
from tests.build.rows import rows
from tests.capabilities import PYTEST_FOLDER, need
from tests.meta.test_layering import side39

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[3]
#: Members whose libraries are not for this Python; and one of two formats whose readers feed DALI.
NOT_THERE = " and ".join(
    f"not {name}"
    for name in (
        "torch", "spdl", "grain", "webdataset", "parquet", "tfrecord", "arrayrecord", "dali-hdf5",
    )
)  # fmt: skip
#: Beside whole rooms: what runs inside an image without being imported there.
INSIDE = ["iobench", "iobench.images.tree"]


@pytest.fixture(scope="module")
def caffe() -> Installed:
    need("caffe")
    return registry.installed("caffe")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = make.make("smoke", tmp_path_factory.mktemp("data") / "set", samples=16)
    for form in ("lmdb", "hdf5", "tar"):
        convert.convert(made, form)
    convert.convert(made, "lmdb", content="raw")
    return made


def modules() -> List[str]:
    return [*(f"iobench.{name}" for name in side39()), *INSIDE]


def facts(
    python: str, env: Dict[str, str], tree: Path, dataset: Dataset
) -> subprocess.CompletedProcess[str]:
    """Have an interpreter import the worker side of the tree and say what it makes of a dataset."""
    return subprocess.run(
        [python, "-m", "tests.system.caffe.python39_facts", dataset.root, *modules()],
        cwd=tree,
        env={**os.environ, **env, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_formats_codec_and_timing_give_the_same_under_both_pythons(
    caffe: Installed, dataset: Dataset
) -> None:
    found: List[Dict[str, Any]] = []
    for python, env in ((caffe.python, dict(caffe.env)), (sys.executable, {})):
        done = facts(python, env, ROOT, dataset)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    theirs, ours = found
    assert caffe.own or theirs["python"].startswith("3.9.")
    assert theirs["exact"] == ours["exact"]
    assert set(ours["exact"]["stored"]) == {"jpeg", "lmdb", "lmdb-raw", "hdf5", "tar"}
    assert theirs["near"].keys() == ours["near"].keys()
    for name, values in ours["near"].items():  # resizing: two versions of OpenCV
        apart = 0.05 if name == "rrc224" else 0.0
        np.testing.assert_allclose(theirs["near"][name], values, atol=apart, err_msg=name)


@pytest.mark.parametrize(
    "newer",
    [
        "def newer(x):\n    match x:\n        case 1:\n            return 2\n",
        "Newer = int | str\n",
        "import dataclasses\n\n\n@dataclasses.dataclass(slots=True)\nclass Newer:\n    x: int\n",
        "import tomllib\n",
    ],
    ids=["match", "union", "slots", "tomllib"],
)
def test_what_only_a_newer_python_has_is_found(
    caffe: Installed, dataset: Dataset, newer: str, tmp_path: Path
) -> None:
    for name in ("iobench", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    with open(tmp_path / "iobench/worker/loop.py", "a") as file:
        file.write(f"\n\n{newer}")
    assert facts(sys.executable, {}, tmp_path, dataset).returncode == 0
    if caffe.own:
        pytest.skip("a Python of the user's own")
    done = facts(caffe.python, dict(caffe.env), tmp_path, dataset)
    assert done.returncode == 1
    assert "loop.py" in done.stderr


@pytest.mark.parametrize("contract", rows(["trainers"], ["loaders"]))
def test_members_keep_their_contract_there(caffe: Installed, contract: str) -> None:
    """The members that only this Python has, and DALI's older version, by the very same tests."""
    need("caffe-pytest")
    if caffe.own:
        pytest.skip("a Python of the user's own")
    env = {
        **os.environ,
        **caffe.env,
        "PYTHONPATH": os.pathsep.join([str(tools.FOLDER / PYTEST_FOLDER), *caffe.python_path]),
        "IOBENCH_REQUIRE": "pycaffe,dali,lmdb,hdf5,leveldb",
    }
    argv = [caffe.python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", NOT_THERE]
    done = subprocess.run(
        [*argv, f"tests/contract/test_{contract}.py"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    closing = done.stdout.strip().splitlines()[-1]
    assert "passed" in closing
    assert "skipped" not in closing, done.stdout[-3000:]


def test_the_doctor_inside_an_image_runs_there(caffe: Installed) -> None:
    env = {
        **os.environ,
        **caffe.env,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *caffe.python_path]),
    }
    argv = [
        caffe.python,
        "-B",
        "-m",
        "iobench.worker.self_check",
        "caffe",
        *caffe.modules,
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ok  caffe " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ok  imported: ")


def test_a_trial_runs_in_the_stack(caffe: Installed, dataset: Dataset) -> None:
    case = Case(
        label="null", format="null", loader="null", trainer="null", image="caffe", batch=4,
        location=dataset.root,
    )  # fmt: skip
    trial = Trial(id="1", case=case, stage="load", cache="-")
    record = run_trial(trial, datasets.locate(Path(dataset.root)), 1, TrialSettings())
    assert (record.status, record.reasons) == (VALID, ())
    assert caffe.own or record.ranks[0].fingerprint["python"].startswith("3.9.")
    path = record.ranks[0].fingerprint["python_path"]
    assert path == [] or caffe.own


def test_a_stack_that_is_gone_fails_the_trial_with_the_remedy(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAFFE_ROOT", str(tmp_path))
    case = Case(format="null", loader="null", trainer="null", image="caffe", batch=4)
    record = run_trial(
        Trial(id="1", case=case, stage="load", cache="-"), dataset, 1, TrialSettings()
    )
    assert record.status == "FAILED"
    assert "make caffe" in record.reasons[0]
    with pytest.raises(IobenchError):
        registry.installed("caffe")
