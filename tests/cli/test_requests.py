"""What a user can get wrong: one line on standard error, status 2, nothing started."""

from pathlib import Path

import pytest

from mjtrain.cli.train import main

CASES = [
    ("--gpu-ids 0", "the task comes first"),
    ("Cartpole-Balnce", "unknown task Cartpole-Balnce; did you mean Cartpole-Balance"),
    ("nofile.py:make", "no such file nofile.py"),
    ("{file}:make", "SyntaxError"),
    ("Cartpole-Balance --num-env 3", "unknown flag --num-env 3; did you mean --num-envs"),
    ("Cartpole-Balance --env.rewards.uprigt.weight 2", "did you mean --env.rewards.upright.weight"),
    ("Cartpole-Balance --env.rewards.upright.weight x", "--env.rewards.upright.weight x: give a number"),
    ("Cartpole-Balance extra", "unexpected argument extra"),
    ("Cartpole-Balance --engine", "--engine"),
    ("Cartpole-Balance --engine fast", "--engine fast: choose from auto, native, warp"),
    ("Cartpole-Balance --gpu-ids None --learner rsl-rl", "unknown learner; did you mean rsl_rl"),
    ("Cartpole-Balance --gpu-ids None --learner 3", "--learner 3: unknown learner (installed: "),
    ("Cartpole-Balance --gpu-ids None --learner-config nowhere.yaml", "--learner-config nowhere.yaml: cannot be read"),
    ("Cartpole-Balance --gpu-ids None --learner-config {file}", "--learner-config def make(: RSL-RL takes settings"),
    ("Cartpole-Balance --logger paper", "--logger paper: choose from tensorboard, wandb, trackio, none"),
    ("Cartpole-Balance --gpu-ids 5", "--gpu-ids 5: no GPU is visible here"),
    ("Cartpole-Balance --gpu-ids all", "--gpu-ids all: no GPU is visible here"),
    ("Cartpole-Balance --gpu-ids -1", "-1 is negative"),
    ("Cartpole-Balance --gpu-ids 0 0", "0 is repeated"),
    ("Cartpole-Balance --gpu-ids", "--gpu-ids: no index given"),
    ("Cartpole-Balance --gpu-ids two", "--gpu-ids two: give indices such as 0 1, all, or None"),
    ("Cartpole-Balance --gpu-ids None --num-workers 0", "--num-workers 0: must be at least 1"),
    ("Cartpole-Balance --gpu-ids 0 1 --num-workers 2", "--num-workers 2: is for CPU ranks"),
    ("Cartpole-Balance --gpu-ids None --num-envs 0", "--num-envs 0: must be at least 1"),
    ("Cartpole-Balance --gpu-ids None --num-envs 10000000000", "--num-envs 10000000000: needs 11.8 TB per rank"),
    ("Cartpole-Balance --gpu-ids None --num-envs-total 10000000000", "that are free; give --num-envs-total "),
    ("Cartpole-Balance --gpu-ids None --num-envs many", "--num-envs many: give a whole number or None"),
    ("Cartpole-Balance --gpu-ids None --max-iterations 0", "--max-iterations 0: must be at least 1"),
    ("Cartpole-Balance --gpu-ids None --profile 5 --max-iterations 9", "--profile 5: needs 11 iterations"),
    (
        "Cartpole-Balance --gpu-ids None --profile 5 --num-envs 100 --total-env-steps 12000",
        "--profile 5: needs 11 iterations, and --total-env-steps 12000 gives 5",
    ),
    ("Cartpole-Balance --gpu-ids None --eval-interval -1", "--eval-interval -1: must be at least 0"),
    ("Cartpole-Balance --gpu-ids None --stop-when kl>x", "--stop-when kl>x: give a metric, one of >= > <= <, and"),
    ("Cartpole-Balance --gpu-ids None --stop-when success/up>0", "unknown metric success/up; there are iteration, env"),
    ("Cartpole-Balance --gpu-ids None --best-metric=-los/value", "unknown metric los/value; did you mean loss/value"),
    ("Cartpole-Balance --gpu-ids None --env.decimation 0", "--env.decimation 0: must be at least 1"),
    ("Cartpole-Balance --gpu-ids None --log-root {file}", "--log-root {file}: cannot be written"),
    ("Cartpole-Balance --gpu-ids None --run-name a/b", "--run-name a/b"),
    ("Cartpole-Balance --gpu-ids None --env.robot nowhere.xml", "--env.robot nowhere.xml: no such file"),
    ("Cartpole-Balance --gpu-ids None --env.robot {file}", "--env.robot {file}"),
    (
        "Cartpole-Balance --gpu-ids None --agent.torch-compile-mode max-autotune",
        "--agent.torch-compile-mode max-autotune: keeps CUDA graphs",
    ),
    ("Cartpole-Balance --gpu-ids None --agent.torch-compile-mode fast", "give one of default, lite"),
    (
        "Cartpole-Balance --gpu-ids None --agent.critic.hidden-dims",
        "--agent.critic.hidden-dims (none): RSL-RL's networks have at least one",
    ),
    ("Cartpole-Balance --gpu-ids None --load nowhere.pt", "--load nowhere.pt: no such file"),
    ("Cartpole-Balance --gpu-ids None --load {file}", "not a complete checkpoint"),
    (
        "Cartpole-Balance --gpu-ids None --without rewards.slip",
        "--without rewards.slip: the task has no slip; there are upright, centered, effort",
    ),
    ("Cartpole-Balance --gpu-ids None --without reward.effort", "the task has no reward; did you mean rewards?"),
    (
        "Cartpole-Balance --gpu-ids None --without observations.actor",
        "give one of its terms, such as observations.actor.",
    ),
    ("Cartpole-Balance --gpu-ids None --without rewards.effort.weight", "effort is a term; give rewards.effort"),
    (
        "Cartpole-Balance --gpu-ids None --without rewards.upright rewards.centered rewards.effort",
        "--env.rewards",
    ),
    ("Cartpole-Balance --gpu-ids None --motion https://host/a.npz?token=word", "--motion https://host/a.npz?"),
    ("Cartpole-Balance --gpu-ids None --motion bow.npz", "Cartpole-Balance imitates no motion; leave it out"),
    ("Quadruped-Track --gpu-ids None --motion bow.npz", "--motion bow.npz: no such file"),
    (
        "Quadruped-Track --gpu-ids None --num-envs 4 --env.commands.motion.params.file bow.npz",
        "--env.commands.motion: bow.npz: no such file",
    ),
    (
        "Cartpole-Balance --gpu-ids None --env.terminations.pole-fell.params.joint knee",
        "joint knee (for terminations.pole_fell)",
    ),
    (
        "Quadruped-Velocity-Rough --gpu-ids None --num-envs 4 --env.terrain.kinds lava",
        "--env.terrain.kinds lava: choose",
    ),
    (
        "Arm-Reach --gpu-ids None --num-envs 4 --env.observations.actor.pose.history 0",
        "pose.history 0: must be at least 1",
    ),
    (
        "Cartpole-Balance-Vision --gpu-ids None --env.cameras.front.camera left",
        "--env.cameras.front.camera left: the robot has no such camera; it has side, front",
    ),
    (
        "Cartpole-Balance-Vision --gpu-ids None --env.cameras.front.streams infrared",
        "--env.cameras.front.streams infrared: choose from rgb, depth, segmentation",
    ),
    ("Cartpole-Balance-Vision --gpu-ids None --env.cameras.front.width 0", "front.width 0: must be at least 1"),
    (
        "Cartpole-Balance-Vision --gpu-ids None --agent.actor.class-name MLPModel",
        "MLPModel: cannot read group image, which has images (9, 32, 64); use CNNModel",
    ),
    (
        "Cartpole-Balance-Vision --gpu-ids None --agent.critic.class-name CNNModel",
        "CNNModel: reads no images, as state in --agent.obs-groups.critic is flat; use MLPModel",
    ),
    (
        "Cartpole-Balance-Vision --gpu-ids None --env.cameras.front.streams segmentation "
        "--env.cameras.front.classes.pole wheel",
        "--env.cameras.front.classes.pole wheel: matches no geom and no body with geoms",
    ),
    (
        "Cartpole-Balance-Vision --gpu-ids None --env.observations.image.front.params.camera left",
        "EnvConfig.cameras has no camera left; available: front",
    ),
]


@pytest.mark.usefixtures("no_gpu", "short_trial")
@pytest.mark.parametrize(("command", "words"), CASES, ids=[command for command, _ in CASES])
def test_one_line_and_status_2(
    command: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    broken = tmp_path / "broken.py"
    broken.write_text("def make(:\n")
    with pytest.raises(SystemExit) as stop:
        main(command.format(file=broken).split())
    assert stop.value.code == 2
    *header, last = capsys.readouterr().err.strip().splitlines()
    assert last.startswith("train: ")
    assert words.format(file=broken) in last
    assert [path.name for path in tmp_path.iterdir()] == ["broken.py"]
    # what could only be found out by starting comes after the run's header; nothing else is printed
    assert all(line.startswith((f"{command.split()[0]}: ", "each rank: ", "run directory: ")) for line in header)


@pytest.mark.usefixtures("short_trial")
def test_env_steps_are_enough_for_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--profile", "60", "--num-envs", "100", "--total-env-steps", "1000000", "--log-root", str(tmp_path)]
    main(["Cartpole-Balance", "--gpu-ids", "None", *flags, "--dry-run"])
    assert "--profile" not in capsys.readouterr().err
