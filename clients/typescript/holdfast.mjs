/**
 * Locks of `holdfast serve` for Node 18 and later and for browsers, with fetch alone. Types are in holdfast.d.mts.
 *
 *     const client = new Client("http://127.0.0.1:7345", { token: process.env.HOLDFAST_CLIENT_TOKEN })
 *     await client.do("invoices/2026", async (lock) => {
 *       for (const order of orders) {
 *         lock.check()                                            // throws Lost
 *         await bill(order, lock.token, { signal: lock.signal })  // the resource compares tokens
 *       }
 *     }, { wait: 60 })
 *
 * A lock is held as long as its connection. It counts as lost when the server says so, when the connection ends, and
 * when its validity is over, which counts from when the request was sent. Then lock.signal aborts. `do` throws Lost at
 * its end if the lock was lost meanwhile. All times are in seconds, as in the API.
 *
 * A page can reach a server of its own origin only. Browsers open few connections to one host without HTTP/2.
 */

/** An error of the server, or of the connection to it. code is one of the API's codes: see docs/serve.md. */
export class HoldfastError extends Error {
  constructor(code, message, details = {}) {
    super(message)
    this.name = new.target.name
    this.code = code
    this.details = details
  }
}

/** The lock was not granted in time. details.holders has its holders as far as the store names them. */
export class Busy extends HoldfastError {}

/** The lock was lost. details.cause is why. */
export class Lost extends HoldfastError {}

function errorOf({ code = "unavailable", message = "no message", ...details } = {}) {
  const kind = { busy: Busy, lost: Lost }[code] ?? HoldfastError
  return new kind(code, message, { code, message, ...details })
}

/** After how many seconds without a line a wait fails. The server sends one at least every 7 s. */
const silence = 30

/** The monotonic clock may stand while the machine sleeps, and the other one may be set: the larger time counts. */
const now = () => [performance.now(), Date.now()]
const elapsed = (since) => Math.max(performance.now() - since[0], Date.now() - since[1]) / 1000

/** A server of locks. See holdfast.d.mts. */
export class Client {
  constructor(url, { token, store, timeout = 10, fetch = globalThis.fetch } = {}) {
    if (!/^https?:$/.test(new URL(url).protocol)) throw new TypeError(`url ${url}: http: or https: is allowed`)
    this._url = url.replace(/\/+$/, "")
    Object.assign(this, { _token: token, _store: store, _timeout: timeout, _fetch: fetch.bind(globalThis) })
  }

  async lock(name, { ttl, wait, limit, shared, minHold, reason, onLost, signal } = {}) {
    const body = { ttl_seconds: ttl, wait_seconds: wait, limit, shared, min_hold_seconds: minHold, reason }
    const connection = new AbortController()
    const abort = () => connection.abort(signal.reason)
    signal?.throwIfAborted()
    signal?.addEventListener("abort", abort)
    const sent = now()
    let timer
    try {
      const answer = await this._send("POST", `locks/${encodeURIComponent(name)}`, body, connection.signal)
      const lines = linesOf(answer.body)
      let line
      do {
        const silent = new HoldfastError("unavailable", "the server is silent")
        timer = setTimeout(() => connection.abort(silent), silence * 1000)
        line = (await lines.next()).value
        clearTimeout(timer)
      } while (line?.event === "queued")
      if (!line) throw new HoldfastError("unavailable", "the server has ended the answer")
      if (line.event !== "granted") throw errorOf(line.error)
      return new Lock(this, name, connection, lines, sent, line, onLost)
    } catch (e) {
      connection.abort()
      throw unavailable(e, signal)
    } finally {
      clearTimeout(timer)
      signal?.removeEventListener("abort", abort)
    }
  }

  async do(name, work, options) {
    const lock = await this.lock(name, options)
    let result
    try {
      result = await work(lock)
    } catch (e) {
      await lock.release().catch(() => {}) // the error of the work comes first
      throw e
    }
    await lock.end()
    return result
  }

  async locks(prefix = "") {
    return (await this._call("GET", `locks?prefix=${encodeURIComponent(prefix)}`)).locks
  }

  async show(name) {
    return this._call("GET", `locks/${encodeURIComponent(name)}`)
  }

  async breakLock(name, token, reason) {
    await this._call("POST", "break", { name, token: String(token), reason })
  }

