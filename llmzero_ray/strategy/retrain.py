"""Train a strategy again, with other seeds, task or model if wanted: as a search whose proposer repeats its
phases.

It is a search like any other, so it survives lost machines, can be resumed and has a report. This module adds
its configuration, the rescaling of steps to the data, and the comparison with the original.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

from llmzero_ray.config import SearchConfig, change_settings, resolve_config, without_removed
from llmzero_ray.config.strategy_file import Measured, Strategy, StrategyPhase, check_rank, other_model
from llmzero_ray.config.yaml_text import local_path
from llmzero_ray.errors import ConfigError, JournalError
from llmzero_ray.hyperparameters import VERL_SPACE, owned, short
from llmzero_ray.hyperparameters.verl_keys import LORA_ALPHA, LORA_RANK, TARGET_MODULES
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.best_strategy import current_strategy
from llmzero_ray.report.comparison import policies
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import beside, find, is_search
from llmzero_ray.storage.strategy import load_strategy
from llmzero_ray.utils.files import replace_file

logger = logging.getLogger(__name__)
_NAME_CHARS = 48
"""Maximum characters taken from a search's name, so that the names of its retrainings are not too long."""
_ANY_SCORE = -1e12
"""Target that every score reaches, so that the search of a one-phase strategy ends after its root."""


@dataclass(frozen=True, kw_only=True)
class RetrainPlan:
    """Plan for training a strategy again, with its differences from the original."""

    strategy: Strategy
    original: Strategy
    configs: tuple[SearchConfig, ...]
    """Configurations of the searches, one per seed."""
    notes: tuple[str, ...]
    """Differences from the original, one sentence each."""

    @property
    def unsaid(self) -> tuple[str, ...]:
        """Notes that starting the searches does not print anyway."""
        said = other_model(self.original.base_model, self.configs[0].model.path)
        return tuple(note for note in self.notes if note != said)


