// A client of holdfast serve. Standard input has one command a line, and each prints one line when it is done.

import { readFileSync, writeFileSync } from "node:fs"
import { createInterface } from "node:readline"
import { resolve } from "node:path"

const { Busy, Client, HoldfastError, Lost } = await import(resolve(process.argv[2], "holdfast.mjs"))
const client = new Client(process.argv[3])
const held = {}
const say = (...words) => process.stdout.write(words.join(" ") + "\n")

async function count(path, times) {
  for (let done = 0; done < times; ) {
    try {
      await client.do("counter", (lock) => {
        const n = Number(readFileSync(path, "utf8")) + 1
        lock.check()
        writeFileSync(path, String(n))
        say("counted", n)
        done++
      }, { ttl: 2 })
    } catch (e) { // the gateway is away, or was killed
      if (!(e instanceof HoldfastError)) throw e
      say("failed", e.code)
      await new Promise((wake) => setTimeout(wake, 50))
    }
  }
}

/** Returns what f returns, or the words of its error. */
async function outcome(f, kind, words) {
  try {
    return (await f()) ?? ["ok"]
  } catch (e) {
    if (e instanceof kind) return words(e)
    throw e
  }
}

const commands = {
  count: (path, times) => count(path, Number(times)),
  hold: (name, ttl) => outcome(async () => {
    const lock = held[name] = await client.lock(name, { ttl: Number(ttl) })
    lock.signal.addEventListener("abort", () => {
      if (lock.signal.reason instanceof Lost) say("lost", lock.signal.reason.details.cause)
    })
    return [lock.token, lock.slot]
  }, HoldfastError, (e) => [e.code]),
  try: (name) => outcome(async () => (await client.lock(name, { wait: 0 })).release(), Busy,
    (e) => ["busy", e.details.holders.length]),
  check: (name) => outcome(() => { held[name].check(); return [held[name].remaining() > 0 ? "held" : "over"] }, Lost,
    (e) => ["lost", e.details.cause, held[name].remaining()]),
  release: (name) => outcome(() => held[name].release(), Lost, (e) => ["lost", e.details.cause]),
  names: async (prefix) => (await client.locks(prefix)).map((lock) => lock.name),
  break: async (name) => client.breakLock(name, (await client.show(name)).holders[0].token, "a test"),
  guard: (name, token) => outcome(() => client.guard(name, BigInt(token)), HoldfastError, (e) => [e.code]),
  next: async (name) => [await client.next(name)],
}

say("ready")
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...rest] = line.split(" ")
  say(verb, ...((await commands[verb](...rest)) ?? ["ok"]))
}
process.exit() // also while locks are held
