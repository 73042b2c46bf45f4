"""The drafting agents as a language model, with the rules as their understudies.

Every answer is checked: it is sent back once, and what is wrong after that comes from the rules. When the
model cannot be reached or its money is used up, the rules answer alone. Not here: the questions' words
(prompts/drafting/), checks (checking.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

from llmzero_ray.agents.drafting.assembling import response_tokens
from llmzero_ray.agents.drafting.checking import (
    descriptor_faults,
    mended_ranking,
    reward_faults,
    selector_faults,
)
from llmzero_ray.agents.drafting.expert import ExpertDrafters, pick_table
from llmzero_ray.agents.drafting.forms import DescriptorForm, DraftingAgent, RewardForm
from llmzero_ray.agents.drafting.judging import INSTRUCTIONS
from llmzero_ray.agents.drafting.questions import Problems, drafting_question
from llmzero_ray.agents.drafting.recipes import CASES, cases_of, recipes
from llmzero_ray.agents.drafting.rendering import data_prompt, rows_for_reward
from llmzero_ray.agents.drafting.values import (
    Attempt,
    Given,
    Perception,
    Ranking,
    Reading,
    RewardPlan,
    TaskFacts,
)
from llmzero_ray.agents.llm.agent_client import AgentClient, FilledForm
from llmzero_ray.agents.llm.briefing_text import quote
from llmzero_ray.agents.llm.budget import BudgetLedger
from llmzero_ray.agents.llm.errors import ASK_AGAIN, LlmCallError
from llmzero_ray.errors import AgentError, CapReachedError
from llmzero_ray.text import clean, one_line

_FINDINGS_CHARS, _CODE_CHARS = 6_000, 24_000


class ModelDrafters:
    """Task descriptor, tool selector and reward writer."""

    def __init__(
        self, client: AgentClient, ledger: BudgetLedger, *, strict: bool = True, secret: str | None = None
    ) -> None:
        """`strict`: the server enforces the forms; `secret`: the API key, which is never sent in a prompt."""
        self._client, self._ledger, self._expert = client, ledger, ExpertDrafters()
        self._question = partial(drafting_question, strict=strict, secret=secret)
        self._away = ""
        self.notes: list[str] = []
        """What the rules had to answer, and why."""

    def describe(self, perception: Perception, sentence: str, given: Given) -> Reading:
        """The model's reading of the folder; fields that stay wrong are the rules'.

        Raises:
            ConfigError: the user has named a table or a column that does not exist.
        """
        by_rules = self._expert.describe(perception, sentence, given)
        values = {
            "sentence": quote(sentence, label="sentence", max_chars=2_000),
            "data": data_prompt(perception),
            "wishes": _wishes(given),
        }
        answered = self._answer(
            "task_descriptor", values, lambda form: list(descriptor_faults(form, perception, given).values())
        )
        if answered is None:
            return by_rules
        form: DescriptorForm = answered.form
        faults = descriptor_faults(form, perception, given)
        columns = {"table", "question", "answer", "options"}
        if columns & set(faults):
            # Columns hang together: half of the model's and half of the rules' would fit nothing.
            self._note("task_descriptor", "; ".join(faults.values()))
            return dataclasses.replace(by_rules, doubts=(*by_rules.doubts, *form.doubts))
        if faults:
            self._note("task_descriptor", "; ".join(faults.values()), what="the rules mended an answer")
        return Reading(
            table=pick_table(perception, Given(table=form.table)),
            name=given.name or (by_rules.name if "name" in faults else form.name),
            description=by_rules.description if "description" in faults else form.description,
            template=clean(form.question).strip(),
            answer=form.answer,
            choices=tuple(form.options),
            answer_form=given.answer_form or form.answer_form,
            licence=one_line(form.licence, 80) if form.licence else by_rules.licence,
            evidence=(f"columns were chosen by {self._client.model}",),
            doubts=tuple(form.doubts),
        )

    def rank(self, reading: Reading, facts: TaskFacts, sentence: str) -> Ranking:
        """The model's ranking, completed by the rules'."""
        by_rules = self._expert.rank(reading, facts, sentence)
        values = {
            "sentence": quote(sentence, label="sentence", max_chars=2_000),
            "description": quote(reading.description, label="description"),
            "facts": [CASES[case] for case in cases_of(facts, response_tokens(facts))],
            "recipes": [(name, recipe.title, recipe.fits) for name, recipe in recipes().items()],
        }
        answered = self._answer("tool_selector", values, selector_faults)
        if answered is None:
            return by_rules
        names = mended_ranking(answered.form.ranking, by_rules.names)
        return Ranking(names=names, explanation=answered.form.explanation)

    def write_reward(
        self, reading: Reading, sentence: str, given: Given, tried: Sequence[Attempt]
    ) -> RewardPlan | None:
        """The model's reward; the rules' where it gives none that can be tried.

        Raises:
            ConfigError: `given.reward` is no reward.
        """
        if given.reward is not None or reading.answer is None or reading.template is None:
            return self._expert.write_reward(reading, sentence, given, tried)
        columns = tuple(dict.fromkeys([*_shown_columns(reading), reading.answer]))
        values = {
            "sentence": quote(sentence, label="sentence", max_chars=2_000),
            "description": quote(reading.description, label="description"),
            "answer": quote(reading.answer, label="answer column"),
            "has_options": bool(reading.choices),
            "rows": rows_for_reward(reading.table.rows, columns),
            "instructions": list(INSTRUCTIONS.items()),
            "tried": [(_told_plan(each.plan), _told_findings(each)) for each in tried],
        }
        answered = self._answer("reward_writer", values, lambda form: reward_faults(form, reading))
        if answered is None or answered.problems:
            if answered is not None:
                self._note("reward_writer", "; ".join(answered.problems))
            return self._expert.write_reward(reading, sentence, given, tried)
        return _plan(answered.form)

    def _answer(self, agent: DraftingAgent, values: dict[str, Any], problems: Problems) -> FilledForm | None:
        """The answer, or None: the rules must answer."""
        if self._away:
            self._note(agent, self._away)
            return None
        try:
            return self._client.ask(self._question(agent, values, problems))
        except CapReachedError:
            cap, spent = self._ledger.cap_dollars, self._ledger.dollars
            self._away = f"--max-dollars {cap:g} does not allow another call ({spent:.4f} dollars are spent)"
            self._note(agent, self._away)
        except AgentError as error:
            # A call that failed for good, or for as long as it may take, would fail again.
            if isinstance(error, LlmCallError) and error.kind not in ASK_AGAIN:
                self._away = "the model could not be asked before"
            self._note(agent, str(error))
        return None

    def _note(self, agent: str, why: str, what: str = "the rules answer instead of the model") -> None:
        self.notes.append(f"{agent.replace('_', ' ')}: {what}: {one_line(why, 300)}")


def _wishes(given: Given) -> list[str]:
    named = {
        "table": given.table,
        "column of the question": given.question,
        "column of the answer": given.answer,
        "columns of the options": ", ".join(given.options) or None,
        "answer_form": given.answer_form,
        "name": given.name,
    }
    return [f"{what}: {one_line(str(value), 120)}" for what, value in named.items() if value is not None]


def _shown_columns(reading: Reading) -> list[str]:
    template = reading.template or ""
    return [column.name for column in reading.table.columns if f"{{{column.name}}}" in template]


def _plan(form: RewardForm) -> RewardPlan:
    options: dict[str, Any] = {"pattern": form.pattern} if form.kind == "regex" else {}
    if form.ignore_case and form.kind in ("exact_match", "regex"):
        options["ignore_case"] = True
    own = form.kind in ("regex", "python")
    return RewardPlan(
        kind=form.kind,
        options=options,
        code=form.code if form.kind == "python" else None,
        gold=form.gold if own else None,
        instruction=form.instruction,
        evidence=(f"reward {form.kind}: {form.reason}",),
    )


def _told_plan(plan: RewardPlan) -> str:
    text = plan.code or f"kind: {plan.kind}, options: {dict(plan.options)}, gold: {plan.gold}"
    return quote(text, label="reward", max_lines=600, max_chars=_CODE_CHARS)


def _told_findings(attempt: Attempt) -> str:
    """What the gate said; it quotes rows."""
    return quote("\n".join(attempt.findings), label="findings", max_lines=60, max_chars=_FINDINGS_CHARS)
