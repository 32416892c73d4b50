"""Caffe's log: the steps of a real run, and one clear line for each of its real ends."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest

from iobench.backends.caffe import log
from iobench.run.ended import why

LOGS = Path(__file__).parent / "caffe_logs"


def text_of(name: str) -> str:
    return (LOGS / f"{name}.txt").read_text()


# -- steps -----------------------------------------------------------------------------------


def test_the_steps_of_a_real_run() -> None:
    """Six steps; the seventh line is the extra pass after the last step, and is none."""
    found = log.training(text_of("train"))
    begun = 57.158196
    stamps = [57.186786, 57.195885, 57.205155, 57.214691, 57.223656, 57.233062]
    assert found.done_s == pytest.approx([s - begun for s in stamps], abs=1e-7)
    assert found.losses == [0.771365, 7.62939e-05, 26.7092, 1.194, 27.8981, 28.2639]
    assert found.starved == 1


def test_a_run_over_midnight_goes_on() -> None:
    text = text_of("train").replace("18:57:57.2", "00:00:00.2").replace("18:57:57.1", "23:59:59.9")
    done = log.training(text).done_s
    assert list(done) == sorted(done)
    assert done[-1] == pytest.approx(60.233062 - 59.958196, abs=1e-6)


def test_a_log_that_leaves_steps_out_is_refused() -> None:
    lines = [line for line in text_of("train").splitlines() if "Iteration 2 (" not in line]
    with pytest.raises(ValueError, match="step 2 is not in the log"):
        log.training("\n".join(lines))
    with pytest.raises(ValueError, match="no line about the begin"):
        log.training("caffe: command not found\n")


def test_a_loss_that_is_no_number_is_kept() -> None:
    found = log.training(text_of("train").replace("loss = 28.2639\n", "loss = nan\n", 1))
    assert found.losses[-1] != found.losses[-1]


# -- ends ------------------------------------------------------------------------------------

#: What was done -> the place in Caffe, and what its user is told.
ENDS = {
    "missing-image": ("image_data_layer.cpp:148", "/data/jpeg/c1/000010.jpg", "data verify"),
    "damaged-image": ("image_data_layer.cpp:148", "/data/jpeg/c1/000010.jpg", "no image"),
    "small-image": ("data_transformer.cpp:498", "(100 vs. 224)", "smaller than the crop"),
    "small-listed": ("data_transformer.cpp:240", "(224 vs. 100)", "smaller than the crop"),
    "broken-lmdb": ("db_lmdb.hpp:15", "MDB_INVALID", "LMDB is missing or damaged"),
    "missing-lmdb": ("db_lmdb.hpp:15", "No such file", "LMDB is missing or damaged"),
    "no-image-lmdb": ("data_transformer.cpp:498", "Could not decode datum", "record is no image"),
    "broken-leveldb": ("db_leveldb.cpp:16", "Corruption", "LevelDB is missing, damaged"),
    "short-leveldb": ("db_leveldb.hpp:19", "000005.ldb", "LevelDB is missing, damaged"),
    "hdf5-names": ("hdf5.cpp:15", "HDF5 dataset data", "hdf5-float"),
    "hdf5-rows": ("hdf5_data_layer.cpp:55", "(20 vs. 24)", "hdf5-float"),
    "hdf5-not": ("hdf5_data_layer.cpp:32", "data-00000.h5", "hdf5-float"),
    "prototxt-field": ("upgrade_proto.cpp:90", 'no field named "ratio"', "mend the solver or net"),
    "prototxt-text": ("upgrade_proto.cpp:90", "3:1: Expected identifier", "mend the solver or net"),
    "prototxt-layer": ("layer_factory.hpp:81", "Convoluted", "mend the solver or net"),
    "prototxt-bottom": ("insert_splits.cpp:29", "'b'", "mend the solver or net"),
}


def test_every_captured_end_is_tested() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == {*ENDS, "train"}


@pytest.mark.parametrize("name", sorted(ENDS))
def test_one_clear_line_for_each_end(name: str) -> None:
    said = log.fatal(text_of(name))
    assert "\n" not in said
    assert len(said) < 700
    assert said.startswith(f"Caffe stopped at {ENDS[name][0]}: ")
    assert all(words in said for words in ENDS[name]), said


def test_a_log_without_a_fatal_line_says_nothing() -> None:
    assert log.fatal(text_of("train")) == ""
    assert log.fatal("Traceback\nF: not a line of glog\n") == ""


def test_a_check_without_advice_is_told_as_it_is() -> None:
    said = log.fatal(
        "F1121 18:57:57.000001 7 blob.cpp:33] Check failed: shape[i] >= 0 (-1 vs. 0)\n"
    )
    assert said.startswith("Caffe stopped at blob.cpp:33: Check failed: shape[i] >= 0 (-1 vs. 0)")


@pytest.mark.parametrize("code", [-6, 134, 6])
def test_the_driver_tells_the_check_whatever_ended_the_worker(code: int) -> None:
    text = text_of("small-image")
    assert why(code, text, "local", 1) == log.fatal(text)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-7, ["SIGBUS", "cut short"]),
        (135, ["SIGBUS", "cut short"]),
        (-9, ["SIGKILL", "out of memory?"]),
        (-6, ["SIGABRT", "own check failed"]),
        (-11, ["killed by SIGSEGV: last words"]),
        (3, ["status 3"]),
    ],
)
def test_other_ends_are_told_by_their_signal(code: int, words: List[str]) -> None:
    said = why(code, "last words\n", "local", 1)
    assert all(word in said for word in [*words, "last words"])


@pytest.mark.parametrize(
    ("code", "starved", "words"),
    [
        (-9, 0, "worker killed by SIGKILL (by another program: the kernel ended none"),
        (137, 2, "(out of memory? the kernel ended 2 of this machine's processes meanwhile)"),
        (-15, 2, "worker killed by SIGTERM"),
    ],
)
def test_a_kill_is_put_down_to_memory_only_where_the_kernel_ended_a_process(
    code: int, starved: int, words: str
) -> None:
    said = why(code, "", "local", 1, starved=starved)
    assert words in said
    assert ("memory" in said) == (code != -15)
