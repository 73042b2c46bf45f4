"""Search for a training strategy of a small network with Ray Tune: python docs/examples/tune_torch.py [DIR]

A network of 4,000 parameters learns which of two spirals a point lies on. Each trial is a phase of five
epochs with its own learning rate, weight decay and batch size; it starts from scratch or from a checkpoint of
another trial. Then the best strategy is trained again as one trial. Takes about a minute on two CPUs.
"""

import math
import sys
import tempfile
from pathlib import Path

import ray
import torch
from ray import tune

from llmzero_ray.tune import StrategyRetraining, get_checkpoint, tree_search

SPACE = {
    "lr": tune.loguniform(1e-4, 1e-1),
    "weight_decay": tune.loguniform(1e-6, 1e-1),
    "batch_size": tune.choice([16, 32, 64, 128]),
}


def spirals(n, seed):
    """`n` noisy points on two spirals: (points, labels)."""
    noise = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (n,), generator=noise)
    angle = 3 * math.pi * torch.rand(n, generator=noise).sqrt()
    turn = angle + math.pi * label
    points = torch.stack((angle * turn.cos(), angle * turn.sin()), dim=1) / (3 * math.pi)
    return points + 0.02 * torch.randn(n, 2, generator=noise), label


def train(config):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 60),
        torch.nn.ReLU(),
        torch.nn.Linear(60, 60),
        torch.nn.ReLU(),
        torch.nn.Linear(60, 2),
    )
    epoch = 0
    checkpoint = get_checkpoint()  # this trial's own after a restart, else that of the phase it goes on from
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt", weights_only=True)
        network.load_state_dict(saved["network"])
        epoch = saved["epoch"]
    optimizer = torch.optim.AdamW(network.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    points, labels = spirals(2000, seed=1)
    val_points, val_labels = spirals(1000, seed=2)
    while True:  # the search ends the phase
        epoch += 1
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(config["batch_size"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(points[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (network(val_points).argmax(dim=1) == val_labels).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"network": network.state_dict(), "epoch": epoch}, Path(folder) / "state.pt")
            tune.report(
                {"accuracy": accuracy, "loss": loss.item(), "epoch": epoch},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


def main(folder):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    search_alg, scheduler = tree_search(
        metric="accuracy",
        space=SPACE,
        root={"lr": 1e-3, "weight_decay": 1e-4, "batch_size": 64},
        budget=8,
        phase_steps=5,
    )
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=search_alg,
            scheduler=scheduler,
            num_samples=-1,
            max_concurrent_trials=2,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name="spirals", storage_path=folder, verbose=0),
    ).fit()
    for result in results:
        print(f"{result.config['llmzero_phase']:40} accuracy {result.metrics['accuracy']:.3f}")
    strategy = Path(folder) / "spirals" / "strategy.yaml"
    print(strategy.read_text())
    again = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(scheduler=StrategyRetraining(strategy)),
        run_config=tune.RunConfig(name="replay", storage_path=folder, verbose=0),
    ).fit()
    print(f"trained again as one trial: accuracy {again[0].metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main(str(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tune_torch").absolute()))
