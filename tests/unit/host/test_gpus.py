"""Why torch can use no GPU: each reason with its own remedy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from iobench.host import gpus


@pytest.fixture(autouse=True)
def one_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_DEVICES", ("/dev/null",))
    monkeypatch.delenv(gpus.VISIBLE, raising=False)


def answer(code: int, patch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(cuInit=lambda _: code)
    patch.setattr(gpus.ctypes, "CDLL", lambda _: driver)


def test_a_torch_that_is_built_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(0, monkeypatch)
    assert "built for none: install a CUDA build" in gpus.fault(None)


def test_a_node_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_DEVICES", ("/none/gpu",))
    assert gpus.fault("13.0").startswith("no GPU is here (none of /none/gpu exists): use device")


def test_a_container_without_the_drivers_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DRIVER", "libnone.so.1")
    assert "libnone.so.1 is not found: in a container, the host's" in gpus.fault("13.0")


@pytest.mark.parametrize("code", [0, 100])
def test_an_environment_that_names_another(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(code, monkeypatch)
    monkeypatch.setenv(gpus.VISIBLE, "7")
    assert (
        gpus.fault("13.0") == "CUDA_VISIBLE_DEVICES=7 names none that is here: unset or correct it"
    )


def test_a_driver_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(803, monkeypatch)
    assert "error 803 (cuInit): run `nvidia-smi`" in gpus.fault("13.0")
