"""Language-model drafting agents, with the rules as fallback.

Every response is validated and retried once; the rules replace fields that are still wrong. If the model
cannot be reached or the budget is used up, the rules do everything.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from llmzero_ray.agents.llm.agent_client import AgentClient, StructuredResponse
from llmzero_ray.agents.llm.budget import BudgetLedger
from llmzero_ray.agents.llm.errors import REPROMPT_KINDS, LlmCallError
from llmzero_ray.agents.llm.prompt_text import quote
from llmzero_ray.errors import AgentError, CapReachedError
from llmzero_ray.tasks.drafting.base import (
    DataProfile,
    RecipeRanking,
    RewardAttempt,
    RewardSpec,
    TaskFeatures,
    TaskSpec,
    UserChoices,
)
from llmzero_ray.tasks.drafting.config_fields import response_tokens
from llmzero_ray.tasks.drafting.data_prompt import data_prompt, rows_for_reward
from llmzero_ray.tasks.drafting.expert_agents import ExpertDraftingAgents, pick_table
from llmzero_ray.tasks.drafting.llm_requests import (
    DescriptorSchema,
    DraftingAgent,
    RewardSchema,
    Validate,
    drafting_request,
)
from llmzero_ray.tasks.drafting.recipes import CASES, matching_cases, recipes
from llmzero_ray.tasks.drafting.response_checks import (
    complete_ranking,
    descriptor_problems,
    reward_problems,
    selector_problems,
)
from llmzero_ray.tasks.drafting.reward_rules import INSTRUCTIONS
from llmzero_ray.tasks.task_yaml import template_fields
from llmzero_ray.utils.text import clean, one_line

_FINDINGS_CHARS, _CODE_CHARS = 6_000, 24_000


class LlmDraftingAgents:
    """Task descriptor, tool selector and reward writer."""

    def __init__(
        self,
        client: AgentClient,
        ledger: BudgetLedger,
        *,
        strict: bool = True,
        secret: str | None = None,
        cap: str = "--max-dollars",
        stops_at_cap: bool = False,
        attempt: int = 0,
    ) -> None:
        """With `strict`, the server enforces the schemas. `secret` is the API key, redacted in every prompt.
        `cap` is the name of the dollar limit. With `stops_at_cap`, an agent beyond the cap raises
        CapReachedError. `attempt` is part of the names of call records."""
        self._client, self._ledger, self._expert = client, ledger, ExpertDraftingAgents()
        self._request = partial(drafting_request, strict=strict, secret=secret)
        self._cap, self._stops_at_cap, self._attempt = cap, stops_at_cap, attempt
        self._outage = ""
        self._asked: Counter[str] = Counter()
        self.notes: list[str] = []
        """Fallbacks to the rules, one line each with the reason."""

    def describe(self, profile: DataProfile, sentence: str, user: UserChoices) -> TaskSpec:
        """The model's description of the task; fields that stay wrong are taken from the rules.

        Raises:
            ConfigError: the user chose a table or a column that does not exist.
        """
        by_rules = self._expert.describe(profile, sentence, user)
        values = {
            "sentence": quote(sentence, label="sentence", max_chars=2_000),
            "data": data_prompt(profile),
            "wishes": _user_choices(user),
        }
        response = self._answer(
            "task_descriptor",
            values,
            lambda parsed: list(descriptor_problems(parsed, profile, user).values()),
        )
        if response is None:
            return by_rules
        parsed: DescriptorSchema = response.parsed
        problems = descriptor_problems(parsed, profile, user)
        columns = {"table", "question", "answer", "options"}
        if columns & set(problems):
            # Columns depend on each other: a mix of the model's and the rules' would be inconsistent.
            self._note("task_descriptor", "; ".join(problems.values()))
            return dataclasses.replace(by_rules, doubts=(*by_rules.doubts, *parsed.doubts))
        if problems:
            self._note("task_descriptor", "; ".join(problems.values()), what="the rules corrected an answer")
        return TaskSpec(
            table=pick_table(profile, UserChoices(table=parsed.table)),
            name=user.name or (by_rules.name if "name" in problems else parsed.name),
            description=by_rules.description if "description" in problems else parsed.description,
            template=clean(parsed.question).strip(),
            answer=parsed.answer,
            choices=tuple(parsed.options),
            answer_form=user.answer_form or parsed.answer_form,
            licence=one_line(parsed.licence, 80) if parsed.licence else by_rules.licence,
            evidence=(f"columns were chosen by {self._client.model}",),
            doubts=tuple(parsed.doubts),
        )

    def rank(self, spec: TaskSpec, features: TaskFeatures, sentence: str) -> RecipeRanking:
        """The model's ranking, completed by that of the rules."""
        by_rules = self._expert.rank(spec, features, sentence)
        values = {
            "sentence": quote(sentence, label="sentence", max_chars=2_000),
            "description": quote(spec.description, label="description"),
            "facts": [CASES[case] for case in matching_cases(features, response_tokens(features))],
            "recipes": [(name, recipe.title, recipe.fits) for name, recipe in recipes().items()],
        }
        response = self._answer("tool_selector", values, selector_problems)
        if response is None:
            return by_rules
        names = complete_ranking(response.parsed.ranking, by_rules.names)
        return RecipeRanking(names=names, explanation=response.parsed.explanation)

    def write_reward(
        self, spec: TaskSpec, sentence: str, user: UserChoices, attempts: Sequence[RewardAttempt]
    ) -> RewardSpec | None:
        """The model's reward, or that of the rules if the model gives none that can be validated.

        Raises:
            ConfigError: `user.reward` is not a reward.
        """
        if user.reward is not None or spec.answer is None or spec.template is None:
            return self._expert.write_reward(spec, sentence, user, attempts)
        columns = tuple(dict.fromkeys([*_shown_columns(spec), spec.answer]))
        values = {
            "sentence": quote(sentence, label="sentence", max_chars=2_000),
            "description": quote(spec.description, label="description"),
            "answer": quote(spec.answer, label="answer column"),
            "has_options": bool(spec.choices),
            "rows": rows_for_reward(spec.table.rows, columns, spec.answer),
            "instructions": list(INSTRUCTIONS.items()),
            "tried": [(_quoted_reward(each.reward), _quoted_findings(each)) for each in attempts],
        }
        response = self._answer("reward_writer", values, lambda parsed: reward_problems(parsed, spec))
        if response is None or response.problems:
            if response is not None:
                self._note("reward_writer", "; ".join(response.problems))
            return self._expert.write_reward(spec, sentence, user, attempts)
        return _plan(response.parsed)

    def _answer(
        self, agent: DraftingAgent, values: dict[str, Any], validate: Validate
    ) -> StructuredResponse | None:
        """The model's response, or None to fall back to the rules."""
        if self._outage:
            self._note(agent, self._outage)
            return None
        name = f"{agent}-{self._attempt}" + (f"-{self._asked[agent]}" if self._asked[agent] else "")
        self._asked[agent] += 1
        try:
            return self._client.generate(self._request(agent, values, validate, name=name))
        except CapReachedError:
            if self._stops_at_cap:
                raise
            cap, spent = self._ledger.cap_dollars, self._ledger.dollars
            self._outage = f"{self._cap} {cap:g} does not allow another call ({spent:.4f} dollars are spent)"
            self._note(agent, self._outage)
        except AgentError as error:
            # An error that a retry does not cure would also end the next call.
            if isinstance(error, LlmCallError) and error.kind not in REPROMPT_KINDS:
                self._outage = "the model could not be asked before"
            self._note(agent, str(error))
        return None

    def _note(self, agent: str, why: str, what: str = "the rules answer instead of the model") -> None:
        self.notes.append(f"{agent.replace('_', ' ')}: {what}: {one_line(why, 300)}")


