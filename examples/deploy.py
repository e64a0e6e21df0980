"""Run an exported policy in plain MuJoCo in one process, step by step: what a robot's own software does, without torch.

    python examples/deploy.py logs/cartpole_balance/2026-11-21_09-07-06/export
    python examples/deploy.py logs/quadruped_velocity_flat/2026-11-21_10-00-00/export --command 0.8 0 0 --seconds 20
    python examples/deploy.py logs/arm_lift_cube/2026-11-22_09-00-00/export --command 0.45 0.1 0.25 --seconds 4
    python examples/deploy.py logs/hand_reorient_cube/2026-11-24_20-47-24/export --command 1 0 0 0 --tolerance 0.4
    MUJOCO_GL=egl python examples/deploy.py logs/cartpole_balance_vision/2026-11-22_05-12-44/export

Needs mujoco, onnxruntime and mjtrain.deployment, which builds the observations from readings by the metadata alone.
`mjtrain deploy` does the same in real time, with a robot in another process. This example also supports policies that
see: MuJoCo renders what a camera sees; without a display it needs MUJOCO_GL=egl.
"""

import argparse
import copy
import json
import re
from pathlib import Path

import mujoco
import numpy as np
import onnxruntime

from mjtrain.deployment.actuation import Actuation
from mjtrain.deployment.observation import Observer
from mjtrain.deployment.robot import Readings
from mjtrain.deployment.rotations import rotation_vector, turn
from mjtrain.deployment.simulated_readings import SimulatedReadings, take_default_pose
from mjtrain.deployment.terms import TERMS, Scene
from mjtrain.runtime.errors import RequestError


class Camera:
    """An image of a simulated camera with its history; on a real robot, the camera's driver would deliver it."""

    def __init__(self, model: mujoco.MjModel, term: dict) -> None:
        if "frame" not in term:
            raise SystemExit(f"this example does not know {term['func']}")
        self.term, self.frame = term, term["frame"]
        model = copy.copy(model)  # what follows is for this camera only
        model.vis.quality.offsamples = 0  # no antialiasing: each pixel is one ray
        model.vis.global_.offwidth = max(self.frame["width"], model.vis.global_.offwidth)
        model.vis.global_.offheight = max(self.frame["height"], model.vis.global_.offheight)
        model.vis.map.zfar = max(model.vis.map.zfar, 2 * self.frame["far_m"] / model.stat.extent)
        self.renderer = mujoco.Renderer(model, self.frame["height"], self.frame["width"])
        self.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = self.frame["shadows"]
        self.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self.option = mujoco.MjvOption()
        self.option.geomgroup[:] = [group in self.frame["geom_groups"] for group in range(mujoco.mjNGROUP)]
        self.option.sitegroup[:] = self.option.tendongroup[:] = self.option.skingroup[:] = 0  # not seen in training
        self.class_of_geom = self.find_classes(model)
        self.history: list[np.ndarray] = []

    def find_classes(self, model: mujoco.MjModel) -> np.ndarray:
        """Index of the class of each geom, and 0 for what is none: the first whose patterns match it or its body."""
        found = np.zeros(model.ngeom + 1, dtype=np.uint8)
        for index in range(model.ngeom):
            names = [model.geom(index).name, model.body(model.geom_bodyid[index]).name]
            for label in reversed(self.frame["classes"].values()):
                if any(name and re.fullmatch(pattern, name) for name in names for pattern in label["patterns"]):
                    found[index] = label["index"]
        return found

    def observe(self, data: mujoco.MjData, step: int) -> np.ndarray:
        """What the policy sees of the last env steps, oldest first. Shape (channels, height, width)."""
        is_due = step % self.frame["interval"] == 0
        image = self.take_picture(data) if is_due or not self.history else self.history[-1]
        self.history = [*(self.history or [image] * self.term["history"])[1:], image]
        return np.concatenate(self.history)

    def take_picture(self, data: mujoco.MjData) -> np.ndarray:
        """One frame of all streams, scaled and clipped. Shape (channels, height, width)."""
        self.renderer.update_scene(data, self.frame["camera"], self.option)
        image = stack([self.render(stream) for stream in self.frame["streams"]])
        if self.term["scale"] != 1.0:
            image = image * np.float32(self.term["scale"])
        return image if self.term["clip"] is None else image.clip(*self.term["clip"])

    def render(self, stream: str) -> np.ndarray:
        """One stream, with the values that the policy was trained with. Shape (channels, height, width)."""
        if stream == "rgb":
            return np.moveaxis(self.renderer.render(), 2, 0).copy()
        if stream == "depth":
            self.renderer.enable_depth_rendering()
            depth = self.renderer.render().clip(self.frame["near_m"], self.frame["far_m"])
            self.renderer.disable_depth_rendering()
            return (depth / self.frame["far_m"])[None].astype(np.float32)
        self.renderer.enable_segmentation_rendering()
        objects, kinds = np.moveaxis(self.renderer.render(), 2, 0)
        self.renderer.disable_segmentation_rendering()
        geoms = np.where(kinds == mujoco.mjtObj.mjOBJ_GEOM, objects, len(self.class_of_geom) - 1)
        found = self.class_of_geom[geoms][None]
        if not self.term["params"].get("one_hot", True):
            return found.astype(np.float32)
        indices = np.array([label["index"] for label in self.frame["classes"].values()])
        return (255 * (found == indices[:, None, None])).astype(np.uint8)


