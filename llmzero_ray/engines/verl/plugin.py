"""Module that VeRL loads in each of its processes (VERL_USE_EXTERNAL_MODULES). It registers the CPU as a
platform and applies the patches that the process's environment requests."""

import os

from llmzero_ray.engines.verl import patches
from llmzero_ray.engines.verl.internals import QUEUE_NAMESPACE_ENV

patches.collect_garbage_rarely()  # most of a process's imports are still to come
if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    import llmzero_ray.engines.verl.cpu.platform  # noqa: F401  registers itself

    patches.patch_process_group_backend()
patches.meet_without_ports()
patches.use_thread_locks_for_progress_bars()
if namespace := os.environ.get(QUEUE_NAMESPACE_ENV):
    patches.patch_transfer_queue_namespace(namespace)
    patches.patch_transfer_queue_sockets()
