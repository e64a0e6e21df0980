"""Run an exported policy in plain MuJoCo: what a robot's own software would do, without mjtrain.

    python examples/deploy.py logs/cartpole_balance/2026-11-21_09-07-06/export
    python examples/deploy.py logs/quadruped_velocity_flat/2026-11-21_10-00-00/export --command 0.8 0 0 --seconds 20

Needs mujoco, numpy and onnxruntime. It reads from the files what the policy wants to see and how its answer moves the
joints, and prints what came of it.
"""

import argparse
import json
import re
from pathlib import Path

import mujoco
import numpy as np
import onnxruntime


class Robot:
    """The simulated robot; on a real one, these would be its encoders, its IMU and its motors."""

    def __init__(self, folder: Path, metadata: dict, command: list[float], seed: int) -> None:
        self.model = mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))
        self.data = mujoco.MjData(self.model)
        self.metadata = metadata
        self.command = np.array(command)
        self.action = np.zeros(len(metadata["actions"]))
        self.step = 0
        for joint, position in metadata["default_pose"].items():
            self.data.joint(joint).qpos[:] = position
        # not quite where it should be
        hinges = [joint for joint, position in metadata["default_pose"].items() if len(position) == 1]
        for joint, noise in zip(hinges, np.random.default_rng(seed).uniform(-0.05, 0.05, len(hinges)), strict=True):
            self.data.joint(joint).qpos += noise
        mujoco.mj_forward(self.model, self.data)

    def joints(self, patterns: list[str]) -> list[str]:
        """Names that match, pattern by pattern."""
        names = [self.model.joint(index).name for index in range(self.model.njnt)]
        return list(dict.fromkeys(name for p in patterns for name in names if name and re.fullmatch(p, name)))

    def sensor(self, name: str) -> np.ndarray:
        """What a sensor says."""
        return self.data.sensor(name).data

    def read(self, function: str, params: dict) -> np.ndarray:
        """What an observation term of mjtrain is: one entry per function that your policy uses."""
        data, pose = self.data, self.metadata["default_pose"]
        match function.rpartition(":")[2]:
            case "joint_pos":
                return data.joint(params["joint"]).qpos
            case "joint_vel":
                return data.joint(params["joint"]).qvel
            case "joint_cos_sin":
                angle = data.joint(params["joint"]).qpos[0]
                return np.array([np.cos(angle), np.sin(angle)])
            case "joint_pos_rel" | "joints_from_home":  # the latter in exports of earlier versions
                names = self.joints(params["joints"])
                return np.concatenate([data.joint(name).qpos - pose[name] for name in names])
            case "joint_velocities":
                return np.concatenate([data.joint(name).qvel for name in self.joints(params["joints"])])
            case "sensor":
                return self.sensor(params["sensor"])
            case "command":
                return self.command
            case "last_action":
                return self.action
            case "clock":
                angle = 2 * np.pi * params["frequency_hz"] * self.metadata["control_period_s"] * self.step
                moving = np.linalg.norm(self.command) > 0.05  # while it should stand, the clock does, too
                return moving * np.array([np.sin(angle), np.cos(angle)])
        raise SystemExit(f"this example does not know {function}")

    def observe(self) -> np.ndarray:
        """All terms side by side, scaled and clipped."""
        parts = []
        for term in self.metadata["observations"]:
            value = term["scale"] * self.read(term["func"], term["params"])
            parts.append(value if term["clip"] is None else np.clip(value, *term["clip"]))
        return np.concatenate(parts).astype(np.float32)

    def act(self, action: np.ndarray) -> None:
        """Hold an action for a control period."""
        self.action = action
        for row, value in zip(self.metadata["actions"], action, strict=True):
            self.data.actuator(row["actuator"]).ctrl = row["offset"] + row["scale"] * np.clip(value, *row["clip"])
        substeps = round(self.metadata["control_period_s"] / self.metadata["physics_step_s"])
        mujoco.mj_step(self.model, self.data, substeps)
        self.step += 1


def main() -> None:
    """Load, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what uv run export wrote")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--command", type=float, nargs="*", default=[0.8, 0.0, 0.0], help="velocity: m/s, m/s, rad/s")
    parser.add_argument("--seed", type=int, default=0, help="of the start")
    arguments = parser.parse_args()

    session = onnxruntime.InferenceSession(arguments.folder / "policy.onnx", providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["mjtrain"])
    assert all(term["history"] == 1 for term in metadata["observations"]), "this example keeps no history"
    robot = Robot(arguments.folder, metadata, arguments.command, arguments.seed)
    walks = any(len(position) == 7 for position in metadata["default_pose"].values())
    begin = robot.data.qpos[:2].copy()
    seen = []
    for _ in range(round(arguments.seconds / metadata["control_period_s"])):
        (actions,) = session.run(None, {"observations": robot.observe()[None]})
        robot.act(np.asarray(actions)[0])
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
            "distance_m": round(float(np.linalg.norm(robot.data.qpos[:2] - begin)), 2),
            "commanded": arguments.command,
            "mean_velocity": settled[:, :3].mean(axis=0).round(3).tolist(),
            "least_cosine_of_tilt": float(history[:, 3].min().round(3)),
        }
    else:
        report |= dict(zip(metadata["default_pose"], np.abs(history).max(axis=0).round(4).tolist(), strict=True))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
