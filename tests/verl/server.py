"""The rollout server of the tests: a tiny model that samples one completion after the other. Imports no verl."""

import hashlib
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM


class Server:
    """An actor of Ray. A completion depends on the weights, the training step, the prompt and the member alone."""

    def __init__(self, path, rank):
        torch.set_num_threads(1)
        self.model, self.step = AutoModelForCausalLM.from_pretrained(path).float().eval(), 0
        self.end = self.model.config.eos_token_id

    async def ready(self):
        return True

    async def load(self, weights, step):
        self.model.load_state_dict(weights, strict=False)
        self.step = step

    async def wake_up(self, *args, **kwargs):
        return None

    sleep = abort_all_requests = resume_generation = clear_kv_cache = release_kv_cache = resume_kv_cache = wake_up
    start_profile = stop_profile = wake_up

    async def generate(self, request_id, prompt_ids, sampling_params, **kwargs):
        key = f"{self.step} {list(prompt_ids)} {sampling_params['member']}"
        generator = torch.Generator().manual_seed(int(hashlib.blake2b(key.encode(), digest_size=4).hexdigest(), 16))
        ids, logps = list(prompt_ids), []
        with torch.no_grad():
            for _ in range(12):
                logits = (
                    self.model(input_ids=torch.tensor([ids])).logits[0, -1].float() / sampling_params["temperature"]
                )
                token = int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
                ids.append(token)
                logps.append(float(logits.log_softmax(-1)[token]))
                if token == self.end:
                    break
        return SimpleNamespace(
            token_ids=ids[len(prompt_ids) :], log_probs=logps, routed_experts=None, stop_reason="completed",
            num_preempted=0, extra_fields={"global_steps": self.step},
        )  # fmt: skip
