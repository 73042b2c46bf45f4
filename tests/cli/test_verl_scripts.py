"""`llmzero init --from`: scripts that start VeRL's trainer give what bash gives it, or say why not.

The scripts in scripts/ are made after those of other projects; GIVEN is what bash gives the trainer in each.
"""

from __future__ import annotations

import socket
from itertools import permutations
from pathlib import Path

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.prepared.sandbox import CURE, Isolation, shell
from llmzero_ray.verl_script import Script, config_of, read_script
from tests.marks import needs_sandbox

pytestmark = needs_sandbox
SCRIPTS = Path(__file__).with_name("scripts")
A, M, R = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "actor_rollout_ref.rollout."
LORA = {f"{M}lora_rank": "32"}
GIVEN = {
    "01_two_machines_case": {
        "algorithm.adv_estimator": "grpo", "data.train_batch_size": "512", f"{A}ppo_mini_batch_size": "128",
        f"{R}gpu_memory_utilization": "0.6", **LORA,
    },
    "03_empty_then_default": {**LORA, "trainer.n_gpus_per_node": "4", f"{R}tensor_model_parallel_size": "2"},
    "04_arithmetic_in_array": {
        **LORA, f"{R}n": "8", f"{R}max_num_batched_tokens": "2560", f"{R}temperature": "0.7",
        f"{R}top_p": "0.9", "data.max_response_length": "2048",
    },
    "05_arithmetic_variable": {
        **LORA, "data.max_response_length": "8192", f"{A}ppo_max_token_len_per_gpu": "8704", f"{R}n": "8",
    },
    "07_string_of_args": {"algorithm.adv_estimator": "grpo", f"{R}n": "8", **LORA, f"{A}optim.lr": "3e-5"},
    "08_bash_c": {"algorithm.adv_estimator": "grpo", f"{R}n": "8", **LORA, f"{A}optim.lr": "3e-5"},
    "09_kill_old_run_first": {f"{R}n": "8", **LORA, f"{A}optim.lr": "3e-5"},
    "12_two_stages": {**LORA, "data.max_response_length": "4096", f"{A}optim.lr": "3e-5"},
    "13_positional": {**LORA, f"{R}n": "8", f"{R}name": "vllm"},
    "14_thinking_off": {
        **LORA, f"{R}n": "8", "data.apply_chat_template_kwargs.enable_thinking": "False",
        f"{R}checkpoint_engine.update_weights_bucket_megabytes": "4096",
    },
    "15_val_before_train": {**LORA, f"{R}n": "8", "trainer.val_before_train": "False"},
    "18_short_run": {**LORA, f"{R}n": "8", "trainer.total_training_steps": "5", "trainer.test_freq": "5"},
    "19_crlf": {f"{M}path": "/models/q", **LORA, f"{R}n": "8"},
    "24_own_yaml": {f"{R}n": "8"},
    "25_megatron": {
        f"{R}n": "8", f"{A}strategy": "megatron", f"{A}megatron.tensor_model_parallel_size": "4",
        f"{A}megatron.pipeline_model_parallel_size": "2", f"{A}optim.lr": "1e-6",
    },
    "29_comment_in_the_middle": {**LORA, f"{R}n": "8", f"{A}optim.lr": "3e-5"},
    "31_ray_job": {**LORA, f"{R}n": "8", f"{A}optim.lr": "3e-5"},
    "35_list_of_modules": {
        **LORA, f"{M}target_modules": "[q_proj,k_proj,v_proj,o_proj]", f"{R}n": "8",
        "data.train_files": "['/d/a.parquet','/d/b.parquet']",
    },
    "38_lora_from_adapter": {
        f"{M}path": "/models/q4", f"{M}lora_adapter_path": "/adapters/warm", f"{A}optim.lr": "3e-5",
        f"{R}n": "8",
    },
    "39_old_validation_names": {
        **LORA, f"{R}n": "8", f"{R}temperature": "1.0", f"{R}val_temperature": "0.6", f"{R}n_val": "8",
        "reward_model.reward_manager": "dapo", "trainer.rejection_sample": "True",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(GIVEN))
def test_what_bash_gives_to_the_trainer_is_read(name: str) -> None:
    assert read_script(SCRIPTS / f"{name}.sh").overrides == GIVEN[name]


def test_every_script_is_read() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.sh")} == GIVEN.keys()


# --- more of each kind: TRAIN stands for the trainer, N for the key of the group size


def script_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(text.replace("TRAIN", "python3 -m verl.trainer.main_ppo").replace("N=", f"{R}n="))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "x=${x:-}\nTRAIN N=${x:-8}",
        ': "${x:=8}"\nTRAIN N=$x',
        "x=8; TRAIN N=${x:+8}",
        "x=4; unset x; TRAIN N=${x-8}",
        "x=(2 4 8); TRAIN N=${x[-1]}",
        "declare -A x=([small]=4 [big]=8); TRAIN N=${x[${size:-big}]}",
        "a=8; x=a; TRAIN N=${!x}",
        "x=Qwen-8; TRAIN N=${x##*-}",
        'x="N=4 N=8"; TRAIN $x',
        "x=$(( 1 << 3 )); TRAIN N=$x",
        'let "x = 2 ** 3"; TRAIN N=$x',
        "x=`expr 4 + 4`; TRAIN N=$x",
        "x=$(echo 'a 8' | awk '{print $2}'); TRAIN N=$x",
        "mapfile -t x < <(printf '%s\\n' N=8); TRAIN \"${x[@]}\"",
        'read -r -d "" x <<EOF\nN=8\nEOF\nTRAIN $x',
        "if [[ ${big:-0} -eq 1 ]]; then x=16; else x=8; fi; TRAIN N=$x",
        "run() { local x=$1; TRAIN N=$x; }; run 8",
        'x="TRAIN N=8"; eval "$x"',
        'x=(TRAIN); x+=(N=8); "${x[@]}"',
        "sbatch --wrap='TRAIN N=8'",
        "sbatch <<EOF\n#!/bin/bash\nsrun TRAIN N=8\nEOF",
        "cat > job.sh <<EOF\nTRAIN N=\\$1\nEOF\nsbatch -p gpu job.sh 8",
        "ssh node1 'cd /w && TRAIN N=8'",
        'docker run --gpus all image bash -lc "pip install -e . && TRAIN N=8"',
        "export x=8; sudo -E bash -c 'TRAIN N=$x'",
        "tmux new-session -d 'TRAIN N=8'",
        "conda run -n verl TRAIN N=8",
        "nohup TRAIN N=8 > logs/run.log 2>&1 &",
        "py=/opt/conda/bin/python; exec $py -m verl.trainer.main_ppo N=8 2>&1",
        "torchrun --nproc_per_node=1 -m verl.trainer.main_ppo N=8",
        "python3 verl/trainer/main_ppo.py N=8",
        "echo N=8 | xargs TRAIN",
        "set -euo pipefail\nexec > >(tee -a run.log) 2>&1\nmkdir -p /data/log\ncd /workspace/verl\nTRAIN N=8",
        "pgrep -f verl.trainer.main_ppo && kill -9 $(pgrep -f verl.trainer.main_ppo)\nTRAIN N=8",
        "until ray status | grep -q '16.0 GPU'; do sleep 5; done\nTRAIN N=8",
        "while ! curl -s localhost:8000; do sleep 1; done\nTRAIN N=8",
        "set -e\n[ -d /models/q ] || { echo no model; exit 1; }\nTRAIN N=8",
        "lr=1\nwhile [ $# -gt 0 ]; do case $1 in --lr) lr=$2; shift 2 ;; *) exit 1 ;; esac; done\nTRAIN N=8",
        "TRAIN N=4 ++N=8",
        "TRAIN \\\r\n  N=8\r\n",
        "\ufeffTRAIN N=8",
        "TRAIN \\ \n  N=8",
        "# TRAIN N=2 \\\n#  N=4 \\\nTRAIN N=8",
        "TRAIN N=8 \\\n# N=2\necho N=4",
        "(cd examples && TRAIN N=8)",
        'main() { TRAIN N=8; }; if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then main; fi',
        "trap 'exit 1' ERR\nf() { TRAIN N=8; }\ngrep -q x /dev/null || true\nf",
        "until TRAIN N=8; do sleep 9; done",
        "n=8; while read -r k v; do [ $k = n ] && n=$v; done <<< 'n 8'; TRAIN N=$n",
        "python3 recipe/gen_x/main_ppo.py N=8",
    ],
)  # fmt: skip
def test_bash_itself_decides_what_a_value_is(text: str, tmp_path: Path) -> None:
    read = read_script(script_of(tmp_path, text))
    assert (read.overrides, read.unknown) == ({f"{R}n": "8"}, {})


