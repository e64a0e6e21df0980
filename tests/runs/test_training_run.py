import json
from pathlib import Path

from mjtrain.runs.training_run import TrainingRun


def test_a_run_travels_as_json() -> None:
    run = TrainingRun(
        run_dir=Path("/logs/cartpole/1"),
        resume="s3://bucket/one",
        restarted=True,
        code={"package/task.py": "/package/task.py"},
        record={"started": "today", "run": {"num_envs": 4}},
    )
    for each in (run, TrainingRun(run_dir=Path("/logs/cartpole/2"))):
        assert TrainingRun.from_plain(json.loads(json.dumps(each.to_plain()))) == each


def test_what_is_no_field_is_left_out() -> None:
    """A message of the launcher carries its own keys beside those of the run."""
    run = TrainingRun(run_dir=Path("/logs/1"))
    assert TrainingRun.from_plain({**run.to_plain(), "kind": "choice"}) == run
