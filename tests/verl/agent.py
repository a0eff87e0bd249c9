"""verl's agent loop, which says which member of a group a completion is: tests key its randomness by it."""

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


@register("single_turn_agent")
class Seeded(SingleTurnAgentLoop):
    async def run(self, sampling_params, **kwargs):
        return await super().run({**sampling_params, "member": kwargs["session_id"]}, **kwargs)
