"""Progress of the arms: one live line each in a terminal, now and then a plain line elsewhere."""

from collections.abc import Mapping
from typing import Any, Protocol


class Display(Protocol):
    """The interface of both displays; names are those of the arms."""

    def __enter__(self) -> "Display": ...
    def __exit__(self, *exception: object) -> None: ...
    def say(self, text: str) -> None: ...
    def begin(self, name: str) -> None: ...
    def update(self, name: str, state: Mapping[str, Any]) -> None: ...
    def finish(self, name: str, text: str) -> None: ...


def make_display(console: Any, keep_finished: bool) -> Display:
    """Make a live display if the console is a terminal.

    `keep_finished`: whether lines of finished arms stay.
    """
    return LiveDisplay(console, keep_finished) if console.is_terminal else PlainDisplay(console)


def describe(state: Mapping[str, Any]) -> str:
    """Describe the state of an arm in one line, as far as it is known."""
    parts = [f"step {state['step']:>3}", f"{state['tokens'] / 1000:>4.0f}k tokens"]
    for key, text in (
        ("pass_at_1", "fresh Pass@1 {:.3f}"),
        ("held_out", "held-out {:.3f}"),
        ("replay_share", "replay {:>3.0%}"),
        ("retired", "retired {:>4.0f}"),
    ):
        if state.get(key) is not None:
            parts.append(text.format(state[key]))
    if state.get("idle"):
        parts.append(f"idle: {state['idle']}")
    return "  ".join(parts)


class PlainDisplay:
    """A line when an arm begins, whenever it was evaluated, and when it is done."""

    def __init__(self, console: Any):
        self.console = console
        self._said: dict[str, int] = {}

    def __enter__(self) -> "PlainDisplay":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, name: str) -> None:
        self.say(f"{name}: begins")

    def update(self, name: str, state: Mapping[str, Any]) -> None:
        if state["evaluations"] > self._said.get(name, 0):
            self._said[name] = state["evaluations"]
            self.say(f"{name}: {describe(state)}")

    def finish(self, name: str, text: str) -> None:
        self.say(f"{name}: {text}")


class LiveDisplay:
    """A bar an arm, over its budget of generated tokens."""

    def __init__(self, console: Any, keep_finished: bool):
        from rich.progress import BarColumn, Progress, TextColumn

        self.console, self.keep_finished = console, keep_finished
        self.progress = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            refresh_per_second=4,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "LiveDisplay":
        self.progress.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.__exit__(*exception)  # type: ignore[arg-type]

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False)

    def begin(self, name: str) -> None:
        self._tasks[name] = self.progress.add_task(name, total=None, text="begins")

    def update(self, name: str, state: Mapping[str, Any]) -> None:
        done = min(state["tokens"], state["budget"])
        self.progress.update(self._tasks[name], total=state["budget"], completed=done, text=describe(state))

    def finish(self, name: str, text: str) -> None:
        task = self._tasks[name]
        total = self.progress.tasks[self.progress.task_ids.index(task)].total or 1
        self.progress.update(task, total=total, completed=total, text=text, visible=self.keep_finished)
