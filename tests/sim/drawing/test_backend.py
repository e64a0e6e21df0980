from pathlib import Path

import pytest

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.backend import has_library, list_gpu_uuids, resolve_backend, resolve_egl_device

UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbcc-3"]


@pytest.mark.parametrize(
    ("device", "visible", "index"),
    [
        ("cpu", None, None),
        ("cpu", "1", None),
        ("cuda:0", None, 0),
        ("cuda:2", None, 2),
        ("cuda:0", "2,1", 0),
        ("cuda:1", "2,1", 1),
        ("cuda", "1", 0),
        ("cuda:0", "2,GPU-bbbb-2", 2),
        ("cuda:0", "GPU-bbbb-2", 1),
        ("cuda:1", "0,GPU-bbcc", 2),
        ("cuda:0", "GPU-bb", None),  # two GPUs are called like this
        ("cuda:0", "MIG-aaaa", None),
        ("cuda:3", "0,1", None),
    ],
)
def test_a_rank_draws_on_the_gpu_on_which_it_computes(device: str, visible: str | None, index: int | None) -> None:
    assert resolve_egl_device(device, visible, UUIDS) == index


@pytest.mark.parametrize(("device", "visible", "gpu"), [("cuda:0", "2,1", 2), ("cuda:1", "2,1", 1), ("cuda:0", "2", 2)])
def test_mujoco_chooses_the_gpu_of_the_rank(device: str, visible: str, gpu: int) -> None:
    if not has_library("libEGL.so.1"):
        pytest.skip("needs libEGL, which is not installed")
    from mujoco import egl  # where MuJoCo reads MUJOCO_EGL_DEVICE_ID

    gpus = {index: f"GPU {index}" for index in range(3)}
    visible_ids = egl._parse_cuda_device_ids(visible)
    ordered = egl._ordered_egl_devices(list(gpus.values()), gpus, visible_ids)
    index = resolve_egl_device(device, visible, UUIDS)
    assert egl._select_egl_device(ordered, gpus, visible_ids, index) == f"GPU {gpu}"


def test_uuids_in_the_order_of_the_bus(tmp_path: Path) -> None:
    for bus, uuid in (("0000:41:00.0", "GPU-second"), ("0000:01:00.0", "GPU-first")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t Some GPU\nGPU UUID: \t {uuid}\nDMA Size: 47 bits\n")
    assert list_gpu_uuids(tmp_path) == ["GPU-first", "GPU-second"]
    assert list_gpu_uuids(tmp_path / "nowhere") == []


def test_backends() -> None:
    assert resolve_backend({}, lambda _: True) == "egl"
    assert resolve_backend({}, lambda name: "OSMesa" in name) == "osmesa"
    assert resolve_backend({"MUJOCO_GL": "osmesa"}, lambda _: True) == "osmesa"
    assert resolve_backend({"MUJOCO_GL": "glfw"}, lambda _: False) == "glfw"
    with pytest.raises(
        RequestError, match=r"no libEGL\.so\.1 or libOSMesa\.so\.8: apt-get install libegl1 libegl-mesa0"
    ):
        resolve_backend({}, lambda _: False)
    with pytest.raises(RequestError, match=r"no libOSMesa\.so\.8: .*libosmesa6"):
        resolve_backend({"MUJOCO_GL": "osmesa"}, lambda name: "EGL" in name)
