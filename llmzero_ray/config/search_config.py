"""The configuration of a search, `search.yaml`: every field once, with default, bound, unit and meaning.

Not here: reading a file (loading.py), the meaning of hyper-parameters (hyperparameters/), and the numbers of
the search rules (search_rules.py), which are only carried.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    field_validator,
    model_validator,
)

from llmzero_ray.config.search_rules import MethodRules
from llmzero_ray.config.strategy_file import check_rank
from llmzero_ray.config.yaml_text import (
    AS_TUPLE,
    OBJECT_STORES,
    PLUGIN,
    LocalPath,
    StrictModel,
    local_path,
    setting,
    to_yaml,
)
from llmzero_ray.utils.text import is_number

HUB_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$"
"""`OWNER/NAME`, as the Hugging Face Hub names models."""
_HUB_MODEL = re.compile(rf"(hf://)?({HUB_ID[1:-1]})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,95}}))?")
_FOLDERS = re.compile(
    r"(base_?)?models?|data(sets?)?|runs?|checkpoints?|ckpts?|weights|out(puts?)?|results?|experiments?|shared|"
    r"storage|scratch|workspace|work|home|mnt|root|tmp|cache|src|huggingface|hf|hub|pretrained|finetuned|local",
    re.IGNORECASE,
)
"""Names that are folders of somebody's disk before they are owners on the Hub."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^@]+")
_N_PRICES = 4
FIXED_NUM_SEQS = 128
FIXED_UTILIZATION = 0.5
"""Value of `auto` without an estimate."""


Provider: TypeAlias = Literal["anthropic", "bedrock", "vertex", "foundry", "openai"]
Thinking: TypeAlias = Literal["enabled", "adaptive", "between_tools", "disabled"]
Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]
Priors: TypeAlias = Literal["paper", "appendix_f"]
OnCap: TypeAlias = Literal["expert", "stop"]
OnOutage: TypeAlias = Literal["wait", "rules"]
"""Values of the settings of `agents` with these names."""
_AGENT_METHODS = ("llmzero", "skills")
"""Search methods whose phases are stopped early unless the file says otherwise. Their classes are not asked
(search.plans_its_runs), since a file is read without importing a method, which may be a user's own."""


def hub_model(path: str) -> tuple[str | None, str | None]:
    """(id, revision) of the Hub model that a `model.path` names, or (None, None) if it names a directory,
    existing or not. `hf://OWNER/NAME` always refers to the Hub."""
    found = _HUB_MODEL.fullmatch(path)
    if found is None:
        return None, None
    scheme, repo_id, revision = found.groups()
    owner = repo_id.partition("/")[0]
    if not scheme and (_FOLDERS.fullmatch(owner) or Path(owner).is_dir() or Path(path).exists()):
        return None, None
    return repo_id, revision


class TaskConfig(StrictModel):
    """The data and the reward."""

    dir: LocalPath = setting("data/task", min_length=1)
    """Directory of the prepared task (manifest.json and three parquet files); `prepare` makes it when it has
    no manifest."""
    family: str | None = None
    """Procedural family that `prepare` generates: chain_sum, register, echo, or one that an installed package
    registers. null: the directory holds a prepared task of your own."""
    n_train: int = setting(4096, "items", ge=1)
    """Training items that `prepare` generates."""
    n_val: int = setting(512, "items", ge=1)
    """Validation items; a score's standard error is about 0.5 / sqrt(n_val) at worst."""
    n_test: int = setting(1024, "items", ge=1)
    """Test items, sealed until the search is over."""
    seed: int = setting(1, ge=0)
    """Seed of the generated data and of the tiny model's warm start."""


