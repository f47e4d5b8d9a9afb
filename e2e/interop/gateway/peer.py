"""A client of holdfast serve. Standard input has one command a line, and each prints one line when it is done."""

import sys
import threading

sys.path.insert(0, sys.argv[1])
import holdfast  # noqa: E402

client = holdfast.Client(sys.argv[2])
held = {}
mutex = threading.Lock()


def say(*words):
    with mutex:
        print(*words, flush=True)


def count(path, times):
    done = 0
    while done < times:
        try:
            with client.lock("counter", ttl=2) as lock:
                with open(path) as f:
                    n = int(f.read())
                lock.check()
                with open(path, "w") as f:
                    f.write(str(n + 1))
                say("counted", n + 1)
                done += 1
        except holdfast.Error as e:  # the gateway is away, or was killed
            say("failed", e.code)
            threading.Event().wait(0.05)


def run(verb, *rest):
    if verb == "count":
        count(rest[0], int(rest[1]))
    elif verb == "hold":
        try:
            lock = held[rest[0]] = client.lock(rest[0], ttl=float(rest[1]),
                                               on_lost=lambda e: say("lost", e.details["cause"]))
        except holdfast.Error as e:
            return (e.code,)
        return lock.token, lock.slot
    elif verb == "try":
        try:
            client.lock(rest[0], wait=0).release()
        except holdfast.Busy as e:
            return "busy", len(e.details["holders"])
    elif verb == "check":
        try:
            held[rest[0]].check()
        except holdfast.Lost as e:
            return "lost", e.details["cause"], held[rest[0]].remaining()
        return ("held" if held[rest[0]].remaining() > 0 else "over",)
    elif verb == "release":
        try:
            held[rest[0]].release()
        except holdfast.Lost as e:
            return "lost", e.details["cause"]
    elif verb == "names":
        return [lock["name"] for lock in client.locks(rest[0])]
    elif verb == "break":
        client.break_lock(rest[0], client.show(rest[0])["holders"][0]["token"], "a test")
    elif verb == "guard":
        try:
            client.guard(rest[0], int(rest[1]))
        except holdfast.Error as e:
            return (e.code,)
    elif verb == "next":
        return (client.next(rest[0]),)
    return ("ok",)


say("ready")
for line in sys.stdin:
    verb, *rest = line.split()
    say(verb, *run(verb, *rest) or ())