def stack(images: list[np.ndarray]) -> np.ndarray:
    """Stack images on their channels. Bytes beside numbers become numbers: value / 255."""
    if len({image.dtype for image in images}) > 1:
        images = [image / np.float32(255) if image.dtype == np.uint8 else image for image in images]
    return np.concatenate(images)


class Robot:
    """The simulated robot; on a real one, these would be its encoders, its IMU and its motors."""

    def __init__(self, folder: Path, metadata: dict, command: list[float], seed: int) -> None:
        self.model = mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))
        self.data = mujoco.MjData(self.model)
        self.metadata = metadata = {"observations": [], **metadata}
        self.command = np.array(command)
        self.action = np.zeros(len(metadata["actions"]))
        self.step = 0
        home = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_KEY, "home")
        if home >= 0:  # activations, bodies that are moved from outside, controls that the policy does not give
            mujoco.mj_resetDataKeyframe(self.model, self.data, home)
        take_default_pose(self.model, self.data, metadata)
        # not quite where it should be
        joints = [joint for joint, position in metadata["default_pose"].items() if len(position) == 1]
        for joint, noise in zip(joints, np.random.default_rng(seed).uniform(-0.05, 0.05, len(joints)), strict=True):
            bounds = self.model.joint(joint).range if self.model.joint(joint).limited[0] else (-np.inf, np.inf)
            self.data.joint(joint).qpos = (self.data.joint(joint).qpos + noise).clip(*bounds)
        mujoco.mj_forward(self.model, self.data)
        for row in metadata["actions"]:
            actuator = self.model.actuator(row["actuator"]).id
            row.setdefault("ctrl_index", int(self.model.actuator_ctrladr[actuator]))  # in exports of earlier versions
            row.setdefault("control_range", None)
            self.data.ctrl[row["ctrl_index"]] = row["offset"]
        self.actuation = Actuation(metadata)
        self.sensing = SimulatedReadings(self.model, self.data, metadata, 0.0, np.random.default_rng(0))
        self.observer = Observer(metadata, values=frozenset(self.sensing.measure()[0]["values"]))
        self.cameras = {
            image["input"]: [Camera(self.model, term) for term in image["terms"]]
            for image in metadata.get("images", [])
        }

    def sensor(self, name: str) -> np.ndarray:
        """What a sensor says."""
        return self.data.sensor(name).data

    def scene(self) -> Scene:
        """What observation terms are computed from."""
        commands = {term["params"].get("command", "") for term in self.metadata["observations"]}
        return Scene(
            metadata=self.metadata,
            readings=Readings(**self.sensing.measure()[0]),
            commands=dict.fromkeys(commands, self.command),
            action=self.action,
            displacements=self.actuation.displacements,
            step=self.step,
        )

    def read(self, function: str, params: dict) -> np.ndarray:
        """What a built-in observation term is."""
        return TERMS[function](self.scene(), params)

    def observe(self) -> dict[str, np.ndarray]:
        """The inputs of the policy: all flat terms side by side, scaled and clipped, and the images by group."""
        images = {image["input"]: self.see(image) for image in self.metadata.get("images", [])}
        if not self.metadata["observations"]:
            return images
        return {"observations": self.observer.observe(self.scene())} | images

    def see(self, image: dict) -> np.ndarray:
        """The images of a group, one behind the other. Shape (channels, height, width)."""
        mujoco.mj_kinematics(self.model, self.data)  # poses after the last step, which mj_step leaves before it
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        return stack([camera.observe(self.data, self.step) for camera in self.cameras[image["input"]]])

    def act(self, action: np.ndarray) -> None:
        """Hold an action for a control period."""
        self.action = action
        columns = [row["ctrl_index"] for row in self.metadata["actions"]]
        self.data.ctrl[columns] = self.actuation.apply(action)
        substeps = round(self.metadata["control_period_s"] / self.metadata["physics_step_s"])
        mujoco.mj_step(self.model, self.data, substeps)
        self.step += 1


