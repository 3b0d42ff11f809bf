"""The synchronous client and its process: Ctrl-C, a fork, and the end of the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waits import wait_until
from weftline import Client
from weftline.sdk.client import Session

HEAD = """
import os, signal, sys, threading, time, warnings
from weftline import Client, client_step, semantic_function

@semantic_function
def shout(words, said):
    '''{{input:words}}{{output:said}}'''

client = Client(sys.argv[1])
client.models()
"""
CTRL_C = (
    HEAD
    + """
with client.session() as session:
    said = shout("word " * 1000)
    session.flush()
    print(session.id, flush=True)
    try:
        said.get()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    while session.graph()["calls"][0]["state"] != "cancelled":
        time.sleep(0.01)
    print(shout("still there").get(), flush=True)
client.close()
"""
)
FORK = (
    HEAD
    + """
def program(words):
    with client.session() as session:
        return shout(words).get()

ends = []
for number in range(4):
    read, write = os.pipe()
    if not os.fork():
        said = {program(f"child {number} says {time}") for time in range(3)}
        os.write(write, repr(sorted(said)).encode())
        os._exit(0)
    os.close(write)
    ends.append(read)
mine = [program(f"parent says {number}") for number in range(8)]
assert mine == [f"parent says {number}" for number in range(8)], mine
for number, read in enumerate(ends):
    print(os.read(read, 1000).decode(), flush=True)
"""
)
ENDS = (
    HEAD
    + """
begun = threading.Event()

@client_step
def endless(text: str) -> str:
    print("computes", flush=True)
    begun.set()
    time.sleep(600)

session = client.session()
session.__enter__()
endless(shout("tea"))
session.flush()
stream = session.stream(shout("word " * 1000).id)
print(next(stream), flush=True)

class Late:
    def __del__(self):
        try:
            client.models()
        except RuntimeError as error:
            print(error, flush=True)

late = Late()
late.again = late  # found at the very end
sys.modules["late"] = late
begun.wait()
print("ends", flush=True)
"""
)


@contextmanager
def program(text: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program in a process of its own, which is killed after the block."""
    running = subprocess.Popen(
        [sys.executable, "-c", text, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"},
        # A suite in the background of a shell ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def test_ctrl_c_ends_a_get_and_leaves_the_client_usable(slow_url: str) -> None:
    """The wait ends with KeyboardInterrupt, and the server cancels the call. The client goes on."""
    with program(CTRL_C, slow_url) as running, Client(slow_url) as client:
        assert running.stdout is not None
        session = Session(client, running.stdout.readline().strip())
        wait_until(lambda: any(one["event"] == "ReaderOpened" for one in session.events()))
        running.send_signal(signal.SIGINT)
        said, wrong = running.communicate(timeout=60)
    assert (said, wrong) == ("interrupted\nstill there\n", "")


def test_a_forked_process_has_a_client_of_its_own(slow_url: str) -> None:
    """Four children and their parent use the client at once, and each gets its own answers."""
    with program(FORK, slow_url) as running:
        said, wrong = running.communicate(timeout=100)
    assert wrong == ""
    expected = [repr([f"child {number} says {time}" for time in range(3)]) for number in range(4)]
    assert said.splitlines() == expected


def test_a_program_ends_with_its_last_line(slow_url: str) -> None:
    """A function still computes, a stream and a session are open: the process ends all the same."""
    with program(ENDS, slow_url) as running:
        said, wrong = running.communicate(timeout=60)
    assert running.returncode == 0
    assert wrong == ""
    assert "computes\n" in said and "ends\n" in said