def _user_choices(user: UserChoices) -> list[str]:
    named = {
        "table": user.table,
        "column of the question": user.question,
        "column of the answer": user.answer,
        "columns of the options": ", ".join(user.options) or None,
        "answer_form": user.answer_form,
        "name": user.name,
    }
    return [f"{what}: {one_line(str(value), 120)}" for what, value in named.items() if value is not None]


def _shown_columns(spec: TaskSpec) -> list[str]:
    template = spec.template or ""
    return [column.name for column in spec.table.all_columns if column.name in template_fields(template)]


def _plan(parsed: RewardSchema) -> RewardSpec:
    options: dict[str, Any] = {"pattern": parsed.pattern} if parsed.kind == "regex" else {}
    if parsed.ignore_case and parsed.kind in ("exact_match", "regex"):
        options["ignore_case"] = True
    own = parsed.kind in ("regex", "python")
    return RewardSpec(
        kind=parsed.kind,
        options=options,
        code=parsed.code if parsed.kind == "python" else None,
        gold=parsed.gold if own else None,
        instruction=parsed.instruction,
        evidence=(f"reward {parsed.kind}: {parsed.reason}",),
    )


def _quoted_reward(reward: RewardSpec) -> str:
    text = reward.code or f"kind: {reward.kind}, options: {dict(reward.options)}, gold: {reward.gold}"
    return quote(text, label="reward", max_lines=600, max_chars=_CODE_CHARS)


def _quoted_findings(attempt: RewardAttempt) -> str:
    """Findings of the reward's checks, quoted: they contain rows."""
    return quote("\n".join(attempt.findings), label="findings", max_lines=60, max_chars=_FINDINGS_CHARS)
