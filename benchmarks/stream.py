"""Rate of metric points that the early stopper can ingest, and its delay in stopping a phase under that load.

    python -m benchmarks.stream [--runners 64] [--seconds 60] [--rates 1000] [--sizes small,full]
        [--phase-s 5,15]

Runs the real early stopper on a private Ray, with N runner processes that publish at the given rates (points
per second, all runners together) and a stand-in for the coordinator. Each phase streams for 5 to 15 seconds,
then its loss is NaN; `stop_ms` is the time from there until the runner receives `stop`. Rates apply to points
of ten metrics (small) and of all metrics that VeRL logs (full); every tenth point has a validation. Prints
one JSON line per round: points published and ingested per second, polls per second, points per poll,
percentiles of the latency, and the cores kept busy by stopper, runners, stand-in and Ray, by other work, and
by the host. Figures are valid only if the last two are about 0.

64 runners take half a minute to start and about 5 GiB. Run nothing else at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from llmzero_ray.agents.knowledge import expected_metrics
from llmzero_ray.hyperparameters import complete, defaults
from llmzero_ray.records.metrics import KLS, REWARDS

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
SEARCH = "stream"
SMALL = (
    *REWARDS,
    *KLS,
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/entropy",
    "actor/lr",
    "response_length/mean",
    "timing_s/step",
)
_CTL_THREADS = 4
_WARM_UP_S = 3.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runners", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rates", default="1000", help="points per second, comma-separated")
    parser.add_argument("--sizes", default="small,full")
    parser.add_argument("--tick-ms", type=float, default=100.0, help="time between bursts of a runner")
    parser.add_argument("--test-freq", type=int, default=10, help="points between two validations")
    parser.add_argument("--phase-s", default="5,15", help="seconds of a phase, at least and at most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, actors(options.runners, root) as runners:
        for size in options.sizes.split(","):
            for rate in options.rates.split(","):
                print(json.dumps(measure(runners, size, float(rate), options)), flush=True)


@contextmanager
def actors(n: int, root: str) -> Iterator[list[Any]]:
    """Ready runners, the stopper and the stand-in, on a Ray that ends with the block."""
    import ray

    from actors.names import NAMESPACE, actor_options, coordinator_name, name_on_cluster, runner_name
    from actors.stopper import start_stopper
    from benchmarks.stream_actors import StandIn, StreamingRunner
    from llmzero_ray.config import parse_config
    from llmzero_ray.engines.base import Slot

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        place = Path(root, SEARCH)
        slots = name_on_cluster(place)
        ray.remote(StandIn).options(**actor_options(coordinator_name(place))).remote(slots)
        config = parse_config({"name": SEARCH, "storage": root})
        Path(place, "logs").mkdir(parents=True)
        start_stopper(config, root, 500, {})
        wrapped = ray.remote(concurrency_groups={"ctl": _CTL_THREADS})(StreamingRunner)
        runners = []
        for i in range(n):
            slot = Slot(search=slots, index=i, placement_groups=(), gpus_per_node=1, cpus_per_gpu=1)
            runners.append(wrapped.options(**actor_options(runner_name(slots, i))).remote(slot, place))
        ray.get([runner.health.remote() for runner in runners])
        yield runners
    finally:
        ray.shutdown()


def measure(runners: list[Any], size: str, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """One round."""
    import ray

    from benchmarks.stream_actors import Load, Window

    shortest, longest = map(float, options.phase_s.split(","))
    load = Load(
        names=metric_names(size),
        points_per_s=rate / len(runners),
        tick_s=options.tick_ms / 1000,
        test_freq=options.test_freq,
        phase_s=(shortest, longest),
    )
    ray.get([runner.prepare.remote(load) for runner in runners])
    window = Window(begin=time.time() + _WARM_UP_S, seconds=options.seconds)
    under_way = [runner.stream.remote(window) for runner in runners]
    time.sleep(_WARM_UP_S)
    before = cpu_seconds()
    time.sleep(options.seconds)
    busy = {who: s - before.get(who, 0.0) for who, s in cpu_seconds().items()}
    done = ray.get(under_way)
    stops = sorted(1000 * s for outcome in done for s in outcome.stop_s)
    polls = sum(outcome.n_polls for outcome in done)
    ingested = sum(outcome.ingested for outcome in done)
    cuts = statistics.quantiles(stops, n=100, method="inclusive") if len(stops) > 1 else []
    return {
        "runners": len(runners),
        "metrics": len(load.names),
        "published_per_s": round(sum(outcome.published for outcome in done) / options.seconds),
        "ingested_per_s": round(ingested / options.seconds),
        "polls_per_s": round(polls / options.seconds),
        "points_per_poll": round(ingested / max(1, polls), 1),
        "stops": len(stops),
        "stop_ms": {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "max": round(stops[-1], 1)}
        if cuts
        else None,
        "busy_cores": {who: round(s / options.seconds, 2) for who, s in sorted(busy.items())},
    }


def metric_names(size: str) -> tuple[str, ...]:
    """`small`: ten metrics; `full`: all that VeRL logs in a step of GRPO."""
    return SMALL if size == "small" else tuple(sorted(expected_metrics(complete(defaults(), {}))))


def cpu_seconds() -> dict[str, float]:
    """CPU seconds so far by user: this process and its children, `others`, and the `host`."""
    spent: dict[str, float] = {}
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            title, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.Error:
            continue
        names = {"StopperActor": "stopper", "StreamingRunner": "runners", "StandIn": "stand_in"}
        who = next((short for name, short in names.items() if name in title), "ray")
        spent[who] = spent.get(who, 0.0) + times.user + times.system
    whole = psutil.cpu_times()
    spent["host"] = getattr(whole, "steal", 0.0)
    spent["others"] = whole.user + whole.nice + whole.system - sum(spent.values()) + spent["host"]
    return spent


if __name__ == "__main__":
    main()
