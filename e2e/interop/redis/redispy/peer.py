"""Locks with redis-py as standard input says, and prints what happens: HOST PORT. A line is
THREAD KIND NAME VERB ARGUMENTS..., the answer "THREAD VERB RESULT"."""

import sys

import redis


def main(host, port):
    client = redis.Redis(host=host, port=int(port))
    locks = {}
    print("ready", flush=True)
    for line in sys.stdin:
        thread, _, name, verb, *rest = line.split()
        lock = locks.get(name)
        if lock is None:
            lock = locks[name] = client.lock(name, timeout=30, sleep=0.005)
        result = "ok"
        if verb == "acquire":
            result = str(lock.acquire()).lower()
        elif verb == "try":
            result = str(lock.acquire(blocking=False)).lower()
        elif verb == "renew":
            lock.reacquire()
        elif verb == "release":
            lock.release()
        elif verb == "count":
            for _ in range(int(rest[1])):
                with lock:
                    with open(rest[0]) as f:
                        n = int(f.read())
                    with open(rest[0], "w") as f:
                        f.write(str(n + 1))
        print(thread, verb, result, flush=True)


main(*sys.argv[1:])