def test_a_strict_script_that_looks_for_a_program_is_read_to_its_trainer(tmp_path: Path) -> None:
    text = "set -euo pipefail\nif ! command -v npu-smi > /dev/null; then echo none; fi\nTRAIN N=8"
    read = read_script(script_of(tmp_path, text))
    assert (read.overrides, read.remarks) == ({f"{R}n": "8"}, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "given", "reason"),
    [
        ("TRAIN N=$n", "N=$n", "n is not set in the script"),
        ("set -u; x=$n; TRAIN N=$x", "N=$n", "n is not set in the script"),
        (': "${n:?is needed}"; TRAIN N=$n', "N=$n", "n is not set in the script"),
        ("TRAIN N=$((nodes * 8))", "N=0", "it is computed from nodes, not set in the script"),
        ("TRAIN N=${a:-1}$b", "N=1$b", "b is not set in the script"),
        ("echo ${n:-none}; TRAIN N=4$n", "N=4$n", "n is not set in the script"),
        ("TRAIN N=$2 M=${1:-q}", "N=$2", "$2 is an argument of the script"),
        (
            '[ $# -ge 1 ] || { echo usage; exit 1; }\nx=$1; shift; TRAIN N=$x "$@"',
            "N=$1",
            "$1 is an argument",
        ),
        ("x=$(nvidia-smi -L | wc -l); TRAIN N=$x", "N=$(nvidia-smi -L)", "it is what `nvidia-smi -L` prints"),
        ("TRAIN N=$(python3 -c 'print(8)')", "N=$(python3 -c)", "it is what `python3 -c` prints"),
        ("(( $(nproc) > 8 )) && x=16 || x=4; TRAIN N=$x", "N=4", "it depends on what `nproc` prints"),
        (
            'if [[ "$(nvidia-smi)" == *H100* ]]; then x=16; else x=4; fi; TRAIN N=$x',
            "N=4",
            "`nvidia-smi` prints",
        ),
        ("case $(hostname) in login*) x=4 ;; *) x=8 ;; esac; TRAIN N=$x", "N=8", "what `hostname` prints"),
        (
            "if command -v npu-smi; then x=16; else x=4; fi; TRAIN N=$x",
            "N=16",
            "what `command -v npu-smi` prints",
        ),
        (
            "x=$(grep -c processor /proc/cpuinfo); TRAIN N=$x",
            "N=$(grep /proc/cpuinfo)",
            "`grep /proc/cpuinfo`",
        ),
        ("if [ -f /data/big ]; then x=16; else x=4; fi; TRAIN N=$x", "N=4", "whether /data/big is there"),
        ("[[ -e ~/.big ]] && x=16 || x=4; TRAIN N=$x", "N=4", "/.big is there"),
        ("x=16; x=$(cat /data/n); TRAIN N=$x", "N=$(cat /data/n)", "it is what `cat /data/n` prints"),
        ("read -p 'how many? ' x; TRAIN N=$x", "N=(typed)", "it is typed in as the script runs"),
        ("x=$(< /data/n); TRAIN N=4$x", "N=4", "whether /data/n is there"),
        ("x=4; while read -r v; do x=$v; done < /data/n; TRAIN N=$x", "N=4", "whether /data/n is there"),
        ('TRAIN N="$(date +%s)"', "N=$(date +%s)", "it is what `date +%s` prints"),
        ("TRAIN N=$((RANDOM % 9))", None, "it changes from run to run"),
        ("x=; TRAIN N=$x", "N=", "it is empty in the script"),
    ],
)
def test_a_value_that_nobody_knows_is_not_taken_and_said_by_its_reason(
    text: str, given: str | None, reason: str, tmp_path: Path
) -> None:
    read = read_script(script_of(tmp_path, text))
    assert f"{R}n" not in read.overrides
    shown, why = read.unknown[f"{R}n"]
    assert given is None or shown == given.replace("N=", f"{R}n=")
    assert reason in why


