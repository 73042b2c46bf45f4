"""Opens a prepared task: checks every file and makes every path absolute.

It accepts tasks from `prepare` and those assembled by hand: three parquet files of VeRL rows and a manifest.
A journal stores `task_facts`, so that a resumed search can check that its data have not changed.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.dynamics.answers import Gold
from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import accepted_answers, as_text
from llmzero_ray.prepared.manifest import Manifest, RewardEntry, SplitFile, read_manifest
from llmzero_ray.prepared.model_dir import check_model_dir
from llmzero_ray.prepared.repeated_questions import shared_with_train
from llmzero_ray.prepared.reward import runs_in_place, top_of
from llmzero_ray.prepared.reward_validation import check_reward
from llmzero_ray.prepared.sandbox import ALLOW, changed, require_isolation
from llmzero_ray.prepared.shipped_rewards import READ_WORDINGS, is_shipped
from llmzero_ray.prepared.splits import SPLITS
from llmzero_ray.prepared.verl_rows import SplitFacts, check_between, check_split, read_first_rows, read_golds
from llmzero_ray.utils.files import file_digest, text_digest

logger = logging.getLogger(__name__)

DESCRIPTION = "description.md"
"""File in a task's directory that describes the task for the agents of a search."""
MOST_DESCRIPTION = 4000
"""Maximum characters of the description that are kept."""


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task that can be trained on. All paths are absolute."""

    directory: str
    name: str
    family: str | None
    """Shipped family that made it, or None."""
    train: str
    val: str
    test: str
    """Parquet files of VeRL rows."""
    n_train: int
    n_val: int
    n_test: int
    data_sources: tuple[str, ...]
    reward_module: str | None
    """Importable name, or None when the reward is a file of its own."""
    reward_path: str
    """The file it is in."""
    reward_name: str
    reward_sha256: str | None = None
    """SHA-256 of a reward file as it was validated; no other content is run."""
    reward_keys: tuple[str, ...] | None = None
    """Keys of extra_info that a reward file was validated with. It is shown no others."""
    reward_top: str | None = None
    """Package directory or file of a reward module that runs in the sandbox. None if it runs in place."""
    reward_unsandboxed: bool = False
    """Whether a user's reward may run on a machine without a sandbox."""
    max_prompt_tokens: int | None
    max_answer_tokens: int | None
    """Maximum answer length in tokens of the task's own model. None if the manifest does not say."""
    model_path: str | None
    """The tiny model made for the task, or None."""
    model_params: int | None
    greedy_val_accuracy: float | None
    """Greedy accuracy of that model before any reinforcement, measured when it was made."""
    licence: str | None
    majority_baseline: float | None
    """Test accuracy of a constant answer."""

    @property
    def confines_reward(self) -> bool:
        """Whether the reward runs in the sandbox wherever answers are scored."""
        return self.reward_module is None or self.reward_top is not None


def load_task(directory: str | Path) -> PreparedTask:
    """Task in `directory`, after checking data, reward and (if it has one) model.

    Raises:
        TaskError: the first thing that is missing or wrong, and what to do about it.
    """
    root = Path(directory).resolve()
    manifest = read_manifest(root)
    files: dict[str, SplitFile] = {split: getattr(manifest.splits, split) for split in SPLITS}
    facts = {
        split: _check_file((root / entry.file).resolve(), split, entry) for split, entry in files.items()
    }
    check_between(facts)
    sources = tuple(sorted({source for fact in facts.values() for source in fact.data_sources}))
    if manifest.data_sources is not None and set(manifest.data_sources) != set(sources):
        raise TaskError(
            f"{root}: the manifest says data_sources {sorted(manifest.data_sources)}, the rows hold "
            f"{list(sources)}; correct the manifest"
        )
    reward_path = _checked_reward(root, manifest, facts)
    model_path = None if manifest.model is None else str((root / manifest.model.path).resolve())
    if model_path is not None:
        check_model_dir(model_path)
    return _assemble(root, manifest, facts, sources, reward_path, model_path)


