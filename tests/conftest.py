"""Environment of every test process, set before anything imports Ray.

Ray, VeRL and vLLM read these once, at import or at process start; a fixture would come too late.
Not here: fixtures of engines and clusters (in the folders that use them).
"""

import os
import signal
import threading

# A shell starts background jobs with Ctrl-C ignored, and all processes below inherit that; tests send it.
# Benchmarks import this in actors too, where a thread of Ray's may do it.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.update(
    {
        # Token mode would write ~/.ray/auth_token and refuse test clusters joined by address.
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's metrics reader outlives ray.shutdown in a process that calls ray.init more than once, and may
        # crash it some time later. Only the head of test_gauges has one.
        "RAY_enable_open_telemetry": "0",
        # Every line of a worker's log must reach the test that reads it.
        "RAY_DEDUP_LOGS": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "WANDB_MODE": "offline",
        # No test may download anything but packages.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
    }
)
