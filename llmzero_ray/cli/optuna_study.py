"""A search as a study of Optuna, for its dashboard and its parameter importances."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.coordinator.runs import without_infinities
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import VERL_SPACE, Parameter
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.locate import is_search
from llmzero_ray.utils.plugins import import_problem
from llmzero_ray.utils.text import one_line

_ROOT, _BEGAN = "llmzero_search", "llmzero_began"
"""Attributes of the study: directory of the search that it mirrors, and Unix seconds of its first event."""


def mirror(facts: SearchFacts, url: str) -> int:
    """Add ended phases that are still missing to the study with the search's name: one trial per node with
    its hyper-parameters, best score, and validations by global step. Returns the number of new trials.

    Raises:
        ConfigError: Optuna is not installed, the storage cannot be used, or its study of that name belongs to
            another search.
    """
    if not url:
        raise ConfigError("--optuna is empty; must be a URL as Optuna takes it, such as sqlite:///study.db.")
    if problem := import_problem("optuna"):
        raise ConfigError(f"--optuna: optuna {problem}; `pip install 'llmzero-ray[optuna]'`")
    import optuna
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    root, name = str(facts.paths.root), facts.config.name
    try:
        study = optuna.create_study(storage=url, study_name=name, direction="maximize", load_if_exists=True)
        trials = study.get_trials(deepcopy=False)
        began = facts.events[0].time
        if trials and not _is_of(study.user_attrs, root, began):
            raise ConfigError(f"--optuna: its study {name!r} is not of {root}. Give another storage.")
        study.set_user_attr(_ROOT, root)
        study.set_user_attr(_BEGAN, began)
        known = {trial.user_attrs.get("node") for trial in trials}
        new = [node for node, run in facts.runs.items() if run.outcome is not None and node not in known]
        study.add_trials([_trial(facts, node) for node in new])
    except ConfigError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        advice = " Must be a URL as Optuna takes it, such as sqlite:///study.db."
        if isinstance(cause, DBAPIError):  # of a database that was found
            cause, advice = cause.orig, ""
        reason = one_line(f"{type(cause).__name__}: {cause}", 300).replace(url, "the URL")
        raise ConfigError(f"--optuna: the storage cannot be used: {reason}.{advice}") from error
    return len(new)


def _is_of(attributes: Mapping[str, Any], root: str, began: float) -> bool:
    """Whether a study is of the search in `root`, which may have been moved, but not replaced by another."""
    there = attributes.get(_ROOT, "")
    with contextlib.suppress(OSError):
        if os.path.samefile(there, root):
            return bool(attributes.get(_BEGAN, began) == began)
    return attributes.get(_BEGAN) == began and not (there and is_search(Path(there)))


def _trial(facts: SearchFacts, node: int) -> Any:
    from optuna.trial import TrialState, create_trial

    run, curves = facts.runs[node], facts.curves(node)
    used = {} if run.spec is None else dict(run.spec.hyperparameters)
    score = without_infinities(run.score)
    distributions = {
        row.key: found
        for row in VERL_SPACE.parameters
        if (found := _distribution(row, used.get(row.key))) is not None
    }
    source = None if run.spec is None else run.spec.resume_from
    return create_trial(
        state=TrialState.FAIL if score is None else TrialState.COMPLETE,
        value=score,
        params={key: used[key] for key in distributions},
        distributions=distributions,
        user_attrs={
            "node": node,
            "status": run.status,
            "resume_node": None if source is None else source.node,
            "resume_step": None if source is None else source.step,
            "hyperparameters": used,
        },
        intermediate_values={
            curves.base_step + step: value
            for step, value in zip(curves.val_steps, curves.val_scores, strict=True)
            if math.isfinite(value)
        },
    )


def _distribution(row: Parameter, value: Any) -> Any:
    """Optuna's range of a hyper-parameter, or None if it does not hold the value."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if row.choices:
        return CategoricalDistribution(row.choices) if value in row.choices else None
    if isinstance(value, bool):
        return CategoricalDistribution((False, True))
    if not isinstance(value, int | float) or row.low is None or row.high is None:
        return None
    if not row.low <= value <= row.high:
        return None
    if row.kind == "int":
        return IntDistribution(int(row.low), int(row.high))
    return FloatDistribution(row.low, row.high, log=row.scale == "log" and row.low > 0)
