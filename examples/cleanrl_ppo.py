"""PPO in one file, in the style of CleanRL, on a task of mjtrain as a Gymnasium vector environment.

    python examples/cleanrl_ppo.py --iterations 40

Needs gymnasium. It knows nothing of mjtrain but the environment: networks, rollout and update are here.
"""

import argparse

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Normal

GAMMA, LAMBDA, CLIP, EPOCHS, BATCHES = 0.99, 0.95, 0.2, 5, 4


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers, orthogonally initialised."""
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def train(envs: VectorEnv, iterations: int, steps: int = 32, seed: int = 1) -> list[float]:
    """Learn, and return the mean return of the last 100 episodes after each iteration."""
    torch.manual_seed(seed)
    envs = RecordEpisodeStatistics(envs)
    inputs, outputs = map(gymnasium.spaces.flatdim, (envs.single_observation_space, envs.single_action_space))
    actor, critic, log_std = mlp(inputs, outputs, 0.01), mlp(inputs, 1, 1.0), nn.Parameter(torch.zeros(outputs))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, eps=1e-5)
    curve, seen = [], torch.as_tensor(envs.reset(seed=seed)[0])
    for _ in range(iterations):
        rows = []
        for _ in range(steps):
            with torch.no_grad():
                policy = Normal(actor(seen), log_std.exp())
                actions, value = policy.sample(), critic(seen)[:, 0]
            after, rewards, terminated, truncated, infos = envs.step(actions.numpy())
            if truncated.any():  # the value of the state in which time was up, which is not the one that came after
                last = torch.as_tensor(np.stack(infos["final_obs"][truncated]))
                rewards[truncated] += GAMMA * critic(last)[:, 0].detach().numpy()
            done = torch.as_tensor(terminated | truncated).float()
            rows.append((seen, actions, policy.log_prob(actions).sum(1), value, torch.as_tensor(rewards), done))
            seen = torch.as_tensor(after)
        observations, actions, log_probs, values, rewards, dones = map(torch.stack, zip(*rows, strict=True))
        with torch.no_grad():
            following, advantage, advantages = critic(seen)[:, 0], torch.zeros(envs.num_envs), torch.zeros_like(values)
        for step in reversed(range(steps)):
            alive = 1 - dones[step]
            advantage = rewards[step] + GAMMA * alive * following - values[step] + GAMMA * LAMBDA * alive * advantage
            advantages[step], following = advantage, values[step]
        data = [part.flatten(0, 1) for part in (observations, actions, log_probs, advantages, advantages + values)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(data[0])).chunk(BATCHES):
                batch, actions, before, gains, returns = (part[rows] for part in data)
                policy = Normal(actor(batch), log_std.exp())
                ratio = (policy.log_prob(actions).sum(1) - before).exp()
                gains = (gains - gains.mean()) / (gains.std() + 1e-8)
                surrogate = torch.min(gains * ratio, gains * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                loss = 0.5 * (critic(batch)[:, 0] - returns).square().mean() - surrogate
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        curve.append(float(np.mean(envs.return_queue)) if envs.return_queue else float("nan"))
        print(f"iteration {len(curve)} | return {curve[-1]:.2f}", flush=True)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="Cartpole-Balance")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--num-threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.num_threads)
    name = f"mjtrain.gymnasium:mjtrain/{arguments.task}"
    made = gymnasium.make_vec(name, num_envs=arguments.num_envs, num_threads=arguments.num_threads)
    train(made, arguments.iterations)
    made.close()
