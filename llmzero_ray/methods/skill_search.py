"""Search method of the skill-based agent (App. B.7): the agent itself decides where each phase starts.

The method counts runs and offers every saved checkpoint. It has no tree, forces no fresh starts and debugs
nothing. A new run is recorded below the best one so far, which is shown to the agent. Not here: the agent
itself (skills/).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from llmzero_ray.agents.backend import Agents, AgentServices, llm_settings, model_client
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import space_with
from llmzero_ray.methods.planned_search import PlannedNode, PlannedSearch
from llmzero_ray.methods.run_plan import RunPlan
from llmzero_ray.records.agents import SKILL_AGENT
from llmzero_ray.search.base import Decision


class SkillSearch(PlannedSearch):
    """Search by the skill-based agent. `budget` counts runs, including the root. None if there is no
    limit."""

    plans_its_runs, needs_model = False, True

    def next_run(self) -> RunPlan | None:
        """A run below the best one so far. None until a run has ended."""
        if not self.nodes:
            return RunPlan()
        best = self.best_ended
        return None if best is None else RunPlan(on=best.id, start="best")

    @classmethod
    def frozen_facts(cls) -> dict[str, Any]:
        """Texts of the skills, frozen when the search begins."""
        from llmzero_ray.methods.skills import skill_texts

        return {"skills": skill_texts()}

    @classmethod
    def make_agents(
        cls, config: SearchConfig, n_val: int, agents: Agents, services: AgentServices | None
    ) -> Agents:
        """The backend's agents, with the skill-based agent as proposer and early stopper. The backend's
        proposer plans runs that the agent hands over to the tree search.

        Raises:
            ConfigError: `services` is None, that is, there is no search.
        """
        if services is None:
            raise ConfigError(f"search.method {config.search.method!r} works inside a search only.")
        from llmzero_ray.agents.llm.call_records import CallRecorder
        from llmzero_ray.agents.llm.prompts import Prompts
        from llmzero_ray.methods.skills import SkillAgent, SkillSettings, Transcript, skill_texts

        texts = {str(name): str(text) for name, text in services.facts["prompts"].items()}
        own = {str(name): str(text) for name, text in services.facts.get("skills", {}).items()}
        prompts = Prompts(texts=texts, origins={name: f"prompts/{name}" for name in texts})
        asked = llm_settings(config.agents, SKILL_AGENT)
        settings = SkillSettings(
            n_val=n_val,
            n_gpus=config.slots.n_gpus,
            on_cap=config.agents.on_cap,
            space=space_with(config.agents.allow),
            rules=config.search,
            model=asked.model,
            deadline_s=asked.deadline_s,
            on_outage="rules" if config.agents.backend == "recorded" else config.agents.on_outage,
        )
        agent = SkillAgent(
            client=model_client(config.agents, SKILL_AGENT),
            budget=services.budget,
            report=CallRecorder(prompts.digest, services.post, services.write_call),
            texts=own or skill_texts(),
            notes=prompts.knowledge.metrics,
            settings=settings,
            transcript=Transcript(services.transcript),
            workflow=agents.proposer,
        )
        return replace(agents, proposer=agent, early_stopper=agent)

    def _decide(
        self, action: Any, *, on: int | None = None, plan: RunPlan | None = None, reason: Any = None
    ) -> Decision:
        """A decision without a plan, because the agent decides on values, start and length."""
        del plan
        return super()._decide(action, on=on, reason=reason)

    def explain(self, decision: Mapping[str, Any]) -> str:
        """Reason for a recorded decision, as text."""
        seen = decision["seen"]
        if decision["action"] == "root":
            return "first run of the search: the default recipe"
        if decision["action"] == "evolve":
            limit = "no limit" if seen["budget"] is None else str(seen["budget"])
            shown = f"it is shown node {decision['on']}"
            return f"the agent decides; {shown} ({seen['begun']} of {limit} runs begun)"
        return super().explain(decision)

    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """All runs that have ended and were not vetoed. Empty for the root, or without `multi_stage`."""
        node = self.node(node_id)
        if node.kind == "root" or not self.rules.multi_stage:
            return ()
        return tuple(one.id for one in self.runs if not one.is_running and one.id != node_id)

    def _trained_from(self, node: PlannedNode) -> Iterable[PlannedNode]:
        """Runs that resumed one of the node's checkpoints, whatever their parent is."""
        resumed = self._nodes.values()
        return [one for one in resumed if one.resume_from is not None and one.resume_from[0] == node.id]
