"""Delayed start: replay begins once the policy is good enough for its successes to be worth replaying
[ExGRPO, sec. 3.3]."""


class Gate:
    """Opens when all given conditions hold at once, and stays open.

    Args:
        start_pass_at_1: the mean correctness of the fresh completions of the previous generation must exceed this;
            0: no such condition.
        start_step: optimizer steps done, at least; 0: no such condition.
        start_epoch: epochs done, at least; 0: no such condition.
        start_size: more trajectories must be stored than this; 0: no such condition.
    """

    def __init__(self, start_pass_at_1: float, start_step: int = 0, start_epoch: float = 0.0, start_size: int = 0):
        self.start_pass_at_1 = start_pass_at_1
        self.start_step = start_step
        self.start_epoch = start_epoch
        self.start_size = start_size
        self.open = False

    def check(self, pass_at_1: float | None, step: int, epoch: float, size: int = 0) -> str | None:
        """Open if the conditions hold; None when open, else why not. size: trajectories stored."""
        if self.open:
            return None
        closed = []
        if self.start_pass_at_1 > 0 and not (pass_at_1 is not None and pass_at_1 > self.start_pass_at_1):
            came = "not measured yet" if pass_at_1 is None else f"{pass_at_1:.2f}"
            closed.append(f"Pass@1 {came}, must exceed {self.start_pass_at_1:g}")
        if step < self.start_step:
            closed.append(f"step {step} < {self.start_step}")
        if epoch < self.start_epoch:
            closed.append(f"epoch {epoch:.2f} < {self.start_epoch:g}")
        if self.start_size > 0 and size <= self.start_size:
            closed.append(f"{size} trajectories stored, must be more than {self.start_size}")
        self.open = not closed
        return None if self.open else "gate closed: " + "; ".join(closed)
