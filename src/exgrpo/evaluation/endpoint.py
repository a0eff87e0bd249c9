"""Completions from an OpenAI-compatible address, as vLLM and SGLang serve: each asked for until it is whole, and kept once."""

import asyncio
import importlib
import importlib.util
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from ..errors import ConfigurationError, ExGRPOError, MissingExtraError
from .sampling import Sampling
from .store import Answer, Key, StoredQuestion

CLIENTS = ("httpx2", "httpx")  # whichever the hub's client brings
WHOLE = ("stop", "length")
BUSY = (408, 409, 425, 429)
LONGEST_WAIT = 60.0


class EndpointError(ExGRPOError, RuntimeError):
    """The endpoint did not respond, or not with completions; earlier ones are kept."""


class Endpoint:
    """A model that is served at `base_url`.

    Args:
        name: of the model, as the server knows it.
        base_url: up to and with `/v1`.
        api_key: sent as a bearer token.
        parallel: requests at the same time.
        timeout: seconds for one answer.
        tries: of one request, before the evaluation stops.
        wait: seconds before the second try; doubled for each further one.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        api_key: str | None = None,
        parallel: int = 16,
        timeout: float = 600.0,
        tries: int = 8,
        wait: float = 1.0,
    ):
        self.name, self.base_url, self.parallel, self.timeout = name, base_url.rstrip("/"), parallel, timeout
        self.tries, self.wait = tries, wait
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.http = _client()
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigurationError(f"--base_url must begin with http:// or https://, but is {base_url!r}.")

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide its completions, as far as known here."""
        return {"base_url": self.base_url}

    def answers(
        self, questions: Sequence[StoredQuestion], sampling: Sampling, done: set[Key]
    ) -> Iterator[list[Answer]]:
        """Yield the completions that are not done, one at a time, in the order of arrival."""
        keys = [(q, sample) for q in questions for sample in range(sampling.num_samples) if (q.id, sample) not in done]
        loop = asyncio.new_event_loop()
        try:
            answers = self._all(keys, sampling)
            while (answer := loop.run_until_complete(anext(answers, None))) is not None:
                yield [answer]
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(answers.aclose())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _all(self, keys: Sequence[tuple[StoredQuestion, int]], sampling: Sampling) -> Any:
        """Yield answers as they arrive.

        At most `parallel` requests are under way, and none starts after one has failed.
        """
        waiting = iter(keys)
        async with self.http.AsyncClient(timeout=self.timeout, headers=self.headers) as client:
            running: set[asyncio.Task[Answer]] = set()
            try:
                while True:
                    while len(running) < self.parallel and (key := next(waiting, None)) is not None:
                        running.add(asyncio.create_task(self._one(client, *key, sampling)))
                    if not running:
                        return
                    finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    failed = [task for task in finished if task.exception()]
                    for task in finished - set(failed):
                        yield task.result()
                    for task in failed:
                        task.result()
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, client: Any, question: StoredQuestion, sample: int, sampling: Sampling) -> Answer:
        chat = not isinstance(question.prompt, str)
        request = {
            "model": self.name,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed + 1_000_003 * question.id + sample,
            "n": 1,
            **({"messages": question.prompt} if chat else {"prompt": question.prompt}),
        }
        path = "/chat/completions" if chat else "/completions"
        choice, usage = await self._patiently(lambda: self._ask(client, path, request))
        text = choice["message"].get("content") if chat else choice["text"]
        return Answer(question.id, sample, text or "", usage.get("completion_tokens"), choice["finish_reason"])

    async def _patiently(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a request, retried where the server was busy, silent, or broke off."""
        for attempt in range(1, self.tries + 1):
            try:
                return await ask()
            except (self.http.TransportError, self.http.DecodingError, _NotWhole) as error:
                if attempt == self.tries:
                    raise EndpointError(
                        f"{self.base_url} gave no whole answer in {self.tries} tries; the last: {type(error).__name__}: "
                        f"{str(error).rstrip('.')}. Answers so far are kept: the same command continues."
                    ) from error
                asked = getattr(error, "retry_after", None)
                pause = min(LONGEST_WAIT, self.wait * 2 ** (attempt - 1)) * (0.5 + random.random())
                await asyncio.sleep(max(pause, asked or 0.0))
        raise AssertionError("unreachable")

    async def _ask(self, client: Any, path: str, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Try once: return the first choice and the usage of a whole answer."""
        response = await client.post(self.base_url + path, json=request)
        if response.status_code in BUSY or response.status_code >= 500:
            raise _NotWhole(f"status {response.status_code}", _seconds(response.headers.get("retry-after")))
        if response.status_code != 200:
            raise EndpointError(
                f"{self.base_url}{path} refused with status {response.status_code}: {response.text[:300]}"
            )
        try:
            body = response.json()
            choice = body["choices"][0]
            content = choice["message"] if "messages" in request else choice["text"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise _NotWhole(f"an answer that cannot be read ({type(error).__name__})") from error
        if content is None or choice.get("finish_reason") not in WHOLE:
            raise _NotWhole(f"an answer that is not whole (finish_reason={choice.get('finish_reason')!r})")
        return choice, body.get("usage") or {}


class _NotWhole(Exception):
    """A try that may do better the next time."""

    def __init__(self, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.retry_after = retry_after


def _seconds(text: str | None) -> float | None:
    """Read a `Retry-After` header; None where it is a date, or absent."""
    return min(LONGEST_WAIT, float(text)) if text and text.strip().isdecimal() else None


def _client() -> Any:
    for name in CLIENTS:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise MissingExtraError("httpx", "trl", "Evaluation at an address")
