/** An error of the server, or of the connection to it. */
export class HoldfastError extends Error {
  /** One of the API's codes: "unavailable", "refused", "invalid" and so on; see docs/serve.md. */
  readonly code: string
  readonly details: Record<string, unknown>
  constructor(code: string, message: string, details?: Record<string, unknown>)
}

/** The lock was not granted in time. details.holders has its holders as far as the store names them. */
export class Busy extends HoldfastError {}

/** The lock was lost. details.cause is why. */
export class Lost extends HoldfastError {}

export interface ClientOptions {
  /** The bearer token. */
  token?: string
  /** The name of the store, if the server has several. */
  store?: string
  /** The timeout of requests other than waits, in seconds. Default 10. */
  timeout?: number
  /** Replaces the global fetch, for example to give a client certificate. */
  fetch?: typeof globalThis.fetch
}

/** Times are in seconds. */
export interface LockOptions {
  /** How long a dead server blocks other clients. Default: that of the library. */
  ttl?: number
  /** The longest wait, 0 for none. Default: the client waits until it gets the lock. */
  wait?: number
  /** Makes a semaphore with that many permits. */
  limit?: number
  /** A lock of readers. */
  shared?: boolean
  /** Keeps the lock for at least that long. */
  minHold?: number
  /** Recorded with the lock. */
  reason?: string
  /** Called once when the lock is lost. */
  onLost?: (lost: Lost) => void
  /** Ends the wait. After the grant it has no effect. */
  signal?: AbortSignal
}

/** A server of locks. */
export class Client {
  /** url may have a path below which a service has mounted the handler. */
  constructor(url: string, options?: ClientOptions)
  /** Waits for the lock and returns it. Rejects with Busy, another HoldfastError, or the reason of options.signal. */
  lock(name: string, options?: LockOptions): Promise<Lock>
  /** Runs work under the lock, and releases it. Rejects with Lost if the lock was lost meanwhile. */
  do<T>(name: string, work: (lock: Lock) => T | Promise<T>, options?: LockOptions): Promise<T>
  /** The locks that are held or awaited, as `holdfast ls --json` prints them. */
  locks(prefix?: string): Promise<Array<Record<string, any>>>
  /** One lock, as `holdfast show --json` prints it. */
  show(name: string): Promise<Record<string, any>>
  /** Takes the lock from the holder with that token. */
  breakLock(name: string, token: bigint | string, reason: string): Promise<void>
  /** Checks and records the token for a resource. Rejects with code "stale" if a larger token was there. */
  guard(name: string, token: bigint | string): Promise<void>
  /** An id that no other call gets. */
  next(name: string): Promise<bigint>
}

/** A held lock. Release it, or declare it with `await using`. */
export class Lock {
  private constructor()
  readonly name: string
  /** The fencing token, larger than that of each earlier grant of the name. */
  readonly token: bigint
  /** The number of the permit, or null. */
  readonly slot: number | null
  /** Aborts when the lock is lost, with the Lost as its reason, and when it is released. */
  readonly signal: AbortSignal
  /** For how many seconds the lock is certainly held if the server does not report again; 0 after its end. */
  remaining(): number
  /** Throws Lost if the lock is lost. It reads the clock: after a pause it notices what signal has not yet noticed. */
  check(): void
  /**
   * Releases the lock. Rejects with Lost if it was lost before, and with HoldfastError if the server does not confirm
   * the release: the end of the connection releases the lock as well. Further calls do nothing.
   */
  release(): Promise<void>
  /** Releases the lock at the end of its work, and rejects only with Lost. */
  end(): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}
