"""Mistakes that people make in a task of their own or on the command line, and the line that each of them gets.

A mistake is what a person changes in a folder with a task that trains: text in `task.py` or in `cart.xml`, or words of
the command.
"""

from dataclasses import dataclass, field

ROBOT = """\
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <body name="cart">
      <joint name="rail" type="slide" axis="1 0 0" range="-2 2"/>
      <geom name="cart" type="box" size="0.1 0.1 0.05" mass="1"/>
      <body name="pole">
        <joint name="hinge" axis="0 1 0"/>
        <geom name="pole" type="capsule" fromto="0 0 0 0 0 0.5" size="0.02" mass="0.1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="push" joint="rail" gear="5"/>
  </actuator>
  <sensor>
    <framepos name="tip" objtype="body" objname="pole"/>
  </sensor>
</mujoco>
"""

TASK = """\
from pathlib import Path

import torch

from mjtrain import ActionTerm, AgentConfig, EnvConfig, RewardTerm, TaskConfig
from mjtrain.mdp import Env, Worlds, uniform
from mjtrain.mdp import command, curriculum, error, observation, reset_event, reward, startup_event, success
from mjtrain.mdp import events, objects, observations, randomization, rewards, targets, termination, terminations
from mjtrain.mdp import truncation

HERE = Path(__file__).parent


def speed(env: Env, *, joint: str) -> torch.Tensor:
    return env.qvel(joint)[:, 0]


def places(env: Env, *, joints: tuple[str, ...]) -> torch.Tensor:
    return env.qpos(joints)


def fell(env: Env, *, limit: float) -> torch.Tensor:
    return env.qpos("hinge")[:, 0].abs() > limit


def spread(env: Env, worlds: Worlds, *, width: float) -> None:
    worlds.qpos[:, 0] += uniform(env, (-width, width))


def aim(env: Env) -> torch.Tensor:
    return uniform(env, (-1.0, 1.0), 1)


def steer(env: Env, values: torch.Tensor) -> torch.Tensor:
    return values.expand(env.num_envs, 1)


def miss(env: Env) -> torch.Tensor:
    return (env.command("aim")[:, 0] - env.qpos("rail")[:, 0]).abs()


def there(env: Env, *, within: float) -> torch.Tensor:
    return env.qpos("rail")[:, 0].abs() < within


def harder(env: Env, level: torch.Tensor) -> torch.Tensor:
    return level + 0.1


def make_task() -> TaskConfig:
    env = EnvConfig(
        robot=str(HERE / "cart.xml"),
        decimation=4,
        episode_length_s=2.0,
        actions={"push": ActionTerm(actuators=("push",))},
        observations={
            "actor": {
                "places": observation(places, joints=("rail", "hinge")),
                "speed": observation(observations.joint_vel, joint="rail"),
                "aim": observation(observations.command, command="aim"),
            },
        },
        rewards={
            "speed": reward(speed, 1.0, joint="rail"),
            "effort": reward(rewards.action_energy, -0.1),
        },
        terminations={
            "time_out": truncation(terminations.time_out),
            "fell": termination(fell, limit=1.0),
        },
        successes={"there": success(there, within=0.1)},
        commands={
            "aim": command(aim).replace(errors={"miss": error(miss, "m")}, controls={"x": (-1.0, 1.0)}, steer=steer),
        },
        events={
            "spread": reset_event(spread, width=0.1),
            "payload": startup_event(randomization.mass, bodies=("cart",), factor=(0.9, 1.1)),
        },
        curriculum={"level": curriculum(harder)},
    )
    agent = AgentConfig(obs_groups={"actor": ("actor",), "critic": ("actor",)})
    return TaskConfig(env=env, agent=agent, num_envs=8, max_iterations=1)
"""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One mistake."""

    what: str
    """What was done wrong, for the table."""

    says: tuple[str, ...] = ()
    """The lines on standard error; {folder} is where the task is."""

    changes: dict[str, str] = field(default_factory=dict)
    """Text to replace in task.py."""

    robot: dict[str, str] = field(default_factory=dict)
    """Text to replace in cart.xml."""

    task: str = "task.py:make_task"
    """First word of the command."""

    words: str = ""
    """Further words."""

    late: bool = False
    """Whether only RSL-RL can find it out, after the run's header was printed."""

    @property
    def row(self) -> str:
        """The mistake as a row of the table."""
        written = [self.task] * (self.task != Mistake.task) + [self.words] * bool(self.words)
        written += [_shorten(new) for new in (*self.changes.values(), *self.robot.values())]
        cells = (self.what, "<br>".join(f"`{text}`" for text in written), "<br>".join(self.says))
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _shorten(text: str) -> str:
    """Keep what fits into a cell of the table."""
    line = " ".join(text.split())
    return line if len(line) <= 70 else f"{line[:67]}…"


