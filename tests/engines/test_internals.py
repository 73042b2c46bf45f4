"""Another VeRL or vLLM is refused before anything starts, by name and version; failures get a class and one
line."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from llmzero_ray.cli.doctor import machine_findings
from llmzero_ray.cli.doctor.probes import probe_machine
from llmzero_ray.config import parse_config
from llmzero_ray.engines.verl import failures, internals
from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.errors import ConfigError, EffectiveConfigError, EngineVersionError
from llmzero_ray.launch import preflight
from llmzero_ray.tune import internals as tune_internals


def test_the_installed_versions_are_the_ones_this_engine_was_written_against() -> None:
    internals.check_versions("cpu")


def test_another_version_is_refused_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "VERL_VERSION", "0.1.0")
    with pytest.raises(EngineVersionError, match=r"verl 0\.9\.1 is installed; this engine needs 0\.1\.0"):
        internals.check_versions("cpu")


def test_the_cpu_build_of_vllm_is_no_substitute_on_gpus() -> None:
    with pytest.raises(EngineVersionError, match=r"vllm 0\.27.* is installed; this engine needs 0\.24"):
        internals.check_versions("gpu")


def test_gpus_need_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "VLLM_VERSIONS", {"gpu": ("0.27",)})
    with pytest.raises(EngineVersionError, match=r"flash-attn is not installed; needed: 2\."):
        internals.check_versions("gpu")
    found = importlib.metadata.version
    versions = {"flash-attn": "2.8.3"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or found(name))
    internals.check_versions("gpu")
    versions["flash-attn"] = "1.0.9"
    with pytest.raises(EngineVersionError, match=r"flash-attn 1\.0\.9 is installed; this engine needs 2"):
        internals.check_versions("gpu")


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        ({}, True),
        ({f"+{internals.ATTENTION_KEY}": "flash_attention_2"}, True),
        ({f"+{internals.ATTENTION_KEY}": "sdpa"}, False),
        ({internals.ATTENTION_KEY: "sdpa"}, False),
    ],
)
def test_gpus_that_train_with_torchs_attention_need_no_flash_attention(
    overrides: dict[str, str], needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internals, "VLLM_VERSIONS", {"gpu": ("0.27",)})
    monkeypatch.setattr(internals, "DRIVER_FILE", "/nowhere")
    problem = preflight.machine_problem([], "gpu", overrides)
    assert (problem is not None and "flash-attn is not installed" in problem) == needed


def test_packed_sequences_do_not_see_each_other_with_torchs_attention() -> None:
    """As VeRL packs them: position ids that begin again, and no mask."""
    torch = pytest.importorskip("torch")
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, attn_implementation="sdpa"))
    parts = [torch.randint(0, 64, (1, n)) for n in (7, 5)]
    positions = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    ids = torch.cat(parts, dim=1)
    packed = model(input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False).logits
    torch.testing.assert_close(packed, torch.cat([model(input_ids=part).logits for part in parts], dim=1))


def test_ligers_kernels_need_gpus_and_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    internals.check_kernels("cpu", use_liger=False)
    with pytest.raises(EngineVersionError, match=r"use_liger: .* are for GPUs, .* leave .*use_liger out"):
        internals.check_kernels("cpu", use_liger=True)
    with pytest.raises(
        EngineVersionError, match=r"liger-kernel is not installed; needed: 0\.8\. pip install"
    ):
        internals.check_kernels("gpu", use_liger=True)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.8.2")
    internals.check_kernels("gpu", use_liger=True)


BF16 = {
    "actor_rollout_ref.rollout.dtype": "bfloat16",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "bf16",
}


@pytest.mark.parametrize(
    ("flags", "overrides", "noted"),
    [
        ("avx512f avx512_vnni", BF16, True),
        ("avx512f avx512_vnni", {}, False),
        ("avx512f avx512_bf16", BF16, False),
        ("amx_bf16 amx_tile", BF16, False),
        ("asimd bf16 i8mm", BF16, False),
    ],
)
def test_a_search_and_the_doctor_note_a_processor_that_is_slow_in_bfloat16(
    flags: str, overrides: dict[str, str], noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags} sse2\n")
    monkeypatch.setattr(internals, "PROCESSOR_FILE", str(tmp_path / "cpuinfo"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = parse_config({"name": "x", "engine": {"platform": "cpu", "overrides": overrides}})
    machine = probe_machine("verl", "cpu", overrides)
    (note,) = preflight.precision_notes(config) or [None]
    assert note == machine["slow"]
    assert (note is not None) == noted
    found = machine_findings.versions([], {"this machine": {**machine, "refused": None}})
    assert (found.status == "warn") == noted
    if note is not None:
        assert "no instructions for bfloat16" in note
        assert f"remove {' and '.join(BF16)} from engine.overrides" in note


def test_gpus_have_instructions_for_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu sse2\n")
    monkeypatch.setattr(internals, "PROCESSOR_FILE", str(tmp_path / "cpuinfo"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = parse_config({"name": "x", "engine": {"platform": "gpu", "overrides": BF16}})
    assert preflight.precision_notes(config) == []
    assert probe_machine("verl", "gpu", BF16)["slow"] is None


@pytest.mark.parametrize(
    ("said", "driver"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
            "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n",
            "535.129.03",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
            "580.65.06",
        ),
        ("something else\n", None),
    ],
)
def test_the_driver_says_its_version(
    said: str, driver: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text(said)
    monkeypatch.setattr(internals, "DRIVER_FILE", str(tmp_path / "version"))
    assert internals.driver_version() == driver


def test_a_driver_too_old_for_the_cuda_of_torch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu\n")
    monkeypatch.setattr(internals, "DRIVER_FILE", str(tmp_path / "version"))
    monkeypatch.setattr(internals, "VLLM_VERSIONS", {"gpu": ("0.27",)})
    found, versions = importlib.metadata.version, {"flash-attn": "2.8.3", "nvidia-cuda-runtime": "13.0.96"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or found(name))
    with pytest.raises(EngineVersionError, match=r"driver 570\.86\.15 is too old for CUDA 13\.0.* 580"):
        internals.check_versions("gpu")
    versions["nvidia-cuda-runtime"] = "12.8.90"
    internals.check_versions("gpu")
    del versions["nvidia-cuda-runtime"]
    versions["torch"] = "2.11.0+cu130"
    with pytest.raises(EngineVersionError, match="Update the driver"):
        internals.check_versions("gpu")


def test_a_system_library_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "VLLM_CPU_LIBRARY", "libnot_there.so.1")
    with pytest.raises(EngineVersionError, match=r"libnot_there\.so\.1.*apt-get install libnuma1"):
        internals.check_versions("cpu")


def test_names_that_are_gone_are_listed() -> None:
    with pytest.raises(EngineVersionError, match=r"omegaconf\.OmegaConf\.not_there, no_such_module\.x"):
        internals.check_names(
            {"omegaconf": ("OmegaConf.create", "OmegaConf.not_there"), "no_such_module": ("x",)}
        )


def test_every_private_name_of_ray_in_the_project_is_listed() -> None:
    root = Path(__file__).parents[2]
    used: set[tuple[str, str]] = set()
    for path in (*(root / "llmzero_ray").rglob("*.py"), *(root / "actors").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ray":
                names = {(str(node.module), alias.name) for alias in node.names}
                used |= {(module, name) for module, name in names if "._" in module or name.startswith("_")}
    listed = [*internals.RAY_PRIVATE.items(), *tune_internals.RELIED_ON.items()]
    private = {(module, name) for module, names in listed for name in names if "." not in name}
    assert used == {(module, name) for module, name in private if "._" in module or name.startswith("_")}
    internals.check_names(internals.RAY_PRIVATE)


def test_the_engine_is_imported_without_verl_vllm_or_torch() -> None:
    heavy = ("verl", "vllm", "torch", "ray")
    code = f"import sys, llmzero_ray.engines.verl.factory; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (RuntimeError("No available memory for the cache blocks."), "oom"),
        (MemoryError(), "oom"),
        (EffectiveConfigError("lr asked 1, acting 2"), "mismatch"),
        (ConfigError("unknown key"), "config"),
        (AssertionError("something inside VeRL"), "engine"),
    ],
)
def test_an_exception_gets_its_class(error: BaseException, name: str) -> None:
    assert failures.failure_class(error) == name


def test_a_dead_process_is_infrastructure_unless_it_ran_out_of_memory() -> None:
    assert failures.is_lost_process(
        RuntimeError("ray.exceptions.ActorDiedError: The actor died unexpectedly")
    )
    assert not failures.is_lost_process(
        RuntimeError("ActorDiedError ... torch.OutOfMemoryError: CUDA out of memory")
    )
    assert not failures.is_lost_process(ValueError("bad value"))


@pytest.mark.parametrize(
    "text",
    [
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: unspecified launch failure",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:12, remote process exited or there was a "
        "network error, NCCL version 2.28.9\nncclRemoteError: A call failed possibly due to a network error",
        "RuntimeError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
        "RuntimeError: No CUDA-capable device is detected",
    ],
)
def test_a_card_or_a_connection_that_failed_is_infrastructure(text: str) -> None:
    assert failures.is_lost_process(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "CUDA out of memory. Tried to allocate 2 GiB; NCCL watchdog thread terminated",
    ],
)
def test_what_the_phase_computed_wrongly_or_too_largely_is_its_own_fault(text: str) -> None:
    assert not failures.is_lost_process(RuntimeError(text))


def test_a_server_that_died_of_its_memory_says_so_in_the_log_alone() -> None:
    cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"
    assert failures.memory_cause(CORE_LOG.format(cause=cause)) == cause
    assert failures.memory_cause(CORE_LOG.format(cause="ValueError: of another kind")) is None
    assert failures.memory_cause(f"(WorkerDict pid=70) {cause}") is None  # it raises, where it is seen


def test_only_what_a_log_received_since_then_is_read(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert (failures.size(str(log)), failures.since(str(log), 0)) == (0, "")
    log.write_text("of an earlier phase\n")
    began = failures.size(str(log))
    log.write_text("of an earlier phase\nof this one\n")
    assert failures.since(str(log), began) == "of this one\n"


def test_the_cause_is_the_last_telling_line_and_never_longer_than_600_characters() -> None:
    text = 'ray::WorkerDict.init_model()\n  File "x.py", line 3\nValueError: LoRA rank 7 is not supported'
    assert failures.one_line(RuntimeError(text)) == "RuntimeError: ValueError: LoRA rank 7 is not supported"
    assert len(failures.one_line(RuntimeError("x" * 1000))) == 600


CORE_LOG = """\
\x1b[36m(RecordingServer pid=71)\x1b[0m (EngineCore pid=92) ERROR 11-22 17:40:00 [core.py:1140] EngineCore failed to start.
\x1b[36m(RecordingServer pid=71)\x1b[0m (EngineCore pid=92) ERROR 11-22 17:40:00 [core.py:1140] Traceback (most recent call last):
\x1b[36m(RecordingServer pid=71)\x1b[0m (EngineCore pid=92) ERROR 11-22 17:40:00 [core.py:1140] {cause}
\x1b[36m(RecordingServer pid=71)\x1b[0m Traceback (most recent call last):\x1b[32m [repeated 2x across cluster]\x1b[0m
\x1b[36m(RecordingServer pid=71)\x1b[0m RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
(WorkerDict pid=70) ValueError: of another process
"""  # noqa: E501


def test_an_engine_core_that_does_not_start_has_its_cause_in_the_log() -> None:
    error = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    assert failures.is_core_failure(error) and not failures.is_core_failure(RuntimeError("x"))
    cause = (
        "ValueError: To serve at least one request, 4 GiB KV cache is needed, which is larger than the rest"
    )
    assert failures.cause_of_core_failure(CORE_LOG.format(cause=cause)) == cause
    assert failures.cause_of_core_failure(CORE_LOG.format(cause="working")) is None


@pytest.mark.parametrize(
    "line",
    [
        "(RecordingServer pid=71) ImportError: libtbb.so.12: cannot open shared object file",
        "(RecordingServer pid=71) (Worker pid=93) ERROR 11-22 17:40:00 [multiproc_executor.py:9] "
        "ImportError: libtbb.so.12: cannot open shared object file",
    ],
    ids=["while the core imports", "in a worker of the core"],
)
def test_the_cause_may_come_before_vllm_marks_its_lines_or_from_below_the_core(line: str) -> None:
    later = (
        "\n(RecordingServer pid=71) (EngineCore pid=92) Exception: WorkerProc initialization failed due to "
        "an exception in a background process. See stack trace for root cause."
    )
    found = failures.cause_of_core_failure(line + later)
    assert found == "ImportError: libtbb.so.12: cannot open shared object file"


def test_the_tail_of_a_log_is_its_last_lines_and_a_missing_log_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("\n".join(str(i) for i in range(100)))
    assert failures.tail(str(log), n_lines=2) == "98\n99"
    assert failures.tail(str(tmp_path / "none")) == ""


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    assert derive_seed(1, 2, 3) == derive_seed(1, 2, 3)
    assert len({derive_seed(1, 2, 3), derive_seed(1, 3, 2), derive_seed(12, 3), derive_seed(1, 23)}) == 4
    assert 0 <= derive_seed("x") < 2**62
    code = "from llmzero_ray.engines.verl.seeds import derive_seed; print(derive_seed('a', 1))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == derive_seed("a", 1)