def validation_golds(directory: str | Path) -> dict[int, Gold]:
    """Position of each validation row -> its question and gold answer. Empty if they cannot be read."""
    root = Path(directory)
    try:
        return read_golds(root / read_manifest(root.resolve()).splits.val.file)
    except (TaskError, OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: the validation rows cannot be read: %s", directory, error)
        return {}


def repeated_questions(task: PreparedTask) -> list[str]:
    """Warnings about questions in train that also occur, with another number, in another split."""
    return shared_with_train(
        {
            split: [
                (row["prompt"][-1]["content"], as_text(row["reward_model"]["ground_truth"]))
                for row in read_first_rows(getattr(task, split), None)
            ]
            for split in SPLITS
        }
    )


def task_facts(task: PreparedTask) -> dict[str, Any]:
    """All fields of the task with a SHA-256 of each split, and the text of its description.md, as plain data
    for the journal."""
    file = Path(task.directory) / DESCRIPTION
    description = file.read_text("utf-8", "replace") if file.is_file() else ""
    return {
        **asdict(task),
        "description": description[:MOST_DESCRIPTION],
        **reward_words(task),
        "sha256": {split: file_digest(getattr(task, split)) for split in ("train", "val", "test")},
    }


def reward_words(task: PreparedTask) -> dict[str, str]:
    """Facts about the reward for agents: `reward_kind` is the module name of a shipped reward, otherwise
    empty; `reward_says` is the first sentence of its docstring. Its code is read, not run."""
    kind = ""
    if task.reward_module is not None and is_shipped(task.reward_module):
        kind = task.reward_module.rpartition(".")[2]
    try:
        tree = ast.parse(Path(task.reward_path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {"reward_kind": kind, "reward_says": ""}
    own = [node for node in tree.body if getattr(node, "name", None) == task.reward_name]
    functions = [node for node in own if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    docs = [ast.get_docstring(node) for node in ([tree] if kind else [*functions, tree])]
    paragraph = " ".join(next((doc for doc in docs if doc), "").partition("\n\n")[0].split())
    sentence = re.match(r".*?[.!?](?=\s|$)", paragraph)
    return {"reward_kind": kind, "reward_says": (sentence[0] if sentence else paragraph)[:MOST_DESCRIPTION]}


def check_same_task(recorded: Mapping[str, Any], task: PreparedTask) -> None:
    """Check that the splits are those of `recorded` (`task_facts` at the start of the search).

    Raises:
        TaskError: a split has changed.
    """
    for split, before in recorded.get("sha256", {}).items():
        if file_digest(getattr(task, split)) != before:
            raise TaskError(
                f"{getattr(task, split)}: has changed since the search was started ({split} split). Scores "
                "would not be comparable: restore it, or choose another `name`."
            )


def _check_file(path: Path, split: str, entry: SplitFile) -> SplitFacts:
    facts = check_split(path, split)
    if entry.rows is not None and entry.rows != facts.n_rows:
        raise TaskError(
            f"{path} ({split}) has {facts.n_rows} rows, the manifest says {entry.rows}; make the task again, "
            "or correct the manifest"
        )
    check_unchanged(path, split, entry)
    return facts


def check_unchanged(path: Path, split: str, entry: SplitFile) -> None:
    """Check that the file at `path` is the one that the manifest's entry describes.

    Raises:
        TaskError: its checksum differs.
    """
    if entry.sha256 is not None and (found := file_digest(path)) != entry.sha256:
        raise TaskError(
            f"{path} ({split}) has changed since the task was made: its sha256 is {found[:12]}..., the "
            f"manifest says {entry.sha256[:12]}...; make the task again, or remove sha256 from the "
            "manifest"
        )


def _checked_reward(root: Path, manifest: Manifest, facts: Mapping[str, SplitFacts]) -> str:
    """Check the reward and return its file. A validated reward must be unchanged; another is tried on a few
    rows."""
    validated, entry = _validated_sha256(manifest), manifest.reward
    _check_truths(entry, facts)
    if validated is None or entry.path is None:
        return check_reward(entry, root, [row for fact in facts.values() for row in fact.samples])
    path = (root / entry.path).resolve()
    try:
        found = text_digest(path.read_bytes())
    except OSError as error:
        raise TaskError(
            f"reward {path} cannot be read: {error.strerror or error}; make the task again"
        ) from error
    if found != validated:
        raise TaskError(changed(path, found, validated))
    require_isolation(str(path), allow_unsandboxed=entry.allow_unsandboxed, how_to_allow=ALLOW)
    return str(path)


def _check_truths(entry: RewardEntry, facts: Mapping[str, SplitFacts]) -> None:
    """Check that a shipped reward can read the ground truths: for one that it cannot read it would pay 0
    whatever the answer."""
    if entry.module is None or not is_shipped(entry.module):
        return
    for split, fact in facts.items():
        for row in fact.samples:
            truth = row["reward_model"]["ground_truth"]
            read = entry.module in READ_WORDINGS and accepted_answers(truth)
            if not isinstance(truth, str) and not read:
                raise TaskError(
                    f"{split}: ground_truth {truth!r:.80} is not text, and the reward {entry.module} reads "
                    "text. Write the right answer as text, or name a reward of your own, which gets the "
                    "truth as it is"
                )


def _validated_sha256(manifest: Manifest) -> str | None:
    """SHA-256 of a reward that `prepare` validated."""
    return manifest.source.reward_sha256 if manifest.source else None


def _sha256_of_reward(manifest: Manifest, path: str) -> str | None:
    if manifest.reward.module is not None:
        return None
    return _validated_sha256(manifest) or text_digest(Path(path).read_bytes())


def _top_of_reward(manifest: Manifest) -> str | None:
    module = manifest.reward.module
    return None if module is None or runs_in_place(manifest.reward) else str(top_of(module))


def _assemble(
    root: Path,
    manifest: Manifest,
    facts: Mapping[str, SplitFacts],
    sources: tuple[str, ...],
    reward_path: str,
    model_path: str | None,
) -> PreparedTask:
    model = manifest.model
    return PreparedTask(
        directory=str(root),
        name=manifest.name or root.name,
        family=manifest.family,
        train=str((root / manifest.splits.train.file).resolve()),
        val=str((root / manifest.splits.val.file).resolve()),
        test=str((root / manifest.splits.test.file).resolve()),
        n_train=facts["train"].n_rows,
        n_val=facts["val"].n_rows,
        n_test=facts["test"].n_rows,
        data_sources=sources,
        reward_module=manifest.reward.module,
        reward_path=reward_path,
        reward_name=manifest.reward.name,
        reward_sha256=_sha256_of_reward(manifest, reward_path),
        reward_keys=None
        if _validated_sha256(manifest) is None
        else tuple(facts["train"].samples[0]["extra_info"]),
        reward_top=_top_of_reward(manifest),
        reward_unsandboxed=manifest.reward.allow_unsandboxed,
        max_prompt_tokens=manifest.max_prompt_tokens,
        max_answer_tokens=manifest.max_answer_tokens,
        model_path=model_path,
        model_params=model.params if model else None,
        greedy_val_accuracy=model.greedy_val_accuracy if model else None,
        licence=manifest.licence,
        majority_baseline=manifest.majority_baseline,
    )
