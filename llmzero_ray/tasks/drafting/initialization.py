"""The initialization of a search: the drafting agents' work, journalled and billed as its first part.

All drafts, questions and decisions are journalled before they take effect, and every model call is stored
with node 0. An interrupted command continues from there and asks nothing twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.agents.backend import MODEL_BACKENDS
from llmzero_ray.agents.llm.budget import BudgetLedger
from llmzero_ray.agents.llm.call_records import (
    CallRecorder,
    JournalledBudget,
    booked_entry,
    lost_event,
    open_reservations,
)
from llmzero_ray.agents.llm.prices import Price
from llmzero_ray.agents.llm.recorded import answered_calls, recorded_calls
from llmzero_ray.config import SearchConfig
from llmzero_ray.config.loading import merged
from llmzero_ray.coordinator import CoordinatorCore, replay
from llmzero_ray.errors import ConfigError, StorageError
from llmzero_ray.hyperparameters import canonical, normalize
from llmzero_ray.hyperparameters.verl_keys import MAX_RESPONSE
from llmzero_ray.journal import Journal
from llmzero_ray.records import Event
from llmzero_ray.records.events import (
    AgentCalled,
    InitializationConfirmed,
    InitializationStarted,
    TaskDrafted,
)
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import SearchLock
from llmzero_ray.tasks.drafting.base import DataProfile, UserChoices
from llmzero_ray.tasks.drafting.config_fields import REWARD_FILE
from llmzero_ray.tasks.drafting.draft import Draft, OnProgress, draft_task
from llmzero_ray.tasks.drafting.draft_files import DESCRIPTION, SEARCH, TASK, write_draft
from llmzero_ray.tasks.drafting.llm_requests import prompts_digest
from llmzero_ray.tasks.drafting.session import DraftingSession, SearchCalls, open_search_session
from llmzero_ray.utils.files import file_digest
from llmzero_ray.utils.text import plural

_EDITABLE = (TASK, SEARCH, DESCRIPTION, REWARD_FILE)
_NODE = 0
"""Node whose folder stores the calls: the root, which trains their decisions."""


@contextlib.contextmanager
def initializing(
    storage: SearchStorage, config: SearchConfig, folder: Path, sentence: str
) -> Iterator[Initialization]:
    """Context with the initialization of a search that has not started. It holds the search's lock.

    Raises:
        SearchBusyError: another command or a coordinator is working on it.
        ConfigError: it was begun with another folder or sentence, or with a configuration.
        JournalError: its journal is damaged.
        StorageError: its directory cannot be written.
    """
    lock = SearchLock(storage.paths.root)
    lock.acquire(private_head=True, role="command")
    try:
        yield Initialization(storage, config, folder, sentence)
    finally:
        lock.release()


class Initialization:
    """The state of a search's initialization. The caller holds the search's lock."""

    def __init__(self, storage: SearchStorage, config: SearchConfig, folder: Path, sentence: str) -> None:
        self.paths = storage.paths
        self._storage, self._config = storage, config
        self.folder, self._sentence = folder.absolute(), sentence
        journal = Journal(config.journal_address or storage.paths.journal)
        self._core = replay(journal.history, storage.paths.root)
        check_begun(self._core, storage.paths.root, folder, sentence)
        storage.write_config(config)  # tells other commands where the journal is
        self._journal, self._turn = journal, threading.Lock()
        self._events = list(journal.history)
        for lost, _ in open_reservations(self._events).values():  # calls during which a command died
            self._post(lost_event(lost, config.agents.model))

    @property
    def core(self) -> CoordinatorCore:
        """State of the search from its journal."""
        return self._core

    @property
    def choices(self) -> UserChoices:
        """Decisions of the user so far."""
        begun = self._core.initialization
        return UserChoices() if begun is None else UserChoices(**_set(begun.choices))

    @property
    def edited(self) -> tuple[str, ...]:
        """Files that the user changed or added since they were drafted."""
        drafted, now = self._core.drafted, self._digests()
        if drafted is None:
            return ()
        return tuple(name for name, digest in now.items() if drafted.files.get(name) != digest)

    @property
    def is_confirmed(self) -> bool:
        """Whether the user agreed to the files as they are."""
        confirmed = self._core.confirmed
        return confirmed is not None and dict(confirmed.files) == self._digests()

    @property
    def needs_draft(self) -> bool:
        """Whether there is no draft yet, or one that does not work and has not been fixed."""
        drafted = self._core.drafted
        missing = not all((self.paths.initialization / name).is_file() for name in (TASK, SEARCH))
        return drafted is None or missing or (bool(drafted.problems) and not self.edited)

    def decide(self, choices: UserChoices) -> None:
        """Apply the user's decisions in addition to earlier ones. Changed decisions require another draft.

        Raises:
            StorageError: they differ, and files of the last draft were edited.
        """
        given = {name: value for name, value in vars(choices).items() if value not in (None, ())}
        before = self._core.initialization
        merged = {**({} if before is None else _set(before.choices)), **given}
        if before is not None and merged == _set(before.choices):
            return
        if self.edited:
            raise StorageError(
                f"{', '.join(self.edited)} in {self.paths.initialization} were edited since they were "
                "drafted, and another draft would replace them. Move them away to draft again, or leave the "
                "new options out to continue with them."
            )
        asks_a_model = self._config.agents.backend in MODEL_BACKENDS
        self._post(
            InitializationStarted(
                folder=str(self.folder),
                sentence=self._sentence,
                choices=merged,
                backend=self._config.agents.backend,
                prompts=prompts_digest() if asks_a_model else "",
            )
        )

    def draft(
        self, profile: DataProfile, base: Mapping[str, Any], *, repairs: int, on_progress: OnProgress
    ) -> Draft:
        """Draft the task and the search configuration, and write them. The user's own fields of search.yaml
        in `base` take precedence.

        Raises:
            ConfigError: a choice of the user does not exist, or no search fits the task.
            CapReachedError: `budget.dollars` is used up, and `agents.on_cap` is `stop`.
            StorageError: a file cannot be written.
        """
        session = self._session()
        cap = normalize(self._config.root.overrides).get(MAX_RESPONSE)
        drafted = draft_task(
            profile,
            self._sentence,
            self.choices,
            session.agents,
            repairs=repairs,
            response_cap=cap if isinstance(cap, int) else None,
            on_progress=on_progress,
        )
        drafted = dataclasses.replace(
            drafted,
            fields={**drafted.fields, "dir": str(self.paths.task)},
            search=None if drafted.search is None else self._search_fields(drafted.search, base),
        )
        record = session.record(self._sentence)
        force = not self.edited
        write_draft(drafted, self.paths.initialization, record, secret=session.secret, force=force)
        found, problems = _found(drafted, session), _problems(drafted)
        self._post(TaskDrafted(files=self._digests(), found=found, problems=problems))
        return drafted

    def confirm(self, by: Any) -> None:
        """Record that the user agrees to the files as they are. `by` says how: `terminal` or `yes`."""
        self._post(InitializationConfirmed(by=by, files=self._digests()))

    @property
    def bill(self) -> str:
        """`3 calls, $0.0123`. Empty if no model was called."""
        if not self._calls:
            return ""
        return f"{plural(len(self._calls), 'call')}, ${self._core.dollars:.4f}"

    def record_checks(self, checks: Iterable[AgentCalled]) -> None:
        """Journal the calls that the check of the model made."""
        for call in checks:
            self._post(call)

    # --- parts ----------------------------------------------------------------------------------------------

    @property
    def _calls(self) -> list[AgentCalled]:
        return [event for event in self._events if isinstance(event, AgentCalled)]

    def _session(self) -> DraftingSession:
        recorder = CallRecorder(prompts_digest(), self._post, self._storage.write_call)
        calls = SearchCalls(
            budget=self._budget,
            answered=answered_calls(recorded_calls(self.paths.agents(_NODE))),
            report=recorder,
            attempt=max(0, self._core.n_initializations - 1),
        )
        return open_search_session(self._config.agents, calls)

    def _budget(self, price: Price) -> tuple[JournalledBudget, BudgetLedger]:
        booked = [booked_entry(event) for event in self._calls]
        ledger = BudgetLedger(price, self._config.budget.dollars, booked)
        return JournalledBudget(ledger, self._post), ledger

    def _search_fields(self, drafted: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in base.items() if name not in ("name", "storage", "task")}
        place = {"storage": str(self.paths.root.parent), "task": {"dir": str(self.paths.task)}}
        return {**merged(_fitted(drafted, own), own), "name": self._config.name, **place}

    def _digests(self) -> dict[str, str]:
        there = ((name, self.paths.initialization / name) for name in _EDITABLE)
        return {name: file_digest(path) for name, path in there if path.is_file()}

    def _post(self, event: Event) -> None:
        with self._turn:  # a client's thread may reserve after its caller gave up
            written = self._journal.append(event)
            if written is not None:
                self._core.apply(written)
                self._events.append(written)


def check_begun(core: CoordinatorCore, root: Path, folder: Path, sentence: str) -> None:
    """Check that a search, if there is one in `root`, was begun with this folder and this sentence.

    Raises:
        ConfigError: it was not.
    """
    begun = core.initialization
    if core.started is not None and begun is None:
        raise ConfigError(
            f"{root} is a search that was begun with a configuration. Choose another name with --set name=..."
        )
    if begun is not None and (begun.folder, begun.sentence) != (str(folder.absolute()), sentence):
        raise ConfigError(
            f"{root} was begun with the folder {begun.folder} and the sentence {begun.sentence!r}. Give "
            "these to continue it, or choose another name with --set name=..."
        )


def _fitted(drafted: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Drafted fields of a search.yaml that do not conflict with the user's own: hyper-parameters that the
    user set under another name are left out, and responses are no longer than the engine allows."""
    fields = {name: dict(value) if isinstance(value, Mapping) else value for name, value in drafted.items()}
    set_already = {canonical(key) for key in _block(_block(own, "root"), "overrides")}
    overrides = _block(_block(drafted, "root"), "overrides")
    kept = {key: value for key, value in overrides.items() if canonical(key) not in set_already}
    longest = _block(own, "engine").get("max_response_length")
    if isinstance(longest, int):
        fields["eval"]["max_response_length"] = min(longest, fields["eval"]["max_response_length"])
        kept = {key: min(longest, value) if key == "resp" else value for key, value in kept.items()}
    return {**fields, "root": {"overrides": kept}}


