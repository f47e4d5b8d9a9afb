package holdfast;

import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.support.CloseableClient;
import io.etcd.jetcd.support.Observers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** Increments the number in a file under jetcd's lock: ENDPOINT NAME FILE TIMES. */
public final class Peer {
    public static void main(String[] args) throws Exception {
        ByteSequence name = ByteSequence.from(args[1], StandardCharsets.UTF_8);
        Path file = Path.of(args[2]);
        try (Client client = Client.builder().endpoints(args[0]).build()) {
            long lease = client.getLeaseClient().grant(20).get().getID();
            try (CloseableClient beat = client.getLeaseClient().keepAlive(lease,
                    Observers.<LeaseKeepAliveResponse>observer(r -> { }))) {
                System.out.println("ready");
                for (int i = Integer.parseInt(args[3]); i > 0; i--) {
                    ByteSequence key = client.getLockClient().lock(name, lease).get().getKey();
                    long n = Long.parseLong(Files.readString(file));
                    Files.writeString(file, Long.toString(n + 1));
                    client.getLockClient().unlock(key).get();
                }
            }
            client.getLeaseClient().revoke(lease).get();
        }
        System.exit(0);
    }
}