def find_largest(model: mujoco.MjModel, history: np.ndarray) -> dict[str, float | list[float]]:
    """The largest position of each joint, without its sign; of a ball joint a list of four."""
    largest = np.abs(history).max(axis=0).round(4)
    parts = np.split(largest, model.jnt_qposadr[1:])
    return {model.joint(index).name: part.squeeze().tolist() for index, part in enumerate(parts)}


def main() -> None:
    """Load, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what uv run export wrote")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--command",
        type=float,
        nargs="*",
        default=[0.8, 0.0, 0.0],
        help="velocity (m/s, m/s, rad/s), place (m), orientation (quaternion w, x, y, z) or place and orientation",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="rad: where an object comes so near to the commanded orientation, draw another, and count them as goals",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the start")
    arguments = parser.parse_args()
    if not (arguments.folder / "policy.onnx").is_file():
        raise SystemExit(f"{arguments.folder}: has no policy.onnx; give the folder that `mjtrain export` wrote")

    session = onnxruntime.InferenceSession(arguments.folder / "policy.onnx", providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["mjtrain"])
    robot = Robot(arguments.folder, metadata, arguments.command, arguments.seed)
    walks = "base_velocity" in {robot.model.sensor(index).name for index in range(robot.model.nsensor)}
    objects = [] if walks else [joint for joint, pose in metadata["default_pose"].items() if len(pose) == 7]
    start = robot.data.qpos[:2].copy()
    seen, goals, draw = [], 0, np.random.default_rng(arguments.seed)
    for _ in range(round(arguments.seconds / metadata["control_period_s"])):
        (actions,) = session.run(None, {name: value[None] for name, value in robot.observe().items()})
        robot.act(np.asarray(actions)[0])
        if arguments.tolerance is not None:
            (joint,) = objects
            missing = rotation_vector(turn(robot.data.joint(joint).qpos[3:], robot.command[-4:]))
            if np.linalg.norm(missing) < arguments.tolerance:
                goals += 1
                drawn = draw.normal(size=4)  # its direction is uniform over all rotations
                robot.command[-4:] = drawn * np.copysign(1 / np.linalg.norm(drawn), drawn[0])
        seen.append(
            [*robot.sensor("base_velocity")[:2], robot.sensor("base_angular_velocity")[2], robot.sensor("up")[2]]
            if walks
            else robot.data.qpos.copy()
        )
    history = np.array(seen)
    report = {"task": metadata["task"], "seconds": arguments.seconds}
    if walks:
        settled = history[len(history) // 5 :]
        report |= {
            "distance_m": round(float(np.linalg.norm(robot.data.qpos[:2] - start)), 2),
            "commanded": arguments.command,
            "mean_velocity": settled[:, :3].mean(axis=0).round(3).tolist(),
            "least_cosine_of_tilt": float(history[:, 3].min().round(3)),
        }
    elif objects:
        report |= {"commanded": robot.command.round(4).tolist()}
        report |= {} if arguments.tolerance is None else {"goals": goals}
        report |= {joint: robot.data.joint(joint).qpos.round(4).tolist() for joint in objects}
    else:
        report |= find_largest(robot.model, history)
    print(json.dumps(report))


if __name__ == "__main__":
    try:
        main()
    except RequestError as error:  # the readings or the command lack what the policy reads
        raise SystemExit(str(error)) from None
