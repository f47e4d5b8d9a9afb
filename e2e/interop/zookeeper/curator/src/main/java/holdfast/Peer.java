package holdfast;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Carries out commands from standard input with Curator's recipes, and prints each outcome.
 * The arguments are CONNECT RECIPE PATH [PERMITS]. RECIPE is mutex, rw or semaphore.
 */
public final class Peer {
    private static InterProcessMutex mutex;
    private static InterProcessReadWriteLock rw;
    private static InterProcessSemaphoreV2 semaphore;
    private static Lease lease;

    public static void main(String[] args) throws Exception {
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(
                args[0], 20000, 10000, new ExponentialBackoffRetry(100, 10))) {
            client.start();
            client.blockUntilConnected(30, TimeUnit.SECONDS);
            switch (args[1]) {
                case "mutex" -> mutex = new InterProcessMutex(client, args[2]);
                case "rw" -> {
                    rw = new InterProcessReadWriteLock(client, args[2]);
                    mutex = rw.writeLock();
                }
                case "semaphore" -> semaphore = new InterProcessSemaphoreV2(client, args[2], Integer.parseInt(args[3]));
                default -> throw new IllegalArgumentException(args[1]);
            }
            say("ready");
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
            for (String line; (line = in.readLine()) != null; ) {
                String[] words = line.split(" ");
                switch (words[0]) {
                    case "acquire" -> acquire();
                    case "release" -> release();
                    case "read" -> rw.readLock().acquire();
                    case "unread" -> rw.readLock().release();
                    case "downgrade" -> {
                        rw.readLock().acquire();
                        mutex.release();
                    }
                    case "revocable" -> mutex.makeRevocable(m -> say("revoked"));
                    case "revoke" -> Revoker.attemptRevoke(client, words[1]);
                    case "count" -> count(Path.of(words[1]), Integer.parseInt(words[2]));
                    default -> throw new IllegalArgumentException(line);
                }
                say("done " + words[0]);
            }
        }
        System.exit(0);
    }

    private static void acquire() throws Exception {
        if (semaphore != null) {
            lease = semaphore.acquire();
        } else {
            mutex.acquire();
        }
    }

    private static void release() throws Exception {
        if (semaphore != null) {
            semaphore.returnLease(lease);
        } else {
            mutex.release();
        }
    }

    private static void count(Path file, int times) throws Exception {
        for (int i = 0; i < times; i++) {
            acquire();
            long n = Long.parseLong(Files.readString(file).trim());
            Files.writeString(file, Long.toString(n + 1));
            release();
            if (rw != null && i % 4 == 0) {
                rw.readLock().acquire();
                String before = Files.readString(file);
                Thread.sleep(1);
                if (!before.equals(Files.readString(file))) {
                    say("a writer beside a reader");
                }
                rw.readLock().release();
            }
        }
    }

    private static synchronized void say(String what) {
        System.out.println(what);
        System.out.flush();
    }
}