  async guard(name, token) {
    await this._call("POST", `guards/${encodeURIComponent(name)}`, { token: String(token) })
  }

  async next(name) {
    return BigInt((await this._call("POST", `sequences/${encodeURIComponent(name)}`)).id)
  }

  async _call(method, path, body) {
    try {
      const answer = await this._send(method, path, body, AbortSignal.timeout(this._timeout * 1000))
      return await answer.json()
    } catch (e) {
      throw unavailable(e)
    }
  }

  async _send(method, path, body, signal) {
    const headers = { Accept: "application/json" }
    if (this._token) headers.Authorization = `Bearer ${this._token}`
    if (body) headers["Content-Type"] = "application/json"
    if (this._store) path += `${path.includes("?") ? "&" : "?"}store=${encodeURIComponent(this._store)}`
    const request = { method, headers, signal, body: body && JSON.stringify(body) }
    const answer = await this._fetch(`${this._url}/v1/${path}`, request)
    if (answer.ok) return answer
    const problem = await answer.json().catch(() => ({}))
    throw errorOf(problem?.error ?? { message: `${method} ${path}: status ${answer.status}` })
  }
}

/** Returns e if it is an error of this file or the reason of the caller's signal, or else one of the connection. */
function unavailable(e, signal) {
  if (e instanceof HoldfastError || (signal?.aborted && e === signal.reason)) return e
  return new HoldfastError("unavailable", `${e?.cause?.message ?? e?.message ?? e}`, { error: e })
}

/** A held lock. See holdfast.d.mts. */
export class Lock {
  #client; #id; #connection; #sent; #valid; #onLost; #timer
  #lost = null
  #released = false
  #held = new AbortController()

  constructor(client, name, connection, lines, sent, line, onLost) {
    this.name = name
    this.token = BigInt(line.token)
    this.slot = line.slot
    this.#client = client
    this.#id = line.id
    this.#connection = connection
    this.#sent = sent
    this.#onLost = onLost
    this.#extend(line)
    this.#read(lines)
  }

  get signal() {
    return this.#held.signal
  }

  remaining() {
    return this.#lost || this.#released ? 0 : Math.max(this.#valid - elapsed(this.#sent), 0)
  }

  check() {
    if (this.#released) throw new HoldfastError("not_held", `"${this.name}" was released`)
    if (this.remaining() === 0) this.#lose("expired", "its validity is over")
    if (this.#lost) throw this.#lost
  }

  async release() {
    if (this.#released) return
    this.#released = true
    clearTimeout(this.#timer)
    this.#held.abort(new HoldfastError("not_held", `"${this.name}" was released`))
    try {
      if (this.#lost) throw this.#lost
      await this.#client._call("POST", `release/${this.#id}`)
    } finally {
      this.#connection.abort()
    }
  }

  async end() {
    if (!this.#released && !this.#lost && this.remaining() === 0) this.#lose("expired", "its validity is over")
    await this.release().catch((e) => {
      if (e instanceof Lost) throw e
      // the work is done, and the end of the connection releases the lock
    })
  }

  #extend(line) {
    this.#valid = line.valid_seconds
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#lose("expired", "no answer came in its validity"), this.remaining() * 1000)
  }

  async #read(lines) {
    try {
      for await (const line of lines) {
        if (this.#released || this.#lost) return
        if (line.event === "valid") this.#extend(line)
        else if (line.event === "lost") return this.#lose(line.error?.cause ?? "", line.error?.message ?? "")
        else return this.#lose("released", "it was released by another call")
      }
      this.#lose("closed", "the server has ended the answer")
    } catch (e) {
      this.#lose("closed", `the connection ended: ${e?.message ?? e}`)
    }
  }

  #lose(cause, message) {
    if (this.#released || this.#lost) return
    clearTimeout(this.#timer)
    this.#lost = new Lost("lost", `"${this.name}" is lost (${cause}): ${message}`, { cause })
    this.#held.abort(this.#lost)
    this.#connection.abort()
    this.#onLost?.(this.#lost)
  }
}

if (Symbol.asyncDispose) Lock.prototype[Symbol.asyncDispose] = Lock.prototype.end

/** Yields the lines of a stream. A line without its end is none. */
async function* linesOf(body) {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ""
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const all = (rest + decoder.decode(value, { stream: true })).split("\n")
    rest = all.pop()
    for (const line of all) yield JSON.parse(line)
  }
}
