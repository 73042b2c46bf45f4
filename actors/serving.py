"""The command `serve`: a model of one's own for the agents, served until the command is interrupted.

Not here: the server (model_server.py).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from pathlib import Path

from rich.console import Console

from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks import check_model_dir

_LOOK_S = 1.0


def serve(arguments: argparse.Namespace) -> int:
    """Serve a model on the cluster, or on this machine when there is none, and say how a search asks it."""
    console = Console()
    if not arguments.model:
        raise ConfigError("serve: the model's directory or name is empty.")
    if Path(arguments.model).is_dir():
        check_model_dir(arguments.model)
    import ray

    from .head import disconnecting, join_if_there
    from .model_server import start_server, told

    with disconnecting():
        if not join_if_there():
            ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        name = arguments.name or Path(arguments.model).name
        console.print(f"starting vLLM with {arguments.model}; its log is {arguments.log}", highlight=False)
        actor, group, base_url = start_server(
            arguments.model,
            name,
            gpus=arguments.gpus,
            cpus=arguments.cpus,
            extra=arguments.passed_on,
            log=str(Path(arguments.log).absolute()),
            timeout_s=arguments.timeout,
        )
        lines = ["agents:", "  backend: claude", f"  base_url: {base_url}", f"  model: {name}"]
        for line in (f"serving {name} until Ctrl-C; in search.yaml:", *lines, "  price: [0, 0, 0, 0]"):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while True:
                ray.get(actor.check.remote())
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            console.print("ending the server ...")
        except ray.exceptions.RayTaskError as error:
            raise told(error) from None
        finally:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.close.remote(), timeout=60)
            ray.kill(actor)
            ray.util.remove_placement_group(group)
    return 0