def plan_retraining(
    strategy: Strategy,
    task: PreparedTask,
    *,
    name: str | None = None,
    storage: str,
    model: str | None = None,
    seeds: int = 1,
    keep_steps: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> RetrainPlan:
    """Plan searches that train the strategy with `seeds` seeds, the first of which is the original's.

    If the task has another number of training rows, steps are rescaled to the same number of epochs, unless
    `keep_steps`. `model` replaces the base model; `settings` are dotted keys of search.yaml, for hardware and
    engine, or the first `seed`. The searches are called `name`-1 and so on, by default after the strategy's
    search. Writes the proposer's file next to the searches.

    Raises:
        ConfigError: the settings are wrong, or ask for another LoRA rank than the strategy's; or searches of
            these names train another strategy.
        StorageError: the storage cannot be written.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}; must be a whole number >= 1.")
    settings = settings or {}
    for key in ("name", "storage"):
        if key in settings:
            raise ConfigError(f"{key}={settings[key]}: all the searches would get it. Give --{key} instead.")
    trained, notes = _trimmed(strategy), []
    rows = strategy.task.get("n_train")
    if isinstance(rows, int) and rows != task.n_train and not keep_steps:
        share = task.n_train / rows
        trained = rescaled(trained, share)
        notes.append(
            f"{strategy.total_steps} steps became {trained.total_steps}: the task has {task.n_train} "
            f"training rows, the strategy's had {rows}. --keep-steps trains as many as there."
        )
    if task.name != strategy.task.get("name"):
        notes.append(f"the task is {task.name}, the strategy's was {strategy.task.get('name')}.")
    name = name or f"{strategy.search.name[:_NAME_CHARS]}-retrained"
    path = Path(local_path(storage)).absolute() / f"{name}.strategy.yaml"
    configs = tuple(
        _config(trained, task, path, name=f"{name}-{number + 1}", storage=storage, model=model,
                seeds_after=number, settings=settings)
        for number in range(seeds)
    )  # fmt: skip
    begun = [config.name for config in configs if is_search(path.with_name(config.name))]
    if begun and path.is_file() and load_strategy(path).phases != trained.phases:
        raise ConfigError(
            f"{', '.join(begun)} in {path.parent} trains another strategy, that of {path.name}. Give this "
            "one a name of its own with --name."
        )
    replace_file(path, trained.to_yaml())
    if strategy.setting.engine.get("carry_optimizer"):
        notes.append("every phase begins with a new optimizer; the strategy's took over the last state.")
    if (note := other_model(strategy.base_model, configs[0].model.path)) is not None:
        notes.append(note)
    return RetrainPlan(strategy=trained, original=strategy, configs=configs, notes=tuple(notes))


def _trimmed(strategy: Strategy) -> Strategy:
    """The strategy without the steps after a phase's cut that need not be trained."""
    phases = [phase.model_copy(update={"n_steps": phase.steps_to_train}) for phase in strategy.phases]
    return strategy.model_copy(update={"phases": tuple(phases)})


def rescaled(strategy: Strategy, share: float) -> Strategy:
    """The strategy with `share` times its steps. Each phase and each cut is a multiple of the phase's
    validation interval."""
    phases: list[StrategyPhase] = []
    for phase in strategy.phases:
        every = max(1, round(phase.test_freq * share))
        cut = every * max(1, round(phase.cut_step * share / every))
        n_steps = max(cut, every * round(phase.n_steps * share / every))
        before = phases[-1] if phases else None
        source = phase.resume_from
        if source is not None and before is not None:
            source = source.model_copy(update={"step": before.cut_step})
        phases.append(
            phase.model_copy(
                update={
                    "test_freq": every,
                    "save_freq": every,
                    "cut_step": cut,
                    "n_steps": n_steps,
                    "base_step": 0 if before is None else before.end_step,
                    "resume_from": source,
                }
            )
        )
    changed = strategy.model_copy(update={"phases": tuple(phases), "total_steps": phases[-1].end_step})
    return Strategy.model_validate(changed.model_dump())


def _config(
    strategy: Strategy,
    task: PreparedTask,
    path: Path,
    *,
    name: str,
    storage: str,
    model: str | None,
    seeds_after: int,
    settings: Mapping[str, Any],
) -> SearchConfig:
    first = strategy.phases[0]
    # Each cut is validated and saved.
    every = gcd(*(phase.cut_step for phase in strategy.phases), *(p.test_freq for p in strategy.phases))
    base = strategy.base_model if model is None else model
    data: dict[str, Any] = {
        "name": name,
        "storage": storage,
        "seed": strategy.search.seed,
        "task": {"dir": task.directory},
        "model": {
            "path": None if base == task.model_path else base,
            "lora_rank": first.hyperparameters[LORA_RANK],
            "lora_alpha": first.hyperparameters[LORA_ALPHA],
            "target_modules": first.hyperparameters[TARGET_MODULES],
        },
        "budget": {"runs": max(2, len(strategy.phases))},
        "search": {"max_evolve_children": 1, "max_debug_children": 0, "rho_min": 0.0},
        "phase": {
            "n_steps": first.n_steps,
            "max_steps": max(phase.n_steps for phase in strategy.phases),
            "test_freq": every,
            "save_freq": every,
        },
        "root": {"overrides": {k: v for k, v in first.hyperparameters.items() if owned(k) is None}},
        "eval": {"max_response_length": strategy.setting.eval_max_response_length},
        "agents": {"proposer": "strategy", "recorded_from": str(path)},
        "stopper": {"enabled": False},
        "engine": dict(strategy.setting.engine),
        "slots": {"gpus_per_node": strategy.setting.gpus_per_slot},
        "final": {"test": True, "default_recipe": False},
    }
    if len(strategy.phases) == 1:
        data["budget"]["target"] = _ANY_SCORE
    data = without_removed(data)  # an old strategy may still have removed settings
    change_settings(data, settings, VERL_SPACE.names)
    if type(data["seed"]) is int:  # otherwise it is refused below
        data["seed"] += seeds_after
    config = resolve_config(data, source="the strategy's configuration")
    check_rank(strategy.lora_rank, config.model.lora_rank)
    return config


def find_strategy(place: str, storage: str = "runs") -> Strategy:
    """Load a strategy from a file, or the best one so far of a search, given its directory or its name in
    `storage`. If the search's directory was moved with its task or base model, the strategy names their new
    places.

    Raises:
        ConfigError: there is none, or it cannot be read.
        JournalError: the search's journal is damaged, and it has no strategy.yaml.
    """
    path = Path(local_path(place))
    if not path.is_file():
        search = find(place, storage)
        path = search.paths.strategy
        try:
            found = current_strategy(SearchFacts(search)) if search.is_search() else None
        except JournalError as error:
            if not path.is_file():
                raise
            found = None
            logger.warning("%s is taken as it is, because the journal cannot be read: %s", path, error)
        if found is not None:
            return _with_moved_paths(found, search)
    if not path.is_file():
        raise ConfigError(
            f"{place}: there is no strategy.yaml here, and no search {place!r} in {storage}."
            f"{beside(Path(storage).absolute() / place)}"
        )
    return _with_moved_paths(load_strategy(path), SearchStorage.at(path.parent))


def _with_moved_paths(strategy: Strategy, search: SearchStorage) -> Strategy:
    """The strategy of a search, with the directories of its task and its base model replaced by where they
    are now if they moved together with the search."""
    directory = strategy.task.get("directory")
    config = search.config() if search.is_search() else None
    if config is None:
        return strategy
    model = search.base_model_here(config, strategy.base_model, directory)
    task = dict(strategy.task)
    if directory and not Path(directory).exists() and Path(config.task.dir).exists():
        task["directory"] = config.task.dir
    return strategy.model_copy(update={"task": task, "base_model": model})


def task_of_strategy(strategy: Strategy, directory: str | None = None) -> PreparedTask:
    """Load the prepared task in a directory, or the strategy's own.

    Raises:
        ConfigError: the strategy does not say where its task is, or the task no longer exists.
        TaskError: it cannot be used.
    """
    place = directory or strategy.task.get("directory")
    if not place:
        raise ConfigError("the strategy does not say where its task is; give a prepared one with --task.")
    if directory is None and not Path(place).exists():
        raise ConfigError(
            f"the strategy was trained on the task in {place}, which is not there. Name a prepared task with "
            "--task DIR, this one or another."
        )
    return load_task(str(place))


# --- results ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RetrainedPhase:
    """One phase of the strategy, in the original and in the new runs."""

    number: int
    global_step: int
    """Global step at which the new runs cut it."""
    original_step: int
    """Global step at which the original cuts it. It differs if steps were rescaled."""
    original: float | None
    """Validation score at the cut in the original search."""
    scores: tuple[float | None, ...]
    """Validation score at the cut in each new run. None if not reached."""


@dataclass(frozen=True, kw_only=True)
class RetrainComparison:
    """A strategy and the runs that train it again."""

    plan: RetrainPlan
    phases: tuple[RetrainedPhase, ...]
    base: tuple[Measured | None, ...]
    """Test scores of the base model: in the original, then in each run."""
    best: tuple[Measured | None, ...]
    """Test scores of the strategy at its best validated step, in the same order."""
    deviations: tuple[str, ...]
    """Phases that were not trained as in the strategy, one sentence each. Empty if all were."""

    @property
    def mean(self) -> float | None:
        """Mean test score of the new runs. None if none has a score."""
        found = [score.mean for score in self.best[1:] if score is not None]
        return statistics.fmean(found) if found else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the new runs' test scores. None with fewer than two."""
        found = [score.mean for score in self.best[1:] if score is not None]
        return statistics.stdev(found) if len(found) > 1 else None

    def to_markdown(self) -> str:
        """Report of deviations, with a table of validations and one of test scores."""
        names = [f"run {n}, seed {config.seed}" for n, config in enumerate(self.plan.configs, start=1)]
        rescaled = any(phase.global_step != phase.original_step for phase in self.phases)
        validations = fmt.table(
            ("phase", "cut at global step", "original", *names),
            [
                (
                    str(p.number),
                    f"{p.global_step} (original: {p.original_step})" if rescaled else str(p.global_step),
                    fmt.accuracy(p.original),
                    *map(fmt.accuracy, p.scores),
                )
                for p in self.phases
            ],
            right=(0, 1),
        )
        tests = fmt.table(
            ("test split", "original", *names),
            [("base model", *map(_text, self.base)), ("strategy", *map(_text, self.best))],
        )
        spread = "" if self.deviation is None else f", standard deviation {self.deviation:.4f} over the seeds"
        mean = "" if self.mean is None else f"Mean over the runs: {self.mean:.4f}{spread}.\n"
        listed = "".join(f"- {note}\n" for note in (*self.plan.notes, *self.deviations))
        title = f"# The strategy that {self.plan.original.search.name} found, trained again\n"
        return "\n".join((title, listed, validations, "", tests, "", mean))


def compare(plan: RetrainPlan, roots: Sequence[Path]) -> RetrainComparison:
    """Compare the runs in these directories with the original.

    Raises:
        ConfigError: a directory has no search.
        JournalError: a journal is damaged.
    """
    facts = [SearchFacts(root) for root in roots]
    known = [{policy.what: policy.test for policy in policies(one)} for one in facts]
    there = plan.original.scores.get("test")

    def measured(scores: Mapping[str, Any], what: str) -> Measured | None:
        score = scores.get(what)
        if score is None:
            return None
        return Measured(mean=score.mean, standard_error=score.standard_error, n=score.n)

    return RetrainComparison(
        plan=plan,
        phases=tuple(
            RetrainedPhase(
                number=phase.phase,
                global_step=phase.end_step,
                original_step=original.end_step,
                original=original.validation_at_cut,
                scores=tuple(_validation(one, phase) for one in facts),
            )
            for phase, original in zip(plan.strategy.phases, plan.original.phases, strict=True)
        ),
        base=(None if there is None else there.base, *(measured(one, "base") for one in known)),
        best=(None if there is None else there.best, *(measured(one, "best") for one in known)),
        deviations=tuple(
            f"run {n}: {text}" for n, one in enumerate(facts, start=1) for text in _deviations(plan, one)
        ),
    )


def write_comparison(found: RetrainComparison, storage: Path) -> Path:
    """Write the comparison as Markdown next to the searches, and return its path.

    Raises:
        StorageError: it cannot be written.
    """
    name = found.plan.configs[0].name.rpartition("-")[0]
    path = storage / f"{name}.md"
    replace_file(path, found.to_markdown())
    return path


def _validation(facts: SearchFacts, phase: StrategyPhase) -> float | None:
    if phase.phase - 1 not in facts.runs:
        return None
    curves = facts.curves(phase.phase - 1)
    return dict(zip(curves.val_steps, curves.val_scores, strict=True)).get(phase.cut_step)


def _deviations(plan: RetrainPlan, facts: SearchFacts) -> list[str]:
    found = []
    for phase in plan.strategy.phases:
        run = facts.runs.get(phase.phase - 1)
        if run is None or run.spec is None:
            found.append(f"phase {phase.phase} was not trained")
            continue
        wanted = VERL_SPACE.normalize(phase.hyperparameters)
        source = None if run.spec.resume_from is None else run.spec.resume_from.step
        if source != (None if phase.resume_from is None else phase.resume_from.step):
            found.append(f"phase {phase.phase} started from step {source} of the phase before")
        if not VERL_SPACE.same_training(run.spec.hyperparameters, wanted):
            changed = ", ".join(map(short, VERL_SPACE.diff(wanted, run.spec.hyperparameters)))
            found.append(f"phase {phase.phase} was trained with other values of {changed}")
        if run.status not in ("completed", "running"):
            found.append(f"phase {phase.phase} {run.status.replace('_', ' ')}")
    return found


def _text(score: Measured | None) -> str:
    if score is None:
        return fmt.NONE
    error = "" if score.standard_error is None else f" ± {score.standard_error:.4f}"
    return f"{score.mean:.4f}{error}"