class ModelConfig(StrictModel):
    """The base model and the adapter that is trained on it."""

    path: str | None = None
    """Directory of the base model, or a model of the Hugging Face Hub, which is downloaded once:
    `hf://OWNER/NAME` or `hf://OWNER/NAME@REVISION`, without `hf://` too unless OWNER is a directory here or a
    usual name of one, such as `models`. Null: the tiny model that `prepare` made for the task."""
    hub_id: str | None = setting(None, "OWNER/NAME", pattern=HUB_ID)
    """Id of the base model on the Hugging Face Hub, used in cards and pushed adapters."""
    lora_rank: int = setting(16, "LoRA rank", ge=1, le=1024)
    """Rank of every adapter of the search."""
    lora_alpha: int = setting(32, "LoRA alpha", ge=1, le=4096)
    """Scale of the adapter, alpha / rank."""
    target_modules: str = setting("all-linear", min_length=1)
    """Layers that get an adapter, in PEFT's words."""

    @field_validator("path")
    @classmethod
    def _a_folder_or_of_the_hub(cls, path: str | None) -> str | None:
        if path is None or _HUB_MODEL.fullmatch(path):
            return path
        if path.lower().startswith("hf:"):
            raise ValueError("a model of the Hub is hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
        return local_path(path)

    @field_validator("target_modules")
    @classmethod
    def _is_a_pattern(cls, targets: str) -> str:
        try:
            re.compile(targets)
        except re.error as error:
            raise ValueError(
                f"{targets!r} is not a pattern ({error}); must be all-linear or a regular expression such as "
                r"'.*\.(q_proj|v_proj)'."
            ) from error
        return targets

    @property
    def id_on_the_hub(self) -> str | None:
        """`hub_id`, or the id in `path`; None where neither is."""
        return self.hub_id or hub_model(self.path or "")[0]


class TokenCostConfig(StrictModel):
    """Cost of a token in `budget.compute`: seconds of the engine, as `llmzero compare` measures them.
    With 1 and 1, tokens themselves are counted."""

    rollout: float = setting(1.0, "seconds per token", ge=0)
    """Seconds per sampled token."""
    trained: float = setting(1.0, "seconds per token", ge=0)
    """Seconds per token that is trained on."""


class BudgetConfig(StrictModel):
    """Limits that end a search; the first one that is reached counts."""

    runs: int = setting(16, "training runs", ge=2)
    """Phases of the search, failed ones included. The root is run 1, so that a search needs at least 2."""
    gpu_hours: float | None = setting(None, "GPU hours", gt=0)
    """GPU hours of all phases together (on the CPU: hours of its logical GPUs); null: no limit."""
    wall_clock_hours: float | None = setting(None, "hours", gt=0)
    """Hours in which the search was running; time between an interruption and its resume is not counted.
    Null: no limit."""
    dollars: float | None = setting(None, "dollars", gt=0)
    """Price of all agent calls together; null: no limit."""
    compute: float | None = setting(None, "seconds at `token_cost`", gt=0)
    """Tokens sampled and trained on in all phases together, failed and stopped ones and validations included,
    each at its `token_cost`: the same for every search method, whatever its recipes cost per step. Methods
    that plan their runs count `runs` standard phases of equal compute in it. Null: no limit."""
    token_cost: TokenCostConfig = TokenCostConfig()
    target: float | None = setting(None, "validation score")
    """The search ends when a node reaches this validation score; null: never."""


class PhaseConfig(StrictModel):
    """Length and cadence of phases."""

    n_steps: int = setting(40, "training steps", ge=1)
    """Length of the root, and the usual length of a phase."""
    max_steps: int = setting(200, "training steps", ge=1)
    """Longest phase that a proposal may ask for."""
    test_freq: int = setting(10, "training steps", ge=1)
    """Steps between two validations."""
    save_freq: int = setting(10, "training steps", ge=1)
    """Steps between two adapters that are kept in any case; new bests and the last step are always saved."""
    validate_start: Literal["auto", "always", "first"] = "auto"
    """Which phases validate before their first step. `always`: every one, which proves that each continues
    where its parent was. `first`: an engine's first phase after each of its starts. A later one takes the
    stored validation of the checkpoint it starts from, answers included, once vLLM was found to serve that
    policy (log-probabilities of a fixed text), and validates if there is none. `auto`: `always` on the CPU,
    `first` on GPUs."""
    max_hours: float | None = setting(None, "hours", gt=0)
    """A phase that trains longer than this ends, as completed, at its next step; null: no limit."""

    @model_validator(mode="after")
    def _consistent(self) -> PhaseConfig:
        if self.max_steps < self.n_steps:
            raise ValueError(
                f"phase.max_steps is {self.max_steps}; must be >= phase.n_steps, which is {self.n_steps}."
            )
        if self.test_freq > self.n_steps:
            raise ValueError(
                f"phase.test_freq is {self.test_freq}; must be <= phase.n_steps, which is {self.n_steps}: "
                "a phase that never validates has no score."
            )
        return self


def _flat(overrides: dict[str, Any]) -> dict[str, Any]:
    """Reject nested blocks: each key has one spelling, so that two searches can be compared key by key."""
    for key, value in overrides.items():
        members = value if isinstance(value, list | tuple) else (value,)
        if any(not isinstance(member, bool | int | float | str | None) for member in members):
            raise ValueError(
                f"{key!r} is {value!r}; must be a number, text, true, false, null or a list of these. "
                "Write nested keys with dots, such as actor_rollout_ref.actor.optim.lr: 0.001."
            )
    return {key: list(value) if isinstance(value, tuple) else value for key, value in overrides.items()}


_Overrides = Annotated[dict[str, Any], AfterValidator(_flat)]


class RootConfig(StrictModel):
    """The first run of the search: the default recipe."""

    overrides: _Overrides = Field(default_factory=dict)
    """Hyper-parameter (VeRL key or alias) -> value, on top of this project's defaults."""


class EvalConfig(StrictModel):
    """Scoring of policies, constant during the search."""

    max_response_length: int = setting(1024, "tokens", ge=1)
    """Longest response when a policy is scored, whatever a phase's own cap is."""


_DEADLINES_S = {"proposer": 600.0, "early_stopper": 60.0}
_OTHERS_DEADLINE_S = 120.0
"""Default deadlines of agents."""


def _prices(value: Any) -> Any:
    """Four numbers as a tuple. Any other value except null is rejected."""
    if value is None or isinstance(value, tuple):
        return value
    numbers = isinstance(value, list) and all(is_number(v) and v >= 0 for v in value)
    if not numbers or len(value) != _N_PRICES:
        raise ValueError(
            f"{value!r} is not a price; must be null or four numbers >= 0: dollars per million tokens of "
            "input, output, cache write and cache read, such as [3, 15, 3.75, 0.3]."
        )
    return tuple(float(v) for v in value)


_Price = Annotated[tuple[float, float, float, float] | None, BeforeValidator(_prices)]


class AgentModelConfig(StrictModel):
    """Settings of one agent; null: as the other agents."""

    model: str | None = setting(None, min_length=1)
    """Id of its language model."""
    thinking: Thinking | None = None
    """The API's thinking type."""
    thinking_budget: int | None = setting(None, "tokens", ge=1024)
    """Tokens for thinking in addition to the answer's own."""
    effort: Effort | None = None
    """Effort that the model spends on an answer."""
    deadline_s: float | None = setting(None, "seconds", gt=0)
    """Timeout of one of its answers."""
    price: _Price = None
    """Price of its model, as in `agents.price`."""


class AllowedKey(StrictModel):
    """Bounds within which proposals may set a key."""

    kind: Literal["float", "int", "bool", "choice", "text"]
    """Type of its values; a `text` has at most 200 plain characters."""
    low: float | None = None
    """Smallest number."""
    high: float | None = None
    """Largest number."""
    choices: Annotated[tuple[str, ...], AS_TUPLE] = ()
    """The words of a `choice`."""
    nullable: bool = False
    """Whether null is a value."""
    doc: str = setting("", max_length=200)
    """Its effect, explained to the agents."""

    @field_validator("low", "high", mode="before")
    @classmethod
    def _as_float(cls, value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53
        return float(value) if whole else value

    @model_validator(mode="after")
    def _bounded(self) -> AllowedKey:
        if self.kind in ("float", "int"):
            if self.low is None or self.high is None or self.low > self.high:
                raise ValueError(f"a key of kind {self.kind} needs low and high, low <= high.")
        elif self.kind == "choice" and not self.choices:
            raise ValueError("a key of kind choice needs choices: [a, b].")
        return self


class AgentsConfig(StrictModel):
    """Who proposes, analyses errors and judges running phases."""

    backend: str = setting("expert", pattern=PLUGIN)
    """`expert`: documented rules, offline. `claude`: a language model behind the Messages API. `recorded`:
    the answers that the search `recorded_from` recorded. Or your own: `package.module:factory` of (config,
    n_val), or the name of an entry point in the group llmzero_ray.agents."""
    proposer: str = setting("backend", pattern=PLUGIN)
    """`backend`: the agent of `backend`. `strategy`: the phases of a found strategy, as `llmzero retrain`
    repeats it. Or your own: `package.module:factory` of (config, n_val) that gives a `Proposer`
    (llmzero_ray/records/agents.py), or the name of an entry point in the group llmzero_ray.proposers."""
    model: str = setting("claude-sonnet-5-5", min_length=1)
    """Id of the language model, as its server names it."""
    provider: Provider = "anthropic"
    """Who serves `model`. `bedrock`, `vertex` and `foundry`: Anthropic's models on AWS, Google Cloud and
    Azure. `openai`: OpenAI, or any server of its chat completions at `base_url` (Azure, vLLM, OpenRouter)."""
    base_url: str | None = None
    """Another server of the provider's protocol, such as vLLM inside the cluster; null: the public one. It
    ends before /v1 for the Messages API, and with /v1 for `openai`."""
    key_file: LocalPath | None = None
    """File with the key of the server at `base_url`, such as the one that `llmzero serve` names. Null: the
    environment's key is sent to the public server and to servers of this machine, and none to others."""
    temperature: float | None = setting(None, ge=0, le=2)
    """Sampling temperature of the agents' model. If null, it is not sent. It is never sent with thinking."""
    thinking: Thinking | None = None
    """The API's thinking type; the accepted ones depend on the model. If null, it follows what the server's
    models endpoint states: proposer and error analyzer think before an answer where the model can, and the
    early stopper does not where that can be turned off. If nothing is stated, it is not sent."""
    thinking_budget: int | None = setting(None, "tokens", ge=1024)
    """Tokens for thinking in addition to the answer's own."""
    effort: Effort | None = None
    """Effort that the model spends on an answer. If null, it is not sent."""
    per_agent: dict[
        Literal["proposer", "error_analyzer", "early_stopper", "skill_agent"], AgentModelConfig
    ] = Field(default_factory=dict)
    """Model, thinking and effort of single agents, if they differ from those above; `skill_agent` is that of
    `search.method: skills`."""
    priors: Priors = "paper"
    """Source of the experience in the prompts: `paper` for our notes with the conclusions of the LLMZero
    paper, `appendix_f` for the notes that the paper gives its own agents."""
    allow: dict[str, AllowedKey] = Field(default_factory=dict)
    """Keys that proposals may set in addition to the known hyper-parameters, each with its bounds, such as
    `data.truncation: {kind: choice, choices: [error, left]}`; also of an engine or algorithm of your own."""
    strict_tools: bool = True
    """Ask the server to enforce the schema of an answer while it generates."""
    deadline_s: float | None = setting(None, "seconds", gt=0)
    """Timeout of one answer in seconds, retries included. After it the expert answers, or the phase
    continues. If null: 600 for the proposer, 60 for the early stopper, 120 for the others."""
    price: _Price = None
    """Dollars per million tokens: input, output, cache write, cache read. Null: the list price."""
    on_cap: OnCap = "expert"
    """Behaviour when `budget.dollars` is used up: the expert takes over, or the search ends."""
    fallback_model: str | None = setting(None, min_length=1)
    """Id of another model of the same server. It is asked once the main model has been overloaded or out of
    reach for half of a deadline. It costs its list price, or `price` if it has none; the cap counts it."""
    on_outage: OnOutage = "rules"
    """Behaviour if no model answers because the server is overloaded or out of reach. `rules`: the expert
    answers. `wait`: proposer and error analyzer ask again, after one minute and then ever longer, up to a
    quarter of an hour; other slots train on."""
    prompts: LocalPath | None = None
    """Directory whose files replace the shipped prompts of the same name."""
    visual: bool = True
    """Whether the agents see pictures of the curves."""
    approve: bool = False
    """Whether each proposal waits for a person, who accepts, edits or refuses it (`llmzero approve`), while
    other slots train on. With `recorded`, the answers that were recorded count instead."""
    approve_hours: float | None = setting(24.0, "hours", gt=0)
    """Deadline of a person's answer. After it the proposal is accepted. Null: it waits indefinitely."""
    recorded_from: LocalPath | None = None
    """Directory of the search whose answers `recorded` gives; for the proposer `strategy` the
    strategy.yaml that it repeats."""

    def deadline_of(self, agent: str | None) -> float:
        """Timeout in seconds of one answer of an agent of a search, or of one outside of a search (None)."""
        own = next((one.deadline_s for name, one in self.per_agent.items() if name == agent), None)
        return own or self.deadline_s or _DEADLINES_S.get(agent or "", _OTHERS_DEADLINE_S)

    @model_validator(mode="after")
    def _consistent(self) -> AgentsConfig:
        if self.key_file is not None and self.base_url is None:
            raise ValueError(
                "agents.key_file is the key of a server of your own, which agents.base_url must name; the "
                "key of the public one is given by ANTHROPIC_API_KEY or ANTHROPIC_API_KEY_FILE."
            )
        if self.backend == "recorded" and self.recorded_from is None:
            raise ValueError(
                "agents.backend is 'recorded', which needs agents.recorded_from: the directory of a search "
                "that was run with `claude`."
            )
        return self


class StopperSettings(StrictModel):
    """Early stopping of running phases."""

    enabled: bool = True
    """If false, no stopper runs: phases end at n_steps, at a limit, or when the user stops them. If not
    given, it is false for search methods other than `llmzero` and `skills`: their runs go to the end, as the
    paper's baselines do."""
    interval_s: float = setting(0.0, "seconds", ge=0)
    """Seconds of training between two questions to the early-stopper agent. 0: it is asked at every
    validation; the paper asks every 900 s."""
    interval_steps: int | None = setting(None, "training steps", ge=1)
    """Steps between two questions. If null, `interval_s` applies."""
    min_steps: int = setting(10, "training steps", ge=1)
    """Steps before which the agent is not asked; in a phase of fewer than twice as many, half of the phase.
    The paper judges nothing before step 10."""
    stop_below: float = setting(0.03, "share", ge=0, le=1)
    """Chance below which a phase is stopped: a language model gives the chance that the phase's peak still
    passes the best score. The rules do not use it."""
    collapse: bool = True
    """Whether the collapse detector may end a phase: a KL of 3 times its earlier median, after which the
    mean reward lost 60% of its best level."""
    unmoved: bool = True
    """Whether the first phase may end at its half because its learning rate is too low: the KL to the base
    model is below 0.005 (in proportion less before step 10), and neither the reward nor validation rises."""
    rules: list[Annotated[str, Field(pattern=PLUGIN)]] = Field(default_factory=list)
    """Further rules that may end a phase. Each is the name of an entry point in the group
    llmzero_ray.stop_rules, or `package.module:factory`; the factory gets this block's settings and gives a
    `llmzero_ray.stopping.rules.StopRule`."""

    def first_question(self, n_steps: int) -> int:
        """Step of a phase of `n_steps` steps from which the agent is asked."""
        return min(self.min_steps, max(1, n_steps // 2))


class EngineConfig(StrictModel):
    """Engine that trains, and its resources."""

    backend: str = setting("verl", pattern=PLUGIN)
    """`verl`, or for an engine of your own `package.module:factory`, called with (config, task, slot), or the
    name of an entry point in the group llmzero_ray.engines."""
    platform: Literal["auto", "cpu", "gpu"] = "auto"
    """`auto` takes GPUs when the machine has some."""
    max_prompt_length: int = setting(512, "tokens", ge=1)
    """Longest prompt. Rows with a longer one are left out on GPUs, of validation and test too; on the CPU
    such a row fails its phase."""
    max_response_length: int = setting(1024, "tokens", ge=1)
    """Longest response that any phase of the search may ask for: the server reserves that context."""
    max_num_seqs: Annotated[int, Field(ge=1)] | Literal["auto"] = setting("auto", "sequences")
    """Sequences that the server generates at once. `auto`: 128 on the CPU; on GPUs one server's part of a
    step or of a validation by the default recipe, at most 256. It is chosen once, when the search begins."""
    kv_cache_bytes: int = setting(64 * 2**20, "bytes", ge=2**20)
    """The server's cache on the CPU; on GPUs `gpu_memory_utilization` counts."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=0.95)] | Literal["auto"] = setting(
        "auto", "share of a GPU's memory"
    )
    """The server's share of each GPU. `auto`: on GPUs by the estimate of memory, the largest share with
    which every stage of the most demanding phase fits, less 0.05; 0.5 where the card or the model is not
    known. Chosen once, when the search begins."""
    tensor_model_parallel_size: int = setting(1, "GPUs", ge=1)
    """GPUs that one server spreads over."""
    agent_workers: int = setting(1, "processes", ge=1)
    """Processes that drive rollouts, per slot."""
    reward_workers: int = setting(1, "processes", ge=1)
    """Processes that compute rewards, per slot."""
    rollout_calls: Literal["auto", "batched", "per_request"] = "auto"
    """Way in which rollouts are requested. `batched`: a whole batch in one call to each server, with shipped
    rewards computed in the trainer's process; batches that need VeRL's agent loops (tools, several turns,
    images) still use them. `per_request`: VeRL's agent loops for every sample. `auto`: `batched` on the CPU,
    `per_request` on GPUs."""
    serve_merged: bool = False
    """Give vLLM merged weights (base plus adapter) instead of a separate adapter: decoding is faster on GPUs,
    but each push sends the whole model. The sum is rounded to vLLM's precision, which may lose small changes
    of an adapter (`merge/rounding` in the metrics is the share). The served weights are compared with the
    policy after every push; a phase that lost its adapter fails as `mismatch` and says so."""
    vllm_model_runner: Literal["auto", "v1", "v2"] = "auto"
    """Which of its two model runners vLLM uses on GPUs; `auto`: its own choice by model and settings, which
    the slot's log names."""
    stop_deadline_s: float | None = setting(None, "seconds", gt=0)
    """A phase asked to stop that has not ended after this long is killed; at least one step and a save must
    fit in. Null: 600 on the CPU; on GPUs twice the estimated seconds of the phase's rollout and update, where
    every answer reaches its cap, and at least 600."""
    start_timeout_s: float = setting(900.0, "seconds", gt=0)
    """Longest cold start of the engine."""
    hang_min_s: float | None = setting(None, "seconds", gt=0)
    """A stage of a phase (rollout, update, validation, save) in which nothing has been finished, no answer
    either, for longer than this and than `hang_factor` times its usual time is a hang: the engine is killed,
    the phase repeated. Null: 600 on the CPU; on GPUs twice the estimated seconds of the phase's longest
    stage, and at least 600."""
    hang_factor: float = setting(5.0, "times the median of the stage", ge=1)
    """See `hang_min_s`."""
    overrides: _Overrides = Field(default_factory=dict)
    """Raw VeRL keys, fixed for the whole search: not hyper-parameters, no agent sees them."""

    @property
    def sequences_at_once(self) -> int:
        """`max_num_seqs`, or the CPU's value if nothing has been chosen for `auto`."""
        return FIXED_NUM_SEQS if self.max_num_seqs == "auto" else self.max_num_seqs

    @property
    def server_share(self) -> float:
        """`gpu_memory_utilization`, or half a GPU if nothing has been chosen for `auto`."""
        return FIXED_UTILIZATION if self.gpu_memory_utilization == "auto" else self.gpu_memory_utilization


class SlotsConfig(StrictModel):
    """The hardware that trains: `count` slots, each training one phase at a time."""

    count: int = setting(1, "slots", ge=1)
    """Phases trained at once. Useful: about budget.runs / phases of the best strategy."""
    nodes: int = setting(1, "machines", ge=1)
    """Machines of one slot."""
    gpus_per_node: int = setting(1, "GPUs", ge=1)
    """GPUs that a slot takes on each of its machines (on the CPU: logical ones, one process each)."""
    cpus_per_gpu: int = setting(3, "CPUs", ge=1)
    """CPUs reserved with each GPU, for VeRL's worker processes on it."""
    gpu_memory_gib: float | None = setting(None, "GiB", gt=0)
    """Memory of each GPU that processes can use, for the estimate of what fits (39.4 of an A100 of 40 GB):
    proposals that do not fit are rejected. If null, they are not judged; `doctor` asks the machines."""
    reserve: Literal["at_start", "when_needed"] = "at_start"
    """Time at which the slots beyond the first get their hardware: `at_start` holds it from the beginning;
    `when_needed` asks for it once a second phase can begin, which in a tree search is when the root has
    ended. That saves their GPU hours and, where machines are added on demand, costs the wait for them."""
    timeout_s: float = setting(600.0, "seconds", gt=0)
    """Seconds to wait until the cluster provides a slot. After that the search is refused."""
    max_infra_retries: int = setting(3, "repeats", ge=0)
    """Maximum retries of a phase after its hardware was lost. A phase that is lost twice from the same point
    has failed, whatever retries are left."""

    @property
    def n_gpus(self) -> int:
        """GPUs of one slot, over all its machines."""
        return self.nodes * self.gpus_per_node


class CheckpointsConfig(StrictModel):
    """Retention of checkpoints on disk."""

    max_gib: float | None = setting(None, "GiB", gt=0)
    """Maximum total size of all adapters. Beyond it the least useful are deleted, but never one that was
    resumed from, a best one, or the last of a node that may be expanded. If null, nothing is deleted."""
    rolling_freq: int | None = setting(None, "training steps", ge=0)
    """Steps between two full checkpoints of a running phase (one is kept, for retries after lost hardware).
    If null, `phase.save_freq` applies; 0 keeps none."""


class FinalConfig(StrictModel):
    """Measurements on the test split once the search is over."""

    test: bool | Literal["all"] = True
    """Score the base model and the best strategy on the test split, once each (`best` says the same). `all`:
    every node's best step as well, for tables; no agent sees the scores. If false, nothing is scored. May be
    changed once the search has ended: missing scores are then measured."""
    default_recipe: bool | Literal["compute", "whole"] = "compute"
    """Also train the default recipe in one phase, and score it, to show the search's gain. `compute`: for the
    compute of the best strategy's phases: tokens sampled and trained on, each at the seconds measured in
    those phases, or at `budget.token_cost` if the budget counts compute. `whole`: for the compute of all
    phases of the search; its best step within the strategy's compute, and its best of all, are scored. True:
    for the strategy's total steps, which need not cost the same. False: not at all. May be changed once the
    search has ended: the default recipe is then trained and scored again."""

    @field_validator("test", mode="before")
    @classmethod
    def _best_is_true(cls, value: Any) -> Any:
        return True if value == "best" else value


class ConfirmConfig(StrictModel):
    """Whether the best strategies are evaluated once more before a winner is named."""

    k: int = setting(0, "strategies", ge=0, le=64)
    """Number of strategies with the best validation scores that are evaluated on fresh items. The best of
    them there wins, because the highest of many noisy scores is too high. Its score there, with its interval,
    is the validation figure to quote; report, card and strategy.yaml name it. With 0, the best validation
    score wins."""
    n: int = setting(1024, "items", ge=2)
    """Fresh items that a procedural family makes, in no other split; a manifest's `splits.confirm` counts
    whole."""


class TrackingConfig(StrictModel):
    """Experiment trackers that show the search in addition to its report, through VeRL's `Tracking`."""

    backends: tuple[Annotated[str, Field(pattern=PLUGIN)], ...] = ()
    """Trackers: wandb, mlflow, tensorboard, swanlab, trackio, clearml or file (VeRL's own), apprise (alerts
    to the services in the variable LLMZERO_NOTIFY_URLS), optuna (a study, in the storage OPTUNA_STORAGE), or
    one of your own as `package.module:factory` or the name of an entry point in the group
    llmzero_ray.trackers. VeRL's get one run per node, over global steps, and one for the search. Install
    their packages on the machine of the coordinator. They write to `tracking/` of the search's directory
    unless their own environment variables name another place."""
    project: str = setting("llmzero", min_length=1, max_length=100)
    """Project (MLflow: experiment) that receives the runs; the group is the search."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the trackers only, such as WANDB_MODE: offline or MLFLOW_TRACKING_URI. Put
    keys into the environment of the command, never here."""
    finish_s: float = setting(60.0, "seconds", ge=0)
    """Seconds that the end of the search waits for trackers that have not received everything."""

    @field_validator("backends", mode="before")
    @classmethod
    def _known(cls, backends: Any) -> Any:
        if not isinstance(backends, list | tuple):
            return backends
        if len(set(backends)) < len(backends):
            raise ValueError(f"tracking.backends is {list(backends)}; a tracker stands there more than once.")
        return tuple(backends)

    @field_validator("variables")
    @classmethod
    def _without_keys(cls, variables: dict[str, str]) -> dict[str, str]:
        for name in variables:
            if any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSWORD", "NOTIFY_URLS")):
                raise ValueError(
                    f"{name} names a key, and search.yaml is not the place for keys: it is kept in the "
                    "search's directory. Set it in the environment of the command."
                )
        return variables


class SearchSettings(MethodRules):
    """Search method, and the parameters of its rules."""

    method: str = setting("llmzero", pattern=PLUGIN)
    """`llmzero`: the tree search of the paper. For comparison, without agents and with `budget.runs` standard
    phases of training: `default` the default recipe in one phase; `unchanged` the same, phase after phase;
    `random`, `grid`, `tpe`, `cmaes` static recipes (`n_trials`); `asha` successive halving; `pbt` population
    based training; `perturb` random changes from the best adapter; `schedule` fixed phases, `guidebook` those
    of the paper's Table 13. `skills`: a language model that plans the search itself by skills, one run after
    another from any checkpoint. Or your own: `package.module:factory` of (rules, budget) that gives a
    `llmzero_ray.search.SearchMethod`, or the name of an entry point in the group llmzero_ray.methods."""


class SearchConfig(StrictModel):
    """The whole configuration of a search."""

    name: str = setting(..., pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """Names its directory and its actors: starting a name again attaches to it or resumes it."""
    storage: LocalPath = setting("runs", min_length=1)
    """Directory that receives <name>/; on a cluster one that every machine sees under the same absolute
    path."""
    journal: str | None = None
    """Address of an object store that keeps the journal, such as s3://bucket/prefix; the search's name is
    added to it. Its keys come from the environment and are never written here. Null: `journal/` in the
    search's directory."""
    seed: int = setting(1, ge=0, lt=2**31)
    """Seed of every phase of the search, together with the phase's number."""
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    budget: BudgetConfig = BudgetConfig()
    search: SearchSettings = SearchSettings()
    """The search method and the numbers of its rules."""
    phase: PhaseConfig = PhaseConfig()
    root: RootConfig = RootConfig()
    eval: EvalConfig = EvalConfig()
    agents: AgentsConfig = AgentsConfig()
    stopper: StopperSettings = StopperSettings()
    """Numbers of the stopping rules."""
    engine: EngineConfig = EngineConfig()
    slots: SlotsConfig = SlotsConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    confirm: ConfirmConfig = ConfirmConfig()
    final: FinalConfig = FinalConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="wrap")
    @classmethod
    def _planned_runs_are_not_stopped(
        cls, data: Any, handler: ModelWrapValidatorHandler[SearchConfig]
    ) -> SearchConfig:
        """`stopper.enabled: false` where a method that plans its runs leaves the switch out."""
        match data:
            case {"search": {"method": method}} if method not in _AGENT_METHODS:
                stopper = data.get("stopper", {})
                if isinstance(stopper, Mapping) and "enabled" not in stopper:
                    config = handler({**data, "stopper": {"enabled": False, **stopper}})
                    config.stopper.model_fields_set.discard("enabled")  # with another method it is true
                    return config
        return handler(data)

    @model_validator(mode="after")
    def _consistent(self) -> SearchConfig:
        if self.eval.max_response_length > self.engine.max_response_length:
            raise ValueError(
                f"eval.max_response_length is {self.eval.max_response_length} (tokens); must be <= "
                f"engine.max_response_length, which is {self.engine.max_response_length}: the server cannot "
                "generate more."
            )
        n_gpus = self.slots.n_gpus
        if n_gpus % self.engine.tensor_model_parallel_size:
            raise ValueError(
                f"engine.tensor_model_parallel_size is {self.engine.tensor_model_parallel_size}; must divide "
                "the "
                f"{n_gpus} GPUs of a slot (slots.nodes x slots.gpus_per_node)."
            )
        whole = self.budget.runs * self.phase.n_steps
        if self.search.method == "default" and self.phase.max_steps < whole:
            raise ValueError(
                f"search.method is default, one phase of budget.runs x phase.n_steps = {whole} steps; "
                f"phase.max_steps is {self.phase.max_steps} and must be at least that."
            )
        if self.search.method == "schedule" and self.search.schedule is None:
            raise ValueError(
                "search.method is schedule, which needs search.schedule: chemcot, papersearchqa, ssmr, "
                "wildsci, guidebook, or a file, such as the strategy.yaml of a search."
            )
        if self.search.schedule is not None:
            check_rank(self.search.schedule.lora_rank, self.model.lora_rank)
        return self

    @field_validator("journal")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None:
            return value
        scheme, mark, rest = value.partition("://")
        if _ADDRESS.fullmatch(value) and scheme.lower() in ("file", *OBJECT_STORES):
            return value
        if mark and "@" in rest:  # never shown: it may be a key
            raise ValueError(
                f"journal names a user or a key before an @ ({scheme}://...@{rest.rpartition('@')[2]}). Keys "
                "come from the environment alone, such as AWS_ACCESS_KEY_ID: write s3://bucket/prefix."
            )
        raise ValueError(
            f"journal is {value!r}; must be the address of an object store ({', '.join(OBJECT_STORES)}), "
            "such as s3://bucket/prefix, or null for a directory next to the search."
        )

    @property
    def journal_address(self) -> str | None:
        """Address of this search's journal in an object store, or None if it is in the search's directory."""
        if self.journal is None:
            return None
        place, mark, options = self.journal.partition("?")
        return f"{place.rstrip('/')}/{self.name}{mark}{options}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data of every field; `parse_config` gives the same configuration back."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The resolved configuration as a file, every field written out."""
        return to_yaml(self.to_json())
