"""Carries out commands from standard input with kazoo's locks, and prints each outcome.
The arguments are CONNECT KIND PATH. KIND is pattern (kazoo's own names, respecting
Curator's) or curator (Curator's names)."""

import sys
import uuid

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock


class CuratorLock(Lock):
    """kazoo's recipe with the names that Curator gives."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]

    def __init__(self, client, path):
        super().__init__(client, path)
        self.prefix = "_c_" + str(uuid.uuid4()) + self._NODE_NAME
        self.create_path = self.path + "/" + self.prefix


def say(what):
    print(what, flush=True)


def main(connect, kind, path):
    client = KazooClient(hosts=connect, timeout=20)
    client.start()
    if kind == "curator":
        lock = CuratorLock(client, path)
    else:
        lock = client.Lock(path, extra_lock_patterns=["-lock-"])
    say("ready")
    for line in sys.stdin:
        words = line.split()
        if words[0] == "acquire":
            lock.acquire()
        elif words[0] == "release":
            lock.release()
        elif words[0] == "count":
            for _ in range(int(words[2])):
                with lock:
                    with open(words[1]) as f:
                        n = int(f.read())
                    with open(words[1], "w") as f:
                        f.write(str(n + 1))
        say("done " + words[0])
    client.stop()
    client.close()


main(*sys.argv[1:])