def _block(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}


def _set(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in held.items()}


def _found(drafted: Draft, session: DraftingSession) -> tuple[str, ...]:
    table, trial = drafted.spec.table, drafted.trial
    about = "" if table.exact else "about "
    columns = ", ".join(column.name for column in table.columns)
    lines = [f"data: {about}{plural(table.n_rows, 'row')} in {plural(len(table.files), 'file')}: {columns}"]
    lines += [*drafted.spec.evidence, *drafted.reward.evidence]
    if trial is not None and trial.accuracies:
        means = {w: "unknown" if mean is None else f"{mean:.3f}" for w, mean in trial.accuracies.items()}
        tried = ", ".join(f"{what} answers {mean}" for what, mean in means.items())
        lines.append(f"the reward on {plural(trial.n_rows, 'sampled row')}: {tried}")
    if drafted.ranking is not None:
        lines.append(f"recipe {drafted.ranking.names[0]}: {drafted.ranking.explanation}")
    lines += [f"doubt: {line}" for line in drafted.spec.doubts]
    return (*lines, *(f"note: {line}" for line in (*session.notes, *(trial.warnings if trial else ()))))


def _problems(drafted: Draft) -> tuple[str, ...]:
    return (
        *(f"open: {q.text} {q.listed_choices} Answer with {q.flag}." for q in drafted.open),
        *(f"does not work yet: {finding}" for finding in drafted.findings),
    )
