"""verl's replay buffer, whose batches are in the order in which questions were asked for, not in which completions arrive: two
runs then add up the same numbers in the same order."""

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class Ordered(ReplayBuffer):
    def _materialize_batch(self, partition_id, selected_prompt_uids, partition_snapshot):
        place = {uid: number for number, uid in enumerate(self.prompt_global_steps[partition_id])}
        keys = sorted(partition_snapshot, key=lambda key: (place.get(key.split("_")[0], -1), key.split("_")[1:]))
        return super()._materialize_batch(
            partition_id, selected_prompt_uids, {key: partition_snapshot[key] for key in keys}
        )