HEAD = "| mistake | input | error message |\n|---|---|---|\n"


MISTAKES = (
    Mistake(
        what="a misspelt task",
        task="Cartpole-Balnce",
        says=(
            "unknown task Cartpole-Balnce; did you mean Cartpole-Balance or Cartpole-Balance-Vision or Cartpole-Swingup?",
        ),
    ),
    Mistake(
        what="no task",
        task="--gpu-ids None",
        says=("the task comes first, as in train TASK [options]; list-tasks prints the names",),
    ),
    Mistake(
        what="a missing file",
        task="tsak.py:make_task",
        says=("task tsak.py:make_task: no such file tsak.py",),
    ),
    Mistake(
        what="a missing factory",
        task="task.py:make_taks",
        says=("task task.py:make_taks: task.py has no function make_taks; did you mean make_task?",),
    ),
    Mistake(
        what="a missing module",
        task="no_such_package.tasks:make_task",
        says=("task no_such_package.tasks:make_task: No module named 'no_such_package'",),
    ),
    Mistake(
        what="a misspelt flag",
        words="--num-env 8",
        says=("unknown flag --num-env 8; did you mean --num-envs or --num-envs-total?",),
    ),
    Mistake(
        what="a misspelt term in a flag",
        words="--env.rewards.sped.weight 2",
        says=(
            "unknown flag --env.rewards.sped.weight 2; did you mean --env.rewards.speed.weight or --env.rewards.effort.weight?",
        ),
    ),
    Mistake(
        what="a flag of another type",
        words="--num-envs many",
        says=("--num-envs many: give a whole number or None",),
    ),
    Mistake(
        what="one word too many",
        words="8",
        says=("unexpected argument 8",),
    ),
    Mistake(
        what="no environments",
        words="--num-envs 0",
        says=("--num-envs 0: must be at least 1",),
    ),
    Mistake(
        what="evaluations of zero episodes",
        words="--eval-interval 10 --eval-episodes 0",
        says=("--eval-episodes 0: must be at least 1",),
    ),
    Mistake(
        what="a condition that compares nothing",
        words="--stop-when mean_reward=14",
        says=("--stop-when mean_reward=14: give a metric, one of >= > <= <, and a number, as in eval/return>=14",),
    ),
    Mistake(
        what="a misspelt metric in a condition",
        words="--eval-interval 10 --stop-when eval/sucess/there>0.9",
        says=(
            "--stop-when eval/sucess/there>0.9: unknown metric eval/sucess/there; did you mean eval/success/there or "
            "success/there or eval/length?",
        ),
    ),
    Mistake(
        what="the best evaluation without evaluations",
        words="--best-metric eval/return",
        says=("--best-metric eval/return: needs evaluations; give --eval-interval too, such as --eval-interval 50",),
    ),
    Mistake(
        what="a slash in the name of a term",
        changes={'"speed": reward(': '"speed/x": reward('},
        says=("--env.rewards: the name 'speed/x' is not valid; use letters, digits and _, as in left_foot",),
    ),
    Mistake(
        what="no physics steps in an env step",
        words="--env.decimation 0",
        says=("--env.decimation 0: must be at least 1",),
    ),
    Mistake(
        what="an episode of zero length",
        words="--env.episode-length-s 0",
        says=("--env.episode-length-s 0: must be more than 0 and at most 1e+09",),
    ),
    Mistake(
        what="an engine that does not exist",
        words="--engine fast",
        says=("--engine fast: choose from auto, native, warp",),
    ),
    Mistake(
        what="a missing GPU",
        words="--gpu-ids 5",
        says=("--gpu-ids 5: no GPU is visible here; use --gpu-ids None to train on the CPU",),
    ),
    Mistake(
        what="an odd number of environments on two ranks",
        words="--num-workers 2 --num-envs-total 7",
        says=("--num-envs-total 7: cannot be split evenly over 2 ranks; 6 or 8 can",),
    ),
    Mistake(
        what="a missing checkpoint",
        words="--load nowhere.pt",
        says=("--load nowhere.pt: no such file",),
    ),
    Mistake(
        what="a missing run",
        words="--resume logs/nowhere",
        says=("--resume logs/nowhere: no such run directory",),
    ),
    Mistake(
        what="a missing robot file",
        words="--env.robot nowhere.xml",
        says=("--env.robot nowhere.xml: no such file",),
    ),
    Mistake(
        what="a missing observation group",
        words="--agent.obs-groups.critic privileged",
        says=("--agent.obs-groups.critic privileged: the environment observes actor",),
    ),
    Mistake(
        what="an optimizer that does not exist",
        words="--agent.algorithm.optimizer adamm",
        says=("--agent.algorithm.optimizer adamm: choose from adam, adamw, sgd, rmsprop",),
    ),
    Mistake(
        what="an activation that does not exist",
        words="--agent.actor.activation elux",
        says=(
            "--agent.actor.activation elux: choose from elu, selu, relu, crelu, lrelu, tanh, sigmoid, softplus, gelu, swish, mish, identity",
        ),
    ),
    Mistake(
        what="a network without a width",
        words="--agent.actor.hidden-dims 0",
        says=("--agent.actor.hidden-dims 0: must be at least 1",),
    ),
    Mistake(
        what="convolutions without an image",
        words="--agent.actor.class-name CNNModel",
        says=(
            "--agent.actor.class-name CNNModel: reads no images, as actor in --agent.obs-groups.actor is flat; "
            "use MLPModel, or add an image group there",
        ),
    ),
    Mistake(
        what="a recurrent network with too few environments",
        words="--agent.critic.class-name RNNModel --num-envs 2",
        says=(
            "--num-envs 2: a mini-batch of an RNNModel has whole environments, and there are 4 mini-batches "
            "(--agent.algorithm.num-mini-batches); give 4",
        ),
    ),
    Mistake(
        what="iterations for the critic alone, with RSL-RL's own PPO",
        words="--agent.algorithm.critic-iterations 5 --agent.algorithm.class-name rsl_rl.algorithms:PPO",
        says=(
            "--agent.algorithm.critic-iterations 5: RSL-RL's own PPO trains both networks from the start; leave out "
            "--agent.algorithm.class-name",
        ),
    ),
    Mistake(
        what="a symmetry of recurrent networks",
        words="--agent.actor.class-name RNNModel --agent.algorithm.symmetry-cfg.use-data-augmentation",
        says=(
            "--agent.algorithm.symmetry-cfg: RSL-RL mirrors no recurrent networks; --agent.actor.class-name is RNNModel, "
            "give MLPModel",
        ),
    ),
    Mistake(
        what="a symmetry with an auxiliary loss",
        words="--agent.algorithm.auxiliary-cfg.group actor --agent.algorithm.symmetry-cfg.use-mirror-loss",
        says=(
            "--agent.algorithm.symmetry-cfg: cannot be combined with --agent.algorithm.auxiliary-cfg.group actor, whose "
            "loss takes the place of a symmetry's; leave out one of them",
        ),
    ),
    Mistake(
        what="a mirror loss without a weight",
        words="--agent.algorithm.symmetry-cfg.use-mirror-loss --agent.algorithm.symmetry-cfg.mirror-loss-coeff 0",
        says=("--agent.algorithm.symmetry-cfg.mirror-loss-coeff 0: must be more than 0",),
    ),
    Mistake(
        what="recurrent equivariant networks",
        words="--agent.critic.class-name RNNModel --agent.algorithm.symmetry-cfg.use-equivariant-networks",
        says=(
            "--agent.algorithm.symmetry-cfg.use-equivariant-networks: only an MLPModel can be tied so, and "
            "--agent.critic.class-name is RNNModel; give --agent.algorithm.symmetry-cfg.no-use-equivariant-networks",
        ),
    ),
    Mistake(
        what="equivariant networks with odd layers",
        words="--agent.actor.hidden-dims 64 33 --agent.algorithm.symmetry-cfg.use-equivariant-networks",
        says=("--agent.actor.hidden-dims 64 33: must be even, as the units of equivariant networks are paired",),
    ),
    Mistake(
        what="equivariant networks and mirror images",
        words="--agent.algorithm.symmetry-cfg.use-mirror-loss --agent.algorithm.symmetry-cfg.use-equivariant-networks",
        says=(
            "--agent.algorithm.symmetry-cfg.use-equivariant-networks: learns nothing more from mirror images; leave out "
            "use-data-augmentation and use-mirror-loss",
        ),
    ),
    Mistake(
        what="a symmetry of terms without a mirror",
        words="--env.robot.mirror.plane x --agent.algorithm.symmetry-cfg.use-data-augmentation",
        says=(
            "--env.observations.actor.places: places() does not declare how it mirrors; see mjtrain.mdp.mirrors",
            "--env.observations.actor.aim: aim() does not declare how it mirrors; see mjtrain.mdp.mirrors",
        ),
    ),
    Mistake(
        what="a symmetry of a robot that has none",
        words="--env.robot.mirror.plane x --agent.algorithm.symmetry-cfg.use-data-augmentation",
        robot={'range="-2 2"': 'range="-2 3"'},
        says=(
            "--env.robot.mirror: the robot is not its own mirror image (plane x): the range of joint rail is not the "
            "image of its partner's: it is -2 3, and the image is -3 2",
        ),
    ),
    Mistake(
        what="an unknown kind of memory",
        words="--agent.actor.rnn-type transformer",
        says=("--agent.actor.rnn-type transformer: choose from lstm, gru",),
    ),
    Mistake(
        what="a folder that cannot be written",
        words="--log-root task.py/logs",
        says=("--log-root task.py/logs: cannot be written (Not a directory)",),
    ),
    Mistake(
        what="a run name with a slash",
        words="--run-name a/b",
        says=("--run-name a/b: must not contain a slash; --log-root chooses the folder",),
    ),
    Mistake(
        what="a syntax error",
        changes={"def aim(env: Env) -> torch.Tensor:": "def aim(env: Env) -> torch.Tensor"},
        says=("task task.py:make_task: SyntaxError: expected ':' (task.py, line 30)",),
    ),
    Mistake(
        what="a misspelt import",
        changes={"import torch\n": "import troch\n"},
        says=("task task.py:make_task: ModuleNotFoundError: No module named 'troch' (task.py, line 3)",),
    ),
    Mistake(
        what="a name that does not exist",
        changes={"limit=1.0),": "limit=LIMIT),"},
        says=("task task.py:make_task: NameError: name 'LIMIT' is not defined (task.py, line 69)",),
    ),
    Mistake(
        what="a factory with a parameter",
        changes={"def make_task()": "def make_task(size)"},
        says=("task task.py:make_task: TypeError: make_task() missing 1 required positional argument: 'size'",),
    ),
    Mistake(
        what="a factory that returns an EnvConfig",
        changes={"    return TaskConfig(env=env, agent=agent, num_envs=8, max_iterations=1)": "    return env"},
        says=("task task.py:make_task: the factory returned EnvConfig; return a mjtrain.TaskConfig",),
    ),
    Mistake(
        what="a factory that returns nothing",
        changes={"    return TaskConfig(": "    TaskConfig("},
        says=("task task.py:make_task: the factory returned NoneType; return a mjtrain.TaskConfig",),
    ),
    Mistake(
        what="a field of a config that does not exist",
        changes={"decimation=4,": "decimaton=4,"},
        says=(
            "task task.py:make_task: TypeError: EnvConfig.__init__() got an unexpected keyword argument 'decimaton' (task.py, line 51)",
        ),
    ),
    Mistake(
        what="an XML error",
        robot={"</worldbody>": "</wordlbody>"},
        says=(
            "--env.robot {folder}/cart.xml: XML parse error 14: Error=XML_ERROR_MISMATCHED_ELEMENT ErrorID=14 (0xe) Line number=3: XMLElement name=worldbody",
        ),
    ),
    Mistake(
        what="an attribute that MJCF does not have",
        robot={'type="slide"': 'typ="slide"'},
        says=(
            "--env.robot {folder}/cart.xml: XML Error: Schema violation: unrecognized attribute: 'typ' Element 'joint', line 5",
        ),
    ),
    Mistake(
        what="a missing mesh",
        robot={"  <worldbody>": '  <asset><mesh name="m" file="gone.stl"/></asset>\n  <worldbody>'},
        says=("--env.robot {folder}/cart.xml: Error: Error opening file 'gone.stl'",),
    ),
    Mistake(
        what="a joint that the robot lacks",
        changes={'reward(speed, 1.0, joint="rail")': 'reward(speed, 1.0, joint="rial")'},
        says=(
            "--env.robot {folder}/cart.xml: this task needs what the robot lacks: joint rial (for rewards.speed); it has rail, hinge",
        ),
    ),
    Mistake(
        what="a sensor that the robot lacks",
        changes={
            '"speed": observation(observations.joint_vel, joint="rail")': '"speed": observation(observations.sensor, sensor="gyro")'
        },
        says=(
            "--env.robot {folder}/cart.xml: this task needs what the robot lacks: sensor gyro (for observations.actor.speed); it has tip",
        ),
    ),
    Mistake(
        what="an actuator that the robot lacks",
        changes={'actuators=("push",)': 'actuators=("pull",)'},
        says=(
            "--env.robot {folder}/cart.xml: this task needs what the robot lacks: actuator pull (for actions.push); it has push",
        ),
    ),
    Mistake(
        what="a body that the robot lacks",
        changes={'bodies=("cart",)': 'bodies=("trunk", "cart")'},
        says=(
            "--env.robot {folder}/cart.xml: this task needs what the robot lacks: body trunk (for events.payload); it has cart, pole",
        ),
    ),
    Mistake(
        what="a sensor that the robot lacks, in a function",
        changes={"    return env.qvel(joint)[:, 0]\n": '    return env.sensor("gyro")[:, 0]\n'},
        says=("--env.rewards.speed: the robot has no sensor 'gyro'; it has tip",),
    ),
    Mistake(
        what="a pattern that is not a valid regular expression",
        changes={'joints=("rail", "hinge")': 'joints=("*",)'},
        says=(
            "--env.observations.actor.places: '*' is not a valid regular expression over joint names: nothing to repeat at position 0; '.*' matches all",
        ),
    ),
    Mistake(
        what="a string where a tuple belongs",
        changes={'joints=("rail", "hinge")': 'joints=("rail")'},
        says=(
            "--env.observations.actor.places.params.joints: is the string 'rail'; give a tuple, such as (\"rail\",)",
        ),
    ),
    Mistake(
        what="actuators as a string",
        changes={'actuators=("push",)': 'actuators=".*"'},
        says=("--env.actions.push.actuators: is the string '.*'; give a tuple, such as (\".*\",)",),
    ),
    Mistake(
        what="a list of terms",
        changes={
            '        actions={"push": ActionTerm(actuators=("push",))},': '        actions=[ActionTerm(actuators=("push",))],'
        },
        says=('--env.actions: is a list; give a dict by name, such as {"name": …}',),
    ),
    Mistake(
        what="a function where a term belongs",
        changes={"reward(rewards.action_energy, -0.1)": "rewards.action_energy"},
        says=(
            "--env.rewards.effort: is the function action_energy, not a RewardTerm; make one with mjtrain.mdp.reward(func, weight, …)",
        ),
    ),
    Mistake(
        what="a term of another kind",
        changes={"termination(fell, limit=1.0)": "reward(fell, 1.0, limit=1.0)"},
        says=(
            "--env.terminations.fell: is a RewardTerm, not a TerminationTerm; make one with mjtrain.mdp.termination(func, …) or truncation(func, …)",
        ),
    ),
    Mistake(
        what="the result of a function where the function belongs",
        changes={'"effort": reward(rewards.action_energy, -0.1)': '"effort": RewardTerm(func=0.5, weight=1.0)'},
        says=("--env.rewards.effort: the number 0.5 is not a function; give one that was made with def",),
    ),
    Mistake(
        what="a reward without a weight",
        changes={'reward(speed, 1.0, joint="rail")': 'reward(speed, "rail")'},
        says=("--env.rewards.speed.weight: is the string 'rail'; give a number",),
    ),
    Mistake(
        what="a weight that is not a number",
        changes={"reward(rewards.action_energy, -0.1)": 'reward(rewards.action_energy, float("nan"))'},
        says=("--env.rewards.effort.weight nan: must be finite",),
    ),
    Mistake(
        what="a parameter of another type",
        changes={"termination(fell, limit=1.0)": 'termination(fell, limit="1.0")'},
        says=("--env.terminations.fell.params.limit: is the string '1.0'; give a number",),
    ),
    Mistake(
        what="a misspelt parameter",
        changes={"termination(fell, limit=1.0)": "termination(fell, limt=1.0)"},
        says=("--env.terminations.fell: fell() has no parameter limt; it takes limit",),
    ),
    Mistake(
        what="a parameter that is missing",
        changes={"termination(fell, limit=1.0)": "termination(fell)"},
        says=("--env.terminations.fell: fell() needs the parameter limit; it takes limit",),
    ),
    Mistake(
        what="hidden layers as a number",
        changes={
            "agent = AgentConfig(": "from mjtrain import ModelConfig\n    agent = AgentConfig(critic=ModelConfig(hidden_dims=64), "
        },
        says=("--agent.critic.hidden-dims: is the number 64; give a tuple",),
    ),
    Mistake(
        what="groups as a string",
        changes={'"critic": ("actor",)': '"critic": "actor"'},
        says=("--agent.obs-groups.critic: is the string 'actor'; give a tuple, such as (\"actor\",)",),
    ),
    Mistake(
        what="no groups for the critic",
        changes={'obs_groups={"actor": ("actor",), "critic": ("actor",)}': ""},
        says=("--agent.obs-groups.critic critic: the environment observes actor",),
    ),
    Mistake(
        what="no rewards",
        changes={
            '        rewards={\n            "speed": reward(speed, 1.0, joint="rail"),\n            "effort": reward(rewards.action_energy, -0.1),\n        },': "        rewards={},"
        },
        says=("--env.rewards: is empty; give at least one reward term",),
    ),
    Mistake(
        what="an empty observation group",
        changes={
            "            },\n        },\n        rewards": '            },\n            "critic": {},\n        },\n        rewards'
        },
        says=("--env.observations.critic: is empty; give at least one observation term",),
    ),
    Mistake(
        what="bounds in the wrong order",
        changes={"command(aim).replace(": "command(aim).replace(resampling_s=(5.0, 1.0), "},
        says=("--env.commands.aim.resampling-s 5 1: the first is more than the second; give the lower bound first",),
    ),
    Mistake(
        what="two terms for one actuator",
        changes={"actions={": 'actions={"all": ActionTerm(), '},
        says=("--env.actions: two terms drive the same actuator; give each actuator to one term",),
    ),
    Mistake(
        what="an unknown event mode",
        changes={"reset_event(spread, width=0.1)": 'reset_event(spread, width=0.1).replace(mode="resets")'},
        says=("--env.events.spread.mode resets: choose from startup, reset, interval",),
    ),
    Mistake(
        what="a reward of one column",
        changes={"    return env.qvel(joint)[:, 0]\n": "    return env.qvel(joint)\n"},
        says=(
            "--env.rewards.speed: speed() returned a tensor of shape (num_envs, 1); a reward is one value per world, shape (num_envs,); append [:, 0]",
        ),
    ),
    Mistake(
        what="a reward of one number for all worlds",
        changes={"    return env.qvel(joint)[:, 0]\n": "    return env.qvel(joint).mean()\n"},
        says=(
            "--env.rewards.speed: speed() returned a tensor of shape (); a reward is one value per world, shape (num_envs,)",
        ),
    ),
    Mistake(
        what="a reward that is a Python number",
        changes={"    return env.qvel(joint)[:, 0]\n": "    return 1.0\n"},
        says=(
            "--env.rewards.speed: speed() returned the float 1.0; a reward is one value per world, shape (num_envs,)",
        ),
    ),
    Mistake(
        what="a reward in float64",
        changes={"    return env.qvel(joint)[:, 0]\n": "    return env.qvel(joint)[:, 0].double()\n"},
        says=(
            "--env.rewards.speed: speed() returned a tensor of float64; a reward is one value per world, shape (num_envs,) of float32; append .float()",
        ),
    ),
    Mistake(
        what="a reward that returns nothing",
        changes={"    return env.qvel(joint)[:, 0]\n": "    env.qvel(joint)[:, 0]\n"},
        says=("--env.rewards.speed: speed() returned None; a reward is one value per world, shape (num_envs,)",),
    ),
    Mistake(
        what="a reward that is a generator",
        changes={"    return env.qvel(joint)[:, 0]\n": "    yield env.qvel(joint)[:, 0]\n"},
        says=("--env.rewards.speed: speed() returned a generator; a reward is one value per world, shape (num_envs,)",),
    ),
    Mistake(
        what="a reward that is not finite",
        changes={"    return env.qvel(joint)[:, 0]\n": "    return (env.qvel(joint)[:, 0] - 1000).log()\n"},
        says=("--env.rewards.speed: speed() returned nan in 2 of 2 values; give finite numbers",),
    ),
    Mistake(
        what="an observation without columns",
        changes={"    return env.qpos(joints)\n": "    return env.qpos(joints)[:, 0]\n"},
        says=(
            "--env.observations.actor.places: places() returned a tensor of shape (num_envs,); an observation is float32 of shape (num_envs, size); append [:, None]",
        ),
    ),
    Mistake(
        what="an observation in float64",
        changes={"    return env.qpos(joints)\n": "    return env.qpos(joints).double()\n"},
        says=(
            "--env.observations.actor.places: places() returned a tensor of float64; an observation is float32 of shape (num_envs, size); append .float()",
        ),
    ),
    Mistake(
        what="an observation of numpy",
        changes={"    return env.qpos(joints)\n": "    return env.qpos(joints).numpy()\n"},
        says=(
            "--env.observations.actor.places: places() returned a numpy array; an observation is float32 of shape (num_envs, size)",
        ),
    ),
    Mistake(
        what="an observation that is not finite",
        changes={"    return env.qpos(joints)\n": "    return env.qpos(joints).abs() / 0\n"},
        says=("--env.observations.actor.places: places() returned inf and nan in 4 of 4 values; give finite numbers",),
    ),
    Mistake(
        what="a termination of numbers",
        changes={
            '    return env.qpos("hinge")[:, 0].abs() > limit\n': '    return (env.qpos("hinge")[:, 0].abs() > limit).float()\n'
        },
        says=(
            "--env.terminations.fell: fell() returned a tensor of float32; a termination is boolean of shape (num_envs,), such as a comparison",
        ),
    ),
    Mistake(
        what="a termination of one column",
        changes={'    return env.qpos("hinge")[:, 0].abs() > limit\n': '    return env.qpos("hinge").abs() > limit\n'},
        says=(
            "--env.terminations.fell: fell() returned a tensor of shape (num_envs, 1); a termination is boolean of shape (num_envs,), such as a comparison; append [:, 0]",
        ),
    ),
    Mistake(
        what="a Python if on a tensor",
        changes={
            '    return env.qpos("hinge")[:, 0].abs() > limit\n': '    if env.qpos("hinge").abs() > limit:\n        return True\n    return False\n'
        },
        says=(
            "--env.terminations.fell: fell() raised RuntimeError: Boolean value of Tensor with more than one value is ambiguous (task.py, line 23); it gets all worlds at once: use torch.where and masks",
        ),
    ),
    Mistake(
        what="an exception in a term",
        changes={"    return env.qvel(joint)[:, 0]\n": "    return env.qvel(joint)[:, 3]\n"},
        says=(
            "--env.rewards.speed: speed() raised IndexError: index 3 is out of bounds for dimension 1 with size 1 (task.py, line 15)",
        ),
    ),
    Mistake(
        what="an attribute that Env does not have",
        changes={"    return env.qvel(joint)[:, 0]\n": "    return env.velocity(joint)[:, 0]\n"},
        says=(
            "--env.rewards.speed: speed() raised AttributeError: 'Env' object has no attribute 'velocity' (task.py, line 15)",
        ),
    ),
    Mistake(
        what="a command term that does not exist",
        changes={
            'observation(observations.command, command="aim")': 'observation(observations.command, command="target")'
        },
        says=("--env.observations.actor.aim: unknown command term target; available: aim",),
    ),
    Mistake(
        what="a success of numbers",
        changes={'env.qpos("rail")[:, 0].abs() < within': 'env.qpos("rail")[:, 0].abs()'},
        says=(
            "--env.successes.there: there() returned a tensor of float32; a success is boolean of shape (num_envs,), "
            "such as a comparison",
        ),
    ),
    Mistake(
        what="a success term that does not exist",
        changes={"command(aim).replace(": 'command(aim).replace(resample_on="tehre", '},
        says=("--env.commands.aim.resample-on tehre: is not a success term; available: there",),
    ),
    Mistake(
        what="a measure that does not exist",
        words="--env.successes.there.measure last",
        says=("--env.successes.there.measure last: choose from end, ever, count",),
    ),
    Mistake(
        what="an object that is not a free body",
        changes={"success(there, within=0.1)": 'success(objects.dropped, object="rail", below_m=0.0)'},
        says=(
            "--env.robot {folder}/cart.xml: this task needs what the robot lacks: object rail (for successes.there); "
            "it has none",
        ),
    ),
    Mistake(
        what="a command without columns",
        changes={"    return uniform(env, (-1.0, 1.0), 1)\n": "    return uniform(env, (-1.0, 1.0))\n"},
        says=(
            "--env.commands.aim: aim() returned a tensor of shape (num_envs,); a command is float32 of shape (num_envs, size); append [:, None]",
        ),
    ),
    Mistake(
        what="a command error of one column",
        changes={
            '(env.command("aim")[:, 0] - env.qpos("rail")[:, 0]).abs()': '(env.command("aim") - env.qpos("rail")).abs()'
        },
        says=(
            "--env.commands.aim.errors.miss: miss() returned a tensor of shape (num_envs, 1); an error is one value per world, shape (num_envs,); append [:, 0]",
        ),
    ),
    Mistake(
        what="a command by hand of another size",
        changes={"values.expand(env.num_envs, 1)": "values.expand(env.num_envs, 2)"},
        says=("--env.commands.aim.steer: steer() returned 2 columns; a draw of this command has 1",),
    ),
    Mistake(
        what="a pose of two columns",
        changes={
            "return uniform(env, (-1.0, 1.0), 1)": "return uniform(env, (-1.0, 1.0), 2)",
            "values.expand(env.num_envs, 1)": "values.expand(env.num_envs, 2)",
            "steer=steer)": "steer=steer, is_pose=True)",
        },
        says=(
            "--env.commands.aim.is_pose: the size of the command is 2; that of a position is 3, of a quaternion 4, of both 7",
        ),
    ),
    Mistake(
        what="an orientation that is marked nowhere",
        changes={
            "return uniform(env, (-1.0, 1.0), 1)": "return uniform(env, (-1.0, 1.0), 4)",
            "values.expand(env.num_envs, 1)": "values.expand(env.num_envs, 4)",
            "steer=steer)": "steer=steer, is_pose=True)",
        },
        says=(
            "--env.commands.aim.is_pose: the command is a quaternion; give object, the free joint where viewers mark it",
        ),
    ),
    Mistake(
        what="an orientation of an object that does not move",
        changes={"steer=steer)": 'steer=steer, object="rail")'},
        says=(
            "--env.robot {folder}/cart.xml: this task needs what the robot lacks: object rail (for commands.aim.object); it has none",
        ),
    ),
    Mistake(
        what="an error of estimates for all worlds together",
        changes={
            '"speed": observation(observations.joint_vel, joint="rail"),': '"speed": observation(observations.joint_vel, joint="rail").replace(estimate_error=torch.dist),'
        },
        says=(
            "--env.observations.actor.speed.estimate_error: dist() returned a tensor of shape (); an error is one value per world, shape (num_envs,)",
        ),
    ),
    Mistake(
        what="an event that replaces worlds.qpos",
        changes={"    worlds.qpos[:, 0] += uniform(env, (-width, width))\n": "    worlds.qpos = worlds.qpos + width\n"},
        says=(
            "--env.events.spread: spread() raised FrozenInstanceError: cannot assign to field 'qpos' (task.py, line 27); write into it, as in worlds.qpos[:, 0] += …",
        ),
    ),
    Mistake(
        what="an event that returns the worlds",
        changes={
            "    worlds.qpos[:, 0] += uniform(env, (-width, width))\n": "    worlds.qpos[:, 0] += uniform(env, (-width, width))\n    return worlds\n"
        },
        says=(
            "--env.events.spread: spread() returned a Worlds; an event changes worlds.qpos and worlds.qvel in place and returns nothing",
        ),
    ),
    Mistake(
        what="an event that takes no worlds",
        changes={"def spread(env: Env, worlds: Worlds, *, width: float)": "def spread(env: Env, *, width: float)"},
        says=("--env.events.spread: spread() must take env, worlds before its parameters",),
    ),
    Mistake(
        what="a curriculum that returns one number",
        changes={"    return level + 0.1": "    return level.mean() + 0.1"},
        says=(
            "--env.curriculum.level: harder() returned a tensor of shape (); a level is one value per world, shape (num_envs,)",
        ),
    ),
    Mistake(
        what="a joint of another kind",
        changes={'reward(speed, 1.0, joint="rail")': 'reward(rewards.joint_pos_limits, 1.0, joints=("hinge",))'},
        says=("--env.rewards.speed: joint hinge of the robot has no range",),
    ),
    Mistake(
        what="several mistakes at once",
        changes={
            "    return env.qvel(joint)[:, 0]\n": "    return env.qvel(joint)\n",
            "    return env.qpos(joints)\n": "    return env.qpos(joints)[:, 0]\n",
            '    return env.qpos("hinge")[:, 0].abs() > limit\n': '    return (env.qpos("hinge")[:, 0].abs() > limit).float()\n',
        },
        says=(
            "--env.observations.actor.places: places() returned a tensor of shape (num_envs,); an observation is float32 of shape (num_envs, size); append [:, None]",
            "--env.terminations.fell: fell() returned a tensor of float32; a termination is boolean of shape (num_envs,), such as a comparison",
            "--env.rewards.speed: speed() returned a tensor of shape (num_envs, 1); a reward is one value per world, shape (num_envs,); append [:, 0]",
        ),
    ),
    Mistake(
        what="a number that is none",
        words="--env.rewards.speed.weight fast",
        says=("--env.rewards.speed.weight fast: give a number",),
    ),
    Mistake(
        what="one number where there are two",
        words="--env.curriculum.level.bounds 1",
        says=("--env.curriculum.level.bounds: a value is missing; give 2",),
    ),
    Mistake(
        what="a network class that does not exist",
        words="--agent.actor.class-name Mlp",
        says=("--agent.actor.class-name Mlp: choose from MLPModel, CNNModel, RNNModel, or give package.module:Class",),
    ),
    Mistake(
        what="a level that does not exist",
        changes={"    return env.qvel(joint)[:, 0]\n": '    return env.level("easy")\n'},
        says=("--env.rewards.speed: unknown curriculum term easy; available: level",),
    ),
    Mistake(
        what="two ways to start a run",
        words="--resume --load nowhere.pt",
        says=("--load nowhere.pt: cannot be combined with --resume, which brings its own weights",),
    ),
)
