"""An OpenAI-compatible server on this machine that samples from a model, and misbehaves as servers do."""

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from exgrpo.evaluation.generation import generate, prompt_token_ids
from exgrpo.evaluation.policy import undisturbed

FAULTS = ("busy", "silent", "cut", "half", "garbled", "error")


class Stub:
    """Answers a request by its own seed; `faults` gives what goes wrong with the n-th request, None where nothing does."""

    def __init__(self, model, tokenizer, faults=lambda n: None, silence=1.0):
        self.model, self.tokenizer, self.faults, self.silence = model, tokenizer, faults, silence
        self.lock, self.requests, self.answered, self.happened = threading.Lock(), 0, Counter(), Counter()

    def fault(self):
        with self.lock:
            self.requests += 1
            fault = self.faults(self.requests - 1)
            self.happened[fault] += 1
            return fault

    def answer(self, request):
        prompt = request.get("prompt", request.get("messages"))
        with self.lock, undisturbed(self.model, request["seed"]):
            [completion] = generate(
                self.model, self.tokenizer, prompt_token_ids(self.tokenizer, [prompt]),
                max_new_tokens=request["max_tokens"], batch_size=1, temperature=request["temperature"] or None,
                top_p=request["top_p"],
            )  # fmt: skip
            self.answered[request["seed"]] += 1
        reason = "stop" if completion.finished else "length"
        choice = {"index": 0, "finish_reason": reason, "text": completion.text}
        return {"choices": [choice], "usage": {"completion_tokens": len(completion.ids)}}


def handler(stub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            fault = stub.fault()
            if fault == "busy":
                return self.send(429, {"error": "slow down"}, {"Retry-After": "0"})
            if fault == "error":
                return self.send(503, {"error": "restarting"})
            if fault == "refused":
                return self.send(401, {"error": "wrong key"})
            answer = stub.answer(request)
            if fault == "silent":
                time.sleep(stub.silence)
            if fault == "half":
                answer["choices"][0] |= {"finish_reason": None, "text": answer["choices"][0]["text"][:1]}
            if fault == "garbled":
                return self.write(200, json.dumps(answer)[:25].encode())
            return self.send(200, answer, cut=fault == "cut")

        def send(self, status, body, headers=None, cut=False):
            data = json.dumps(body).encode()
            self.write(status, data[: len(data) // 2] if cut else data, headers, len(data))

        def write(self, status, data, headers=None, length=None):
            try:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data) if length is None else length))
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client had waited long enough
            if length is not None and length > len(data):
                self.close_connection = True

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """A client that went away is no news."""


@contextmanager
def serving(stub):
    """The address of a running stub."""
    server = Server(("127.0.0.1", 0), handler(stub))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
