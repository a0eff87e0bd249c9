"""What the worker processes of the tests run."""

import os
import sys
import time


def nothing():
    """A setup."""


def environment(name, on_progress):
    on_progress({"pid": os.getpid()})
    return {"value": os.environ.get(name), "torch": "torch" in sys.modules, "pid": os.getpid()}


def double(number):
    return 2 * number


def fail(message):
    raise ValueError(message)


def die(code):
    os._exit(code)


def sleep(seconds):
    time.sleep(seconds)
