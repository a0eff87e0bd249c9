"""ExGRPO on TRL: change one import in a GRPO script."""

from .contract import check_host_version

check_host_version()

from .callbacks import ReplayAlarm  # noqa: E402
from .checkpoint import last_checkpoint  # noqa: E402
from .config import ExGRPOConfig  # noqa: E402
from .trainer import ExGRPOTrainer  # noqa: E402

__all__ = ["ExGRPOConfig", "ExGRPOTrainer", "ReplayAlarm", "last_checkpoint"]