def test_what_an_unset_variable_would_change_is_said(tmp_path: Path) -> None:
    text = 'if [ -n "$SLURM_JOB_ID" ]; then x=$SLURM_NNODES; else x=1; fi\nTRAIN N=8 trainer.nnodes=$x'
    read = read_script(script_of(tmp_path, text))
    assert read.overrides == {f"{R}n": "8", "trainer.nnodes": "1"}
    (remark,) = read.remarks
    assert remark.startswith("trainer.nnodes: as where the script's variables and arguments are not set")
    assert "(SLURM_JOB_ID or SLURM_NNODES)" in remark


@pytest.mark.parametrize(
    "text",
    ["run() { TRAIN N=$1 data.seed=1; }; run 4; run 8", "for n in 4 8; do TRAIN N=$n data.seed=1; done"],
)
def test_of_several_commands_the_first_is_read_and_the_others_are_said(text: str, tmp_path: Path) -> None:
    read = read_script(script_of(tmp_path, text))
    assert read.overrides == {f"{R}n": "4", "data.seed": "1"}
    assert (
        f"starts the trainer 1 further time; the first command was read, the others differ in {R}n=8"
        in (read.remarks[0])
    )


def test_files_beside_the_script_are_read_and_others_are_said(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "env.sh").write_text("n=8\n")
    (tmp_path / "inner.sh").write_text(f"python3 -m verl.trainer.main_ppo {R}n=$n data.seed=$1\n")
    text = 'd=$(cd "$(dirname "$0")" && pwd)\nset -a; source $d/lib/env.sh; . /opt/env.sh\nbash $d/inner.sh 3'
    read = read_script(script_of(tmp_path, text))
    assert read.overrides == {f"{R}n": "8", "data.seed": "3"}
    assert read.remarks == ["/opt/env.sh: was not read; what it sets is not known"]


