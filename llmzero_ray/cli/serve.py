"""The command `serve`: serves your own model for the agents until the command is interrupted."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.config import hub_model
from llmzero_ray.errors import ConfigError
from llmzero_ray.launch import actors
from llmzero_ray.prepared import check_model_dir
from llmzero_ray.utils.private_files import private_file

_LOOK_S = 1.0


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="directory or name of the model")],
    vllm_options: Annotated[
        list[str],
        typer.Argument(
            metavar="-- OPTIONS", help="options of `vllm serve`", default_factory=list, show_default=False
        ),
    ],
    *,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="what it is called (default: the directory's name)", show_default=False
        ),
    ] = "",
    gpus: Annotated[int, typer.Option(metavar="N", min=0, help="GPUs of one machine; 0: on its CPUs")] = 0,
    cpus: Annotated[int, typer.Option(metavar="N", min=1, help="CPUs reserved for it")] = 1,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="until it must answer")] = 900.0,
    log: Annotated[str, typer.Option(metavar="FILE", help="for vLLM's log")] = "model-server.log",
) -> int:
    """Serve a model on the cluster, or on this machine without one, and print how a search uses it.

    Raises:
        ConfigError: there is no such model, or something that is not an option comes before `--`.
    """
    if vllm_options and not vllm_options[0].startswith("-"):
        raise ConfigError(f"serve: unexpected {vllm_options[0]!r}; options of `vllm serve` follow a `--`.")
    console = TerminalConsole()
    if not model:
        raise ConfigError("serve: the model's directory or name is empty.")
    repo_id, revision = hub_model(model)
    if Path(model).is_dir():
        check_model_dir(model)
    elif repo_id is None:
        raise ConfigError(
            f"serve: there is no model directory {model}. Name a directory with config.json and weights, "
            "or a model of the Hugging Face Hub as hf://OWNER/NAME."
        )
    else:
        model = repo_id
        vllm_options = [*vllm_options, *(["--revision", revision] if revision else [])]
    print_line(console, actors.head.start_text())
    import ray

    with actors.head.disconnecting():
        if not actors.head.join_if_there():
            actors.head.start_private_head()
        name = name or Path(os.path.abspath(model)).name
        print_line(console, f"starting vLLM with {model}; its log is {log}")
        key = secrets.token_urlsafe(32)
        key_file = private_file("serve", key + "\n")
        try:
            actor, group, base_url = actors.model_server.start_server(
                model,
                name,
                gpus=gpus,
                cpus=cpus,
                extra=vllm_options,
                log=str(Path(log).absolute()),
                timeout_s=timeout,
                key=key,
            )
        except BaseException:
            key_file.remove()
            raise
        lines = ["agents:", "  backend: claude", f"  base_url: {base_url}", f"  model: {name}"]
        lines += [f"  key_file: {key_file.path}", "  price: [0, 0, 0, 0]"]
        print_lines(console, (f"serving {name} until Ctrl-C; in search.yaml:", *lines))
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while True:
                ray.get(actor.check.remote())
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            print_line(console, "ending the server ...")
        except ray.exceptions.RayError as error:
            raise actors.model_server.engine_error(error) from None
        finally:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.close.remote(), timeout=60)
            ray.kill(actor)
            ray.util.remove_placement_group(group)
            key_file.remove()
    return 0
