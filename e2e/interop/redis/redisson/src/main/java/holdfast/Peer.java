package holdfast;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Locks with Redisson as standard input says, and prints what happens.
 *
 * <p>Arguments: CLUSTER? ADDRESS WATCHDOG-MS FAIR-WAIT-MS. A line is THREAD KIND NAME VERB
 * ARGUMENTS... The answer is "THREAD VERB RESULT". The lines of one thread run in order on that
 * thread.
 */
public final class Peer {
    private static final Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
    private static final Map<String, String> permits = new ConcurrentHashMap<>();
    private static RedissonClient client;

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(args[2]));
        config.setFairLockWaitTimeout(Long.parseLong(args[3]));
        config.setNettyThreads(4);
        config.setThreads(4);
        if (args[0].equals("cluster")) {
            config.useClusterServers().addNodeAddress("redis://" + args[1]).setCheckSlotsCoverage(false);
        } else {
            config.useSingleServer().setAddress("redis://" + args[1]).setConnectionMinimumIdleSize(2).setConnectionPoolSize(8);
        }
        client = Redisson.create(config);
        say("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[0], t -> Executors.newSingleThreadExecutor()).submit(() -> {
                String result;
                try {
                    result = run(words);
                } catch (Throwable e) {
                    result = "failed " + e;
                }
                say(words[0] + " " + words[3] + " " + result);
            });
        }
        System.exit(0);
    }

    private static String run(String[] words) throws Exception {
        String kind = words[1];
        String name = words[2];
        String permit = words[0] + " " + name;
        if (words[3].equals("count")) {
            Path file = Path.of(words[4]);
            for (int i = 0; i < Integer.parseInt(words[5]); i++) {
                RLock lock = kind.equals("plain") ? null : lock(kind, name);
                if (lock == null) {
                    acquirePlain(permit, name);
                } else {
                    lock.lock();
                }
                long n = Long.parseLong(Files.readString(file).trim());
                Files.writeString(file, Long.toString(n + 1));
                if (lock == null) {
                    releasePlain(permit, name);
                } else {
                    lock.unlock();
                }
            }
            return "ok";
        }
        if (words[3].equals("share")) {
            return share(words);
        }
        switch (kind) {
            case "plain" -> {
                switch (words[3]) {
                    case "acquire" -> acquirePlain(permit, name);
                    case "try" -> {
                        return Boolean.toString(tryPlain(permit, name));
                    }
                    case "renew" -> client.getBucket(name, StringCodec.INSTANCE).expire(Duration.ofMinutes(10));
                    case "release" -> releasePlain(permit, name);
                    default -> throw new IllegalArgumentException(words[3]);
                }
                return "ok";
            }
            case "semaphore" -> {
                RSemaphore s = client.getSemaphore(name);
                switch (words[3]) {
                    case "set" -> s.trySetPermits(Integer.parseInt(words[4]));
                    case "acquire" -> s.acquire();
                    case "try" -> {
                        return Boolean.toString(s.tryAcquire());
                    }
                    case "release" -> s.release();
                    case "free" -> {
                        return Integer.toString(s.availablePermits());
                    }
                    default -> throw new IllegalArgumentException(words[3]);
                }
                return "ok";
            }
            case "permits" -> {
                RPermitExpirableSemaphore s = client.getPermitExpirableSemaphore(name);
                switch (words[3]) {
                    case "set" -> s.trySetPermits(Integer.parseInt(words[4]));
                    case "acquire" -> permits.put(permit, s.acquire(Long.parseLong(words[4]), TimeUnit.MILLISECONDS));
                    case "try" -> {
                        String id = s.tryAcquire();
                        if (id != null) {
                            permits.put(permit, id);
                        }
                        return Boolean.toString(id != null);
                    }
                    case "renew" -> {
                        return Boolean.toString(s.updateLeaseTime(permits.get(permit), Long.parseLong(words[4]), TimeUnit.MILLISECONDS));
                    }
                    case "release" -> s.release(permits.remove(permit));
                    case "free" -> {
                        return Integer.toString(s.availablePermits());
                    }
                    default -> throw new IllegalArgumentException(words[3]);
                }
                return "ok";
            }
            default -> {
                RLock lock = lock(kind, name);
                switch (words[3]) {
                    case "acquire" -> {
                        if (lock instanceof RFencedLock fenced) {
                            return Long.toString(fenced.lockAndGetToken());
                        }
                        lock.lock();
                        return Long.toString(System.nanoTime());
                    }
                    case "lease" -> {
                        lock.lock(Long.parseLong(words[4]), TimeUnit.MILLISECONDS);
                        return "ok";
                    }
                    case "try" -> {
                        return Boolean.toString(lock.tryLock());
                    }
                    case "wait" -> {
                        return Boolean.toString(lock.tryLock(Long.parseLong(words[4]), TimeUnit.MILLISECONDS));
                    }
                    case "release" -> {
                        long now = System.nanoTime();
                        lock.unlock();
                        return Long.toString(now);
                    }
                    case "held" -> {
                        return Boolean.toString(lock.isHeldByCurrentThread());
                    }
                    case "force" -> {
                        return Boolean.toString(lock.forceUnlock());
                    }
                    default -> throw new IllegalArgumentException(words[3]);
                }
            }
        }
    }

    /** Holds the lock again and again for a time, and returns how often and the longest wait in ms. */
    private static String share(String[] words) throws Exception {
        String[] acquire = {words[0], words[1], words[2], "acquire", "600000"};
        String[] release = {words[0], words[1], words[2], "release"};
        long hold = Long.parseLong(words[4]);
        long end = System.nanoTime() + Long.parseLong(words[5]) * 1_000_000;
        long longest = 0;
        int times = 0;
        for (long began; (began = System.nanoTime()) < end; times++) {
            run(acquire);
            longest = Math.max(longest, System.nanoTime() - began);
            Thread.sleep(hold);
            run(release);
        }
        return times + " " + longest / 1_000_000;
    }

    private static boolean tryPlain(String permit, String name) {
        String value = UUID.randomUUID().toString();
        boolean got = client.<String>getBucket(name, StringCodec.INSTANCE).setIfAbsent(value, Duration.ofMinutes(10));
        if (got) {
            permits.put(permit, value);
        }
        return got;
    }

    private static void acquirePlain(String permit, String name) throws InterruptedException {
        while (!tryPlain(permit, name)) {
            Thread.sleep(5);
        }
    }

    private static void releasePlain(String permit, String name) {
        if (!client.<String>getBucket(name, StringCodec.INSTANCE).compareAndSet(permits.remove(permit), null)) {
            throw new IllegalStateException("not held");
        }
    }

    private static RLock lock(String kind, String name) {
        return switch (kind) {
            case "lock" -> client.getLock(name);
            case "fair" -> client.getFairLock(name);
            case "fenced" -> client.getFencedLock(name);
            case "spin" -> client.getSpinLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            case "multi" -> client.getMultiLock(Arrays.stream(name.split(",")).map(client::getLock).toArray(RLock[]::new));
            default -> throw new IllegalArgumentException(kind);
        };
    }

    private static synchronized void say(String what) {
        System.out.println(what);
        System.out.flush();
    }
}