def test_a_link_to_a_script_is_read_as_bash_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".env").write_text("n=8\n")
    (tmp_path / "elsewhere" / ".netrc").write_text("n=4\n")
    text = 'd=$(dirname "$(readlink -f "$0")"); source $d/.env; for f in $d/.n*; do . $f; done; TRAIN N=$n'
    (tmp_path / "link.sh").symlink_to(script_of(tmp_path / "elsewhere", text))
    monkeypatch.chdir(tmp_path)
    assert read_script(Path("link.sh")).overrides == {f"{R}n": "8"}


def test_a_configuration_beside_the_script_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "base.yaml").write_text("trainer: {save_freq: 7}\nhydra: {run: {dir: x}}\n")
    (tmp_path / "conf" / "my_grpo.yaml").write_text(
        "defaults: [ppo_trainer, base, _self_]\n"
        "actor_rollout_ref: {actor: {optim: {lr: 1e-6}}, rollout: {n: 4, temperature: 0.7}}\n"
        "data:\n  max_response_length: ${oc.env:CAP}\n"
    )
    made = translated(tmp_path, "TRAIN --config-path=$PWD/conf --config-name my_grpo N=8")
    assert made.root.overrides == {"lr": 1e-6, "temperature": 0.7, "n": 8}
    assert made.phase.save_freq == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TRAIN", "the trainer was found in it (verl.trainer.main_ppo), but no override"),
        (
            'TRAIN --config-name=$1 "${@:2}"',
            "the trainer was found in it (verl.trainer.main_ppo), but no override",
        ),
        (
            "pkill -f verl.trainer.main_ppo\necho TRAIN N=8",
            "no command `python -m verl.trainer.main_ppo ...`",
        ),
        (
            "torchrun -m verl.trainer.fsdp_sft_trainer data.seed=1",
            "no command `python -m verl.trainer.main_ppo ...`",
        ),
        ("if [ 1 ; then\nTRAIN N=8", "bash says: "),
    ],
)
def test_a_script_that_gives_nothing_is_refused(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--from", str(script_of(tmp_path, text)), "--out", str(tmp_path / "x.yaml")]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "x.yaml").exists()


def test_a_cap_that_is_not_taken_makes_no_room_either(tmp_path: Path) -> None:
    made = config_of(
        read_script(script_of(tmp_path, "TRAIN N=8 data.max_response_length=999999999")), {"name": "x"}
    )
    assert list(made.left) == ["data.max_response_length=999999999"]
    assert "engine" not in made.data and "eval" not in made.data


# --- the sandbox


def test_nothing_of_a_script_reaches_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").write_text("as it was")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        text = (
            f"echo x > kept; rm -f {tmp_path}/kept; touch new ~/llmzero_new {tmp_path}/new\n"
            "x=$(< /etc/passwd); [ -n \"$x\" ] && read=1\n"
            f"(exec 3<>/dev/tcp/127.0.0.1/{listening.getsockname()[1]}) && net=1\n"
            "TRAIN N=8 data.seed=${read:-0}${net:-0}\n"
        )  # fmt: skip
        read = read_script(script_of(tmp_path, text))
    assert read.overrides[f"{R}n"] == "8" and read.overrides["data.seed"] == "00"
    assert (tmp_path / "kept").read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "run.sh"]
    assert not (Path.home() / "llmzero_new").exists()


def test_without_a_sandbox_no_script_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shell, "find_isolation", lambda: Isolation(kind="none", why="bwrap is not installed"))
    assert main(["init", "--from", str(SCRIPTS / "31_ray_job.sh"), "--out", str(tmp_path / "x.yaml")]) == 2
    said = capsys.readouterr().err
    assert "bwrap is not installed" in said and CURE in said


# --- where it goes


def translated(tmp_path: Path, text: str) -> SearchConfig:
    made = tmp_path / "x.yaml"
    assert main(["init", "--from", str(script_of(tmp_path, text)), "--out", str(made), "--force"]) == 0
    return load_config(made)


def said_of(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["init", "--from", str(SCRIPTS / f"{name}.sh"), "--out", str(tmp_path / "x.yaml")]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("12_two_stages", "the first command was read, the others differ in data.max_response_length=8192"),
        ("13_positional", f"{M}path=$1: $1 is an argument of the script"),
        ("14_thinking_off", "taken: 4 of 4 overrides"),
        ("15_val_before_train", "val_before_train=False: phase.validate_start says which"),
        ("24_own_yaml", "the settings of my_grpo.yaml (--config-name) are not read"),
        ("25_megatron", "taken: 2 of 5 overrides"),
        ("29_comment_in_the_middle", "line 4: a comment inside of a command was left out"),
        ("39_old_validation_names", f"n_val=8: VeRL 0.9.1 has {R}val_kwargs.n in its place: validation is"),
        ("39_old_validation_names", "trainer.rejection_sample=True: VeRL 0.9.1 has no such key\n"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_said_truly(
    name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in said_of(name, tmp_path, capsys)


@pytest.mark.parametrize("name", ["24_own_yaml", "38_lora_from_adapter", "31_ray_job"])
def test_a_script_is_not_said_to_train_all_weights_where_it_may_train_an_adapter(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "trains all weights" not in said_of(name, tmp_path, capsys)


def test_a_kind_that_a_search_does_not_have_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = said_of("25_megatron", tmp_path, capsys)
    assert said.count("trains with Megatron, a search with FSDP2") == 1
    assert "no such key" not in said and "did you mean" not in said


def test_thinking_is_switched_off_in_every_phase(tmp_path: Path) -> None:
    made = translated(tmp_path, (SCRIPTS / "14_thinking_off.sh").read_text())
    assert made.engine.overrides == {
        "+data.apply_chat_template_kwargs.enable_thinking": False,
        f"{R}checkpoint_engine.update_weights_bucket_megabytes": 4096,
    }


@pytest.mark.verl
def test_verl_takes_what_is_put_into_engine_overrides(tmp_path: Path) -> None:
    from llmzero_ray.engines.verl.overrides import compose

    text = f"TRAIN +data.apply_chat_template_kwargs.enable_thinking=False +{M}override_config.x=1"
    composed = compose(translated(tmp_path, text).engine.overrides)
    assert composed.data.apply_chat_template_kwargs.enable_thinking is False
    assert composed.actor_rollout_ref.model.override_config.x == 1


def test_a_list_of_modules_becomes_the_pattern_that_means_the_same(tmp_path: Path) -> None:
    made = translated(tmp_path, (SCRIPTS / "35_list_of_modules.sh").read_text())
    assert made.model.target_modules == r".*\.(q_proj|k_proj|v_proj|o_proj)"


@pytest.mark.parametrize(
    ("overrides", "phase"),
    [
        ({"trainer.total_training_steps": "5", "trainer.test_freq": "5", "trainer.save_freq": "5"}, (5, 5)),
        ({"trainer.total_training_steps": "500", "trainer.test_freq": "100"}, (500, 100)),
        ({"trainer.total_training_steps": "5", f"{R}n": "8"}, (5, 5)),
        ({"trainer.total_training_steps": "5", "trainer.test_freq": "-1"}, (5, 5)),
        ({"trainer.total_training_steps": "5", "trainer.test_freq": "100"}, (5, 5)),
    ],
)
def test_which_overrides_are_taken_does_not_depend_on_their_order(
    overrides: dict[str, str], phase: tuple[int, int]
) -> None:
    base = {"name": "x", "task": {"dir": "d"}, "model": {"path": "m"}}
    for order in permutations(overrides.items()):
        made = config_of(Script(overrides=dict(order)), base)
        refused = [key for key, value in overrides.items() if value in ("-1", "100") and phase == (5, 5)]
        assert (
            len(made.left) == len(refused)
            and (made.data["phase"]["n_steps"], made.data["phase"]["test_freq"]) == phase
        )


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (f"{R}val_temperature=0.6", f"has {R}val_kwargs.temperature in its place"),
        (f"{R}n_agent=5", f"has {R}n in its place: it means something else there"),
        (f"{A}optim.lr=1e-5,1e-6", "it is a sweep over several values"),
        (f"{A}optim.lr=choice(1e-5,1e-6)", "it is a sweep over several values"),
        (f"{R}n=${{trainer.nnodes}}", "hydra looks it up"),
        (f"{A}ppo_mini_batchsize=7", f"did you mean {A}ppo_mini_batch_size?"),
        (f"{A}k_percent=0.2", "has no such key$"),
        (f"{R}response_len=5", "has no such key$"),
        ("trainer.rejection_sample=True", "has no such key$"),
        ("trainer.balance_batch=True", "the engine sets the trainer up"),
        ("algorithm.adv_estimator=gae", "it needs a critic"),
        (f"{R}name=sglang", "a search samples with vLLM"),
        ("reward_model.reward_kwargs.max_resp_len=5", "the reward is the task's"),
        ("global_profiler.steps=[1]", "profiling and tracing"),
        ("ray_kwargs.ray_init.num_cpus=8", "a search starts Ray"),
    ],
)
def test_each_override_that_is_not_taken_has_its_own_reason(override: str, reason: str) -> None:
    key, _, text = override.partition("=")
    made = config_of(
        Script(overrides={key: text}), {"name": "x", "task": {"dir": "d"}, "model": {"path": "m"}}
    )
    assert made.taken == {} and made.n_left == 1
    ((given, why),) = made.left.items()
    assert given == override and (why.endswith(reason[:-1]) if reason.endswith("$") else reason in why)


def test_a_renamed_key_of_the_same_meaning_is_taken_under_its_new_name() -> None:
    made = config_of(
        Script(overrides={f"{A}loss_mode": "clip_cov"}),
        {"name": "x", "task": {"dir": "d"}, "model": {"path": "m"}},
    )
    assert made.data["engine"]["overrides"] == {f"{A}policy_loss.loss_mode": "clip_cov"}
